// All runs: filter, sort, select several.

import { badge, progressBar } from "./badge.js";
import { choice, el, say } from "./dom.js";
import * as format from "./format.js";
import { STATES, recall, remember } from "./look.js";
import { live } from "./live.js";
import { address } from "./route.js";
import { sparkline } from "./spark.js";

const MOST_ROWS = 200; // more on request
export const MOST_OVERLAID = 12;

const better = (run) =>
  run.value === null ? -Infinity : run.metric?.more_is_better === false ? -run.value : run.value;
const COLUMNS = [
  // key, heading, sorting value (ascending), first direction
  ["name", "Run", (run) => run.name.toLowerCase(), 1],
  ["state", "State", (run) => STATES.indexOf(run.state), 1],
  ["method", "Method", (run) => run.method ?? "", 1],
  ["dataset", "Data", (run) => run.dataset ?? "", 1],
  ["progress", "Progress", (run) => run.progress ?? -1, -1],
  ["left", "Time left", (run) => (run.state === "running" ? (run.left ?? Infinity) : Infinity), 1],
  ["value", "Metric", better, -1],
  ["spark", "Curve", null, 1],
  ["updated", "Updated", (run) => run.updated ?? 0, -1],
];

class Row {
  constructor(run, page) {
    this.box = el("input", {
      type: "checkbox",
      "aria-label": "Select this run",
      onchange: () => page.select(run.id, this.box.checked),
    });
    this.name = el("a", { href: address(["run", run.id]) });
    this.detail = el("small", { class: "quiet" });
    this.badge = badge();
    this.bar = progressBar();
    this.spark = sparkline();
    this.texts = Object.fromEntries(
      ["method", "seed", "dataset", "model", "share", "left", "value", "unit", "updated"].map((key) => [
        key,
        el("span"),
      ]),
    );
    const { texts } = this;
    texts.unit.className = texts.seed.className = texts.model.className = "quiet";
    this.line = el(
      "tr",
      {},
      el("td", { class: "tick" }, this.box),
      el("td", { class: "name" }, this.name, this.detail),
      el("td", {}, this.badge),
      el("td", { "data-head": "Method", class: "pair" }, texts.method, " ", texts.seed),
      el("td", { "data-head": "Data", class: "pair" }, texts.dataset, " ", texts.model),
      el("td", { class: "share" }, this.bar, texts.share),
      el("td", { "data-head": "Left", class: "number left" }, texts.left),
      el("td", { class: "number value" }, texts.value, " ", texts.unit),
      el("td", { class: "curve" }, this.spark),
      el("td", { "data-head": "Updated", class: "quiet" }, texts.updated),
    );
    this.set(run);
  }

  set(run) {
    const { texts } = this;
    say(this.name, run.name || "(this folder)");
    say(this.detail, run.detail ?? "");
    this.badge.set(run.state, run.detail ?? "");
    this.detail.title = run.detail ?? "";
    say(texts.method, run.method ?? "–");
    say(texts.seed, run.seed === null || run.seed === undefined ? "" : `seed ${run.seed}`);
    say(texts.dataset, run.dataset ?? "–");
    say(texts.model, run.model ?? "");
    this.line.className = run.state === "running" ? "running" : "";
    this.bar.set(run.progress);
    say(texts.share, format.percent(run.progress));
    say(texts.left, run.state === "running" ? format.duration(run.left) : "–");
    say(texts.value, format.metric(run.averaged_value ?? run.value, run.metric));
    say(texts.unit, `${run.metric?.name ?? ""}${run.metric?.more_is_better === false ? " ↓" : ""}`);
    this.spark.set(run.spark);
    this.touch(run);
  }

  touch(run) {
    say(this.texts.updated, format.ago(run.updated));
  }
}

