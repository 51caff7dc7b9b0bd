/** The entries of an answer as rows of a grid: columns from the members of values, sorted, filtered, and as CSV. Pure. */

import { localText, utcText } from "../base/format.js";
import { compact, keyOf, shown } from "../base/json.js";
import { isNumeric } from "../base/numbers.js";
import { listOf } from "../base/place.js";

const OWN_BEFORE = ["key", "found", "start", "end"];
const OWN_AFTER = ["timestamp", "headers", "valid_to", "partition", "offset"];
const OWN = [...OWN_BEFORE, ...OWN_AFTER];
const TIMES = new Set(["start", "end", "timestamp", "valid_to"]);
const EMPTY = "\u2400"; // stands for the empty key, because an address omits empty values
const ISO_TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d:?\d\d)$/;
const FORMULA = /^[=+\-@\t\r]/; // text that a spreadsheet would calculate

/**
 * The row of an entry, `{id, entry, keyText, keyAt}`: its key for readers and as a URL has it. Equal `id`s are the same row in other
 * answers. `id` is given if the entry has no unique key.
 */
export function rowOf(entry, id = null) {
  const keyAt = keyOf(entry);
  const keyText = keyAt?.startsWith("base64:") ? shown(entry.key) : keyAt;
  // Windows have a start, sessions a start and an end, versions a time. Key-value stores have one row per key.
  const rest = [entry.start, entry.end, entry.key === undefined && entry.start === undefined ? entry.timestamp : undefined];
  const own = [keyAt, ...rest].filter((part) => part !== null && part !== undefined).join("~");
  return { id: id ?? (own || EMPTY), entry, keyText, keyAt };
}

/**
 * `{id, path, isTime}` of each column: key and times, then members of values, then the timestamp. Members of inner objects have dots
 * (`at.lat`). A value that is not an object is the column `value`.
 */
export function columnsOf(rows) {
  const own = new Set();
  const paths = new Map(); // by the path as text: one member may be called "a.b", and another one b in a
  for (const { entry } of rows) {
    for (const name of OWN) if (isTold(name, name === "key" ? entry.key_text ?? entry.key : entry[name])) own.add(name);
    if (entry.value !== undefined && entry.found !== false) addPaths(paths, entry.value);
  }
  const taken = new Set(OWN);
  const members = [...paths.values()].map((path) => {
    let id = path.slice(1).join(".") || "value";
    while (taken.has(id)) id = `value.${id}`;
    taken.add(id);
    return { id, path, isTime: false };
  });
  const ownColumns = (names) => names.filter((name) => own.has(name)).map((name) => ({ id: name, path: [name], isTime: TIMES.has(name) }));
  return [...ownColumns(OWN_BEFORE), ...members, ...ownColumns(OWN_AFTER)];
}

/** Leaves out columns without content: `found` if only absent keys have it, a time if no row has it. */
function isTold(name, value) {
  return value !== undefined && (name === "found" ? value === false : value !== null);
}

function addPaths(paths, value) {
  const add = (path) => paths.set(JSON.stringify(path), path);
  if (!isObject(value)) return add(["value"]);
  for (const [name, member] of Object.entries(value)) {
    if (!isObject(member)) add(["value", name]);
    else for (const inner of Object.keys(member)) add(["value", name, inner]);
  }
  return undefined;
}

function isObject(value) {
  return value !== null && typeof value === "object" && !Array.isArray(value) && Object.keys(value).length > 0;
}

/** A row's value in a column, or undefined. */
export function valueAt({ entry }, { path }) {
  let value = entry;
  if (path[0] === "key" && value.key === null) return keyOf(value); // JSON has no NaN or infinity
  for (const name of path) {
    if (value === null || typeof value !== "object" || !Object.hasOwn(value, name)) return undefined;
    value = value[name];
  }
  return path.length === 1 && path[0] === "value" && isObject(value) ? undefined : value;
}

