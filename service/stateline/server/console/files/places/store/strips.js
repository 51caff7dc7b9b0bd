/** Rows of bars over time on a canvas: sessions by key, or a heat map. A table has the same data. */

import { html, useEffect, useMemo, useRef, useState } from "../../vendor/htm-preact-3.1.1.js";
import { durationText, localText } from "../../base/format.js";
import { colour } from "../../base/theme.js";
import { useTheme } from "../../parts/chart.js";
import { Table } from "../../parts/table.js";
import { useWidth } from "../../parts/width.js";
import { setZoom } from "../../parts/zoom.js";

const ROW_PX = 22;
const AXIS_PX = 22;
const NAMES_PX = 110;
const LEAST_PX = 2; // smallest visible width of a bar
const DRAG_PX = 5; // a shorter movement is a click
const FAINTEST = 0.15; // same as in the style sheet
const MOST_IN_TABLE = 500;

/**
 * `names` are the rows. `bars` are `{row, from, to, weight, text}`: index of the row, ms since the epoch, darkness from 0 to 1, text.
 * `told` is the description for screen readers. `children` are drawn below. `zoom` is the shown time `{from, to}`, null for all.
 * Dragging sets `zoom` of the address, a double click removes it.
 */
export function Strips({ label, told, names, bars: all, column, zoom = null, children = null }) {
  const box = useRef(null);
  const canvas = useRef(null);
  const readout = useRef(null);
  const width = useWidth(box);
  const theme = useTheme();
  const bars = useMemo(() => (zoom === null ? all : all.filter(({ from, to }) => to >= zoom.from && from <= zoom.to)), [all, zoom?.from, zoom?.to]);
  const scale = scaleOf(zoom ?? extentOf(bars), width);
  const height = names.length * ROW_PX + AXIS_PX;
  useEffect(() => draw(canvas.current, { names, bars, scale, width, height }), [names, bars, width, theme, zoom?.from, zoom?.to]);
  const marked = useRef(null);
  const drag = useDrag(marked, scale, (from, to) => bars.length > 0 && setZoom({ from, to }));
  const point = (event) => {
    const at = bars.findLast(({ row, from, to }) => row === Math.floor(event.offsetY / ROW_PX) && within(event.offsetX, scale(from), scale(to)));
    readout.current.textContent = at === undefined ? "" : `${names[at.row]} · ${spanText(at)} · ${at.text}`;
  };
  return html`<figure ref=${box} class="chart">
    <p class="chart-title">${label}</p>
    <div class="drawn" onPointerMove=${point}>
      <canvas ref=${canvas} class="strips" role="img" aria-label=${`${label}. ${told}`} onDblClick=${() => setZoom(null)} ...${drag}></canvas>
      <div ref=${marked} class="dragged" hidden></div>
    </div>
    <figcaption>${children}<p ref=${readout} class="readout" aria-hidden="true"></p></figcaption>
    <${Data} label=${label} names=${names} bars=${bars} column=${column} />
  </figure>`;
}

/**
 * The canvas's event handlers. `onDragged` gets the two times between which the mouse was dragged, by the `scale` at its start. Touches
 * scroll the page.
 */
function useDrag(marked, scale, onDragged) {
  const began = useRef(null);
  const end = () => {
    began.current = null;
    if (marked.current !== null) marked.current.hidden = true; // the mark may be gone after a zoom
  };
  const between = (event) => [began.current.px, began.current.scale.inside(event.offsetX)].toSorted((one, other) => one - other);
  return {
    onPointerDown: (event) => {
      if (event.button !== 0 || event.pointerType === "touch") return;
      event.target.setPointerCapture(event.pointerId); // the drag may end outside
      began.current = { px: scale.inside(event.offsetX), scale };
    },
    onPointerMove: (event) => {
      if (began.current === null) return;
      const [from, to] = between(event);
      Object.assign(marked.current.style, { left: `${from}px`, width: `${to - from}px` });
      marked.current.hidden = to - from < DRAG_PX;
    },
    onPointerUp: (event) => {
      if (began.current === null || event.button !== 0) return;
      const [from, to] = between(event);
      if (to - from >= DRAG_PX) onDragged(began.current.scale.timeAt(from), began.current.scale.timeAt(to));
      end();
    },
    onLostPointerCapture: end, // after the last event, or without one
  };
}

