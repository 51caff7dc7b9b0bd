/** The differences between two values, member by member. */

import { html } from "../../vendor/htm-preact-3.1.1.js";
import { compact } from "../../base/json.js";
import { isNumeric } from "../../base/numbers.js";
import { Table } from "../../parts/table.js";
import { shortText } from "../../parts/value.js";

const MOST_SHOWN = 100;
const IN_LINE = 3;

/** Return `[{path, before, after}]` of the members that differ. A missing side is undefined. */
export function differences(before, after, path = "") {
  if (before === after || (before !== undefined && after !== undefined && compact(before) === compact(after))) return [];
  if (!isParent(before) || !isParent(after) || Array.isArray(before) !== Array.isArray(after)) return [{ path, before, after }];
  const names = [...new Set([...Object.keys(before), ...Object.keys(after)])];
  return names.flatMap((name) => differences(own(before, name), own(after, name), path === "" ? name : `${path}.${name}`));
}

/** The differences as a table, in the order of the values. */
export function Diff({ before, after, caption }) {
  const all = differences(before, after);
  if (all.length === 0) return html`<p>Nothing changed.</p>`;
  const rows = all.slice(0, MOST_SHOWN).map(({ path, before: old, after: young }) => ({
    id: path,
    cells: [path || "the value", old === undefined ? html`<span class="muted">not there</span>` : shortText(old), html`<${After} value=${young} />`],
  }));
  return html`<${Table} caption=${caption} columns=${["Member", "Before", "After"]} rows=${rows} />
    ${all.length > MOST_SHOWN && html`<p>And ${all.length - MOST_SHOWN} more.</p>`}`;
}

function After({ value }) {
  return value === undefined ? html`<span class="muted">gone</span>` : html`<span class="changed">${shortText(value)}</span>`;
}

/** The differences in one line, for a cell. */
export function ShortDiff({ before, after }) {
  const all = differences(before, after);
  if (all.length === 0) return html`<span class="muted">nothing</span>`;
  return html`<ul class="short-diff">${all.slice(0, IN_LINE).map(
      ({ path, before: old, after: young }) => html`<li key=${path}>${path && `${path}: `}${old === undefined ? "" : `${shortText(old, 40)} → `}<${After} value=${young} /></li>`,
    )}${all.length > IN_LINE && html`<li>and ${all.length - IN_LINE} more</li>`}</ul>`;
}

function isParent(value) {
  return value !== null && typeof value === "object" && !isNumeric(value);
}

function own(value, name) {
  return Object.hasOwn(value, name) ? value[name] : undefined;
}
