/** A key of a window or session store: its windows, or sessions, over time. */

import { html, useEffect } from "../../vendor/htm-preact-3.1.1.js";
import { countText, localText } from "../../base/format.js";
import { setQuery } from "../../base/place.js";
import { family, requestFor } from "../../base/queries.js";
import { Failure } from "../../parts/problem.js";
import { Nothing, Table } from "../../parts/table.js";
import { shortText, Time } from "../../parts/value.js";
import { useAnswer } from "../../parts/watch.js";
import { Origin } from "./asked.js";
import { LevelChoice } from "./level.js";
import { chosenPath, numberAt, NumberChoice, numericPaths } from "./numbers.js";
import { Spans } from "./spans.js";
import { TimeForm, timeOf } from "./time_form.js";

const MOST = 500;

export function Stretches({ store, at, everyS, again, onMain }) {
  const isWindow = family(store.kind) === "window";
  const noun = isWindow ? "windows" : "sessions";
  const [from, to] = [timeOf(at.query.from), timeOf(at.query.to)];
  const values = { key: at.key, from: from ?? "", to: to ?? "", order: "desc", limit: String(MOST), isolation_level: at.query.isolation_level };
  const request = requestFor(store, isWindow ? "key_windows" : "sessions", values);
  const known = useAnswer(request, everyS, `${again} ${request.path}`);
  const { answer, failure } = known;
  const entries = (answer?.body.entries ?? []).toSorted((a, b) => a.start - b.start || a.end - b.end);
  useEffect(() => onMain({ request, answer, failure, entries }), [answer, failure]);
  const paths = numericPaths(entries.map(({ value }) => value));
  const fields = [
    { name: "from", label: isWindow ? "First start" : "Ends from", given: at.query.from, empty: "the oldest when empty" },
    { name: "to", label: isWindow ? "Last start" : "Starts to", given: at.query.to, empty: "the newest when empty" },
  ];
  return html`<section aria-labelledby="spans-title">
    <h2 id="spans-title">${isWindow ? "Windows" : "Sessions"}</h2>
    <${TimeForm} fields=${fields} button="Show" onTimes=${setQuery}>
      <${LevelChoice} at=${at} />
      ${entries.length > 0 && html`<${NumberChoice} paths=${paths} at=${at} />`}
    <//>
    ${failure && html`<${Failure} error=${failure} />`}
    ${!answer && !failure && html`<p role="status">Loading …</p>`}
    ${answer && entries.length === 0 && html`<${Nothing}>This key has no ${noun} there. ${from === null && to === null ? "It was never written, or its time is over: a store forgets what is older than its retention." : "Empty both times to see all that it has."}<//>`}
    ${entries.length > 0 && html`
      <p>${answer.body.cursor ? `The newest ${countText(MOST)}` : countText(entries.length)} ${noun}, from ${localText(entries[0].start)} to ${localText(entries.at(-1).end)}.</p>
      <${Spans} label=${`${chosenPath(paths, at) || "The value"} of ${at.key} by time`} spans=${spansOf(entries, chosenPath(paths, at))} />
      <${Table} caption=${`${isWindow ? "Windows" : "Sessions"} of ${at.key}, the newest first`} columns=${columnsOf(entries[0], isWindow)} rows=${rowsOf(entries)} />`}
    ${answer && html`<${Origin} answer=${answer} atMs=${known.atMs} />`}
  </section>`;
}

/** Of windows that overlap each reaches to where the next one begins. */
function spansOf(entries, path) {
  return entries.map((entry, i) => ({
    from: entry.start,
    to: Math.min(entry.end, entries.slice(i + 1).find(({ start }) => start > entry.start)?.start ?? entry.end),
    number: numberAt(entry.value, path),
    name: `${localText(entry.start)} to ${localText(entry.end)}: ${shortText(numberAt(entry.value, path) ?? entry.value)}`,
  }));
}

function columnsOf(entry, isWindow) {
  const columns = ["Start", isWindow ? "End, excluded" : "End", "Value"];
  return entry.timestamp === null ? columns : [...columns, "Timestamp"];
}

function rowsOf(entries) {
  return entries.toReversed().map(({ start, end, value, timestamp }) => {
    const cells = [html`<${Time} ms=${start} />`, html`<${Time} ms=${end} />`, shortText(value)];
    return { id: `${start}/${end}`, cells: timestamp === null ? cells : [...cells, html`<${Time} ms=${timestamp} />`] };
  });
}
