/** Every query as a request: the kinds of store that answer it, its URL or body, its curl line. Pure. */

import { QUERIES } from "./kinds.js"; // the server generates it

export { QUERIES };

const PAGED = ["limit", "cursor"];
const FIXED = { count: { exact: "true" } }; // fixed parameters of queries

/** Parameters of every query. */
export const COMMON_FIELDS = ["isolation_level", "partition", "position_bound", "wait_ms", "require_active", "allow_partial"];

const IN_PATH_OR_BODY = ["key", "keys"];
const AS_TEXT = `"keys_as": "text"`; // keys in a body are spelled like in a URL

/** The names of the queries that a kind of store answers. An application's own kinds answer those of every kind. */
export function queriesOf(kind) {
  const names = Object.keys(QUERIES);
  const own = names.filter((name) => QUERIES[name].kinds.includes(family(kind)));
  return own.length > 0 ? own : names.filter((name) => QUERIES[name].kinds.length === FAMILIES.length);
}

const FAMILIES = [...new Set(Object.values(QUERIES).flatMap((query) => query.kinds))];

/** Family of a kind → the query of one key. */
export const OF_ONE_KEY = Object.fromEntries(FAMILIES.map((kind) => [kind, queriesOf(kind).find((name) => QUERIES[name].fields.includes("key"))]));

/** The kind without `timestamped_`, which changes no query. */
export function family(kind) {
  return kind.replace(/^timestamped_/, "");
}

/**
 * The `{method, path, body}` of a query with these values. The path has its parameters, without empty ones. A cursor is sent alone, or
 * with a limit.
 */
export function requestFor(store, name, values) {
  const query = QUERIES[name];
  const taken = values.cursor ? PAGED : [...query.fields, ...COMMON_FIELDS].filter((field) => !IN_PATH_OR_BODY.includes(field));
  const given = { ...FIXED[name], ...Object.fromEntries(taken.filter((field) => (values[field] ?? "") !== "").map((field) => [field, values[field]])) };
  const parameters = Object.entries(given).map(([field, value]) => `${field}=${encodeURIComponent(value)}`).join("&");
  const base = `v1/stores/${segment(store.store)}/`;
  const suffix = parameters && `?${parameters}`;
  if (query.path && !isFolder(query, values)) {
    return { method: "GET", path: `${base}${query.path.replace("{key}", () => segment(values.key))}${suffix}`, body: null };
  }
  return { method: "POST", path: `${base}query${suffix}`, body: `{${bodyMembers(query, values).join(", ")}}` };
}

/** Whether a browser reads this key in a path as a folder, even percent-encoded. */
function isFolder(query, values) {
  return query.fields.includes("key") && /^\.\.?$/.test(values.key);
}

function bodyMembers(query, values) {
  const members = [`"type": "${query.type}"`];
  if (values.cursor) return members;
  if (query.fields.includes("key")) members.push(`"key": ${JSON.stringify(values.key)}`, AS_TEXT);
  if (query.fields.includes("keys")) members.push(`"keys": [${linesOf(values.keys).map((key) => JSON.stringify(key)).join(", ")}]`, AS_TEXT);
  return members;
}

/** The request as a curl line. It takes the token from the environment. */
export function curlLine(url, request, authorized) {
  const words = ["curl", "-s"];
  if (authorized) words.push("-H", '"Authorization: Bearer $STATELINE_TOKEN"');
  if (request.body !== null) words.push("-d", quoted(request.body));
  words.push(quoted(url));
  return words.join(" ");
}

/** Quote a word for a POSIX shell. */
function quoted(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

function segment(text) {
  return encodeURIComponent(text).replace(/[!'()*]/g, (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`);
}

function linesOf(text) {
  return text.split("\n").filter((line) => line !== "");
}
