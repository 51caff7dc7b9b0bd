/** Which changes of a store's feed are those of one key. */

import { keyOf, parseExactly } from "../../base/json.js";

/** The change that the data of an event are, if it is of this key, else null. */
export function changeOf(store, key, data) {
  const change = parseExactly(data);
  return isKey(store, key, keyOf(change)) ? change : null;
}

/** Whether two texts of keys are the same key: numbers and UUIDs can be written in several ways. */
export function isKey(store, key, other) {
  if (key === other) return true;
  if (store.key_type === "uuid") return key.toLowerCase() === other.toLowerCase();
  if (/^int/.test(store.key_type)) return /^-?\d+$/.test(key) && BigInt(key) === BigInt(other);
  return store.key_type === "float64" && Number(key) === Number(other);
}
