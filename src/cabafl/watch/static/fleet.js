// The fleet of a run: the devices as cells, one of them in detail, and who trained what in the last while.

import { get, getArrays } from "./api.js";
import { card, choice, dropdown, el, say, table } from "./dom.js";
import { DevicePanel } from "./device.js";
import * as format from "./format.js";
import { DeviceGrid, pixel } from "./grid.js";
import { SERIES, colour, onTheme, rgb, seriesColour } from "./look.js";
import { Timeline } from "./timeline.js";

const SMALL = 5000; // devices up to which everything about each is loaded
const SHADES = 48,
  NONE = 255;
const EVERYTHING = ["state", "tier", "slot", "job", "since", "due", "selections", "seen", "joules", "lost"];
const MODES = {
  // field, what a shade stands for
  state: { text: "State", field: "state" },
  model: { text: "Model", field: "slot" },
  tier: { text: "Tier", field: "tier" },
  selections: { text: "Selections", field: "selections", write: format.count },
  energy: { text: "Energy", field: "joules", write: (value) => format.si(value, "J") },
  lost: { text: "Losses", field: "lost", write: format.count },
  seen: { text: "Last seen", field: "seen", write: format.seconds },
};

export class FleetTab {
  constructor(page) {
    Object.assign(this, { page, mode: "state", order: "number", rows: "device", span: 0, arrays: {}, header: null });
    const modes = choice(
      "Colour",
      Object.entries(MODES).map(([key, { text }]) => [key, text]),
      this.mode,
      (mode) => {
        this.mode = mode;
        page.tabRefresher.ask();
        this.#drawGrid();
      },
    );
    const order = dropdown(
      "Order",
      [
        ["number", "number"],
        ["tier", "tier"],
        ["selections", "selections"],
      ],
      "number",
      (value) => {
        this.order = value;
        page.tabRefresher.ask();
        this.#drawGrid();
      },
    );
    const zoom = (step, text, label) =>
      el("button", { type: "button", "aria-label": label, title: label, onclick: () => this.grid.zoom(step) }, text);
    const smaller = zoom(-1, "−", "Smaller cells"),
      larger = zoom(1, "+", "Larger cells");
    this.grid = new DeviceGrid(
      (device) => this.#describe(device),
      (device) => this.select(device),
    );
    this.legend = el("ul", { class: "legend" });
    this.counts = el("div");
    this.panel = new DevicePanel(page, () => this.select(-1));
    this.timeline = new Timeline((device) => this.grid.select(device));
    this.hint = el(
      "p",
      { class: "quiet" },
      "Click a device or a job to see more of it. Ctrl and the wheel, or + and −, change the size of the cells.",
    );
    this.total = el("span", { class: "quiet" });
    this.trained = el("h2");
    const rows = (this.rowChoice = choice(
      "Rows",
      [
        ["device", "By device"],
        ["slot", "By model"],
      ],
      this.rows,
      (value) => {
        this.rows = value;
        page.tabRefresher.ask();
      },
    ));
    const span = dropdown(
      "Last",
      [
        ["0", "ten jobs' time"],
        ["0.05", "5 % of the run"],
        ["0.25", "quarter of the run"],
        ["1", "whole run"],
      ],
      "0",
      (value) => {
        this.span = Number(value);
        page.tabRefresher.ask();
      },
    );
    this.host = el(
      "div",
      {},
      el("div", { class: "row controls" }, modes, order, smaller, larger),
      (this.parts = el(
        "div",
        { class: "fleet-parts" },
        el(
          "div",
          {},
          card("", this.grid.surface.host, this.legend, this.hint),
          el(
            "section",
            { class: "card" },
            el("div", { class: "row" }, this.trained, this.total, el("span", { class: "grow" }), rows, span),
            this.timeline.surface.host,
          ),
        ),
        el("div", { class: "side" }, this.panel.host, this.counts),
      )),
    );
    this.offTheme = onTheme(() => this.#drawGrid());
  }

  select(device) {
    if (device < 0) {
      this.grid.selected = -1;
      this.grid.surface.ask();
    }
    this.panel.show(device);
    this.#drawSide();
  }

  dropped() {
    this.arrays = {};
  }

  async refresh() {
    const { page } = this,
      devices = this.page.details?.devices ?? 0;
    const wanted =
      devices <= SMALL
        ? EVERYTHING
        : ["state", "tier", MODES[this.mode].field, ...(this.order === "selections" ? ["selections"] : [])];
    const fields = [...new Set(wanted)].filter((name) => name !== "tier" || !this.arrays.tier);
    const { header, arrays } = await getArrays(
      `/api/runs/${page.id}/fleet?fields=${fields.join(",")}${page.time("&")}`,
    );
    if (this.header && header.devices !== this.header.devices) this.arrays = {};
    this.header = header;
    Object.assign(this.arrays, arrays);
    this.#drawGrid();
    this.#drawCounts();
    const to = page.clock.time ?? page.clock.to,
      seconds = this.span ? `&seconds=${Math.max(1e-6, this.span * to)}` : "";
    const jobs = await get(`/api/runs/${page.id}/timeline?limit=4000${seconds}${page.time("&")}`);
    this.timeline.set(jobs, this.rows, page.details?.slots ?? 0);
    this.rowChoice.hidden = this.timeline.single;
    say(this.trained, this.timeline.single ? "Who trains which version" : "Who trains which model");
    say(
      this.total,
      jobs.total > jobs.job.length
        ? `the newest ${format.count(jobs.job.length)} of ${format.count(jobs.total)} jobs`
        : `${format.count(jobs.total)} jobs`,
    );
    await this.panel.refresh();
  }

  close() {
    this.offTheme();
    this.grid.close();
    this.timeline.close();
  }

  #describe(device) {
    const { arrays, header } = this,
      parts = [`device ${device}`];
    if (header.tiers[arrays.tier?.[device]]) parts.push(header.tiers[arrays.tier[device]]);
    const state = header.states[arrays.state[device]],
      slot = arrays.slot?.[device] ?? -1;
    parts.push(slot >= 0 ? `${state} model ${slot}` : state);
    for (const mode of ["selections", "energy", "lost", "seen"]) {
      const { field, text, write } = MODES[mode],
        values = arrays[field];
      if (values && Number.isFinite(values[device])) parts.push(`${text.toLowerCase()} ${write(values[device])}`);
    }
    return parts.join(" · ");
  }

