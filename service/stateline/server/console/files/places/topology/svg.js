/** The drawing of the topology, and its legend. */

import { html } from "../../vendor/htm-preact-3.1.1.js";
import { rateText } from "../../base/format.js";
import { addressOf } from "../../base/place.js";
import { inOneLine, LINE, line, outline, rateOf } from "./drawing.js";

const KINDS = { topic: "topic", operator: "operator", store: "store", global_table: "global table", pipeline: "pipeline" };

/** The graph at `scale` times its layout, in a panel that scrolls. Stores and pipelines link to their pages. */
export function Drawing({ drawn, graph, scale }) {
  const { width, height, nodes, edges, boxes } = drawn;
  const byId = new Map(nodes.map((node) => [node.id, node]));
  return html`<div class="scroll panel topology" role="region" aria-label="Drawing of the topology" tabindex="0">
    <svg width=${width * scale} height=${height * scale} viewBox=${`0 0 ${width} ${height}`} role="group" aria-label="Connections; the table below lists them">
      <defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0,0L8,4L0,8Z" /></marker></defs>
      ${boxes.map((box) => html`<${Box} key=${box.subtopology} ...${box} />`)}
      ${edges.map(({ from, to, points }) => html`<path key=${`${from} ${to}`} class="edge" d=${line(points)} marker-end="url(#arrow)" />`)}
      ${edges.map(({ from, to, at }) => html`<${Rate} key=${`${from} ${to}`} at=${at} rate=${rateOf(byId.get(from), graph.rates)} />`)}
      ${nodes.map((node) => html`<${Node} key=${node.id} node=${node} />`)}
    </svg>
  </div>`;
}

function Box({ subtopology, x, y, width, height }) {
  return html`<g aria-hidden="true">
    <rect class="box" x=${x - width / 2} y=${y - height / 2} width=${width} height=${height} rx="8" />
    <text class="box-name" x=${x - width / 2 + 8} y=${y - height / 2 + 13}>subtopology ${subtopology}</text>
  </g>`;
}

function Rate({ at, rate }) {
  if (rate === undefined || rate === null || at.x === undefined) return null;
  return html`<text class="rate" x=${at.x} y=${at.y + 4} text-anchor="middle">${rateText(rate)}</text>`;
}

function Node({ node }) {
  const { kind, name, label, lines, x, y, width, height, internal } = node;
  const what = `${KINDS[kind] ?? kind} ${inOneLine(label ?? name)}${internal ? ", internal" : ""}`;
  const drawn = html`<g class=${`node ${kind} ${internal ? "internal" : ""}`} transform=${`translate(${x},${y})`}>
    <title>${what}</title>
    <path d=${outline(kind, width, height)} />
    ${lines.map((text, i) => html`<text text-anchor="middle" class=${i === 0 ? null : "more"} y=${(i - (lines.length - 1) / 2) * LINE + (isStore(kind) ? 7 : 4)}>${text}</text>`)}
  </g>`;
  const href = hrefOf(node);
  return href === null ? drawn : html`<a href=${href} aria-label=${what}>${drawn}</a>`;
}

function isStore(kind) {
  return kind === "store" || kind === "global_table";
}

function hrefOf({ kind, name }) {
  if (isStore(kind)) return addressOf({ place: "store", store: name });
  return kind === "pipeline" ? addressOf({ place: "pipelines" }) : null;
}

export function Legend({ kinds }) {
  const shown = Object.entries(KINDS).filter(([kind]) => kinds.has(kind));
  return html`<ul class="legend shapes" aria-label="Legend of shapes">${shown.map(
    ([kind, words]) => html`<li key=${kind}><svg width="46" height="22" viewBox="-23 -11 46 22" aria-hidden="true" class=${`node ${kind}`}><path d=${outline(kind, 44, 20)} /></svg>${words}</li>`,
  )}</ul>`;
}
