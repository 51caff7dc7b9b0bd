/** Numbers over time, drawn by uPlot, with a description for screen readers and a table. */

import { html, useEffect, useRef, useState } from "../vendor/htm-preact-3.1.1.js";
import { countText, localText } from "../base/format.js";
import { colour } from "../base/theme.js";
import { script, style } from "../base/vendor.js";
import { setZoom } from "./zoom.js";
import { Table } from "./table.js";

const DAY_MS = 86_400_000;
const MOST_ROWS = 500; // rows of the table
const COLOURS = 8;
const LEAST_SPAN = 2 ** -40; // of an axis, relative to its numbers: uPlot never ends if adding a step changes nothing

/**
 * uPlot passes the browser's language to `Intl` when it is loaded. If the machine has no language, Chromium's is `en-US@posix`, which
 * `Intl` refuses.
 */
function library() {
  try {
    Intl.getCanonicalLocales(navigator.language);
  } catch {
    Object.defineProperty(navigator, "language", { value: "en-US", configurable: true });
  }
  return script("uplot-1.6.32.js");
}

/**
 * A chart. `times` are ascending ms since the epoch. `series` are `{name, values, kind}`: a value or null for each time, drawn as
 * "line", "step" (holds until the next) or "bars". `format` returns a value's text; with `fromZero` the axis begins at 0. `zoom` is the
 * shown time `{from, to}`, null for all. Dragging sets `zoom` of the address, a double click removes it.
 */
