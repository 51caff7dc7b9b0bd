/** Prometheus' text format, and what this page reads from it. Pure. */

const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)/;
const LABEL = /([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g;
// Of the label `route`: the requests that are queries, not this page's own looks at the service.
const QUERY_ROUTE = /key|range|count|query|window|session|version/;

/** Name → array of `{labels, value}`. */
export function parseMetrics(text) {
  const series = new Map();
  for (const line of text.split("\n")) {
    const found = line.startsWith("#") ? null : LINE.exec(line);
    if (found === null) continue;
    const [, name, labels = "", value] = found;
    if (!series.has(name)) series.set(name, []);
    series.get(name).push({ labels: parseLabels(labels), value: value === "+Inf" ? Infinity : Number(value) });
  }
  return series;
}

function parseLabels(text) {
  const unescaped = { "\\n": "\n", '\\"': '"', "\\\\": "\\" };
  const pairs = [...text.matchAll(LABEL)].map(([, name, value]) => [name, value.replace(/\\[n"\\]/g, (e) => unescaped[e])]);
  return Object.fromEntries(pairs);
}

/** Upper edge in seconds → how many queries took no longer, over all of them. */
export function queryBuckets(series) {
  const buckets = new Map();
  for (const { labels, value } of series.get("stateline_http_request_seconds_bucket") ?? []) {
    if (!QUERY_ROUTE.test(labels.route ?? "")) continue;
    const edge = labels.le === "+Inf" ? Infinity : Number(labels.le);
    buckets.set(edge, (buckets.get(edge) ?? 0) + value);
  }
  return buckets;
}

/**
 * The quantile in seconds of what was counted between two looks, interpolated within its bucket as Prometheus does;
 * null when nothing was, or when another process was asked the second time.
 */
export function quantileBetween(before, after, quantile) {
  const edges = [...after.keys()].sort((a, b) => a - b);
  const counts = edges.map((edge) => after.get(edge) - (before.get(edge) ?? 0));
  const total = counts.at(-1) ?? 0;
  if (total <= 0 || counts.some((count) => count < 0)) return null;
  const rank = quantile * total;
  const at = counts.findIndex((count) => count >= rank);
  const [lower, below] = at === 0 ? [0, 0] : [edges[at - 1], counts[at - 1]];
  if (edges[at] === Infinity) return lower;
  return lower + (edges[at] - lower) * ((rank - below) / (counts[at] - below));
}

/** Task and store → number and time of its newest commit. */
export function commits(series) {
  const found = new Map();
  const read = (name, member) => {
    for (const { labels, value } of series.get(`stateline_store_${name}`) ?? []) {
      const id = `${labels.task}/${labels.store}`;
      found.set(id, { ...found.get(id), [member]: value });
    }
  };
  read("commit_number", "number");
  read("committed_at_ms", "atMs");
  return found;
}

/** The mean time between commits, in ms, over every store that committed between two looks; null when none did. */
export function commitIntervalMs(before, after) {
  let elapsedMs = 0;
  let number = 0;
  for (const [id, now] of after) {
    const then = before.get(id);
    if (!then || !(then.atMs > 0) || now.number <= then.number) continue;
    elapsedMs += now.atMs - then.atMs;
    number += now.number - then.number;
  }
  return number > 0 ? elapsedMs / number : null;
}
