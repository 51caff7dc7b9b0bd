/** A field for a time. Without a zone it is the reader's; the address gets the moment. */

import { html, useState } from "../vendor/htm-preact-3.1.1.js";
import { utcText } from "../base/format.js";
import { addressTime, fieldText, timeOf, zoneName } from "../base/times.js";

/**
 * `value` and the argument of `onChange` are as an address has them; invalid text stays unchanged. `empty` describes an empty field.
 * `isWrong`: the text is not a time.
 */
export function TimeField({ id, name, label, value, empty = null, isWrong = false, onChange }) {
  const [written, setWritten] = useState(null);
  // The text as written while it means `value`. A time that nobody edits is not read again, so it does not move.
  const text = written !== null && addressTime(written) === value ? written : fieldText(value);
  const write = (event) => {
    setWritten(event.target.value);
    onChange(addressTime(event.target.value));
  };
  return html`<div class="field">
    <label for=${id}>${label}</label>
    <input id=${id} name=${name} type="text" autocomplete="off" spellcheck=${false} placeholder="2013-03-01 12:00" value=${text} onInput=${write}
      aria-invalid=${isWrong ? "true" : null} aria-describedby=${`${id}-hint`} />
    <span id=${`${id}-hint`} class=${isWrong ? "hint time wrong" : "hint time"} role=${isWrong ? "alert" : null}>${isWrong ? wrongText(value) : hintText(value, empty)}</span>
  </div>`;
}

/** Whether this is text that is not a time. */
export function isNoTime(value) {
  return (value ?? "") !== "" && timeOf(value) === null;
}

function wrongText(value) {
  return `'${value}' is no time: write 2013-03-01 12:00, ISO 8601, or milliseconds.`;
}

function hintText(value, empty) {
  const ms = timeOf(value);
  const said = ms === null ? empty : utcText(ms).replace(".000Z", "Z");
  return `${said ? `${said}. ` : ""}${zoneName()}, unless Z or an offset is written.`;
}
