/** Statements as requests, names in them, and places of their errors. Pure. */

import { timeOf } from "./times.js";

const LONGEST_MS = 3_600_000; // the server's limit is earlier, and there is a button to stop
const PLAIN = /^[a-z_][a-z0-9_]*$/i;
// Words that DuckDB reserves (duckdb_keywords).
const RESERVED = new Set(
  "all analyse analyze and any array as asc asymmetric both case cast check collate column constraint create default deferrable desc describe distinct do else end except false fetch for foreign from group having in initially intersect into lambda lateral leading limit not null offset on only or order pivot pivot_longer pivot_wider placing primary qualify references returning select show some summarize symmetric table then to trailing true union unique unpivot using variadic when where window with".split(" "),
);

/** The members of an address that are a statement. */
export const ASKED = ["q", "params", "as_of", "isolation_level"];

/** The request of a statement `{q, params, as_of, isolation_level}` with `more` members. `params` is JSON, sent as written. */
export function requestOf({ q, params = "", as_of, isolation_level }, more) {
  const members = JSON.stringify({ sql: q, ...(as_of && { as_of: timeOf(as_of) ?? as_of }), ...(isolation_level && { isolation_level }), ...more });
  const body = params.trim() === "" ? members : `${members.slice(0, -1)},"params":${isJson(params) ? params.trim() : JSON.stringify(params)}}`;
  return { method: "POST", path: "v1/sql", body, timeoutMs: LONGEST_MS };
}

function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false; // sent as a text, which the server refuses with what it accepts
  }
}

/** A name as a statement has it. */
export function nameText(name) {
  return PLAIN.test(name) && !RESERVED.has(name.toLowerCase()) ? name : `"${name.replaceAll('"', '""')}"`;
}

/** The statement that "Query in SQL" of a store opens. */
export function firstOf(store) {
  return `select * from ${nameText(store)} limit 100`;
}

/**
 * `{message, drawn, place}` of an error's text: without the lines that draw its place, these lines, and the place as
 * `{line, column, from, to}` of characters of the statement. The last two are null without a place.
 */
export function placeOf(detail, sql) {
  const [whole, prefix, number, shown, before, marks] = /\n+((?:LINE )(\d+): )(.*)\n( *)(\^+)\s*$/.exec(detail) ?? [];
  if (whole === undefined) return { message: detail, drawn: null, place: null };
  const message = detail.slice(0, -whole.length);
  const lines = sql.split("\n");
  const line = Number(number);
  const text = lines[line - 1] ?? "";
  const cut = shown.replace(/^\.\.\.|\.\.\.$/g, ""); // a long line is shown in part
  const begin = text.indexOf(cut) - (shown.startsWith("...") ? 3 : 0);
  const at = begin + before.length - prefix.length;
  if (!text.includes(cut) || at < 0 || at > text.length) return { message, drawn: whole.trim(), place: null };
  const from = lines.slice(0, line - 1).reduce((sum, each) => sum + each.length + 1, 0) + at;
  const length = Math.max(marks.length, /^\w*/.exec(text.slice(at))[0].length, 1);
  return { message, drawn: whole.trim(), place: { line, column: at + 1, from, to: Math.min(sql.length, from + length) } };
}
