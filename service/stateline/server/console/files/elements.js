/** Elements of the page. Text goes in as text nodes only: data can never become markup. */

const LONGEST_LINE = 32; // of a cell: a time in ISO 8601 fits
const SVG = "http://www.w3.org/2000/svg";

/** An HTML element; `attributes` of false or null are left out, those of functions are listeners. */
export function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** An SVG element. */
export function shape(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

export function byId(id) {
  return document.getElementById(id);
}

/** Set a text only when it changed, so that a selection, and what reads along, stays undisturbed. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** A table with a caption and column headings; `rows` are arrays of texts or elements. It scrolls sideways by itself. */
export function table(caption, columns, rows) {
  const head = element("tr", {}, ...columns.map((column) => element("th", { scope: "col" }, column)));
  const body = rows.map((row) => element("tr", {}, ...row.map(tableCell)));
  const made = element("table", {}, element("caption", {}, caption), element("thead", {}, head), element("tbody", {}, ...body));
  return element("div", { class: "scroll", role: "region", "aria-label": caption, tabindex: "0" }, made);
}

/** A short text stays on one line. */
function tableCell(cell) {
  const short = typeof cell === "string" && cell.length <= LONGEST_LINE;
  return element("td", { class: short ? "short" : null }, cell);
}

/** Milliseconds since the epoch as ISO 8601 in UTC; what no date can hold as the number it is. */
export function timeText(ms) {
  if (ms === null || ms === undefined) return "none";
  const date = new Date(Number(ms));
  return Number.isNaN(date.getTime()) ? String(ms) : date.toISOString();
}

/** A duration for people. */
export function durationText(ms) {
  if (ms < 1000) return `${ms < 10 ? Number(ms.toFixed(1)) : Math.round(ms)} ms`;
  if (ms < 120_000) return `${(ms / 1000).toFixed(1)} s`;
  return ms < 7_200_000 ? `${Math.round(ms / 60_000)} min` : `${Math.round(ms / 3_600_000)} h`;
}

/** A number with thousands separated. */
export function countText(number) {
  return typeof number === "bigint" || Number.isFinite(number) ? number.toLocaleString("en") : "unknown";
}
