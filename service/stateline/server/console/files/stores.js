/** The cards of all stores, and the partitions of the selected one; both are updated in place. */

import { byId, countText, durationText, element, setText } from "./elements.js";

const FACTS = ["Kind", "Types", "Partitions", "Lag", "Committed", "Uncommitted", "Staged", "Last commit"];
const COLUMNS = ["Partition", "State", "Worker", "Lag", "Committed", "Uncommitted", "Staged", "Last commit"];

export class StoreList {
  /** `onChoose` is called with the name of the store whose card was chosen. */
  constructor(onChoose) {
    this.onChoose = onChoose;
    this.cards = new Map();
    this.rows = new Map();
  }

  show(live) {
    const names = live.stores.map((store) => store.store);
    if (names.join("\n") !== [...this.cards.keys()].join("\n")) this.build(names);
    for (const store of live.stores) this.fill(store, live);
    if (live.shown !== null && live.shown === live.selected) this.showPartitions(live);
  }

  build(names) {
    this.cards = new Map(names.map((name) => [name, this.card(name)]));
    byId("store-list").replaceChildren(...[...this.cards.values()].map((card) => card.item));
  }

  card(name) {
    const button = element("button", { type: "button", "aria-pressed": "false", click: () => this.onChoose(name) }, name);
    const facts = FACTS.map((fact) => [element("dt", {}, fact), element("dd", {})]);
    const note = element("p", { class: "note" });
    const list = element("dl", {}, ...facts.map((pair) => element("div", {}, ...pair)));
    const item = element("li", { class: "card" }, element("h3", {}, button), list, note);
    return { item, button, facts: facts.map(([, dd]) => dd), note };
  }

  fill(store, live) {
    const { item, button, facts, note } = this.cards.get(store.store);
    const chosen = store.store === live.selected;
    button.setAttribute("aria-pressed", String(chosen));
    item.classList.toggle("chosen", chosen);
    const position = live.positions.get(store.store) ?? {};
    const texts = [
      store.kind.replaceAll("_", " "),
      `${store.key_type} → ${store.value_type}${store.persistent ? "" : ", in memory"}`,
      statesText(store.states),
      lagText(store.lag),
      offsetsText(position.committed),
      offsetsText(position.uncommitted),
      stagedText(store.staged_records),
      commitText(store.committed_at_ms, live),
    ];
    texts.forEach((text, i) => setText(facts[i], text));
    setText(note, store.not_ready ?? position.problem ?? failureText(position.failures));
  }

  showPartitions(live) {
    const numbers = Object.keys(live.partitions);
    const columns = live.cluster === null ? COLUMNS : [...COLUMNS, "Node"];
    const id = JSON.stringify([live.shown, numbers, columns]);
    if (id !== this.shownPartitions) this.buildPartitions(live.shown, numbers, columns);
    this.shownPartitions = id;
    const { committed, uncommitted, partitions: answered } = live.positions.get(live.shown) ?? {};
    for (const number of numbers) {
      // What is staged and committed elsewhere only the answer to a query tells.
      const partition = { ...answered?.[number], ...live.partitions[number] };
      const texts = [
        number,
        partition.unreadable ?? partition.state ?? "unknown",
        partition.owner ?? workerElsewhere(partition, live.cluster),
        lagText(partition.restore_remaining || partition.lag_records),
        positionText(committed?.[number]),
        positionText(uncommitted?.[number]),
        stagedText(partition.staged_records),
        commitText(partition.committed_at_ms, live),
        ...(live.cluster === null ? [] : [partition.node ?? "none"]),
      ];
      texts.forEach((text, i) => setText(this.rows.get(number)[i], text));
    }
  }

  buildPartitions(name, numbers, columns) {
    setText(byId("partitions-caption"), `Partitions of ${name}`);
    byId("partitions-scroll").setAttribute("aria-label", `Partitions of ${name}`);
    const cell = (_, i) => (i === 0 ? element("th", { scope: "row" }) : element("td"));
    this.rows = new Map(numbers.map((number) => [number, columns.map(cell)]));
    byId("partitions-head").replaceChildren(...columns.map((name) => element("th", { scope: "col" }, name)));
    byId("partitions-body").replaceChildren(...[...this.rows.values()].map((cells) => element("tr", {}, ...cells)));
  }
}

function workerElsewhere(partition, cluster) {
  const there = cluster !== null && partition.node !== cluster.node ? partition.node : null;
  return there == null ? "none" : `of ${there}`;
}

/** A Position as `topic-partition @ offset`. */
export function positionText(position) {
  if (position === undefined) return "unknown";
  const parts = Object.entries(position).flatMap(([topic, partitions]) =>
    Object.entries(partitions).map(([partition, offset]) => `${topic}-${partition} @ ${offset}`),
  );
  return parts.join(", ") || "nothing yet";
}

function offsetsText(byPartition) {
  if (byPartition === undefined) return "unknown";
  const sums = new Map(); // partitions of a store that read the same topic partition share its offset
  for (const position of Object.values(byPartition)) {
    for (const [topic, partitions] of Object.entries(position)) {
      if (!sums.has(topic)) sums.set(topic, new Map());
      for (const [partition, offset] of Object.entries(partitions)) {
        sums.get(topic).set(partition, Math.max(offset, sums.get(topic).get(partition) ?? -1));
      }
    }
  }
  const parts = [...sums].map(([topic, offsets]) => `${topic} ${countText([...offsets.values()].reduce((a, b) => a + b + 1, 0))}`);
  return parts.join(", ") || "nothing yet";
}

function statesText(states) {
  return Object.entries(states).map(([state, count]) => `${count} ${state}`).join(", ") || "none";
}

function lagText(lag) {
  return lag === null || lag === undefined ? "unknown" : countText(lag);
}

function stagedText(records) {
  if (records === null || records === undefined) return "unknown";
  return `${countText(records)} ${records === 1 ? "record" : "records"}`;
}

function commitText(atMs, live) {
  return atMs > 0 ? `${durationText(live.ageMs(atMs))} ago` : "none yet";
}

function failureText(failures = {}) {
  return Object.entries(failures)
    .map(([partition, failure]) => `Partition ${partition}: ${failure.detail}`)
    .join(" ");
}
