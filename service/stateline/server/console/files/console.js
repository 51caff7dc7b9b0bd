/** The page: looks at the service, keeps which store is selected, and asks for a token when the server wants one. */

import { ask, keepToken, Unreachable, whenTokenIsWanted } from "./api.js";
import { KeyBrowser } from "./browser.js";
import { byId, element, setText } from "./elements.js";
import { HistoryCharts } from "./history_charts.js";
import { Live } from "./live.js";
import { Moments } from "./moments.js";
import { NodeList } from "./nodes.js";
import { PipelineList } from "./pipelines.js";
import { family } from "./queries.js";
import { QueryForm } from "./query_form.js";
import { StoreList } from "./stores.js";
import { WindowChart } from "./windows.js";

const list = new StoreList((name) => select(name));
const nodes = new NodeList();
const pipelines = new PipelineList();
const charts = new HistoryCharts();
const moments = new Moments();
const windows = new WindowChart();
const form = new QueryForm();
const browser = new KeyBrowser(takeKey);
let selected = null;
let listed = "";

const live = new Live(onLook, onFailure);

function onLook() {
  document.body.classList.remove("stale");
  setText(byId("alert"), "");
  setText(byId("connection"), "Connected");
  if (live.application) {
    setText(byId("application"), live.application);
    document.title = `Stateline: ${live.application}`;
  }
  listStores();
  list.show(live);
  nodes.show(live);
  pipelines.show(live);
  charts.show(live);
  byId("token-section").hidden = true;
}

function onFailure(error) {
  document.body.classList.add("stale");
  if (error.status === 401) {
    setText(byId("connection"), "Waiting for a token");
    return;
  }
  setText(byId("connection"), error instanceof Unreachable ? "Not connected" : "Refused");
  const since = new Date().toLocaleTimeString("en-GB");
  if (byId("alert").textContent === "") {
    setText(byId("alert"), `Since ${since}: ${error.message} What is shown is the last that was known. Trying again.`);
  }
}

/** Keep the choices of the picker as the stores are; nothing is touched while they stay the same. */
function listStores() {
  const described = JSON.stringify(live.stores.map(({ store, kind, key_type }) => [store, kind, key_type]));
  if (described === listed) return;
  listed = described;
  const options = live.stores.map(({ store }) => element("option", { value: store }, store));
  byId("store").replaceChildren(...options);
  byId("no-stores").hidden = live.stores.length > 0;
  byId("of-a-store").hidden = live.stores.length === 0;
  if (live.stores.length === 0) return;
  select(live.stores.some(({ store }) => store === live.selected) ? live.selected : live.stores[0].store);
}

function select(name) {
  const store = live.stores.find((candidate) => candidate.store === name);
  live.choose(name);
  byId("store").value = name;
  list.show(live);
  if (JSON.stringify([store.store, store.kind, store.key_type]) === selected) return;
  selected = JSON.stringify([store.store, store.kind, store.key_type]);
  for (const part of [form, browser, moments, windows]) part.choose(store);
  const kind = family(store.kind);
  byId("moment-section").hidden = kind !== "versioned";
  byId("window-section").hidden = !["window", "session"].includes(kind);
  byId("moment-link").hidden = byId("moment-section").hidden;
  byId("window-link").hidden = byId("window-section").hidden;
}

function takeKey(key) {
  form.takeKey(key);
  moments.takeKey(key);
  windows.takeKey(key);
}

whenTokenIsWanted(() => {
  const section = byId("token-section");
  if (!section.hidden) return;
  section.hidden = false;
  byId("token").focus();
});

byId("token-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  keepToken(byId("token").value.trim());
  try {
    await ask("v1/console");
    byId("token").value = "";
    byId("token-section").hidden = true;
    setText(byId("token-message"), "");
    byId("main").focus();
    live.go();
  } catch (error) {
    keepToken("");
    setText(byId("token-message"), error.status === 401 ? "The server does not take this token." : error.message);
  }
});

byId("store").addEventListener("change", () => select(byId("store").value));
live.go();
