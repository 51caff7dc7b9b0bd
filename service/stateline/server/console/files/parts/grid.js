/** A grid of thousands of rows by Tabulator, which renders only visible rows. The owner of the rows sorts them. */

import { html, useEffect, useRef, useState } from "../vendor/htm-preact-3.1.1.js";
import { module, style } from "../base/vendor.js";
import { Table } from "./table.js";

const NARROW_PX = 640;
const ROW_PX = 30;
const FALLBACK_ROWS = 200; // shown if the library cannot be loaded

/**
 * `of` identifies the list: another list starts at the top, the same one keeps its scroll position. `rows` have an `id`; `columns` are
 * `{id, isNumber}`; `cell(row, column)` returns `{text, title, changed, isNull}`. `sort` is a column's id, descending with a minus; `onSort`
 * gets another one. `onOpen` gets the row chosen by a click, or by arrow keys and Enter. `open` is the id of the row shown elsewhere.
 */
export function Grid({ label, of, rows, columns, cell, sort, onSort, open, onOpen }) {
  const host = useRef(null);
  const table = useRef(null);
  const filled = useRef(of);
  const [missing, setMissing] = useState(false);
  const now = useRef(null);
  now.current = { rows, columns, cell, sort, onSort, open, onOpen };
  useEffect(() => {
    let gone = false;
    Promise.all([module("tabulator-6.5.3.js"), style("tabulator-6.5.3.css")]).then(
      ([{ Tabulator, FormatModule, FrozenColumnsModule, InteractionModule, ResizeColumnsModule, ResizeTableModule }]) => {
        if (gone) return;
        Tabulator.registerModule([FormatModule, FrozenColumnsModule, InteractionModule, ResizeColumnsModule, ResizeTableModule]);
        const given = now.current;
        const made = new Tabulator(host.current, optionsOf(now));
        made.on("rowClick", (_, row) => now.current.onOpen(row.getData().row));
        made.on("tableBuilt", () => {
          if (gone) return made.destroy();
          table.current = made;
          giveRoles(host.current);
          if (now.current.columns !== given.columns) setColumns(made, host.current, now);
          else sayOrder(host.current, now.current);
          if (now.current.rows !== given.rows) made.replaceData(now.current.rows.map(asData));
          return undefined;
        });
      },
      () => setMissing(true),
    );
    return () => {
      gone = true;
      table.current?.destroy();
      table.current = null;
    };
  }, []);
  const names = columns.map(({ id }) => id).join("\n");
  useEffect(() => table.current && setColumns(table.current, host.current, now), [names]);
  useEffect(() => table.current && sayOrder(host.current, now.current), [sort]);
  useEffect(() => {
    const isSame = filled.current === of;
    filled.current = of;
    table.current?.[isSame ? "replaceData" : "setData"](rows.map(asData));
  }, [rows]);
  useEffect(() => mark(host.current, open), [open, rows]);
  if (missing) return html`<${Fallback} label=${label} rows=${rows} columns=${columns} cell=${cell} />`;
  return html`<div ref=${host} class="grid" role="group" aria-label=${label} aria-description="Arrow keys open the row before or after, Enter the first one" onKeyDown=${(event) => move(event, table.current, now.current)}></div>`;
}

function Fallback({ label, rows, columns, cell }) {
  const shown = rows.slice(0, FALLBACK_ROWS).map((row) => ({ id: row.id, cells: columns.map((column) => cell(row, column).text) }));
  return html`<p class="note">The grid cannot be shown: its library did not come. These are the first ${shown.length} rows.</p>
    <${Table} caption=${label} columns=${columns.map(({ id }) => id)} rows=${shown} />`;
}

function optionsOf(now) {
  return {
    data: now.current.rows.map(asData),
    columns: columnsFor(now),
    index: "id",
    nestedFieldSeparator: false,
    layout: "fitDataFill",
    maxHeight: "min(36rem, 75vh)",
    placeholder: "No rows",
    rowHeight: ROW_PX, // otherwise each row is measured while scrolling
    columnDefaults: { resizable: "header", maxInitialWidth: 360, minWidth: 60, vertAlign: "top" },
    rowFormatter: (row) => decorate(row.getElement(), row.getData().id, now.current.open),
  };
}

function asData(row) {
  return { id: row.id, row };
}

function columnsFor(now) {
  return now.current.columns.map((column, i) => ({
    title: column.id,
    field: `c${i}`,
    frozen: i === 0 && now.current.columns.length > 1 && innerWidth > NARROW_PX,
    hozAlign: column.isNumber ? "right" : "left",
    headerHozAlign: column.isNumber ? "right" : "left",
    titleFormatter: () => heading(column, now),
    formatter: (each) => content(now.current.cell(each.getData().row, column), each.getElement()),
  }));
}

/** The scrolling element has the focus, so it gets the role of the row group. */
function giveRoles(host) {
  host.removeAttribute("aria-owns");
  host.querySelector(".tabulator-tableholder").setAttribute("role", "rowgroup");
  host.querySelector(".tabulator-table").setAttribute("role", "presentation");
}

function setColumns(table, host, now) {
  table.setColumns(columnsFor(now));
  sayOrder(host, now.current);
}

/** The order of the rows. Columns keep their widths. */
function sayOrder(host, { columns, sort }) {
  columns.forEach(({ id }, i) => {
    const heading = host.querySelector(`.tabulator-col[tabulator-field=c${i}]`);
    if (heading === null) return;
    const [order, arrow, title] = sort === id ? ["ascending", " ▲", "Sorted, smallest first"] : sort === `-${id}` ? ["descending", " ▼", "Sorted, largest first"] : ["none", "", "Sort"];
    heading.setAttribute("aria-sort", order);
    heading.querySelector("button").title = title;
    heading.querySelector("button span").textContent = arrow;
  });
}

/** A button, because Tabulator's own headings read titles as markup. */
function heading({ id }, now) {
  const button = Object.assign(document.createElement("button"), { type: "button", className: "sorts" });
  button.append(document.createTextNode(id), Object.assign(document.createElement("span"), { ariaHidden: "true" }));
  button.addEventListener("click", () => {
    const { sort, onSort } = now.current;
    onSort(sort === id ? `-${id}` : sort === `-${id}` ? "" : id);
  });
  return button;
}

function content({ text, title, changed, isNull }, element) {
  element.classList.toggle("changed", changed === true);
  element.classList.toggle("null", isNull === true);
  if (title) element.title = title;
  return document.createTextNode(text);
}

function decorate(element, id, open) {
  element.dataset.id = id;
  element.setAttribute("aria-selected", String(id === open));
}

function mark(host, open) {
  for (const row of host?.querySelectorAll(".tabulator-row") ?? []) row.setAttribute("aria-selected", String(row.dataset.id === open));
}

/** Arrow keys open the row before or after the open one, Enter the first one. */
function move(event, table, { rows, open, onOpen }) {
  if (!event.target.classList.contains("tabulator-tableholder")) return;
  const step = { ArrowDown: 1, ArrowUp: -1, Enter: 0 }[event.key];
  if (step === undefined || rows.length === 0) return;
  event.preventDefault();
  const at = rows.findIndex(({ id }) => id === open);
  const row = rows[Math.min(rows.length - 1, Math.max(0, at + step))];
  onOpen(row);
  table?.scrollToRow(row.id, "nearest", false).catch(() => {}); // it is gone, and the next rows are loading
}
