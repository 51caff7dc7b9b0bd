/** The tables that a statement may read, and their columns. */

import { html, useEffect, useState } from "../../vendor/htm-preact-3.1.1.js";
import { ask, Problem, Unreachable } from "../../base/api.js";
import { counted } from "../../base/format.js";
import { nameText, requestOf } from "../../base/statement.js";

const COLUMNS = "select table_name, column_name, data_type from information_schema.columns order by table_name, ordinal_position";

/** `{tables, failure}`: `{name, columns: [{name, type}]}` of each table, null at first; why there are none, or null. */
export function useTables() {
  const [seen, setSeen] = useState({ tables: null, failure: null });
  useEffect(() => {
    const over = new AbortController();
    ask("v1/sql", { ...requestOf({ q: COLUMNS }, {}), signal: over.signal }).then(
      ({ body }) => setSeen({ tables: grouped(body), failure: null }),
      (error) => {
        if (over.signal.aborted) return;
        if (!(error instanceof Problem || error instanceof Unreachable)) throw error;
        setSeen({ tables: [], failure: error });
      },
    );
    return () => over.abort();
  }, []);
  return seen;
}

function grouped(rows) {
  const columns = Map.groupBy(rows, (row) => row.table_name);
  return [...columns].map(([name, of]) => ({ name, columns: of.map((row) => ({ name: row.column_name, type: typeText(row.data_type) })) }));
}

function typeText(type) {
  return type === "TIMESTAMP WITH TIME ZONE" ? "TIMESTAMPTZ" : type;
}

/** Buttons that write a name into the statement. */
export function Tables({ of: { tables, failure }, onName }) {
  return html`<div class="tables" role="group" aria-label="Tables">
    <p class="chart-title">Tables</p>
    ${tables === null && html`<p role="status">Loading …</p>`}
    ${failure !== null && html`<p class="note">They cannot be listed: ${failure.message}</p>`}
    ${tables?.length === 0 && failure === null && html`<p class="note">This application has no stores to read.</p>`}
    ${(tables ?? []).map(
      ({ name, columns }) => html`<details key=${name}>
        <summary>${name} <span class="muted">${counted(columns.length, "column")}</span></summary>
        <button type="button" class="name" onClick=${() => onName(nameText(name))}>${nameText(name)} <span class="muted">table</span></button>
        ${columns.map((each) => html`<button key=${each.name} type="button" class="name" title=${each.type} onClick=${() => onName(nameText(each.name))}>${nameText(each.name)} <span class="muted">${each.type}</span></button>`)}
      </details>`,
    )}
  </div>`;
}
