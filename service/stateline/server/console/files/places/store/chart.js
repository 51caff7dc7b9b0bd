/** Entries over time: windows as a series per key and as a heat map, sessions as bars, versions of a key as steps. */

import { html, useEffect, useMemo, useRef, useState } from "../../vendor/htm-preact-3.1.1.js";
import { Problem, Unreachable } from "../../base/api.js";
import { counted, countText, localText } from "../../base/format.js";
import { compact } from "../../base/json.js";
import { numberAt, numbersIn } from "../../base/numbers.js";
import { listOf, listText, setQuery } from "../../base/place.js";
import { family } from "../../base/queries.js";
import { timeOf } from "../../base/times.js";
import { Chart } from "../../parts/chart.js";
import { Failure } from "../../parts/problem.js";
import { Nothing } from "../../parts/table.js";
import { TimeForm } from "../../parts/time_form.js";
import { Zoomed, zoomOf } from "../../parts/zoom.js";
import { heatOf, Shades } from "./heat.js";
import { readRows } from "./stream.js";
import { Strips } from "./strips.js";

const MOST_DRAWN = 20_000;
const MOST_READ = 200_000; // streams of windows and sessions are not ordered by time, so the newest are searched for
const MOST_SERIES = 8;
const MOST_STRIPS = 40;
const MOST_CHOICES = 500;

/** How to ask each kind, and the time that orders its entries. */
const KINDS = {
  window: { name: "windows", order: "desc", most: MOST_READ, time: ({ start }) => start },
  session: { name: "all_sessions", order: "", most: MOST_READ, time: ({ end }) => end },
  versioned: { name: "versions", order: "desc", most: MOST_DRAWN, time: ({ timestamp }) => timestamp },
};

export function StoreChart({ store, query }) {
  const kind = family(store.kind);
  const { from = "", to = "", key = "" } = query;
  const first = useFirstKey(store, kind === "versioned" && key === "");
  const asked = kind === "versioned" ? key || (first.key ?? "") : "";
  const times = { from: timeOf(from || undefined), to: timeOf(to || undefined) };
  const values = { from: times.from ?? "", to: times.to ?? "", order: KINDS[kind].order, key: asked };
  const read = useRead(store, kind, kind === "versioned" && asked === "" ? null : { name: KINDS[kind].name, values });
  const Drawn = { window: Windows, session: Sessions, versioned: Versions }[kind];
  return html`
    <${Bounds} key=${[from, to, asked].join(" ")} from=${from} to=${to} keyOf=${kind === "versioned" ? asked : null} />
    <p role="status">${read.said}</p>
    <${Zoomed} zoom=${zoomOf(query)} />
    ${(first.failure ?? read.failure) && html`<${Failure} error=${first.failure ?? read.failure} />`}
    ${read.rows !== null && read.rows.length > 0 && html`<${Drawn} store=${store} rows=${read.rows} query=${query} keyOf=${asked} />`}
    ${read.rows?.length === 0 && html`<${Nothing}>No rows. Choose other times${kind === "versioned" ? ", or another key" : ""}.<//>`}`;
}

/** The first key of a versioned store, if none is chosen. */
function useFirstKey(store, wanted) {
  const [seen, setSeen] = useState({ key: null, failure: null });
  useEffect(() => {
    if (!wanted) return undefined;
    const over = new AbortController();
    readRows(store, { name: "versioned_range", values: {} }, { most: 1, signal: over.signal, onProgress: () => {} }).then(
      ({ rows }) => setSeen({ key: rows[0]?.keyAt ?? null, failure: null }),
      (error) => over.signal.aborted || setSeen({ key: null, failure: known(error) }),
    );
    return () => over.abort();
  }, [store.store, wanted]);
  return seen;
}

