/** Windows or sessions of one key as bars over their starts, of a number that the values are or have. */

import { ask } from "./api.js";
import { cellText, failureText } from "./answers.js";
import { drawBars } from "./charts.js";
import { byId, countText, element, setText, table, timeText } from "./elements.js";
import { family, requestFor } from "./queries.js";

const QUERY = { window: "key_windows", session: "sessions" };
const MOST_BARS = 500;
const WHOLE = ""; // the field that stands for the value itself

export class WindowChart {
  constructor() {
    this.asked = 0;
    this.entries = [];
    byId("window-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.load();
    });
    byId("window-field").addEventListener("change", () => this.draw());
    addEventListener("resize", () => this.draw());
  }

  choose(store) {
    this.store = store;
    this.asked += 1;
    this.entries = [];
    const title = family(store.kind) === "session" ? "Sessions" : "Windows";
    setText(byId("window-title"), title);
    setText(byId("window-link").firstElementChild, title);
    for (const id of ["window-key", "window-from", "window-to"]) byId(id).value = "";
    byId("window-panel").hidden = true;
    setText(byId("window-summary"), "");
  }

  takeKey(key) {
    byId("window-key").value = key;
  }

  async load() {
    const number = (this.asked += 1);
    const [key, from, to] = ["window-key", "window-from", "window-to"].map((id) => byId(id).value);
    byId("window-panel").hidden = true;
    setText(byId("window-summary"), "Loading …");
    try {
      const name = QUERY[family(this.store.kind)];
      const { body } = await ask(requestFor(this.store, name, { key, from, to, limit: String(MOST_BARS) }).path);
      if (number === this.asked) this.show(key, body.entries, Boolean(body.cursor));
    } catch (error) {
      if (number === this.asked) setText(byId("window-summary"), failureText(error));
    }
  }

  show(key, entries, more) {
    this.key = key;
    this.entries = entries.toSorted((a, b) => Number(a.start) - Number(b.start));
    const noun = family(this.store.kind) === "window" ? "windows" : "sessions";
    setText(byId("window-summary"), entries.length === 0 ? `This key has no ${noun} there.` : `${more ? "The first " : ""}${entries.length} ${noun} of ${key}.`);
    if (entries.length === 0) return;
    const fields = numericFields(this.entries);
    byId("window-field").replaceChildren(...fields.map((field) => element("option", { value: field }, field === WHOLE ? "the value" : field)));
    byId("window-field-block").hidden = fields.length === 0;
    byId("window-panel").hidden = false;
    const columns = Object.keys(this.entries[0]);
    const rows = this.entries.map((entry) => columns.map((column) => cellText(column, entry[column])));
    byId("window-table").replaceChildren(table(`${noun} of ${key}`, columns, rows));
    this.draw();
  }

  draw() {
    if (this.entries.length === 0) return;
    const field = byId("window-field").value;
    const svg = byId("window-chart");
    const bars = this.entries
      .map((entry) => ({ label: shortTime(entry.start), value: numberAt(entry.value, field) }))
      .filter((bar) => bar.value !== null);
    const numeric = byId("window-field").options.length > 0;
    svg.classList.toggle("none", !numeric);
    setText(byId("window-note"), numeric ? "" : "These values hold no number to draw: they are in the table.");
    if (numeric) drawBars(svg, { title: `${field || "Value"} of ${this.key} by window start`, bars, format: countText });
  }
}

/** A time for an axis: without seconds where they are none. */
function shortTime(ms) {
  return timeText(ms).replace("T", " ").replace(/(:00)?(\.000)?Z$/, "");
}

/** The paths to numbers in values, outermost first; `WHOLE` when the values themselves are numbers. */
function numericFields(entries) {
  const found = new Set();
  for (const { value } of entries) collect(value, WHOLE, found, 0);
  return [...found];
}

function collect(value, path, found, depth) {
  if (typeof value === "number" || typeof value === "bigint") found.add(path);
  if (value === null || typeof value !== "object" || depth === 3) return;
  for (const [name, member] of Object.entries(value)) collect(member, path === WHOLE ? name : `${path}.${name}`, found, depth + 1);
}

/** The number at this path in a value, or null. */
function numberAt(value, path) {
  const [kind, number] = [typeof value, Number(value)];
  if (path === WHOLE) return kind === "number" || kind === "bigint" ? number : null;
  if (value === null || kind !== "object") return null;
  // Names may have dots themselves: try each split.
  for (let dot = path.length; dot > 0; dot = path.lastIndexOf(".", dot - 1)) {
    const name = path.slice(0, dot);
    if (Object.hasOwn(value, name)) return numberAt(value[name], path.slice(dot + 1));
  }
  return null;
}
