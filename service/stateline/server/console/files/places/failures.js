/** The newest dead letters, each with the record that caused it. */

import { html, useState } from "../vendor/htm-preact-3.1.1.js";
import { useAnswer } from "../base/answer.js";
import { countText } from "../base/format.js";
import { compact } from "../base/json.js";
import { setQuery } from "../base/place.js";
import { Failure } from "../parts/problem.js";
import { Nothing } from "../parts/table.js";
import { Counts } from "./failures/counts.js";
import { Letter } from "./failures/letter.js";

const MOST = 50;

export function Failures({ at }) {
  const [asked, setAsked] = useState(0);
  const { body: answer, failure } = useAnswer(`v1/console/failures?limit=${MOST}`, 0, { timeoutMs: 10_000, inputs: [asked] });
  return html`
    <${Counts} asked=${asked} />
    ${failure && html`<${Failure} error=${failure} />`}
    ${answer === null && !failure && html`<p role="status">Loading …</p>`}
    ${answer !== null && html`<${Answer} answer=${answer} find=${at.query.find ?? ""} onAgain=${() => setAsked(asked + 1)} />`}`;
}

function Answer({ answer, find, onAgain }) {
  const { topic, records } = answer;
  if (topic === null) return html`<${NoTopic} />`;
  const found = records.filter((record) => isLike(record, find));
  return html`
    <form role="search" onSubmit=${(event) => event.preventDefault()}>
      <div class="field"><label for="find">Find</label>
        <input id="find" type="search" autocomplete="off" spellcheck="false" value=${find} onInput=${(event) => setQuery({ find: event.target.value }, { replace: true })} /></div>
      <button type="button" onClick=${onAgain}>Read again</button>
      <p role="status" class="hint">${countText(found.length)} of the newest ${countText(records.length)} in <code>${topic}</code></p>
    </form>
    ${records.length === 0 && html`<${Nothing}>Nothing has failed: <code>${topic}</code> is empty.<//>`}
    ${records.length > 0 && found.length === 0 && html`<${Nothing}>No record matches. <code>stateline consume --dead-letters</code> reads older ones.<//>`}
    <ul class="letters">${found.map((record, i) => html`<${Letter} key=${`${record.topic}-${record.partition}@${record.offset}/${record.at_ms}/${i}`} record=${record} />`)}</ul>`;
}

function NoTopic() {
  return html`<${Nothing}>No dead-letter topic is set, so failed records are not kept. To keep them, make a topic, for example <code>failed</code>. Run the workers with
    <code>--set errors.dead.letter.queue.topic.name=failed</code>, <code>--set deserialization.exception.handler=dead-letter</code> and
    <code>--set processing.exception.handler=dead-letter</code>, and this server with the first of these.<//>`;
}

function isLike(record, text) {
  const all = compact(record).toLowerCase();
  return text.toLowerCase().split(/\s+/).every((word) => all.includes(word));
}
