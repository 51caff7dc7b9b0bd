/** Compares successive looks at the nodes: a task's previous node, and the rate of restores. */

import { durationText } from "../../base/format.js";
import { ownerOf } from "../../base/tasks.js";

const TOLD_MS = 60_000; // how long a task shows that it moved, and how long a look counts for a rate

/** The history of one page. */
export class Moves {
  constructor() {
    this.owners = new Map(); // task → its last node, and when and from where the task came
    this.restores = new Map(); // restore → the remaining offsets, and when
  }

  /** Note a look at the nodes. `now` grows, in ms. */
  see(cluster, now) {
    for (const task of cluster.tasks) {
      const node = ownerOf(task, cluster);
      const known = this.owners.get(task);
      if (node !== null && node !== known?.node) this.owners.set(task, { node, from: known?.node, atMs: now });
    }
    for (const [name, node] of Object.entries(cluster.nodes)) {
      this.seeRestore(name, sumOf(node), now);
      for (const [task, held] of Object.entries(node.tasks)) this.seeRestore(`${name}/${task}`, held.restore_remaining ?? 0, now);
    }
  }

  /** Note the remaining offsets of a restore. A restore that ended, or has more left than before, starts a new history. */
  seeRestore(what, left, now) {
    const looks = (this.restores.get(what) ?? []).filter(({ atMs }) => now - atMs < TOLD_MS);
    const goesOn = looks.length > 0 && left <= looks.at(-1).left;
    this.restores.set(what, left === 0 ? [] : [...(goesOn ? looks : []), { left, atMs: now }]);
  }

  /** How long a restore still takes at the last minute's rate, in words; null while unknown. */
  restoreText(what) {
    const looks = this.restores.get(what) ?? [];
    if (looks.length < 2) return null;
    const [first, last] = [looks[0], looks.at(-1)];
    const perMs = (first.left - last.left) / (last.atMs - first.atMs);
    return perMs > 0 ? `about ${durationText(last.left / perMs)}` : "makes no progress";
  }

  /** How a task's owner has changed since the page was opened. */
  changeText(task, owner, now) {
    const known = this.owners.get(task);
    if (owner === null) return known === undefined ? "no owner" : `no owner, was on ${known.node}`;
    if (known?.from === undefined || now - known.atMs > TOLD_MS) return "";
    return `from ${known.from} to ${owner}, ${durationText(now - known.atMs)} ago`;
  }
}

function sumOf({ tasks }) {
  return Object.values(tasks).reduce((left, task) => left + (task.restore_remaining ?? 0), 0);
}
