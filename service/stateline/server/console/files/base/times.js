/**
 * Times as people write them, and as addresses have them. Who writes one without a zone means their own; without one in an
 * address it is UTC's, as the server reads it, so that a link is of the same moment for everybody. Pure but for the reader's zone.
 */

import { localText, utcText } from "./format.js";

const WRITTEN = /^(\d{4}-\d\d-\d\d)(?:(T\d\d:\d\d(?::\d\d(?:\.\d+)?)?)(Z|[+-]\d\d:?\d\d)?)?$/;
const MILLISECONDS = /^-?\d+$/;
const BARE_DATE = /^[1-9]\d{7}(\d{6})?$/; // 20130301: in milliseconds that would be a time of January 1970
const SHIFTS_MS = [-3_600_000, -1_800_000, 1_800_000, 3_600_000]; // by which clocks are put back, somewhere

/** The reader's zone by its name, as Europe/Berlin. */
export function zoneName() {
  return Intl.DateTimeFormat().resolvedOptions().timeZone ?? "your zone";
}

/**
 * Milliseconds since the epoch of what the reader wrote: those as a number, or 2013-03-01, 2013-03-01 12:00, ISO 8601; in
 * their zone unless one is written. Null for what is no time.
 */
export function timeFrom(written) {
  return parsed(written, "");
}

/** The same of what an address has, undefined or empty for nothing; in UTC unless a zone is written. */
export function timeOf(text) {
  return parsed(text ?? "", "Z");
}

/** What an address is to have for what the reader wrote: the moment in UTC, or in milliseconds; what is no time as it is. */
export function addressTime(written) {
  const text = written.trim();
  const ms = timeFrom(text);
  return ms === null || MILLISECONDS.test(text) ? text : utcText(ms).replace(".000Z", "Z");
}

/** What stands in a field for what an address has: in the reader's zone, and the very same moment when it is read again. */
export function fieldText(text) {
  const ms = timeOf(text);
  if (ms === null) return text ?? "";
  const local = localText(ms).replace(/^(.* \d\d:\d\d):00$/, "$1");
  if (timeFrom(local) === ms && !SHIFTS_MS.some((shift) => localText(ms + shift) === localText(ms))) return local;
  const zoned = `${local}${offsetText(-new Date(ms).getTimezoneOffset())}`; // an hour that comes twice
  return timeFrom(zoned) === ms ? zoned : String(ms);
}

function parsed(text, zone) {
  const written = text.trim().toUpperCase();
  if (MILLISECONDS.test(written)) return BARE_DATE.test(written) ? null : Number(written);
  const spaced = written.replace(/^(\S+T\S+)\s+(?=\d\d:?\d\d$)/, "$1+"); // the + of an address is a space
  const iso = spaced.replace(/^(\S+)\s+(?=\d)/, "$1T").replace(/\s+/g, "");
  const [whole, day, time = "T00:00", own = zone] = WRITTEN.exec(iso) ?? [];
  if (whole === undefined || !isDay(day)) return null;
  const ms = Date.parse(`${day}${time}${own}`);
  return Number.isNaN(ms) ? null : ms;
}

/** Some browsers take the 30th of February for a day of March. */
function isDay(day) {
  const date = new Date(`${day}T00:00Z`);
  return !Number.isNaN(date.getTime()) && date.toISOString().startsWith(day);
}

function offsetText(minutes) {
  const two = (number) => String(Math.trunc(number)).padStart(2, "0");
  return `${minutes < 0 ? "-" : "+"}${two(Math.abs(minutes) / 60)}:${two(Math.abs(minutes) % 60)}`;
}
