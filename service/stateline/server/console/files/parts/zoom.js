/** The period that charts are zoomed to: `zoom` of the address, `FROM..TO` in ms since the epoch. */

import { html } from "../vendor/htm-preact-3.1.1.js";
import { localText } from "../base/format.js";
import { setQuery } from "../base/place.js";

/** Return `{from, to}` of an address; null for all. */
export function zoomOf({ zoom = "" }) {
  const [from, to] = (/^(-?\d+)\.\.(-?\d+)$/.exec(zoom) ?? []).slice(1).map(Number);
  return from < to ? { from, to } : null;
}

/** Zoom to `{from, to}`, or to all if null. Back undoes it. */
export function setZoom(zoom) {
  if (zoom === null) return setQuery({ zoom: null });
  const from = Math.round(zoom.from);
  return setQuery({ zoom: `${from}..${Math.max(from + 1, Math.round(zoom.to))}` });
}

/** Shows the zoomed period, with a button to reset it without a mouse. */
export function Zoomed({ zoom }) {
  if (zoom === null) return null;
  return html`<div class="buttons">
    <p role="status">Zoomed to ${localText(zoom.from)} until ${localText(zoom.to)}.</p>
    <button type="button" onClick=${() => setZoom(null)}>Show all</button>
  </div>`;
}
