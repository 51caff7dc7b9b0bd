/** The service at a glance: problems first, then the last hour, stores, pipelines and nodes. */

import { html } from "../vendor/htm-preact-3.1.1.js";
import { countText } from "../base/format.js";
import { alertOf, commitText, isAmiss, kindText, stateText, statesText } from "../base/health.js";
import { addressOf } from "../base/place.js";
import { rolesText, settledText } from "../base/tasks.js";
import { History } from "../parts/history.js";
import { Facts, Nothing } from "../parts/table.js";
import { Alerts } from "./overview/alerts.js";

export function Overview({ at, look }) {
  if (!look.known) return null;
  return html`
    <${Alerts} look=${look} />
    <section aria-labelledby="history-title"><h2 id="history-title">The last hour</h2><${History} at=${at} /></section>
    <section aria-labelledby="stores-title">
      <h2 id="stores-title">Stores</h2>
      ${look.stores.length === 0 && html`<${Nothing}>This application has no stores: <code>app.table(topic, store="…")</code> makes one.<//>`}
      <ul class="cards live">${look.stores.map((store) => html`<${Card} key=${store.store} store=${store} />`)}</ul>
    </section>
    <${PipelineLines} pipelines=${look.pipelines} />
    <${NodeLines} cluster=${look.cluster} />`;
}

function Card({ store }) {
  const facts = [
    ["Kind", kindText(store)],
    ["Partitions", statesText(store.states)],
    ["Input lag", countText(store.input_lag)],
    ["Last commit", commitText(store.committed_at_ms)],
  ];
  return html`<li class=${`card ${alertOf(store) ?? ""}`}>
    <h3><a href=${addressOf({ place: "store", store: store.store })}>${store.store}</a></h3>
    <${Facts} facts=${facts} />
    ${store.not_ready && html`<p class="note">${store.not_ready}</p>`}
  </li>`;
}

function PipelineLines({ pipelines }) {
  const names = Object.keys(pipelines);
  if (names.length === 0) return null;
  return html`<section aria-labelledby="pipelines-title">
    <h2 id="pipelines-title">Pipelines</h2>
    <ul class="lines live">${names.map(
      (name) => html`<li key=${name}><a href=${addressOf({ place: "pipelines" })}>${name}</a>
        <span class=${`tag ${isAmiss(pipelines[name].status) ? "bad" : ""}`}>${stateText(pipelines[name].status)}</span></li>`,
    )}</ul>
  </section>`;
}

function NodeLines({ cluster }) {
  if (cluster === null) return null;
  return html`<section aria-labelledby="nodes-title">
    <h2 id="nodes-title">Nodes</h2>
    <p class="note live">${settledText(cluster)}</p>
    <ul class="lines live">${Object.entries(cluster.nodes).map(
      ([name, node]) => html`<li key=${name}><a href=${addressOf({ place: "nodes" })}>${name}</a>
        <span class=${`tag ${node.reached ? "" : "bad"}`}>${name === cluster.node ? "this one" : node.reached ? "reached" : "not reached"}</span>
        <span class="muted">${node.reached ? rolesText(node) : (node.fault ?? "")}</span></li>`,
    )}</ul>
  </section>`;
}