export function Chart({ label, series, times, format = countText, height = 220, fromZero = false, zoom = null }) {
  const box = useRef(null);
  const legend = useRef(null);
  const readout = useRef(null);
  const plot = useRef(null);
  const theme = useTheme();
  const [missing, setMissing] = useState(false);
  const format_ = useRef(format);
  format_.current = format;
  const seen = zoomed(times, series, zoom);
  const data = [times, ...series.map(({ values }) => values.map((value) => (value === null || value === undefined ? null : Number(value))))];
  const drawn = useRef(null);
  drawn.current = { data, series, zoom };
  useEffect(() => {
    let gone = false;
    const say = (u) => {
      readout.current.textContent = readoutText(u, drawn.current.series, format_.current);
    };
    const draw = () => {
      if (gone) return;
      const colours = [...legend.current.querySelectorAll("i")].map((each) => getComputedStyle(each).color);
      plot.current = new window.uPlot(optionsOf({ box: box.current, series, colours, height, fromZero, format: (value) => format_.current(value), say }), drawn.current.data, box.current);
      if (drawn.current.zoom !== null) fill(plot.current, drawn.current);
    };
    Promise.all([library(), style("uplot-1.6.32.css")]).then(draw, () => setMissing(true));
    const sized = new ResizeObserver(() => plot.current?.setSize({ width: box.current.clientWidth, height }));
    sized.observe(box.current);
    return () => {
      gone = true;
      sized.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [JSON.stringify(series.map(({ name, kind }) => [name, kind])), height, theme]);
  useEffect(() => plot.current && fill(plot.current, drawn.current), [series, times, zoom?.from, zoom?.to]);
  return html`<figure class="chart">
    <p class="chart-title">${label}</p>
    <div ref=${box} class="plot" role="img" aria-label=${`${label}. ${inWords(seen.series, seen.times, format)}`}></div>
    <figcaption>
      <ul ref=${legend} class=${series.length > 1 ? "legend" : "unseen"}>${series.map(
        ({ name }, i) => html`<li key=${name}><i class=${`series-${i % COLOURS}`}></i>${name}</li>`,
      )}</ul>
      <p ref=${readout} class="readout" aria-hidden="true"></p>
    </figcaption>
    ${missing && html`<p class="note">The chart’s library could not be loaded. The table has the data.</p>`}
    <${Data} label=${label} series=${seen.series} times=${seen.times} format=${format} />
  </figure>`;
}

/** Draw these numbers, and keep the zoom. */
function fill(u, { data, zoom }) {
  u.batch(() => {
    u.setData(data, zoom === null);
    if (zoom !== null) u.setScale("x", { min: zoom.from, max: zoom.to });
  });
}

/** The visible part of the numbers. Steps also hold from before. */
function zoomed(times, series, zoom) {
  if (zoom === null) return { times, series };
  const first = times.findIndex((ms) => ms >= zoom.from);
  const holds = series.some(({ kind }) => kind === "step") && times[0] < zoom.from ? 1 : 0;
  const [begin, end] = [(first < 0 ? times.length : first) - holds, times.findLastIndex((ms) => ms <= zoom.to) + 1];
  return { times: times.slice(begin, end), series: series.map((each) => ({ ...each, values: each.values.slice(begin, end) })) };
}

/** Zoom to the dragged period. */
function takeDrag(u) {
  const { left, width } = u.select;
  if (width === 0) return;
  u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  setZoom({ from: u.posToVal(left, "x"), to: u.posToVal(left + width, "x") });
}

/** Increases when the colours change, so that canvases are drawn again. */
export function useTheme() {
  const [count, setCount] = useState(0);
  useEffect(() => {
    const system = matchMedia("(prefers-color-scheme: dark)");
    const changed = () => setCount((before) => before + 1);
    addEventListener("themechange", changed);
    system.addEventListener("change", changed);
    return () => {
      removeEventListener("themechange", changed);
      system.removeEventListener("change", changed);
    };
  }, []);
  return count;
}

function Data({ label, series, times, format }) {
  const [open, setOpen] = useState(false);
  const from = Math.max(0, times.length - MOST_ROWS);
  const rows = () =>
    times
      .slice(from)
      .map((ms, i) => ({ id: `${ms}/${i}`, cells: [localText(ms), ...series.map(({ values }) => valueText(values[from + i], format))] }))
      .toReversed();
  return html`<details open=${open} onToggle=${(event) => setOpen(event.target.open)}>
    <summary>${label} as a table</summary>
    ${open && html`<${Table} caption=${from > 0 ? `${label}, the newest ${MOST_ROWS} of ${times.length}` : label} columns=${["Time", ...series.map(({ name }) => name)]} rows=${rows()} />`}
  </details>`;
}

function optionsOf({ box, series, colours, height, fromZero, format, say }) {
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--soft"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
  return {
    width: box.clientWidth,
    height,
    ms: 1,
    legend: { show: false },
    cursor: { points: { size: 6 }, drag: { setScale: false }, bind: { dblclick: () => () => setZoom(null) } },
    scales: { y: { range: (_, low, high) => rangeOf(fromZero ? Math.min(0, low) : low, high) } },
    axes: [
      { ...axis, values: (_, splits, __, ___, step) => splits.map((ms, i) => tickText(ms, splits[i - 1], step)), space: 80 },
      { ...axis, values: (_, splits) => splits.map(format), size: (_, texts) => 16 + 7 * Math.max(4, ...(texts ?? []).map((text) => text.length)) },
    ],
    series: [{}, ...series.map(({ name, kind }, i) => ({ label: name, ...strokeOf(kind, colours[i], i) }))],
    hooks: { setCursor: [say], setSelect: [takeDrag] },
  };
}

function strokeOf(kind, colour, i) {
  const { bars, stepped } = window.uPlot.paths;
  const dash = i === 0 ? undefined : [[8, 4], [2, 3], [12, 3, 2, 3]][(i - 1) % 3]; // distinguishable without colours
  if (kind === "bars") return { stroke: colour, fill: colour, width: 0, paths: bars({ size: [0.8, 60] }), points: { show: false } };
  return { stroke: colour, width: 2, dash, points: { size: 5, fill: colour, filter: (u, at, all) => (all ? null : alone(u.data[at])) }, ...(kind === "step" ? { paths: stepped({ align: 1 }) } : {}) };
}

/** The points without neighbours, which a line does not show. */
function alone(values) {
  const is = (i) => values[i] !== null && values[i] !== undefined;
  const found = values.flatMap((_, i) => (is(i) && !is(i - 1) && !is(i + 1) ? [i] : []));
  return found.length > 0 ? found : null;
}

/** From 0 if that is near, so that values can be compared. */
function rangeOf(low, high) {
  if (low === null || high === null || (low === 0 && high === 0)) return [0, 1];
  const size = Math.max(Math.abs(low), Math.abs(high));
  const span = high > low ? Math.max(high - low, size * LEAST_SPAN) : size || 1;
  return [low >= 0 && low < 2 * span ? 0 : low - span * 0.1, high <= 0 && -high < 2 * span ? 0 : high + span * 0.1];
}

function tickText(ms, before, step) {
  const [day, clock = ""] = localText(ms).split(" ");
  const time = step < 60_000 ? clock : clock.slice(0, 5);
  if (step >= DAY_MS) return step >= 360 * DAY_MS ? day.slice(0, -6) : before === undefined ? day : day.slice(-5);
  return before === undefined || localText(before).split(" ")[0] !== day ? `${time}\n${day}` : time;
}

function readoutText(u, series, format) {
  const { idx } = u.cursor;
  if (idx === null || idx === undefined) return "";
  return [localText(u.data[0][idx]), ...series.map(({ name, values }) => `${name} ${valueText(values[idx], format)}`)].join(" · ");
}

function inWords(series, times, format) {
  if (times.length === 0) return "Nothing yet.";
  const told = series.map(({ name, values }) => {
    const known = values.filter((value) => value !== null && value !== undefined);
    if (known.length === 0) return `${name}: none`;
    const [low, high] = known.reduce(([least, most], value) => [value < least ? value : least, value > most ? value : most], [known[0], known[0]]);
    return `${name}: ${format(known.at(-1))} last, between ${format(low)} and ${format(high)}`;
  });
  return `${localText(times[0])} to ${localText(times.at(-1))}. ${told.join("; ")}.`;
}

function valueText(value, format) {
  return value === null || value === undefined ? "none" : format(value);
}
