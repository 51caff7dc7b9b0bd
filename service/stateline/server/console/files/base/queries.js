/** Every query as a request: which kinds of store answer it, what it takes, its URL or body, its curl line. Pure. */

const PAGED = ["limit", "cursor"];
const TIMES = ["from", "to", "order", ...PAGED];

/** `type` is the query's in a body, `fields` are its own, `fixed` are parameters that it always has, `path` is below the store; without one it is a body always. */
export const QUERIES = {
  key: { label: "One key", type: "key", fields: ["key"], path: "keys/{key}" },
  keys: { label: "Many keys", type: "keys", fields: ["keys"] },
  versioned_key: { label: "One key, now or as of a time", type: "key", fields: ["key", "as_of"], path: "keys/{key}" },
  versioned_keys: { label: "Many keys, now or as of a time", type: "keys", fields: ["keys", "as_of"] },
  range: { label: "Range or prefix", type: "range", fields: ["prefix", "lower", "upper", "order", ...PAGED], path: "range" },
  versioned_range: {
    label: "Range or prefix, now or as of a time",
    type: "range",
    fields: ["prefix", "lower", "upper", "as_of", "order", ...PAGED],
    path: "range",
  },
  versions: { label: "Versions of a key", type: "versions", fields: ["key", ...TIMES], path: "keys/{key}/versions" },
  key_windows: { label: "Windows of a key", type: "windows", fields: ["key", ...TIMES], path: "keys/{key}/windows" },
  windows: { label: "Windows of all keys", type: "windows", fields: TIMES, path: "windows" },
  sessions: { label: "Sessions of a key", type: "sessions", fields: ["key", ...TIMES], path: "keys/{key}/sessions" },
  all_sessions: { label: "Sessions of all keys", type: "sessions", fields: TIMES, path: "sessions" },
  count: { label: "Count", type: "count", fields: [], fixed: { exact: "true" }, path: "count" },
  position: { label: "Position", fields: [], path: "position" },
};

/** Taken by every query. */
export const COMMON_FIELDS = ["isolation_level", "partition", "position_bound", "wait_ms", "require_active", "allow_partial"];

const OF_EVERY_STORE = ["count", "position"];
const IN_PATH_OR_BODY = ["key", "keys"];
const AS_TEXT = `"keys_as": "text"`; // keys stand in a body as they do in a URL

/** The names of the queries that a kind of store answers. */
export function queriesOf(kind) {
  switch (family(kind)) {
    case "key_value":
      return ["key", "keys", "range", ...OF_EVERY_STORE];
    case "window":
      return ["key_windows", "windows", ...OF_EVERY_STORE];
    case "session":
      return ["sessions", "all_sessions", ...OF_EVERY_STORE];
    case "versioned":
      return ["versioned_key", "versioned_keys", "versioned_range", "versions", ...OF_EVERY_STORE];
    default:
      return OF_EVERY_STORE;
  }
}

/** Family of a kind → the query of one key. */
export const OF_ONE_KEY = { key_value: "key", versioned: "versioned_key", window: "key_windows", session: "sessions" };

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
  const given = { ...query.fixed, ...Object.fromEntries(taken.filter((field) => (values[field] ?? "") !== "").map((field) => [field, values[field]])) };
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
