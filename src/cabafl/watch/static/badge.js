// The state of a run: a shape, a word and a colour.

import { el } from "./dom.js";
import { STATES, icon } from "./look.js";

/** An empty badge; `set(state, detail)` fills it. */
export function badge() {
  const host = el("span", { class: "badge" });
  let now = "";
  host.set = (state, detail = "") => {
    host.title = detail;
    if (state === now) return;
    now = state;
    const known = STATES.includes(state);
    host.className = `badge ${known ? state : ""}`;
    host.replaceChildren(...(known ? [icon(state)] : []), state);
  };
  return host;
}

/** A bar of progress; `set(share)`, null if it is unknown. */
export function progressBar() {
  const bar = el("span", { class: "done" });
  const host = el("span", { class: "progress", role: "progressbar", "aria-valuemin": 0, "aria-valuemax": 100 }, bar);
  host.set = (share) => {
    const known = typeof share === "number";
    host.classList.toggle("unknown", !known);
    bar.style.width = known ? `${Math.min(100, 100 * share).toFixed(1)}%` : "0";
    if (known) host.setAttribute("aria-valuenow", Math.round(100 * share));
    else host.removeAttribute("aria-valuenow");
  };
  return host;
}
