/** Every store of the application, with its health. */

import { html } from "../vendor/htm-preact-3.1.1.js";
import { countText } from "../base/format.js";
import { alertOf, backupText, commitText, kindText, statesText } from "../base/health.js";
import { addressOf } from "../base/place.js";
import { Nothing, Table } from "../parts/table.js";

const COLUMNS = ["Store", "Kind", "Types", "Partitions", "Input lag", "Staged", "Last commit"];
const BACKUP = "Last backup";

export function Stores({ look }) {
  if (!look.known) return null;
  if (look.stores.length === 0) return html`<${Nothing}>This application has no stores: <code>app.table(topic, store="…")</code> makes one.<//>`;
  const rows = look.stores.map((store) => ({
    id: store.store,
    alert: alertOf(store),
    cells: [
      html`<a href=${addressOf({ place: "store", store: store.store })}>${store.store}</a>`,
      kindText(store),
      `${store.key_type} → ${store.value_type}`,
      store.not_ready ?? statesText(store.states),
      countText(store.input_lag),
      countText(store.staged_records),
      commitText(store.committed_at_ms),
      ...(look.backup ? [backupText(store.backed_up_at_ms)] : []),
    ],
  }));
  const columns = look.backup ? [...COLUMNS, BACKUP] : COLUMNS;
  return html`<div class="live"><${Table} caption="Stores" captionHidden columns=${columns} rows=${rows} /></div>`;
}
