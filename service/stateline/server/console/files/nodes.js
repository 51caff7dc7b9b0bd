/** The nodes of the application, which task each has, and how tasks move between them. Hidden while there is one node. */

import { byId, countText, durationText, element, setText } from "./elements.js";

const FACTS = ["Reached", "Console", "Version", "Rack", "Tasks", "Lag", "To restore"];
const ROLES = ["active", "restoring", "standby"];
const TOLD_MS = 60_000; // for so long a task that has moved says so

export class NodeList {
  constructor() {
    this.cards = new Map();
    this.rows = new Map();
    this.owners = new Map(); // task → the node that had it last, and when and from where it came
  }

  show(live) {
    const { cluster } = live;
    for (const id of ["nodes", "nodes-link"]) byId(id).hidden = cluster === null;
    if (cluster === null) return;
    const names = Object.keys(cluster.nodes);
    if (names.join("\n") !== [...this.cards.keys()].join("\n")) this.buildCards(names, cluster.node);
    for (const name of names) this.fillCard(name, cluster, live);
    const shape = JSON.stringify([names, cluster.tasks]);
    if (shape !== this.shape) this.buildTasks(names, cluster.tasks);
    this.shape = shape;
    for (const task of cluster.tasks) this.fillTask(task, cluster);
    setText(byId("nodes-note"), settledText(cluster));
  }

  buildCards(names, own) {
    this.cards = new Map(names.map((name) => [name, this.card(name === own ? `${name} (this one)` : name)]));
    byId("node-list").replaceChildren(...[...this.cards.values()].map((card) => card.item));
  }

  card(title) {
    const facts = FACTS.map((fact) => [element("dt", {}, fact), element("dd", {})]);
    const note = element("p", { class: "note" });
    const list = element("dl", {}, ...facts.map((pair) => element("div", {}, ...pair)));
    const item = element("li", { class: "card" }, element("h3", {}, title), list, note);
    return { item, facts: facts.map(([, dd]) => dd), note };
  }

  fillCard(name, cluster, live) {
    const { item, facts, note } = this.cards.get(name);
    const node = cluster.nodes[name];
    const tasks = Object.values(node.tasks);
    const texts = [
      reachedText(name, cluster, live),
      null,
      node.version,
      node.rack ?? "unknown",
      node.reached ? rolesText(tasks) : "unknown",
      node.reached ? lagText(tasks) : "unknown",
      node.reached ? countText(restoreRemaining(tasks)) : "unknown",
    ];
    texts.forEach((text, i) => text === null || setText(facts[i], text));
    const [, link] = facts;
    if (link.textContent !== (node.url ?? "unknown")) {
      link.replaceChildren(node.url === null ? "unknown" : element("a", { href: `${node.url}/` }, node.url));
    }
    item.classList.toggle("bad", !node.reached);
    setText(note, node.fault ?? "");
  }

  buildTasks(names, tasks) {
    const columns = ["Task", ...names, "Change"];
    const cell = (_, i) => (i === 0 ? element("th", { scope: "row" }) : element("td"));
    this.rows = new Map(tasks.map((task) => [task, columns.map(cell)]));
    byId("tasks-head").replaceChildren(...columns.map((name) => element("th", { scope: "col" }, name)));
    byId("tasks-body").replaceChildren(...[...this.rows.values()].map((cells) => element("tr", {}, ...cells)));
  }

  fillTask(task, cluster) {
    const held = Object.values(cluster.nodes).map((node) => heldText(node.tasks[task]));
    const texts = [task, ...held, this.changeText(task, ownerOf(task, cluster))];
    texts.forEach((text, i) => setText(this.rows.get(task)[i], text));
  }

  /** What has become of a task's owner since the page was opened. */
  changeText(task, owner) {
    const known = this.owners.get(task);
    const now = performance.now();
    if (owner !== null && owner !== known?.node) {
      this.owners.set(task, { node: owner, from: known?.node, atMs: now });
    }
    if (owner === null) return known === undefined ? "no owner" : `no owner, was on ${known.node}`;
    const { from, atMs } = this.owners.get(task);
    if (from === undefined || now - atMs > TOLD_MS) return "";
    return `from ${from} to ${owner}, ${durationText(now - atMs)} ago`;
  }
}

/** The node that has a task as the owner's: of two that say so, the one of the larger generation. */
function ownerOf(task, cluster) {
  const claims = Object.entries(cluster.nodes)
    .map(([name, node]) => ({ name, ...node.tasks[task] }))
    .filter(({ role }) => role === "active" || role === "restoring");
  const rank = ({ role, generation }) => [role === "active" ? 1 : 0, generation];
  claims.sort((a, b) => rank(b)[0] - rank(a)[0] || rank(b)[1] - rank(a)[1]);
  return claims[0]?.name ?? null;
}

function settledText(cluster) {
  const owners = cluster.tasks.map((task) => ownerOf(task, cluster));
  const lost = owners.filter((owner) => owner === null).length;
  const restored = cluster.tasks.filter((task, i) => owners[i] !== null && cluster.nodes[owners[i]].tasks[task].role === "restoring");
  if (lost === 0 && restored.length === 0) return `Settled: each of ${countText(owners.length)} tasks has its owner.`;
  const left = restored.map((task) => cluster.nodes[ownerOf(task, cluster)].tasks[task].restore_remaining);
  const parts = [];
  if (lost > 0) parts.push(`${countText(lost)} of ${countText(owners.length)} tasks without an owner`);
  if (left.length > 0) parts.push(`${countText(left.length)} being restored, ${countText(left.reduce((a, b) => a + b, 0))} offsets left`);
  return `Not settled: ${parts.join("; ")}.`;
}

function reachedText(name, cluster, live) {
  if (name === cluster.node) return "is asked";
  const { reached, reached_at_ms: sinceMs } = cluster.nodes[name];
  if (!reached) return "no";
  return sinceMs === null ? "yes" : `for ${durationText(live.ageMs(sinceMs))}`;
}

/** Whether nobody keeps this copy up to date any more. */
function isLeft(held) {
  return held.role === "standby" && !held.followed;
}

function rolesText(tasks) {
  const parts = ROLES.map((role) => [tasks.filter((task) => task.role === role && !isLeft(task)).length, role]);
  parts.push([tasks.filter(isLeft).length, "left behind"]);
  return parts.filter(([count]) => count > 0).map(([count, role]) => `${countText(count)} ${role}`).join(", ") || "none";
}

function lagText(tasks) {
  const lags = tasks.filter((task) => task.role === "standby" && !isLeft(task)).map((task) => task.lag_records);
  if (lags.includes(null)) return "unknown";
  return countText(lags.reduce((a, b) => a + b, 0));
}

function restoreRemaining(tasks) {
  return tasks.reduce((sum, task) => sum + task.restore_remaining, 0);
}

function heldText(held) {
  if (held === undefined) return "";
  if (held.role === "restoring") return `restoring, ${countText(held.restore_remaining)} left`;
  if (held.role === "active") return "active";
  const what = isLeft(held) ? "left" : "standby";
  return held.lag_records === null ? what : `${what}, ${countText(held.lag_records)} behind`;
}
