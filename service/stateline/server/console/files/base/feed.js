/** Follows the change feed of a store, and reconnects. */

import { useEffect, useRef, useState } from "../vendor/htm-preact-3.1.1.js";
import { open, Problem, Unreachable } from "./api.js";
import { eventsOf } from "./events.js";
import { parseExactly } from "./json.js";
import { pause } from "./repeat.js";

const AGAIN_MS = 1000; // pause between connections
const GIVEN_EVERY_MS = 200;
const CONNECTING = { said: "Connecting …", failure: null };
const CONNECTED = { said: "Connected.", failure: null };

/**
 * Follow the feed at `path`; null follows nothing. `onChanges` gets new changes, a list of JSON texts, a few times a second. While
 * `paused` or hidden it reads nothing, then continues there. Another `path` or `anew` starts where the path says. Returns `{said,
 * failure}`, the feed's state.
 */
export function useFeed(path, onChanges, { paused = false, anew = 0 } = {}) {
  const [told, setTold] = useState(CONNECTING);
  const hidden = useHidden();
  const place = useRef({ of: null, id: null }); // the last delivered change
  const latest = useRef(onChanges);
  latest.current = onChanges;
  const of = `${path} ${anew}`;
  useEffect(() => {
    if (path === null || paused || hidden) return undefined;
    if (place.current.of !== of) place.current = { of, id: null };
    const here = place.current;
    const over = new AbortController();
    let came = [];
    let lastId = here.id;
    const give = () => {
      here.id = lastId;
      if (came.length > 0) latest.current(came.splice(0));
    };
    const timer = setInterval(give, GIVEN_EVERY_MS);
    setTold(CONNECTING);
    const take = (id, data) => {
      lastId = id ?? lastId;
      if (data !== null) came.push(data);
    };
    follow(path, () => lastId, over.signal, take, setTold);
    return () => {
      over.abort(); // undelivered changes are read again
      clearInterval(timer);
    };
  }, [of, paused, hidden]);
  return told;
}

/** Reconnect until it is over or the feed has ended. */
async function follow(path, lastId, signal, take, tell) {
  while (!signal.aborted) {
    const failure = await connection(path, lastId(), signal, take, () => tell(CONNECTED)).catch((error) => (signal.aborted ? null : failureOf(error)));
    if (signal.aborted) return;
    const isFinal = failure.body?.reason === "CURSOR_EXPIRED" || (failure.status >= 400 && failure.status < 500 && failure.status !== 429);
    tell({ said: isFinal ? "Over." : "Not connected. Trying again.", failure });
    if (isFinal) return;
    await pause(Math.max(AGAIN_MS, failure.retryAfterMs ?? 0), signal);
  }
}

/** Read one connection. Returns why it ended. */
async function connection(path, lastId, signal, take, connected) {
  const headers = lastId === null ? {} : { "Last-Event-ID": lastId };
  const response = await open(path, { accept: "text/event-stream", headers, signal });
  for await (const { id, event, data } of eventsOf(response.body)) {
    if (event === "end") return new Problem(200, parseExactly(data), response.headers);
    take(id, event === "change" ? data : null);
    connected();
  }
  return new Unreachable("The connection broke off.");
}

/** Browsers throw a TypeError or a DOMException for a broken connection. */
function failureOf(error) {
  if (error instanceof Problem || error instanceof Unreachable) return error;
  if (error instanceof TypeError || error instanceof DOMException) return new Unreachable("The connection broke off.");
  throw error;
}

function useHidden() {
  const [hidden, setHidden] = useState(document.hidden);
  useEffect(() => {
    const changed = () => setHidden(document.hidden);
    document.addEventListener("visibilitychange", changed);
    return () => document.removeEventListener("visibilitychange", changed);
  }, []);
  return hidden;
}
