/** Every query as a request: which kinds of store answer it, its URL or body, its curl line. Pure. */

import { QUERIES } from "./kinds.js"; // made by the server

export { QUERIES };

const PAGED = ["limit", "cursor"];
const FIXED = { count: { exact: "true" } }; // parameters that a query always has

/** Taken by every query. */
export const COMMON_FIELDS = ["isolation_level", "partition", "position_bound", "wait_ms", "require_active", "allow_partial"];

const IN_PATH_OR_BODY = ["key", "keys"];
const AS_TEXT = `"keys_as": "text"`; // keys stand in a body as they do in a URL

/** The names of the queries that a kind of store answers. Kinds of an application's own answer those of every kind. */
export function queriesOf(kind) {
  const names = Object.keys(QUERIES);
  const own = names.filter((name) => QUERIES[name].kinds.includes(family(kind)));
  return own.length > 0 ? own : names.filter((name) => QUERIES[name].kinds.length === FAMILIES.length);
}

const FAMILIES = [...new Set(Object.values(QUERIES).flatMap((query) => query.kinds))];

/** Family of a kind → the query of one key. */
export const OF_ONE_KEY = Object.fromEntries(FAMILIES.map((kind) => [kind, queriesOf(kind).find((name) => QUERIES[name].fields.includes("key"))]));

/** The kind without its `timestamped_`, which changes no question. */
export function family(kind) {
  return kind.replace(/^timestamped_/, "");
}

/**
 * `{method, path, body}` of a query with these values; the path has its parameters, and empty values are left out. A
 * cursor knows everything else, so it goes alone, or with a limit.
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

/** Whether a browser would read this key in a path as a folder, even percent-encoded. */
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

/** The same request for a shell. A token is taken from the environment, never written down. */
export function curlLine(url, request, authorized) {
  const words = ["curl", "-s"];
  if (authorized) words.push("-H", '"Authorization: Bearer $STATELINE_TOKEN"');
  if (request.body !== null) words.push("-d", quoted(request.body));
  words.push(quoted(url));
  return words.join(" ");
}

/** A word for a POSIX shell that is taken as it is. */
function quoted(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

function segment(text) {
  return encodeURIComponent(text).replace(/[!'()*]/g, (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`);
}

function linesOf(text) {
  return text.split("\n").filter((line) => line !== "");
}
