/** Numbers, durations and times as people read them. Pure but for the reader's zone. */

/** Milliseconds since the epoch as ISO 8601 in UTC; what no date can hold as the number it is. */
export function utcText(ms) {
  if (ms === null || ms === undefined) return "none";
  const date = new Date(Number(ms));
  return Number.isNaN(date.getTime()) ? String(ms) : date.toISOString();
}

/** The same in the reader's zone: 2026-11-26 22:58:02.123, without milliseconds where they are none. */
export function localText(ms) {
  if (ms === null || ms === undefined) return "none";
  const date = new Date(Number(ms));
  if (Number.isNaN(date.getTime())) return String(ms);
  const two = (number, places = 2) => String(number).padStart(places, "0");
  const day = `${two(date.getFullYear(), 4)}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  const rest = date.getMilliseconds() ? `.${two(date.getMilliseconds(), 3)}` : "";
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}${rest}`;
}

/** A duration. */
export function durationText(ms) {
  if (ms === null || ms === undefined) return "unknown";
  if (ms < 1000) return `${ms < 10 ? Number(ms.toFixed(1)) : Math.round(ms)} ms`;
  if (ms < 120_000) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < 7_200_000) return `${Math.round(ms / 60_000)} min`;
  return ms < 172_800_000 ? `${Math.round(ms / 3_600_000)} h` : `${Math.round(ms / 86_400_000)} days`;
}

/** A number with thousands separated. */
export function countText(number) {
  return typeof number === "bigint" || Number.isFinite(number) ? number.toLocaleString("en") : "unknown";
}

/** A rate per second: small ones with a digit behind the point. */
export function rateText(perSecond) {
  if (perSecond === null || perSecond === undefined) return "unknown";
  return `${countText(perSecond < 10 ? Number(perSecond.toFixed(1)) : Math.round(perSecond))}/s`;
}

/** A Position as `topic-partition @ offset`. */
export function positionText(position) {
  if (position === undefined || position === null) return "unknown";
  const parts = Object.entries(position).flatMap(([topic, partitions]) =>
    Object.entries(partitions).map(([partition, offset]) => `${topic}-${partition} @ ${offset}`),
  );
  return parts.join(", ") || "nothing yet";
}
