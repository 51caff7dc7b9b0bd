/** The application's nodes, their tasks and how tasks move; the workers of this node. */

import { html, useRef } from "../vendor/htm-preact-3.1.1.js";
import { useAnswer } from "../base/answer.js";
import { countText, sizeText } from "../base/format.js";
import { backupText } from "../base/health.js";
import { addressOf } from "../base/place.js";
import { heldText, lagText, ownerOf, reachedText, restoreRemaining, rolesText, settledText } from "../base/tasks.js";
import { Failure } from "../parts/problem.js";
import { Facts, Nothing, Table } from "../parts/table.js";
import { Moves } from "./nodes/moves.js";

const EVERY_MS = 3000;

export function Nodes({ look }) {
  const moves = useRef(new Moves());
  const seen = useRef(null);
  if (!look.known) return null;
  if (seen.current !== look.atMs) {
    seen.current = look.atMs;
    if (look.cluster) moves.current.see(look.cluster, look.atMs);
    else for (const { store, states, lag } of look.stores) moves.current.seeRestore(store, states.restoring ? (lag ?? 0) : 0, look.atMs);
  }
  return html`
    ${look.cluster
      ? html`<${Cluster} cluster=${look.cluster} moves=${moves.current} now=${look.atMs} />`
      : html`<p class="note">This node runs alone: its workers have every task. Of several nodes each has a card here.</p>
        <${Restores} stores=${look.stores} moves=${moves.current} />`}
    ${look.backup && html`<${Backups} backup=${look.backup} />`}
    <${Workers} alone=${!look.cluster} />`;
}

function Cluster({ cluster, moves, now }) {
  const names = Object.keys(cluster.nodes);
  const rows = cluster.tasks.map((task) => {
    const owner = ownerOf(task, cluster);
    const held = names.map((name) => heldText(cluster.nodes[name].tasks[task], moves.restoreText(`${name}/${task}`)));
    return { id: task, alert: owner === null ? "bad" : null, cells: [task, ...held, moves.changeText(task, owner, now)] };
  });
  return html`<div class="live">
    <p id="settled">${settledText(cluster)}</p>
    <ul class="cards">${names.map((name) => html`<${Card} key=${name} name=${name} cluster=${cluster} left=${moves.restoreText(name)} />`)}</ul>
    <${Table} caption="Tasks and their nodes" columns=${["Task", ...names, "Change"]} rows=${rows} />
  </div>`;
}

function Card({ name, cluster, left }) {
  const node = cluster.nodes[name];
  const known = (text) => (node.reached ? text(node) : "unknown");
  const facts = [
    ["Reached", reachedText(name, cluster)],
    ["Console", node.url === null ? "unknown" : html`<a href=${`${node.url}/`}>${node.url}</a>`],
    ["Version", node.version],
    ["Rack", node.rack ?? "unknown"],
    ["Tasks", known(rolesText)],
    ["Lag", known(lagText)],
    ["To restore", known((each) => countText(restoreRemaining(each)) + (left ? `, ${left}` : ""))],
  ];
  return html`<li class=${`card ${node.reached ? "" : "bad"}`}>
    <h2>${name}${name === cluster.node ? " (this one)" : ""}</h2>
    <${Facts} facts=${facts} />
    ${node.fault && html`<p class="note">${node.fault}</p>`}
  </li>`;
}

/** The stores that this node restores, if there is one node. */
function Restores({ stores, moves }) {
  const restored = stores.filter(({ states }) => states.restoring);
  if (restored.length === 0) return null;
  const rows = restored.map(({ store, states, lag }) => ({
    id: store,
    alert: "warn",
    cells: [html`<a href=${addressOf({ place: "store", store })}>${store}</a>`, String(states.restoring), countText(lag), moves.restoreText(store) ?? "not known yet"],
  }));
  return html`<div class="live"><${Table} caption="Stores being restored" columns=${["Store", "Partitions", "Offsets left", "Time left"]} rows=${rows} /></div>`;
}

/** The backups that this node makes of its tasks. */
function Backups({ backup: { last_ms: lastMs, made, failed, written_bytes: bytes } }) {
  const facts = [
    ["Newest", backupText(lastMs)],
    ["Made", countText(made)],
    ["Failed", countText(failed)],
    ["Written", sizeText(bytes)],
  ];
  return html`<section aria-labelledby="backups-title">
    <h2 id="backups-title">Backups of this node</h2>
    <${Facts} facts=${facts} />
  </section>`;
}

/** The worker processes of this node, with the state of each task. */
function Workers({ alone }) {
  const { body, failure } = useAnswer("v1/instances", EVERY_MS, { timeoutMs: 5000 });
  const workers = body?.instances ?? null;
  return html`<section aria-labelledby="workers-title">
    <h2 id="workers-title">${alone ? "Workers" : "Workers of this node"}</h2>
    ${failure && html`<${Failure} error=${failure} />`}
    ${workers === null && !failure && html`<p role="status">Loading …</p>`}
    ${workers?.length === 0 && html`<${Nothing}>No worker has run here: <code>stateline run MODULE:APP</code> starts one beside this server.<//>`}
    ${workers?.length > 0 && html`<ul class="cards live">${workers.map((worker) => html`<${Worker} key=${worker.instance} worker=${worker} />`)}</ul>`}
  </section>`;
}

function Worker({ worker }) {
  const { instance, pid, alive, reachable, tasks } = worker;
  const byState = Object.groupBy(Object.entries(tasks), ([, state]) => state);
  const facts = [
    ["Process", pid === null ? "unknown" : String(pid)],
    ["Alive", alive ? "yes" : "no"],
    ["Answers", reachable ? "yes" : "no"],
    ...Object.entries(byState).map(([state, held]) => [`${countText(held.length)} ${state}`, held.map(([task]) => task).join(", ")]),
  ];
  const advice = alive ? "It does not answer. It may be busy, or it hangs." : "It has ended. Its tasks move to other workers, or wait until it starts again.";
  return html`<li class=${`card ${alive ? (reachable ? "" : "warn") : "bad"}`}>
    <h3>${instance}</h3>
    <${Facts} facts=${facts} />
    ${!(alive && reachable) && html`<p class="note">${advice}</p>`}
  </li>`;
}
