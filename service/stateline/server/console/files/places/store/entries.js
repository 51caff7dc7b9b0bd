/** The entries of a store: any question, its answer in a grid, page by page or all at once, asked again on demand. */

import { html, useMemo, useRef, useState } from "../../vendor/htm-preact-3.1.1.js";
import { addressOf, listOf, setQuery } from "../../base/place.js";
import { QUERIES } from "../../base/queries.js";
import { askedBy, isComplete, QueryForm, questionOf, requestOf } from "../../parts/query_form.js";
import { Nothing } from "../../parts/table.js";
import { everyOf, useAnswer, Watch } from "../../parts/watch.js";
import { entriesOf, Positions, Summary } from "./answer.js";
import { changesBetween, columnsOf, rowsOf } from "./rows.js";
import { Rows } from "./grid_of_rows.js";
import { Downloads, Progress, useAllRows } from "./stream.js";

const NO_CHANGES = { changed: new Map(), added: 0, gone: 0 };

export function Entries({ store, query }) {
  const question = questionOf(store, query);
  const complete = isComplete(question);
  const everyS = everyOf(query);
  const [anew, setAnew] = useState(0);
  const page = query.cursor ? { ...question, values: { ...question.values, cursor: query.cursor } } : question;
  const wantsAll = query.rows === "all" && isPaged(question) && complete;
  const seen = useAnswer(complete && !wantsAll ? requestOf(store, page) : null, everyS, `${JSON.stringify(question)} ${anew}`);
  const all = useAllRows(store, question, wantsAll);
  const { rows, columns, changes } = useRows(seen, all, wantsAll, store, everyS);
  const onAsk = (next) => {
    setAnew(anew + 1);
    setQuery({ ...askedBy(next), rows: null, open: null });
  };
  const { body } = seen.answer ?? {};
  return html`
    <${QueryForm} store=${store} question=${question} position=${body?.position ?? null} onAsk=${onAsk} />
    <section aria-labelledby="answer-title" class="answer">
      <h2 id="answer-title">Answer</h2>
      ${!wantsAll && html`<${Summary} seen=${seen} everyS=${everyS} isComplete=${complete} />`}
      ${wantsAll && html`<${Progress} all=${all} onBack=${() => setQuery({ rows: null })} />`}
      ${seen.failure?.body && query.cursor && html`<button type="button" onClick=${() => onAsk(question)}>Ask anew</button>`}
      <div class="buttons">
        ${!wantsAll && html`<${Watch} everyS=${everyS} onChange=${(every) => setQuery({ every, cursor: null })} />`}
        ${!wantsAll && isPaged(question) && html`<${Pages} seen=${seen} question=${question} cursor=${query.cursor ?? null} />`}
        ${!wantsAll && isPaged(question) && html`<button type="button" onClick=${() => setQuery({ rows: "all", cursor: null, every: null })}>All rows</button>`}
      </div>
      ${everyS > 0 && seen.answer !== null && html`<p class="note" id="moved">${movedText(changes)}</p>`}
      ${body?.committed && body.uncommitted && html`<${Positions} body=${body} />`}
      ${rows.length > 0 && html`<${Rows} store=${store} query=${query} rows=${rows} columns=${columns} changed=${changes.changed} />`}
      ${rows.length === 0 && body?.entries && !wantsAll && html`<${Nothing}>Nothing there: ask for other keys or times, or look whether anything was <a href=${addressOf({ place: "store", store: store.store, query: { tab: "partitions" } })}>committed</a> yet.<//>`}
      ${isPaged(question) && rows.length > 0 && html`<${Downloads} store=${store} question=${question} arrangement=${arrangementOf(query)} />`}
    </section>`;
}

function isPaged({ name }) {
  return QUERIES[name].fields.includes("limit");
}

/** How the grid is arranged: `find`, `sort`, and `chosen`, which picks the columns that are shown. */
export function arrangementOf({ find = "", sort = "", columns = "" }) {
  const ids = listOf(columns);
  return { find, sort, chosen: (all) => (ids.length === 0 ? all : all.filter(({ id }) => ids.includes(id))) };
}

function useRows(seen, all, wantsAll, store, everyS) {
  const before = useRef({ id: null, rows: [] });
  return useMemo(() => {
    const entries = wantsAll ? null : entriesOf(seen.answer?.body ?? {});
    const rows = wantsAll ? all.rows : entries === null ? [] : rowsOf(entries, store, seen.answer.text);
    const columns = columnsOf(rows);
    const isSame = everyS > 0 && before.current.id === seen.id && seen.id !== null;
    const changes = isSame ? changesBetween(before.current.rows, rows, columns) : NO_CHANGES;
    before.current = { id: seen.id, rows };
    return { rows, columns, changes };
  }, [seen.answer, all.rows, wantsAll]);
}

function movedText({ changed, added, gone }) {
  const edited = changed.size - added;
  if (changed.size + gone === 0) return "Nothing changed since the answer before.";
  return `Since the answer before: ${edited} changed, ${added} new, ${gone} gone.`;
}

/** Pages of one state. Those that were seen are known by their cursors, in order. */
function Pages({ seen, question, cursor }) {
  const known = useRef({ of: null, cursors: [null] });
  const of = JSON.stringify(question);
  if (known.current.of !== of) known.current = { of, cursors: [null] };
  const { cursors } = known.current;
  if (!cursors.includes(cursor)) known.current.cursors = [null, cursor]; // came by a link: what was before it is not known
  const at = known.current.cursors.indexOf(cursor);
  const next = seen.asking || seen.failure !== null ? null : (seen.answer?.body.cursor ?? null);
  if (next !== null) known.current.cursors[at + 1] = next;
  const go = (to) => setQuery({ cursor: to, every: null, open: null });
  return html`<span class="pages" role="group" aria-label="Pages of one state">
    <button type="button" disabled=${cursor === null} onClick=${() => go(known.current.cursors[at - 1])}>Previous page</button>
    <span>Page ${at + 1}</span>
    <button type="button" disabled=${next === null} onClick=${() => go(next)}>Next page</button>
  </span>`;
}
