/** The tasks of nodes, in words. Pure but for the clock. */

import { countText, durationText } from "./format.js";
import { ageMs } from "./look.js";

const ROLES = ["active", "restoring", "standby"];

/** The owner of a task, or null. If two nodes claim it, the running one with the larger generation. */
export function ownerOf(task, cluster) {
  const claims = Object.entries(cluster.nodes)
    .map(([name, node]) => ({ name, ...node.tasks[task] }))
    .filter(({ role }) => role === "active" || role === "restoring");
  const rank = ({ role }) => (role === "active" ? 1 : 0);
  claims.sort((a, b) => rank(b) - rank(a) || b.generation - a.generation);
  return claims[0]?.name ?? null;
}

/** Whether each task has its owner, and what is missing. */
export function settledText(cluster) {
  const owners = cluster.tasks.map((task) => ownerOf(task, cluster));
  const lost = owners.filter((owner) => owner === null).length;
  const held = cluster.tasks.map((task, i) => cluster.nodes[owners[i]]?.tasks[task]);
  const left = held.filter((each) => each?.role === "restoring").map((each) => each.restore_remaining);
  if (lost === 0 && left.length === 0) return `Settled: each of ${countText(owners.length)} tasks has its owner.`;
  const parts = [];
  if (lost > 0) parts.push(`${countText(lost)} of ${countText(owners.length)} tasks without an owner`);
  if (left.length > 0) parts.push(`${countText(left.length)} being restored, ${countText(sum(left))} offsets left`);
  return `Not settled: ${parts.join("; ")}.`;
}

/** Since when a node is reachable. */
export function reachedText(name, cluster) {
  if (name === cluster.node) return "is asked";
  const { reached, reached_at_ms: sinceMs } = cluster.nodes[name];
  if (!reached) return "no";
  return sinceMs === null ? "yes" : `for ${durationText(ageMs(sinceMs))}`;
}

/** How many tasks a node has by role. */
export function rolesText({ tasks }) {
  const all = Object.values(tasks);
  const parts = ROLES.map((role) => [all.filter((task) => task.role === role && !isLeft(task)).length, role]);
  parts.push([all.filter(isLeft).length, "left behind"]);
  return parts.filter(([count]) => count > 0).map(([count, role]) => `${countText(count)} ${role}`).join(", ") || "none";
}

/** The lag of a node's standbys. */
export function lagText({ tasks }) {
  const lags = Object.values(tasks).filter((task) => task.role === "standby" && !isLeft(task)).map((task) => task.lag_records);
  return lags.includes(null) ? "unknown" : countText(sum(lags));
}

/** The remaining offsets of a node's restores. */
export function restoreRemaining({ tasks }) {
  return sum(Object.values(tasks).map((task) => task.restore_remaining ?? 0));
}

/** A node's copy of a task in words, empty without one. `restored` says how long a restore takes. */
export function heldText(held, restored) {
  if (held === undefined) return "";
  if (held.role === "restoring") return `restoring, ${countText(held.restore_remaining)} left${restored ? `, ${restored}` : ""}`;
  if (held.role === "active") return "active";
  const what = isLeft(held) ? "left" : "standby";
  return held.lag_records === null ? what : `${what}, ${countText(held.lag_records)} behind`;
}

/** Whether this copy is not updated any more. */
function isLeft(held) {
  return held.role === "standby" && !held.followed;
}

function sum(numbers) {
  return numbers.reduce((a, b) => a + b, 0);
}
