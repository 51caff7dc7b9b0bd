/** Problems, worst first, each with a link and advice. */

import { html } from "../../vendor/htm-preact-3.1.1.js";
import { counted, countText, durationText } from "../../base/format.js";
import { alertOf, isAmiss, isBehind, statesText } from "../../base/health.js";
import { ageMs } from "../../base/look.js";
import { addressOf } from "../../base/place.js";

const SILENT_MS = 15_000; // nodes report every second, and are checked every five seconds
const MOST_DROPPED = 0.01; // share of the records that a step receives
const WORDS = { bad: "broken", warn: "look" };

/** The list of alerts, or a line that all is well. */
export function Alerts({ look }) {
  const alerts = alertsOf(look);
  if (alerts.length === 0 && look.failure) return null; // the state is unknown
  if (alerts.length === 0) return html`<p class="live"><span class="tag">well</span> ${look.stores.length > 0 ? "Every store can be queried." : "Nothing is broken."}</p>`;
  return html`<ul class="alerts live" aria-label="Needs attention">${alerts.map(
    ({ how, href, what, advice }) => html`<li key=${href + what} class=${how}>
      <span class=${`tag ${how}`}>${WORDS[how]}</span> <a href=${href}>${what}</a> <span class="muted">${advice}</span></li>`,
  )}</ul>`;
}

function alertsOf(look) {
  const all = [...nodeAlerts(look), ...workerAlerts(look), ...pipelineAlerts(look), ...look.stores.flatMap(storeAlerts)];
  return [...all.filter(({ how }) => how === "bad"), ...all.filter(({ how }) => how === "warn")];
}

function nodeAlerts({ cluster }) {
  return Object.entries(cluster?.nodes ?? {}).filter(([, node]) => !node.reached).map(([name, node]) => ({
    how: "bad",
    href: addressOf({ place: "nodes" }),
    what: `Node ${name} is not reached: ${node.fault ?? "no reason known"}`,
    advice: "Check that it runs, and that this node can connect to its address. Its tasks move to other nodes.",
  }));
}

function workerAlerts({ workers }) {
  const all = Object.entries(workers ?? {});
  const silent = all.filter(([, { told_at_ms: atMs }]) => ageMs(atMs) > SILENT_MS).map(([name, { told_at_ms: atMs }]) => ({
    how: "bad",
    href: addressOf({ place: "nodes" }),
    what: `Worker ${name} has sent no figures for ${durationText(ageMs(atMs))}`,
    advice: "It is busy with one record or micro-batch, or it hangs. Its stores do not change meanwhile.",
  }));
  const found = [...silent, ...dropAlerts(all.map(([, worker]) => worker))];
  const failed = all.reduce((sum, [, worker]) => sum + worker.failed, 0);
  if (failed === 0) return found;
  const what = `${counted(failed, "record")} failed since the workers started`;
  return [...found, { how: "warn", href: addressOf({ place: "failures" }), what, advice: "The page shows each record and the reason." }];
}

function dropAlerts(workers) {
  return Object.entries(stepsOf(workers)).filter(([, { taken, dropped }]) => sumOf(dropped) > MOST_DROPPED * taken).map(([step, { taken, dropped }]) => ({
    how: "warn",
    href: addressOf({ place: "failures" }),
    what: `Step ${step} dropped ${countText(sumOf(dropped))} of ${counted(taken, "record")}: ${Object.entries(dropped).map(([why, count]) => `${why} ${countText(count)}`).join(", ")}`,
    advice: "For late records, set a larger grace, or check whether one partition is read far behind the others.",
  }));
}

/** Records that each step of all workers received, and dropped records by reason. */
function stepsOf(workers) {
  const found = {};
  for (const [name, { taken, dropped }] of workers.flatMap((worker) => Object.entries(worker.steps ?? {}))) {
    const step = (found[name] ??= { taken: 0, dropped: {} });
    step.taken += taken;
    for (const [why, count] of Object.entries(dropped)) step.dropped[why] = (step.dropped[why] ?? 0) + count;
  }
  return found;
}

function sumOf(counts) {
  return Object.values(counts).reduce((sum, count) => sum + count, 0);
}

function pipelineAlerts({ pipelines }) {
  return Object.entries(pipelines).filter(([, { status }]) => isAmiss(status)).map(([name, { status }]) => ({
    how: "bad",
    href: addressOf({ place: "pipelines" }),
    what: `Pipeline ${name} is ${status.state}${status.last_error ? `: ${status.last_error}` : ""}`,
    advice: status.state === "restarting" ? "It restarts by itself. If it keeps failing, fix the error that it shows." : "Fix the error that it shows, then start it again.",
  }));
}

function storeAlerts(store) {
  const how = alertOf(store);
  if (how === null) return [];
  return [{ how, href: addressOf({ place: "store", store: store.store, query: { tab: "partitions" } }), ...(how === "bad" ? broken(store) : slow(store)) }];
}

function broken({ store, not_ready: notReady, states }) {
  if (notReady) return { what: `Store ${store}: ${notReady}`, advice: "" };
  const advice = states.unreadable ? "Its partitions show why." : "No worker has these partitions. Start one, or check whether their last owner still runs.";
  return { what: `Store ${store}: ${statesText(states)}`, advice };
}

function slow(whole) {
  const { store, states, lag, input_lag: unread, committed_at_ms: atMs } = whole;
  if (states.restoring) {
    return { what: `Store ${store} is being restored: ${countText(lag)} offsets left`, advice: "It needs no action. Meanwhile a standby, if there is one, answers with older state." };
  }
  if (lag > 0) return { what: `Store ${store}: a copy lacks ${countText(lag)} records`, advice: "It catches up by itself. If the lag grows, add workers." };
  if (isBehind(whole)) return { what: `Store ${store} is ${countText(unread)} records behind its input`, advice: "Its partitions show where. It catches up by itself. If the lag grows, add workers." };
  return { what: `Store ${store}: the last commit was ${durationText(ageMs(atMs))} ago, and records wait`, advice: "Check whether its worker still runs." };
}
