/** The numbers in values that can be drawn. */

import { html } from "../../vendor/htm-preact-3.1.1.js";
import { setQuery } from "../../base/place.js";

const WHOLE = ""; // the path that stands for the value itself
const MOST_DEPTH = 3;

/** The paths to numbers in these values, outermost first. */
export function numericPaths(values) {
  const found = new Set();
  for (const value of values) collect(value, WHOLE, found, 0);
  return [...found];
}

function collect(value, path, found, depth) {
  if (typeof value === "number" || typeof value === "bigint") found.add(path);
  if (value === null || typeof value !== "object" || depth === MOST_DEPTH) return;
  for (const [name, member] of Object.entries(value)) collect(member, path === WHOLE ? name : `${path}.${name}`, found, depth + 1);
}

/** The number at this path in a value, or null. */
export function numberAt(value, path) {
  if (path === undefined) return null;
  const kind = typeof value;
  if (path === WHOLE) return kind === "number" || kind === "bigint" ? Number(value) : null;
  if (value === null || kind !== "object") return null;
  // Names may have dots themselves: try each split.
  for (let dot = path.length; dot > 0; dot = path.lastIndexOf(".", dot - 1)) {
    const name = path.slice(0, dot);
    if (Object.hasOwn(value, name)) return numberAt(value[name], path.slice(dot + 1));
  }
  return null;
}

/** The path that is drawn: the one that the address names, or the first; undefined when there is none. */
export function chosenPath(paths, at) {
  return paths.includes(at.query.number) ? at.query.number : paths[0];
}

/** Lets people choose it. */
export function NumberChoice({ paths, at }) {
  if (paths.length === 0) return html`<p class="hint">These values have no number to draw: what they are is in the table.</p>`;
  const choose = (event) => setQuery({ number: event.target.value });
  return html`<div class="field"><label for="number">Drawn</label>
    <select id="number" value=${chosenPath(paths, at)} onChange=${choose}>
      ${paths.map((path) => html`<option key=${path} value=${path}>${path || "the value"}</option>`)}
    </select></div>`;
}
