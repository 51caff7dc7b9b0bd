/** A key of a versioned store: its value at any time, and its changes. */

import { html, useEffect } from "../../vendor/htm-preact-3.1.1.js";
import { counted, localText } from "../../base/format.js";
import { numbersIn } from "../../base/numbers.js";
import { addressOf, setQuery } from "../../base/place.js";
import { requestFor } from "../../base/queries.js";
import { timeOf, zoneName } from "../../base/times.js";
import { Failure } from "../../parts/problem.js";
import { Nothing } from "../../parts/table.js";
import { useAnswer } from "../../parts/watch.js";
import { LEVELS } from "./level.js";
import { Moment } from "./moment.js";
import { chosenNumber, NumberChoice } from "./numbers.js";
import { valueSample } from "./samples.js";
import { Slider } from "./slider.js";
import { TimeForm } from "../../parts/time_form.js";
import { VersionTable } from "./version_table.js";

const MOST_VERSIONS = 500;

export function Versions({ store, at, everyS, again, onMain }) {
  const asOf = timeOf(at.query.as_of);
  const [committed, uncommitted] = LEVELS.map((level) => valueRequest(store, at, asOf, level));
  const old = useAnswer(committed, everyS, `${again} ${committed.path}`);
  const young = useAnswer(uncommitted, everyS, `${again} ${uncommitted.path}`);
  const newest = useAnswer(asOf !== null && everyS > 0 ? valueRequest(store, at, null, LEVELS[0]) : null, everyS, `${again}`);
  const page = pageOf(at);
  const all = useAnswer(requestFor(store, "versions", { key: at.key, limit: String(MOST_VERSIONS), isolation_level: LEVELS[0], ...page.asked }), everyS, `${again}`);
  useEffect(() => {
    const watched = asOf === null ? old : newest;
    onMain({ request: committed, answer: old.answer, failure: old.failure, sample: watched.isOld ? null : valueSample(watched) });
  }, [old.answer, old.failure, newest.answer]);
  const versions = (all.answer?.body.entries ?? []).filter(({ timestamp }) => timestamp > page.after).sort((a, b) => a.timestamp - b.timestamp);
  const isCut = Boolean(all.answer?.body.cursor);
  const more = { older: page.isUpwards || isCut, newer: page.isUpwards ? isCut : page.asked.to !== undefined };
  const numbers = numbersIn(versions.map(({ value }) => value));
  return html`<section aria-labelledby="versions-title">
    <h2 id="versions-title">Value at a time</h2>
    <${TimeForm} fields=${[{ name: "as_of", label: "As of", given: at.query.as_of, empty: "the newest when empty" }]} button="Show" onTimes=${setQuery}>
      ${versions.length > 0 && html`<${NumberChoice} numbers=${numbers} at=${at} />`}
    <//>
    ${all.failure && html`<${Failure} error=${all.failure} />`}
    ${!all.answer && !all.failure && html`<p role="status">Loading …</p>`}
    ${all.answer && versions.length === 0 && html`<${Nothing}>${more.newer || more.older ? "There are no versions in that time." : "This key has no versions. It was never written, or all its versions are older than the store’s retention."}<//>`}
    ${all.answer && html`<${Pages} versions=${versions} more=${more} isAsking=${all.isOld} at=${at} />`}
    ${versions.length > 0 && html`<${Slider} versions=${versions} asOf=${asOf} number=${chosenNumber(numbers, at)} isNewest=${!more.newer} label=${at.key} />`}
    <${Moment} old=${old} young=${young} asOf=${asOf} versions=${versions} at=${at} />
    ${versions.length > 0 && html`<${VersionTable} versions=${versions} hasOlder=${more.older} shown=${old.answer?.body.found ? old.answer.body.timestamp : null} at=${at} />`}
  </section>`;
}

function valueRequest(store, at, asOf, level) {
  return requestFor(store, "versioned_key", { key: at.key, as_of: asOf ?? "", isolation_level: level });
}

/**
 * The versions that the address selects: the newest, those `older_than` a time, or those `newer_than` a time in ascending order. There
 * is no cursor, because a link with one would expire.
 */
function pageOf(at) {
  const [older, newer] = [timeOf(at.query.older_than), timeOf(at.query.newer_than)];
  if (newer !== null) return { isUpwards: true, after: newer, asked: { from: newer + 1, order: "asc" } };
  return { isUpwards: false, after: -Infinity, asked: { order: "desc", ...(older !== null && { to: older - 1 }) } };
}

function Pages({ versions, more, isAsking, at }) {
  const link = (query, text) => html`<li><a href=${addressOf({ ...at, query: { ...at.query, older_than: "", newer_than: "", ...query } })}>${text}</a></li>`;
  const said = `${more.newer ? "" : more.older ? "The newest " : ""}${counted(versions.length, "version")}`;
  return html`
    <p role="status">${isAsking ? "Asking for other versions …" : versions.length > 0 && `${said}, from ${localText(versions[0].timestamp)} to ${localText(versions.at(-1).timestamp)}, ${zoneName()}.`}</p>
    ${(more.older || more.newer) && html`<nav aria-label="More versions"><ul class="tabs">
      ${more.older && versions.length > 0 && link({ older_than: versions[0].timestamp }, "Older versions")}
      ${more.newer && versions.length > 0 && link({ newer_than: versions.at(-1).timestamp }, "Newer versions")}
      ${(more.newer || versions.length === 0) && link({}, "Newest versions")}
    </ul></nav>`}`;
}
