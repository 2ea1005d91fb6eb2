// A line chart: uPlot with our colours, a legend of text, and a mark for the time of the replay.

import { el, say } from "./dom.js";
import { colour, onTheme, seriesColour, seriesName } from "./look.js";
import uPlot from "./vendor/uPlot.esm.js";

const HEIGHT = 260;
const font = () => "12px system-ui, sans-serif";

/** The colour of a line, in the scheme of now. */
const strokeOf = ({ hue, faint }) => `${seriesColour(hue)}${faint ? "a0" : ""}`;

/** Index of the newest point of `values` at or before `place` that is known. */
function known(values, place) {
  for (let i = place; i >= 0; i--) if (values[i] !== null && values[i] !== undefined) return i;
  return null;
}

/** Pairs whose x is known. */
function cleaned(x, y) {
  const xs = [],
    ys = [];
  for (let i = 0; i < x.length; i++) {
    if (x[i] === null || x[i] === undefined) continue;
    xs.push(x[i]);
    ys.push(y[i] ?? null);
  }
  return [xs, ys];
}

/**
 * `set` takes lines `{key, label, hue, faint, width, dash, x, y}` and how to write both axes. Each line has its own x.
 * Dragging zooms, a double click or `reset` shows everything again; new points keep what is zoomed to.
 */
export class LineChart {
  constructor(title, { height = HEIGHT, sync = null, note = "", stepped = false, points = false, zero = false } = {}) {
    this.note = el("span", { class: "quiet" }, note);
    this.heading = el("h2", {}, title);
    this.canvas = el("div", { class: "plot" });
    this.empty = el("p", { class: "quiet" }, "No evaluation yet.");
    this.legend = el("ul", { class: "legend" });
    this.reset = el(
      "button",
      { type: "button", class: "small", hidden: true, onclick: () => this.showAll() },
      "Show all",
    );
    this.host = el(
      "section",
      { class: "card chart" },
      el("div", { class: "row" }, this.heading, this.note, el("span", { class: "grow" }), this.reset),
      this.canvas,
      this.empty,
      this.legend,
    );
    Object.assign(this, { height, sync, stepped, points, zero, lines: [], mark: null, zoomed: false, signature: "" });
    this.canvas.addEventListener("dblclick", () => this.showAll());
    this.observer = new ResizeObserver(() => this.#resize());
    this.observer.observe(this.canvas);
    this.offTheme = onTheme(() => this.#build(true));
  }

  set(lines, { x, y, yTick = y, xLabel }) {
    if (this.closed) return; // an answer that came too late
    Object.assign(this, { lines, xFormat: x, yFormat: y, yTick, xLabel });
    this.data = uPlot.join(lines.length ? lines.map((line) => cleaned(line.x, line.y)) : [[[], []]]);
    this.empty.hidden = this.data[0].length > 0;
    this.canvas.hidden = !this.empty.hidden;
    const signature = JSON.stringify([
      xLabel,
      lines.map(({ key, label, hue, faint, width, dash }) => [key, label, hue, faint, width, dash]),
    ]);
    if (signature !== this.signature || !this.plot) {
      this.signature = signature;
      this.#build(false);
    } else {
      this.plot.setData(this.data, !this.zoomed);
      if (this.zoomed) this.plot.redraw();
    }
    this.#say(null);
  }

  /** Draws a vertical line at `x`; null: none. */
  setMark(x) {
    if (this.mark === x) return;
    this.mark = x;
    this.plot?.redraw(false, false);
    this.#say(null);
  }

  showAll() {
    if (!this.zoomed) return;
    this.zoomed = false;
    this.reset.hidden = true;
    this.plot?.setData(this.data, true);
    this.onreset?.();
  }

  destroy() {
    this.closed = true;
    this.observer.disconnect();
    this.offTheme();
    this.plot?.destroy();
    this.plot = null;
  }

  #resize() {
    const width = this.canvas.clientWidth;
    if (!width) return;
    if (!this.plot) this.#build(false);
    else if (Math.abs(this.plot.width - width) > 1) this.plot.setSize({ width, height: this.height });
  }

  #build(keepZoom) {
    const width = this.canvas.clientWidth;
    if (!width || !this.data || this.closed) return;
    const range = keepZoom && this.zoomed ? { min: this.plot.scales.x.min, max: this.plot.scales.x.max } : null;
    this.plot?.destroy();
    this.plot = new uPlot(this.#options(width), this.data, this.canvas);
    if (range) this.plot.setScale("x", range);
    else {
      this.zoomed = false;
      this.reset.hidden = true;
    }
    this.#buildLegend();
  }

  #options(width) {
    const axis = {
      stroke: colour("quiet"),
      font: font(),
      grid: { stroke: colour("grid"), width: 1 },
      ticks: { show: false },
    };
    const values = (format) => (_, splits) => splits.map((value) => (value === null ? "" : format(value)));
    const series = this.lines.map((line) => ({
      label: line.label,
      stroke: strokeOf(line),
      width: this.points ? 0 : (line.width ?? 1.75),
      dash: line.dash?.length ? line.dash : undefined,
      spanGaps: true,
      paths: this.points ? () => null : this.stepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
      points: this.points ? { show: true, size: 4, fill: strokeOf(line), width: 0 } : { show: this.data[0].length < 3 },
    }));
    return {
      width,
      height: this.height,
      legend: { show: false },
      cursor: {
        sync: this.sync ? { key: this.sync, setSeries: false } : undefined,
        dataIdx: (plot, place, hovered) => (place === 0 ? hovered : (known(plot.data[place], hovered) ?? hovered)),
        points: { size: 7 },
        drag: { x: true, y: false, setScale: true },
      },
      scales: {
        x: { time: false },
        y: { range: (_, low, high) => padded(this.zero ? Math.min(0, low ?? 0) : low, high) },
      },
      axes: [
        {
          ...axis,
          label: this.xLabel,
          labelFont: font(),
          labelSize: 18,
          size: 34,
          values: values((value) => this.xFormat(value)),
          space: 70,
        },
        { ...axis, values: values((value) => this.yTick(value)), size: 58 },
      ],
      series: [{}, ...series],
      hooks: {
        setCursor: [(plot) => this.#say(plot.cursor.idx ?? null)],
        setSelect: [
          (plot) => {
            if (plot.select.width > 2) {
              this.zoomed = true;
              this.reset.hidden = false;
            }
          },
        ],
        draw: [(plot) => this.#drawMark(plot)],
      },
    };
  }

  #drawMark(plot) {
    if (this.mark === null || this.mark === undefined) return;
    const x = plot.valToPos(this.mark, "x", true),
      { left, top, width, height } = plot.bbox;
    if (!(x >= left - 1 && x <= left + width + 1)) return;
    plot.ctx.save();
    plot.ctx.strokeStyle = colour("accent");
    plot.ctx.lineWidth = 2 * devicePixelRatio;
    plot.ctx.beginPath();
    plot.ctx.moveTo(x, top);
    plot.ctx.lineTo(x, top + height);
    plot.ctx.stroke();
    plot.ctx.restore();
  }

  #buildLegend() {
    this.values = this.lines.map(() => el("b"));
    this.legend.replaceChildren(
      ...this.lines.map((line, place) =>
        el("li", {}, swatch(line), el("span", {}, line.label), " ", this.values[place]),
      ),
    );
    this.#say(null);
  }

