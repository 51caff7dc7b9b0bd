/** A key as it changes, by the change feed or by repeated requests. */

import { html, useEffect, useRef, useState } from "../../vendor/htm-preact-3.1.1.js";
import { countText, localText } from "../../base/format.js";
import { compact } from "../../base/json.js";
import { numberAt, numbersIn } from "../../base/numbers.js";
import { setQuery } from "../../base/place.js";
import { family } from "../../base/queries.js";
import { zoneName } from "../../base/times.js";
import { Failure } from "../../parts/problem.js";
import { Nothing, Table } from "../../parts/table.js";
import { shortText, Time } from "../../parts/value.js";
import { ShortDiff } from "./diff.js";
import { useKeyFeed } from "./key_feed.js";
import { chosenNumber, numberName, NumberChoice } from "./numbers.js";
import { differencesOf } from "./samples.js";
import { Spans } from "./spans.js";

const MOST_KEPT = 200;
const WAYS = { "": "not at all", live: "each change, by the change feed", 1: "by asking every second", 5: "by asking every 5 s", 30: "by asking every 30 s" };

/**
 * `every` of the address chooses how. `main` is the shown answer, `sampleOf` converts it. `onChange` is called for each change in the
 * feed.
 */
export function History({ store, at, main, onChange }) {
  const way = Object.hasOwn(WAYS, at.query.every ?? "") ? (at.query.every ?? "") : "";
  const [changes, setChanges] = useState([]);
  const add = (found) => found.length > 0 && setChanges((known) => withBefore(known, found));
  const feed = useKeyFeed(store, at.key, at.query.since === "earliest" ? "earliest" : "latest", way === "live" ? partitionsOf(main) : null, (found) => {
    add(found);
    onChange();
  });
  useSamples(Number(way) > 0, main?.sample ?? null, add, () => setChanges([]));
  const choose = (event) => {
    setChanges([]);
    setQuery({ every: event.target.value });
  };
  return html`<section aria-labelledby="history-title">
    <h2 id="history-title">Watch it change</h2>
    <div class="buttons">
      <div class="field"><label for="every">Watch</label>
        <select id="every" value=${way} onChange=${choose}>${["", "live", "1", "5", "30"].map((name) => html`<option key=${name} value=${name}>${WAYS[name]}</option>`)}</select></div>
      ${way === "live" && html`<${Since} at=${at} onChoose=${() => setChanges([])} />`}
    </div>
    ${feed.failure && html`<${Failure} error=${feed.failure} />`}
    ${way === "live" && html`<p class="hint">${feed.said} ${countText(feed.read)} changes read of its partition, ${countText(feed.own)} of this key.</p>`}
    ${Number(way) > 0 && html`<p class="hint">${main?.failure ? "The last query failed. The next one follows." : "A change that is undone between two queries is not seen. The change feed shows each commit."}</p>`}
    ${way !== "" && changes.length === 0 && html`<${Nothing}>No change seen yet. Changes are listed here as they come.<//>`}
    ${changes.length > 0 && html`<${Drawn} store=${store} at=${at} changes=${changes} /><${Changes} changes=${changes} at=${at} />`}
  </section>`;
}

function Since({ at, onChoose }) {
  const choose = (event) => {
    onChoose();
    setQuery({ since: event.target.value });
  };
  return html`<div class="field"><label for="since">From</label>
    <select id="since" value=${at.query.since ?? ""} onChange=${choose}>
      <option value="">now on</option>
      <option value="earliest">the oldest that the log still has</option>
    </select></div>`;
}

/** Changes, newest first, each with the value known before. The unit is a window, a session or the key. */
function withBefore(known, found) {
  const all = [...known];
  for (const change of found) {
    const before = change.before ?? all.find(({ start, end }) => start === change.start && end === change.end);
    all.unshift({ ...change, seenMs: Date.now(), number: (all[0]?.number ?? 0) + 1, before });
  }
  return all.slice(0, MOST_KEPT).map((change) => ({ ...change, before: change.before && { value: change.before.value } }));
}

/** The partitions of an answer, which can have the key. Null before there is an answer. */
function partitionsOf(main) {
  return main?.answer ? Object.keys(main.answer.body.partitions).join(",") : null;
}

/** The differences between successive answers. Another question, such as another time, starts a new list. */
function useSamples(isWatched, sample, add, begin) {
  const known = useRef(null);
  useEffect(() => {
    const before = known.current;
    known.current = isWatched ? (sample ?? before) : null;
    if (!isWatched || sample === null || before === null) return;
    if (before.of !== sample.of) begin();
    else add(differencesOf(before, sample, hasSameValue).map(({ before: old, after }) => ({ ...(after ?? { ...old, value: null, timestamp: null }), before: old })));
  }, [isWatched, sample?.answer]);
}

function hasSameValue(one, other) {
  return compact(one.value) === compact(other.value);
}

/** The changes of a key as steps. Windows and sessions are in the drawing above. */
function Drawn({ store, at, changes }) {
  const numbers = numbersIn(changes.map(({ value }) => value));
  const number = chosenNumber(numbers, at);
  if (changes.length < 2 || number === undefined || changes[0].start !== undefined) return null;
  const timed = changes.every(({ timestamp }) => typeof timestamp === "number");
  const steps = changes.map((change) => ({ ...change, ms: timed ? change.timestamp : change.seenMs })).sort((a, b) => a.ms - b.ms);
  const spans = steps.map(({ ms, value }, i) => ({ from: ms, to: steps[i + 1]?.ms ?? ms, number: numberAt(value, number), name: `${localText(ms)}: ${shortText(value)}` }));
  return html`${family(store.kind) === "key_value" && html`<div class="buttons"><${NumberChoice} numbers=${numbers} at=${at} /></div>`}
    <${Spans} label=${`${numberName(number, "The value")} of ${at.key} by ${timed ? "timestamp" : "when it was seen"}`} steps spans=${spans} />`;
}

function Changes({ changes, at }) {
  const windowed = changes[0].start !== undefined;
  const timed = changes.some(({ timestamp }) => typeof timestamp === "number");
  const rows = changes.map(({ number, seenMs, timestamp, start, end, value, before }) => ({
    id: number,
    cells: [
      html`<${Time} ms=${seenMs} />`,
      ...(windowed ? [html`<${Time} ms=${start} /> to <${Time} ms=${end} />`] : []),
      value === null ? html`<span class="tag warn">deleted</span>` : shortText(value),
      before === undefined ? html`<span class="muted">the first seen</span>` : html`<${ShortDiff} before=${before.value} after=${value} />`,
      ...(timed ? [html`<${Time} ms=${timestamp} />`] : []),
    ],
  }));
  const columns = ["Seen", ...(windowed ? ["Stretch"] : []), "Value", "Changed", ...(timed ? ["Timestamp"] : [])];
  return html`<${Table} caption=${`Changes of ${at.key}, the newest first, times in ${zoneName()}`} columns=${columns} rows=${rows} />`;
}
