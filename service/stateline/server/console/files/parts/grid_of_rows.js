/** Rows in a grid that the address sorts, filters and limits to columns, beside the open row. */

import { html, useMemo } from "../vendor/htm-preact-3.1.1.js";
import { counted, countText } from "../base/format.js";
import { compact } from "../base/json.js";
import { isNumeric } from "../base/numbers.js";
import { addressOf, listText, setQuery } from "../base/place.js";
import { Grid } from "./grid.js";
import { arranged, arrangementOf, cellText, valueAt } from "./rows.js";
import { Facts } from "./table.js";
import { Copy, shortText, Time, Value } from "./value.js";

const MOST_IN_CELL = 80;
const SAMPLE = 50;
const MOST_COLUMNS = 200; // unless columns are chosen

/** `rows` and `columns` of `rows.js`; `changed` is row id → ids of marked columns. Without keys, `store` is not needed. */
export function Rows({ store, label = `Entries of ${store.store}`, query, rows, columns, changed }) {
  const arrangement = arrangementOf(query);
  const { find, sort } = arrangement;
  const shown = useMemo(() => arranged(rows, columns, { find, sort }), [rows, columns, find, sort]);
  const chosen = useMemo(() => shownOf(arrangement, query, columns).map((column) => ({ ...column, isNumber: isNumber(rows, column) })), [columns, query.columns]);
  const cell = (row, column) => {
    const { text, title, isNull } = cellText(valueAt(row, column), column);
    return { isNull, text: shortText(text, MOST_IN_CELL), title: title ?? (text.length > MOST_IN_CELL ? text.slice(0, 2000) : null), changed: changed.get(row.id)?.has(column.id) };
  };
  const { open: _, columns: __, every: ___, ...of } = query;
  const open = rows.length === 1 ? rows[0] : rows.find(({ id }) => id === query.open);
  return html`
    <div class="buttons">
      <div class="field"><label for="find">Find in these rows</label>
        <input id="find" type="search" value=${find} onInput=${(event) => setQuery({ find: event.target.value }, { replace: true })} /></div>
      <${Columns} columns=${columns} chosen=${chosen} />
      <p role="status">${find ? `${countText(shown.length)} of ${countText(rows.length)} rows` : counted(rows.length, "row")}</p>
    </div>
    <div class=${open ? "rows with-row" : "rows"}>
      <${Grid} label=${label} of=${JSON.stringify(of)} rows=${shown} columns=${chosen} cell=${cell} sort=${sort}
        onSort=${(next) => setQuery({ sort: next })} open=${open?.id} onOpen=${(row) => setQuery({ open: row.id }, { replace: true })} />
      ${open && html`<${Row} store=${store} row=${open} isOnly=${rows.length === 1} />`}
    </div>`;
}

function shownOf(arrangement, query, columns) {
  return query.columns ? arrangement.chosen(columns) : columns.slice(0, MOST_COLUMNS);
}

/** Times are left-aligned: their texts have one length. */
function isNumber(rows, column) {
  const first = rows.slice(0, SAMPLE).map((row) => valueAt(row, column)).find((value) => value !== undefined && value !== null);
  return !column.isTime && isNumeric(first);
}

function Columns({ columns, chosen }) {
  const ids = chosen.map(({ id }) => id);
  const toggle = (id) => {
    const next = columns.map((column) => column.id).filter((each) => (each === id) !== ids.includes(each));
    if (next.length > 0) setQuery({ columns: next.length === columns.length ? null : listText(next) });
  };
  return html`<details class="columns"><summary>Columns: ${ids.length} of ${columns.length}</summary>
    <div class="choices">${columns.map(
      ({ id }) => html`<label key=${id} class="check"><input type="checkbox" checked=${ids.includes(id)} onChange=${() => toggle(id)} />${id}</label>`,
    )}</div>
  </details>`;
}

function Row({ store, row: { entry, keyText, keyAt }, isOnly }) {
  const times = ["start", "end", "timestamp", "valid_to"].filter((name) => entry[name] !== undefined && entry[name] !== null);
  const labels = { start: "Start", end: "End", timestamp: "Timestamp", valid_to: "Valid to" };
  return html`<aside class="panel row" aria-label=${keyText === null ? "The row that is open" : `The row of ${keyText}`}>
    ${keyText !== null && html`<h3><a href=${addressOf({ place: "key", store: store.store, key: keyAt })}>${keyText}</a></h3>`}
    <${Facts} facts=${times.map((name) => [labels[name], html`<${Time} ms=${entry[name]} withUtc />`])} />
    ${entry.headers?.length > 0 && html`<${Facts} facts=${[["Headers", compact(entry.headers)]]} />`}
    ${entry.found === false ? html`<p>There is no such key.</p>` : html`<${Value} value=${entry.value} />`}
    <div class="buttons">
      <${Copy} text=${() => compact(entry.value)} label="Copy value" />
      ${keyText !== null && html`<${Copy} text=${keyAt} label="Copy key" />`}
      ${!isOnly && html`<button type="button" onClick=${() => setQuery({ open: null }, { replace: true })}>Close</button>`}
    </div>
  </aside>`;
}
