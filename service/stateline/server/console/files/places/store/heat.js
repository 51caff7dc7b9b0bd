/** Windows of keys as a heat map: a bar for each, darker where there is more, and what the shades stand for. */

import { html } from "../../vendor/htm-preact-3.1.1.js";
import { counted, countText } from "../../base/format.js";
import { numberAt } from "../../base/numbers.js";

const SHADED = 0.98; // of the values: one that is far beyond the others would leave them all faint

/**
 * `{names, bars, told, shades}` of the rows of these keys, for `Strips`: `shades` is `{low, high, isCut}`, the numbers of the
 * faintest and the darkest, and whether there are any beyond these; null for no rows.
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

function shadesOf(values) {
  if (values.length === 0) return null;
  const sorted = values.toSorted((one, other) => Number(one) - Number(other));
  const beyond = sorted.length - Math.ceil(SHADED * sorted.length);
  const [low, high] = [sorted[beyond], sorted.at(-1 - beyond)];
  return { low, high, isCut: Number(sorted[0]) < Number(low) || Number(high) < Number(sorted.at(-1)) };
}

function weightOf(value, { low, high }) {
  const span = Number(high) - Number(low);
  return span > 0 ? Math.min(1, Math.max(0, (Number(value) - Number(low)) / span)) : 1;
}

function lowText({ low, isCut }) {
  return isCut ? `${countText(low)} or less` : countText(low);
}

function highText({ high, isCut }) {
  return isCut ? `${countText(high)} or more` : countText(high);
}

/** What the shades stand for; nothing when all are the same. */
export function Shades({ shades }) {
  if (shades === null || Number(shades.low) === Number(shades.high)) return null;
  return html`<p class="shades"><span>${lowText(shades)}</span><i></i><span>${highText(shades)}</span></p>`;
}
