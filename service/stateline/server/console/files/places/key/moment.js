/** The value of a key at a time, at both isolation levels, and the changes since another version. */

import { html, useRef } from "../../vendor/htm-preact-3.1.1.js";
import { localText } from "../../base/format.js";
import { compact } from "../../base/json.js";
import { addressOf } from "../../base/place.js";
import { Nothing } from "../../parts/table.js";
import { Copy, Time, Value } from "../../parts/value.js";
import { Diff } from "./diff.js";
import { Compared, Level, LEVELS } from "./level.js";

/** `old` and `young` are the levels' results from `useAnswer`. A value keeps its own time while another time is loading. */
export function Moment({ old, young, asOf, versions, at }) {
  const last = useRef(null);
  const isAsking = old.isOld || young.isOld;
  if (!isAsking || last.current === null) last.current = { old, young, asOf };
  const shown = last.current;
  const body = shown.old.answer?.body;
  return html`<section aria-labelledby="moment-title">
    <h3 id="moment-title">${shown.asOf === null ? "The newest" : html`As of <${Time} ms=${shown.asOf} withUtc />`}</h3>
    <p role="status">${isAsking && `Asking for ${asOf === null ? "the newest" : localText(asOf)} …`}</p>
    <${Compared} old=${body} young=${shown.young.answer?.body} absent="no value" />
    <div class="cards">
      <${Level} name=${LEVELS[0]} known=${shown.old}><${Version} answer=${shown.old.answer} /><//>
      <${Level} name=${LEVELS[1]} known=${shown.young}><${Version} answer=${shown.young.answer} /><//>
      ${body?.found && html`<${Since} body=${body} versions=${versions} at=${at} />`}
    </div>
  </section>`;
}

function Version({ answer }) {
  if (!answer) return null;
  const { found, value, timestamp, valid_to: end } = answer.body;
  if (!found) return html`<${Nothing}>No value at that time: the key was not there yet, or was deleted. Go to an earlier or later change.<//>`;
  return html`<div class="value"><${Value} value=${value} /></div>
    <p class="buttons"><${Copy} text=${() => compact(value)} label="Copy value" />
      <span>Valid from <${Time} ms=${timestamp} withUtc />${end === null ? ", still" : html` to <${Time} ms=${end} withUtc />`}</span></p>`;
}

/** The changes since the version before, or since `compare` of the address. */
function Since({ body, versions, at }) {
  const { compare } = at.query;
  const other = compare === undefined ? versions.findLast(({ timestamp }) => timestamp < body.timestamp) : versions.find(({ timestamp }) => String(timestamp) === compare);
  return html`<section class="card" aria-labelledby="since-title">
    <h3 id="since-title">${other === undefined ? "What changed" : html`What changed since the version of <${Time} ms=${other.timestamp} />`}</h3>
    ${other === undefined ? html`<p>No older version is listed below. Choose another version to compare with.</p>`
    : html`<${Diff} before=${other.value} after=${body.value} caption="Members that differ" />`}
    ${compare !== undefined && html`<p><a href=${addressOf({ ...at, query: { ...at.query, compare: "" } })}>Compare with the version before instead</a></p>`}
  </section>`;
}
