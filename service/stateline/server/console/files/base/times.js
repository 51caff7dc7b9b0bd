/** Times as people write them. Pure but for the reader's zone. */

const WRITTEN = /^\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?)?$/i;

/**
 * Milliseconds since the epoch of what somebody wrote: those as a number, or 2013-03-01, 2013-03-01 12:00, ISO 8601; in
 * the reader's zone unless a zone is written. Null for what is no time.
 */
export function timeFrom(text) {
  const written = text.trim();
  if (/^-?\d+$/.test(written)) return Number(written);
  const iso = written.replace(/^(\S+)\s+(?=\d)/, "$1T").replace(/\s+/g, "");
  if (!WRITTEN.test(iso)) return null;
  const ms = Date.parse(iso.includes("T") || iso.includes("t") ? iso : `${iso}T00:00`); // a day alone would be UTC's
  return Number.isNaN(ms) ? null : ms;
}
