// One-line messages below the header. Each goes away when it is closed, or after a while.

import { el } from "./dom.js";

const STAYS = 15000; // milliseconds
const host = () => document.getElementById("notices");
const shown = new Map();

/** Says `text`; the same text is not shown twice. `kind`: "", "good" or "bad". `lasting`: until `withdraw`. */
export function notice(text, kind = "", lasting = false) {
  withdraw(text);
  const box = el(
    "div",
    { class: `notice ${kind}` },
    el("span", {}, text),
    el("button", { type: "button", "aria-label": "Close this message", onclick: () => withdraw(text) }, "×"),
  );
  const timer = lasting ? 0 : setTimeout(() => withdraw(text), STAYS);
  shown.set(text, { box, timer });
  host().append(box);
}

/** Takes a message away. */
export function withdraw(text) {
  const found = shown.get(text);
  if (!found) return;
  clearTimeout(found.timer);
  found.box.remove();
  shown.delete(text);
}
