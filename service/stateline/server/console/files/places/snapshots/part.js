/** How to read a partition of a snapshot: its path, and shell commands. */

import { html } from "../../vendor/htm-preact-3.1.1.js";
import { address, token } from "../../base/api.js";
import { curlLine } from "../../base/queries.js";
import { Copy } from "../../parts/value.js";

/** `name` is the file's name. A part of another node is read there. */
export function Part({ name, part }) {
  const url = part.url ?? address(part.path.slice(1));
  const curl = `${curlLine(url, { body: null }, Boolean(token()))} -o ${name}.arrow`;
  const python = pythonLine(url, Boolean(token()));
  return html`<details class="part"><summary>${part.path}</summary>
    <p>curl</p><div class="curl"><pre tabindex="0" aria-label=${`curl line for ${name}`}>${curl}</pre><${Copy} text=${curl} label="Copy curl" /></div>
    <p>Python, with pyarrow</p><div class="curl"><pre tabindex="0" aria-label=${`Python line for ${name}`}>${python}</pre><${Copy} text=${python} label="Copy Python" /></div>
  </details>`;
}

function pythonLine(url, authorized) {
  const headers = authorized ? ', headers={"Authorization": "Bearer " + os.environ["STATELINE_TOKEN"]}' : "";
  const imports = authorized ? "import os, pyarrow as pa, urllib.request as u" : "import pyarrow as pa, urllib.request as u";
  return `python -c '${imports}; print(pa.ipc.open_stream(u.urlopen(u.Request("${url}"${headers}))).read_all())'`;
}
