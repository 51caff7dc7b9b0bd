/** Pages over keys, or over windows of all keys. Pages that were seen are kept, so going back shows the same state. */

import { ask } from "./api.js";
import { cellText, failureText } from "./answers.js";
import { byId, element, setText, table } from "./elements.js";
import { memberTexts, shown } from "./json.js";
import { family, requestFor } from "./queries.js";

const LISTED_BY = { key_value: "range", window: "windows" };

export class KeyBrowser {
  /** `onKey` is called with the text of a key that was clicked. */
  constructor(onKey) {
    this.onKey = onKey;
    this.asked = 0;
    this.restart();
    byId("browse-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.restart();
      this.load();
    });
    byId("browse-next").addEventListener("click", () => this.next());
    byId("browse-back").addEventListener("click", () => this.hasBack() && this.show(this.at - 1));
  }

  choose(store) {
    this.store = store;
    this.restart();
    byId("browse-prefix").value = "";
    const query = LISTED_BY[family(store.kind)];
    byId("browse-form").hidden = byId("browse-pages").hidden = query === undefined;
    byId("browse-prefix-field").hidden = query !== "range";
    byId("browse-result").replaceChildren();
    setText(byId("browse-summary"), query === undefined ? "Keys of this kind of store cannot be listed. Ask for one key instead." : "");
  }

  restart() {
    this.pages = [];
    this.at = -1;
    this.asked += 1;
    this.showButtons();
  }

  next() {
    if (!this.hasNext()) return;
    if (this.at + 1 < this.pages.length) this.show(this.at + 1);
    else this.load(this.pages[this.at].cursor);
  }

  async load(cursor = "") {
    const number = (this.asked += 1);
    const values = { prefix: byId("browse-prefix").value, limit: byId("browse-limit").value, cursor };
    const { path } = requestFor(this.store, LISTED_BY[family(this.store.kind)], values);
    setText(byId("browse-summary"), "Loading …");
    try {
      const { body, text } = await ask(path);
      if (number !== this.asked) return;
      this.pages.push({ ...body, keys: this.keyTexts(body.entries, text) });
      this.show(this.pages.length - 1);
    } catch (error) {
      if (number !== this.asked) return;
      const expired = error.body?.reason === "CURSOR_EXPIRED";
      setText(byId("browse-summary"), expired ? "The pages’ snapshot has expired. Start again with List." : failureText(error));
    }
  }

  show(at) {
    this.at = at;
    const { entries, cursor, keys } = this.pages[at];
    const columns = [...new Set(entries.flatMap(Object.keys))];
    const cell = (entry, i, column) => (column === "key" ? this.keyButton(keys[i]) : cellText(column, entry[column]));
    const rows = entries.map((entry, i) => columns.map((column) => cell(entry, i, column)));
    const more = cursor ? "more to come" : "the last page";
    setText(byId("browse-summary"), entries.length === 0 ? "There is nothing here." : `Page ${at + 1}: ${entries.length} entries, ${more}.`);
    byId("browse-result").replaceChildren(...(entries.length === 0 ? [] : [table(`Entries of ${this.store.store}, page ${at + 1}`, columns, rows)]));
    this.showButtons();
  }

  /** Keys as the server reads them in a URL: JSON by its exact text, others as they are shown. */
  keyTexts(entries, text) {
    return this.store.key_type === "json" ? memberTexts(text, "key") : entries.map((entry) => shown(entry.key));
  }

  keyButton(key) {
    return element("button", { type: "button", class: "key", click: () => this.onKey(key) }, key);
  }

  /** `aria-disabled` rather than `disabled`, under which a button would lose the focus that it has. */
  showButtons() {
    byId("browse-back").setAttribute("aria-disabled", String(!this.hasBack()));
    byId("browse-next").setAttribute("aria-disabled", String(!this.hasNext()));
  }

  hasBack() {
    return this.at > 0;
  }

  hasNext() {
    return this.at + 1 < this.pages.length || Boolean(this.pages[this.at]?.cursor);
  }
}
