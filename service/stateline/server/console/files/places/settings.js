/** The settings of this server: value, origin and purpose. */

import { html } from "../vendor/htm-preact-3.1.1.js";
import { useAnswer } from "../base/answer.js";
import { countText } from "../base/format.js";
import { shown } from "../base/json.js";
import { setQuery } from "../base/place.js";
import { Failure } from "../parts/problem.js";
import { Nothing, Table } from "../parts/table.js";

const DEFAULT = "default";

export function Settings({ at }) {
  const { body, failure } = useAnswer("v1/console/settings", 0);
  if (failure) return html`<${Failure} error=${failure} />`;
  if (body === null) return html`<p role="status">Loading …</p>`;
  const { settings } = body;
  const { find = "", only = "" } = at.query;
  const found = settings.filter((setting) => isLike(setting, find) && (only === "" || setting.origin !== DEFAULT));
  const rows = found.map(({ name, value, origin, about }) => ({
    id: name,
    cells: [html`<code>${name}</code>`, html`<code>${value === null ? "none" : shown(value)}</code>`, origin === DEFAULT ? html`<span class="muted">${origin}</span>` : origin, about],
  }));
  return html`
    <form role="search" onSubmit=${(event) => event.preventDefault()}>
      <div class="field"><label for="find">Find</label>
        <input id="find" type="search" autocomplete="off" spellcheck="false" value=${find} onInput=${(event) => setQuery({ find: event.target.value }, { replace: true })} /></div>
      <label class="check"><input type="checkbox" checked=${only !== ""} onChange=${(event) => setQuery({ only: event.target.checked ? "set" : "" })} />Only those that are not the default</label>
      <p role="status" class="hint">${countText(found.length)} of ${countText(settings.length)}</p>
    </form>
    ${found.length === 0
      ? html`<${Nothing}>No setting matches. ${only !== "" && find === "" ? "All settings have their defaults. A file, the environment or --set changes them." : "Search for a part of a name, a value or a description."}<//>`
      : html`<${Table} caption="Settings" captionHidden columns=${["Name", "Value", "Set by", "What for"]} rows=${rows} />`}`;
}

function isLike({ name, value, origin, about }, text) {
  const all = `${name} ${value === null ? "none" : shown(value)} ${origin} ${about}`.toLowerCase();
  return text.toLowerCase().split(/\s+/).every((word) => all.includes(word));
}
