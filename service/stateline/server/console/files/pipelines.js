/** The cards of the pipelines: how far each is, how quickly it gets on, and what went wrong last. Updated in place. */

import { byId, countText, durationText, element, setText } from "./elements.js";

const FACTS = ["From", "To", "State", "Lag", "Micro-batch", "Rows", "Longest step", "Restarts"];
const STEPS_OF_SPARK = ["addBatch"]; // the sink's own steps are parts of it

export class PipelineList {
  constructor() {
    this.cards = new Map();
  }

  show(live) {
    const names = Object.keys(live.pipelines);
    byId("pipelines").hidden = names.length === 0;
    byId("pipelines-link").hidden = names.length === 0;
    if (names.join("\n") !== [...this.cards.keys()].join("\n")) this.build(names);
    for (const name of names) this.fill(name, live.pipelines[name], live);
  }

  build(names) {
    this.cards = new Map(names.map((name) => [name, this.card(name)]));
    byId("pipeline-list").replaceChildren(...[...this.cards.values()].map((card) => card.item));
  }

  card(name) {
    const facts = FACTS.map((fact) => [element("dt", {}, fact), element("dd", {})]);
    const note = element("p", { class: "note" });
    const list = element("dl", {}, ...facts.map((pair) => element("div", {}, ...pair)));
    const item = element("li", { class: "card" }, element("h3", {}, name), list, note);
    return { item, facts: facts.map(([, dd]) => dd), note };
  }

  fill(name, pipeline, live) {
    const { item, facts, note } = this.cards.get(name);
    const { status } = pipeline;
    const texts = [
      [...pipeline.reads, ...pipeline.tables, ...pipeline.static].join(", "),
      [pipeline.writes, ...pipeline.branches].join(", "),
      stateText(status, live),
      lagText(status),
      batchText(status, live),
      rowsText(status),
      stepText(status),
      status === null ? "unknown" : countText(status.restarts),
    ];
    texts.forEach((text, i) => setText(facts[i], text));
    item.classList.toggle("bad", status !== null && ["failed", "restarting", "not running"].includes(status.state));
    setText(note, errorText(status, live));
  }
}

function stateText(status, live) {
  if (status === null) return "not running here";
  const state = status.node === undefined ? status.state : `${status.state} on ${status.node}`;
  if (status.next_start_at_ms === null) return state;
  return `${state} in ${durationText(Math.max(0, -live.elapsedMs(status.next_start_at_ms)))}`;
}

function lagText(status) {
  if (status === null || status.lag === null) return "unknown";
  const behind = Object.entries(status.lag_by_topic).filter(([, records]) => records > 0);
  const parts = behind.map(([topic, records]) => `${topic} ${countText(records)}`);
  return parts.join(", ") || "0";
}

function batchText(status, live) {
  if (status === null || status.batch_at_ms === null) return "none yet";
  return `${status.batch_id} in ${durationText(status.duration_ms)}, ${durationText(live.ageMs(status.batch_at_ms))} ago`;
}

function rowsText(status) {
  if (status === null) return "unknown";
  const parts = [`${countText(status.totals.rows_in ?? 0)} in`, `${countText(status.totals.rows_out ?? 0)} out`];
  for (const [member, words] of [["skipped", "left out"], ["dead_lettered", "to dead letters"]]) {
    if (status.totals[member] > 0) parts.push(`${countText(status.totals[member])} ${words}`);
  }
  return parts.join(", ");
}

function stepText(status) {
  const steps = Object.entries(status?.steps_ms ?? {}).filter(([step]) => !STEPS_OF_SPARK.includes(step));
  if (steps.length === 0) return "unknown";
  const [step, longestMs] = steps.reduce((one, other) => (other[1] > one[1] ? other : one));
  return `${step}, ${durationText(longestMs)}`;
}

function errorText(status, live) {
  if (!status?.last_error) return "";
  return `${durationText(live.ageMs(status.last_error_at_ms))} ago: ${status.last_error}`;
}
