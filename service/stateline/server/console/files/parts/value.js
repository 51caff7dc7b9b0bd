/** Readable values: JSON laid out and folded, exact large integers, times in the reader's zone. */

import { html, useState } from "../vendor/htm-preact-3.1.1.js";
import { counted, countText, localText, utcText } from "../base/format.js";
import { compact, shown } from "../base/json.js";
import { isNumeric } from "../base/numbers.js";

const OPEN_DEPTH = 2;
const OPEN_MEMBERS = 30;
const MOST_SHORT = 120;
const MOST_TEXT = 600; // characters of a text shown without unfolding

/** A value of `parseExactly` as a tree that folds. Other text is shown unchanged. */
export function Value({ value, depth = 0, name = null }) {
  const label = name === null ? null : html`<span class="member">${name}: </span>`;
  if (value === null || typeof value !== "object" || isNumeric(value)) return html`<div class="leaf">${label}<${Leaf} value=${value} /></div>`;
  const members = Array.isArray(value) ? value.map((item, i) => [String(i), item]) : Object.entries(value);
  const brackets = Array.isArray(value) ? ["[", "]"] : ["{", "}"];
  if (members.length === 0) return html`<div class="leaf">${label}${brackets.join("")}</div>`;
  const noun = Array.isArray(value) ? "item" : "member";
  return html`<details class="tree" open=${depth < OPEN_DEPTH && members.length <= OPEN_MEMBERS}>
    <summary>${label}${brackets[0]}<span class="fold"> ${counted(members.length, noun)} ${brackets[1]}</span></summary>
    <${Members} members=${members} depth=${depth + 1} />
  </details>`;
}

function Members({ members, depth }) {
  const [most, setMost] = useState(200);
  return html`<div class="members">
    ${members.slice(0, most).map(([name, member]) => html`<${Value} key=${name} name=${name} value=${member} depth=${depth} />`)}
    ${members.length > most && html`<button type="button" onClick=${() => setMost(most + 1000)}>${members.length - most} more</button>`}
  </div>`;
}

/** A folded long text. */
function Leaf({ value }) {
  const [whole, setWhole] = useState(false);
  const kind = value === null ? "null" : isNumeric(value) ? "number" : typeof value;
  if (kind !== "string" || value.length <= MOST_TEXT) return html`<span class=${`leaf-${kind}`}>${kind === "string" ? JSON.stringify(value) : compact(value)}</span>`;
  return html`<span class="leaf-string">${JSON.stringify(whole ? value : value.slice(0, MOST_TEXT))}${whole ? "" : " …"}</span>
    <button type="button" aria-expanded=${whole} onClick=${() => setWhole(!whole)}>${whole ? "Fold" : `All ${countText(value.length)} characters`}</button>`;
}

/** A value in one line, cut if long. */
export function shortText(value, most = MOST_SHORT) {
  const text = value === undefined ? "" : shown(value);
  return text.length > most ? `${text.slice(0, most)} …` : text;
}

/** A time in the reader's zone, with UTC as title, and beside it if there is room. */
export function Time({ ms, withUtc = false }) {
  if (ms === null || ms === undefined) return html`<span class="muted">none</span>`;
  return html`<time datetime=${utcText(ms)} title=${utcText(ms)}>${localText(ms)}${withUtc && html` <span class="muted">${utcText(ms)}</span>`}</time>`;
}

/** A button that copies a text, and says so if the browser refuses. */
export function Copy({ text, label = "Copy" }) {
  const [said, setSaid] = useState("");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(typeof text === "function" ? text() : text);
      setSaid("Copied.");
    } catch {
      setSaid("Copying needs https or localhost.");
    }
  };
  return html`<span class="copy"><button type="button" onClick=${copy}>${label}</button> <span role="status">${said}</span></span>`;
}
