// Who trained which model in the last while: a row per device or per model, a bar per job.

import * as format from "./format.js";
import { colour, seriesColour } from "./look.js";
import { Surface } from "./surface.js";

const ROW = 18,
  AXIS = 22,
  GUTTER = 92,
  TALLEST = 420;

export class Timeline {
  /** `onselect(device)` is called for a click on a job. */
  constructor(onselect) {
    Object.assign(this, { onselect, data: null, rows: "device", names: [], top: new Map() });
    this.surface = new Surface("Jobs over time", TALLEST, (context, view) => this.#paint(context, view));
    const { box } = this.surface;
    box.addEventListener("pointermove", (event) => this.#hover(event));
    box.addEventListener("pointerleave", (event) => this.surface.showTip(event, ""));
    box.addEventListener("click", (event) => {
      const job = this.#at(event);
      if (job >= 0) onselect(this.data.device[job]);
    });
  }

  /** The answer of `/timeline`; `rows`: "device" or "slot". `count`: rows there are at least. */
  set(data, rows, count = 0) {
    this.single = new Set(data.slot).size < 2; // one global model: its versions are told apart
    if (this.single) rows = "device";
    Object.assign(this, { data, rows });
    const found = new Set(data[rows]);
    if (rows === "slot" && count <= 200) for (let slot = 0; slot < count; slot++) found.add(slot);
    this.names = [...found].sort((a, b) => a - b);
    this.top = new Map(this.names.map((name, place) => [name, place]));
    this.byRow = this.names.map(() => []);
    data[rows].forEach((name, job) => this.byRow[this.top.get(name)].push(job));
    this.surface.setHeight(AXIS + ROW * Math.max(1, this.names.length) + 4);
    this.surface.ask();
  }

  close() {
    this.surface.close();
  }

  #x(time, width) {
    const { from, to } = this.data;
    return GUTTER + ((width - GUTTER - 8) * (time - from)) / (to - from || 1);
  }

  #end(job) {
    const { end, outcome, to } = this.data;
    return outcome[job] === 0 ? to : (end[job] ?? to);
  }

  #at(event) {
    if (!this.data) return -1;
    const { x, y, inView } = this.surface.place(event),
      { width } = this.surface.view;
    if (inView < AXIS) return -1;
    const jobs = this.byRow[Math.floor((y - AXIS) / ROW)] ?? [];
    return (
      jobs.findLast(
        (job) => x >= this.#x(this.data.start[job], width) - 1 && x <= this.#x(this.#end(job), width) + 1,
      ) ?? -1
    );
  }

  #hover(event) {
    const job = this.#at(event),
      { data } = this;
    if (job < 0) {
      this.surface.showTip(event, "");
      return;
    }
    const what = this.single ? `version ${data.version[job]}` : `model ${data.slot[job]}`;
    const sent = `sent at ${format.seconds(data.start[job])}`;
    const text = `job ${data.job[job]}: ${what} on device ${data.device[job]}, ${sent}, ${this.#outcome(job)}`;
    this.surface.showTip(event, text);
  }

  #outcome(job) {
    const { data } = this,
      end = data.end[job];
    if (data.outcome[job] === 0) return end === null ? "under way" : `under way, expected at ${format.seconds(end)}`;
    const how = data.outcome[job] === 1 ? "uploaded" : `lost (${data.outcomes?.[data.outcome[job]] ?? "?"})`;
    return `${how} at ${format.seconds(end)}`;
  }

  #paint(context, view) {
    const { width, height, top, ratio } = view;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.fillStyle = colour("card");
    context.fillRect(0, 0, width, height);
    if (!this.data) return;
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    this.#paintGrid(context, width, height);
    const first = Math.max(0, Math.floor((top - AXIS) / ROW)),
      last = Math.min(this.names.length, Math.ceil((top + height) / ROW));
    for (let row = first; row < last; row++) this.#paintRow(context, row, AXIS + row * ROW - top, width);
    this.#paintAxis(context, width);
  }

  #ticks(width) {
    const { from, to } = this.data,
      wanted = Math.max(2, Math.floor((width - GUTTER) / 110));
    const raw = (to - from) / wanted || 1,
      power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].find((factor) => factor * power >= raw) * power,
      found = [];
    for (let tick = Math.ceil(from / step) * step; tick <= to && found.length < 50; tick += step) found.push(tick);
    return found;
  }

  #paintGrid(context, width, height) {
    context.fillStyle = colour("grid");
    for (const tick of this.#ticks(width)) context.fillRect(Math.round(this.#x(tick, width)), AXIS, 1, height);
  }

  #paintAxis(context, width) {
    context.fillStyle = colour("card");
    context.fillRect(0, 0, width, AXIS);
    context.fillStyle = colour("quiet");
    context.textAlign = "center";
    for (const tick of this.#ticks(width)) {
      context.fillText(
        format.seconds(tick),
        Math.min(width - 26, Math.max(GUTTER + 14, this.#x(tick, width))),
        AXIS / 2,
      );
    }
    context.fillStyle = colour("line");
    context.fillRect(0, AXIS - 1, width, 1);
  }

  #paintRow(context, row, y, width) {
    context.fillStyle = colour("quiet");
    context.textAlign = "left";
    context.fillText(`${this.rows === "device" ? "device" : "model"} ${this.names[row]}`, 4, y + ROW / 2, GUTTER - 8);
    const { data } = this,
      other = this.rows === "slot" ? data.device : this.single ? data.version : data.slot;
    for (const job of this.byRow[row]) {
      const x = Math.max(GUTTER, this.#x(data.start[job], width)),
        right = Math.max(x + 1.5, this.#x(this.#end(job), width));
      const lost = data.outcome[job] > 1;
      context.fillStyle = lost ? colour("lost") : seriesColour(other[job]);
      context.globalAlpha = lost ? 0.2 : data.outcome[job] === 0 ? 0.55 : 0.9;
      context.fillRect(x, y + 2, right - x - 1, ROW - 4);
      context.globalAlpha = 1;
      if (lost) {
        context.strokeStyle = colour("lost");
        context.strokeRect(x + 0.5, y + 2.5, Math.max(0, right - x - 2), ROW - 5);
      }
      const text = lost ? `${other[job]} lost` : String(other[job]);
      if (right - x > 8 + 6.5 * text.length) {
        context.fillStyle = lost ? colour("lost") : colour("card");
        context.fillText(text, x + 4, y + ROW / 2);
      }
    }
  }
}
