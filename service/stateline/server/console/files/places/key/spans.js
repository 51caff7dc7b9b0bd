/** Stretches of time as bars from start to end. */

import { html } from "../../vendor/htm-preact-3.1.1.js";
import { countText, localText } from "../../base/format.js";
import { extentOf } from "../../base/numbers.js";

const HEIGHT = 140;
const LEAST_WIDTH = 0.25; // percent, so that the shortest stays visible
const MOST_EDGED = 120; // with more bars, edges touch
const ROOM = 0.08; // of the height, above and below steps

/**
 * `spans` are `{from, to, number, name}`, ordered by `from`. A bar with `number` null is as high as the drawing. `from` and `to` of the
 * drawing default to those of the spans. `at` is a marked time. A click calls `onPick` with the span. With `steps`, the scale begins at
 * the least level, without at zero. `children` are drawn below, with the same width.
 */
export function Spans({ label, spans, steps = false, from = spans[0].from, to = Math.max(...spans.map((span) => span.to)), at = null, onPick = null, children }) {
  const numbers = spans.map(({ number }) => number).filter((number) => number !== null);
  const extent = extentOf(numbers);
  const [least, most] = steps ? stepScale(extent) : extentOf([0, ...numbers]).map(Number);
  const x = (ms) => (100 * (ms - from)) / Math.max(1, to - from);
  const y = (number) => (most === least ? 100 : (100 * (most - number)) / (most - least));
  const base = y(Math.max(least, Math.min(most, 0)));
  const said = numbers.length ? `; numbers from ${countText(extent[0])} to ${countText(extent[1])}` : "";
  return html`<div class="spans">
    <div class="spans-scale" aria-hidden="true">${scaleOf(numbers, steps).map((text) => html`<span key=${text}>${text}</span>`)}</div>
    <svg role="img" width="100%" height=${HEIGHT} aria-label=${`${label}: ${spans.length} bars from ${localText(from)} to ${localText(to)}${said}`}>
      ${spans.map((span, i) => html`<${Bar} key=${i} span=${span} x=${x} top=${span.number === null ? 0 : y(Number(span.number))} base=${span.number === null ? 100 : base}
        classes=${[i % 2 && "odd", span.number === null && "plain", steps && span.number !== null && "step", spans.length > MOST_EDGED && "dense"]} onPick=${onPick} />`)}
      ${at !== null && html`<line class="at" x1=${`${x(at)}%`} x2=${`${x(at)}%`} y1="0" y2="100%" />`}
    </svg>
    <div class="spans-below">
      <p class="spans-times" aria-hidden="true"><span>${localText(from)}</span><span>${localText(to)}</span></p>
      ${children}
    </div>
  </div>`;
}

function Bar({ span, x, top, base, classes, onPick }) {
  const [left, width] = [x(span.from), Math.max(LEAST_WIDTH, x(span.to) - x(span.from))];
  const names = ["span", onPick && "pick", ...classes].filter(Boolean).join(" ");
  return html`<g onClick=${onPick && (() => onPick(span))}>
    <rect class=${names} x=${`${left}%`} width=${`${width}%`} y=${`${Math.min(top, base)}%`} height=${`${Math.max(1, Math.abs(base - top))}%`}><title>${span.name}</title></rect>
    ${classes.includes("step") && html`<line class="level" x1=${`${left}%`} x2=${`${left + width}%`} y1=${`${top}%`} y2=${`${top}%`} />`}
  </g>`;
}

function stepScale([first, last]) {
  if (first === undefined) return [0, 0];
  const [least, most] = [Number(first), Number(last)];
  const room = ROOM * (most - least || Math.abs(most) || 1);
  return [least - room, most + room];
}

/** The labels at the edges of the drawing. */
function scaleOf(numbers, steps) {
  if (numbers.length === 0) return [];
  const [least, most] = extentOf(steps ? numbers : [0, ...numbers]);
  return [...new Set([countText(most), countText(least)])];
}
