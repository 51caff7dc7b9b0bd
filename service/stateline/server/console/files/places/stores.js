/** Every store of the application, with its health. */

import { html } from "../vendor/htm-preact-3.1.1.js";
import { countText, durationText } from "../base/format.js";
import { ageMs } from "../base/look.js";
import { addressOf } from "../base/place.js";
import { Nothing, Table } from "../parts/table.js";

const COLUMNS = ["Store", "Kind", "Types", "Partitions", "Input lag", "Staged", "Last commit"];
const STALE_COMMIT_MS = 60_000;
const MANY_RECORDS = 10_000;

export function Stores({ look }) {
  if (!look.known) return null;
  if (look.stores.length === 0) return html`<${Nothing}>This application has no stores: <code>app.table(topic, store="…")</code> makes one.<//>`;
  const rows = look.stores.map((store) => ({
    id: store.store,
    alert: alertOf(store),
    cells: [
      html`<a href=${addressOf({ place: "store", store: store.store })}>${store.store}</a>`,
      kindText(store),
      `${store.key_type} → ${store.value_type}`,
      store.not_ready ?? statesText(store.states),
      countText(store.input_lag),
      countText(store.staged_records),
      commitText(store.committed_at_ms),
    ],
  }));
  return html`<div class="live"><${Table} caption="Stores" captionHidden columns=${COLUMNS} rows=${rows} /></div>`;
}

/** The kind in words, and where its rows are. */
export function kindText({ kind, persistent }) {
  return `${kind.replaceAll("_", " ")}${persistent ? "" : ", in memory"}`;
}

/** How many partitions are in which state. */
export function statesText(states) {
  return Object.entries(states).map(([state, count]) => `${count} ${state}`).join(", ") || "none";
}

/** How long ago a commit was. */
export function commitText(atMs) {
  return atMs > 0 ? `${durationText(ageMs(atMs))} ago` : "none yet";
}

/** "bad" for a store that cannot be asked, "warn" for one with a copy or input that lags or whose commits have stopped, else null. */
export function alertOf(store) {
  const { states, not_ready: notReady, lag } = store;
  if (notReady || states.unreadable || states.unknown) return "bad";
  return states.restoring || lag > 0 || isBehind(store) || waits(store) ? "warn" : null;
}

/** Whether the input is further ahead than what a worker reads in one go. */
export function isBehind({ input_lag: records }) {
  return records >= MANY_RECORDS;
}

function waits({ staged_records: staged, input_lag: unread, committed_at_ms: atMs }) {
  return (staged > 0 || unread > 0) && atMs > 0 && ageMs(atMs) > STALE_COMMIT_MS;
}
