// Learning curves of one run or several, over what the user chooses.

import { get } from "./api.js";
import { LineChart } from "./chart.js";
import { choice, dropdown, el } from "./dom.js";
import * as format from "./format.js";
import { live } from "./live.js";
import { recall, remember, seriesColour, seriesDash } from "./look.js";

const MOST_APPENDED = 4000; // points after which a curve is loaded, and thinned out, again
const COST = new Set([
  "feature_downloads",
  "time",
  "wall",
  "version",
  "transfers",
  "bytes",
  "joules",
  "downloads",
  "uploads",
  "value",
  "loss",
  "averaged_value",
  "averaged_loss",
]);

const AXES = {
  // column, how to write it
  time: { text: "Virtual time", format: format.count, label: "virtual time in seconds" },
  wall: { text: "Wall time", format: format.duration, label: "wall time" },
  transfers: { text: "Transfers", format: (value) => format.si(value), label: "models sent and received" },
  joules: { text: "Energy", format: (value) => format.si(value, "J"), label: "energy" },
};

/** The evaluations of a run, kept and added to. */
export class Curve {
  constructor(id) {
    this.id = id;
    this.drop();
  }

  drop() {
    Object.assign(this, { generation: null, rows: 0, columns: { time: [] }, metric: null, wall: "measured" });
  }

  /** Asks for what is new; returns whether the record was rewound or replaced since the last time. */
  async load() {
    if (this.columns.time.length > MOST_APPENDED) this.drop();
    const found = await get(`/api/runs/${this.id}/curves?since=${this.rows}`);
    const rewound = this.generation !== null && found.generation !== this.generation;
    if (rewound) {
      this.drop();
      await this.load();
      return true;
    }
    const first = this.rows === 0;
    for (const [name, values] of Object.entries(found.columns)) {
      if (first) this.columns[name] = values;
      else (this.columns[name] ??= []).push(...values);
    }
    Object.assign(this, { generation: found.generation, rows: found.rows, metric: found.metric, wall: found.wall });
    return false;
  }

  /** The value of a column at a time of the run, between two evaluations in proportion. */
  at(time, column) {
    const times = this.columns.time,
      values = this.columns[column];
    if (!values?.length || !times.length) return null;
    let high = times.findIndex((value) => value > time);
    if (high < 0) return values.at(-1);
    if (high === 0) high = 1;
    const [t0, t1, v0, v1] = [times[high - 1], times[high], values[high - 1], values[high]];
    return v0 === null || v1 === null ? v0 : v0 + (v1 - v0) * Math.min(1, Math.max(0, (time - t0) / (t1 - t0 || 1)));
  }

  /** The last evaluation up to a time: its row of a column. */
  last(time, column) {
    const times = this.columns.time,
      values = this.columns[column] ?? [];
    for (let i = times.length - 1; i >= 0; i--) if (time === null || times[i] <= time) return values[i] ?? null;
    return null;
  }
}

/** Short names that tell runs apart. */
export function names(ids) {
  const full = ids.map((id) => live.runs.get(id)?.name || id);
  const short = full.map((name) => name.split("/").at(-1) || name);
  return full.map((name, i) => (short.filter((other) => other === short[i]).length > 1 ? name : short[i]));
}

export class CurvesView {
  /** `clock`: the replay of the first run, or null. `onRewound(id)` is called when a record was replaced. */
  constructor({ clock = null, onRewound = () => {}, extra = null } = {}) {
    this.clock = clock;
    this.onRewound = onRewound;
    this.curves = [];
    const kept = recall("axis");
    this.axis = Object.hasOwn(AXES, kept) ? kept : "time";
    this.column = "value";
    this.axes = choice(
      "Horizontal axis",
      Object.entries(AXES).map(([key, { text }]) => [key, text]),
      this.axis,
      (axis) => {
        this.axis = axis;
        remember("axis", axis);
        this.draw();
      },
    );
    this.which = dropdown("Metric", [["value", "metric"]], "value", (column) => {
      this.column = column;
      this.draw();
    });
    this.which.hidden = true;
    this.metric = new LineChart("Metric", { sync: "curves" });
    this.loss = new LineChart("Loss", { sync: "curves", note: "less is better" });
    this.hint = el("p", { class: "quiet" });
    this.host = el(
      "div",
      {},
      el("div", { class: "row controls" }, this.axes, this.which, el("span", { class: "grow" }), extra),
      el("div", { class: "two" }, this.metric.host, this.loss.host),
      this.hint,
    );
  }

