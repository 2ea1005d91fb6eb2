// A number that the method records, over time; chosen from all there are.

import { get } from "./api.js";
import { LineChart } from "./chart.js";
import { dropdown } from "./dom.js";
import * as format from "./format.js";
import { seriesColour } from "./look.js";

const POINTS = 1500,
  MOST_GROUPS = 8;
const DULL = new Set(["slot", "device", "version", "rank", "length", "job", "trained"]); // not the first choice

export class SeriesChart {
  constructor(page) {
    this.page = page;
    this.chart = new LineChart("Numbers it records", { points: true, height: 240 });
    this.chart.empty.textContent = "No number recorded yet.";
    this.which = dropdown("", [], "", (value) => {
      this.chosen = value;
      page.tabRefresher.ask();
    });
    this.chart.reset.before(this.which);
    this.host = this.chart.host;
  }

  async set(method) {
    const all = method.kinds.flatMap(({ kind, fields }) =>
      Object.entries(fields)
        .filter(([, type]) => type === "number")
        .map(([field]) => ({ kind, field, fields, value: JSON.stringify([kind, field]) })),
    );
    const text = all.map(({ value }) => value).join();
    if (text !== this.text) {
      this.text = text;
      const first = all.find(({ field }) => !DULL.has(field)) ?? all[0];
      if (!all.some(({ value }) => value === this.chosen)) this.chosen = first?.value;
      this.which.set(
        all.map(({ kind, field, value }) => [value, `${kind}: ${field}`]),
        this.chosen,
      );
    }
    this.which.hidden = !all.length;
    const found = all.find(({ value }) => value === this.chosen);
    if (found) this.#draw(found, await this.#load(found));
    else this.chart.set([], { x: format.count, y: format.number, xLabel: "" });
    this.chart.setMark(this.page.clock.time);
  }

  #load({ kind, field, fields }) {
    const by = fields.slot === "number" && field !== "slot" ? "&by=slot" : "";
    const which = `kind=${encodeURIComponent(kind)}&field=${encodeURIComponent(field)}${by}`;
    return get(`/api/runs/${this.page.id}/series?${which}&points=${POINTS}${this.page.time("&")}`);
  }

  #draw({ field }, { time, value, by }) {
    const groups = by ? [...new Set(by)].sort((a, b) => a - b) : [];
    const many = groups.length < 2 || groups.length > MOST_GROUPS;
    const lines = many
      ? [{ key: "all", label: field, colour: seriesColour(0), x: time, y: value }]
      : groups.map((group) => {
          const places = by.map((_, i) => i).filter((i) => by[i] === group);
          return {
            key: String(group),
            label: `model ${group}`,
            colour: seriesColour(group),
            x: places.map((i) => time[i]),
            y: places.map((i) => value[i]),
          };
        });
    this.chart.set(lines, { x: format.count, y: format.number, xLabel: "time of the run in seconds" });
  }

  close() {
    this.chart.destroy();
  }
}
