/** Changes of a store as they are committed, newest first. */

import { html, useEffect, useMemo, useRef, useState } from "../../vendor/htm-preact-3.1.1.js";
import { open, Problem, Unreachable } from "../../base/api.js";
import { eventsOf } from "../../base/events.js";
import { countText, localText } from "../../base/format.js";
import { parseExactly } from "../../base/json.js";
import { setQuery } from "../../base/place.js";
import { Failure } from "../../parts/problem.js";
import { Nothing } from "../../parts/table.js";
import { Rows } from "./grid_of_rows.js";
import { columnsOf, rowOfLine } from "./rows.js";

const KEPT = 500;
const SHOWN_EVERY_MS = 500;
const AGAIN_MS = 3000;
const NONE = new Map();

export function Changes({ store, query }) {
  const from = query.from === "earliest" ? "earliest" : "latest";
  const [paused, setPaused] = useState(false);
  const [anew, setAnew] = useState(0);
  const feed = useFeed(store, from, paused, anew);
  const columns = useMemo(() => columnsOf(feed.rows), [feed.rows]);
  const expired = feed.failure?.body?.reason === "CURSOR_EXPIRED";
  const choose = (event) => setQuery({ from: event.target.value === "latest" ? null : event.target.value, open: null });
  return html`
    <div class="buttons">
      <label class="watch">Changes from <select value=${from} onChange=${choose}><option value="latest">now on</option><option value="earliest">the beginning</option></select></label>
      <button type="button" aria-pressed=${paused} onClick=${() => setPaused(!paused)}>${paused ? "Go on" : "Pause"}</button>
      ${expired && html`<button type="button" onClick=${() => setAnew(anew + 1)}>From now on</button>`}
      <p role="status" id="feed">${paused ? "Paused. It goes on where it stopped." : feed.said}</p>
    </div>
    ${feed.failure && html`<${Failure} error=${feed.failure} />`}
    <p class="note">${countText(feed.count)} changes so far${feed.count > KEPT ? `; the newest ${KEPT} are kept` : ""}${feed.atMs ? `; the last one came at ${localText(feed.atMs).slice(11, 19)}` : ""}.</p>
    ${feed.rows.length > 0
      ? html`<${Rows} store=${store} query=${query} rows=${feed.rows} columns=${columns} changed=${NONE} />`
      : html`<${Nothing}>Nothing was committed since this page looks. Write to the store’s topic, or see the changes from the beginning.<//>`}`;
}

/** What has come: `{rows, count, atMs, said, failure}`. Nothing is read while paused, or while nobody sees the page; it goes on where it stopped. */
function useFeed(store, from, paused, anew) {
  const [seen, setSeen] = useState({ rows: [], count: 0, atMs: null, said: "Connecting …", failure: null });
  const hidden = useHidden();
  const last = useRef({ of: null, id: null, rows: [], count: 0, atMs: null });
  const of = `${store.store} ${from} ${anew}`;
  if (last.current.of !== of) last.current = { of, id: null, rows: [], count: 0, atMs: null };
  useEffect(() => {
    if (paused || hidden) return undefined;
    const over = new AbortController();
    const state = last.current;
    const show = (more = {}) => setSeen((before) => ({ ...before, rows: state.rows, count: state.count, atMs: state.atMs, ...more }));
    show({ said: "Connecting …", failure: null });
    const timer = setInterval(() => state.moved && show(moved(state)), SHOWN_EVERY_MS);
    follow(store, anew > 0 ? "latest" : from, state, over.signal, show);
    return () => {
      over.abort();
      clearInterval(timer);
    };
  }, [of, paused, hidden]);
  return seen;
}

function moved(state) {
  state.moved = false;
  return { said: "Connected.", failure: null };
}

async function follow(store, from, state, signal, show) {
  for (;;) {
    let failure;
    try {
      failure = await readFeed(store, from, state, signal, show);
    } catch (error) {
      if (signal.aborted) return;
      failure = error instanceof TypeError ? new Unreachable("The connection broke off.") : error; // TypeError: as browsers call it
    }
    if (signal.aborted) return;
    if (!(failure instanceof Problem || failure instanceof Unreachable)) throw failure;
    const isFinal = failure.body?.reason === "CURSOR_EXPIRED" || (failure.status >= 400 && failure.status < 500 && failure.status !== 429);
    show({ failure, said: isFinal ? "Over." : "Not connected. Trying again." });
    if (isFinal) return;
    await new Promise((resolve) => setTimeout(resolve, Math.max(AGAIN_MS, failure.retryAfterMs ?? 0)));
    if (signal.aborted) return;
  }
}

/** Read until the feed ends: then why. */
async function readFeed(store, from, state, signal, show) {
  const path = `v1/stores/${encodeURIComponent(store.store)}/changes?from=${from}`;
  const response = await open(path, { accept: "text/event-stream", signal, headers: state.id === null ? {} : { "Last-Event-ID": state.id } });
  for await (const { id, event, data } of eventsOf(response.body)) {
    if (event === "end") return new Problem(200, parseExactly(data), response.headers);
    if (id !== null) state.id = id;
    if (event === "change") take(state, data, store);
    else show({ said: "Connected.", failure: null });
  }
  return new Unreachable("The connection broke off.");
}

function take(state, data, store) {
  const entry = parseExactly(data);
  state.rows = [rowOfLine(data, entry, store, `${entry.partition}-${entry.offset}`), ...state.rows.slice(0, KEPT - 1)];
  state.count += 1;
  state.atMs = Date.now();
  state.moved = true;
}

function useHidden() {
  const [hidden, setHidden] = useState(document.hidden);
  useEffect(() => {
    const changed = () => setHidden(document.hidden);
    document.addEventListener("visibilitychange", changed);
    return () => document.removeEventListener("visibilitychange", changed);
  }, []);
  return hidden;
}