/** `{text, title}` of a value in a cell. A time is in the reader's zone, with UTC as title. `isNull` for NULL in a column of SQL. */
export function cellText(value, column) {
  if (value === undefined) return { text: "", title: null };
  if (value === null && column.isSql) return { text: "NULL", title: null, isNull: true };
  if (column.isTime) return { text: localText(value), title: value === null ? null : utcText(value) };
  if (typeof value === "string" && ISO_TIME.test(value) && !Number.isNaN(Date.parse(value))) {
    return { text: localText(Date.parse(value)), title: `${value} (${utcText(Date.parse(value))})` };
  }
  return { text: shown(value), title: null };
}

/** The arrangement of the grid: `find`, `sort`, and the `chosen` columns. */
export function arrangementOf({ find = "", sort = "", columns = "" }) {
  const ids = listOf(columns);
  return { find, sort, chosen: (all) => (ids.length === 0 ? all : all.filter(({ id }) => ids.includes(id))) };
}

/** The rows with `find` in a cell, sorted by the column id in `sort`, descending with a minus. */
export function arranged(rows, columns, { find = "", sort = "" }) {
  const wanted = find.toLowerCase();
  const found = wanted === "" ? rows : rows.filter((row) => textOf(row).includes(wanted));
  const column = columns.find(({ id }) => id === sort.replace(/^-/, "")) ?? columns.find(({ id }) => id === sort);
  if (column === undefined) return found;
  const sign = sort.startsWith("-") && sort !== column.id ? -1 : 1;
  const keyed = found.map((row) => [valueAt(row, column), row]);
  keyed.sort(([one], [other]) => compared(one, other, sign));
  return keyed.map(([, row]) => row);
}

const texts = new WeakMap();

function textOf(row) {
  if (!texts.has(row.entry)) texts.set(row.entry, `${row.keyText ?? ""} ${compact(row.entry)}`.toLowerCase());
  return texts.get(row.entry);
}

/** Numbers, then texts, then others. Missing values and null are last in both orders. */
function compared(one, other, sign) {
  const [rank, otherRank] = [rankOf(one), rankOf(other)];
  if (rank === 3 || otherRank === 3) return rank - otherRank;
  if (rank !== otherRank) return sign * (rank - otherRank);
  const [a, b] = rank === 2 ? [compact(one), compact(other)] : [one, other];
  return a < b ? -sign : a > b ? sign : 0;
}

function rankOf(value) {
  if (value === undefined || value === null) return 3;
  if (isNumeric(value)) return 0;
  return typeof value === "string" ? 1 : 2;
}

/** The changes: row id → ids of changed columns (also removed values), and the numbers of new and removed rows. */
export function changesBetween(before, after, columns = columnsOf([...after, ...before])) {
  const known = new Map(before.map((row) => [row.id, row]));
  const changed = new Map();
  let added = 0;
  for (const row of after) {
    const old = known.get(row.id);
    known.delete(row.id);
    if (old === undefined) added += 1;
    const ids = columns.filter((column) => old === undefined || !isSame(valueAt(old, column), valueAt(row, column))).map(({ id }) => id);
    if (ids.length > 0) changed.set(row.id, new Set(ids));
  }
  return { changed, added, gone: known.size };
}

function isSame(one, other) {
  return one === other || (typeof one === "object" && typeof other === "object" && compact(one ?? null) === compact(other ?? null));
}

/** Rows as CSV (RFC 4180), in pieces: a header, times as ISO 8601 in UTC. A quote precedes text that a spreadsheet would calculate. */
export function* csvOf(rows, columns) {
  yield `${columns.map(({ id }) => csvCell(id)).join(",")}\r\n`;
  for (let at = 0; at < rows.length; at += 1000) {
    const lines = rows.slice(at, at + 1000).map((row) => columns.map((column) => csvCell(csvValue(row, column))).join(","));
    yield `${lines.join("\r\n")}\r\n`;
  }
}

function csvValue(row, column) {
  const value = column.path[0] === "key" && row.keyText !== null && typeof row.entry.key === "object" ? row.keyText : valueAt(row, column);
  return column.isTime && value !== null && value !== undefined ? utcText(value) : value;
}

function csvCell(value) {
  if (value === null || value === undefined) return "";
  if (isNumeric(value)) return String(value);
  const text = shown(value);
  const safe = FORMULA.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}
