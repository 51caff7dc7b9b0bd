/** Asks a question once or repeatedly. */

import { html, useRef, useState } from "../vendor/htm-preact-3.1.1.js";
import { ask, Problem, Unreachable } from "../base/api.js";
import { pause, useRepeated } from "../base/repeat.js";

const EVERY_S = ["1", "5", "30"];
const KEPT_PAGES = 50;
const NOTHING = { id: null, answer: null, atMs: null, asking: false, failure: null, failedAtMs: null };

/** Seconds between requests, from the address; 0 for a single request. */
export function everyOf(query) {
  return EVERY_S.includes(query.every) ? Number(query.every) : 0;
}

/**
 * Send `request` now and every `everyS` seconds; null sends nothing. Returns `{id, answer, atMs, asking, isOld, failure, failedAtMs}`.
 * An answer stays while the next is loading, and if repeating it fails. `id` is its request's; `isOld`: it answers another request.
 * With `keep`, a text, an answered request is only repeated after that text changes.
 */
export function useAnswer(request, everyS, keep = null) {
  const [seen, setSeen] = useState({ ...NOTHING, asking: request !== null });
  const kept = useRef({ keep: null, pages: new Map() });
  const id = request === null ? null : `${request.method} ${request.path} ${request.body ?? ""}`;
  if (kept.current.keep !== keep) kept.current = { keep, pages: new Map() };
  useRepeated(
    async (over) => {
      if (request === null) return setSeen(NOTHING);
      const page = everyS === 0 && keep !== null ? kept.current.pages.get(id) : undefined;
      if (page !== undefined) return setSeen({ ...NOTHING, ...page });
      setSeen((before) => ({ ...before, asking: true }));
      try {
        const answer = await ask(request.path, { ...request, signal: over });
        const now = { id, answer, atMs: Date.now() };
        if (kept.current.pages.size < KEPT_PAGES) kept.current.pages.set(id, now);
        setSeen({ ...NOTHING, ...now });
      } catch (error) {
        if (over.aborted) return undefined;
        if (!(error instanceof Problem || error instanceof Unreachable)) throw error;
        setSeen((before) => ({ ...(before.id === id ? before : NOTHING), id, asking: false, failure: error, failedAtMs: Date.now() }));
        if (everyS > 0) await pause(error.retryAfterMs ?? 0, over);
      }
      return undefined;
    },
    everyS * 1000,
    [id, keep],
  );
  return { ...seen, asking: id !== null && (seen.asking || seen.id !== id), isOld: seen.answer !== null && seen.id !== id };
}

/** Chooses the interval; `onChange` gets the seconds as text, empty for once. */
export function Watch({ everyS, onChange }) {
  return html`<label class="watch">Ask again
    <select value=${everyS === 0 ? "" : String(everyS)} onChange=${(event) => onChange(event.target.value)}>
      <option value="">when told</option>
      ${EVERY_S.map((each) => html`<option key=${each} value=${each}>every ${each} s</option>`)}
    </select>
  </label>`;
}
