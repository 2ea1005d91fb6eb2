// Interactive learning curves. The data are in the element #data; nothing is fetched.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const plot = document.getElementById("plot");
  const tip = document.getElementById("tip");
  const svgName = "http://www.w3.org/2000/svg";
  const pad = { left: 58, right: 26, top: 12, bottom: 46 };
  const height = 460;
  const state = { axis: Object.keys(data.axes)[0], hidden: new Set(), zoom: null };
  let view = null;

  const make = (name, attributes, parent) => {
    const made = document.createElementNS(svgName, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (parent) parent.append(made);
    return made;
  };
  const shown = () => data.methods.filter((method) => !state.hidden.has(method.label));
  const number = (value) => value.toLocaleString("en", { maximumFractionDigits: value < 100 ? 1 : 0 });
  // Digits that tell values of a range from each other.
  const digits = (low, high) => {
    const span = high - low, largest = Math.max(Math.abs(low), Math.abs(high));
    return Math.min(12, 4 + Math.max(0, Math.floor(Math.log10(largest / span || 1))));
  };
  const level = (value, range) => data.metric.percent ? number(value) : String(Number(value.toPrecision(digits(...range))));

  const ticks = (low, high, count) => {
    const rough = (high - low) / count || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
    const found = [];
    for (let n = Math.ceil(low / step); n * step <= high + 1e-6 * step; n += 1) found.push(n * step);
    return found;
  };

  const extent = () => {
    const x = state.zoom || [0, Math.max(1e-9, ...shown().map((m) => m[state.axis].x.at(-1) ?? 0))];
    let low = Infinity, high = -Infinity;
    for (const { [state.axis]: curve } of shown()) {
      curve.x.forEach((at, i) => {
        if (at < x[0] || at > x[1]) return;
        low = Math.min(low, curve.low[i]);
        high = Math.max(high, curve.high[i]);
      });
    }
    if (low > high) [low, high] = data.metric.percent ? [0, 100] : [0, 1];
    if (!data.metric.percent) {
      const space = 0.04 * (high - low) || 0.5;
      return { x, y: [low - space, high + space] };
    }
    const margin = Math.max(0.5, 0.04 * (high - low));
    return { x, y: [Math.max(0, low - margin), Math.min(100, high + margin)] };
  };

  const frame = (svg, width, range, sx, sy) => {
    for (const value of ticks(...range.y, 7)) {
      make("line", { x1: pad.left, x2: width - pad.right, y1: sy(value), y2: sy(value), stroke: "#e6eaed" }, svg);
      make("text", { x: pad.left - 8, y: sy(value) + 4, "text-anchor": "end" }, svg).textContent = level(value, range.y);
    }
    for (const value of ticks(...range.x, Math.max(3, width / 130))) {
      make("line", { x1: sx(value), x2: sx(value), y1: pad.top, y2: height - pad.bottom, stroke: "#f1f3f5" }, svg);
      const text = make("text", { x: sx(value), y: height - pad.bottom + 18, "text-anchor": "middle" }, svg);
      text.textContent = number(value);
    }
    const middle = (pad.top + height - pad.bottom) / 2;
    const x = make("text", { x: (pad.left + width) / 2, y: height - 8, "text-anchor": "middle", class: "axis" }, svg);
    x.textContent = data.axes[state.axis];
    const turned = { x: 14, y: middle, "text-anchor": "middle", class: "axis", transform: `rotate(-90 14 ${middle})` };
    make("text", turned, svg).textContent = data.metric.label;
  };

  const curves = (svg, sx, sy) => {
    for (const method of shown()) {
      const curve = method[state.axis];
      const points = (values) => curve.x.map((at, i) => `${sx(at).toFixed(1)},${sy(values[i]).toFixed(1)}`);
      if (method.seeds > 1) {
        const band = [...points(curve.high), ...points(curve.low).reverse()].join(" ");
        make("polygon", { points: band, fill: method.colour, "fill-opacity": 0.12 }, svg);
      }
    }
    for (const method of shown()) {
      const curve = method[state.axis];
      const points = curve.x.map((at, i) => `${sx(at).toFixed(1)},${sy(curve.mean[i]).toFixed(1)}`).join(" ");
      const look = { fill: "none", stroke: method.colour, "stroke-width": 2.2, "stroke-linejoin": "round" };
      make("polyline", { points, ...look, "stroke-dasharray": method.dashes }, svg);
      if (curve.x.length === 1) make("circle", { cx: sx(curve.x[0]), cy: sy(curve.mean[0]), r: 4, fill: method.colour }, svg);
    }
  };

  const draw = () => {
    const width = Math.max(320, plot.clientWidth);
    const range = extent();
    const longest = Math.max(...ticks(...range.y, 7).map((value) => level(value, range.y).length), 0);
    pad.left = Math.max(58, 30 + 7 * longest);
    const sx = (v) => pad.left + ((v - range.x[0]) / (range.x[1] - range.x[0])) * (width - pad.left - pad.right);
    const sy = (v) => height - pad.bottom - ((v - range.y[0]) / (range.y[1] - range.y[0])) * (height - pad.top - pad.bottom);
    const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "learning curves" });
    frame(svg, width, range, sx, sy);
    const clip = make("clipPath", { id: "inside" }, svg);
    const box = { x: pad.left, y: pad.top, width: width - pad.left - pad.right, height: height - pad.top - pad.bottom };
    make("rect", box, clip);
    curves(make("g", { "clip-path": "url(#inside)" }, svg), sx, sy);
    const corner = `${pad.left},${pad.top} ${pad.left},${height - pad.bottom} ${width - pad.right},${height - pad.bottom}`;
    make("polyline", { points: corner, fill: "none", stroke: "#5b6770" }, svg);
    const cursor = make("line", { y1: pad.top, y2: height - pad.bottom, stroke: "#5b6770", "stroke-dasharray": "3 3", visibility: "hidden" }, svg);
    const dots = make("g", {}, svg);
    const chosen = make("rect", { y: pad.top, height: box.height, width: 0, fill: "#0072B2", "fill-opacity": 0.12 }, svg);
    plot.querySelector("svg")?.remove();
    plot.prepend(svg);
    const value = (at) => range.x[0] + ((at - pad.left) / box.width) * (range.x[1] - range.x[0]);
    view = { width, sx, sy, value, cursor, dots, chosen, range };
  };

  // Fractional index of x in curve.x, for linear interpolation with `between`; null outside the curve.
  const at = (curve, x) => {
    const after = curve.x.findIndex((value) => value >= x);
    if (after < 0 || x < curve.x[0]) return null;
    if (after === 0) return 0;
    return after - (curve.x[after] - x) / (curve.x[after] - curve.x[after - 1]);
  };
  const between = (values, place) => {
    const low = Math.floor(place), share = place - low;
    return share ? values[low] * (1 - share) + values[low + 1] * share : values[low];
  };

  const shownValue = (value) => data.metric.percent ? value.toFixed(1) : value.toPrecision(digits(...view.range.y));
  const hover = (x) => {
    view.cursor.setAttribute("visibility", "visible");
    view.cursor.setAttribute("x1", view.sx(x));
    view.cursor.setAttribute("x2", view.sx(x));
    view.dots.replaceChildren();
    const rows = [];
    for (const method of shown()) {
      const curve = method[state.axis], place = at(curve, x);
      if (place === null) continue;
      const mean = between(curve.mean, place);
      const range = method.seeds > 1 ? ` (${shownValue(between(curve.low, place))} to ${shownValue(between(curve.high, place))})` : "";
      rows.push({ method, mean, text: `${shownValue(mean)}${data.metric.unit}${range}` });
      make("circle", { cx: view.sx(x), cy: view.sy(mean), r: 3.5, fill: method.colour }, view.dots);
    }
    tip.replaceChildren();
    const head = document.createElement("b");
    head.textContent = `${data.axes[state.axis]}: ${number(x)}`;
    tip.append(head);
    for (const { method, text } of rows.sort((a, b) => data.metric.better * (b.mean - a.mean))) {
      const line = document.createElement("div"), name = document.createElement("span"), right = document.createElement("span");
      name.textContent = method.label;
      name.style.color = method.colour;
      right.textContent = text;
      line.append(name, right);
      tip.append(line);
    }
    tip.style.display = "block";
    const left = view.sx(x) + 16;
    tip.style.left = `${left + tip.offsetWidth > view.width ? Math.max(0, view.sx(x) - 16 - tip.offsetWidth) : left}px`;
  };

  let from = null;
  const place = (event) => {
    const left = plot.getBoundingClientRect().left;
    return Math.min(view.width - pad.right, Math.max(pad.left, event.clientX - left));
  };
  const leave = () => {
    tip.style.display = "none";
    view.cursor.setAttribute("visibility", "hidden");
    view.dots.replaceChildren();
  };
  plot.addEventListener("pointermove", (event) => {
    const x = place(event);
    hover(view.value(x));
    if (from === null) return;
    view.chosen.setAttribute("x", Math.min(from, x));
    view.chosen.setAttribute("width", Math.abs(x - from));
  });
  plot.addEventListener("pointerleave", leave);
  plot.addEventListener("pointerdown", (event) => { from = place(event); });
  window.addEventListener("pointerup", (event) => {
    if (from === null) return;
    const ends = [from, place(event)].sort((a, b) => a - b);
    from = null;
    if (ends[1] - ends[0] > 8) state.zoom = ends.map(view.value);
    draw();
  });
  plot.addEventListener("dblclick", () => { state.zoom = null; draw(); });
  window.addEventListener("resize", draw);

  const button = (text, pressed, parent, act, kind) => {
    const made = document.createElement("button");
    made.type = "button";
    made.className = kind;
    made.textContent = text;
    made.setAttribute("aria-pressed", pressed);
    made.addEventListener("click", () => act(made));
    parent.append(made);
    return made;
  };
  const axisBar = document.getElementById("axis-bar"), methodBar = document.getElementById("method-bar");
  for (const [axis, text] of Object.entries(data.axes)) {
    button(text, axis === state.axis, axisBar, (made) => {
      state.axis = axis;
      state.zoom = null;
      for (const other of axisBar.children) other.setAttribute("aria-pressed", other === made);
      draw();
    }, "axis");
  }
  for (const method of data.methods) {
    const made = button(method.label, true, methodBar, (self) => {
      const hide = !state.hidden.has(method.label);
      if (hide) state.hidden.add(method.label); else state.hidden.delete(method.label);
      self.setAttribute("aria-pressed", !hide);
      draw();
    }, "method");
    const swatch = make("svg", { class: "swatch", viewBox: "0 0 34 12" });
    make("line", { x1: 0, x2: 34, y1: 6, y2: 6, stroke: method.colour, "stroke-width": 3, "stroke-dasharray": method.dashes }, swatch);
    made.prepend(swatch);
  }
  draw();
})();
