/** What is read from two looks: how long queries took, and the time between commits. Pure. */

/** Upper edge in seconds → how many queries took no longer. */
export function queryBuckets(queries) {
  return new Map((queries ?? []).map(([edge, count]) => [edge ?? Infinity, count]));
}

/**
 * The quantile in seconds of what was counted between two looks, interpolated within its bucket as Prometheus does;
 * null when nothing was, or when the server has begun anew.
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

/** Task → number and time of the newest commit of one of its stores. */
export function commits(byTask) {
  return new Map(Object.entries(byTask).map(([task, [number, atMs]]) => [task, { number, atMs }]));
}

/** The mean time between commits, in ms, over every task that committed between two looks; null when none did. */
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
