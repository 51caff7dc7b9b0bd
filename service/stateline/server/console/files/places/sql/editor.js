/** Where a statement is written. */

import { html, useRef, useState } from "../../vendor/htm-preact-3.1.1.js";
import { setQuery } from "../../base/place.js";
import { nameText } from "../../base/statement.js";
import { isNoTime, TimeField } from "../../parts/time_field.js";
import { Tables } from "./tables.js";

const LEVELS = ["", "read_committed", "read_uncommitted"];
const MOST_LINES = 24;
const PARAMETER = /\$\w/;

/**
 * The statement that is written, `asked` at first and whenever that changes: `{values, isAsked, field, write, mark}`. `mark` selects a
 * place in its text.
 */
export function useDraft(asked) {
  const field = useRef(null);
  const of = JSON.stringify(asked);
  const [edited, setEdited] = useState({ of, values: asked });
  // Reset while rendering: an effect would come after the first typed keys, and drop them.
  if (edited.of !== of) setEdited({ of, values: asked });
  const values = edited.of === of ? edited.values : asked;
  const mark = ({ from, to }) => {
    field.current.focus();
    field.current.setSelectionRange(from, to);
  };
  const write = (changes) => setEdited((last) => ({ of, values: { ...(last.of === of ? last.values : asked), ...changes } }));
  return { values, isAsked: JSON.stringify(values) === of, field, write, mark };
}

/** The form. `children` come below the statement. */
export function Editor({ draft, level, tables, asking, onRun, onStop, children }) {
  const { field, values: { q, params, as_of: asOf } } = draft;
  const [wrong, setWrong] = useState(null);
  const completion = useRef(null);
  const [said, setSaid] = useState("");
  const run = (event) => {
    event.preventDefault();
    setWrong(asOf);
    if (!isNoTime(asOf)) onRun();
  };
  const insert = (from, to, text) => {
    draft.mark({ from, to });
    document.execCommand("insertText", false, text); // the only way that Undo knows
  };
  const pressed = (event) => {
    const held = event.ctrlKey || event.metaKey;
    if (held && event.key === "Enter") return run(event);
    if (!(event.ctrlKey && event.code === "Space")) return undefined;
    event.preventDefault();
    const next = completed(completion.current, field.current, namesOf(tables.tables ?? []));
    if (next === null) return setSaid("No table or column begins like this.");
    completion.current = next;
    insert(next.from, next.to, next.name);
    return setSaid(`${next.name}, ${next.at + 1} of ${next.names.length}`);
  };
  const lines = Math.min(MOST_LINES, Math.max(5, q.split("\n").length + 1));
  return html`<form class="query panel sql-form" aria-label="Ask in SQL" onSubmit=${run}>
    <div class="field">
      <label for="statement">Statement</label>
      <textarea id="statement" class="mono" ref=${field} rows=${lines} spellcheck=${false} autocomplete="off" autocapitalize="off" required aria-describedby="statement-hint"
        aria-keyshortcuts="Control+Enter Meta+Enter Control+Space" value=${q} onInput=${(event) => draft.write({ q: event.target.value })} onKeyDown=${pressed}></textarea>
      <span id="statement-hint" class="hint">One SELECT. <kbd>Ctrl</kbd> <kbd>Enter</kbd> runs it. <kbd>Ctrl</kbd> <kbd>Space</kbd> completes a name. <span role="status">${said}</span></span>
      ${children}
      <details open=${params !== "" || asOf !== "" || PARAMETER.test(q)}>
        <summary>Parameters and time</summary>
        <div class="fields">
          <div class="field">
            <label for="params">Parameters</label>
            <input id="params" class="mono" type="text" autocomplete="off" spellcheck=${false} aria-describedby="params-hint" value=${params} onInput=${(event) => draft.write({ params: event.target.value })} />
            <span id="params-hint" class="hint">JSON: <code>["JFK", 5]</code> for $1, $2, or <code>{"airport": "JFK"}</code> for $airport</span>
          </div>
          <${TimeField} id="as-of" name="as_of" label="As of" empty="Versioned stores are read at this time, now when empty" value=${asOf}
            isWrong=${wrong === asOf && isNoTime(asOf)} onChange=${(next) => draft.write({ as_of: next })} />
        </div>
      </details>
      <div class="buttons">
        <button type="submit" class="main">Run</button>
        <button type="button" aria-disabled=${!asking} onClick=${() => asking && onStop()}>Stop</button>
        <label class="watch">Isolation level
          <select value=${level} onChange=${(event) => setQuery({ isolation_level: event.target.value })}>${LEVELS.map((each) => html`<option key=${each} value=${each}>${each || "default"}</option>`)}</select></label>
      </div>
    </div>
    <${Tables} of=${tables} onName=${(name) => insert(field.current.selectionStart, field.current.selectionEnd, name)} />
  </form>`;
}

function namesOf(tables) {
  return [...new Set(tables.flatMap(({ name, columns }) => [name, ...columns.map((column) => column.name)]))].map(nameText);
}

/** The next name `{names, at, name, from, to}` for the word before the caret, which it replaces from `from` to `to`. `last` is the one before: then the next one of its names. Null without a name. */
function completed(last, { value, selectionStart: caret }, all) {
  if (last !== null && caret === last.from + last.name.length && value.slice(last.from, caret) === last.name) {
    const at = (last.at + 1) % last.names.length;
    return { ...last, at, name: last.names[at], to: caret };
  }
  const [word] = /"?\w*$/.exec(value.slice(0, caret));
  const bare = word.replace('"', "").toLowerCase();
  const names = all.filter((name) => name.replace(/^"/, "").toLowerCase().startsWith(bare));
  return names.length === 0 ? null : { names, at: 0, name: names[0], from: caret - word.length, to: caret };
}
