/** Questions: a store, any query of its kind, the answer as it was sent; the last ones of this tab. */

import { html, useMemo, useState } from "../vendor/htm-preact-3.1.1.js";
import { indented } from "../base/json.js";
import { addressOf, setQuery } from "../base/place.js";
import { QUERIES } from "../base/queries.js";
import { entriesOf, Positions, Summary } from "../parts/answer.js";
import { Rows } from "../parts/grid_of_rows.js";
import { MOST_LAST, useLast } from "../parts/last.js";
import { useMoved } from "../parts/moved.js";
import { askedBy, isComplete, QueryForm, questionOf, requestOf } from "../parts/query_form.js";
import { columnsOf, rowOf } from "../parts/rows.js";
import { Nothing } from "../parts/table.js";
import { Copy } from "../parts/value.js";
import { everyOf, useAnswer, Watch } from "../parts/watch.js";

const LAST = "stateline-questions";
const MOST_CHARACTERS = 200_000;

export function Queries({ at: { query }, look }) {
  if (!look.known) return null;
  if (look.stores.length === 0) return html`<${Nothing}>This application has no stores to query.<//>`;
  const store = look.stores.find((each) => each.store === query.store) ?? look.stores[0];
  const choose = (event) => setQuery({ ...askedBy({ name: null, values: {} }), store: event.target.value, sort: null, columns: null, find: null, open: null });
  return html`
    <div class="fields"><div class="field"><label for="store">Store</label>
      <select id="store" value=${store.store} onChange=${choose}>${look.stores.map((each) => html`<option key=${each.store} value=${each.store}>${each.store}</option>`)}</select></div></div>
    <${Question} key=${store.store} store=${store} query=${query} />`;
}

function Question({ store, query }) {
  const question = questionOf(store, query);
  const asked = query.ask !== undefined && isComplete(question);
  const everyS = everyOf(query);
  const [anew, setAnew] = useState(0);
  const seen = useAnswer(asked ? requestOf(store, question) : null, everyS, `${JSON.stringify(question)} ${anew}`);
  const last = useLast(LAST, asked ? { store: store.store, ...question } : null);
  const onAsk = (next) => {
    setAnew(anew + 1);
    setQuery({ ...askedBy(next), store: store.store, open: null });
  };
  return html`
    <${QueryForm} store=${store} question=${question} position=${seen.answer?.body.position ?? null} onAsk=${onAsk} />
    <section aria-labelledby="answer-title" class="answer">
      <h2 id="answer-title">Answer</h2>
      ${asked ? html`<${Summary} seen=${seen} everyS=${everyS} isComplete=${true} />` : html`<p id="summary" role="status">No query yet.</p>`}
      ${asked && html`<div class="buttons"><${Watch} everyS=${everyS} onChange=${(every) => setQuery({ every })} /></div>`}
      ${seen.answer !== null && html`<${Answer} store=${store} query=${query} seen=${seen} everyS=${everyS} />`}
    </section>
    <${Last} last=${last} />`;
}

function Answer({ store, query, seen, everyS }) {
  const { answer } = seen;
  const { rows, columns } = useMemo(() => {
    const found = (entriesOf(answer.body) ?? []).map((entry) => rowOf(entry));
    return { rows: found, columns: columnsOf(found) };
  }, [answer]);
  const moved = useMoved(seen, rows, everyS);
  const isCut = answer.text.length > MOST_CHARACTERS;
  return html`
    ${moved.said !== null && html`<p class="note" id="moved">${moved.said}</p>`}
    ${answer.body.committed && answer.body.uncommitted && html`<${Positions} body=${answer.body} />`}
    ${rows.length > 0 && html`<${Rows} store=${store} query=${query} rows=${rows} columns=${columns} changed=${moved.changed} />`}
    <details open=${rows.length === 0}>
      <summary>As JSON</summary>
      <${Copy} text=${answer.text} label="Copy JSON" />
      <pre id="json" role="region" aria-label="Answer as JSON" tabindex="0">${indented(isCut ? answer.text.slice(0, MOST_CHARACTERS) : answer.text)}</pre>
      ${isCut && html`<p>Shortened here. Copy and curl have the whole answer.</p>`}
    </details>`;
}

function Last({ last }) {
  return html`<section aria-labelledby="last-title">
    <h2 id="last-title">Asked last</h2>
    ${last.length === 0 && html`<${Nothing}>The last ${MOST_LAST} queries of this tab stay here until you close it.<//>`}
    <ul class="last">${last.map(({ store, name, values }) => {
      const given = Object.entries(values).filter(([, value]) => value);
      return html`<li key=${JSON.stringify([store, name, values])}>
        <a href=${addressOf({ place: "queries", query: { store, ask: name, ...values } })}>${store}: ${QUERIES[name].label}</a>
        <span class="muted"> ${given.map(([field, value]) => `${field} ${value}`).join(", ")}</span></li>`;
    })}</ul>
  </section>`;
}
