/** A versioned store through time: a slider over the versions of one key, and the value that the server had at that moment. */

import { ask } from "./api.js";
import { cellText, failureText } from "./answers.js";
import { byId, element, setText, shape, table, timeText } from "./elements.js";
import { shown } from "./json.js";
import { requestFor } from "./queries.js";

const MOST_VERSIONS = 500;
const SETTLE_MS = 120; // of the slider, before the server is asked

export class Moments {
  constructor() {
    this.asked = 0;
    this.timer = null;
    byId("moment-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.load();
    });
    byId("moment-slider").addEventListener("input", () => this.moved());
    byId("moment-earlier").addEventListener("click", () => this.jump(-1));
    byId("moment-later").addEventListener("click", () => this.jump(1));
  }

  choose(store) {
    this.store = store;
    this.asked += 1;
    byId("moment-key").value = "";
    byId("moment-panel").hidden = true;
    setText(byId("moment-summary"), "");
  }

  takeKey(key) {
    byId("moment-key").value = key;
  }

  /** Read the versions, and put the slider at the newest. */
  async load() {
    const number = (this.asked += 1);
    this.key = byId("moment-key").value;
    byId("moment-panel").hidden = true;
    setText(byId("moment-summary"), "Loading …");
    try {
      const { path } = requestFor(this.store, "versions", { key: this.key, order: "desc", limit: String(MOST_VERSIONS) });
      const { body } = await ask(path);
      if (number === this.asked) this.show(body.entries.toReversed(), Boolean(body.cursor));
    } catch (error) {
      if (number === this.asked) setText(byId("moment-summary"), failureText(error));
    }
  }

  show(versions, more) {
    this.versions = versions;
    if (versions.length === 0) {
      setText(byId("moment-summary"), "This key has no versions.");
      return;
    }
    const ends = versions.map((version) => version.valid_to).filter((end) => end !== null);
    this.changes = [...new Set([...versions.map((version) => version.timestamp), ...ends])].sort((a, b) => a - b);
    const from = this.changes[0];
    const span = Math.max(1, this.changes.at(-1) - from);
    const slider = byId("moment-slider");
    // A little beyond the last change, so that what came of it can be seen. An arrow key moves it by a hundredth.
    Object.assign(slider, { min: from, max: from + span + Math.ceil(span / 20), step: "any" });
    slider.value = versions.at(-1).timestamp;
    byId("moment-panel").hidden = false;
    setText(byId("moment-summary"), `${more ? "The newest " : ""}${versions.length} versions, from ${timeText(from)}.`);
    const rows = versions.map((v) => [timeText(v.timestamp), v.valid_to === null ? "still valid" : timeText(v.valid_to), cellText("value", v.value)]);
    byId("moment-table").replaceChildren(table(`Versions of ${this.key}`, ["From", "To, exclusive", "Value"], rows));
    this.drawStrip(from, Number(slider.max));
    this.moved();
  }

  /** To the change before or after the slider. */
  jump(direction) {
    const slider = byId("moment-slider");
    const at = Number(slider.value);
    const next = direction < 0 ? this.changes.findLast((time) => time < at) : this.changes.find((time) => time > at);
    if (next === undefined) return;
    slider.value = next;
    this.moved();
  }

  moved() {
    const at = Math.round(byId("moment-slider").value);
    byId("moment-slider").setAttribute("aria-valuetext", timeText(at));
    setText(byId("moment-time"), timeText(at));
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.readValue(at), SETTLE_MS);
  }

  async readValue(at) {
    const number = (this.asked += 1);
    let text;
    try {
      const { body } = await ask(requestFor(this.store, "versioned_key", { key: this.key, as_of: String(at) }).path);
      text = body.found ? shown(body.value) : "no value at that time";
    } catch (error) {
      text = failureText(error);
    }
    if (number === this.asked) setText(byId("moment-value"), text);
  }

  /** The versions as pieces of one bar; the table says the same in words. */
  drawStrip(from, to) {
    const at = (time) => ((time - from) / (to - from)) * 100;
    const pieces = this.versions.map((version, i) => {
      const end = version.valid_to ?? to;
      const place = { x: `${at(version.timestamp)}%`, width: `${Math.max(0.3, at(end) - at(version.timestamp))}%`, y: 0, height: 14 };
      return shape("rect", { class: `piece piece-${i % 2}`, ...place });
    });
    byId("moment-strip").replaceChildren(element("span", {}, shape("svg", { width: "100%", height: 14, "aria-hidden": "true" }, ...pieces)));
  }
}
