// Every device as a cell. Nothing is kept per device but a byte, and a row of cells is one line of pixels, copied: so
// 100,000 of them are drawn in a few milliseconds.

import { colour, rgb } from "./look.js";
import { Surface } from "./surface.js";

const SIZES = [3, 4, 5, 7, 9, 12, 16, 21, 28, 36]; // CSS pixels of a cell
const SIGNS_FROM = 12; // size from which states have a sign beside their colour
const TALLEST = 440;

/** A colour #rrggbb as a pixel of an image, little endian. */
export const pixel = (text) => {
  const [r, g, b] = rgb(text);
  return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
};

export class DeviceGrid {
  /** `describe(device)` is the text beside the pointer; `onselect(device)` is called for a click or the keyboard. */
  constructor(describe, onselect) {
    Object.assign(this, {
      describe,
      onselect,
      count: 0,
      levels: null,
      palette: null,
      signs: null,
      order: null,
      hovered: -1,
      selected: -1,
    });
    this.surface = new Surface(
      "The devices of the fleet. Arrow keys move from one to the next.",
      TALLEST,
      (context, view) => this.#paint(context, view),
    );
    this.surface.onresize = () => this.#layout();
    const { box } = this.surface;
    box.addEventListener("pointermove", (event) => this.#hover(event));
    box.addEventListener("pointerleave", (event) => {
      this.hovered = -1;
      this.surface.showTip(event, "");
      this.surface.ask();
    });
    box.addEventListener("click", (event) => {
      const device = this.#at(event);
      if (device >= 0) this.select(device);
    });
    box.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
    box.addEventListener("keydown", (event) => this.#key(event));
  }

  /** `levels`: for each device a place in `palette` (pixels); `signs`: states to be drawn as signs, or null. */
  set(levels, palette, signs, order) {
    const grown = levels.length !== this.count;
    Object.assign(this, { count: levels.length, levels, palette, signs, order });
    if (grown || this.size === undefined) this.#fit();
    this.surface.ask();
  }

  /** Larger or smaller cells; what is at the top stays there. */
  zoom(step) {
    const first = Math.floor(this.surface.box.scrollTop / this.cell) * this.columns;
    this.size = Math.max(0, Math.min(SIZES.length - 1, this.size + step));
    this.#layout();
    this.surface.box.scrollTop = Math.floor(first / this.columns) * this.cell;
    this.surface.ask();
  }

  select(device) {
    this.selected = device;
    this.#reveal();
    this.surface.ask();
    this.onselect(device);
  }

  /** The largest cells with which everything is seen. */
  #fit() {
    const width = this.surface.box.clientWidth || 800;
    this.size = 0;
    for (let i = 0; i < SIZES.length - 1; i++) {
      if (Math.ceil(this.count / Math.floor(width / SIZES[i])) * SIZES[i] <= TALLEST * 0.8) this.size = i;
    }
    this.#layout();
  }

  #layout() {
    if (this.size === undefined) return;
    this.cell = SIZES[this.size];
    this.columns = Math.max(1, Math.floor(this.surface.box.clientWidth / this.cell));
    this.surface.setHeight(Math.ceil(this.count / this.columns) * this.cell);
    this.surface.ask();
  }

