/** Looks at the service every three seconds while the page can be seen, and remembers the last two minutes. */

import { ask, Problem, Unreachable } from "./api.js";
import { commitIntervalMs, commits, quantileBetween, queryBuckets } from "./metrics.js";

const INTERVAL_MS = 3000;
const LEAST_PAUSE_MS = 1000;
const LOOK_TIMEOUT_MS = 5000;
const POSITION_TIMEOUT_MS = 3000; // a worker that hangs must not stop the rest of the page
const POSITIONS_PER_LOOK = 12;
const KEPT_POINTS = 40;
const QUANTILE_LOOKS = 5; // quantiles are of the last twelve seconds: three have few queries
const TRUSTED_SKEW_MS = 2000; // `Date` counts seconds: less than this says nothing about the server's clock

export class Live {
  /** `onLook` is called after each look, `onFailure` with what went wrong when there was none. */
  constructor(onLook, onFailure) {
    this.stores = [];
    this.application = null;
    this.cluster = null; // all nodes and what they have; null while there is one
    this.pipelines = {}; // name → its part of the topology
    this.selected = null; // the name of the store whose partitions and Position are asked for in every look
    this.shown = null; // the store that `partitions` are of
    this.partitions = {};
    this.positions = new Map(); // store → {committed, uncommitted, failures} or {problem}
    this.points = { ingest: [], commits: [], latency: [] };
    this.skewMs = 0;
    this.queriesAreHidden = false;
    this.onLook = onLook;
    this.onFailure = onFailure;
    this.turn = 0;
    this.timer = null;
    this.looking = false;
    this.forget();
    document.addEventListener("visibilitychange", () => this.go());
  }

  /** Select a store, and look at once if its partitions are not known. */
  choose(name) {
    this.selected = name;
    if (this.shown !== name) this.go();
  }

  /** Look now, and go on while the page is visible. */
  async go() {
    clearTimeout(this.timer);
    if (document.hidden) return this.forget();
    if (this.looking) return;
    this.looking = true;
    const beganMs = performance.now();
    const asked = this.selected;
    let pauseMs = 0;
    try {
      await this.look();
      this.onLook(this);
    } catch (error) {
      if (!(error instanceof Unreachable || error instanceof Problem)) throw error;
      this.forget();
      // Without a token every look would be refused: whoever gets one calls `go`.
      pauseMs = error.status === 401 ? null : (error.retryAfterMs ?? 0);
      this.onFailure(error);
    } finally {
      this.looking = false;
      const restMs = Math.max(LEAST_PAUSE_MS, pauseMs, INTERVAL_MS - (performance.now() - beganMs));
      const isLate = this.selected !== asked && this.selected !== this.shown; // chosen during the look
      if (pauseMs !== null) this.timer = setTimeout(() => this.go(), isLate && pauseMs === 0 ? 0 : restMs);
    }
  }

  /** What the next look would be compared with: rates across a gap would be wrong. */
  forget() {
    this.before = null;
    this.buckets = [];
  }

  async look() {
    const store = this.selected === null ? "" : `?store=${encodeURIComponent(this.selected)}`;
    const { body, headers } = await ask(`v1/console${store}`, { timeoutMs: LOOK_TIMEOUT_MS });
    this.readClock(headers.get("Date"));
    this.application = body.application_id;
    this.stores = body.stores;
    this.cluster = body.cluster;
    this.pipelines = body.pipelines;
    this.shown = body.selected;
    this.partitions = body.partitions;
    this.queriesAreHidden = body.queries === null;
    await Promise.all(this.due().map((name) => this.readPosition(name)));
    const atMs = Date.now();
    this.remember({ atMs, offsets: this.offsets(), buckets: queryBuckets(body.queries), commits: commits(body.commits) });
  }

  readClock(date) {
    const skewMs = date === null ? 0 : Date.parse(date) - Date.now();
    this.skewMs = Math.abs(skewMs) > TRUSTED_SKEW_MS ? skewMs : 0;
  }

  /** How long ago a time of the server's clock was; negative for one that is to come. */
  elapsedMs(atMs) {
    return Date.now() + this.skewMs - atMs;
  }

  /** The same of a time that is over. */
  ageMs(atMs) {
    return Math.max(0, this.elapsedMs(atMs));
  }

  /** The stores to ask now: the selected one, and of many the others in turn. */
  due() {
    const others = this.stores.map((store) => store.store).filter((name) => name !== this.selected);
    const first = others.length > POSITIONS_PER_LOOK ? (this.turn += POSITIONS_PER_LOOK) % others.length : 0;
    const now = [...others.slice(first), ...others.slice(0, first)].slice(0, POSITIONS_PER_LOOK);
    return this.stores.some((store) => store.store === this.selected) ? [this.selected, ...now] : now;
  }

  async readPosition(name) {
    const path = `v1/stores/${encodeURIComponent(name)}/position?isolation_level=read_committed&allow_partial=true`;
    try {
      this.positions.set(name, (await ask(path, { timeoutMs: POSITION_TIMEOUT_MS })).body);
    } catch (error) {
      if (error.status === 401 || error.status === 429) throw error;
      if (!(error instanceof Unreachable || error instanceof Problem)) throw error;
      this.positions.set(name, { ...this.positions.get(name), problem: error.message });
    }
  }

  /** Topic and partition → the newest committed offset in any store. */
  offsets() {
    const found = new Map();
    for (const { committed = {} } of this.positions.values()) {
      for (const position of Object.values(committed)) {
        for (const [topic, partitions] of Object.entries(position)) {
          for (const [partition, offset] of Object.entries(partitions)) {
            const id = `${topic}/${partition}`;
            found.set(id, Math.max(offset, found.get(id) ?? -1));
          }
        }
      }
    }
    return found;
  }

  remember(now) {
    const { before } = this;
    this.before = now;
    const add = (name, ...values) => {
      this.points[name] = [...this.points[name], { atMs: now.atMs, values }].slice(-KEPT_POINTS);
    };
    add("ingest", before && (1000 * grown(before.offsets, now.offsets)) / Math.max(1, now.atMs - before.atMs));
    add("commits", before && commitIntervalMs(before.commits, now.commits), this.newestCommitAgeMs());
    this.buckets = [...this.buckets, now.buckets].slice(-QUANTILE_LOOKS);
    const quantiles = [0.5, 0.99].map((q) => quantileBetween(this.buckets[0], now.buckets, q));
    add("latency", ...quantiles.map((seconds) => (seconds === null ? null : seconds * 1000)));
  }

  newestCommitAgeMs() {
    const newest = Math.max(0, ...this.stores.map((store) => store.committed_at_ms ?? 0));
    return newest > 0 ? this.ageMs(newest) : null;
  }
}

/** By how many offsets the topics that both know have grown. */
function grown(before, after) {
  let sum = 0;
  for (const [id, offset] of after) if (before.has(id)) sum += Math.max(0, offset - before.get(id));
  return sum;
}
