/** Versions of a key, newest first, each with its changes. */

import { html } from "../../vendor/htm-preact-3.1.1.js";
import { addressOf } from "../../base/place.js";
import { zoneName } from "../../base/times.js";
import { Table } from "../../parts/table.js";
import { shortText, Time } from "../../parts/value.js";
import { ShortDiff } from "./diff.js";

/** `shown` is the timestamp of the version shown above. `hasOlder`: older versions exist. */
export function VersionTable({ versions, hasOlder, shown, at }) {
  const link = (query) => addressOf({ ...at, query: { ...at.query, ...query } });
  const rows = versions.map(({ timestamp, valid_to: end, value }, i) => ({
    id: timestamp,
    cells: [
      html`<a href=${link({ as_of: timestamp })}><${Time} ms=${timestamp} /></a>`,
      end === null ? "still valid" : html`<${Time} ms=${end} />`,
      shortText(value),
      i === 0 ? html`<span class="muted">${hasOlder ? "see the older versions" : "the first known"}</span>` : html`<${ShortDiff} before=${versions[i - 1].value} after=${value} />`,
      timestamp === shown ? html`<span class="tag">shown</span>` : html`<a href=${link({ compare: timestamp })}>compare<span class="unseen"> with what is shown</span></a>`,
    ],
  }));
  return html`<${Table} caption=${`Versions of ${at.key}, the newest first, times in ${zoneName()}`} columns=${["From", "To, excluded", "Value", "Changed", "Compare"]} rows=${rows.toReversed()} />`;
}