  #drawGrid() {
    const { header, arrays } = this,
      { field } = MODES[this.mode],
      values = arrays[field];
    if (!header || !values || !arrays.state) return;
    const makers = {
      state: () => this.#byState(),
      tier: () => this.#byTier(values),
      model: () => this.#byModel(values),
    };
    const { levels, palette, legend } = (makers[this.mode] ?? (() => this.#byShade(values)))();
    this.grid.set(levels, palette, this.mode === "state" ? arrays.state : null, this.#ordered());
    this.legend.replaceChildren(...legend);
  }

  #patch(fill, text) {
    return el("li", {}, el("i", { class: "patch", style: { background: fill } }), text);
  }

  #byState() {
    const { header, arrays } = this,
      colours = header.states.map((state) => colour(state) || colour("s7"));
    const legend = header.states.map((state, i) =>
      this.#patch(colours[i], `${state} ${format.count(header.counts[state])}`),
    );
    return { levels: arrays.state, palette: Uint32Array.from(colours, pixel), legend };
  }

  #byTier(values) {
    const { header } = this,
      palette = new Uint32Array(256).fill(pixel(colour("idle")));
    header.tiers.forEach((_, i) => {
      palette[i] = pixel(seriesColour(i));
    });
    const legend = header.tiers.map((tier, i) =>
      this.#patch(seriesColour(i), `${tier} ${format.count(header.by_tier[i]?.reduce((a, b) => a + b, 0) ?? 0)}`),
    );
    return {
      levels: values,
      palette,
      legend: legend.length ? legend : [el("li", { class: "quiet" }, "This fleet has no tiers.")],
    };
  }

  #byModel(values) {
    const levels = Uint8Array.from(values, (slot) => (slot < 0 ? SERIES : slot % SERIES));
    const palette = Uint32Array.from({ length: SERIES + 1 }, (_, i) =>
      pixel(i < SERIES ? seriesColour(i) : colour("idle")),
    );
    return {
      levels,
      palette,
      legend: [
        this.#patch(colour("idle"), "no job"),
        el("li", { class: "quiet" }, "a colour per model; colours repeat after eight models"),
      ],
    };
  }

  #byShade(values) {
    const { write } = MODES[this.mode];
    let low = Infinity,
      high = -Infinity;
    for (const value of values)
      if (Number.isFinite(value)) {
        if (value < low) low = value;
        if (value > high) high = value;
      }
    if (this.mode !== "seen") low = Math.min(low, 0);
    const scale = high > low ? (SHADES - 1) / (high - low) : 0;
    const levels = Uint8Array.from(values, (value) =>
      Number.isFinite(value) ? Math.round((value - low) * scale) : NONE,
    );
    const from = rgb(colour("low")),
      to = rgb(colour("high")),
      palette = new Uint32Array(256).fill(pixel(colour("away")));
    for (let i = 0; i < SHADES; i++) {
      const [r, g, b] = from.map((part, c) => Math.round(part + ((to[c] - part) * i) / (SHADES - 1)));
      palette[i] = ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
    }
    const known = high >= low;
    return {
      levels,
      palette,
      legend: [
        known
          ? el("li", {}, write(low), el("i", { class: "ramp" }), write(high))
          : el("li", { class: "quiet" }, "unknown"),
      ],
    };
  }

  /** The devices in the order of the cells; null: by number. */
  #ordered() {
    const key = this.order === "number" ? null : this.arrays[this.order];
    if (!key) return null;
    let most = 0;
    for (const value of key) if (value > most) most = value;
    const place = this.order === "selections" ? (value) => most - value : (value) => value; // most selected first
    const next = new Uint32Array(most + 2); // where the next device with a key goes: a counting sort
    for (const value of key) next[place(value) + 1]++;
    for (let i = 1; i < next.length; i++) next[i] += next[i - 1];
    const order = new Uint32Array(key.length);
    key.forEach((value, device) => {
      order[next[place(value)]++] = device;
    });
    return order;
  }

  #drawSide() {
    this.parts.classList.toggle("beside", this.panel.device >= 0 || Boolean(this.header?.tiers.length));
  }

  #drawCounts() {
    const { header } = this,
      text = JSON.stringify([header.by_tier, header.states, header.tiers]);
    if (text === this.countText) return;
    this.countText = text;
    this.counts.hidden = !header.tiers.length;
    this.#drawSide();
    this.counts.replaceChildren(
      card(
        "Devices",
        table(
          ["Tier", ...header.states],
          header.tiers.map((name, i) => [name, ...(header.by_tier[i] ?? []).map(format.count)]),
        ),
      ),
    );
  }
}
