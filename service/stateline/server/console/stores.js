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
    const selected = live.stores.find((store) => store.store === live.selected);
    if (selected) this.showPartitions(selected, live);
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
    const partitions = Object.values(store.partitions);
    const position = live.positions.get(store.store) ?? {};
    const texts = [
      store.kind.replaceAll("_", " "),
      `${store.key_type} → ${store.value_type}${store.persistent ? "" : ", in memory"}`,
      states(partitions),
      lagText(partitions),
      offsetsText(position.committed),
      offsetsText(position.uncommitted),
      stagedText(partitions),
      commitText(Math.max(0, ...partitions.map((p) => p.committed_at_ms ?? 0)), live),
    ];
    texts.forEach((text, i) => setText(facts[i], text));
    setText(note, store.not_ready ?? position.problem ?? failureText(position.failures));
  }

  showPartitions(store, live) {
    const numbers = Object.keys(store.partitions);
    const id = `${store.store}\n${numbers.join()}`;
    if (id !== this.shownPartitions) this.buildPartitions(store, numbers);
    this.shownPartitions = id;
    const { committed, uncommitted } = live.positions.get(store.store) ?? {};
    for (const number of numbers) {
      const partition = store.partitions[number];
      const texts = [
        number,
        partition.unreadable ?? partition.state ?? "unknown",
        partition.owner ?? "none",
        lagText([partition]),
        positionText(committed?.[number]),
        positionText(uncommitted?.[number]),
        stagedText([partition]),
        commitText(partition.committed_at_ms ?? 0, live),
      ];
      texts.forEach((text, i) => setText(this.rows.get(number)[i], text));
    }
  }

  buildPartitions(store, numbers) {
    setText(byId("partitions-caption"), `Partitions of ${store.store}`);
    byId("partitions-scroll").setAttribute("aria-label", `Partitions of ${store.store}`);
    const cell = (_, i) => (i === 0 ? element("th", { scope: "row" }) : element("td"));
    this.rows = new Map(numbers.map((number) => [number, COLUMNS.map(cell)]));
    byId("partitions-head").replaceChildren(...COLUMNS.map((name) => element("th", { scope: "col" }, name)));
    byId("partitions-body").replaceChildren(...[...this.rows.values()].map((cells) => element("tr", {}, ...cells)));
  }
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

function states(partitions) {
  const counts = new Map();
  for (const { state, unreadable } of partitions) {
    const name = unreadable ? "unreadable" : (state ?? "unknown");
    counts.set(name, (counts.get(name) ?? 0) + 1);
  }
  return [...counts].map(([state, count]) => `${count} ${state}`).join(", ") || "none";
}

function lagText(partitions) {
  const known = partitions.map((p) => p.lag).filter((lag) => lag !== null && lag !== undefined);
  return known.length === 0 ? "unknown" : countText(known.reduce((a, b) => a + b, 0));
}

function stagedText(partitions) {
  const known = partitions.map((p) => p.staged_records).filter((records) => records !== undefined);
  if (known.length === 0) return "unknown";
  const sum = known.reduce((a, b) => a + b, 0);
  return `${countText(sum)} ${sum === 1 ? "record" : "records"}`;
}

function commitText(atMs, live) {
  return atMs > 0 ? `${durationText(live.ageMs(atMs))} ago` : "none yet";
}

function failureText(failures = {}) {
  return Object.entries(failures)
    .map(([partition, failure]) => `Partition ${partition}: ${failure.detail}`)
    .join(" ");
}
