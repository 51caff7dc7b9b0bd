/** Repeats requests while the page is visible. */

import { useEffect, useRef } from "../vendor/htm-preact-3.1.1.js";

/** Wait this long, or until `over` is aborted. */
export function pause(ms, over) {
  return new Promise((resolve) => {
    setTimeout(resolve, ms);
    over.addEventListener("abort", resolve, { once: true });
  });
}

/**
 * Call the asynchronous `action` now, and every `everyMs` after it ends, except while the page is hidden; once if `everyMs` is 0.
 * Starts again when one of `inputs` changes. `action` gets an `AbortSignal` of its end.
 */
export function useRepeated(action, everyMs, inputs) {
  const latest = useRef(action);
  latest.current = action;
  useEffect(() => {
    const over = new AbortController();
    let timer = null;
    let running = false;
    let ran = false;
    const run = async () => {
      clearTimeout(timer);
      if (over.signal.aborted || running || document.hidden) return;
      running = ran = true;
      try {
        await latest.current(over.signal);
      } finally {
        running = false;
        if (everyMs > 0 && !over.signal.aborted) timer = setTimeout(run, everyMs); // also after an unexpected error
      }
    };
    const shown = () => (everyMs > 0 || !ran) && run();
    document.addEventListener("visibilitychange", shown);
    run();
    return () => {
      over.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", shown);
    };
  }, [everyMs, ...inputs]);
}
