/** Numbers, durations and times for readers. Pure but for the reader's zone. */

/** Milliseconds since the epoch as ISO 8601 in UTC; the number itself if no date can hold it. */
export function utcText(ms) {
  if (ms === null || ms === undefined) return "none";
  const date = new Date(Number(ms));
  return Number.isNaN(date.getTime()) ? String(ms) : date.toISOString();
}

/** The same in the reader's zone: 2026-11-26 22:58:02.123, without milliseconds if they are 0. */
export function localText(ms) {
  if (ms === null || ms === undefined) return "none";
  const date = new Date(Number(ms));
  if (Number.isNaN(date.getTime())) return String(ms);
  const two = (number, places = 2) => String(number).padStart(places, "0");
  const day = `${yearText(date.getFullYear())}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  const rest = date.getMilliseconds() ? `.${two(date.getMilliseconds(), 3)}` : "";
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}${rest}`;
}

/** A year with four digits; others with a sign and six digits, as in ISO 8601. */
function yearText(year) {
  if (year >= 0 && year <= 9999) return String(year).padStart(4, "0");
  return `${year < 0 ? "-" : "+"}${String(Math.abs(year)).padStart(6, "0")}`;
}

export function durationText(ms) {
  if (ms === null || ms === undefined) return "unknown";
  if (ms < 1000) return `${ms < 10 ? countText(Number(ms.toPrecision(2))) : Math.round(ms)} ms`;
  if (ms < 120_000) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < 7_200_000) return `${Math.round(ms / 60_000)} min`;
  return ms < 172_800_000 ? `${Math.round(ms / 3_600_000)} h` : `${Math.round(ms / 86_400_000)} days`;
}

const DIGITS = { maximumFractionDigits: 3, maximumSignificantDigits: 4, roundingPriority: "morePrecision" };

/** A number with thousands separators: integers exactly, others with three decimals, or four significant digits if small. */
export function countText(number) {
  if (typeof number === "bigint") return number.toLocaleString("en");
  if (typeof number === "object" && number !== null) return String(number); // a `Decimal`
  if (!Number.isFinite(number)) return "unknown";
  const size = Math.abs(number);
  if (size >= 1e21 || (size > 0 && size < 1e-6)) return String(Number(number.toPrecision(4)));
  return number.toLocaleString("en", Number.isInteger(number) ? {} : DIGITS);
}

/** A count with its noun: "1 key", "2,000 keys". `plural` is for nouns without an s. */
export function counted(number, noun, plural = `${noun}s`) {
  return `${countText(number)} ${number === 1 ? noun : plural}`;
}

/** A number of bytes in a unit that keeps it short. */
export function sizeText(bytes) {
  const power = bytes > 0 ? Math.min(3, Math.floor(Math.log(bytes) / Math.log(1024))) : 0;
  return `${(bytes / 1024 ** power).toFixed(power ? 1 : 0)} ${["B", "KiB", "MiB", "GiB"][power]}`;
}

/** A rate per second. Small rates have two digits. */
export function rateText(perSecond) {
  if (perSecond === null || perSecond === undefined) return "unknown";
  return `${countText(perSecond < 10 ? Number(perSecond.toPrecision(2)) : Math.round(perSecond))}/s`;
}

/** A Position as `topic-partition @ offset`. */
export function positionText(position) {
  if (position === undefined || position === null) return "unknown";
  const parts = Object.entries(position).flatMap(([topic, partitions]) =>
    Object.entries(partitions).map(([partition, offset]) => `${topic}-${partition} @ ${offset}`),
  );
  return parts.join(", ") || "nothing yet";
}
