/** Small tables and lists of facts. `grid.js` shows thousands of rows. */

import { html } from "../vendor/htm-preact-3.1.1.js";

/**
 * A table with a caption, which scrolls sideways. `rows` are `{id, cells, alert}`. Cells are texts or elements; the first is the row's
 * heading. `alert` is "bad", "warn" or missing.
 */
export function Table({ caption, columns, rows, captionHidden = false }) {
  return html`<div class="scroll" role="region" aria-label=${caption} tabindex="0">
    <table>
      <caption class=${captionHidden ? "unseen" : null}>${caption}</caption>
      <thead><tr>${columns.map((column) => html`<th scope="col" key=${column}>${column}</th>`)}</tr></thead>
      <tbody>${rows.map(
        ({ id, cells, alert }) => html`<tr key=${id} class=${alert ?? null}>
          ${cells.map((cell, i) => (i === 0 ? html`<th scope="row">${cell}</th>` : html`<td>${cell}</td>`))}
        </tr>`,
      )}</tbody>
    </table>
  </div>`;
}

/** Names with their values: `facts` are pairs, null is left out. */
export function Facts({ facts }) {
  const shown = facts.filter((fact) => fact !== null);
  return html`<dl>${shown.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

/** Shown for an empty list, with advice. */
export function Nothing({ children }) {
  return html`<p class="nothing">${children}</p>`;
}
