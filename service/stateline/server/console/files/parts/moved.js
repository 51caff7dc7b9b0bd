/** The differences to the previous answer while a question is repeated. */

import { useMemo, useRef } from "../vendor/htm-preact-3.1.1.js";
import { countText } from "../base/format.js";
import { compact } from "../base/json.js";
import { entriesOf } from "./answer.js";
import { changesBetween } from "./rows.js";

const NOTHING = "Nothing changed since the answer before.";
const NONE = { changed: new Map(), said: null };

/** `{changed, said}`: row id → ids of changed columns, and the changes in words; null without a previous answer. `columns` are those of rows without entries. */
export function useMoved(seen, rows, everyS, columns = null) {
  const last = useRef(null);
  return useMemo(() => {
    const before = last.current;
    last.current = seen.answer === null ? null : { id: seen.id, body: seen.answer.body, rows };
    if (everyS === 0 || last.current === null || before?.id !== seen.id) return NONE;
    if (columns === null && entriesOf(seen.answer.body) === null) return { ...NONE, said: bodiesText(before.body, seen.answer.body) };
    const changes = changesBetween(before.rows, rows, columns ?? undefined);
    return { changed: changes.changed, said: rowsText(changes) };
  }, [seen.answer]);
}

function rowsText({ changed, added, gone }) {
  if (changed.size + gone === 0) return NOTHING;
  return `Since the answer before: ${changed.size - added} changed, ${added} new, ${gone} gone.`;
}

function bodiesText(before, now) {
  const [was, is] = [before, now].map((body) => body.exact_entries);
  if (is !== undefined) return was === is ? NOTHING : `Since the answer before: from ${countText(was)} to ${countText(is)}.`;
  const [old, present] = [before, now].map(({ committed, uncommitted }) => compact([committed ?? null, uncommitted ?? null]));
  return old === present ? NOTHING : "Since the answer before the positions moved.";
}
