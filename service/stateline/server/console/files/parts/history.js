/** The service's last hour. The server keeps it, so a page opened later shows it too. */

import { html, useMemo, useRef, useState } from "../vendor/htm-preact-3.1.1.js";
import { useAsked } from "../base/answer.js";
import { ask } from "../base/api.js";
import { countText, durationText, rateText } from "../base/format.js";
import { addressOf } from "../base/place.js";
import { Chart } from "./chart.js";
import { Failure } from "./problem.js";
import { Nothing } from "./table.js";
import { Zoomed, zoomOf } from "./zoom.js";

const EVERY_MS = 5000;
const KEPT_MS = 3_600_000;
const MINUTES = [5, 15, 60];

/** `of` are names of the server's columns, with their titles. */
const CHARTS = [
  { label: "Records taken in, per second", format: rateText, of: { ingest_per_s: "taken in" } },
  { label: "Lag: records not applied yet", format: countText, of: { lag: "behind", restore_remaining: "left to restore" } },
  { label: "Commits, per second", format: rateText, of: { commits_per_s: "commits" } },
  { label: "Age of the newest commit", format: durationText, of: { commit_age_ms: "age" } },
  { label: "Queries, per second", format: rateText, of: { queries_per_s: "queries" } },
  { label: "Time to answer queries", format: durationText, of: { p50_ms: "half are faster (p50)", p99_ms: "99 % are faster (p99)" } },
];

/** The charts, and the period that they show: the newest `from` minutes, or the zoomed one. It is in the address. */
export function History({ at }) {
  const { points, failure } = useHistory();
  const minutes = MINUTES.includes(Number(at.query.from)) ? Number(at.query.from) : 60;
  const zoom = zoomOf(at.query);
  const shown = zoom === null ? minutes : 60;
  const charts = useMemo(() => drawn(points ?? [], shown), [points, shown]); // only redrawn for other points
  return html`
    <nav aria-label="Time span"><ul>${MINUTES.map(
      (each) => html`<li key=${each}><a href=${addressOf({ ...at, query: { ...at.query, from: each === 60 ? "" : each, zoom: null } })}
        aria-current=${zoom === null && each === minutes ? "true" : null}>${each} minutes</a></li>`,
    )}</ul></nav>
    <${Zoomed} zoom=${zoom} />
    ${failure && html`<${Failure} error=${failure} />`}
    ${points === null && !failure && html`<p role="status">Loading …</p>`}
    ${points?.length === 0 && html`<${Nothing}>No data yet. The first point comes 5 s after the server has started.<//>`}
    <div class="history live">${charts.map((chart) => html`<${Chart} key=${chart.label} height=${150} fromZero zoom=${zoom} ...${chart} />`)}</div>
    ${points?.length > 0 && charts.length < CHARTS.length && html`<p class="note">Other charts appear when they have data. Commits and queries need a token for all stores.</p>`}`;
}

/** Points `{at_ms, column: value}`, oldest first; null before the first answer. */
function useHistory() {
  const [points, setPoints] = useState(null);
  const kept = useRef([]);
  const failure = useAsked(
    async (signal) => {
      const last = kept.current.at(-1)?.at_ms;
      const { body } = await ask(last === undefined ? "v1/console/history" : `v1/console/history?since_ms=${last}`, { timeoutMs: EVERY_MS, signal });
      kept.current = joined(kept.current, body);
      setPoints(kept.current);
    },
    EVERY_MS,
    [],
  );
  return { points, failure };
}

/** The known points with the new ones, as long as the server keeps them, with a gap where the server was down. */
function joined(known, { interval_ms: intervalMs, names, points }) {
  const all = [...known];
  for (const [at_ms, ...values] of points) {
    const before = all.at(-1);
    if (before && at_ms <= before.at_ms) continue;
    if (before && at_ms - before.at_ms > 3 * intervalMs) all.push({ at_ms: before.at_ms + intervalMs });
    all.push({ at_ms, ...Object.fromEntries(names.map((name, i) => [name, values[i]])) });
  }
  return all.filter(({ at_ms }) => at_ms > (all.at(-1)?.at_ms ?? 0) - KEPT_MS);
}

/** The charts of the newest minutes, as `Chart` takes them, without empty ones. */
function drawn(points, minutes) {
  const newest = points.at(-1)?.at_ms ?? 0;
  const shown = points.filter(({ at_ms }) => at_ms >= newest - minutes * 60_000);
  const times = shown.map(({ at_ms }) => at_ms);
  return CHARTS.map(({ label, format, of }) => {
    const series = Object.entries(of).map(([column, name]) => ({ name, kind: "line", values: shown.map((point) => point[column] ?? null) }));
    return { label, format, times, series };
  }).filter(({ series }) => series.some(({ values }) => values.some((value) => value !== null)));
}
