/** The pipelines: progress, rate and last error of each. */

import { html } from "../vendor/htm-preact-3.1.1.js";
import { countText, durationText } from "../base/format.js";
import { isAmiss, stateText } from "../base/health.js";
import { ageMs } from "../base/look.js";
import { Facts, Nothing } from "../parts/table.js";

const STEPS_OF_SPARK = ["addBatch"]; // the sink's own steps are parts of it

export function Pipelines({ look }) {
  if (!look.known) return null;
  const all = Object.entries(look.pipelines);
  if (all.length === 0) {
    return html`<${Nothing}>This application has no pipelines: <code>app.pipeline(reads=topic, writes="…", key="…")</code> makes one from a function over Spark's data frames.<//>`;
  }
  return html`<ul class="cards live">${all.map(([name, pipeline]) => html`<${Card} key=${name} name=${name} pipeline=${pipeline} />`)}</ul>`;
}

function Card({ name, pipeline }) {
  const { status } = pipeline;
  const facts = [
    ["From", [...pipeline.reads, ...pipeline.tables, ...pipeline.static].join(", ")],
    ["To", [pipeline.writes, ...pipeline.branches].join(", ")],
    ["State", stateText(status)],
    ["Lag", lagText(status)],
    ["Micro-batch", batchText(status)],
    ["Rows", rowsText(status)],
    ["Longest step", stepText(status)],
    ["Restarts", status === null ? "unknown" : countText(status.restarts)],
  ];
  return html`<li class=${`card ${isAmiss(status) ? "bad" : ""}`}>
    <h2>${name}</h2>
    <${Facts} facts=${facts} />
    ${status?.last_error && html`<p class="note">${durationText(ageMs(status.last_error_at_ms))} ago: ${status.last_error}</p>`}
  </li>`;
}

function lagText(status) {
  if (status === null || status.lag === null) return "unknown";
  const behind = Object.entries(status.lag_by_topic).filter(([, records]) => records > 0);
  return behind.map(([topic, records]) => `${topic} ${countText(records)}`).join(", ") || "0";
}

function batchText(status) {
  if (status === null || status.batch_at_ms === null) return "none yet";
  return `${status.batch_id} in ${durationText(status.duration_ms)}, ${durationText(ageMs(status.batch_at_ms))} ago`;
}

function rowsText(status) {
  if (status === null) return "unknown";
  const { rows_in: rowsIn, rows_out: rowsOut, skipped, dead_lettered: deadLettered } = status.totals;
  const parts = [`${countText(rowsIn ?? 0)} in`, `${countText(rowsOut ?? 0)} out`];
  if (skipped > 0) parts.push(`${countText(skipped)} left out`);
  if (deadLettered > 0) parts.push(`${countText(deadLettered)} to dead letters`);
  return parts.join(", ");
}

function stepText(status) {
  const steps = Object.entries(status?.steps_ms ?? {}).filter(([step]) => !STEPS_OF_SPARK.includes(step));
  if (steps.length === 0) return "unknown";
  const [step, longestMs] = steps.reduce((one, other) => (other[1] > one[1] ? other : one));
  return `${step}, ${durationText(longestMs)}`;
}
