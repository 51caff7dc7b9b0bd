/** Finds the changes of one key in a store's feed. */

import { keyOf, parseExactly } from "../../base/json.js";

/** Return the change in an event's data if it changes this key, else null. */
export function changeOf(store, key, data) {
  const change = parseExactly(data);
  return isKey(store, key, keyOf(change)) ? change : null;
}

/** Whether two texts mean the same key: numbers and UUIDs have several spellings. */
export function isKey(store, key, other) {
  if (key === other) return true;
  if (store.key_type === "uuid") return key.toLowerCase() === other.toLowerCase();
  if (/^int/.test(store.key_type)) return /^-?\d+$/.test(key) && BigInt(key) === BigInt(other);
  return store.key_type === "float64" && Number(key) === Number(other);
}
