/**
 * Times as people write them and as addresses have them. Without a zone, a written time is in the reader's, a time in an address in
 * UTC. So a link means the same moment to everybody. Pure but for the reader's zone.
 */

import { localText, utcText } from "./format.js";

const WRITTEN = /^(\d{4}-\d\d-\d\d)(?:(T\d\d:\d\d(?::\d\d(?:\.\d+)?)?)(Z|[+-]\d\d:?\d\d)?)?$/;
const MILLISECONDS = /^-?\d+$/;
const BARE_DATE = /^[1-9]\d{7}(\d{6})?$/; // 20130301: as milliseconds it would be in January 1970
const SHIFTS_MS = [-3_600_000, -1_800_000, 1_800_000, 3_600_000]; // shifts of clocks in some zone

/** The reader's zone, such as Europe/Berlin. */
export function zoneName() {
  return Intl.DateTimeFormat().resolvedOptions().timeZone ?? "your zone";
}

/**
 * Milliseconds since the epoch of written text: a number, 2013-03-01, 2013-03-01 12:00, or ISO 8601; in the reader's zone unless it
 * names one. Null for other text.
 */
export function timeFrom(written) {
  return parsed(written, "");
}

/** The same for an address's value, in UTC unless it names a zone. Undefined if empty. */
export function timeOf(text) {
  return parsed(text ?? "", "Z");
}

/** The address's value for written text: UTC, or milliseconds; other text unchanged. */
export function addressTime(written) {
  const text = written.trim();
  const ms = timeFrom(text);
  return ms === null || MILLISECONDS.test(text) ? text : utcText(ms).replace(".000Z", "Z");
}

/** The text of a field for an address's value, in the reader's zone. Reading it returns the same moment. */
export function fieldText(text) {
  const ms = timeOf(text);
  if (ms === null) return text ?? "";
  const local = localText(ms).replace(/^(.* \d\d:\d\d):00$/, "$1");
  if (timeFrom(local) === ms && !SHIFTS_MS.some((shift) => localText(ms + shift) === localText(ms))) return local;
  const zoned = `${local}${offsetText(-new Date(ms).getTimezoneOffset())}`; // an hour that the clock repeats
  return timeFrom(zoned) === ms ? zoned : String(ms);
}

function parsed(text, zone) {
  const written = text.trim().toUpperCase();
  if (MILLISECONDS.test(written)) return BARE_DATE.test(written) ? null : Number(written);
  const spaced = written.replace(/^(\S+T\S+)\s+(?=\d\d:?\d\d$)/, "$1+"); // a + in an address is a space
  const iso = spaced.replace(/^(\S+)\s+(?=\d)/, "$1T").replace(/\s+/g, "");
  const [whole, day, time = "T00:00", own = zone] = WRITTEN.exec(iso) ?? [];
  if (whole === undefined || !isDay(day)) return null;
  const ms = Date.parse(`${day}${time}${own}`);
  return Number.isNaN(ms) ? null : ms;
}

/** Some browsers read 30 February as a day in March. */
function isDay(day) {
  const date = new Date(`${day}T00:00Z`);
  return !Number.isNaN(date.getTime()) && date.toISOString().startsWith(day);
}

function offsetText(minutes) {
  const two = (number) => String(Math.trunc(number)).padStart(2, "0");
  return `${minutes < 0 ? "-" : "+"}${two(Math.abs(minutes) / 60)}:${two(Math.abs(minutes) % 60)}`;
}
