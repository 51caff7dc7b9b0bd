/** Fields for times as people write them. */

import { html, useState } from "../../vendor/htm-preact-3.1.1.js";
import { localText } from "../../base/format.js";
import { timeFrom } from "../../base/times.js";

/** The time that a member of the address has, in ms; null for none, or what is no time. */
export function timeOf(text) {
  return text === undefined ? null : timeFrom(text);
}

/**
 * A form of `fields`, `{name, label, given, empty}` each: `given` is what the address has, `empty` what is meant when nothing
 * is written. `onTimes` is called with name → ms, null for an empty one, when all can be read. `children` stand before
 * the button.
 */
export function TimeForm({ fields, button, onTimes, children }) {
  const [unread, setUnread] = useState({});
  const submit = (event) => {
    event.preventDefault();
    const written = fields.map(({ name }) => [name, event.target.elements[name].value.trim()]);
    const wrong = written.filter(([, text]) => text !== "" && timeFrom(text) === null);
    setUnread(Object.fromEntries(wrong));
    if (wrong.length === 0) onTimes(Object.fromEntries(written.map(([name, text]) => [name, text === "" ? null : timeFrom(text)])));
  };
  return html`<form onSubmit=${submit}>
    ${fields.map((field) => html`<${TimeField} key=${field.name} ...${field} unread=${unread[field.name] ?? unreadable(field.given)} />`)}
    ${children}
    <button type="submit">${button}</button>
  </form>`;
}

function unreadable(given) {
  return given === undefined || timeFrom(given) !== null ? undefined : given;
}

function TimeField({ name, label, given, empty, unread }) {
  const ms = timeOf(given);
  const hint = unread === undefined ? empty : `'${unread}' is no time: write 2013-03-01 12:00, ISO 8601, or milliseconds.`;
  return html`<div class="field">
    <label for=${`time-${name}`}>${label}</label>
    <input key=${given} id=${`time-${name}`} name=${name} type="text" autocomplete="off" spellcheck="false" placeholder="2013-03-01 12:00"
      defaultValue=${ms === null ? (given ?? "") : localText(ms)} aria-invalid=${unread === undefined ? null : "true"} aria-describedby=${`time-${name}-hint`} />
    <span id=${`time-${name}-hint`} class=${unread === undefined ? "hint" : "hint wrong"} role=${unread === undefined ? null : "alert"}>${hint}</span>
  </div>`;
}
