/** Which isolation level a question is asked at. */

import { html } from "../../vendor/htm-preact-3.1.1.js";
import { setQuery } from "../../base/place.js";

/** Lets people choose it; it stands in the address. */
export function LevelChoice({ at }) {
  const choose = (event) => setQuery({ isolation_level: event.target.value });
  return html`<div class="field"><label for="level">Isolation level</label>
    <select id="level" value=${at.query.isolation_level ?? ""} onChange=${choose}>
      <option value="">the server's default</option>
      <option value="read_committed">read_committed</option>
      <option value="read_uncommitted">read_uncommitted</option>
    </select></div>`;
}
