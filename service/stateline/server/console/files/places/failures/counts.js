/** Records dropped since the workers started, with and without a dead letter. */

import { html, useState } from "../../vendor/htm-preact-3.1.1.js";
import { ask, Problem, Unreachable } from "../../base/api.js";
import { countText } from "../../base/format.js";
import { useRepeated } from "../../base/repeat.js";
import { Table } from "../../parts/table.js";

const COUNTED = /^stateline_(?:(pipeline)_)?(skipped|dead_lettered|operators_dropped)(?:_records)?_total\{(?:worker|pipeline)="((?:[^"\\]|\\.)*)"\} (\S+)$/gm;
const DROPPED = /^stateline_step_dropped_records_total\{reason="([a-z_]*)",step="((?:[^"\\]|\\.)*)",worker="((?:[^"\\]|\\.)*)"\} (\S+)$/gm;

/** A table by worker and pipeline; empty while unknown, or if the token may not see it. Another `asked` loads it again. */
export function Counts({ asked }) {
  const [text, setText] = useState("");
  useRepeated(
    async (signal) => {
      try {
        setText((await ask("metrics", { timeoutMs: 5000, signal })).text);
      } catch (error) {
        if (!(error instanceof Problem || error instanceof Unreachable || signal.aborted)) throw error;
      }
    },
    0,
    [asked],
  );
  const rows = Object.entries(leftOutIn(text)).map(([who, { skipped, dead_lettered: letters, operators_dropped: dropped }]) => ({
    id: who,
    alert: skipped > 0 || letters > 0 ? "warn" : null,
    cells: [who, ...[skipped, letters, dropped].map((count) => (count === undefined ? "" : countText(count)))],
  }));
  if (rows.length === 0) return null;
  return html`<${Table} caption="Left out since the start" columns=${["Who", "Skipped", "To dead letters", "Too late or without a key"]} rows=${rows} />
    <${Steps} text=${text} />`;
}

/** A table of dropped records by step and reason; empty without drops. */
function Steps({ text }) {
  const rows = [...text.matchAll(DROPPED)].map(([, reason, step, worker, count]) => ({
    id: `${worker} ${step} ${reason}`,
    cells: [unescaped(worker), unescaped(step), reason.replaceAll("_", " "), countText(Number(count))],
  }));
  if (rows.length === 0) return null;
  return html`<${Table} caption="Dropped by step" columns=${["Worker", "Step", "Reason", "Records"]} rows=${rows} />`;
}

/** Parse Prometheus' text: worker or pipeline → reason → count. */
function leftOutIn(text) {
  const found = {};
  for (const [, pipeline, what, name, count] of text.matchAll(COUNTED)) {
    const who = `${pipeline ? "pipeline " : ""}${unescaped(name)}`;
    (found[who] ??= {})[what] = Number(count);
  }
  return found;
}

/** A label's value in Prometheus' text. */
function unescaped(text) {
  return text.replace(/\\(.)/g, (_, c) => (c === "n" ? "\n" : c));
}
