/** One snapshot: buttons to renew and release it, and its partitions with commands that read them. */

import { html, useEffect, useRef, useState } from "../../vendor/htm-preact-3.1.1.js";
import { ask, Problem, Unreachable } from "../../base/api.js";
import { positionText, sizeText } from "../../base/format.js";
import { addressOf, go } from "../../base/place.js";
import { Failure } from "../../parts/problem.js";
import { Facts, Table } from "../../parts/table.js";
import { Time } from "../../parts/value.js";
import { Lease, LEASES } from "./lease.js";
import { Part } from "./part.js";

/** `onChange` is called after a renewal or a release. */
export function One({ snapshot, onChange }) {
  const [state, setState] = useState({ said: "", error: null });
  const [asking, setAsking] = useState(false);
  const path = `v1/snapshots/${encodeURIComponent(snapshot.id)}`;
  const change = async (request, said) => {
    try {
      await ask(path, request);
      setState({ said, error: null });
      onChange();
      return true;
    } catch (error) {
      if (!(error instanceof Problem || error instanceof Unreachable)) throw error;
      setState({ said: "", error });
      return false;
    }
  };
  const renew = (event) => {
    event.preventDefault();
    change({ method: "PATCH", body: JSON.stringify({ ttl_s: Number(event.target.elements.ttl_s.value) }) }, "Renewed.");
  };
  const release = async () => {
    setAsking(false);
    if (await change({ method: "DELETE" }, "Released.")) go(addressOf({ place: "snapshots" }));
  };
  return html`<section aria-labelledby="one-title" class="panel">
    <h2 id="one-title">Snapshot ${snapshot.id}</h2>
    <${Facts} facts=${[
      ["Made", html`<${Time} ms=${snapshot.created_at} withUtc />`],
      ["Lease ends", html`<${Time} ms=${snapshot.expires_at} withUtc />`],
      ["Position", positionText(snapshot.position)],
    ]} />
    <form onSubmit=${renew}>
      <${Lease} id="renew-ttl" label="Keep it, from now, for" value=${LEASES[0][0]} />
      <button type="submit">Renew</button>
      <button type="button" onClick=${() => setAsking(true)}>Release …</button>
      <a href=${addressOf({ place: "snapshots" })}>Close</a>
    </form>
    <p role="status">${state.said}</p>
    ${state.error && html`<${Failure} error=${state.error} />`}
    ${asking && html`<${Confirm} snapshot=${snapshot} onRelease=${release} onKeep=${() => setAsking(false)} />`}
    <h3>Read it</h3>
    <p class="hint">The rows of a partition are an Arrow stream. The commands read the token from STATELINE_TOKEN.</p>
    ${Object.entries(snapshot.stores).map(
      ([store, partitions]) => html`<${Table} key=${store} caption=${`Partitions of ${store}`} columns=${["Partition", "Committed", "Position", "Kept by", "On disk", "Path, and commands to read it"]}
        rows=${Object.entries(partitions).map(([partition, part]) => ({
          id: partition,
          cells: [
            partition,
            html`<${Time} ms=${part.committed_at_ms || null} />`,
            positionText(part.position),
            part.node ?? "this node",
            html`<${Size} path=${part.path} />`,
            html`<${Part} name=${`${store}-${partition}`} part=${part} />`,
          ],
        }))} />`,
    )}
  </section>`;
}

/** Loaded on demand, because the server opens the files for it. */
function Size({ path }) {
  const [said, setSaid] = useState(null);
  const measure = async () => {
    setSaid("…");
    try {
      const { body } = await ask(`${path.slice(1)}/splits`);
      setSaid(bytesText(body.splits.reduce((sum, { bytes }) => sum + bytes, 0)));
    } catch (error) {
      if (!(error instanceof Problem || error instanceof Unreachable)) throw error;
      setSaid(error.message);
    }
  };
  return said === null ? html`<button type="button" onClick=${measure}>Size</button>` : html`<span role="status">${said}</span>`;
}

/** The rows in RocksDB's tables. The newest rows are not in a table yet. */
function bytesText(bytes) {
  if (bytes === 0) return "less than a table";
  return `about ${sizeText(bytes)}`;
}

function Confirm({ snapshot, onRelease, onKeep }) {
  const dialog = useRef(null);
  useEffect(() => dialog.current.showModal(), []);
  return html`<dialog ref=${dialog} aria-labelledby="confirm-title" onClose=${onKeep}>
    <h2 id="confirm-title">Release ${snapshot.id}?</h2>
    <p>Open streams run to their end. No new reader can start. You cannot undo this, and a new snapshot has newer state.</p>
    <p class="buttons"><button type="button" class="main" onClick=${onRelease}>Release it</button><button type="button" onClick=${onKeep}>Keep it</button></p>
  </dialog>`;
}
