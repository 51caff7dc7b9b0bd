/** Waits until the store has a Position. */

import { html, useEffect, useRef, useState } from "../../vendor/htm-preact-3.1.1.js";
import { ask, Problem, Unreachable } from "../../base/api.js";
import { durationText, positionText } from "../../base/format.js";
import { setQuery } from "../../base/place.js";
import { family, OF_ONE_KEY, requestFor } from "../../base/queries.js";
import { Failure } from "../../parts/problem.js";
import { Facts } from "../../parts/table.js";
import { LEVELS } from "./level.js";

const WAIT_MS = 5000;
const ANSWER_MS = 10_000;

/** `main` is the shown answer. `onReached` is called when the store has the Position, because that answer may be older. */
export function Wait({ store, at, main, onReached }) {
  const [state, setState] = useState({ said: null, error: null });
  const field = useRef(null);
  const { position_bound: bound, wait_ms: waitMs = String(WAIT_MS) } = at.query;
  const position = main?.answer?.body.position;
  useEffect(() => {
    if (bound === undefined) return undefined;
    const over = new AbortController();
    waitFor(store, at, { bound, waitMs }, over.signal, setState, onReached);
    return () => over.abort();
  }, [bound, waitMs, at.query.wait]);
  const take = (further) => () => {
    field.current.value = JSON.stringify(further ? oneFurther(position) : position);
  };
  const submit = (event) => {
    event.preventDefault();
    const { bound: text, wait_ms: ms } = event.target.elements;
    // `wait` counts the requests, so that an equal request is sent again.
    setQuery({ position_bound: text.value.trim(), wait_ms: ms.value, wait: text.value.trim() === bound && ms.value === waitMs ? Number(at.query.wait ?? 0) + 1 : at.query.wait });
  };
  return html`<section aria-labelledby="wait-title">
    <h2 id="wait-title">Wait for a Position</h2>
    <p class="hint">Enter the Position of a producer's write, or of another answer. The store answers when it has applied its input up to there.</p>
    <form onSubmit=${submit}>
      <div class="field wide"><label for="bound">Position, as JSON</label>
        <textarea key=${bound} id="bound" name="bound" ref=${field} rows="2" required spellcheck="false" placeholder=${'{"topic": {"0": 41}}'} defaultValue=${bound ?? ""}></textarea></div>
      <div class="field"><label for="wait-ms">Wait, in ms</label>
        <input id="wait-ms" name="wait_ms" type="number" min="0" max="600000" required defaultValue=${waitMs} /></div>
      <button type="submit" class="main">Wait</button>
      <button type="button" aria-disabled=${position ? null : "true"} onClick=${position && take(false)}>The one shown</button>
      <button type="button" aria-disabled=${position ? null : "true"} onClick=${position && take(true)}>One record further</button>
    </form>
    <p role="status">${state.said}</p>
    ${state.error && html`<${Unreached} error=${state.error} />`}
  </section>`;
}

async function waitFor(store, at, { bound, waitMs }, over, setState, onReached) {
  setState({ said: `Waiting, ${durationText(Number(waitMs))} at most …`, error: null });
  const isolation = at.query.isolation_level ?? LEVELS[0];
  const limit = { window: "1", session: "1" }[family(store.kind)] ?? "";
  const values = { key: at.key, limit, position_bound: bound, wait_ms: waitMs, isolation_level: isolation };
  const request = requestFor(store, OF_ONE_KEY[family(store.kind)], values);
  try {
    const { body, elapsedMs } = await ask(request.path, { ...request, timeoutMs: Number(waitMs) + ANSWER_MS, signal: over });
    setState({ said: `Reached after ${durationText(elapsedMs)}: at ${body.isolation_level} the store is at ${positionText(body.position)}.`, error: null });
    onReached();
  } catch (error) {
    if (over.aborted) return;
    if (!(error instanceof Problem || error instanceof Unreachable)) throw error;
    setState({ said: null, error });
  }
}

/** Return the Position with each partition one record further. */
function oneFurther(position) {
  const further = (partitions) => Object.fromEntries(Object.entries(partitions).map(([number, offset]) => [number, Number(offset) + 1]));
  return Object.fromEntries(Object.entries(position).map(([topic, partitions]) => [topic, further(partitions)]));
}

function Unreached({ error }) {
  if (error.status !== 412) return html`<${Failure} error=${error} />`;
  const { position, bound, partition } = error.body;
  return html`<div class="problem" role="alert"><p>Not reached in that time. Wait longer, or for less.</p>
    <${Facts} facts=${[["Partition", String(partition)], ["It is at", positionText(position)], ["Wanted", positionText(bound)], ["The server says", error.message]]} /></div>`;
}
