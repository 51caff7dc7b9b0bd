/** What nodes have of the tasks, in words. Pure but for the clock. */

import { countText, durationText } from "./format.js";
import { ageMs } from "./look.js";

const ROLES = ["active", "restoring", "standby"];

/** The node that has a task as the owner's, or null: of two that say so, the one that runs it, of the larger generation. */
export function ownerOf(task, cluster) {
  const claims = Object.entries(cluster.nodes)
    .map(([name, node]) => ({ name, ...node.tasks[task] }))
    .filter(({ role }) => role === "active" || role === "restoring");
  const rank = ({ role }) => (role === "active" ? 1 : 0);
  claims.sort((a, b) => rank(b) - rank(a) || b.generation - a.generation);
  return claims[0]?.name ?? null;
}

/** Whether each task has its owner, and what is missing to it. */
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

/** Since when a node is reached. */
export function reachedText(name, cluster) {
  if (name === cluster.node) return "is asked";
  const { reached, reached_at_ms: sinceMs } = cluster.nodes[name];
  if (!reached) return "no";
  return sinceMs === null ? "yes" : `for ${durationText(ageMs(sinceMs))}`;
}

/** How many tasks a node has in which role. */
export function rolesText({ tasks }) {
  const all = Object.values(tasks);
  const parts = ROLES.map((role) => [all.filter((task) => task.role === role && !isLeft(task)).length, role]);
  parts.push([all.filter(isLeft).length, "left behind"]);
  return parts.filter(([count]) => count > 0).map(([count, role]) => `${countText(count)} ${role}`).join(", ") || "none";
}

/** What a node's standbys lack. */
export function lagText({ tasks }) {
  const lags = Object.values(tasks).filter((task) => task.role === "standby" && !isLeft(task)).map((task) => task.lag_records);
  return lags.includes(null) ? "unknown" : countText(sum(lags));
}

/** Offsets that a node's restores have left. */
export function restoreRemaining({ tasks }) {
  return sum(Object.values(tasks).map((task) => task.restore_remaining ?? 0));
}

/** What a node has of a task; nothing when it has none of it. `restored` tells how long a restore takes. */
export function heldText(held, restored) {
  if (held === undefined) return "";
  if (held.role === "restoring") return `restoring, ${countText(held.restore_remaining)} left${restored ? `, ${restored}` : ""}`;
  if (held.role === "active") return "active";
  const what = isLeft(held) ? "left" : "standby";
  return held.lag_records === null ? what : `${what}, ${countText(held.lag_records)} behind`;
}

/** Whether nobody keeps this copy up to date any more. */
function isLeft(held) {
  return held.role === "standby" && !held.followed;
}

function sum(numbers) {
  return numbers.reduce((a, b) => a + b, 0);
}
