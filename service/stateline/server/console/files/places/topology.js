/** What flows where: topics, operators, stores, global tables and pipelines, with what each topic has per second. */

import { html, useEffect, useMemo, useState } from "../vendor/htm-preact-3.1.1.js";
import { useAnswer } from "../base/answer.js";
import { rateText } from "../base/format.js";
import { setQuery } from "../base/place.js";
import { module } from "../base/vendor.js";
import { Failure } from "../parts/problem.js";
import { Nothing, Table } from "../parts/table.js";
import { inOneLine, layout, rateOf } from "./topology/drawing.js";
import { Drawing, Legend } from "./topology/svg.js";

const EVERY_MS = 5000;
const ZOOMS = [25, 35, 50, 70, 100, 140, 200];

export function Topology({ at }) {
  const { body: graph, failure } = useAnswer("v1/console/graph", EVERY_MS, { timeoutMs: EVERY_MS }); // again for its rates
  const drawn = useDrawn(graph);
  if (graph === null) return failure ? html`<${Failure} error=${failure} />` : html`<p role="status">Loading …</p>`;
  if (graph.nodes.length === 0) return html`<${Nothing}>This application declares nothing yet: <code>app.topic("…")</code> and <code>app.table(topic, store="…")</code> are a beginning.<//>`;
  const zoom = ZOOMS.includes(Number(at.query.zoom)) ? Number(at.query.zoom) : 100;
  return html`
    ${failure && html`<${Failure} error=${failure} />`}
    <div class="buttons">
      <${Legend} kinds=${new Set(graph.nodes.map(({ kind }) => kind))} />
      <${Zoom} zoom=${zoom} drawn=${drawn} />
    </div>
    ${drawn ? html`<${Drawing} drawn=${drawn} graph=${graph} zoom=${zoom / 100} />` : html`<p role="status">Drawing …</p>`}
    <${AsTable} graph=${graph} />`;
}

function Zoom({ zoom, drawn }) {
  const step = (by) => setQuery({ zoom: ZOOMS[ZOOMS.indexOf(zoom) + by] }, { replace: true });
  const fit = () => {
    const room = document.getElementById("main").clientWidth;
    setQuery({ zoom: ZOOMS.findLast((each) => (drawn.width * each) / 100 < room) ?? ZOOMS[0] }, { replace: true });
  };
  return html`<div role="group" aria-label="Zoom" class="buttons zoom">
    <button type="button" aria-disabled=${zoom === ZOOMS[0]} onClick=${() => zoom > ZOOMS[0] && step(-1)} aria-label="Smaller">−</button>
    <button type="button" onClick=${() => setQuery({ zoom: "" }, { replace: true })} aria-label=${`${zoom} %, back to 100 %`}>${zoom} %</button>
    <button type="button" aria-disabled=${zoom === ZOOMS.at(-1)} onClick=${() => zoom < ZOOMS.at(-1) && step(1)} aria-label="Larger">+</button>
    <button type="button" aria-disabled=${drawn === null} onClick=${() => drawn && fit()}>Fit</button>
  </div>`;
}

/** The same in words: each arrow is a row. */
function AsTable({ graph }) {
  const byId = new Map(graph.nodes.map((node) => [node.id, node]));
  const named = (node) => `${WORDS[node.kind] ?? node.kind} ${inOneLine(node.label ?? node.name)}`;
  const rows = graph.edges.map(([from, to]) => {
    const rate = rateOf(byId.get(from), graph.rates);
    const number = byId.get(to).subtopology ?? byId.get(from).subtopology;
    return { id: `${from} ${to}`, cells: [named(byId.get(from)), named(byId.get(to)), number === null ? "" : String(number), rate === undefined ? "" : rateText(rate)] };
  });
  return html`<details><summary>The same as a table</summary>
    <${Table} caption="What goes where" columns=${["From", "To", "Subtopology", "Records"]} rows=${rows} /></details>`;
}

const WORDS = { global_table: "global table" };

/** Its layout, made anew only when what is drawn is another; null until dagre has come. */
function useDrawn(graph) {
  const [dagre, setDagre] = useState(null);
  useEffect(() => {
    module("dagre-3.1.3.js").then(({ Graph, layout: place }) => setDagre({ Graph, layout: place }));
  }, []);
  const shape = JSON.stringify([graph?.nodes, graph?.edges, Object.keys(graph?.rates ?? {})]);
  return useMemo(() => (dagre && graph ? layout(dagre, graph) : null), [dagre, shape]);
}
