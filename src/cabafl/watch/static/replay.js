// The time slider. `time` is null while the newest state is shown.

import { dropdown, el, say } from "./dom.js";
import * as format from "./format.js";
import { icon } from "./look.js";

const STEPS = 1000; // of the slider
const FRAME = 100; // milliseconds between two steps while it plays
const LENGTHS = [
  ["10", "10 s"],
  ["30", "30 s"],
  ["60", "1 min"],
  ["300", "5 min"],
]; // the whole run in ...

export class Replay {
  constructor(onchange) {
    Object.assign(this, { onchange, time: null, from: 0, to: 0, playing: false, length: 30, running: false });
    this.play = el("button", { type: "button", class: "plain", onclick: () => this.toggle() });
    this.slider = el("input", {
      type: "range",
      min: 0,
      max: STEPS,
      value: STEPS,
      "aria-label": "Time of the replay",
      oninput: () => this.#slid(),
    });
    this.text = el("output", { class: "time" });
    this.newest = el("button", { type: "button", onclick: () => this.goTo(null) });
    this.speed = dropdown("Whole run in", LENGTHS, "30", (value) => {
      this.length = Number(value);
    });
    this.host = el(
      "div",
      { class: "replay", role: "group", "aria-label": "Replay" },
      this.play,
      this.slider,
      this.text,
      this.speed,
      this.newest,
    );
    this.draw();
  }

  /** The first and last time, and whether the run goes on. */
  setRange(from, to, running) {
    Object.assign(this, { from, to, running });
    if (this.time !== null && this.time > to) this.time = to;
    this.draw();
  }

  toggle() {
    if (this.playing) {
      this.#stop();
    } else {
      if (this.time === null || this.time >= this.to) this.time = this.from;
      this.playing = true;
      this.last = performance.now();
      this.timer = setInterval(() => this.#step(), FRAME);
      this.onchange();
    }
    this.draw();
  }

  /** Shows a time; null: the newest state. */
  goTo(time) {
    this.#stop();
    this.time = time;
    this.draw();
    this.onchange();
  }

  close() {
    this.#stop();
  }

  draw() {
    this.host.hidden = !(this.to > this.from);
    const share = this.time === null ? 1 : (this.time - this.from) / (this.to - this.from || 1);
    this.slider.value = Math.round(share * STEPS);
    const shown = this.time ?? this.to;
    say(this.text, `${format.seconds(shown)} of ${format.seconds(this.to)}`);
    this.slider.setAttribute("aria-valuetext", format.seconds(shown));
    const wanted = this.playing ? "pause" : "play";
    if (this.drawn !== wanted) {
      this.drawn = wanted;
      this.play.replaceChildren(icon(wanted));
      this.play.setAttribute("aria-label", this.playing ? "Pause" : "Play");
      this.play.title = this.playing ? "Pause" : "Replay the run";
    }
    say(this.newest, this.running ? "Now" : "End");
    this.newest.setAttribute("aria-pressed", String(this.time === null));
  }

  #stop() {
    clearInterval(this.timer);
    this.playing = false;
  }

  #slid() {
    const share = Number(this.slider.value) / STEPS;
    this.last = performance.now();
    this.time = share >= 1 && !this.playing ? null : this.from + share * (this.to - this.from);
    this.draw();
    this.onchange();
  }

  #step() {
    const now = performance.now();
    this.time += ((now - this.last) / 1000) * ((this.to - this.from) / this.length);
    this.last = now;
    if (this.time >= this.to) {
      this.time = this.running ? null : this.to;
      this.#stop();
    }
    this.draw();
    this.onchange();
  }
}