  setRuns(ids) {
    this.curves = ids.map((id) => this.curves.find((curve) => curve.id === id) ?? new Curve(id));
  }

  async refresh() {
    for (const curve of [...this.curves]) {
      try {
        if (await curve.load()) this.onRewound(curve.id);
      } catch (error) {
        if (error.status !== 404 || curve === this.curves[0]) throw error;
        curve.drop();
      }
    }
    this.draw();
  }

  draw() {
    const [first] = this.curves;
    if (!first) return;
    this.#drawColumns(first);
    const axis = AXES[this.axis],
      labels = names(this.curves.map(({ id }) => id));
    const about = this.column === "value" ? first.metric : { name: this.column };
    const title = this.column === "value" ? (first.metric?.name ?? "metric") : this.column;
    this.metric.heading.textContent = title.charAt(0).toUpperCase() + title.slice(1);
    const mixed = new Set(this.curves.filter(({ metric }) => metric).map(({ metric }) => metric.name)).size > 1;
    this.metric.note.textContent = mixed
      ? "the runs have different metrics"
      : about?.more_is_better === false
        ? "less is better"
        : "";
    const clock = live.runs.get(first.id)?.clock;
    const xLabel = this.axis === "time" && clock === "wall" ? "time in seconds" : axis.label;
    this.axes.querySelector("button").textContent = clock === "wall" ? "Time" : "Virtual time";
    this.metric.set(this.#lines(this.column, labels), {
      x: axis.format,
      y: (value) => format.metric(value, about),
      yTick: (value) => format.metricTick(value, about),
      xLabel,
    });
    this.loss.set(this.#lines("loss", labels), { x: axis.format, y: format.number, xLabel });
    this.hint.textContent =
      this.axis === "wall" && this.curves.some(({ wall }) => wall === "estimated")
        ? "Wall times of runs that were not watched while they ran are estimated from their length."
        : "";
    this.mark();
  }

  /** Moves the mark of the replay. */
  mark() {
    const time = this.clock?.time ?? null;
    const x = time === null || !this.curves[0] ? null : this.curves[0].at(time, this.axis);
    this.metric.setMark(x);
    this.loss.setMark(x);
  }

  close() {
    this.metric.destroy();
    this.loss.destroy();
  }

  #drawColumns(first) {
    const others = Object.keys(first.columns).filter((name) => !COST.has(name) && !name.startsWith("averaged_"));
    const text = others.join();
    if (text === this.otherText) return;
    this.otherText = text;
    if (!others.includes(this.column)) this.column = "value";
    this.which.hidden = !others.length;
    this.which.set([["value", first.metric?.name ?? "metric"], ...others.map((name) => [name, name])], this.column);
  }

  #lines(column, labels) {
    return this.curves.flatMap((curve, place) => {
      const { columns } = curve,
        x = columns[this.axis] ?? [],
        stroke = seriesColour(place);
      const dash = seriesDash(place),
        averaged = columns[`averaged_${column}`];
      const raw = {
        key: curve.id,
        label: averaged ? `${labels[place]}, raw` : labels[place],
        colour: averaged ? `${stroke}a0` : stroke,
        width: averaged ? 1.25 : 1.75,
        dash,
        x,
        y: columns[column] ?? [],
      };
      if (!averaged) return [raw];
      return [
        raw,
        {
          key: `${curve.id} averaged`,
          label: `${labels[place]}, averaged`,
          colour: stroke,
          width: 2.25,
          dash,
          x,
          y: averaged,
        },
      ];
    });
  }
}
