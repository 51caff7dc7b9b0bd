/**
 * The page's address. Each place has one, and its query has everything shown there. So links show the same to everybody, and Back
 * works.
 */

import { useEffect, useState } from "../vendor/htm-preact-3.1.1.js";

// The path below which the page is served. It is read at the start, because a relative base moves with each address.
const ROOT = new URL(document.baseURI);
document.querySelector("base").href = ROOT.href;

/** Place → its title in the navigation. Places of one store or key are not in it. */
export const PLACES = {
  overview: "Overview",
  stores: "Stores",
  queries: "Queries",
  sql: "SQL",
  topology: "Topology",
  pipelines: "Pipelines",
  nodes: "Nodes",
  snapshots: "Snapshots",
  failures: "Failures",
  settings: "Settings",
};

const UNSENDABLE = /^\.{0,2}$/; // browsers drop this piece of a path, or read it as a folder

/**
 * `{place, store, key, query}` of an address. `place` is one of `PLACES`, `store`, `key`, or null if unknown. `query` is name → text,
 * of repeated names the last.
 */
export function placeOf(url) {
  if (url.origin !== ROOT.origin || !url.pathname.startsWith(ROOT.pathname)) return { place: null, query: {} };
  const [place = "", store, keys, ...key] = url.pathname.slice(ROOT.pathname.length).split("/").map(decoded);
  const query = Object.fromEntries(url.searchParams);
  if (place === "") return { place: "overview", query };
  if (place === "stores" && keys === "keys") return { place: "key", store, key: key.join("/") || (query.key ?? ""), query };
  if (place === "stores" && store) return { place: "store", store, query };
  return { place: Object.hasOwn(PLACES, place) ? place : null, query };
}

/** The address of a place, without members of `query` that are undefined, null or empty. */
export function addressOf({ place, store, key, query = {} }) {
  const path = { overview: [""], store: ["stores", store], key: ["stores", store, "keys", UNSENDABLE.test(key) ? "" : key] }[place] ?? [place];
  const given = place === "key" ? { ...query, key: UNSENDABLE.test(key) ? key : undefined } : query;
  const known = Object.entries(given).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(known).toString();
  return new URL(path.map(encodeURIComponent).join("/") + (text && `?${text}`), ROOT).href;
}

/** Several texts as one value of a query, and back. Names may have commas. */
export function listText(texts) {
  return texts.map(encodeURIComponent).join(",");
}

export function listOf(text) {
  return text === "" ? [] : text.split(",").map(decoded);
}

const listeners = new Set();
let here = placeOf(new URL(location.href));

/** A hook: the current place. */
export function usePlace() {
  const [place, setPlace] = useState(here);
  useEffect(() => {
    listeners.add(setPlace);
    setPlace(here);
    return () => listeners.delete(setPlace);
  }, []);
  return place;
}

/** Go to this address. `replace`: without a stop for Back, as while typing. */
export function go(href, { replace = false } = {}) {
  if (href === location.href) return;
  history[replace ? "replaceState" : "pushState"](null, "", href);
  arrive();
}

/** The same place with other members of its query. Empty ones are removed. */
export function setQuery(changes, options) {
  go(addressOf({ ...here, query: { ...here.query, ...changes } }), options);
}

/** Follow links to places without a reload, unless `isOutdated()`. */
export function followLinks(isOutdated) {
  addEventListener("popstate", arrive);
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href]");
    const plain = event.button === 0 && !event.defaultPrevented && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
    if (!link || !plain || link.target || link.hasAttribute("download") || link.hash) return;
    if (isOutdated() || placeOf(new URL(link.href)).place === null) return;
    event.preventDefault();
    go(link.href);
    scrollTo(0, 0);
  });
}

function arrive() {
  here = placeOf(new URL(location.href));
  for (const listener of listeners) listener(here);
}

function decoded(piece) {
  try {
    return decodeURIComponent(piece);
  } catch {
    return piece; // not UTF-8: shown unchanged
  }
}
