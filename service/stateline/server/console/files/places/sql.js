/** SQL over the stores: a statement of the address, what it reads, and its rows. */

import { html, useState } from "../vendor/htm-preact-3.1.1.js";
import { setQuery } from "../base/place.js";
import { ASKED, requestOf } from "../base/statement.js";
import { Curl } from "../parts/curl.js";
import { MOST_LAST, useLast } from "../parts/last.js";
import { Nothing } from "../parts/table.js";
import { everyOf, useAnswer, Watch } from "../parts/watch.js";
import { Editor, useDraft } from "./sql/editor.js";
import { Plan, usePlan } from "./sql/plan.js";
import { Result } from "./sql/result.js";
import { Saved, Statements } from "./sql/saved.js";
import { useTables } from "./sql/tables.js";
import { isMissing, NotInstalled } from "./sql/trouble.js";

const LAST = "stateline-statements";

export function Sql({ at: { query } }) {
  const { isolation_level: level, ...written } = Object.fromEntries(ASKED.map((name) => [name, query[name] ?? ""]));
  const asked = written.q.trim() === "" ? null : { ...written, isolation_level: level };
  const everyS = everyOf(query);
  const [anew, setAnew] = useState(0);
  const [stopped, setStopped] = useState(null);
  const run = `${anew} ${JSON.stringify(asked)}`;
  const draft = useDraft(written);
  const tables = useTables();
  const plan = usePlan(draft.values, draft.isAsked);
  const isRun = asked !== null && stopped !== run;
  const isListing = isRun && tables.tables === null; // the list is first: it would wait behind a slow statement
  const answered = useAnswer(isRun && !isListing ? requestOf(asked, { details: "all" }) : null, everyS, run);
  const seen = { ...answered, asking: answered.asking || isListing };
  const last = useLast(LAST, asked);
  const onRun = () => {
    setAnew(anew + 1);
    setQuery({ ...draft.values, sort: null, columns: null, find: null, open: null, view: null, time: null, by: null, number: null, zoom: null });
  };
  const onStop = () => {
    setStopped(run);
    setQuery({ every: null });
  };
  if (isMissing(tables.failure) || isMissing(seen.failure)) return html`<${NotInstalled} error=${tables.failure ?? seen.failure} />`;
  return html`<div class="sql-place">
    <${Editor} draft=${draft} level=${level} tables=${tables} asking=${seen.asking} onRun=${onRun} onStop=${onStop}><${Plan} plan=${plan} /><//>
    <section aria-labelledby="answer-title" class="answer">
      <h2 id="answer-title">Answer</h2>
      ${asked === null && html`<p id="summary" role="status">No statement yet.</p>`}
      ${asked !== null && html`<${Result} seen=${seen} asked=${asked} isStopped=${stopped === run} everyS=${everyS} query=${query} onPlace=${draft.mark}>
        <${Watch} everyS=${everyS} onChange=${(every) => setQuery({ every })} /><//>`}
    </section>
    ${asked !== null && html`<details><summary>As a request</summary><${Curl} request=${requestOf(asked, {})} /></details>`}
    <${Saved} statement=${{ ...draft.values, isolation_level: level }} />
    <section aria-labelledby="last-title">
      <h2 id="last-title">Run last</h2>
      ${last.length === 0 && html`<${Nothing}>The last ${MOST_LAST} statements of this tab stay here until you close it.<//>`}
      <${Statements} of=${last.map((each) => ({ ...each, name: each.q }))} />
    </section>
  </div>`;
}
