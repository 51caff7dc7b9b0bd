/** One key of a store: its value now, its history, and its changes. */

import { html, useCallback, useRef, useState } from "../vendor/htm-preact-3.1.1.js";
import { addressOf } from "../base/place.js";
import { family } from "../base/queries.js";
import { Nothing } from "../parts/table.js";
import { everyOf } from "../parts/watch.js";
import { Asked } from "./key/asked.js";
import { History } from "./key/history.js";
import { Neighbours } from "./key/neighbours.js";
import { Now } from "./key/now.js";
import { Stretches } from "./key/stretches.js";
import { Versions } from "./key/versions.js";
import { Wait } from "./key/wait.js";

const SHOWN = { key_value: Now, versioned: Versions, window: Stretches, session: Stretches };
const LEAST_BETWEEN_MS = 1000; // least time between two requests caused by the feed

/**
 * The component of a kind of store gets `store`, `at`, `everyS`, and `again`, a number that changes to repeat the request. It calls
 * `onMain` with `{request, answer, failure, sample}` of each answer, for the rest of the page.
 */
export function Key({ at, look }) {
  const [main, setMain] = useState(null);
  const [again, askAgain] = useAgain();
  if (!look.known) return html`<p role="status">Loading …</p>`;
  const store = look.stores.find(({ store: name }) => name === at.store);
  if (store === undefined) {
    return html`<${Nothing}>There is no store ${at.store} here, or this token may not read it. <a href=${addressOf({ place: "stores" })}>All stores</a><//>`;
  }
  const Shown = SHOWN[family(store.kind)];
  if (Shown === undefined) return html`<${Nothing}>Stores of kind ${store.kind} have no keys that can be asked for.<//>`;
  return html`<div class="key-place">
    <${Neighbours} store=${store} at=${at} />
    <${Shown} store=${store} at=${at} everyS=${everyOf(at.query)} again=${again} onMain=${setMain} />
    ${main?.answer && html`<${Asked} main=${main} onAgain=${askAgain} />`}
    <${History} store=${store} at=${at} main=${main} onChange=${askAgain} />
    <${Wait} store=${store} at=${at} main=${main} onReached=${askAgain} />
  </div>`;
}

/** A number, and a function that increases it: at once, then at most once a second. */
function useAgain() {
  const [again, setAgain] = useState(0);
  const last = useRef({ atMs: -Infinity, timer: null });
  const askAgain = useCallback(() => {
    if (last.current.timer !== null) return;
    const restMs = Math.max(0, last.current.atMs + LEAST_BETWEEN_MS - performance.now());
    last.current.timer = setTimeout(() => {
      last.current = { atMs: performance.now(), timer: null };
      setAgain((number) => number + 1);
    }, restMs);
  }, []);
  return [again, askAgain];
}

