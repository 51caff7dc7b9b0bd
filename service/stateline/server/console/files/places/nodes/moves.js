/** What becomes of tasks from look to look: which node had one before, and how quickly restores get on. */

import { durationText } from "../../base/format.js";
import { ownerOf } from "../../base/tasks.js";

const TOLD_MS = 60_000; // for so long a task that has moved says so, and a restore's looks count

/** Remembers the looks of one page. */
export class Moves {
  constructor() {
    this.owners = new Map(); // task → the node that had it last, and when and from where it came
    this.restores = new Map(); // what is restored → what was left, and when
  }

  /** Take down a look at the nodes; `now` grows, in ms. */
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

  /** Take down how much of a restore is left; one that has ended, or that has more left than before, begins anew. */
  seeRestore(what, left, now) {
    const looks = (this.restores.get(what) ?? []).filter(({ atMs }) => now - atMs < TOLD_MS);
    const goesOn = looks.length > 0 && left <= looks.at(-1).left;
    this.restores.set(what, left === 0 ? [] : [...(goesOn ? looks : []), { left, atMs: now }]);
  }

  /** How long a restore still takes at the rate of the looks of the last minute: in words, or null while that is not known. */
  restoreText(what) {
    const looks = this.restores.get(what) ?? [];
    if (looks.length < 2) return null;
    const [first, last] = [looks[0], looks.at(-1)];
    const perMs = (first.left - last.left) / (last.atMs - first.atMs);
    return perMs > 0 ? `about ${durationText(last.left / perMs)}` : "makes no progress";
  }

  /** What has become of a task's owner since the page was opened. */
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
