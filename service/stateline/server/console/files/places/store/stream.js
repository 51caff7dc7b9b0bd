/** All rows of a question, read as one stream, of one state: to be shown, or to be kept as a file. */

import { html, useEffect, useRef, useState } from "../../vendor/htm-preact-3.1.1.js";
import { open, Problem, Unreachable } from "../../base/api.js";
import { countText } from "../../base/format.js";
import { parseExactly } from "../../base/json.js";
import { Reflects } from "../../parts/answer.js";
import { Failure } from "../../parts/problem.js";
import { requestOf } from "../../parts/query_form.js";
import { arranged, columnsOf, csvOf, rowOf } from "../../parts/rows.js";
import { save, saveArrow, Saves } from "../../parts/saves.js";

export const MOST_SHOWN = 100_000;
const MOST_IN_CSV = 1_000_000;
const TOLD_EVERY_MS = 250;

/**
 * Read the rows of a question's stream, `most` at most. `onProgress` is called with them, and how many were read, a few times a
 * second; `kept`, which picks those of them that are wanted, now and then. Returns `{rows, count, isWhole, reflects}`: `count` is how
 * many were read, which state they are of is as in an answer. Throws as `open`, `Unreachable` when the stream breaks off, the reason of `signal` when that is aborted.
 */
export async function readRows(store, question, { most, signal, onProgress, kept = (rows) => rows }) {
  const response = await open(streamOf(store, question).path, { ...streamOf(store, question), accept: "application/x-ndjson", signal });
  let rows = [];
  let count = 0;
  let toldMs = 0;
  let rest = "";
  try {
    for await (const piece of pieces(response.body.pipeThrough(new TextDecoderStream()))) {
      const lines = (rest + piece).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (count === most) return { rows, count, isWhole: false, reflects: reflectedBy(response.headers) };
        rows.push(rowOf(parseExactly(line)));
        count += 1;
      }
      rows = kept(rows);
      if (performance.now() - toldMs > TOLD_EVERY_MS) {
        toldMs = performance.now();
        onProgress(rows, count);
      }
    }
  } catch (error) {
    signal.throwIfAborted();
    if (!(error instanceof TypeError)) throw error; // as browsers call a connection that broke
    throw new Unreachable(`The stream broke off after ${countText(count)} rows: ask again.`);
  }
  return { rows, count, isWhole: true, reflects: reflectedBy(response.headers) };
}

function reflectedBy(headers) {
  const of = (name) => parseExactly(headers.get(`Stateline-${name}`) ?? "null") ?? undefined;
  return { isolation_level: headers.get("Stateline-Isolation-Level"), position: of("Position"), failures: of("Failures") };
}

async function* pieces(stream) {
  const reader = stream.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    reader.cancel().catch(() => {}); // already over, or broken, of which the reading told
  }
}

function streamOf(store, { name, values }) {
  return requestOf(store, { name, values: { ...values, limit: "", cursor: "" } });
}

/**
 * All rows of a question once `wanted`: `{rows, state, failure, stop}`. `state` is null, "reading", "whole", "cut", "stopped" or
 * "failed".
 */
export function useAllRows(store, question, wanted) {
  const [seen, setSeen] = useState({ rows: [], state: null, failure: null });
  const reading = useRef(null);
  const id = JSON.stringify(question);
  useEffect(() => {
    if (!wanted) return undefined;
    const over = new AbortController();
    reading.current = over;
    const read = async () => {
      let rows = [];
      let shown = 0;
      const onProgress = (sofar) => {
        rows = sofar;
        // The grid gets the first and the last rows. In between, it only gets the count.
        if (shown === 0 && sofar.length > 0) shown = sofar.length;
        setSeen((before) => ({ ...before, rows: before.rows.length === shown ? before.rows : sofar.slice(0, shown), count: sofar.length }));
      };
      setSeen({ rows: [], count: 0, state: "reading", failure: null });
      try {
        const found = await readRows(store, question, { most: MOST_SHOWN, signal: over.signal, onProgress });
        setSeen({ rows: found.rows, count: found.rows.length, state: found.isWhole ? "whole" : "cut", failure: null, reflects: found.reflects, atMs: Date.now() });
      } catch (error) {
        if (over.signal.reason === GONE) return;
        const failure = error instanceof Problem || error instanceof Unreachable ? error : null;
        if (failure === null && !over.signal.aborted) throw error;
        setSeen({ rows: [...rows], count: rows.length, state: failure === null ? "stopped" : "failed", failure });
      }
    };
    read();
    return () => over.abort(GONE);
  }, [id, wanted]);
  return { ...seen, stop: () => reading.current?.abort() };
}

const GONE = new Error("nobody looks any more");

/** The progress of reading all rows. */
export function Progress({ all, onBack }) {
  const count = countText(all.count ?? 0);
  const said = {
    reading: `${count} rows so far …`,
    whole: `All ${count} rows, of one state.`,
    cut: `The first ${countText(MOST_SHOWN)} rows: there are more. Narrow the query, or download them.`,
    stopped: `Stopped after ${count} rows.`,
    failed: `Failed after ${count} rows.`,
  }[all.state];
  return html`<div class="buttons">
    <p role="status" id="progress">${said}</p>
    ${all.state === "reading" && html`<progress aria-label="Rows read" max=${MOST_SHOWN} value=${all.count}></progress><button type="button" onClick=${all.stop}>Stop</button>`}
    <button type="button" onClick=${onBack}>Page by page</button>
  </div>
  ${all.reflects && html`<${Reflects} body=${all.reflects} atMs=${all.atMs} />`}
  ${all.failure && html`<${Failure} error=${all.failure} />`}`;
}

/** Buttons to save all rows of a question: CSV as the grid is arranged, Arrow as the server streams it. */
export function Downloads({ store, question, arrangement }) {
  const csv = async (signal, say) => {
    const onProgress = (rows) => say(`${countText(rows.length)} rows so far …`);
    const { rows, isWhole } = await readRows(store, question, { most: MOST_IN_CSV, signal, onProgress });
    const all = columnsOf(rows);
    const columns = arrangement.chosen(all);
    const shown = arranged(rows, all, arrangement);
    save(new Blob([...csvOf(shown, columns)], { type: "text/csv" }), `${store.store}.csv`);
    return `${countText(shown.length)} rows in ${store.store}.csv.${isWhole ? "" : " There are more: narrow the query, or download Arrow."}`;
  };
  const arrow = (signal) => saveArrow(streamOf(store, question), store.store, signal);
  return html`<${Saves} files=${[["CSV of all rows", csv], ["Arrow of all rows", arrow]]} />`;
}
