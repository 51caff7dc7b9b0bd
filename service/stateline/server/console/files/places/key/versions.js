/** A key of a versioned store: its value at any time, and what changed when. */

import { html, useEffect, useRef, useState } from "../../vendor/htm-preact-3.1.1.js";
import { localText, utcText } from "../../base/format.js";
import { compact } from "../../base/json.js";
import { addressOf, setQuery } from "../../base/place.js";
import { requestFor } from "../../base/queries.js";
import { Failure } from "../../parts/problem.js";
import { Nothing } from "../../parts/table.js";
import { Copy, shortText, Time, Value } from "../../parts/value.js";
import { useAnswer } from "../../parts/watch.js";
import { Origin } from "./asked.js";
import { Diff } from "./diff.js";
import { LevelChoice } from "./level.js";
import { chosenPath, numberAt, NumberChoice, numericPaths } from "./numbers.js";
import { Spans } from "./spans.js";
import { TimeForm, timeOf } from "./time_form.js";
import { VersionTable } from "./version_table.js";

const MOST_VERSIONS = 500;
const SETTLE_MS = 120; // of the slider, before the server is asked

export function Versions({ store, at, everyS, again, onMain }) {
  const level = { isolation_level: at.query.isolation_level };
  const asOf = timeOf(at.query.as_of);
  const all = useAnswer(requestFor(store, "versions", { key: at.key, order: "desc", limit: String(MOST_VERSIONS), ...level }), everyS, `${again}`);
  const request = requestFor(store, "versioned_key", { key: at.key, as_of: asOf ?? "", ...level });
  const known = useAnswer(request, everyS, `${again} ${request.path}`);
  const versions = (all.answer?.body.entries ?? []).toReversed();
  const newest = versions.at(-1);
  const entries = newest?.valid_to === null ? [newest] : [];
  useEffect(() => onMain({ request, answer: known.answer, failure: known.failure, entries }), [known.answer, known.failure, all.answer]);
  const paths = numericPaths(versions.map(({ value }) => value));
  return html`<section aria-labelledby="versions-title">
    <h2 id="versions-title">Value at a time</h2>
    <${TimeForm} fields=${[{ name: "as_of", label: "As of", given: at.query.as_of, empty: "the newest when empty" }]} button="Show" onTimes=${setQuery}>
      <${LevelChoice} at=${at} />
      ${versions.length > 0 && html`<${NumberChoice} paths=${paths} at=${at} />`}
    <//>
    ${(all.failure ?? known.failure) && html`<${Failure} error=${all.failure ?? known.failure} />`}
    ${!all.answer && !all.failure && html`<p role="status">Loading …</p>`}
    ${all.answer && versions.length === 0 && html`<${Nothing}>This key has no versions: it was never written, or its history is over, as the store forgets what is older than its retention.<//>`}
    ${versions.length > 0 && html`<${Slider} versions=${versions} asOf=${asOf} path=${chosenPath(paths, at)} more=${Boolean(all.answer.body.cursor)} label=${at.key} />`}
    ${known.answer && html`<${Moment} known=${known} versions=${versions} at=${at} />`}
    ${versions.length > 0 && html`<${VersionTable} versions=${versions} shown=${known.answer?.body.found ? known.answer.body.timestamp : null} at=${at} />`}
  </section>`;
}

/** The versions as steps, and a slider below them over the same time; `as_of` of the address follows it. */
function Slider({ versions, asOf, path, more, label }) {
  const [dragged, setDragged] = useState(null); // where the slider is until the address has it
  const timer = useRef(null);
  useEffect(() => setDragged(null), [asOf]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const ends = versions.map(({ valid_to: end }) => end).filter((end) => end !== null);
  const changes = [...new Set([...versions.map(({ timestamp }) => timestamp), ...ends])].sort((a, b) => a - b);
  const from = changes[0];
  const span = Math.max(1, changes.at(-1) - from);
  const to = from + span + Math.ceil(span / 20); // a little further, so that what came of the last change can be seen
  const now = dragged ?? asOf ?? to;
  const drag = (event) => {
    const ms = Math.round(Number(event.target.value));
    setDragged(ms);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setQuery({ as_of: ms }, { replace: true }), SETTLE_MS);
  };
  const [before, after] = [changes.findLast((ms) => ms < now), changes.find((ms) => ms > now)];
  const jump = (ms) => ms !== undefined && setQuery({ as_of: ms });
  const spans = versions.map(({ timestamp, valid_to: end, value }) => ({
    from: timestamp,
    to: end ?? to,
    number: numberAt(value, path),
    name: `From ${localText(timestamp)}: ${shortText(value)}`,
  }));
  return html`
    <p>${more ? "The newest " : ""}${versions.length} ${versions.length === 1 ? "version" : "versions"}, from ${localText(from)}.</p>
    <${Spans} label=${`${path || "Versions"} of ${label} over time`} steps spans=${spans} from=${from} to=${to} at=${Math.min(to, Math.max(from, now))} onPick=${(picked) => jump(picked.from)}>
      <input type="range" aria-label="As of" min=${from} max=${to} step="any" value=${now} aria-valuetext=${`${localText(now)}, ${utcText(now)}`} onInput=${drag} />
    <//>
    <div class="buttons jumps">
      <button type="button" aria-disabled=${before === undefined ? "true" : null} onClick=${() => jump(before)}>Earlier change</button>
      <button type="button" aria-disabled=${after === undefined ? "true" : null} onClick=${() => jump(after)}>Later change</button>
      <button type="button" aria-disabled=${asOf === null ? "true" : null} onClick=${() => setQuery({ as_of: "" })}>Newest</button>
    </div>`;
}

/** The value then, and what changed since another version: the one before, or the one of `compare` in the address. */
function Moment({ known, versions, at }) {
  const { body } = known.answer;
  const { compare } = at.query;
  const other = compare === undefined ? versions.findLast(({ timestamp }) => timestamp < body.timestamp) : versions.find(({ timestamp }) => String(timestamp) === compare);
  const asOf = timeOf(at.query.as_of);
  return html`<div class="cards">
    <section class="card" aria-labelledby="moment-title">
      <h3 id="moment-title">${asOf === null ? "The newest" : html`As of <${Time} ms=${asOf} withUtc />`}</h3>
      ${body.found ? html`<div class="value"><${Value} value=${body.value} /></div>
        <p class="buttons"><${Copy} text=${() => compact(body.value)} label="Copy value" />
          <span>Valid from <${Time} ms=${body.timestamp} />${body.valid_to === null ? ", still" : html` to <${Time} ms=${body.valid_to} />`}</span></p>`
      : html`<${Nothing}>No value at that time: the key was not there yet, or was deleted. Go to an earlier or later change.<//>`}
      <${Origin} answer=${known.answer} atMs=${known.atMs} />
    </section>
    ${body.found && html`<section class="card" aria-labelledby="since-title">
      <h3 id="since-title">${other === undefined ? "What changed" : html`What changed since the version of <${Time} ms=${other.timestamp} />`}</h3>
      ${other === undefined ? html`<p>No older version is listed below: compare it with one that is.</p>`
      : html`<${Diff} before=${other.value} after=${body.value} caption="Members that differ" />`}
      ${compare !== undefined && html`<p><a href=${addressOf({ ...at, query: { ...at.query, compare: "" } })}>Compare with the version before instead</a></p>`}
    </section>`}
  </div>`;
}