  #at(event) {
    const { x, y } = this.surface.place(event),
      column = Math.floor(x / this.cell);
    const place = Math.floor(y / this.cell) * this.columns + column;
    if (column < 0 || column >= this.columns || place < 0 || place >= this.count) return -1;
    return this.order ? this.order[place] : place;
  }

  #hover(event) {
    const device = this.#at(event);
    this.surface.showTip(event, device < 0 ? "" : this.describe(device));
    if (device === this.hovered) return;
    this.hovered = device;
    this.surface.ask();
  }

  #wheel(event) {
    if (!event.ctrlKey) return;
    event.preventDefault();
    this.zoom(event.deltaY < 0 ? 1 : -1);
  }

  #key(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns };
    if (event.key === "+" || event.key === "-") this.zoom(event.key === "+" ? 1 : -1);
    if (!(event.key in steps) || !this.count) return;
    event.preventDefault();
    const now = this.selected < 0 ? 0 : this.#placeOf(this.selected) + steps[event.key];
    const place = Math.max(0, Math.min(this.count - 1, now));
    this.select(this.order ? this.order[place] : place);
  }

  #placeOf(device) {
    return this.order ? this.order.indexOf(device) : device;
  }

  #reveal() {
    const y = Math.floor(this.#placeOf(this.selected) / this.columns) * this.cell,
      { box } = this.surface;
    if (y < box.scrollTop) box.scrollTop = y;
    else if (y + this.cell > box.scrollTop + box.clientHeight) box.scrollTop = y + this.cell - box.clientHeight;
  }

  #paint(context, view) {
    const width = context.canvas.width,
      height = context.canvas.height;
    if (this.image?.width !== width || this.image.height !== height) {
      this.image = context.createImageData(width, height);
      this.pixels = new Uint32Array(this.image.data.buffer);
      this.line = new Uint32Array(width);
    }
    const { pixels, line, columns, count, levels, palette, order } = this,
      ground = pixel(colour("card"));
    const side = this.cell * view.ratio,
      gap = Math.max(this.cell > 3 ? 1 : 0, Math.round(view.ratio * (this.cell >= 9 ? 1.5 : this.cell > 3 ? 1 : 0)));
    pixels.fill(ground);
    const first = Math.floor(view.top / this.cell),
      last = Math.min(Math.ceil(count / columns), Math.ceil((view.top + view.height) / this.cell));
    for (let row = first; row < last; row++) {
      line.fill(ground);
      const end = Math.min(columns, count - row * columns);
      for (let column = 0; column < end; column++) {
        const place = row * columns + column,
          x = Math.round(column * side);
        line.fill(palette[levels[order ? order[place] : place]], x, Math.round((column + 1) * side) - gap);
      }
      const y = Math.round((row * this.cell - view.top) * view.ratio),
        bottom = Math.min(height, Math.round(y + side) - gap);
      for (let down = Math.max(0, y); down < bottom; down++) pixels.set(line, down * width);
    }
    context.putImageData(this.image, 0, 0);
    context.save();
    context.scale(view.ratio, view.ratio);
    context.translate(0, -view.top);
    if (this.signs && this.cell >= SIGNS_FROM) this.#paintSigns(context, first, last);
    this.#outline(context, this.hovered, colour("quiet"), 1.5);
    this.#outline(context, this.selected, colour("text"), 2.5);
    context.restore();
  }

  #outline(context, device, stroke, thick) {
    if (device < 0 || device >= this.count) return;
    const place = this.#placeOf(device),
      size = this.cell;
    context.strokeStyle = stroke;
    context.lineWidth = thick;
    context.strokeRect((place % this.columns) * size - 0.5, Math.floor(place / this.columns) * size - 0.5, size, size);
  }

  /** Training: a dot; collecting: a ring; lost: a cross; away: a dash. */
  #paintSigns(context, first, last) {
    const size = this.cell,
      r = size * 0.17;
    context.strokeStyle = context.fillStyle = colour("card");
    context.lineWidth = Math.max(1.5, size / 12);
    const end = Math.min(this.count, last * this.columns);
    for (let place = first * this.columns; place < end; place++) {
      const state = this.signs[this.order ? this.order[place] : place];
      if (state === 0) continue;
      const x = (place % this.columns) * size + size / 2 - 1,
        y = Math.floor(place / this.columns) * size + size / 2 - 1;
      context.strokeStyle = state === 3 ? colour("quiet") : colour("card");
      context.beginPath();
      if (state === 1 || state === 2) context.arc(x, y, r, 0, 7);
      else if (state === 4) {
        context.moveTo(x - r, y - r);
        context.lineTo(x + r, y + r);
        context.moveTo(x + r, y - r);
        context.lineTo(x - r, y + r);
      } else {
        context.moveTo(x - r, y);
        context.lineTo(x + r, y);
      }
      if (state === 1) context.fill();
      else context.stroke();
    }
  }

  close() {
    this.surface.close();
  }
}
