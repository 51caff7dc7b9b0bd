/** Looks at the service every three seconds while the page is visible, for all components. */

import { useEffect, useState } from "../vendor/htm-preact-3.1.1.js";
import { ask, Problem, Unreachable } from "./api.js";

const INTERVAL_MS = 3000;
const VERSION = /@\w+/.exec(import.meta.url)?.[0] ?? null; // version of these files
const LEAST_PAUSE_MS = 1000;
const TIMEOUT_MS = 5000;
const TRUSTED_SKEW_MS = 2000; // `Date` has whole seconds, so a smaller difference means nothing

/**
 * The last look: the members of `GET /v1/console`; `failure`: why there was no answer (a `Problem` or `Unreachable`), else null;
 * `sinceMs`: when that began; `known`: whether any answer arrived; `atMs`: when the last one did.
 */
let seen = { known: false, failure: null, sinceMs: null, application_id: null, stores: [], selected: null, partitions: {}, pipelines: {}, commits: {}, backup: null, cluster: null };
let wanted = null; // the store whose partitions are requested, too
let skewMs = 0;
let looking = false;
let timer = null;
const listeners = new Set();

/** A hook: the last look, updated after each look. */
export function useLook() {
  const [look, setLook] = useState(seen);
  useEffect(() => {
    listeners.add(setLook);
    setLook(seen);
    return () => listeners.delete(setLook);
  }, []);
  return look;
}

/** Whether the server has other files than this page, as after an upgrade. New modules would not fit the loaded ones. */
export function isOutdated() {
  return VERSION !== null && seen.known && seen.files !== VERSION;
}

/** Request this store's partitions, too, at once. */
export function watchStore(name) {
  if (wanted === name) return;
  wanted = name;
  lookNow();
}

/** The time in ms since a time of the server's clock, at least 0. */
export function ageMs(atMs) {
  return Math.max(0, Date.now() + skewMs - atMs);
}

/** The time in ms until a time of the server's clock. */
export function untilMs(atMs) {
  return Math.max(0, atMs - Date.now() - skewMs);
}

/** Look now, and repeatedly while the page is visible. */
export async function lookNow() {
  clearTimeout(timer);
  if (document.hidden || looking) return;
  looking = true;
  const beganMs = performance.now();
  const asked = wanted;
  let pauseMs = 0;
  try {
    const path = asked === null ? "v1/console" : `v1/console?store=${encodeURIComponent(asked)}`;
    const { body, headers } = await ask(path, { timeoutMs: TIMEOUT_MS });
    readClock(headers.get("Date"));
    seen = { ...seen, ...body, known: true, failure: null, sinceMs: null, atMs: Date.now() };
  } catch (error) {
    if (!(error instanceof Unreachable || error instanceof Problem)) throw error;
    seen = { ...seen, failure: error, sinceMs: seen.sinceMs ?? Date.now() };
    // Without a token every look would be refused. A new token starts the next look.
    pauseMs = error.status === 401 ? null : (error.retryAfterMs ?? 0);
  } finally {
    looking = false;
  }
  for (const listener of listeners) listener(seen);
  if (pauseMs === null) return;
  const restMs = Math.max(LEAST_PAUSE_MS, pauseMs, INTERVAL_MS - (performance.now() - beganMs));
  timer = setTimeout(lookNow, wanted !== asked && pauseMs === 0 ? 0 : restMs);
}

document.addEventListener("visibilitychange", lookNow);

function readClock(date) {
  const found = date === null ? 0 : Date.parse(date) - Date.now();
  skewMs = Math.abs(found) > TRUSTED_SKEW_MS ? found : 0;
}