export class OverviewPage {
  constructor(host) {
    this.rows = new Map();
    this.selected = new Set();
    this.most = MOST_ROWS;
    [this.sortKey, this.direction] = (recall("sort") ?? "state:1")
      .split(":")
      .map((part, i) => (i ? Number(part) : part));
    if (!COLUMNS.some(([key]) => key === this.sortKey)) [this.sortKey, this.direction] = ["state", 1];
    this.find = el("input", {
      type: "search",
      placeholder: "Filter by name, method, data …",
      "aria-label": "Filter",
      oninput: () => this.draw(),
    });
    this.states = choice("State", [["all", "All"], ...STATES.map((state) => [state, state])], "all", (state) => {
      this.state = state;
      this.draw();
    });
    this.state = "all";
    this.compare = el("button", {
      type: "button",
      class: "primary",
      onclick: () => {
        location.hash = address(["compare"], { runs: [...this.selected].join(",") });
      },
    });
    this.clear = el(
      "button",
      {
        type: "button",
        onclick: () => {
          this.selected.clear();
          this.draw();
        },
      },
      "Clear",
    );
    this.fleets = el("div", { class: "fleets" });
    this.heads = COLUMNS.map((column) => this.#head(column));
    this.body = el("tbody");
    this.more = el("button", {
      type: "button",
      onclick: () => {
        this.most *= 4;
        this.draw();
      },
    });
    this.empty = el("p", { class: "quiet" });
    this.table = el(
      "table",
      { class: "runs" },
      el("caption", { class: "unseen" }, "Runs"),
      el(
        "thead",
        {},
        el("tr", {}, el("th", { class: "tick" }, el("span", { class: "unseen" }, "Selected")), this.heads),
      ),
      this.body,
    );
    host.replaceChildren(
      el("h1", { class: "unseen" }, "Runs"),
      this.fleets,
      el(
        "div",
        { class: "row controls" },
        this.find,
        this.states,
        el("span", { class: "grow" }),
        this.compare,
        this.clear,
      ),
      this.table,
      this.empty,
      this.more,
    );
    document.title = "Runs · CaBaFL watch";
    live.follow([]);
    this.off = live.on((kind) => {
      if (kind === "overview") this.draw();
    });
    this.timer = setInterval(() => this.#age(), 5000);
    this.draw();
  }

  close() {
    this.off();
    clearInterval(this.timer);
  }

  #head([key, text, value, first]) {
    if (!value) return el("th", { scope: "col" }, text);
    const sort = () => {
      this.direction = this.sortKey === key ? -this.direction : first;
      this.sortKey = key;
      remember("sort", `${key}:${this.direction}`);
      this.draw();
    };
    const head = el("th", { scope: "col" }, el("button", { type: "button", onclick: sort }, text));
    head.dataset.key = key;
    return head;
  }

  select(id, chosen) {
    if (chosen) this.selected.add(id);
    else this.selected.delete(id);
    this.#drawSelection();
  }

  #shown() {
    const words = this.find.value.toLowerCase().split(/\s+/).filter(Boolean);
    const text = (run) =>
      [run.name, run.method, run.dataset, run.model, run.state, `seed ${run.seed}`].join(" ").toLowerCase();
    const found = [...live.runs.values()].filter((run) => {
      if (this.state !== "all" && run.state !== this.state) return false;
      const all = words.length ? text(run) : "";
      return words.every((word) => all.includes(word));
    });
    const value = COLUMNS.find(([key]) => key === this.sortKey)[2];
    const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
    return found.sort(
      (a, b) =>
        this.direction * compare(value(a), value(b)) ||
        compare(b.updated ?? 0, a.updated ?? 0) ||
        compare(a.name, b.name),
    );
  }

  draw() {
    const shown = this.#shown(),
      visible = shown.slice(0, this.most);
    const lines = visible.map((run) => {
      let row = this.rows.get(run.id);
      if (row) row.set(run);
      else this.rows.set(run.id, (row = new Row(run, this)));
      return row.line;
    });
    for (const id of this.rows.keys()) {
      if (!live.runs.has(id)) {
        this.rows.delete(id);
        this.selected.delete(id);
      }
    }
    if (lines.length !== this.body.children.length || lines.some((line, i) => this.body.children[i] !== line)) {
      const focused = document.activeElement;
      this.body.replaceChildren(...lines);
      if (focused?.isConnected) focused.focus();
    }
    for (const head of this.heads) {
      if (head.dataset.key === this.sortKey)
        head.setAttribute("aria-sort", this.direction > 0 ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    }
    this.more.hidden = shown.length <= visible.length;
    say(this.more, `Show more (${shown.length - visible.length} left)`);
    this.table.hidden = !shown.length;
    say(
      this.empty,
      shown.length
        ? ""
        : !live.loaded
          ? "Loading …"
          : live.runs.size
            ? "No run fits the filter."
            : "No run yet. Runs appear here as soon as they start.",
    );
    this.#drawCounts();
    this.#drawFleets();
    this.#drawSelection();
  }

  #drawCounts() {
    const counts = new Map(STATES.map((state) => [state, 0]));
    for (const run of live.runs.values()) counts.set(run.state, (counts.get(run.state) ?? 0) + 1);
    const buttons = this.states.querySelectorAll("button");
    say(buttons[0], `All ${live.runs.size}`);
    STATES.forEach((state, i) => say(buttons[i + 1], `${state} ${counts.get(state)}`));
  }

  #drawFleets() {
    const text = JSON.stringify([...live.fleets.values()]);
    if (text === this.fleetText) return;
    this.fleetText = text;
    this.fleets.replaceChildren(
      ...[...live.fleets.values()].map((fleet) =>
        el(
          "a",
          { class: "card fleet", href: address(["fleet", fleet.id]) },
          el("strong", {}, fleet.name || "(this folder)"),
          el(
            "span",
            { class: "quiet" },
            fleet.running ? "fleet of real devices · its server runs" : "fleet of real devices · no server runs",
          ),
        ),
      ),
    );
  }

  #drawSelection() {
    const size = this.selected.size;
    for (const [id, row] of this.rows) {
      row.box.checked = this.selected.has(id);
      row.box.disabled = size >= MOST_OVERLAID && !row.box.checked;
    }
    this.compare.hidden = this.clear.hidden = !size;
    this.compare.disabled = size < 2;
    say(this.compare, size < 2 ? "Select one more to overlay" : `Overlay ${size} runs`);
  }

  #age() {
    for (const [id, row] of this.rows) {
      const run = live.runs.get(id);
      if (run) row.touch(run);
    }
  }
}
