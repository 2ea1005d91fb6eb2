// Colours and icons. Colours are defined in base.css, for both schemes; canvases read them from there.

import { svg } from "./dom.js";

export const SERIES = 8;
const listeners = new Set();
const system = window.matchMedia("(prefers-color-scheme: dark)");
let cache = new Map();

function changed() {
  cache = new Map();
  for (const listener of [...listeners]) listener();
}

system.addEventListener("change", () => {
  if (recall("theme")) return;
  document.documentElement.dataset.theme = system.matches ? "dark" : "light";
  changed();
});

/** Calls `listener` when the colours change. */
export function onTheme(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** "light" or "dark" */
export function theme() {
  return document.documentElement.dataset.theme;
}

/** Changes to the other scheme, and remembers it. */
export function switchTheme() {
  const next = theme() === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  remember("theme", next);
  changed();
}

/** A colour of base.css: `colour("text")` is `--text`. */
export function colour(name) {
  if (!cache.has(name)) {
    cache.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
  }
  return cache.get(name);
}

/** The colour of a series, a model or a run; they repeat. */
export const seriesColour = (place) => colour(`s${((place % SERIES) + SERIES) % SERIES}`);

/** Lines beyond the colours are dashed. */
export const seriesDash = (place) => [[], [6, 4], [2, 3]][Math.floor(place / SERIES) % 3];

/** [red, green, blue] of a colour written #rrggbb. */
export function rgb(text) {
  const value = parseInt(text.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
}

/** A choice that outlives the page; null without storage. */
export function recall(key) {
  try {
    return localStorage.getItem(`cabafl-${key}`);
  } catch {
    return null;
  }
}

export function remember(key, value) {
  try {
    localStorage.setItem(`cabafl-${key}`, value);
  } catch {
    // no storage: the choice lasts as long as the page
  }
}

const PATHS = {
  running: "M5 3.5v9l7.5-4.5z",
  finished: "M3 8.5l3.2 3.2L13 4.6",
  stalled: "M5.2 3.5v9M10.8 3.5v9",
  failed: "M4 4l8 8M12 4l-8 8",
  sun:
    "M8 5.2a2.8 2.8 0 1 0 0 5.6a2.8 2.8 0 1 0 0-5.6M8 1v1.6M8 13.4V15M1 8h1.6M13.4 8H15" +
    "M3 3l1.2 1.2M11.8 11.8L13 13M13 3l-1.2 1.2M4.2 11.8L3 13",
  moon: "M13 9.6A5.6 5.6 0 0 1 6.4 3a5.6 5.6 0 1 0 6.6 6.6z",
  play: "M5 3.5v9l7.5-4.5z",
  pause: "M5.2 3.5v9M10.8 3.5v9",
  up: "M8 13V3M4 7l4-4 4 4",
  down: "M8 3v10M4 9l4 4 4-4",
};
const FILLED = new Set(["running", "play"]);

/** A small drawing; what it means is said beside it. */
export function icon(name) {
  const drawn = FILLED.has(name)
    ? svg("path", { d: PATHS[name], fill: "currentColor" })
    : svg("path", {
        d: PATHS[name],
        fill: "none",
        stroke: "currentColor",
        "stroke-width": 2,
        "stroke-linecap": "round",
        "stroke-linejoin": "round",
      });
  return svg("svg", { viewBox: "0 0 16 16", class: "icon", "aria-hidden": "true" }, drawn);
}

/** The states of runs, in the order of the overview. */
export const STATES = ["running", "stalled", "failed", "finished"];
