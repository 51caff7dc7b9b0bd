/** The form for every query: fields by kind of store, the curl line beside it, the answer below. */

import { address, ask, token } from "./api.js";
import { answerElements, failureElements, summary } from "./answers.js";
import { byId, element, setText } from "./elements.js";
import { compact } from "./json.js";
import { COMMON_FIELDS, curlLine, QUERIES, queriesOf, requestFor } from "./queries.js";

const KEY_HINTS = {
  string: "text as it is",
  json: "JSON, as it was written",
  bytes: "base64url",
};
const TIME_HINT = "milliseconds since 1970, or ISO 8601";
const FIELDS = {
  key: { label: "Key", key: true },
  keys: { label: "Keys, one per line", key: true, lines: 4 },
  prefix: { label: "Prefix", key: true },
  lower: { label: "Lower, inclusive", key: true },
  upper: { label: "Upper, inclusive", key: true },
  order: { label: "Order", choices: ["", "asc", "desc"] },
  limit: { label: "Limit", hint: "1,000 unless given", number: true },
  cursor: { label: "Cursor", hint: "from an answer that has more" },
  as_of: { label: "As of", hint: `${TIME_HINT}; now when empty` },
  from: { label: "From, inclusive", hint: TIME_HINT },
  to: { label: "To, inclusive", hint: TIME_HINT },
  isolation_level: { label: "Isolation level", choices: ["", "read_committed", "read_uncommitted"] },
  partition: { label: "Partition", hint: "one, or several with commas" },
  position_bound: { label: "Position bound", hint: '{"topic": {"0": 41}}', lines: 2 },
  wait_ms: { label: "Wait for the bound, ms", number: true },
  require_active: { label: "Only from an active copy", check: true },
  allow_partial: { label: "Answer even when some partitions fail", check: true },
};

export class QueryForm {
  constructor() {
    this.store = null;
    this.newestPosition = null;
    this.asked = 0;
    byId("common-fields").replaceChildren(...COMMON_FIELDS.map((name) => this.field(name)), this.boundButton());
    byId("query-type").addEventListener("change", () => this.showFields());
    byId("query-form").addEventListener("input", () => this.showCurl());
    byId("query-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    byId("clear-query").addEventListener("click", () => this.clear());
    byId("copy-curl").addEventListener("click", () => this.copy());
  }

  /** Ask this store from now on. */
  choose(store) {
    const before = byId("query-type").value;
    const names = queriesOf(store.kind);
    this.store = store;
    this.asked += 1; // an answer that is still to come is of another store
    setText(byId("result-summary"), "Nothing asked yet.");
    byId("result").replaceChildren();
    byId("query-fields").replaceChildren();
    const options = names.map((name) => element("option", { value: name }, QUERIES[name].label));
    byId("query-type").replaceChildren(...options);
    byId("query-type").value = names.includes(before) ? before : names[0];
    this.showFields();
  }

  /** Empty every field; the query stays the same. */
  clear() {
    const query = byId("query-type").value;
    byId("query-form").reset();
    byId("query-type").value = query;
    this.showFields();
  }

  /** Put a key into the form, as a question for it. */
  takeKey(key) {
    const asksKey = (name) => QUERIES[name].fields.includes("key");
    const current = byId("query-type").value;
    const name = asksKey(current) ? current : queriesOf(this.store.kind).find(asksKey);
    if (name === undefined) return;
    byId("query-type").value = name;
    this.showFields();
    byId("field-key").value = key;
    this.showCurl();
    byId("field-key").focus();
  }

  showFields() {
    const kept = this.values();
    const query = QUERIES[byId("query-type").value];
    byId("query-fields").replaceChildren(...query.fields.map((name) => this.field(name)));
    for (const name of query.fields) if (name !== "cursor" && kept[name]) byId(`field-${name}`).value = kept[name];
    this.showCurl();
  }

  field(name) {
    const { label, hint, choices, lines, number, check, key } = FIELDS[name];
    const id = `field-${name}`;
    const hintText = key ? (KEY_HINTS[this.store.key_type] ?? `a value of type ${this.store.key_type}`) : hint;
    const common = { id, name, "aria-describedby": hintText ? `${id}-hint` : null, spellcheck: "false", autocomplete: "off" };
    if (check) {
      return element("div", { class: "check" }, element("input", { ...common, type: "checkbox", value: "true" }), element("label", { for: id }, label));
    }
    let input;
    if (choices) input = element("select", common, ...choices.map((c) => element("option", { value: c }, c || "default")));
    else if (lines) input = element("textarea", { ...common, rows: lines, required: name === "keys" });
    else input = element("input", { ...common, type: "text", inputmode: number ? "numeric" : null, required: name === "key" });
    const described = hintText ? [element("span", { id: `${id}-hint`, class: "hint" }, hintText)] : [];
    return element("div", { class: "field" }, element("label", { for: id }, label), input, ...described);
  }

  boundButton() {
    const use = () => {
      if (this.newestPosition !== null) byId("field-position_bound").value = compact(this.newestPosition);
      this.showCurl();
    };
    return element("button", { type: "button", click: use }, "Bound: the newest answer’s Position");
  }

  values() {
    return Object.fromEntries(new FormData(byId("query-form")));
  }

  request() {
    return requestFor(this.store, byId("query-type").value, { key: "", keys: "", ...this.values() });
  }

  showCurl() {
    const request = this.request();
    setText(byId("curl"), curlLine(address(request.path), request, token() !== ""));
    setText(byId("copied"), "");
  }

  async copy() {
    try {
      await navigator.clipboard.writeText(byId("curl").textContent);
      setText(byId("copied"), "Copied.");
    } catch {
      // Only https and localhost may write to the clipboard: select it for Ctrl-C.
      getSelection().selectAllChildren(byId("curl"));
      setText(byId("copied"), "Selected: copy it with Ctrl-C.");
    }
  }

  async send() {
    const number = (this.asked += 1);
    setText(byId("result-summary"), "Asking …");
    byId("result").replaceChildren();
    let said, elements;
    try {
      const { path, method, body } = this.request();
      const answer = await ask(path, { method, body });
      this.newestPosition = answer.body.position ?? this.newestPosition;
      [said, elements] = [summary(answer), [...answerElements(answer), ...this.nextPage(answer.body.cursor)]];
    } catch (error) {
      [said, elements] = ["There is no answer.", failureElements(error)];
    }
    if (number !== this.asked) return; // another question was asked meanwhile
    setText(byId("result-summary"), said);
    byId("result").replaceChildren(...elements);
  }

  nextPage(cursor) {
    if (!cursor) return [];
    const go = () => {
      byId("field-cursor").value = cursor;
      this.showCurl();
      this.send();
    };
    return [element("button", { type: "button", click: go }, "Next page")];
  }
}
