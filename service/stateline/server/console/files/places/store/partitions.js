/** The partitions of a store: their owner, state and progress. */

import { html, useState } from "../../vendor/htm-preact-3.1.1.js";
import { ask, Problem, Unreachable } from "../../base/api.js";
import { counted, countText, positionText } from "../../base/format.js";
import { backupText, commitText } from "../../base/health.js";
import { useRepeated } from "../../base/repeat.js";
import { Table } from "../../parts/table.js";

const COLUMNS = ["Partition", "State", "Worker", "Input lag", "Copy lacks", "Committed", "Uncommitted", "Staged", "Last commit"];
const EVERY_MS = 3000;
const TIMEOUT_MS = 3000; // a worker that hangs must not stop the rest of the page

export function Partitions({ store, look }) {
  const [positions, setPositions] = useState({});
  useRepeated(
    async (over) => {
      const path = `v1/stores/${encodeURIComponent(store.store)}/position?isolation_level=read_committed&allow_partial=true`;
      try {
        setPositions((await ask(path, { timeoutMs: TIMEOUT_MS, signal: over })).body);
      } catch (error) {
        if (over.aborted) return;
        if (!(error instanceof Problem || error instanceof Unreachable)) throw error;
        setPositions((before) => ({ ...before, problem: error.message }));
      }
    },
    EVERY_MS,
    [store.store],
  );
  const columns = [...COLUMNS, ...(look.backup ? ["Last backup"] : []), ...(look.cluster === null ? [] : ["Node"])];
  const partitions = look.selected === store.store ? look.partitions : {};
  const rows = Object.entries(partitions).map(([number, partition]) => rowOf(number, partition, positions, look));
  const failures = Object.entries(positions.failures ?? {}).map(([number, { detail, reason }]) => `Partition ${number}: ${detail ?? reason}`);
  return html`
    <div class="live"><${Table} caption=${`Partitions of ${store.store}`} columns=${columns} rows=${rows} /></div>
    ${[positions.problem, ...failures].filter(Boolean).map((text) => html`<p class="note" key=${text}>${text}</p>`)}`;
}

function rowOf(number, known, { committed, uncommitted, partitions: answered }, { cluster, backup }) {
  // Only the answer to a query shows uncommitted writes, and commits of other nodes.
  const partition = { ...answered?.[number], ...known };
  const lag = partition.restore_remaining || partition.lag_records;
  const cells = [
    number,
    partition.unreadable ?? partition.state ?? "unknown",
    partition.owner ?? workerElsewhere(partition, cluster),
    lagsText(partition.input_lag),
    countText(lag),
    positionText(committed?.[number]),
    positionText(uncommitted?.[number]),
    stagedText(partition.staged_records),
    commitText(partition.committed_at_ms),
    ...(backup ? [backupText(partition.backed_up_at_ms)] : []),
    ...(cluster === null ? [] : [partition.node ?? "none"]),
  ];
  return { id: number, cells, alert: partition.unreadable ? "bad" : partition.state === "restoring" ? "warn" : null };
}

function lagsText(topics) {
  if (topics === null || topics === undefined) return "unknown";
  const lags = Object.entries(topics);
  return lags.map(([topic, records]) => (lags.length === 1 ? countText(records) : `${topic} ${countText(records)}`)).join(", ");
}

function workerElsewhere(partition, cluster) {
  const there = cluster !== null && partition.node !== cluster.node ? partition.node : null;
  return there == null ? "none" : `of ${there}`;
}

function stagedText(records) {
  if (records === null || records === undefined) return "unknown";
  return counted(records, "record");
}
