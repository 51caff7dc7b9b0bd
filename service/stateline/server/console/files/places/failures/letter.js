/** One dead letter: the error, and its record. */

import { html } from "../../vendor/htm-preact-3.1.1.js";
import { countText } from "../../base/format.js";
import { Facts } from "../../parts/table.js";
import { Time, Value } from "../../parts/value.js";

export function Letter({ record }) {
  const { at_ms: atMs, error, reason, trace, topic, partition, offset, headers = [] } = record;
  const place = topic ? `${topic}-${partition} @ ${offset}` : "not written";
  const facts = [
    ["Error", error ?? "not written"],
    trace ? ["Where", html`<${Trace} text=${trace} of=${place} />`] : null,
    ["Record", place],
    ["Its time", html`<${Time} ms=${atMs} withUtc />`],
    ["Key", html`<${Part} record=${record} name="key" />`],
    ["Value", html`<${Part} record=${record} name="value" />`],
    headers?.length === 0 ? null : ["Headers", html`<${Part} record=${record} name="headers" />`],
  ];
  return html`<li class="card bad"><h2>${[error?.split(".").at(-1), reason].filter(Boolean).join(": ") || "No reason was written."}</h2><${Facts} facts=${facts} /></li>`;
}

/** The stack trace. */
function Trace({ text, of }) {
  return html`<details><summary>Traceback</summary><pre role="region" aria-label=${`Traceback of ${of}`} tabindex="0">${text}</pre></details>`;
}

/** A key, a value or the headers, as their type reads them. Bytes of another type are text or base64. */
function Part({ record, name }) {
  if (record.left_out?.includes(name)) return html`<span class="muted">too large to show: <code>stateline consume --dead-letters</code> reads it</span>`;
  const bytes = record[`${name}_base64`];
  if (bytes !== undefined) return html`<${Bytes} base64=${bytes} />`;
  const value = record[name];
  return value === null || value === undefined ? html`<span class="muted">none</span>` : html`<${Value} value=${value} />`;
}

function Bytes({ base64 }) {
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  const text = textOf(bytes);
  const what = `${countText(bytes.length)} bytes, not of its topic's type, ${text === null ? "in base64" : "as text"}`;
  return html`<span class="mono">${text ?? base64}</span> <span class="muted">${what}</span>`;
}

/** Return bytes as text, null if they are not readable text. */
function textOf(bytes) {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    return /[\u0000-\u0008\u000e-\u001f\u007f]/.test(text) ? null : text;
  } catch {
    return null;
  }
}
