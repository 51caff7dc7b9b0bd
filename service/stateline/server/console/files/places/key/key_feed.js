/** The change feed of a store, for one key. */

import { useEffect, useState } from "../../vendor/htm-preact-3.1.1.js";
import { useFeed } from "../../base/feed.js";
import { changeOf } from "./is_key.js";

/**
 * Follow the changes of these partitions (a text) from `latest` or `earliest`; null follows nothing. `onFound` gets the new changes of
 * the key. Returns `{said, failure, read, own}`: the feed's state, and the numbers of changes read and of the key.
 */
export function useKeyFeed(store, key, from, partitions, onFound) {
  const [begun, setBegun] = useState(null); // the first partitions: a key that appears narrows them, but the feed stays
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
