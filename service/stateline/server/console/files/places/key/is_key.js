/** Which changes of a store's feed are those of one key. */

import { memberTexts, parseExactly } from "../../base/json.js";

/** The change that the data of an event are, if it is of this key, else null. */
export function changeOf(store, key, data) {
  const [written] = memberTexts(`{"all": [${data}]}`, "key");
  return isKey(store, key, written) ? parseExactly(data) : null;
}

/** Whether the JSON text `written` is this key, which an address has. Keys of type `json` are their texts. */
export function isKey(store, key, written) {
  if (store.key_type === "json") return written === key;
  if (/^"/.test(written)) return JSON.parse(written) === key;
  return /^-?\d+$/.test(key) && /^-?\d+$/.test(written) ? BigInt(key) === BigInt(written) : Number(key) === Number(written);
}
