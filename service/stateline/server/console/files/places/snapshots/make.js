/** Makes a snapshot. */

import { html, useState } from "../../vendor/htm-preact-3.1.1.js";
import { ask, Problem, Unreachable } from "../../base/api.js";
import { addressOf, go } from "../../base/place.js";
import { useRepeated } from "../../base/repeat.js";
import { Failure } from "../../parts/problem.js";
import { Lease, LEASES } from "./lease.js";

const MOST_PIN = 64; // characters of a pin

/** A form. `onMade` is called after a snapshot was made, and the snapshot opens. */
export function Make({ onMade }) {
  const [stores, setStores] = useState(null);
  const [error, setError] = useState(null);
  const [said, setSaid] = useState("");
  useRepeated(async (signal) => {
    try {
      setStores((await ask("v1/stores", { signal })).body.stores);
    } catch (caught) {
      if (!signal.aborted) setError(caught);
    }
  }, 0, []); // prettier-ignore
  const make = async (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    const chosen = form.getAll("store");
    if (chosen.length === 0) {
      setSaid("Choose at least one store.");
      return;
    }
    setSaid("Making the snapshot …");
    setError(null);
    try {
      const pin = form.get("pin").trim();
      const body = JSON.stringify({ stores: chosen, ttl_s: Number(form.get("ttl_s")), ...(pin && { pin }) });
      const { status, body: made } = await ask("v1/snapshots", { method: "POST", body });
      setSaid(status === 201 ? `Made ${made.id}.` : `This pin already has the snapshot ${made.id}.`);
      onMade();
      go(addressOf({ place: "snapshots", query: { id: made.id } }));
    } catch (caught) {
      if (!(caught instanceof Problem || caught instanceof Unreachable)) throw caught;
      setSaid("");
      setError(caught);
    }
  };
  return html`<section aria-labelledby="make-title">
    <h2 id="make-title">Make one</h2>
    <form onSubmit=${make}>
      <fieldset><legend>Stores. Those of one worker are at one commit.</legend>
        ${(stores ?? []).map((store) => html`<${Choice} key=${store.store} store=${store} />`)}
      </fieldset>
      <${Lease} id="make-ttl" label="Kept for" value=${LEASES[0][0]} />
      <div class="field"><label for="pin">Pin (optional)</label>
        <input id="pin" name="pin" type="text" maxlength=${MOST_PIN} autocomplete="off" aria-describedby="pin-hint" />
        <span id="pin-hint" class="hint">the same pin and stores return the same snapshot</span></div>
      <button type="submit" class="main">Make it</button>
    </form>
    <p role="status">${said}</p>
    ${error && html`<${Failure} error=${error} />`}
  </section>`;
}

function Choice({ store }) {
  const why = store.global ? "a global table" : store.persistent ? null : "in memory";
  return html`<label class="check"><input type="checkbox" name="store" value=${store.store} disabled=${why !== null} /> ${store.store}${why && html` <span class="muted">${why}: not in snapshots</span>`}</label>`;
}
