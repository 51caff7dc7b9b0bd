/** Why a statement has no answer. */

import { html } from "../../vendor/htm-preact-3.1.1.js";
import { placeOf } from "../../base/statement.js";
import { Failure } from "../../parts/problem.js";
import { Nothing } from "../../parts/table.js";
import { Copy } from "../../parts/value.js";

/** Whether the server has no engine. */
export function isMissing(failure) {
  return failure?.status === 501;
}

export function NotInstalled({ error }) {
  const command = /`(.+)`/.exec(error.message)?.[1];
  return html`<${Nothing}>${error.message.replaceAll("`", "")} Then start the server again.
    ${command && html` <${Copy} text=${command} label="Copy the command" />`}<//>`;
}

/** The error of this statement. `onPlace` gets the place that it names. */
export function Trouble({ error, sql, onPlace }) {
  const { message, drawn, place } = placeOf(error.message, sql);
  return html`<${Failure} error=${error} message=${message}>
    ${drawn && html`<pre role="region" aria-label="The place in the statement" tabindex="0">${drawn}</pre>`}
    ${place && html`<p><button type="button" onClick=${() => onPlace(place)}>To line ${place.line}, column ${place.column}</button></p>`}
  <//>`;
}
