// A fleet of real devices: when each was last seen, what went wrong, and what an operator can do.

import { act, get, session } from "./api.js";
import { askForLogin, confirmed } from "./dialog.js";
import { card, choice, dropdown, el, facts, say } from "./dom.js";
import * as format from "./format.js";
import { live, refresher } from "./live.js";
import { notice, withdraw } from "./notices.js";
import { address } from "./route.js";

const EVERY = 2000; // milliseconds between two looks
const MOST_ROWS = 200;
const GONE = "This fleet's folder is gone. The page shows what it knew.";
const HEADS = ["Device", "State", "Job", "Samples", "Last seen", "Jobs", "Faults", "Clipped", ""];
const FILTERS = [
  ["all", "All"],
  ["online", "Connected"],
  ["away", "Away"],
  ["faulty", "With faults"],
  ["removed", "Shut out"],
];
const SORTS = {
  device: (row) => row.device,
  seen: (row) => row.seen ?? -1,
  faults: (row) => -(row.faults ?? 0),
  jobs: (row) => -(row.jobs ?? 0),
};

export class FleetPage {
  constructor(host, id) {
    Object.assign(this, { id, found: null, filter: "all", sort: "device", most: MOST_ROWS });
    this.name = el("h1", {}, "…");
    this.state = el("p", { class: "quiet about" });
    this.run = el("a");
    this.figures = facts("figures");
    this.losses = el("p", { class: "quiet" });
    this.model = el("button", { type: "button", onclick: () => this.#download() }, "Download the current model");
    this.stop = el("button", { type: "button", onclick: () => this.#stop() }, "Stop the run");
    this.body = el("tbody");
    this.more = el("button", {
      type: "button",
      onclick: () => {
        this.most *= 4;
        this.draw();
      },
    });
    this.operator = el("p", { class: "quiet" });
    host.replaceChildren(
      el("div", { class: "row title" }, this.name, el("span", { class: "grow" }), this.model, this.stop),
      this.state,
      this.run,
      this.figures,
      this.losses,
      el(
        "div",
        { class: "row controls" },
        choice("Devices", FILTERS, "all", (filter) => {
          this.filter = filter;
          this.draw();
        }),
        dropdown(
          "Order",
          [
            ["device", "number"],
            ["seen", "longest not seen"],
            ["faults", "faults"],
            ["jobs", "jobs"],
          ],
          "device",
          (sort) => {
            this.sort = sort;
            this.draw();
          },
        ),
      ),
      card(
        "",
        el(
          "div",
          { class: "scroll" },
          el(
            "table",
            { class: "plain devices" },
            el(
              "thead",
              {},
              el(
                "tr",
                {},
                HEADS.map((head) => el("th", { scope: "col" }, head)),
              ),
            ),
            this.body,
          ),
        ),
        this.more,
      ),
      this.operator,
    );
    this.refresher = refresher(
      () => this.#load(),
      (error) => this.#failed(error),
      500,
    );
    live.follow([]);
    this.off = live.on((kind) => {
      if (kind === "overview") this.refresher.ask();
    });
    this.timer = setInterval(() => this.refresher.ask(), EVERY);
    this.refresher.ask();
  }

  close() {
    this.off();
    clearInterval(this.timer);
    this.refresher.stop();
    withdraw(GONE);
  }

  #failed(error) {
    if (error.status === 404) notice(GONE, "bad", true);
    else if (error.status !== 0) notice(error.message, "bad");
  }

  async #load() {
    this.found = await get(`/api/fleets/${this.id}`);
    withdraw(GONE);
    this.draw();
  }

  draw() {
    const { found } = this;
    if (!found) return;
    say(this.name, found.name || "(this folder)");
    document.title = `${found.name} · CaBaFL watch`;
    const running = found.running ? `its server runs (${found.state ?? "starting"})` : "no server runs";
    const updated = found.updated ? [`status of ${format.ago(found.updated)}`] : [];
    say(this.state, ["Fleet of real devices", running, ...updated].join(" · "));
    this.run.hidden = !found.run;
    if (found.run) {
      say(this.run, "Curves, fleet and method of its run");
      this.run.setAttribute("href", address(["run", found.run]));
    }
    const count = found.devices.device.length;
    this.figures.set([
      ["connected", `${format.count(found.online)} of ${format.count(count)}`],
      ["in flight", format.count(found.in_flight)],
      ["version", format.count(found.version)],
      ["uploads", format.count(found.uploads)],
      [
        "last upload",
        found.since_upload === null || found.since_upload === undefined
          ? "–"
          : `${format.duration(found.since_upload)} ago`,
        "when the status was written",
      ],
      ["time", format.duration(found.seconds)],
      ["ends after", format.duration(found.wall_time)],
      ["quarantined", format.count(found.quarantined)],
    ]);
    const losses = Object.entries(found.losses ?? {});
    say(
      this.losses,
      losses.length ? `Lost jobs: ${losses.map(([kind, jobs]) => `${kind} ${format.count(jobs)}`).join(", ")}` : "",
    );
    this.model.disabled = !found.actions.model;
    this.stop.disabled = !found.actions.stop;
    this.stop.title = found.actions.stop ? "" : "No server runs on this fleet";
    say(
      this.operator,
      session.operator ? "" : "Downloading the model, stopping the run and shutting a device out need a log-in.",
    );
    this.#drawRows();
  }

  #drawRows() {
    const { devices } = this.found,
      keys = Object.keys(devices);
    const all = devices.device.map((_, i) => Object.fromEntries(keys.map((key) => [key, devices[key][i]])));
    const wanted = {
      all: () => true,
      online: (row) => row.online && !row.removed,
      away: (row) => !row.online && !row.removed,
      faulty: (row) => row.faults > 0,
      removed: (row) => row.removed,
    }[this.filter];
    const rows = all.filter(wanted).sort((a, b) => SORTS[this.sort](a) - SORTS[this.sort](b) || a.device - b.device),
      shown = rows.slice(0, this.most);
    const text = JSON.stringify([shown, this.found.actions.remove, Math.floor(Date.now() / 5000)]);
    this.more.hidden = rows.length <= shown.length;
    say(this.more, `Show more (${rows.length - shown.length} left)`);
    if (text === this.text) return;
    this.text = text;
    const focused = document.activeElement?.dataset?.device;
    this.body.replaceChildren(...shown.map((row) => this.#row(row)));
    if (!shown.length)
      this.body.append(
        el(
          "tr",
          {},
          el(
            "td",
            { colspan: HEADS.length, class: "quiet" },
            all.length ? "No device fits." : "The server has said nothing about its devices yet.",
          ),
        ),
      );
    if (focused !== undefined) this.body.querySelector(`button[data-device="${Number(focused)}"]`)?.focus();
  }

  #row(row) {
    const online = row.online && !row.removed && this.found.running;
    const present = this.found.running ? (row.job === null ? "connected" : "works") : "was connected";
    const state = row.removed ? "shut out" : row.declined ? `declines: ${row.declined}` : row.online ? present : "away";
    return el(
      "tr",
      {},
      el("td", {}, String(row.device)),
      el("td", {}, el("span", { class: `dot ${online ? "on" : ""}` }), " ", state),
      el("td", {}, row.job === null || row.job === undefined ? "–" : `job ${row.job}, model ${row.slot}`),
      el("td", {}, format.count(row.samples)),
      el("td", { title: format.date(row.seen) }, online ? "now" : format.ago(row.seen)),
      el("td", {}, format.count(row.jobs)),
      el("td", { class: row.faults ? "problem" : "" }, format.count(row.faults)),
      el("td", {}, format.count(row.clipped)),
      el(
        "td",
        {},
        row.removed
          ? ""
          : el(
              "button",
              {
                type: "button",
                class: "small",
                "data-device": row.device,
                disabled: !this.found.actions.remove,
                onclick: () => this.#remove(row.device),
              },
              "Shut out …",
            ),
      ),
    );
  }

  /** Logs in if needed, asks, acts, and says what came of it. */
  async #act(title, text, verb, danger, path, finish) {
    if (!session.operator && !(await askForLogin())) return;
    document.dispatchEvent(new Event("cabafl-session"));
    if (!(await confirmed(title, text, verb, danger))) return;
    try {
      notice(await finish(await act(`/api/fleets/${this.id}${path}`)), "good");
    } catch (error) {
      if (error.status === 401) Object.assign(session, { operator: false, csrf: null });
      notice(`${title}: ${error.message}`, "bad");
    }
    this.refresher.ask();
  }

  #download() {
    return this.#act(
      "Download the current model",
      "The current global model is taken out of the fleet. That is written to the run's journal.",
      "Download",
      false,
      "/model",
      async (response) => {
        const name =
          /filename="?([^";]+)"?/.exec(response.headers.get("Content-Disposition") ?? "")?.[1] ?? "model.safetensors";
        const link = el("a", { href: URL.createObjectURL(await response.blob()), download: name });
        link.click();
        setTimeout(() => URL.revokeObjectURL(link.href), 60000);
        return `${name} is downloaded.`;
      },
    );
  }

  #stop() {
    return this.#act(
      "Stop the run",
      `No more jobs are sent. The run of ${this.found.name} ends when those in flight are back, and keeps its model.`,
      "Stop the run",
      true,
      "/stop",
      async (response) => String((await response.json()).text),
    );
  }

  #remove(device) {
    return this.#act(
      `Shut device ${device} out`,
      `Device ${device} is shut out of ${this.found.name} for good: its certificate is no longer accepted.`,
      `Shut device ${device} out`,
      true,
      `/devices/${device}/remove`,
      async (response) => String((await response.json()).text),
    );
  }
}