  /** Writes the values under the cursor, at the mark, or the last ones. */
  #say(place) {
    if (!this.values || !this.data) return;
    let at = place ?? this.data[0].length - 1;
    if (place === null && this.mark !== null && this.mark !== undefined) {
      while (at > 0 && this.data[0][at] > this.mark) at--;
    }
    this.lines.forEach((_, i) => {
      const found = known(this.data[i + 1] ?? [], at);
      if (this.values[i]) say(this.values[i], found === null ? "" : this.yFormat(this.data[i + 1][found]));
    });
  }
}

/** The picture of a line in a legend. */
export function swatch(line) {
  return el("i", {
    class: line.dash?.length ? "swatch dashed" : "swatch",
    style: {
      "border-top-color": `var(--${seriesName(line.hue)})`,
      "border-top-width": `${Math.max(2, Math.round(line.width ?? 2))}px`,
      opacity: line.faint ? "0.6" : "1",
    },
  });
}

function padded(low, high) {
  if (low === null || high === null) return [0, 1];
  const room = (high - low) * 0.05 || Math.abs(high) * 0.05 || 1;
  return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
}

const MOST_BARS = 200;

/** Neighbours together, so that there are at most `MOST_BARS`: their mean, and their first and last place. */
function grouped(values) {
  const size = Math.ceil(values.length / MOST_BARS);
  return Array.from({ length: Math.ceil(values.length / size) }, (_, i) => {
    const part = values.slice(i * size, (i + 1) * size);
    const mean = part.reduce((sum, value) => sum + (value ?? 0), 0) / part.length;
    return { value: size === 1 ? part[0] : mean, first: i * size, last: i * size + part.length - 1 };
  });
}

/** A chart of bars without axes. Each bar says its value as its title. */
export function bars(
  values,
  { label, name = (place) => String(place), tick = name, format = String, most = null } = {},
) {
  const groups = grouped(values);
  const top = most ?? groups.reduce((high, { value }) => Math.max(high, value ?? 0), 1e-12);
  const every = Math.ceil(groups.length / 12);
  const bar = ({ value, first, last }, i) => {
    const height = `${Math.max(value ? 1 : 0, (100 * (value ?? 0)) / top)}%`;
    return el(
      "li",
      { title: `${first === last ? name(first) : `${name(first)} to ${name(last)}`}: ${format(value)}` },
      el("span", { class: "space" }, el("span", { class: "bar", style: { height } })),
      el("span", { class: "tick" }, i % every ? "" : tick(first)),
    );
  };
  return el("ol", { class: "bars", "aria-label": label }, groups.map(bar));
}
