/** An error in the server's words, and what to do. */

import { html } from "../vendor/htm-preact-3.1.1.js";
import { Problem } from "../base/api.js";
import { positionText } from "../base/format.js";
import { Facts } from "./table.js";

/** Shows a `Problem` or an `Unreachable`. `message` stands for its own one; `children` come below. */
export function Failure({ error, message = error.message, children }) {
  if (!(error instanceof Problem)) return html`<div class="problem" role="alert"><p>${error.message}</p></div>`;
  const { reason, partition, owner, position, bound, failures } = error.body;
  const facts = [
    ["Reason", `${reason ?? "not given"} (status ${error.status})`],
    partition === undefined ? null : ["Partition", String(partition)],
    owner ? ["Has it", owner] : null,
    position ? ["Position", positionText(position)] : null,
    bound ? ["Bound", positionText(bound)] : null,
    ...Object.entries(failures ?? {}).map(([of, failure]) => [`Partition ${of}`, failure.detail ?? failure.reason]),
  ];
  return html`<div class="problem" role="alert"><p>${message}</p>${children}<${Facts} facts=${facts} /></div>`;
}
