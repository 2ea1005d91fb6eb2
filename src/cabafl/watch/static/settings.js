// Settings, environment and results of a run, as they are in its folder.

import { card, el, table } from "./dom.js";
import * as format from "./format.js";

export class SettingsTab {
  constructor(page) {
    this.page = page;
    this.find = el("input", {
      type: "search",
      placeholder: "Find a setting",
      "aria-label": "Find a setting",
      oninput: () => this.#draw(),
    });
    this.lists = el("div", { class: "two" });
    this.host = el("div", {}, el("div", { class: "row controls" }, this.find), this.lists);
  }

  refresh() {
    const text = JSON.stringify([this.page.details?.settings, this.page.details?.summary, this.page.details?.models]);
    if (text === this.text) return;
    this.text = text;
    this.#draw();
  }

  #draw() {
    const { settings = {}, environment = {}, summary = null, models = [] } = this.page.details ?? {};
    const wanted = this.find.value.toLowerCase();
    const rows = (values) =>
      Object.entries(values ?? {})
        .filter(([key]) => key.toLowerCase().includes(wanted))
        .map(([key, value]) => [key, typeof value === "number" ? String(value) : format.anything(value)]);
    const part = (title, values) => card(title, table(["Key", "Value"], rows(values)));
    this.lists.replaceChildren(
      part("Settings", settings),
      el(
        "div",
        {},
        part("Environment", environment),
        summary ? part("Summary", summary) : null,
        models.length ? card("Models in the folder", el("p", {}, models.join(", "))) : null,
      ),
    );
  }

  close() {}
}
