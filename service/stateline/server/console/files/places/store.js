/** One store: its entries, live changes, charts over time, and partitions. */

import { html, useEffect } from "../vendor/htm-preact-3.1.1.js";
import { kindText } from "../base/health.js";
import { watchStore } from "../base/look.js";
import { addressOf } from "../base/place.js";
import { family } from "../base/queries.js";
import { firstOf } from "../base/statement.js";
import { Nothing } from "../parts/table.js";
import { Changes } from "./store/changes.js";
import { StoreChart } from "./store/chart.js";
import { Entries } from "./store/entries.js";
import { Partitions } from "./store/partitions.js";

const TABS = { entries: ["Entries", Entries], changes: ["Changes", Changes], chart: ["Chart", StoreChart], partitions: ["Partitions", Partitions] };
const WITH_TIMES = ["window", "session", "versioned"];

export function Store({ at, look }) {
  useEffect(() => watchStore(at.store), [at.store]);
  if (!look.known) return null;
  const store = look.stores.find((each) => each.store === at.store);
  if (store === undefined) {
    return html`<${Nothing}>There is no store ${at.store} here, or this token may not read it. <a href=${addressOf({ place: "stores" })}>To the stores</a><//>`;
  }
  const offered = Object.keys(TABS).filter((tab) => tab !== "chart" || WITH_TIMES.includes(family(store.kind)));
  const tab = offered.includes(at.query.tab) ? at.query.tab : "entries";
  const [, Shown] = TABS[tab];
  return html`
    <p class="note">${kindText(store)}, ${store.key_type} → ${store.value_type}${store.not_ready ? `. ${store.not_ready}` : ""}. <a href=${addressOf({ place: "sql", query: { q: firstOf(store.store) } })}>Query in SQL</a></p>
    <nav aria-label=${`Parts of ${store.store}`}><ul class="tabs">${offered.map(
      (each) => html`<li key=${each}><a href=${addressOf({ place: "store", store: store.store, query: { tab: each === "entries" ? null : each } })} aria-current=${each === tab ? "page" : null}>${TABS[each][0]}</a></li>`,
    )}</ul></nav>
    <${Shown} store=${store} query=${at.query} look=${look} />`;
}
