/** Committed changes of a store, newest first. */

import { html, useMemo, useState } from "../../vendor/htm-preact-3.1.1.js";
import { useFeed } from "../../base/feed.js";
import { countText, localText } from "../../base/format.js";
import { parseExactly } from "../../base/json.js";
import { setQuery } from "../../base/place.js";
import { Rows } from "../../parts/grid_of_rows.js";
import { Failure } from "../../parts/problem.js";
import { columnsOf, rowOf } from "../../parts/rows.js";
import { Nothing } from "../../parts/table.js";

const KEPT = 500;
const NONE = new Map();

export function Changes({ store, query }) {
  const from = query.from === "earliest" ? "earliest" : "latest";
  const [paused, setPaused] = useState(false);
  const [anew, setAnew] = useState(0);
  const feed = useChanges(store, from, paused, anew);
  const columns = useMemo(() => columnsOf(feed.rows), [feed.rows]);
  const expired = feed.failure?.body?.reason === "CURSOR_EXPIRED";
  const choose = (event) => setQuery({ from: event.target.value === "latest" ? null : event.target.value, open: null });
  return html`
    <div class="buttons">
      <label class="watch">Changes from <select value=${from} onChange=${choose}><option value="latest">now on</option><option value="earliest">the beginning</option></select></label>
      <button type="button" aria-pressed=${paused} onClick=${() => setPaused(!paused)}>${paused ? "Go on" : "Pause"}</button>
      ${expired && html`<button type="button" onClick=${() => setAnew(anew + 1)}>From now on</button>`}
      <p role="status" id="feed">${paused ? "Paused. It continues where it stopped." : feed.said}</p>
    </div>
    ${feed.failure && html`<${Failure} error=${feed.failure} />`}
    <p class="note">${countText(feed.count)} changes so far${feed.count > KEPT ? `; the newest ${KEPT} are kept` : ""}${feed.atMs ? `; the last one came at ${localText(feed.atMs).slice(11, 19)}` : ""}.</p>
    ${feed.rows.length > 0
      ? html`<${Rows} store=${store} query=${query} rows=${feed.rows} columns=${columns} changed=${NONE} />`
      : html`<${Nothing}>Nothing was committed since this page was opened. Write to the store’s topic, or choose changes from the beginning.<//>`}`;
}

/** The received changes, newest first: `{rows, count, atMs, said, failure}`. */
function useChanges(store, from, paused, anew) {
  const path = `v1/stores/${encodeURIComponent(store.store)}/changes?from=${anew > 0 ? "latest" : from}`;
  const none = { of: `${path} ${anew}`, rows: [], count: 0, atMs: null };
  const [seen, setSeen] = useState(none);
  const add = (came) => setSeen((before) => withThese(before.of === none.of ? before : none, came));
  const feed = useFeed(path, add, { paused, anew });
  return { ...(seen.of === none.of ? seen : none), ...feed };
}

function withThese(before, came) {
  const rows = came.slice(-KEPT).map((data) => {
    const entry = parseExactly(data);
    return rowOf(entry, `${entry.partition}-${entry.offset}`);
  });
  return { ...before, rows: [...rows.reverse(), ...before.rows].slice(0, KEPT), count: before.count + came.length, atMs: Date.now() };
}
