/** The layout of the topology by dagre, as plain numbers for an SVG. */

const CHARACTER = 7.4; // pixels of one character in the 12 px monospace font
const MOST_CHARACTERS = 46; // a store of a join with its types, and a topic of such a join
export const LINE = 15; // pixels between lines of a label
const RATE_WIDTH = 64; // free space on arrows with a rate
const PADDING = { topic: 36, operator: 24, store: 28, global_table: 28, pipeline: 44 };

const DIRECTIONS = ["LR", "TB"]; // left to right; top to bottom if that fits better
const READABLE = 0.5; // text below this scale is unreadable

export function layouts(dagre, graph) {
  return DIRECTIONS.map((direction) => layout(dagre, graph, direction));
}

/**
 * Return `{drawn, scale}`: the layout for a room `{width, height}`, and its scale. All of it if that is readable, else the width of the
 * room if that is readable, else the smallest readable scale.
 */
export function fitted(drawn, room) {
  const fits = drawn.map((each) => ({ drawn: each, scale: wholly(each, room) }));
  const readable = fits.find(({ scale }) => scale >= READABLE);
  if (readable) return readable;
  const [one, other] = drawn.map((each) => ({ drawn: each, scale: Math.min(1, room.width / each.width) }));
  const wider = other.scale > one.scale ? other : one;
  return { ...wider, scale: Math.max(READABLE, wider.scale) };
}

/** The scale at which a layout fits into the room, at most 1. */
export function wholly({ width, height }, room) {
  return Math.min(1, room.width / width, room.height / height);
}

/**
 * Return `{width, height, nodes, edges, boxes}`. Nodes are `{…node, x, y, width, height, lines}` with the middle at x, y. Edges are
 * `{from, to, points, at}`, with the rate's place `at`. Boxes are `{subtopology, x, y, width, height}`.
 */
function layout(dagre, { nodes, edges, rates }, direction) {
  const graph = new dagre.Graph({ compound: true });
  graph.setGraph({ rankdir: direction, nodesep: 18, ranksep: 46, marginx: 12, marginy: 12 });
  graph.setDefaultEdgeLabel(() => ({}));
  const subtopologies = new Set(nodes.map(({ subtopology }) => subtopology).filter((number) => number !== null));
  for (const number of subtopologies) graph.setNode(boxName(number), {});
  for (const node of nodes) {
    const lines = linesOf(node);
    const longest = Math.max(...lines.map((text) => text.length));
    graph.setNode(node.id, { width: longest * CHARACTER + (PADDING[node.kind] ?? 24), height: lines.length * LINE + 22, lines });
    if (node.subtopology !== null) graph.setParent(node.id, boxName(node.subtopology));
  }
  const kinds = new Map(nodes.map((node) => [node.id, node]));
  for (const [from, to] of edges) {
    const rated = rateOf(kinds.get(from), rates) !== undefined;
    graph.setEdge(from, to, rated ? { width: RATE_WIDTH, height: 14, labelpos: "c" } : {});
  }
  dagre.layout(graph);
  const { width, height } = graph.graph();
  return {
    width,
    height,
    nodes: nodes.map((node) => ({ ...node, ...graph.node(node.id) })),
    edges: edges.map(([from, to]) => ({ from, to, points: graph.edge(from, to).points, at: { x: graph.edge(from, to).x, y: graph.edge(from, to).y } })),
    boxes: [...subtopologies].map((number) => ({ subtopology: number, ...graph.node(boxName(number)) })),
  };
}

/** The rate out of a topic; null while unknown, undefined for other nodes. */
export function rateOf(node, rates) {
  return node?.kind === "topic" ? rates[node.name] : undefined;
}

/** The outline of a node around its middle, as an SVG path. Each kind has its own shape. */
export function outline(kind, width, height) {
  const [x, y] = [width / 2, height / 2];
  switch (kind) {
    case "topic": // a pill
      return `M${-x + y},${-y}H${x - y}A${y},${y},0,0,1,${x - y},${y}H${-x + y}A${y},${y},0,0,1,${-x + y},${-y}Z`;
    case "store": // a cylinder
    case "global_table":
      return `M${-x},${-y + 5}A${x},5,0,0,1,${x},${-y + 5}V${y - 5}A${x},5,0,0,1,${-x},${y - 5}ZM${-x},${-y + 5}A${x},5,0,0,0,${x},${-y + 5}`;
    case "pipeline": // six edges
      return `M${-x + 14},${-y}H${x - 14}L${x},0L${x - 14},${y}H${-x + 14}L${-x},0Z`;
    default:
      return `M${-x},${-y}H${x}V${y}H${-x}Z`;
  }
}

export function inOneLine(label) {
  return label.replaceAll("\n", ", ");
}

export function line(points) {
  return points.map(({ x, y }, i) => `${i === 0 ? "M" : "L"}${x.toFixed(1)},${y.toFixed(1)}`).join("");
}

function linesOf({ label, name }) {
  return (label ?? name).split("\n").map((text) => (text.length > MOST_CHARACTERS ? `${text.slice(0, MOST_CHARACTERS - 1)}…` : text));
}

function boxName(number) {
  return `subtopology ${number}`;
}
