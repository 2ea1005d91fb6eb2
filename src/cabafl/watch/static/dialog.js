// Questions: a log-in, a confirmation, a choice of runs. Native dialogs keep the focus and close with Escape.

import { Refused, loadSession, login } from "./api.js";
import { el } from "./dom.js";

function open(content, label) {
  const dialog = el("dialog", { "aria-label": label }, content);
  const done = new Promise((resolve) =>
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue);
    }),
  );
  document.body.append(dialog);
  dialog.showModal();
  return { dialog, done };
}

/** Asks before something happens; resolves to true only for the button that names it. */
export async function confirmed(title, text, verb, danger = false) {
  const form = el(
    "form",
    { method: "dialog" },
    el("h2", {}, title),
    el("p", {}, text),
    el(
      "div",
      { class: "row end" },
      el("button", { value: "no", autofocus: true }, "Cancel"),
      el("button", { value: "yes", class: danger ? "danger" : "primary" }, verb),
    ),
  );
  return (await open(form, title).done) === "yes";
}

let asking = null;

/** Asks for the token or password; resolves to whether the log-in worked. Asks once, however many wait for it. */
export function askForLogin() {
  asking ??= loginDialog().finally(() => {
    asking = null;
  });
  return asking;
}

async function loginDialog() {
  const secret = el("input", {
    type: "password",
    name: "secret",
    autocomplete: "current-password",
    required: true,
    autofocus: true,
  });
  const problem = el("p", { class: "problem", role: "alert" });
  const submit = el("button", { class: "primary" }, "Log in");
  const form = el(
    "form",
    { class: "login" },
    el("h2", {}, "Log in"),
    el("p", {}, "With the token that the command printed, or the password."),
    el("label", {}, "Token or password", secret),
    problem,
    el(
      "div",
      { class: "row end" },
      el("button", { type: "button", onclick: () => dialog.close("no") }, "Cancel"),
      submit,
    ),
  );
  const { dialog, done } = open(form, "Log in");
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    submit.disabled = true;
    try {
      await login(secret.value);
      await loadSession();
      dialog.close("yes");
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      problem.textContent = `Refused: ${error.message}.`;
      secret.value = "";
      secret.focus();
    } finally {
      submit.disabled = false;
    }
  });
  return (await done) === "yes";
}

/** Lets the user tick entries `[id, name, detail]`; resolves to the ids, or null if it was cancelled. */
export async function pick(title, entries, chosen, most) {
  const boxes = entries.map(([id, name, detail]) => {
    const box = el("input", { type: "checkbox", value: id, checked: chosen.includes(id), onchange: limit });
    return {
      id,
      box,
      text: `${name} ${detail}`.toLowerCase(),
      line: el("label", { class: "pick" }, box, el("span", {}, name), el("small", {}, detail)),
    };
  });
  function limit() {
    const full = boxes.filter(({ box }) => box.checked).length >= most;
    for (const { box } of boxes) box.disabled = full && !box.checked;
  }
  limit();
  const find = el("input", {
    type: "search",
    placeholder: "Find",
    "aria-label": "Find",
    oninput: () => {
      for (const { text, line } of boxes) line.hidden = !text.includes(find.value.toLowerCase());
    },
  });
  const form = el(
    "form",
    { method: "dialog", class: "picker" },
    el("h2", {}, title),
    find,
    el(
      "div",
      { class: "picks" },
      boxes.map(({ line }) => line),
    ),
    el(
      "div",
      { class: "row end" },
      el("button", { value: "no" }, "Cancel"),
      el("button", { value: "yes", class: "primary" }, "Show"),
    ),
  );
  if ((await open(form, title).done) !== "yes") return null;
  return boxes.filter(({ box }) => box.checked).map(({ id }) => id);
}
