// Elements from code. Text only ever becomes a text node: no name from a run or a device is read as markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, part] of Object.entries(value)) element.style.setProperty(key, part);
    else if (name === "value" || name === "checked" || name === "disabled") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(
    ...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false),
  );
  return element;
}

/** An HTML element; children are nodes or text. */
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Sets the text of an element, and touches the page only if it differs. */
export function say(element, text) {
  const wanted = String(text);
  if (element.textContent !== wanted) element.textContent = wanted;
}

/** A row of buttons of which one is chosen. */
export function choice(label, options, chosen, onchange) {
  const buttons = new Map();
  const host = el("div", { class: "choice", role: "group", "aria-label": label });
  const select = (value) => {
    for (const [key, button] of buttons) button.setAttribute("aria-pressed", String(key === value));
  };
  for (const [value, text, title] of options) {
    const button = el(
      "button",
      {
        type: "button",
        title,
        onclick: () => {
          select(value);
          onchange(value);
        },
      },
      text,
    );
    buttons.set(value, button);
    host.append(button);
  }
  select(chosen);
  host.select = select;
  return host;
}

/** A labelled drop-down list; options are [value, text]. */
export function dropdown(label, options, chosen, onchange) {
  const list = el("select", { onchange: () => onchange(list.value) });
  const host = el("label", { class: "dropdown" }, el("span", {}, label), list);
  host.set = (entries, value) => {
    list.replaceChildren(...entries.map(([key, text]) => el("option", { value: key }, text)));
    list.value = value;
  };
  host.set(options, chosen);
  return host;
}

/** A card with a heading. */
export function card(title, ...children) {
  return el("section", { class: "card" }, title ? el("h2", {}, title) : null, ...children);
}

/** Names and values; `set` changes them in place. `pairs`: [name, value, title]. */
export function facts(className = "facts") {
  const host = el("dl", { class: className });
  const cells = new Map();
  host.set = (pairs) => {
    const wanted = new Set(pairs.map(([name]) => name));
    for (const [name, cell] of cells) {
      if (!wanted.has(name)) {
        cell.box.remove();
        cells.delete(name);
      }
    }
    for (const [name, value, title] of pairs) {
      if (!cells.has(name)) {
        const text = el("dd");
        const box = el("div", {}, el("dt", {}, name), text);
        cells.set(name, { box, text });
      }
      const { box, text } = cells.get(name);
      say(text, value);
      box.title = title || "";
    }
    const boxes = pairs.map(([name]) => cells.get(name).box);
    if (boxes.some((box, i) => host.children[i] !== box)) host.replaceChildren(...boxes);
  };
  return host;
}

/** A plain table of text. */
export function table(heads, rows, caption = "") {
  return el(
    "div",
    { class: "scroll" },
    el(
      "table",
      { class: "plain" },
      caption ? el("caption", {}, caption) : null,
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          heads.map((head) => el("th", { scope: "col" }, head)),
        ),
      ),
      el(
        "tbody",
        {},
        rows.map((row) =>
          el(
            "tr",
            {},
            row.map((cell) => el("td", {}, cell)),
          ),
        ),
      ),
    ),
  );
}
