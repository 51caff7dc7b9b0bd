/** A key of a key-value store: what is committed beside what is not yet. */

import { html, useEffect } from "../../vendor/htm-preact-3.1.1.js";
import { addressOf } from "../../base/place.js";
import { compact } from "../../base/json.js";
import { requestFor } from "../../base/queries.js";
import { Failure } from "../../parts/problem.js";
import { Nothing } from "../../parts/table.js";
import { Copy, Time, Value } from "../../parts/value.js";
import { useAnswer } from "../../parts/watch.js";
import { Origin } from "./asked.js";
import { Diff } from "./diff.js";

export function Now({ store, at, everyS, again, onMain }) {
  const committed = requestFor(store, "key", { key: at.key, isolation_level: "read_committed" });
  const uncommitted = requestFor(store, "key", { key: at.key, isolation_level: "read_uncommitted" });
  const [old, young] = [useAnswer(committed, everyS, `${again}`), useAnswer(uncommitted, everyS, `${again}`)];
  useEffect(() => onMain({ request: committed, answer: old.answer, failure: old.failure, entries: entriesOf(old.answer) }), [old.answer, old.failure]);
  return html`<section aria-labelledby="value-title">
    <h2 id="value-title">Value</h2>
    <${Compared} old=${old.answer?.body} young=${young.answer?.body} />
    <div class="cards">
      <${Level} name="read_committed" known=${old} store=${store} at=${at} />
      <${Level} name="read_uncommitted" known=${young} store=${store} at=${at} />
    </div>
  </section>`;
}

function entriesOf(answer) {
  return answer?.body.found ? [{ value: answer.body.value, timestamp: answer.body.timestamp }] : [];
}

function Level({ name, known, store, at }) {
  const { answer, failure } = known;
  return html`<section class="card" aria-labelledby=${name}>
    <h3 id=${name}>${name}</h3>
    ${failure && html`<${Failure} error=${failure} />`}
    ${!answer && !failure && html`<p role="status">Loading …</p>`}
    ${answer && (answer.body.found ? html`<${Found} body=${answer.body} />` : html`<${Absent} store=${store} at=${at} level=${name} />`)}
    ${answer && html`<${Origin} answer=${answer} atMs=${known.atMs} />`}
  </section>`;
}

function Found({ body }) {
  return html`<div class="value"><${Value} value=${body.value} /></div>
    <p class="buttons"><${Copy} text=${() => compact(body.value)} label="Copy value" />
      ${body.timestamp === null ? html`<span class="muted">no timestamp</span>` : html`<span>Timestamp <${Time} ms=${body.timestamp} withUtc /></span>`}</p>`;
}

function Absent({ store, at, level }) {
  const prefix = addressOf({ place: "store", store: store.store, query: { ask: "range", prefix: [...at.key].slice(0, 3).join("") } });
  return html`<${Nothing}>No such key at ${level}: it was never written, was deleted, or ${level === "read_committed" ? "is not committed yet" : "is written otherwise"}. Keys are taken exactly, as ${store.key_type}.
    ${store.key_type === "string" && html` <a href=${prefix}>Keys that begin so</a>`}<//>`;
}

/** Whether both levels show the same, and what differs. */
function Compared({ old, young }) {
  if (!old || !young) return null;
  if (old.found !== young.found) {
    const said = young.found ? "Not committed yet: only read_uncommitted has this key." : "The deletion is not committed yet: only read_committed has this key.";
    return html`<p role="status"><span class="tag warn">differ</span> ${said}</p>`;
  }
  if (compact(old.value) === compact(young.value)) {
    return html`<p role="status"><span class="tag">equal</span> Both levels show the same${old.found ? " value" : ": no such key"}.</p>`;
  }
  return html`<p role="status"><span class="tag warn">differ</span> What was changed is not committed yet:</p>
    <${Diff} before=${old.value} after=${young.value} caption="From read_committed to read_uncommitted" />`;
}
