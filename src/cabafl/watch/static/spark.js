// A sparkline: the shape of a curve, as one SVG path.

import { svg } from "./dom.js";

const WIDTH = 110,
  HEIGHT = 28,
  EDGE = 3;

/** An empty sparkline; `set` draws values, which may be null. */
export function sparkline() {
  const path = svg("path", { fill: "none", stroke: "currentColor", "stroke-width": 1.5, "stroke-linejoin": "round" });
  const dot = svg("circle", { r: 2.2, fill: "currentColor" });
  const host = svg("svg", { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-hidden": "true" }, path, dot);
  let drawn = "";
  host.set = (values) => {
    const text = (values ?? []).join();
    if (text === drawn) return;
    drawn = text;
    const points = place(
      (values ?? []).map((value, i) => [i, value]).filter(([, value]) => value !== null),
      values?.length ?? 0,
    );
    path.setAttribute("d", points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join(""));
    const [x, y] = points.at(-1) ?? [-9, -9];
    dot.setAttribute("cx", x);
    dot.setAttribute("cy", y);
  };
  return host;
}

function place(points, length) {
  const values = points.map(([, value]) => value);
  const low = Math.min(...values),
    high = Math.max(...values);
  return points.map(([i, value]) => [
    EDGE + ((WIDTH - 2 * EDGE) * i) / Math.max(1, length - 1),
    high > low ? HEIGHT - EDGE - ((HEIGHT - 2 * EDGE) * (value - low)) / (high - low) : HEIGHT / 2,
  ]);
}
