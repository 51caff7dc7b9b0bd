/** The versions of a key as steps, above a slider over the same time. The slider sets `as_of` of the address. */

import { html, useEffect, useRef, useState } from "../../vendor/htm-preact-3.1.1.js";
import { localText, utcText } from "../../base/format.js";
import { numberAt } from "../../base/numbers.js";
import { setQuery } from "../../base/place.js";
import { shortText } from "../../parts/value.js";
import { numberName } from "./numbers.js";
import { Spans } from "./spans.js";

const SETTLE_MS = 120; // the slider rests this long before the server is asked

/** `isNewest`: no version follows these. */
export function Slider({ versions, asOf, number, isNewest, label }) {
  const [dragged, setDragged] = useState(null); // the slider's value until it is in the address
  const timer = useRef(null);
  useEffect(() => setDragged(null), [asOf]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const ends = versions.map(({ valid_to: end }) => end).filter((end) => end !== null);
  const changes = [...new Set([...versions.map(({ timestamp }) => timestamp), ...ends])].sort((a, b) => a - b);
  const from = changes[0];
  const span = Math.max(1, changes.at(-1) - from);
  const to = from + span + Math.ceil(span / 20); // some room after the last change
  const chosen = dragged ?? asOf;
  const now = chosen ?? to;
  const isThere = chosen === null ? isNewest : from <= now && now <= to;
  const drag = (event) => {
    const ms = Math.round(Number(event.target.value));
    setDragged(ms);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setQuery({ as_of: ms }, { replace: true }), SETTLE_MS);
  };
  const [before, after] = [changes.findLast((ms) => ms < now), changes.find((ms) => ms > now)];
  const jump = (ms) => ms !== undefined && setQuery({ as_of: ms });
  const spans = versions.map(({ timestamp, valid_to: end, value }) => ({
    from: timestamp,
    to: end ?? to,
    number: numberAt(value, number),
    name: `From ${localText(timestamp)}: ${shortText(value)}`,
  }));
  return html`
    <${Spans} label=${`${numberName(number, "Versions")} of ${label} over time`} steps spans=${spans} from=${from} to=${to} at=${isThere ? now : null} onPick=${(picked) => jump(picked.from)}>
      <input type="range" aria-label="As of" min=${from} max=${to} step="any" value=${now} aria-valuetext=${`${localText(now)}, ${utcText(now)}`} onInput=${drag} />
    <//>
    <div class="buttons jumps">
      <button type="button" aria-disabled=${before === undefined ? "true" : null} onClick=${() => jump(before)}>Earlier change</button>
      <button type="button" aria-disabled=${after === undefined ? "true" : null} onClick=${() => jump(after)}>Later change</button>
      <button type="button" aria-disabled=${asOf === null ? "true" : null} onClick=${() => setQuery({ as_of: "" })}>Newest</button>
    </div>`;
}
