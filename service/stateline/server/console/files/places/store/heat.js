/** Windows of keys as a heat map: a bar for each, darker where there is more, and what the shades stand for. */

import { html } from "../../vendor/htm-preact-3.1.1.js";
import { counted, countText } from "../../base/format.js";
import { numberAt } from "../../base/numbers.js";

const MOST = 0.98; // of the values: what an end of the shades is for, or one that is far beyond would leave all others faint

/**
 * `{names, bars, told, shades}` of the rows of these keys, for `Strips`: `shades` is `{low, high, isLowCut, isHighCut}`, the
 * numbers of the faintest and the darkest, and whether there are any beyond these; null for no rows.
 */
export function heatOf(rows, names, number) {
  const index = new Map(names.map((name, i) => [name, i]));
  const found = rows.flatMap((row) => {
    const value = index.has(row.keyText) ? numberAt(row.entry.value, number) : null;
    return value === null ? [] : [{ row, value }];
  });
  const shades = shadesOf(found.map(({ value }) => value));
  const bars = found.map(({ row, value }) => ({
    row: index.get(row.keyText),
    from: row.entry.start,
    to: row.entry.end,
    weight: weightOf(value, shades),
    text: countText(value),
  }));
  const told = shades === null ? "Nothing." : `${counted(bars.length, "window")} of ${counted(names.length, "key")}, from ${lowText(shades)}, faint, to ${highText(shades)}, dark.`;
  return { names, bars, told, shades };
}

/** From the least to the greatest value, but for a few at an end that are further away from the others than these are among themselves. */
function shadesOf(values) {
  if (values.length === 0) return null;
  const sorted = values.toSorted((one, other) => (one < other ? -1 : one > other ? 1 : 0)); // exact between large integers
  const few = sorted.length - Math.ceil(MOST * sorted.length);
  const [least, low, high, greatest] = [0, few, -1 - few, -1].map((at) => sorted.at(at));
  const span = Number(high) - Number(low);
  const isFar = (distance) => span > 0 && distance > span;
  const [isLowCut, isHighCut] = [isFar(Number(low) - Number(least)), isFar(Number(greatest) - Number(high))];
  return { low: isLowCut ? low : least, high: isHighCut ? high : greatest, isLowCut, isHighCut };
}

function weightOf(value, { low, high }) {
  const weight = (Number(value) - Number(low)) / (Number(high) - Number(low));
  return Number.isFinite(weight) ? Math.min(1, Math.max(0, weight)) : 1; // all are the same, or beyond what a number can be
}

function lowText({ low, isLowCut }) {
  return isLowCut ? `${countText(low)} or less` : countText(low);
}

function highText({ high, isHighCut }) {
  return isHighCut ? `${countText(high)} or more` : countText(high);
}

/** What the shades stand for; nothing when all are the same. */
export function Shades({ shades }) {
  if (shades === null || Number(shades.low) === Number(shades.high)) return null;
  return html`<p class="shades"><span>${lowText(shades)}</span><i></i><span>${highText(shades)}</span></p>`;
}
