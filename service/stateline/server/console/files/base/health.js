/** The state of a store or a pipeline, in words and as an alert. Pure but for the clock. */

import { durationText } from "./format.js";
import { ageMs, untilMs } from "./look.js";

const STALE_COMMIT_MS = 60_000;
const MANY_RECORDS = 10_000;
const AMISS = ["failed", "restarting", "not running"];

/** The kind in words, and where its rows are. */
export function kindText({ kind, persistent }) {
  return `${kind.replaceAll("_", " ")}${persistent ? "" : ", in memory"}`;
}

/** The number of partitions by state. */
export function statesText(states) {
  return Object.entries(states).map(([state, count]) => `${count} ${state}`).join(", ") || "none";
}

/** The time since a commit. */
export function commitText(atMs) {
  return atMs > 0 ? `${durationText(ageMs(atMs))} ago` : "none yet";
}

/** The time since a backup. */
export function backupText(atMs) {
  return atMs === null ? "unknown" : commitText(atMs);
}

/** "bad" for a store that cannot be queried, "warn" for lagging copies or input and for stopped commits, else null. */
export function alertOf(store) {
  const { states, not_ready: notReady, lag } = store;
  if (notReady || states.unreadable || states.unknown) return "bad";
  return states.restoring || lag > 0 || isBehind(store) || waits(store) ? "warn" : null;
}

/** Whether the backlog exceeds one poll of a worker. */
export function isBehind({ input_lag: records }) {
  return records >= MANY_RECORDS;
}

function waits({ staged_records: staged, input_lag: unread, committed_at_ms: atMs }) {
  return (staged > 0 || unread > 0) && atMs > 0 && ageMs(atMs) > STALE_COMMIT_MS;
}

/** Whether a pipeline fails to run; one that was stopped in order has no status. */
export function isAmiss(status) {
  return AMISS.includes(status?.state);
}

/** Its state, its node, and the time until it starts again. */
export function stateText(status) {
  if (status === null) return "not running here";
  const state = status.node === undefined ? status.state : `${status.state} on ${status.node}`;
  return status.next_start_at_ms === null ? state : `${state} in ${durationText(untilMs(status.next_start_at_ms))}`;
}
