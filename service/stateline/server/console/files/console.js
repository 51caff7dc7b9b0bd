/** The page: its head, the current place, and the parts that all places share. */

import { html, render, useEffect, useRef, useState } from "./vendor/htm-preact-3.1.1.js";
import { token, Unreachable } from "./base/api.js";
import { useKeys } from "./base/keys.js";
import { isOutdated, lookNow, useLook } from "./base/look.js";
import { addressOf, followLinks, PLACES, usePlace } from "./base/place.js";
import { setTheme, theme, THEMES } from "./base/theme.js";
import { Search } from "./parts/search.js";
import { Token } from "./parts/token.js";

/** Place → its component, loaded from the file with the place's name on first use. */
const SHOWN = {
  overview: "Overview", stores: "Stores", store: "Store", key: "Key", queries: "Queries", sql: "Sql", topology: "Topology",
  pipelines: "Pipelines", nodes: "Nodes", snapshots: "Snapshots", failures: "Failures", settings: "Settings",
}; // prettier-ignore

function Console() {
  const look = useLook();
  const at = usePlace();
  const main = useRef(null);
  const [tokens, setTokens] = useState(0); // another token may see other things, so everything is loaded again
  const name = [at.place, at.store, at.key].join("/");
  useEffect(() => {
    document.title = `${titleOf(at)} · ${look.application_id ?? "Stateline"}`;
  }, [name, look.application_id]);
  const arrived = useRef(false);
  useEffect(() => {
    if (arrived.current) main.current.focus({ preventScroll: true });
    arrived.current = true;
  }, [name]);
  const [searching, setSearching] = useState(false);
  useKeys({ "/": () => setSearching(true) });
  const Shown = useShown(at.place);
  return html`
    <a class="skip" href="#main">Skip to the content</a>
    <${Head} look=${look} at=${at} onSearch=${() => setSearching(true)} />
    ${searching && html`<${Search} stores=${look.stores} onClose=${() => setSearching(false)} />`}
    <main id="main" ref=${main} tabindex="-1" class=${look.failure ? "stale" : null}>
      <${Connection} look=${look} />
      ${isOutdated() && html`<p class="note" role="status">The server has another version of this page. <button type="button" onClick=${() => location.reload()}>Load it</button></p>`}
      <${Token} onTaken=${() => setTokens(tokens + 1)} />
      <h1>${titleOf(at)}</h1>
      <${Shown} key=${`${name}/${tokens}`} at=${at} look=${look} />
    </main>
    <${Foot} isGuarded=${token() !== "" || look.failure?.status === 401} />`;
}

/** The component of a place; a note until it is loaded. */
function useShown(place) {
  const [loaded, setLoaded] = useState({});
  useEffect(() => {
    if (!Object.hasOwn(SHOWN, place) || loaded[place]) return;
    const keep = (component) => setLoaded((before) => ({ ...before, [place]: component }));
    import(`./places/${place}.js`).then((file) => keep(file[SHOWN[place]]), () => keep(NotLoaded));
  }, [place]);
  return Object.hasOwn(SHOWN, place) ? (loaded[place] ?? Loading) : NoPlace;
}

function Loading() {
  return html`<p role="status">Loading …</p>`;
}

function NotLoaded() {
  return html`<div class="problem" role="alert"><p>This part of the page could not be loaded: reload the page when the server answers.</p></div>`;
}

function Head({ look, at, onSearch }) {
  const places = useRef(null);
  const shown = Object.entries(PLACES).filter(
    ([place]) => !(place === "pipelines" && look.known && Object.keys(look.pipelines).length === 0),
  );
  const current = { store: "stores", key: "stores" }[at.place] ?? at.place;
  useEffect(() => {
    const list = places.current; // it scrolls sideways on a phone
    const here = list.querySelector("[aria-current]");
    if (here !== null) list.scrollLeft = here.offsetLeft - (list.clientWidth - here.offsetWidth) / 2;
  }, [current, shown.length]);
  return html`<header>
    <p class="brand"><a href=${addressOf({ place: "overview" })}>Stateline</a> <span>${look.application_id ?? ""}</span></p>
    <nav aria-label="Places"><ul ref=${places}>${shown.map(
      ([place, title]) => html`<li key=${place}><a href=${addressOf({ place })} aria-current=${place === current ? "page" : null}>${title}</a></li>`,
    )}</ul></nav>
    <div class="tools">
      <button type="button" onClick=${onSearch} aria-keyshortcuts="/">Search <kbd>/</kbd></button>
      <${Theme} />
    </div>
  </header>`;
}

function Theme() {
  const [name, setName] = useState(theme());
  const choose = (event) => {
    setTheme(event.target.value);
    setName(event.target.value);
  };
  return html`<label class="theme"><span class="unseen">Colours</span>
    <select value=${name} onChange=${choose}>${THEMES.map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select>
  </label>`;
}

/** Announces a lost or restored connection to screen readers, not every refresh. */
function Connection({ look }) {
  const { failure, known, sinceMs } = look;
  if (failure === null) return html`<p id="connection" class="unseen" role="status">${known ? "Connected" : "Connecting …"}</p>`;
  if (failure.status === 401) return html`<p id="connection" role="status">Waiting for a token</p>`;
  const what = failure instanceof Unreachable ? "Not connected" : "Refused";
  const since = new Date(sinceMs).toLocaleTimeString("en-GB");
  return html`<p id="connection" class="alert" role="alert">${what} since ${since}: ${failure.message} The page shows the last known state. Trying again.</p>`;
}

/** The target of a link is opened without a token. */
function Foot({ isGuarded }) {
  const probes = ["healthz", "readyz"];
  const links = isGuarded ? probes : ["docs", "openapi.json", "v1/stores", "v1/topology", "v1/instances", "v1/nodes", ...probes, "metrics"];
  return html`<footer><nav aria-label="The API"><ul>${links.map((link) => html`<li key=${link}><a href=${link}>${link}</a></li>`)}</ul></nav></footer>`;
}

function NoPlace() {
  return html`<p>There is no such page here. <a href=${addressOf({ place: "overview" })}>To the overview</a></p>`;
}

function titleOf({ place, store, key }) {
  if (place === "store") return store;
  if (place === "key") return `${store} · ${key}`;
  return PLACES[place] ?? "No such page";
}

followLinks(isOutdated);
lookNow();
render(html`<${Console} />`, document.body);
