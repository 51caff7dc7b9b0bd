/** An answer, a problem or silence, as elements. */

import { Problem } from "./api.js";
import { durationText, element, table, timeText } from "./elements.js";
import { indented, shown } from "./json.js";
import { positionText } from "./stores.js";

const TIMES = new Set(["timestamp", "start", "end", "valid_to"]);
const MOST_ROWS = 500;
const MOST_CELL_CHARACTERS = 2_000;
const MOST_JSON_CHARACTERS = 200_000;

/** One sentence about an answer. */
export function summary(answer) {
  const took = `Status ${answer.status}, ${durationText(answer.elapsedMs)}.`;
  const { body } = answer;
  if (body.entries) return `${body.entries.length} ${body.entries.length === 1 ? "entry" : "entries"}${body.cursor ? ", more to come" : ""}. ${took}`;
  if (body.found === false) return `There is no such key. ${took}`;
  return `Answered. ${took}`;
}

/** The answer as a table, its exact JSON, and what it reflects. */
export function answerElements(answer) {
  const { body } = answer;
  const rows = tableElements(body);
  return [...rows, failures(body.failures), reflects(body), jsonDetails(answer.text, rows.length === 0)].filter(Boolean);
}

/** A problem in words, and whatever else it says; what is no problem in its own words. */
export function failureElements(error) {
  if (!(error instanceof Problem)) return [element("p", { class: "problem" }, error.message)];
  const { reason = "No reason given", partition, owner, position, bound } = error.body;
  const facts = [
    ["Reason", `${reason} (status ${error.status})`],
    ["Partition", partition],
    ["Has it", owner],
    ["Position", position && positionText(position)],
    ["Bound", bound && positionText(bound)],
  ].filter(([, value]) => value !== undefined && value !== null);
  const list = element("dl", {}, ...facts.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, String(value)))));
  return [element("p", { class: "problem" }, error.message), list, failures(error.body.failures)].filter(Boolean);
}

/** The text of a cell: times as ISO 8601, other values as compact JSON, cut when very long. */
export function cellText(column, value) {
  if (value === undefined) return "";
  const text = TIMES.has(column) ? timeText(value) : shown(value);
  return text.length > MOST_CELL_CHARACTERS ? `${text.slice(0, MOST_CELL_CHARACTERS)} …` : text;
}

/** Rows of an answer's own members, if it has any that make a table. */
function tableElements(body) {
  if (body.committed && body.uncommitted) return [positionTable(body)];
  const own = ["found", "key", "value", "timestamp", "valid_to", "approximate_entries"].filter((name) => name in body);
  const entries = body.entries ?? (own.length > 0 ? [body] : []);
  const columns = body.entries ? [...new Set(entries.slice(0, MOST_ROWS).flatMap(Object.keys))] : own;
  if (entries.length === 0) return [];
  const rows = entries.slice(0, MOST_ROWS).map((entry) => columns.map((column) => cellText(column, entry[column])));
  const cut = entries.length > MOST_ROWS ? [element("p", {}, `The first ${MOST_ROWS} of ${entries.length}; all are in the JSON.`)] : [];
  return [table("As a table", columns, rows), ...cut];
}

function positionTable({ committed, uncommitted }) {
  const numbers = [...new Set([...Object.keys(committed), ...Object.keys(uncommitted)])];
  const rows = numbers.map((number) => [number, positionText(committed[number]), positionText(uncommitted[number])]);
  return table("As a table", ["Partition", "Committed", "Uncommitted"], rows);
}

function failures(byPartition) {
  if (!byPartition || Object.keys(byPartition).length === 0) return null;
  const rows = Object.entries(byPartition).map(([partition, failure]) => [partition, failure.reason, failure.detail ?? ""]);
  return table("Partitions that failed", ["Partition", "Reason", "What to do"], rows);
}

function reflects(body) {
  if (!body.position) return null;
  return element("p", { class: "note" }, `Read at ${body.isolation_level}, up to ${positionText(body.position)}.`);
}

function jsonDetails(text, open) {
  const laidOut = indented(text.length > MOST_JSON_CHARACTERS ? text.slice(0, MOST_JSON_CHARACTERS) : text);
  const pre = element("pre", { tabindex: "0", role: "region", "aria-label": "Answer as JSON" }, laidOut);
  const cut = text.length > MOST_JSON_CHARACTERS ? [element("p", {}, "Cut here: curl has all of it.")] : [];
  return element("details", { open }, element("summary", {}, "As JSON"), pre, ...cut);
}

/** For messages beside a control: the words of any failure. */
export function failureText(error) {
  return error instanceof Problem && error.body.reason ? `${error.body.reason}: ${error.message}` : error.message;
}

