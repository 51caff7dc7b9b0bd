/** The rows of a statement, and the state that they are of. */

import { html, useMemo } from "../../vendor/htm-preact-3.1.1.js";
import { counted, durationText, positionText } from "../../base/format.js";
import { compact } from "../../base/json.js";
import { addressOf } from "../../base/place.js";
import { requestOf } from "../../base/statement.js";
import { clock } from "../../parts/answer.js";
import { Rows } from "../../parts/grid_of_rows.js";
import { useMoved } from "../../parts/moved.js";
import { arranged, arrangementOf, csvOf } from "../../parts/rows.js";
import { save, saveArrow, Saves } from "../../parts/saves.js";
import { Nothing, Table } from "../../parts/table.js";
import { drawableOf, SqlChart } from "./chart.js";
import { Trouble } from "./trouble.js";

const MOST_IDENTIFYING = 3; // columns
const SHARED_MS = 60_000; // the rows that are shown, if the server still has them

/** The answer of `asked`. `children` come beside the views. */
export function Result({ seen, asked, isStopped, everyS, query, onPlace, children }) {
  const { answer, failure, asking } = seen;
  const { rows, columns } = useMemo(() => tableOf(answer?.body), [answer]);
  const moved = useMoved(seen, rows, everyS, columns);
  const drawable = useMemo(() => drawableOf(rows, columns), [rows]);
  const isDrawn = drawable !== null && query.view === "chart";
  return html`
    <p id="summary" role="status" aria-live=${everyS > 0 && failure === null ? "off" : "polite"}>${saidOf(seen, isStopped, everyS)}</p>
    ${failure !== null && !asking && html`<${Trouble} error=${failure} sql=${asked.q} onPlace=${onPlace} />`}
    ${answer !== null && html`<${State} body=${answer.body} />`}
    ${drawable !== null && html`<${Views} query=${query} isDrawn=${isDrawn} />`}
    <div class="buttons">${children}</div>
    ${moved.said !== null && html`<p class="note" id="moved">${moved.said}</p>`}
    ${answer !== null && rows.length === 0 && html`<${Nothing}>No rows. Its columns: ${columns.map(({ id }) => id).join(", ")}.<//>`}
    ${isDrawn && html`<${SqlChart} rows=${rows} columns=${columns} drawable=${drawable} query=${query} />`}
    ${rows.length > 0 && html`
      ${!isDrawn && html`<${Rows} label="Rows of the statement" query=${query} rows=${rows} columns=${columns} changed=${moved.changed} />`}
      <${Downloads} asked=${asked} rows=${rows} columns=${columns} query=${query} />`}`;
}

function Views({ query, isDrawn }) {
  const link = (view, name, isHere) => html`<li><a href=${addressOf({ place: "sql", query: { ...query, view } })} aria-current=${isHere ? "page" : null}>${name}</a></li>`;
  return html`<nav aria-label="Views of the answer"><ul class="tabs">${link(null, "Rows", !isDrawn)}${link("chart", "Chart", isDrawn)}</ul></nav>`;
}

function saidOf({ answer, asking, failure, failedAtMs }, isStopped, everyS) {
  if (isStopped) return "Stopped.";
  if (asking && (everyS === 0 || answer === null)) return "Asking …";
  if (failure !== null) return everyS > 0 ? `No answer at ${clock(failedAtMs)}. The last answer is still shown. Trying again.` : "There is no answer.";
  return answer === null ? "" : `${counted(answer.body.rows.length, "row")}, ${counted(answer.body.rows_read, "row")} read. ${durationText(answer.elapsedMs)}.`;
}

function State({ body: { isolation_level: level, position, positions, cut, no_cut: noCut, read_at: readAt, reads } }) {
  const tables = Object.keys(positions);
  if (tables.length === 0) return html`<p class="note">No store was read.</p>`;
  const moment = tables.length === 1 ? "" : cut ? " All tables are of one cut." : ` There is no cut: each table is of its own moment. ${noCut}`;
  const rows = tables.map((table) => ({ id: table, cells: [table, reads.find((read) => read.startsWith(`${table}: `))?.slice(table.length + 2) ?? "", positionText(positions[table])] }));
  return html`<p class="note">Read at <code>${level}</code>, up to ${positionText(position)}, as it was at ${clock(readAt)}.${moment}</p>
    ${tables.length > 1 && html`<details><summary>Positions of ${tables.length} tables</summary><${Table} caption="Positions" columns=${["Table", "Read", "Position"]} rows=${rows} /></details>`}`;
}

/** Rows and columns of a grid. */
function tableOf(body) {
  if (body === undefined) return { rows: [], columns: [] };
  const columns = body.columns.map(({ name, type }) => ({ id: name, path: ["value", name], type, isTime: false, isSql: true }));
  const ids = idsOf(body.rows, columns.map(({ id }) => id));
  return { rows: body.rows.map((value, i) => ({ id: ids[i], entry: { value }, keyText: null, keyAt: null })), columns };
}

/** What tells rows apart: the first columns that do, else their numbers. */
function idsOf(rows, names) {
  for (let count = 1; count <= Math.min(names.length, MOST_IDENTIFYING); count += 1) {
    const ids = rows.map((row) => names.slice(0, count).map((name) => compact(row[name])).join("~"));
    if (new Set(ids).size === ids.length) return ids;
  }
  return rows.map((_, i) => String(i));
}

function Downloads({ asked, rows, columns, query }) {
  const csv = async () => {
    const arrangement = arrangementOf(query);
    const shown = arranged(rows, columns, arrangement);
    save(new Blob([...csvOf(shown, arrangement.chosen(columns))], { type: "text/csv" }), "sql.csv");
    return `${counted(shown.length, "row")} in sql.csv.`;
  };
  const arrow = (signal) => saveArrow(requestOf(asked, { max_age_ms: SHARED_MS }), "sql", signal);
  return html`<${Saves} files=${[["CSV", csv], ["Arrow", arrow]]} />`;
}
