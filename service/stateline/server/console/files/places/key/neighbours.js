/** Links from a key to its store and to the keys before and after it. */

import { html, useState } from "../../vendor/htm-preact-3.1.1.js";
import { ask, Problem, Unreachable } from "../../base/api.js";
import { keyOf } from "../../base/json.js";
import { addressOf } from "../../base/place.js";
import { family, requestFor } from "../../base/queries.js";
import { useRepeated } from "../../base/repeat.js";
import { isKey } from "./is_key.js";

/** Stores of windows and sessions have no order of keys, so there is only a link to the store. */
export function Neighbours({ store, at }) {
  const [found, setFound] = useState({});
  const query = { key_value: "range", versioned: "versioned_range" }[family(store.kind)];
  const action = async (signal) => {
    if (query === undefined) return;
    try {
      const [previous, next] = await Promise.all([
        neighbour(store, at.key, requestFor(store, query, { upper: at.key, order: "desc", limit: "2" }), signal),
        neighbour(store, at.key, requestFor(store, query, { lower: at.key, order: "asc", limit: "2" }), signal),
      ]);
      setFound({ previous, next });
    } catch (error) {
      // No link; the key's own request shows the error.
      if (!signal.aborted && !(error instanceof Problem || error instanceof Unreachable)) throw error;
    }
  };
  useRepeated(action, 0, [store.store, at.key]);
  const link = (key, label, rel) => key !== undefined && html`<li><a rel=${rel} href=${addressOf({ place: "key", store: store.store, key })}>${label}: ${key}</a></li>`;
  return html`<nav aria-label="Near this key"><ul class="tabs">
    <li><a href=${addressOf({ place: "store", store: store.store })}>Store ${store.store}</a></li>
    ${link(found.previous, "Previous key", "prev")}
    ${link(found.next, "Next key", "next")}
  </ul></nav>`;
}

/** The first other key of the answer, as an address has it; undefined without one. */
async function neighbour(store, key, request, signal) {
  const { body } = await ask(request.path, { signal });
  return body.entries.map(keyOf).find((other) => !isKey(store, key, other));
}
