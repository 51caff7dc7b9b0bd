/** Snapshots of the application: which exist, until when, and how to read them. */

import { html, useState } from "../vendor/htm-preact-3.1.1.js";
import { useAnswer } from "../base/answer.js";
import { durationText } from "../base/format.js";
import { untilMs } from "../base/look.js";
import { addressOf } from "../base/place.js";
import { Failure } from "../parts/problem.js";
import { Nothing, Table } from "../parts/table.js";
import { Time } from "../parts/value.js";
import { Make } from "./snapshots/make.js";
import { One } from "./snapshots/one.js";

const LIST_MS = 5000;

/** `id` of the address is the open snapshot. */
export function Snapshots({ at }) {
  const [again, setAgain] = useState(0);
  const { body, failure } = useAnswer("v1/snapshots", LIST_MS, { inputs: [again] });
  const snapshots = body?.snapshots.toSorted((a, b) => b.created_at - a.created_at) ?? null;
  const askAgain = () => setAgain((number) => number + 1);
  const open = snapshots?.find(({ id }) => id === at.query.id);
  return html`<div class="snapshots-place">
    ${failure && html`<${Failure} error=${failure} />`}
    ${snapshots === null && !failure && html`<p role="status">Loading …</p>`}
    ${snapshots?.length === 0 && html`<${Nothing}>No snapshot is kept now. One keeps the committed state of several stores, all at one commit, until its lease ends:
      for an export, for Spark or pandas, to compare stores with each other. Make one below; nothing is copied, and the stores go on.<//>`}
    ${snapshots?.length > 0 && html`<${List} snapshots=${snapshots} open=${open} />`}
    ${open && html`<${One} key=${open.id} snapshot=${open} onChange=${askAgain} />`}
    ${snapshots && at.query.id && !open && html`<${Nothing}>Snapshot ${at.query.id} is not kept any more: it was released, or its lease has ended. <a href=${addressOf({ place: "snapshots" })}>Close</a><//>`}
    <${Make} onMade=${askAgain} />
  </div>`;
}

function List({ snapshots, open }) {
  const rows = snapshots.map((snapshot) => ({
    id: snapshot.id,
    cells: [
      snapshot === open ? html`${snapshot.id} <span class="tag">open</span>` : html`<a href=${addressOf({ place: "snapshots", query: { id: snapshot.id } })}>${snapshot.id}</a>`,
      Object.keys(snapshot.stores).join(", "),
      html`<${Time} ms=${snapshot.created_at} />`,
      html`<${Time} ms=${snapshot.expires_at} /> <span class="muted">in ${durationText(untilMs(snapshot.expires_at))}</span>`,
      nodesOf(snapshot).join(", ") || "this node",
    ],
  }));
  return html`<${Table} caption="Kept now, the newest first" columns=${["Snapshot", "Stores", "Made", "Lease ends", "Kept by"]} rows=${rows} />`;
}

/** The nodes that keep a part; empty if there is one node. */
function nodesOf({ stores }) {
  const parts = Object.values(stores).flatMap((partitions) => Object.values(partitions));
  return [...new Set(parts.map(({ node }) => node).filter((node) => node !== undefined))];
}
