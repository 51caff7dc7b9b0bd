/** How long a snapshot is kept. */

import { html } from "../../vendor/htm-preact-3.1.1.js";

/** Seconds, and their text. */
export const LEASES = [[300, "5 minutes"], [900, "15 minutes"], [3600, "an hour"], [14_400, "4 hours"], [86_400, "a day"]]; // prettier-ignore

/** A field `ttl_s` of a form. */
export function Lease({ id, label, value }) {
  return html`<div class="field"><label for=${id}>${label}</label>
    <select id=${id} name="ttl_s" defaultValue=${value}>${LEASES.map(([seconds, name]) => html`<option key=${seconds} value=${seconds} selected=${seconds === value}>${name}</option>`)}</select></div>`;
}
