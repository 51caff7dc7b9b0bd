/** Statements that this browser keeps. */

import { html, useState } from "../../vendor/htm-preact-3.1.1.js";
import { addressOf } from "../../base/place.js";
import { ASKED } from "../../base/statement.js";
import { Nothing } from "../../parts/table.js";

const SAVED = "stateline-saved-statements";

/** `{name, q, …}` of each, by name, with the members of its address. */
function savedStatements() {
  return JSON.parse(localStorage.getItem(SAVED) ?? "[]");
}

export function Saved({ statement }) {
  const [saved, setSaved] = useState(savedStatements);
  const [said, setSaid] = useState("");
  const keep = (change, done) => {
    const next = change(savedStatements()).toSorted((one, other) => one.name.localeCompare(other.name)); // another tab may have saved
    try {
      localStorage.setItem(SAVED, JSON.stringify(next));
      setSaved(next);
      setSaid(done);
    } catch {
      setSaid("The browser keeps no more. Delete others first.");
    }
  };
  const save = (event) => {
    event.preventDefault();
    const name = event.target.elements.name.value.trim();
    if (name === "") return;
    keep((all) => [...all.filter((each) => each.name !== name), { name, ...statement }], `Saved as ${name}.`);
    event.target.reset();
  };
  const remove = (name) => keep((all) => all.filter((each) => each.name !== name), `Deleted ${name}.`);
  return html`<section aria-labelledby="saved-title">
    <h2 id="saved-title">Saved in this browser</h2>
    ${saved.length === 0 && html`<${Nothing}>None yet. Another name keeps another statement, the same name replaces it.<//>`}
    <${Statements} of=${saved} onDelete=${remove} />
    <form onSubmit=${save}>
      <div class="field"><label for="saved-name">Name</label><input id="saved-name" name="name" autocomplete="off" required maxlength="100" /></div>
      <button type="submit" disabled=${statement.q.trim() === ""}>Save the statement</button>
      <p role="status">${said}</p>
    </form>
  </section>`;
}

/** Links that run statements `{name, q, …}`. */
export function Statements({ of, onDelete = null }) {
  return html`<ul class="last">${of.map(({ name, ...query }) => html`<li key=${JSON.stringify([name, query])}>
    <a href=${addressOf({ place: "sql", query })}>${name}</a>
    <span class="muted">${ASKED.filter((each) => query[each] && query[each] !== name).map((each) => ` ${query[each]}`)}</span>
    ${onDelete !== null && html` <button type="button" onClick=${() => onDelete(name)}>Delete<span class="unseen"> ${name}</span></button>`}</li>`)}</ul>`;
}
