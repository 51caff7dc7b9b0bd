/** Chooses the number in values that is drawn: `number` of the address. */

import { html } from "../../vendor/htm-preact-3.1.1.js";
import { setQuery } from "../../base/place.js";

/** The number of `numbersIn` that the address names, or the first; undefined without numbers. */
export function chosenNumber(numbers, at) {
  return numbers.find(({ id }) => id === at.query.number) ?? numbers[0];
}

/** Its name in a label if it is a member of the values, else `otherwise`. */
export function numberName(number, otherwise) {
  return number?.path.length > 0 ? number.id : otherwise;
}

/** A field to choose the number. */
export function NumberChoice({ numbers, at }) {
  if (numbers.length === 0) return html`<p class="hint">These values have no number to draw. The table shows them.</p>`;
  const choose = (event) => setQuery({ number: event.target.value });
  return html`<div class="field"><label for="number">Drawn</label>
    <select id="number" value=${chosenNumber(numbers, at).id} onChange=${choose}>
      ${numbers.map((number) => html`<option key=${number.id} value=${number.id}>${numberName(number, "the value")}</option>`)}
    </select></div>`;
}