function Data({ label, names, bars, column }) {
  const [open, setOpen] = useState(false);
  const rows = () =>
    bars.slice(0, MOST_IN_TABLE).map(({ row, from, to, text }, i) => ({ id: String(i), cells: [names[row], localText(from), localText(to), durationText(to - from), text] }));
  const caption = bars.length > MOST_IN_TABLE ? `${label}, the first ${MOST_IN_TABLE} of ${bars.length}` : label;
  return html`<details open=${open} onToggle=${(event) => setOpen(event.target.open)}>
    <summary>${label} as a table</summary>
    ${open && html`<${Table} caption=${caption} columns=${["Key", "Start", "End", "Long", column]} rows=${rows()} />`}
  </details>`;
}

function namesPx(width) {
  return Math.min(NAMES_PX, width / 3);
}

function extentOf(bars) {
  const from = bars.reduce((least, bar) => Math.min(least, bar.from), Infinity);
  return { from, to: bars.reduce((most, bar) => Math.max(most, bar.to), -Infinity) };
}

function scaleOf({ from, to }, width) {
  const [left, right] = [namesPx(width), width - LEAST_PX];
  const share = (ms) => Math.min(1, Math.max(0, (ms - from) / Math.max(1, to - from)));
  const scale = (ms) => left + share(ms) * (right - left);
  const inside = (px) => Math.min(right, Math.max(left, px)); // without the names
  const timeAt = (px) => from + ((inside(px) - left) / Math.max(1, right - left)) * (to - from);
  return Object.assign(scale, { from, to, inside, timeAt });
}

function within(x, from, to) {
  return x >= from - 1 && x <= Math.max(to, from + LEAST_PX) + 1;
}

function spanText({ from, to }) {
  return to > from ? `${localText(from)} to ${localText(to)}` : localText(from);
}

function draw(canvas, { names, bars, scale, width, height }) {
  if (width === 0) return;
  const sharp = devicePixelRatio || 1;
  Object.assign(canvas, { width: width * sharp, height: height * sharp });
  Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
  const ink = canvas.getContext("2d");
  ink.scale(sharp, sharp);
  ink.font = "12px system-ui, sans-serif";
  ink.textBaseline = "middle";
  ink.fillStyle = colour("--text");
  names.forEach((name, row) => ink.fillText(fitted(ink, name, namesPx(width) - 8), 0, (row + 0.5) * ROW_PX));
  ink.fillStyle = colour("--accent");
  for (const { row, from, to, weight } of bars) {
    ink.globalAlpha = FAINTEST + (1 - FAINTEST) * weight;
    ink.fillRect(scale(from), row * ROW_PX + 3, Math.max(LEAST_PX, scale(to) - scale(from) - 1), ROW_PX - 6);
  }
  ink.globalAlpha = 1;
  drawAxis(ink, scale, width, names.length * ROW_PX);
}

function drawAxis(ink, scale, width, top) {
  ink.fillStyle = colour("--muted");
  const [first, last] = [scale.from, scale.to].map((ms) => localText(ms).replace(/:\d\d(\.\d+)?$/, ""));
  ink.textAlign = "left";
  ink.fillText(first, namesPx(width), top + AXIS_PX / 2);
  ink.textAlign = "right";
  if (ink.measureText(first + last).width + 12 < width - namesPx(width)) ink.fillText(last, width, top + AXIS_PX / 2);
}

function fitted(ink, text, most) {
  let fits = text.slice(0, 60);
  while (fits.length > 1 && ink.measureText(fits).width > most) fits = `${fits.slice(0, -2)}…`;
  return fits;
}
