/** A key of a key-value store: its committed value beside its uncommitted one. */

import { html, useEffect } from "../../vendor/htm-preact-3.1.1.js";
import { addressOf } from "../../base/place.js";
import { compact } from "../../base/json.js";
import { requestFor } from "../../base/queries.js";
import { Nothing } from "../../parts/table.js";
import { Copy, Time, Value } from "../../parts/value.js";
import { useAnswer } from "../../parts/watch.js";
import { Compared, Level, LEVELS } from "./level.js";
import { valueSample } from "./samples.js";

export function Now({ store, at, everyS, again, onMain }) {
  const [committed, uncommitted] = LEVELS.map((level) => requestFor(store, "key", { key: at.key, isolation_level: level }));
  const [old, young] = [useAnswer(committed, everyS, `${again}`), useAnswer(uncommitted, everyS, `${again}`)];
  useEffect(() => onMain({ request: committed, answer: old.answer, failure: old.failure, sample: valueSample(old) }), [old.answer, old.failure]);
  const value = (known, level) => known.answer && (known.answer.body.found ? html`<${Found} body=${known.answer.body} />` : html`<${Absent} store=${store} at=${at} level=${level} />`);
  return html`<section aria-labelledby="value-title">
    <h2 id="value-title">Value</h2>
    <${Compared} old=${old.answer?.body} young=${young.answer?.body} absent="no such key" />
    <div class="cards">
      <${Level} name=${LEVELS[0]} known=${old}>${value(old, LEVELS[0])}<//>
      <${Level} name=${LEVELS[1]} known=${young}>${value(young, LEVELS[1])}<//>
    </div>
  </section>`;
}

function Found({ body }) {
  return html`<div class="value"><${Value} value=${body.value} /></div>
    <p class="buttons"><${Copy} text=${() => compact(body.value)} label="Copy value" />
      ${body.timestamp === null ? html`<span class="muted">no timestamp</span>` : html`<span>Timestamp <${Time} ms=${body.timestamp} withUtc /></span>`}</p>`;
}

function Absent({ store, at, level }) {
  const prefix = addressOf({ place: "store", store: store.store, query: { ask: "range", prefix: [...at.key].slice(0, 3).join("") } });
  return html`<${Nothing}>No such key at ${level}: it was never written, was deleted, or is ${level === "read_committed" ? "not committed yet" : "spelled differently"}. Keys must match exactly, as ${store.key_type}.
    ${store.key_type === "string" && html` <a href=${prefix}>Keys with this prefix</a>`}<//>`;
}
