/** Finds places, stores and keys from anywhere. */

import { html, useEffect, useRef, useState } from "../vendor/htm-preact-3.1.1.js";
import { ask } from "../base/api.js";
import { addressOf, go, PLACES } from "../base/place.js";
import { family, OF_ONE_KEY, requestFor } from "../base/queries.js";

const SETTLE_MS = 200; // pause after typing before the server is asked for keys
const KEYS_OF_EACH = 5;
const MOST_STORES_ASKED = 24;

const BY_PREFIX = { key_value: "range", versioned: "versioned_range" }; // other kinds have no query by prefix

/** A dialog over the page. `stores` come from the look. `onClose` is called when it closes. */
export function Search({ stores, onClose }) {
  const dialog = useRef(null);
  const [text, setText] = useState("");
  const [keys, setKeys] = useState([]);
  const [chosen, setChosen] = useState(0);
  useEffect(() => {
    const shown = dialog.current;
    shown.showModal();
    return () => shown.close(); // returns the focus
  }, []);
  useEffect(() => {
    setKeys([]);
    if (text === "") return undefined;
    const over = new AbortController(); // a late answer to earlier text is ignored
    const timer = setTimeout(async () => {
      const like = await keysLike(text, stores, over.signal);
      if (!over.signal.aborted) setKeys(like);
    }, SETTLE_MS);
    return () => {
      over.abort();
      clearTimeout(timer);
    };
  }, [text]);
  const found = [...placesLike(text, stores), ...keys];
  const at = Math.min(chosen, found.length - 1);
  const open = (event) => {
    event.preventDefault();
    if (at < 0) return;
    onClose();
    go(found[at].href);
  };
  const pressed = (event) => {
    if (event.key === "Escape") {
      event.preventDefault(); // a search field would clear its text first
      onClose();
    }
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step === undefined || found.length === 0) return;
    event.preventDefault();
    setChosen((at + step + found.length) % found.length);
  };
  return html`<dialog ref=${dialog} class="search" aria-label="Search" onClose=${onClose}>
    <form onSubmit=${open}>
      <input type="search" aria-label="A place, a store or a key" placeholder="A place, a store or a key" autocomplete="off" spellcheck="false"
        role="combobox" aria-expanded="true" aria-controls="found" aria-activedescendant=${at < 0 ? null : `found-${at}`}
        value=${text} onInput=${(event) => setText(event.target.value)} onKeyDown=${pressed} />
      <button type="button" onClick=${onClose}>Close</button>
    </form>
    <ul id="found" role="listbox" aria-label="Found">${found.map(
      ({ what, name, href }, i) => html`<li key=${href} id=${`found-${i}`} role="option" aria-selected=${i === at}>
        <a href=${href} tabindex="-1" onClick=${onClose}><span class="muted">${what}</span> ${name}</a></li>`,
    )}</ul>
    ${found.length === 0 && html`<p role="status">No match. Search text keys by their prefix. Keys of windows and sessions, and other types of keys, must be complete.</p>`}
  </dialog>`;
}

function placesLike(text, stores) {
  const is = (name) => name.toLowerCase().includes(text.toLowerCase());
  const places = Object.entries(PLACES).filter(([, title]) => is(title));
  return [
    ...stores.filter(({ store }) => is(store)).map(({ store }) => ({ what: "store", name: store, href: addressOf({ place: "store", store }) })),
    ...places.map(([place, title]) => ({ what: "place", name: title, href: addressOf({ place }) })),
  ];
}

/** Keys with a prefix in stores with text keys and ranges. Other stores: the equal key, if it exists. */
async function keysLike(text, stores, signal) {
  const asked = stores.filter(({ kind }) => Object.hasOwn(OF_ONE_KEY, family(kind))).slice(0, MOST_STORES_ASKED);
  const answers = await Promise.all(asked.map((store) => keysOf(store, text, signal).catch(() => [])));
  return answers.flat();
}

async function keysOf(store, text, signal) {
  const kind = family(store.kind);
  const byPrefix = store.key_type === "string" ? BY_PREFIX[kind] : undefined;
  const request = byPrefix
    ? requestFor(store, byPrefix, { prefix: text, limit: String(KEYS_OF_EACH), allow_partial: "true" })
    : requestFor(store, OF_ONE_KEY[kind], { key: text, limit: kind in BY_PREFIX ? "" : "1" });
  const { body } = await ask(request.path, { ...request, signal, timeoutMs: 3000 });
  const keys = byPrefix ? body.entries.map((entry) => entry.key) : (body.found ?? body.entries?.length > 0) ? [text] : [];
  return keys.map((key) => ({ what: `key of ${store.store}`, name: key, href: addressOf({ place: "key", store: store.store, key }) }));
}
