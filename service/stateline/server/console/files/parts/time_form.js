/** A form whose times go into the address. */

import { html, useState } from "../vendor/htm-preact-3.1.1.js";
import { timeOf } from "../base/times.js";
import { isNoTime, TimeField } from "./time_field.js";

/**
 * `fields` are `{name, label, given, empty}`: `given` is the address's value, `empty` describes an empty field. `onTimes` gets name →
 * ms (null if empty) once all are valid. `children` come before the button.
 */
export function TimeForm({ fields, button, onTimes, children }) {
  const given = Object.fromEntries(fields.map((field) => [field.name, field.given ?? ""]));
  const [draft, setDraft] = useState({ of: given, values: given });
  const values = JSON.stringify(draft.of) === JSON.stringify(given) ? draft.values : given; // by address
  const [unread, setUnread] = useState({});
  const submit = (event) => {
    event.preventDefault();
    const wrong = Object.entries(values).filter(([, value]) => isNoTime(value));
    setUnread(Object.fromEntries(wrong));
    if (wrong.length === 0) onTimes(Object.fromEntries(Object.entries(values).map(([name, value]) => [name, timeOf(value)])));
  };
  const isWrong = (name) => isNoTime(values[name]) && [unread[name], given[name]].includes(values[name]);
  const field = ({ name, label, empty }) => html`<${TimeField} key=${name} id=${`time-${name}`} name=${name} label=${label} empty=${empty}
    value=${values[name]} isWrong=${isWrong(name)} onChange=${(value) => setDraft({ of: given, values: { ...values, [name]: value } })} />`;
  return html`<form onSubmit=${submit}>
    ${fields.map(field)}
    ${children}
    <button type="submit">${button}</button>
  </form>`;
}
