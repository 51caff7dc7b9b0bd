/** What a statement reads, before it runs. */

import { html, useEffect, useState } from "../../vendor/htm-preact-3.1.1.js";
import { ask, Problem, Unreachable } from "../../base/api.js";
import { counted, localText } from "../../base/format.js";
import { requestOf } from "../../base/statement.js";

const SETTLE_MS = 500; // pause after typing before the server is asked
const NO_PLAN = /^\s*(explain|show|describe|summarize)\b|^\s*$/i;

/** `{said, isRefused}`: the plan of a statement in words, or why it has none. Empty for what reads no store. At once if `isAsked`. */
export function usePlan({ q: sql, params }, isAsked) {
  const [plan, setPlan] = useState({ said: "", isRefused: false });
  useEffect(() => {
    if (NO_PLAN.test(sql)) return setPlan({ said: "", isRefused: false });
    const over = new AbortController(); // a late plan of another text is ignored
    const look = async () => {
      try {
        const { body } = await ask("v1/sql", { ...requestOf({ q: `explain ${sql}`, params }, {}), signal: over.signal });
        setPlan({ said: sentenceOf(body), isRefused: false });
      } catch (error) {
        if (over.signal.aborted) return;
        if (!(error instanceof Problem || error instanceof Unreachable)) throw error;
        setPlan({ said: isAsked ? "" : error.message.split("\n\n")[0], isRefused: true }); // the run says it in full
      }
    };
    const timer = setTimeout(look, isAsked ? 0 : SETTLE_MS);
    return () => {
      clearTimeout(timer);
      over.abort();
    };
  }, [sql, params, isAsked]);
  return plan;
}

export function Plan({ plan: { said, isRefused } }) {
  return html`<p id="plan" class="note">${said && html`<b>${isRefused ? "No plan" : "Plan"}:</b> ${said}`}</p>`;
}

function sentenceOf(rows) {
  return rows.length === 0 ? "reads no rows of a store." : `${rows.map(readText).join("; ")}.`;
}

function readText({ table, reads, estimated_rows: estimate }) {
  const [, keys, which] = /^(\d+ keys?)(?:: |$)([^]*)$/.exec(reads) ?? [];
  if (keys !== undefined) return `reads ${keys} of ${table}${which ? ` (${withTimes(which)})` : ""}`;
  const rows = `about ${counted(estimate, "row")} of ${table}`;
  return reads === "full scan" ? `scans ${rows}` : `reads part of ${rows}: ${withTimes(reads)}`;
}

/** Times of windows, on the clock of the browser. */
function withTimes(text) {
  return text.replace(/, (start|end)( from \S+Z)?( to \S+Z)?(?=, (?:start|end) |$)/g, (span) => span.replace(/\S+Z/g, (time) => localText(Date.parse(time))));
}
