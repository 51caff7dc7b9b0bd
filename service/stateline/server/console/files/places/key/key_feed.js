/** The change feed of a store, for one key. */

import { useEffect, useState } from "../../vendor/htm-preact-3.1.1.js";
import { useFeed } from "../../base/feed.js";
import { changeOf } from "./is_key.js";

/**
 * Follow the changes of these partitions, a text, from `latest` or `earliest` on; null follows nothing. `onFound` is called
 * with the changes of the key that came. Returns `{said, failure, read, own}`: how it goes, and how many changes were read,
 * and were of this key.
 */
export function useKeyFeed(store, key, from, partitions, onFound) {
  const [begun, setBegun] = useState(null); // the first that were given: a key that appears narrows them, the feed stays
  useEffect(() => setBegun((known) => (partitions === null ? null : (known ?? partitions))), [partitions]);
  const path = begun === null ? null : `v1/stores/${encodeURIComponent(store.store)}/changes?partition=${begun}&from=${from}`;
  const none = { of: `${path} ${key}`, read: 0, own: 0 };
  const [counted, setCounted] = useState(none);
  const take = (came) => {
    const found = came.map((data) => changeOf(store, key, data)).filter((change) => change !== null);
    setCounted((before) => {
      const { read, own } = before.of === none.of ? before : none;
      return { ...none, read: read + came.length, own: own + found.length };
    });
    if (found.length > 0) onFound(found);
  };
  const told = useFeed(path, take, { anew: key });
  return { ...told, ...(counted.of === none.of ? counted : none) };
}
