/** A result over time: a line for each number, or for each value of another column. */

import { html, useMemo } from "../../vendor/htm-preact-3.1.1.js";
import { countText } from "../../base/format.js";
import { shown } from "../../base/json.js";
import { numberAt, numbersIn } from "../../base/numbers.js";
import { setQuery } from "../../base/place.js";
import { Chart } from "../../parts/chart.js";
import { Zoomed, zoomOf } from "../../parts/zoom.js";

const MOST_LINES = 8; // distinguishable colours
const MOST_NAMED = 3;
const TIME = /^(timestamp|date)/;
const NAIVE = /^timestamp\[\w+\]$/; // without a zone: UTC, as in the engine
const PLAIN = /^(string|bool|u?int|dictionary)/;

/** `{times, numbers}`: columns with times, and numbers in the rows, also in JSON. Null if there is nothing to draw. */
export function drawableOf(rows, columns) {
  const times = columns.filter(({ type }) => TIME.test(type));
  const numbers = times.length === 0 ? [] : numbersIn(rows.map(({ entry }) => entry.value));
  return numbers.length === 0 ? null : { times, numbers };
}

export function SqlChart({ rows, columns, drawable: { times, numbers }, query }) {
  const time = times.find(({ id }) => id === query.time) ?? times[0];
  const points = useMemo(() => pointsOf(rows, time), [rows, time]);
  const names = columns.filter(({ id, type }) => PLAIN.test(type) && id !== time.id);
  const by = query.by === undefined ? usualBy(points, names) : names.find(({ id }) => id === query.by);
  const number = numbers.find(({ id }) => id === query.number) ?? (by && (numbers.find(({ id }) => id !== by.id) ?? numbers[0]));
  const { at, series, left } = useMemo(() => (by ? linesBy(points, by, number) : linesOf(points, number ? [number] : numbers)), [points, by?.id, number?.id]);
  const label = by ? `${number.id} by ${by.id}` : series.length > MOST_NAMED ? "Numbers" : series.map(({ name }) => name).join(", ");
  return html`
    <div class="buttons">
      <${Choice} label="Time" name="time" value=${time.id} all=${times} />
      <${Choice} label="Lines" name="by" value=${by?.id ?? NONE} all=${names} first=${[NONE, "a number each"]} />
      <${Choice} label="Number" name="number" value=${number?.id ?? ""} all=${numbers} first=${by ? null : ["", "all"]} />
    </div>
    <${Zoomed} zoom=${zoomOf(query)} />
    <${Chart} label=${label} times=${at} series=${series} height=${280} zoom=${zoomOf(query)} />
    ${left > 0 && html`<p class="note">These are ${MOST_LINES} of ${countText(MOST_LINES + left)} lines${by ? ", those with the largest sums" : ""}.</p>`}
    ${points.length < rows.length && html`<p class="note">${countText(rows.length - points.length)} of ${countText(rows.length)} rows have no time to draw.</p>`}`;
}

const NONE = "\u2400"; // an address omits empty values

function Choice({ label, name, value, all, first = null }) {
  const options = [...(first === null ? [] : [first]), ...all.map(({ id }) => [id, id])];
  return html`<label class="watch">${label} <select value=${value} onChange=${(event) => setQuery({ [name]: event.target.value })}>
    ${options.map(([each, text]) => html`<option key=${each} value=${each}>${text}</option>`)}</select></label>`;
}

/** `{ms, value}` of the rows with a time, oldest first. */
function pointsOf(rows, { id, type }) {
  const points = rows.map(({ entry: { value } }) => ({ ms: Date.parse(NAIVE.test(type) ? `${value[id]}Z` : value[id]), value }));
  return points.filter(({ ms }) => !Number.isNaN(ms)).toSorted((one, other) => one.ms - other.ms);
}

/** The first text column, if several rows have the same time. */
function usualBy(points, names) {
  const repeat = points.some(({ ms }, i) => i > 0 && points[i - 1].ms === ms);
  return repeat ? names.find(({ type }) => type === "string") : undefined;
}

function linesOf(points, numbers) {
  const series = numbers.slice(0, MOST_LINES).map((number) => ({ name: number.id, kind: "line", values: points.map(({ value }) => numberAt(value, number)) }));
  return { at: points.map(({ ms }) => ms), series, left: Math.max(0, numbers.length - MOST_LINES) };
}

function linesBy(points, by, number) {
  const at = [...new Set(points.map(({ ms }) => ms))];
  const index = new Map(at.map((ms, i) => [ms, i]));
  const lines = [...Map.groupBy(points, ({ value }) => shown(value[by.id]))].map(([name, of]) => {
    const values = at.map(() => null);
    for (const { ms, value } of of) values[index.get(ms)] = numberAt(value, number);
    return { name, kind: "line", values, sum: values.reduce((sum, value) => sum + Math.abs(Number(value ?? 0)), 0) };
  });
  lines.sort((one, other) => other.sum - one.sum);
  return { at, series: lines.slice(0, MOST_LINES), left: Math.max(0, lines.length - MOST_LINES) };
}
