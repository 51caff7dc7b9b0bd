/** The change feed of a store, for one key. */

import { useEffect, useRef, useState } from "../../vendor/htm-preact-3.1.1.js";
import { open, Problem, Unreachable } from "../../base/api.js";
import { eventsOf } from "../../base/events.js";
import { parseExactly } from "../../base/json.js";
import { changeOf } from "./is_key.js";

const AGAIN_MS = 1000; // between two connections
const SHOWN_EVERY_MS = 100; // of many changes that come at once
const NOTHING = { said: "", failure: null, read: 0, own: 0 };

/**
 * Follow the changes of these partitions, a text, from `latest` or `earliest` on; null follows nothing. Nothing is read while
 * nobody sees the page; it goes on where it was. `onFound` is called with the changes of the key that came.
 * Returns `{said, failure, read, own}`: how it goes, and how many changes were read, and were of this key.
 */
export function useFeed(store, key, from, partitions, onFound) {
  const [told, setTold] = useState(NOTHING);
  const [begun, setBegun] = useState(null); // the first that were given: a key that appears narrows them, the feed stays
  const latest = useRef(onFound);
  latest.current = onFound;
  useEffect(() => setBegun((known) => (partitions === null ? null : (known ?? partitions))), [partitions]);
  useEffect(() => {
    if (begun === null) return undefined;
    const path = `v1/stores/${encodeURIComponent(store.store)}/changes?partition=${begun}&from=${from}`;
    const feed = new Feed(path, (data) => changeOf(store, key, data), setTold, (found) => latest.current(found));
    feed.follow();
    return () => feed.end();
  }, [store.store, key, from, begun]);
  return told;
}

class Feed {
  constructor(path, read, onTold, onFound) {
    Object.assign(this, { path, read, onTold, onFound });
    this.over = new AbortController();
    this.told = { ...NOTHING, said: "Connecting …" };
    this.found = [];
    this.lastId = null;
    this.timer = null;
  }

  end() {
    this.over.abort();
    clearTimeout(this.timer);
  }

  /** Until it is over: connection after connection. */
  async follow() {
    while (!this.over.signal.aborted) {
      const hidden = new AbortController();
      const hide = () => document.hidden && hidden.abort();
      document.addEventListener("visibilitychange", hide);
      let failure = null;
      try {
        await whileHidden(this.over.signal);
        failure = await this.connect(AbortSignal.any([this.over.signal, hidden.signal]));
      } catch (error) {
        if (!(this.over.signal.aborted || hidden.signal.aborted)) failure = failureOf(error);
      } finally {
        document.removeEventListener("visibilitychange", hide);
      }
      if (this.over.signal.aborted) return;
      if (failure === null) continue; // hidden: it waits to be seen
      const isFinal = failure.body?.reason === "CURSOR_EXPIRED" || (failure.status >= 400 && failure.status < 500 && failure.status !== 429);
      this.tell({ said: isFinal ? "Over." : "Not connected. Trying again.", failure });
      if (isFinal) return;
      await pause(Math.max(AGAIN_MS, failure.retryAfterMs ?? 0), this.over.signal);
    }
  }

  /** One connection; why it ended. */
  async connect(signal) {
    const headers = this.lastId === null ? {} : { "Last-Event-ID": this.lastId };
    const response = await open(this.path, { accept: "text/event-stream", headers, signal });
    for await (const { id, event, data } of eventsOf(response.body)) {
      if (event === "end") return new Problem(200, parseExactly(data), response.headers);
      this.lastId = id ?? this.lastId;
      if (event === "change") this.take(data);
      this.tell({ said: "Connected.", failure: null });
    }
    return new Unreachable("The connection broke off.");
  }

  take(data) {
    const change = this.read(data);
    if (change !== null) this.found.push(change);
    this.tell({ read: this.told.read + 1, own: this.told.own + (change === null ? 0 : 1) });
  }

  /** What has come is shown in a moment, with all that comes until then. */
  tell(changes) {
    this.told = { ...this.told, ...changes };
    this.timer ??= setTimeout(() => {
      this.timer = null;
      this.onTold(this.told);
      const found = this.found.splice(0);
      if (found.length > 0) this.onFound(found);
    }, SHOWN_EVERY_MS);
  }
}

/** What the browser says of a broken connection is a TypeError, or a DOMException. */
function failureOf(error) {
  if (error instanceof Problem || error instanceof Unreachable) return error;
  if (error instanceof TypeError || error instanceof DOMException) return new Unreachable("The connection broke off.");
  throw error;
}

function whileHidden(over) {
  return new Promise((resolve) => {
    const look = () => (!document.hidden || over.aborted) && resolve();
    document.addEventListener("visibilitychange", look, { signal: over });
    over.addEventListener("abort", look);
    look();
  });
}

function pause(ms, over) {
  return new Promise((resolve) => {
    setTimeout(resolve, ms);
    over.addEventListener("abort", resolve);
  });
}
