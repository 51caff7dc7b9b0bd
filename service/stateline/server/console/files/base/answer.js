/** What the server answers at an address, for components that show it. */

import { useState } from "../vendor/htm-preact-3.1.1.js";
import { ask, Problem, Unreachable } from "./api.js";
import { useRepeated } from "./repeat.js";

/**
 * `{body, failure}`: what `path` answered last, and why there was no answer this time, each null until then. Asked as
 * `useRepeated` says, with `timeoutMs` for each; with other `inputs` anew, while what was answered before stays.
 */
export function useAnswer(path, everyMs, { timeoutMs, inputs = [] } = {}) {
  const [body, setBody] = useState(null);
  const failure = useAsked(async (signal) => setBody((await ask(path, { timeoutMs, signal })).body), everyMs, inputs);
  return { body, failure };
}

/** Why the asynchronous `action` had no answer the last time; null when it had. Called as `useRepeated` says. */
export function useAsked(action, everyMs, inputs) {
  const [failure, setFailure] = useState(null);
  useRepeated(
    async (signal) => {
      try {
        await action(signal);
        setFailure(null);
      } catch (error) {
        if (error instanceof Problem || error instanceof Unreachable) setFailure(error);
        else if (!signal.aborted) throw error;
      }
    },
    everyMs,
    inputs,
  );
  return failure;
}
