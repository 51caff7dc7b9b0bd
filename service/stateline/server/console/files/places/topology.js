/** The topology: topics with their rates, operators, stores, global tables and pipelines. */

import { html, useEffect, useMemo, useRef, useState } from "../vendor/htm-preact-3.1.1.js";
import { useAnswer } from "../base/answer.js";
import { rateText } from "../base/format.js";
import { setQuery } from "../base/place.js";
import { module } from "../base/vendor.js";
import { Failure } from "../parts/problem.js";
import { Nothing, Table } from "../parts/table.js";
import { useWidth } from "../parts/width.js";
import { fitted, inOneLine, layouts, rateOf, wholly } from "./topology/drawing.js";
import { Drawing, Legend } from "./topology/svg.js";

const EVERY_MS = 5000;
const ZOOMS = [10, 15, 25, 35, 50, 70, 100, 140, 200];
const EDGES_PX = 16; // edges of the panel
const OF_WINDOW = 0.75; // the panel's share of the window, as in the style sheet

export function Topology({ at }) {
  const { body: graph, failure } = useAnswer("v1/console/graph", EVERY_MS, { timeoutMs: EVERY_MS }); // for the rates
  if (graph === null) return failure ? html`<${Failure} error=${failure} />` : html`<p role="status">Loading …</p>`;
  if (graph.nodes.length === 0) return html`<${Nothing}>This application declares nothing yet. Begin with <code>app.topic("…")</code> and <code>app.table(topic, store="…")</code>.<//>`;
  return html`
    ${failure && html`<${Failure} error=${failure} />`}
    <${Drawn} graph=${graph} query=${at.query} />
    <${AsTable} graph=${graph} />`;
}

/** The drawing, scaled to be readable and to fit, or as the address says. */
function Drawn({ graph, query }) {
  const box = useRef(null);
  const width = useWidth(box);
  const drawn = useDrawn(graph);
  const room = { width: width - EDGES_PX, height: innerHeight * OF_WINDOW - EDGES_PX };
  const first = drawn && width > 0 ? fitted(drawn, room) : null;
  const percent = ZOOMS.includes(Number(query.zoom)) ? Number(query.zoom) : first && Math.round(first.scale * 100);
  return html`<div ref=${box}>
    <div class="buttons">
      <${Legend} kinds=${new Set(graph.nodes.map(({ kind }) => kind))} />
      ${first && html`<${Zoom} percent=${percent} whole=${Math.floor(wholly(first.drawn, room) * 100)} />`}
    </div>
    ${first ? html`<${Drawing} drawn=${first.drawn} graph=${graph} scale=${query.zoom ? percent / 100 : first.scale} />` : html`<p role="status">Drawing …</p>`}
  </div>`;
}

/** Chooses the scale in percent; `whole` is the largest scale that shows everything. */
function Zoom({ percent, whole }) {
  const smaller = ZOOMS.findLast((each) => each < percent);
  const larger = ZOOMS.find((each) => each > percent);
  const to = (zoom) => zoom !== undefined && setQuery({ zoom }, { replace: true });
  const fitting = ZOOMS.findLast((each) => each <= whole) ?? ZOOMS[0];
  return html`<div role="group" aria-label="Zoom" class="buttons zoom">
    <button type="button" aria-disabled=${smaller === undefined} onClick=${() => to(smaller)} aria-label="Smaller">−</button>
    <button type="button" onClick=${() => to("")} aria-label=${`${percent} %, reset the zoom`}>${percent} %</button>
    <button type="button" aria-disabled=${larger === undefined} onClick=${() => to(larger)} aria-label="Larger">+</button>
    <button type="button" onClick=${() => to(fitting)} aria-label="Fit the whole drawing">Fit</button>
  </div>`;
}

/** The graph as a table with one row per arrow. */
function AsTable({ graph }) {
  const byId = new Map(graph.nodes.map((node) => [node.id, node]));
  const named = (node) => `${WORDS[node.kind] ?? node.kind} ${inOneLine(node.label ?? node.name)}`;
  const rows = graph.edges.map(([from, to]) => {
    const rate = rateOf(byId.get(from), graph.rates);
    const number = byId.get(to).subtopology ?? byId.get(from).subtopology;
    return { id: `${from} ${to}`, cells: [named(byId.get(from)), named(byId.get(to)), number === null ? "" : String(number), rate === undefined ? "" : rateText(rate)] };
  });
  return html`<details><summary>The same as a table</summary>
    <${Table} caption="Connections" columns=${["From", "To", "Subtopology", "Records"]} rows=${rows} /></details>`;
}

const WORDS = { global_table: "global table" };

/** The layouts, computed again only for another graph; null until dagre is loaded. */
function useDrawn(graph) {
  const [dagre, setDagre] = useState(null);
  useEffect(() => {
    module("dagre-3.1.3.js").then(({ Graph, layout: place }) => setDagre({ Graph, layout: place }));
  }, []);
  const shape = JSON.stringify([graph.nodes, graph.edges, Object.keys(graph.rates)]);
  return useMemo(() => (dagre ? layouts(dagre, graph) : null), [dagre, shape]);
}
