/** The entries of a store: any question, its answer in a grid, by page or all at once, repeated on demand. */

import { html, useMemo, useRef, useState } from "../../vendor/htm-preact-3.1.1.js";
import { countText } from "../../base/format.js";
import { addressOf, setQuery } from "../../base/place.js";
import { QUERIES } from "../../base/queries.js";
import { entriesOf, Positions, Summary } from "../../parts/answer.js";
import { Rows } from "../../parts/grid_of_rows.js";
import { useMoved } from "../../parts/moved.js";
import { askedBy, isComplete, QueryForm, questionOf, requestOf } from "../../parts/query_form.js";
import { arrangementOf, columnsOf, rowOf } from "../../parts/rows.js";
import { Nothing } from "../../parts/table.js";
import { everyOf, useAnswer, Watch } from "../../parts/watch.js";
import { Downloads, Progress, useAllRows } from "./stream.js";

export function Entries({ store, query }) {
  const question = questionOf(store, query);
  const complete = isComplete(question);
  const everyS = everyOf(query);
  const [anew, setAnew] = useState(0);
  const page = query.cursor ? { ...question, values: { ...question.values, cursor: query.cursor } } : question;
  const wantsAll = query.rows === "all" && isPaged(question) && complete;
  const seen = useAnswer(complete && !wantsAll ? requestOf(store, page) : null, everyS, `${JSON.stringify(question)} ${anew}`);
  const all = useAllRows(store, question, wantsAll);
  const { rows, columns } = useRows(seen, all, wantsAll, store);
  const moved = useMoved(seen, rows, everyS);
  const onAsk = (next) => {
    setAnew(anew + 1);
    setQuery({ ...askedBy(next), page: null, rows: null, open: null });
  };
  const { body } = seen.answer ?? {};
  return html`
    <${QueryForm} store=${store} question=${question} position=${body?.position ?? null} onAsk=${onAsk} />
    <section aria-labelledby="answer-title" class="answer">
      <h2 id="answer-title">Answer</h2>
      ${!wantsAll && html`<${Summary} seen=${seen} everyS=${everyS} isComplete=${complete} />`}
      ${wantsAll && html`<${Progress} all=${all} onBack=${() => setQuery({ rows: null })} />`}
      ${seen.failure?.body && query.cursor && html`<button type="button" onClick=${() => onAsk(question)}>Ask again</button>`}
      <div class="buttons">
        ${!wantsAll && html`<${Watch} everyS=${everyS} onChange=${(every) => setQuery({ every, cursor: null, page: null })} />`}
        ${!wantsAll && isPaged(question) && html`<${Pages} seen=${seen} question=${question} query=${query} onAnew=${() => onAsk(question)} />`}
        ${!wantsAll && isPaged(question) && html`<button type="button" onClick=${() => setQuery({ rows: "all", cursor: null, page: null, every: null })}>All rows</button>`}
      </div>
      ${moved.said !== null && html`<p class="note" id="moved">${moved.said}</p>`}
      ${body?.committed && body.uncommitted && html`<${Positions} body=${body} />`}
      ${rows.length > 0 && html`<${Rows} store=${store} query=${query} rows=${rows} columns=${columns} changed=${moved.changed} />`}
      ${rows.length === 0 && body?.entries && !wantsAll && html`<${Nothing}>No entries. Try other keys or times, or check whether anything was <a href=${addressOf({ place: "store", store: store.store, query: { tab: "partitions" } })}>committed</a> yet.<//>`}
      ${isPaged(question) && rows.length > 0 && html`<${Downloads} store=${store} question=${question} arrangement=${arrangementOf(query)} />`}
    </section>`;
}

function isPaged({ name }) {
  return QUERIES[name].fields.includes("limit");
}

function useRows(seen, all, wantsAll, store) {
  return useMemo(() => {
    const rows = wantsAll ? all.rows : (entriesOf(seen.answer?.body ?? {}) ?? []).map((entry) => rowOf(entry));
    return { rows, columns: columnsOf(rows) };
  }, [seen.answer, all.rows, wantsAll]);
}

/**
 * Pages of one state. Visited pages are known by their cursors, in order. The address has a page's number and cursor. If a link opened
 * a later page, the pages before are unknown, and one can only start again.
 */
function Pages({ seen, question, query, onAnew }) {
  const known = useRef({ of: null, cursors: [] });
  const of = JSON.stringify(question);
  if (known.current.of !== of) known.current = { of, cursors: [] };
  const { cursors } = known.current;
  const cursor = query.cursor ?? null;
  const at = cursor === null ? 0 : Math.max(1, Math.trunc(Number(query.page) || 2) - 1);
  cursors[at] = cursor;
  const next = seen.asking || seen.failure !== null ? null : (seen.answer?.body.cursor ?? null);
  if (next !== null) cursors[at + 1] = next;
  const go = (to) => setQuery({ cursor: cursors[to], page: to === 0 ? null : String(to + 1), every: null, open: null });
  return html`<span class="pages" role="group" aria-label="Pages of one state">
    ${at > 0 && cursors[at - 1] === undefined
      ? html`<button type="button" onClick=${onAnew}>First page, as it is now</button>`
      : html`<button type="button" disabled=${at === 0} onClick=${() => go(at - 1)}>Previous page</button>`}
    <span>Page ${countText(at + 1)}</span>
    <button type="button" disabled=${next === null} onClick=${() => go(at + 1)}>Next page</button>
  </span>`;
}