/** The newest rows of an answer, newest first, and a description of them. */
function useRead(store, kind, question) {
  const [seen, setSeen] = useState({ rows: null, said: "", failure: null });
  useEffect(() => {
    if (question === null) return setSeen({ rows: null, said: "Choose a key.", failure: null });
    const over = new AbortController();
    const { most, time } = KINDS[kind];
    const newest = (rows) => rows.toSorted((one, other) => time(other.entry) - time(one.entry)).slice(0, MOST_DRAWN);
    const kept = (rows) => (rows.length < 2 * MOST_DRAWN ? rows : newest(rows));
    const onProgress = (_, count) => setSeen({ rows: null, said: `${countText(count)} rows so far …`, failure: null });
    setSeen({ rows: null, said: "Asking …", failure: null });
    readRows(store, question, { most, signal: over.signal, onProgress, kept }).then(
      ({ rows, count, isWhole }) => setSeen({ rows: newest(rows), said: saidOf(count, isWhole), failure: null }),
      (error) => over.signal.aborted || setSeen({ rows: null, said: "There is no answer.", failure: known(error) }),
    );
    return () => over.abort();
  }, [store.store, JSON.stringify(question)]);
  return seen;
}

function saidOf(count, isWhole) {
  if (isWhole && count <= MOST_DRAWN) return `${counted(count, "row")}.`;
  const among = isWhole ? `of ${countText(count)} rows` : count > MOST_DRAWN ? `of the first ${countText(count)} rows, and there are more` : "rows, and there are more";
  return `The newest ${countText(MOST_DRAWN)} ${among}: choose a shorter time.`;
}

function known(error) {
  if (error instanceof Problem || error instanceof Unreachable) return error;
  throw error;
}

/** The period and the key. Fields use the reader's zone, the address UTC. */
function Bounds({ from, to, keyOf }) {
  const key = useRef(null);
  const fields = [
    { name: "from", label: "From", given: from || undefined, empty: "the oldest when empty" },
    { name: "to", label: "To", given: to || undefined, empty: "the newest when empty" },
  ];
  const show = (times) => setQuery({ ...times, zoom: null, ...(key.current && { key: key.current.value }) });
  return html`<${TimeForm} fields=${fields} button="Show" onTimes=${show}>
    ${keyOf !== null && html`<div class="field"><label for="chart-key">Key</label>
      <input id="chart-key" ref=${key} defaultValue=${keyOf} autocomplete="off" spellcheck=${false} /></div>`}
  <//>`;
}

/** Chooses the drawn number of the values: `number` of the address, else the first one. */
function useNumber(rows, query) {
  const numbers = useMemo(() => numbersIn(rows.map(({ entry }) => entry.value)), [rows]);
  return { numbers, number: numbers.find(({ id }) => id === query.number) ?? numbers[0] };
}

function NumberChoice({ numbers, number }) {
  return html`<label class="watch">Number <select value=${number.id} onChange=${(event) => setQuery({ number: event.target.value })}>
    ${numbers.map(({ id }) => html`<option key=${id} value=${id}>${id}</option>`)}</select></label>`;
}

function NoNumber() {
  return html`<${Nothing}>These values have no number to draw.<//>`;
}

function Windows({ store, rows, query }) {
  const { numbers, number } = useNumber(rows, query);
  const keys = useMemo(() => keysBySum(rows, number), [rows, number]);
  const chosen = query.series ? listOf(query.series).filter((key) => keys.includes(key)) : keys.slice(0, MOST_SERIES);
  const { times, series } = useMemo(() => seriesOf(rows, chosen, number), [rows, number, chosen.join("\n")]);
  const heat = useMemo(() => heatOf(rows, keys.slice(0, MOST_STRIPS), number), [rows, keys]);
  if (number === undefined) return html`<${NoNumber} />`;
  return html`
    <div class="buttons"><${NumberChoice} numbers=${numbers} number=${number} /><${Series} keys=${keys} chosen=${chosen} /></div>
    <${Chart} label=${`${number.id} of ${store.store}, by key`} times=${times} series=${series} height=${280} zoom=${zoomOf(query)} />
    <${Strips} label=${`${number.id} of ${store.store}, keys by time`} told=${heat.told} names=${heat.names} bars=${heat.bars} column=${number.id} zoom=${zoomOf(query)}><${Shades} shades=${heat.shades} /><//>
    <${LeftOut} shown=${heat.names.length} of=${keys.length} which="those with the largest sums" />`;
}

