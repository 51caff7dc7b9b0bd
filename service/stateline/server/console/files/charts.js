/** Line and bar charts as SVG, each with a label that says it in words and a table of its data. */

import { element, shape, table } from "./elements.js";

const HEIGHT = 170;
const LEFT = 58;
const RIGHT = 10;
const TOP = 12;
const BOTTOM = 24;

/**
 * Draw lines over time into `svg`. `points` are `{atMs, values: [number | null, …]}`, oldest first; `names` and `format`
 * are of the values. A null breaks its line.
 */
export function drawLines(svg, { title, points, names, format }) {
  const width = prepare(svg);
  const known = points.flatMap((point) => point.values).filter((value) => value !== null);
  const top = niceTop(Math.max(0, ...known));
  const x = scale(points.at(0)?.atMs ?? 0, points.at(-1)?.atMs ?? 1, LEFT, width - RIGHT);
  const y = scale(0, top, HEIGHT - BOTTOM, TOP);
  const lines = names.flatMap((_, i) => linePieces(points, i).map((piece) => line(piece, i, x, y)));
  svg.replaceChildren(...gridLines(top, width, y, format), ...timeLabels(points, width), ...lines);
  svg.setAttribute("aria-label", `${title}. ${newest(points, names, format)}`);
}

/** Draw bars into `svg`; `bars` are `{label, value}`, values of any sign. */
export function drawBars(svg, { title, bars, format }) {
  const width = prepare(svg);
  const values = bars.map((bar) => bar.value);
  const top = niceTop(Math.max(0, ...values));
  const bottom = -niceTop(Math.max(0, ...values.map((value) => -value)));
  const low = values.some((value) => value < 0) ? bottom : 0;
  const y = scale(low, top, HEIGHT - BOTTOM, TOP);
  const step = (width - LEFT - RIGHT) / Math.max(1, bars.length);
  const drawn = bars.map(({ label, value }, i) =>
    shape(
      "rect",
      {
        class: "bar",
        x: LEFT + i * step + step * 0.1,
        width: Math.max(1, step * 0.8),
        y: Math.min(y(0), y(value)),
        height: Math.max(1, Math.abs(y(0) - y(value))),
      },
      shape("title", {}, `${label}: ${format(value)}`),
    ),
  );
  svg.replaceChildren(...gridLines(top, width, y, format, low), ...drawn, ...ends(bars, width));
  svg.setAttribute("aria-label", `${title}. ${barsInWords(bars, format)}`);
}

/** The data of `drawLines` as a table, newest first. */
export function linesTable({ title, points, names, format }) {
  const rows = points.toReversed().map(({ atMs, values }) => [clock(atMs), ...values.map((v) => (v === null ? "none" : format(v)))]);
  return table(title, ["Time", ...names], rows);
}

/** What the lines are called, each with a sample of its stroke. */
export function legend(names) {
  const sample = (i) => shape("line", { class: `line line-${i}`, x1: 0, y1: 5, x2: 26, y2: 5 });
  const items = names.map((name, i) =>
    element("li", {}, shape("svg", { width: 26, height: 10, "aria-hidden": "true" }, sample(i)), ` ${name}`),
  );
  return element("ul", { class: "legend" }, ...items);
}

function prepare(svg) {
  const width = Math.max(240, Math.round(svg.clientWidth || svg.parentElement.clientWidth));
  svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  svg.setAttribute("role", "img");
  return width;
}

function scale(from, to, start, end) {
  const span = to - from || 1;
  return (value) => Number((start + ((value - from) / span) * (end - start)).toFixed(1));
}

/** The least of 1, 2, 5 times a power of ten that is not below `value`. */
function niceTop(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= value) ?? 10 * power;
}

function gridLines(top, width, y, format, low = 0) {
  return [low, low + (top - low) / 2, top].flatMap((value) => [
    shape("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }),
    shape("text", { class: "axis", x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, format(value)),
  ]);
}

function timeLabels(points, width) {
  if (points.length < 2) return [shape("text", { class: "axis", x: LEFT, y: HEIGHT - 6 }, "waiting for data")];
  return edgeLabels(clock(points.at(0).atMs), clock(points.at(-1).atMs), width);
}

function ends(bars, width) {
  if (bars.length < 2) return bars.map(({ label }) => shape("text", { class: "axis", x: LEFT, y: HEIGHT - 6 }, label));
  return edgeLabels(bars.at(0).label, bars.at(-1).label, width);
}

function edgeLabels(first, last, width) {
  return [
    shape("text", { class: "axis", x: LEFT, y: HEIGHT - 6 }, first),
    shape("text", { class: "axis", x: width - RIGHT, y: HEIGHT - 6, "text-anchor": "end" }, last),
  ];
}

/** Runs of points whose i-th value is known. */
function linePieces(points, i) {
  const pieces = [[]];
  for (const { atMs, values } of points) {
    if (values[i] === null) pieces.push([]);
    else pieces.at(-1).push([atMs, values[i]]);
  }
  return pieces.filter((piece) => piece.length > 0);
}

function line(piece, i, x, y) {
  if (piece.length === 1) return shape("circle", { class: `dot dot-${i}`, cx: x(piece[0][0]), cy: y(piece[0][1]), r: 2.5 });
  return shape("polyline", { class: `line line-${i}`, points: piece.map(([at, value]) => `${x(at)},${y(value)}`).join(" ") });
}

function newest(points, names, format) {
  const said = names.map((name, i) => {
    const last = points.findLast((point) => point.values[i] !== null);
    return last ? `${name}: ${format(last.values[i])}` : `${name}: nothing yet`;
  });
  return `${said.join("; ")}.`;
}

function barsInWords(bars, format) {
  if (bars.length === 0) return "No bars.";
  const largest = bars.reduce((a, b) => (b.value > a.value ? b : a));
  return `${bars.length} bars, from ${bars[0].label} to ${bars.at(-1).label}; the largest is ${format(largest.value)} at ${largest.label}.`;
}

function clock(atMs) {
  return new Date(atMs).toLocaleTimeString("en-GB");
}
