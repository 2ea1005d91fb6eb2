// A canvas that shows a part of something tall: it stays in view while its box scrolls, and draws only what is seen.

import { el } from "./dom.js";
import { onTheme } from "./look.js";

export class Surface {
  /** `paint(context, view)` draws `view` = {width, height, top, ratio} (CSS pixels; `ratio` device pixels each). */
  constructor(label, tallest, paint) {
    this.paint = paint;
    this.tallest = tallest;
    this.canvas = el("canvas", { "aria-hidden": "true" });
    this.spacer = el("div", { class: "spacer" });
    this.tip = el("div", { class: "tip", hidden: true });
    this.box = el(
      "div",
      { class: "surface", tabindex: 0, role: "group", "aria-label": label },
      this.canvas,
      this.spacer,
    );
    this.host = el("div", { class: "surface-host" }, this.box, this.tip);
    this.context = this.canvas.getContext("2d", { alpha: false });
    this.box.addEventListener("scroll", () => this.ask(), { passive: true });
    this.observer = new ResizeObserver(() => {
      this.onresize?.();
      this.ask();
    });
    this.observer.observe(this.box);
    this.offTheme = onTheme(() => this.ask());
  }

  /** The height of everything. */
  setHeight(height) {
    this.height = height;
    const shown = Math.max(40, Math.min(height, this.tallest));
    this.box.style.height = `${shown}px`;
    this.spacer.style.height = `${Math.max(0, height - shown)}px`;
  }

  /** Draws in the next frame. */
  ask() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      this.#draw();
    });
  }

  get view() {
    return {
      width: this.box.clientWidth,
      height: this.box.clientHeight,
      top: this.box.scrollTop,
      ratio: window.devicePixelRatio || 1,
    };
  }

  /** Where in the whole a pointer is, in CSS pixels; `inView` is measured from the top of the canvas. */
  place(event) {
    const box = this.canvas.getBoundingClientRect();
    return {
      x: event.clientX - box.left,
      y: event.clientY - box.top + this.box.scrollTop,
      inView: event.clientY - box.top,
    };
  }

  /** A line of text beside the pointer; empty: none. */
  showTip(event, text) {
    this.tip.hidden = !text;
    if (!text) return;
    this.tip.textContent = text;
    const box = this.host.getBoundingClientRect(),
      x = event.clientX - box.left;
    this.tip.style.left = `${Math.max(0, Math.min(x + 14, box.width - this.tip.offsetWidth - 4))}px`;
    this.tip.style.top = `${event.clientY - box.top + 18}px`;
  }

  close() {
    this.observer.disconnect();
    this.offTheme();
    if (this.frame) cancelAnimationFrame(this.frame);
  }

  #draw() {
    const view = this.view;
    if (!view.width || !view.height) return;
    const width = Math.round(view.width * view.ratio),
      height = Math.round(view.height * view.ratio);
    if (this.canvas.width !== width || this.canvas.height !== height) {
      this.canvas.width = width;
      this.canvas.height = height;
      this.canvas.style.width = `${view.width}px`;
      this.canvas.style.height = `${view.height}px`;
    }
    this.paint(this.context, view);
  }
}
