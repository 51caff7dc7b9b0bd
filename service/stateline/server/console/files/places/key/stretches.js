/** A key of a window or session store: its windows or sessions over time, committed beside uncommitted. */

import { html, useEffect } from "../../vendor/htm-preact-3.1.1.js";
import { counted, localText } from "../../base/format.js";
import { compact } from "../../base/json.js";
import { numberAt, numbersIn } from "../../base/numbers.js";
import { setQuery } from "../../base/place.js";
import { family, requestFor } from "../../base/queries.js";
import { timeOf, zoneName } from "../../base/times.js";
import { Nothing, Table } from "../../parts/table.js";
import { shortText, Time } from "../../parts/value.js";
import { useAnswer } from "../../parts/watch.js";
import { ShortDiff } from "./diff.js";
import { Level, LEVELS } from "./level.js";
import { chosenNumber, numberName, NumberChoice } from "./numbers.js";
import { differencesOf, idOf, sampleOf } from "./samples.js";
import { Spans } from "./spans.js";
import { TimeForm } from "../../parts/time_form.js";

const MOST = 500;

export function Stretches({ store, at, everyS, again, onMain }) {
  const isWindow = family(store.kind) === "window";
  const [noun, along] = isWindow ? ["window", "start"] : ["session", "end"];
  const [from, to] = [timeOf(at.query.from), timeOf(at.query.to)];
  const values = { key: at.key, from: from ?? "", to: to ?? "", order: "desc", limit: String(MOST) };
  const [committed, uncommitted] = LEVELS.map((level) => requestFor(store, isWindow ? "key_windows" : "sessions", { ...values, isolation_level: level }));
  const old = useAnswer(committed, everyS, `${again} ${committed.path}`);
  const young = useAnswer(uncommitted, everyS, `${again} ${uncommitted.path}`);
  const sample = sampleOf(old, along);
  useEffect(() => onMain({ request: committed, answer: old.answer, failure: old.failure, sample }), [old.answer, old.failure]);
  const isBoth = old.answer && young.answer && !old.isOld && !young.isOld;
  const differences = isBoth ? differencesOf(sample, sampleOf(young, along), isSame) : [];
  const entries = inOrder(old.answer?.body.entries ?? []);
  const all = inOrder([...entries, ...differences.filter(({ before }) => before === undefined).map(({ entry }) => entry)]);
  const numbers = numbersIn(entries.map(({ value }) => value));
  const number = chosenNumber(numbers, at);
  const fields = [
    { name: "from", label: isWindow ? "First start" : "Ends from", given: at.query.from, empty: "the oldest when empty" },
    { name: "to", label: isWindow ? "Last start" : "Starts to", given: at.query.to, empty: "the newest when empty" },
  ];
  return html`<section aria-labelledby="spans-title">
    <h2 id="spans-title">${isWindow ? "Windows" : "Sessions"}</h2>
    <${TimeForm} fields=${fields} button="Show" onTimes=${setQuery}>${entries.length > 0 && html`<${NumberChoice} numbers=${numbers} at=${at} />`}<//>
    <p role="status">${old.isOld ? "Asking for other times. The times before are still shown." : isBoth && html`<${Compared} differences=${differences} noun=${noun} />`}</p>
    ${old.answer && all.length === 0 && html`<${Nothing}>This key has no ${noun}s there. ${from === null && to === null ? "It was never written, or everything is older than the store’s retention." : "Clear both times to see all of them."}<//>`}
    ${entries.length > 0 && html`
      <p>${sample.isCut ? "The newest " : ""}${counted(entries.length, noun)}, from ${localText(entries[0].start)} to ${localText(entries.at(-1).end)}, ${zoneName()}.</p>
      <${Spans} label=${`${numberName(number, "The value")} of ${at.key} by time`} spans=${spansOf(entries, number)} />`}
    ${all.length > 0 && html`<${Table} caption=${`${isWindow ? "Windows" : "Sessions"} of ${at.key}, the newest first, times in ${zoneName()}`}
      columns=${columnsOf(all[0], isWindow, differences)} rows=${rowsOf(all, differences)} />`}
    <div class="cards"><${Level} name=${LEVELS[0]} known=${old} /><${Level} name=${LEVELS[1]} known=${young} /></div>
  </section>`;
}

function inOrder(entries) {
  return entries.toSorted((a, b) => a.start - b.start || a.end - b.end);
}

function isSame(one, other) {
  return compact(one) === compact(other);
}

function Compared({ differences, noun }) {
  const { length } = differences;
  if (length === 0) return html`<span class="tag">equal</span> Both levels show the same ${noun}s.`;
  return html`<span class="tag warn">differ</span> Not committed yet: ${counted(length, noun)}, in the table beside the committed ones.`;
}

/** If windows overlap, each ends where the next one starts. */
function spansOf(entries, number) {
  return entries.map((entry, i) => ({
    from: entry.start,
    to: Math.min(entry.end, entries.slice(i + 1).find(({ start }) => start > entry.start)?.start ?? entry.end),
    number: numberAt(entry.value, number),
    name: `${localText(entry.start)} to ${localText(entry.end)}: ${shortText(numberAt(entry.value, number) ?? entry.value)}`,
  }));
}

function columnsOf(entry, isWindow, differences) {
  const columns = ["Start", isWindow ? "End, excluded" : "End", ...(differences.length > 0 ? LEVELS : ["Value"])];
  return entry.timestamp === null ? columns : [...columns, "Timestamp"];
}

function rowsOf(entries, differences) {
  const differing = new Map(differences.map((each) => [idOf(each.entry), each]));
  return entries.toReversed().map((entry) => {
    const { start, end, value, timestamp } = entry;
    const levels = differences.length === 0 ? [shortText(value)] : levelCells(entry, differing.get(idOf(entry)));
    const cells = [html`<${Time} ms=${start} />`, html`<${Time} ms=${end} />`, ...levels];
    return { id: idOf(entry), cells: timestamp === null ? cells : [...cells, html`<${Time} ms=${timestamp} />`] };
  });
}

/** An entry's value at each level. */
function levelCells(entry, differing) {
  if (differing === undefined) return [shortText(entry.value), html`<span class="muted">the same</span>`];
  const { before, after } = differing;
  const staged = after === undefined ? html`<span class="tag warn">gone</span>` : html`<span class="changed">${shortText(after.value)}</span>`;
  if (before === undefined) return [html`<span class="muted">not there</span>`, staged];
  return [shortText(before.value), after === undefined ? staged : html`${staged}<${ShortDiff} before=${before.value} after=${after.value} />`];
}
