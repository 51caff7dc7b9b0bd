/** The server's answer at an address, for components. */

import { useState } from "../vendor/htm-preact-3.1.1.js";
import { ask, Problem, Unreachable } from "./api.js";
import { useRepeated } from "./repeat.js";

/**
 * `{body, failure}`: the last body of `path`, and why the last request failed, each null at first. Repeated as by `useRepeated`, with
 * `timeoutMs` for each request. Other `inputs` send a request and keep the old body meanwhile.
 */
export function useAnswer(path, everyMs, { timeoutMs, inputs = [] } = {}) {
  const [body, setBody] = useState(null);
  const failure = useAsked(async (signal) => setBody((await ask(path, { timeoutMs, signal })).body), everyMs, inputs);
  return { body, failure };
}

/** Why the last asynchronous `action` failed; null after a success. Called as by `useRepeated`. */
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
