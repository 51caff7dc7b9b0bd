/** An answer in a sentence, the state that it reflects, and failed partitions. */

import { html } from "../vendor/htm-preact-3.1.1.js";
import { counted, durationText, localText, positionText } from "../base/format.js";
import { Failure } from "./problem.js";
import { Table } from "./table.js";

/** The rows of an answer: its entries, or the answer about one key. */
export function entriesOf(body) {
  if (body.entries) return body.entries;
  return "found" in body ? [{ found: body.found, key: body.key, key_text: body.key_text, value: body.value, timestamp: body.timestamp, headers: body.headers, valid_to: body.valid_to }] : null;
}

/** A sentence about an answer, announced to screen readers except while a question is repeated. */
export function Summary({ seen, everyS, isComplete }) {
  const { answer, atMs, asking, failure, failedAtMs } = seen;
  const said = () => {
    if (!isComplete) return "Enter a key, then ask.";
    if (asking && (everyS === 0 || answer === null)) return "Asking …";
    if (failure !== null) return everyS > 0 ? `No answer at ${clock(failedAtMs)}. The last answer is still shown. Trying again.` : "There is no answer.";
    return answer === null ? "" : sentence(answer);
  };
  return html`
    <p id="summary" role="status" aria-live=${everyS > 0 && failure === null ? "off" : "polite"}>${said()}</p>
    ${failure !== null && !asking && html`<${Failure} error=${failure} />`}
    ${answer !== null && html`<${Reflects} body=${answer.body} atMs=${atMs} />`}`;
}

function sentence({ body, status, elapsedMs }) {
  const took = `Status ${status}, ${durationText(elapsedMs)}.`;
  if (body.entries) return `${counted(body.entries.length, "entry", "entries")}${body.cursor ? ", more to come" : ""}. ${took}`;
  if (body.found === false) return `There is no such key. ${took}`;
  if (body.exact_entries !== undefined) return `${counted(body.exact_entries, "entry", "entries")}. ${took}`;
  return `Answered. ${took}`;
}

/** The state that an answer reflects, and its missing partitions. */
export function Reflects({ body, atMs }) {
  const failures = Object.entries(body.failures ?? {});
  const rows = failures.map(([partition, failure]) => ({ id: partition, alert: "bad", cells: [partition, failure.reason, failure.detail ?? ""] }));
  return html`
    ${body.position && html`<p class="note">Read at <code>${body.isolation_level}</code>, up to ${positionText(body.position)}, asked at ${clock(atMs)}.</p>`}
    ${rows.length > 0 && html`<${Table} caption="Partitions that failed" columns=${["Partition", "Reason", "What to do"]} rows=${rows} />`}`;
}

/** The positions of a `position` query by partition. */
export function Positions({ body: { committed, uncommitted } }) {
  const numbers = [...new Set([...Object.keys(committed), ...Object.keys(uncommitted)])];
  const rows = numbers.map((number) => ({ id: number, cells: [number, positionText(committed[number]), positionText(uncommitted[number])] }));
  return html`<${Table} caption="Positions" columns=${["Partition", "Committed", "Uncommitted"]} rows=${rows} />`;
}

export function clock(ms) {
  return localText(Math.floor(ms / 1000) * 1000).slice(11);
}
