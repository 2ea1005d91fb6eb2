// Starts the page: the header, the live connection, and the page that the address names.

import { loadSession, logout, session, whenLoginIsNeeded } from "./api.js";
import { askForLogin } from "./dialog.js";
import { el, say } from "./dom.js";
import { live } from "./live.js";
import { icon, onTheme, switchTheme, theme } from "./look.js";
import { notice, withdraw } from "./notices.js";
import { OverviewPage } from "./overview.js";
import { parse } from "./route.js";
import { ComparePage } from "./compare.js";
import { FleetPage } from "./devices.js";
import { RunPage } from "./run.js";

const AWAY = "The connection to the server is lost. What you see is the last state; the page tries again.";
const BACK = "Connected again.";
const main = document.getElementById("main");
let page = null,
  key = "",
  declined = false;

const PAGES = new Map([
  ["run", (path) => [RunPage, path[1] ?? ""]],
  ["compare", (path, query) => [ComparePage, query.get("runs") ?? ""]],
  ["fleet", (path) => [FleetPage, path[1] ?? ""]],
]);

/** Shows the page of the address; one that is shown already is told what changed. */
function show() {
  if (location.hash === "#main") return;
  const { path, query } = parse(location.hash);
  const [Page, id] = PAGES.get(path[0])?.(path, query) ?? [OverviewPage, ""];
  const wanted = `${Page.name} ${id}`;
  if (wanted === key && page?.go) {
    page.go(path.slice(2), query);
    return;
  }
  page?.close();
  key = wanted;
  page = new Page(main, id, path.slice(2), query);
  window.scrollTo(0, 0);
}

function header() {
  const dot = el("span", { class: "dot" }),
    state = el("span", {}, "connecting");
  const themes = el("button", { type: "button", class: "plain", onclick: switchTheme });
  const operator = el("button", { type: "button", class: "plain" });
  const drawTheme = () => {
    themes.replaceChildren(icon(theme() === "dark" ? "sun" : "moon"));
    themes.setAttribute("aria-label", theme() === "dark" ? "Light colours" : "Dark colours");
    themes.title = themes.getAttribute("aria-label");
  };
  const drawOperator = () => say(operator, session.operator ? "Log out" : "Log in");
  operator.addEventListener("click", async () => {
    if (!session.operator) declined = !(await askForLogin());
    else await logout().catch((error) => notice(error.message, "bad"));
    drawOperator();
    live.wake();
    page?.draw?.();
    if (!session.operator && session.login_required) location.reload();
  });
  document.addEventListener("cabafl-session", drawOperator);
  onTheme(drawTheme);
  drawTheme();
  drawOperator();
  document
    .getElementById("top")
    .replaceChildren(
      el(
        "a",
        { class: "brand", href: "#/" },
        el("img", { src: "/static/icon.svg", alt: "", width: 22, height: 22 }),
        "CaBaFL watch",
      ),
      el("span", { class: "grow" }),
      el("span", { class: "live", title: "Connection to the server" }, dot, state),
      operator,
      themes,
    );
  return (connected) => {
    dot.classList.toggle("on", connected);
    say(state, connected ? "live" : "not connected");
  };
}

async function start() {
  whenLoginIsNeeded(async () => {
    if (declined) return false; // who has cancelled is not asked again and again
    const done = await askForLogin();
    declined = !done;
    document.dispatchEvent(new Event("cabafl-session"));
    return done;
  });
  const drawConnection = header();
  let lost = false;
  live.on((kind, connected) => {
    if (kind !== "connection") return;
    drawConnection(connected);
    if (!connected) {
      lost = true;
      withdraw(BACK);
      notice(AWAY, "bad", true);
    } else if (lost) {
      lost = false;
      withdraw(AWAY);
      notice(BACK, "good");
    }
  });
  await loadSession().catch(() => {});
  document.dispatchEvent(new Event("cabafl-session"));
  window.addEventListener("hashchange", show);
  show();
  live.start();
}

start();
