/** The request of a key's page, and the state that its answer reflects. */

import { html } from "../../vendor/htm-preact-3.1.1.js";
import { address, token } from "../../base/api.js";
import { counted, durationText, positionText } from "../../base/format.js";
import { curlLine } from "../../base/queries.js";
import { Facts } from "../../parts/table.js";
import { Copy, Time } from "../../parts/value.js";

/** The node that answered, and the state that the answer reflects. */
export function Origin({ answer, atMs }) {
  const { partitions, position } = answer.body;
  const each = Object.entries(partitions);
  const sum = (name) => each.reduce((total, [, partition]) => total + partition[name], 0);
  const servers = [...new Set(each.map(([, { served_by: by, node }]) => (node ? `${by}, ${node}` : by)))];
  return html`<${Facts} facts=${[
    [each.length === 1 ? "Partition" : "Partitions", each.map(([number]) => number).join(", ") || "none"],
    ["Position", positionText(position)],
    ["Staged there", stagedText(sum("staged_records"))],
    ["Last commit", html`<${Time} ms=${Math.max(...each.map(([, { committed_at_ms: ms }]) => ms)) || null} />`],
    ["Served by", servers.join("; ") || "nobody"],
    ["Answered", html`<${Time} ms=${atMs} /> in ${durationText(answer.elapsedMs)}`],
  ]} />`;
}

function stagedText(records) {
  return records === 0 ? "nothing" : `${counted(records, "record")} of any keys, not committed`;
}

/** The request as a curl line, and a button that repeats it. */
export function Asked({ main, onAgain }) {
  const line = curlLine(address(main.request.path), main.request, Boolean(token()));
  return html`<section aria-labelledby="curl-title">
    <h2 id="curl-title">Asked</h2>
    <div class="curl"><pre tabindex="0" aria-label="The request as a curl line">${line}</pre><${Copy} text=${line} label="Copy curl" />
      <button type="button" onClick=${onAgain}>Ask again</button></div>
  </section>`;
}
