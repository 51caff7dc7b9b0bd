/** The answer of one isolation level. */

import { html } from "../../vendor/htm-preact-3.1.1.js";
import { compact } from "../../base/json.js";
import { Failure } from "../../parts/problem.js";
import { Origin } from "./asked.js";
import { Diff } from "./diff.js";

/** The answers of both levels, asked for at the same time, side by side. */
export const LEVELS = ["read_committed", "read_uncommitted"];

/** A card for a level's answer from `useAnswer`: `children`, and the state that it reflects. */
export function Level({ name, known, children }) {
  const { answer, failure } = known;
  return html`<section class="card" aria-labelledby=${name}>
    <h3 id=${name}>${name}</h3>
    ${failure && html`<${Failure} error=${failure} />`}
    ${!answer && !failure && html`<p role="status">Loading …</p>`}
    ${children}
    ${answer && html`<${Origin} answer=${answer} atMs=${known.atMs} />`}
  </section>`;
}

/** Says whether both answers for one value are equal, and shows the differences. `absent` is the text if neither has a value. */
export function Compared({ old, young, absent }) {
  if (!old || !young) return null;
  if (old.found !== young.found) {
    const said = young.found ? "Not committed yet: only read_uncommitted has this key." : "The deletion is not committed yet: only read_committed has this key.";
    return html`<p role="status"><span class="tag warn">differ</span> ${said}</p>`;
  }
  if (compact(old.value) === compact(young.value)) {
    return html`<p role="status"><span class="tag">equal</span> Both levels show the same${old.found ? " value" : `: ${absent}`}.</p>`;
  }
  return html`<p role="status"><span class="tag warn">differ</span> What was changed is not committed yet:</p>
    <${Diff} before=${old.value} after=${young.value} caption="From read_committed to read_uncommitted" />`;
}