/** A checkbox for each key, up to the number of distinguishable colours. */
function Series({ keys, chosen }) {
  const toggle = (key) => {
    const next = chosen.includes(key) ? chosen.filter((each) => each !== key) : [...chosen, key];
    if (next.length > 0) setQuery({ series: listText(next) });
  };
  const full = chosen.length >= MOST_SERIES;
  return html`<details class="columns"><summary>Keys: ${chosen.length} of ${keys.length}</summary>
    <div class="choices">${keys.slice(0, MOST_CHOICES).map(
      (key) => html`<label key=${key} class="check"><input type="checkbox" checked=${chosen.includes(key)} disabled=${full && !chosen.includes(key)} onChange=${() => toggle(key)} />${key}</label>`,
    )}</div>
    <${LeftOut} shown=${Math.min(MOST_CHOICES, keys.length)} of=${keys.length} which="those with the largest sums" />
    ${full && html`<p class="hint">${MOST_SERIES} at most. Remove one to choose another.</p>`}
  </details>`;
}

/** Says that some keys are missing. */
function LeftOut({ shown, of, which }) {
  return shown < of && html`<p class="note">These are ${countText(shown)} of ${countText(of)} keys, ${which}.</p>`;
}

/** All keys, largest sum first. */
function keysBySum(rows, number) {
  const sums = new Map();
  for (const row of rows) sums.set(row.keyText, (sums.get(row.keyText) ?? 0) + Math.abs(Number(numberAt(row.entry.value, number) ?? 0)));
  return [...sums].sort(([, one], [, other]) => other - one).map(([key]) => key);
}

function seriesOf(rows, keys, number) {
  const times = timesOf(rows);
  const at = new Map(times.map((ms, i) => [ms, i]));
  const series = keys.map((name) => ({ name, kind: "line", values: times.map(() => null) }));
  const byKey = new Map(series.map((each) => [each.name, each.values]));
  for (const row of rows) {
    const values = byKey.get(row.keyText);
    if (values !== undefined) values[at.get(row.entry.start)] = numberAt(row.entry.value, number);
  }
  return { times, series };
}

/** The starts of the windows. After a gap in all keys, also the end of the window before it, so that no line crosses the gap. */
function timesOf(rows) {
  const ends = new Map(rows.map(({ entry }) => [entry.start, entry.end]));
  const starts = [...ends.keys()].sort((one, other) => one - other);
  return starts.flatMap((start, i) => (starts[i + 1] > ends.get(start) ? [start, ends.get(start)] : [start]));
}

function Sessions({ store, rows, query }) {
  const keys = useMemo(() => [...new Set(rows.map(({ keyText }) => keyText))], [rows]); // newest sessions first
  const names = useMemo(() => keys.slice(0, MOST_STRIPS).toSorted(), [keys]);
  const bars = useMemo(() => {
    const index = new Map(names.map((name, i) => [name, i]));
    const shown = rows.filter(({ keyText }) => index.has(keyText));
    return shown.map(({ keyText, entry }) => ({ row: index.get(keyText), from: entry.start, to: entry.end, weight: 1, text: compact(entry.value) }));
  }, [rows]);
  return html`<${Strips} label=${`Sessions of ${store.store}, by key`} told=${`${counted(bars.length, "session")} of ${counted(names.length, "key")}.`} names=${names} bars=${bars} column="Value" zoom=${zoomOf(query)} />
    <${LeftOut} shown=${names.length} of=${keys.length} which="those with the newest sessions" />`;
}

function Versions({ store, rows, query, keyOf }) {
  const { numbers, number } = useNumber(rows, query);
  const { times, values } = useMemo(() => stepsOf(rows, number), [rows, number]);
  if (number === undefined) return html`<${NoNumber} />`;
  return html`<div class="buttons"><${NumberChoice} numbers=${numbers} number=${number} /></div>
    <${Chart} label=${`${number.id} of ${keyOf} in ${store.store}`} times=${times} series=${[{ name: number.id, kind: "step", values }]} height=${280} zoom=${zoomOf(query)} />
    <p class="note">Each version is valid until the next one. The newest is valid since ${localText(times.at(-1))}.</p>`;
}

/** Times and numbers of the versions, oldest first, with a gap where no version is valid. */
function stepsOf(rows, number) {
  const steps = [];
  for (const row of rows.toSorted((one, other) => one.entry.timestamp - other.entry.timestamp)) {
    const { timestamp, valid_to: end } = row.entry;
    if (steps.at(-1)?.[0] === timestamp) steps.pop();
    steps.push([timestamp, numberAt(row.entry.value, number)]);
    if (end !== null && end !== undefined) steps.push([end, null]);
  }
  return { times: steps.map(([ms]) => ms), values: steps.map(([, value]) => value) };
}
