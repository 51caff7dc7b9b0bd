/** A request as a line for a shell. */

import { html } from "../vendor/htm-preact-3.1.1.js";
import { address, token } from "../base/api.js";
import { curlLine } from "../base/queries.js";
import { Copy } from "./value.js";

export function Curl({ request }) {
  const line = curlLine(address(request.path), request, token() !== "");
  return html`<div class="curl"><pre id="curl" role="region" aria-label="The same question for a shell" tabindex="0">${line}</pre><${Copy} text=${line} label="Copy curl" /></div>`;
}
