/** The form of every query: its fields by kind of store, and its curl line. */

import { html, useState } from "../vendor/htm-preact-3.1.1.js";
import { compact } from "../base/json.js";
import { COMMON_FIELDS, family, QUERIES, queriesOf, requestFor } from "../base/queries.js";
import { Curl } from "./curl.js";
import { isNoTime, TimeField } from "./time_field.js";

const LIMIT = "100";
const KEY_HINTS = { string: null, json: "JSON, as it was written", bytes: "base64url" };
const FIELDS = {
  key: { label: "Key", isKey: true },
  keys: { label: "Keys, one per line", isKey: true, lines: 4 },
  prefix: { label: "Prefix", isKey: true },
  lower: { label: "Lower, inclusive", isKey: true },
  upper: { label: "Upper, inclusive", isKey: true },
  order: { label: "Order", choices: ["", "asc", "desc"] },
  limit: { label: "Rows of a page", hint: `${LIMIT} when empty`, isNumber: true },
  as_of: { label: "As of", isTime: true, empty: "now when empty" },
  from: { label: "From, inclusive", isTime: true },
  to: { label: "To, inclusive", isTime: true },
  isolation_level: { label: "Isolation level", choices: ["", "read_committed", "read_uncommitted"] },
  partition: { label: "Partition", hint: "one, or several with commas" },
  position_bound: { label: "Position bound", hint: '{"topic": {"0": 41}}', lines: 2 },
  wait_ms: { label: "Wait for the bound, ms", isNumber: true },
  require_active: { label: "Only from an active copy", isCheck: true },
  allow_partial: { label: "Answer even if some partitions fail", isCheck: true },
};
const EVERY_FIELD = Object.keys(FIELDS);
const TIMES = EVERY_FIELD.filter((name) => FIELDS[name].isTime);

const FIRST = { key_value: "range", window: "windows", session: "all_sessions", versioned: "versioned_range" };

/** The question in the address without its page: `{name, values}`. If the kind of store cannot answer it, its first query. */
export function questionOf(store, query) {
  const names = queriesOf(store.kind);
  const name = names.includes(query.ask) ? query.ask : (FIRST[family(store.kind)] ?? "count");
  const fields = [...QUERIES[name].fields, ...COMMON_FIELDS].filter((field) => field !== "cursor" && query[field]);
  const values = Object.fromEntries(fields.map((field) => [field, query[field]]));
  return { name, values: QUERIES[name].fields.includes("limit") ? { limit: LIMIT, ...values } : values };
}

/** Whether the question has the key that it needs. */
export function isComplete({ name, values }) {
  return ["key", "keys"].every((field) => !QUERIES[name].fields.includes(field) || (values[field] ?? "") !== "");
}

export function requestOf(store, { name, values }) {
  return requestFor(store, name, { key: "", keys: "", ...values });
}

/** The members of an address for this question, with all other fields empty. */
export function askedBy({ name, values }) {
  return { ...Object.fromEntries(EVERY_FIELD.map((field) => [field, null])), cursor: null, ...values, ask: name };
}

/** The form. `onAsk` gets a question. `position` is the newest answer's, or null. */
export function QueryForm({ store, question, position, onAsk }) {
  const asked = JSON.stringify(question);
  const [edited, setEdited] = useState({ of: asked, draft: question });
  // Another question in the address resets the draft while it renders. An effect would come after the first typed keys and drop them.
  if (edited.of !== asked) setEdited({ of: asked, draft: question });
  const draft = edited.of === asked ? edited.draft : question;
  const change = (next) => setEdited((last) => ({ of: asked, draft: next(last.draft) }));
  const set = (field, value) => change((before) => ({ ...before, values: { ...before.values, [field]: value } }));
  const choose = (name) => change((before) => questionOf(store, { ...before.values, ask: name }));
  const [unread, setUnread] = useState({});
  const submit = (event) => {
    event.preventDefault();
    // Fields from a link that nobody edited are sent unchanged: the server accepts more than this form, and reports
    // errors.
    const wrong = TIMES.filter((name) => isNoTime(draft.values[name]) && draft.values[name] !== question.values[name]);
    setUnread(Object.fromEntries(wrong.map((name) => [name, draft.values[name]])));
    if (wrong.length === 0) onAsk(draft);
  };
  const fields = QUERIES[draft.name].fields.filter((field) => field !== "cursor");
  const common = COMMON_FIELDS.filter((field) => draft.values[field]);
  const field = (name) => html`<${Field} key=${name} name=${name} store=${store} value=${draft.values[name] ?? ""} unread=${unread[name]} onChange=${set} />`;
  return html`<form class="query panel" aria-label=${`Ask ${store.store}`} onSubmit=${submit}>
    <div class="fields">
      <div class="field">
        <label for="ask">Query</label>
        <select id="ask" value=${draft.name} onChange=${(event) => choose(event.target.value)}>${queriesOf(store.kind).map(
          (name) => html`<option key=${name} value=${name}>${QUERIES[name].label}</option>`,
        )}</select>
      </div>
      ${fields.map(field)}
    </div>
    <details open=${common.length > 0}>
      <summary>Isolation level, Position bound, partitions${common.length > 0 ? `: ${common.length} given` : ""}</summary>
      <div class="fields">${COMMON_FIELDS.map(field)}</div>
      <button type="button" disabled=${position === null} onClick=${() => set("position_bound", compact(position))}>Bound: the newest answer’s Position</button>
    </details>
    <div class="buttons">
      <button type="submit" class="main">Ask</button>
      <button type="button" onClick=${() => change(() => questionOf(store, { ask: draft.name }))}>Clear</button>
    </div>
    <${Curl} request=${requestOf(store, draft)} />
  </form>`;
}

function Field({ name, store, value, unread, onChange }) {
  const { label, hint, choices, lines, isNumber, isCheck, isKey, isTime, empty } = FIELDS[name];
  const id = `field-${name}`;
  if (isTime) return html`<${TimeField} id=${id} name=${name} label=${label} empty=${empty} value=${value} isWrong=${unread === value} onChange=${(next) => onChange(name, next)} />`;
  const hintText = isKey ? keyHint(store.key_type) : hint;
  const common = { id, name, spellcheck: false, autocomplete: "off", "aria-describedby": hintText ? `${id}-hint` : null };
  const changed = (event) => onChange(name, event.target.value);
  if (isCheck) {
    const toggled = (event) => onChange(name, event.target.checked ? "true" : "");
    return html`<div class="check"><input ...${common} type="checkbox" checked=${value === "true"} onChange=${toggled} /><label for=${id}>${label}</label></div>`;
  }
  const required = name === "key" || name === "keys";
  let input = html`<input ...${common} type="text" inputmode=${isNumber ? "numeric" : null} required=${required} value=${value} onInput=${changed} />`;
  if (lines) input = html`<textarea ...${common} rows=${lines} required=${required} value=${value} onInput=${changed}></textarea>`;
  if (choices) input = html`<select ...${common} value=${value} onChange=${changed}>${choices.map((each) => html`<option key=${each} value=${each}>${each || "default"}</option>`)}</select>`;
  return html`<div class="field"><label for=${id}>${label}</label>${input}${hintText && html`<span id=${`${id}-hint`} class="hint">${hintText}</span>`}</div>`;
}

function keyHint(type) {
  return type in KEY_HINTS ? KEY_HINTS[type] : `a value of type ${type}`;
}
