// One run: its figures, and a tab for each side of it. The replay below moves all of them.

import { Refused, get } from "./api.js";
import { badge, progressBar } from "./badge.js";
import { CurvesTab } from "./curves_tab.js";
import { el, facts, say } from "./dom.js";
import { EventsTab } from "./events.js";
import { FleetTab } from "./fleet.js";
import * as format from "./format.js";
import { live, refresher } from "./live.js";
import { MethodTab } from "./method.js";
import { notice, withdraw } from "./notices.js";
import { Replay } from "./replay.js";
import { address } from "./route.js";
import { SettingsTab } from "./settings.js";

const TABS = [
  ["", "Curves", CurvesTab],
  ["fleet", "Fleet", FleetTab],
  ["method", "Method", MethodTab],
  ["events", "Events", EventsTab],
  ["settings", "Settings", SettingsTab],
];
const GONE = "This run's folder is gone. The page shows what it knew, and goes on if the folder comes back.";
const REWOUND =
  "This run was rewound, truncated or replaced, or the server was started again; everything was loaded anew.";

export class RunPage {
  constructor(host, id, rest, query) {
    Object.assign(this, { id, details: null, at: null, gone: false });
    this.name = el("h1");
    this.state = badge();
    this.about = el("span");
    this.fleet = el("a", { hidden: true }, "its fleet of real devices");
    this.detail = el("p", { class: "problem" });
    this.bar = progressBar();
    this.left = el("span", { class: "quiet" });
    this.figures = facts("figures");
    this.clock = new Replay(() => this.#moved());
    this.links = TABS.map(([key, text]) => [key, el("a", {}, text)]);
    this.body = el("div", { class: "tab" });
    this.reading = el("p", { class: "quiet" });
    host.replaceChildren(
      el("div", { class: "row title" }, this.name, this.state, el("span", { class: "grow" }), this.left, this.bar),
      el("p", { class: "quiet about" }, this.about, " ", this.fleet),
      this.detail,
      this.figures,
      el(
        "nav",
        { class: "tabs", "aria-label": "Parts of the run" },
        this.links.map(([, link]) => link),
      ),
      this.reading,
      this.body,
      this.clock.host,
    );
    this.refresher = refresher(
      () => this.#load(),
      (error) => this.#failed(error),
      900,
    );
    this.tabRefresher = refresher(
      () => this.tab?.refresh(),
      (error) => this.#failed(error),
      150,
    );
    this.off = live.on((kind, data) => this.#heard(kind, data));
    this.go(rest, query);
    this.draw();
    this.refresher.ask();
  }

  /** Shows a tab. */
  go(rest, query) {
    const key = TABS.some(([tab]) => tab === rest[0]) ? rest[0] : "";
    this.query = query;
    this.others = (query.get("with") ?? "")
      .split(",")
      .filter((other) => /^[0-9a-f]{16}$/.test(other) && other !== this.id);
    live.follow([this.id, ...this.others]);
    if (key !== this.key) {
      this.tab?.close();
      this.key = key;
      this.tab = new (TABS.find(([tab]) => tab === key)[2])(this);
      this.body.replaceChildren(this.tab.host);
    }
    for (const [tab, link] of this.links) {
      link.setAttribute("href", address(["run", this.id, ...(tab ? [tab] : [])], { with: this.others.join(",") }));
      if (tab === key) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    this.tab.changed?.();
    this.tabRefresher.ask();
  }

  close() {
    this.off();
    this.clock.close();
    this.refresher.stop();
    this.tabRefresher.stop();
    this.atRefresher?.stop();
    this.tab?.close();
    withdraw(GONE);
  }

  /** `?time=T` or `&time=T` of the replay. */
  time(mark) {
    return this.clock.time === null ? "" : `${mark}time=${this.clock.time}`;
  }

  /** A part of the page has seen another generation. */
  rewound() {
    notice(REWOUND);
    this.clock.goTo(null);
    this.tab?.dropped?.();
    this.refresher.ask();
  }

  #heard(kind, data) {
    if (kind === "overview") {
      const here = live.runs.has(this.id);
      if (!here && live.loaded && !this.gone) this.#lost();
      if (here && this.gone) {
        this.gone = false;
        withdraw(GONE);
        notice("The run's folder is back.", "good");
        this.tab?.dropped?.();
        live.follow([]);
        live.follow([this.id, ...this.others]);
        this.refresher.ask();
      }
      this.draw();
    }
    if (kind === "head" && (data.id === this.id || this.others.includes(data.id))) {
      if (data.id === this.id && this.details && data.generation !== this.details.generation) this.rewound();
      this.refresher.ask();
    }
  }

  #lost() {
    this.gone = true;
    notice(GONE, "bad", true);
    this.draw();
  }

  #failed(error) {
    if (error.status === 404) {
      if (!this.gone) this.#lost();
    } else if (error.status !== 0) {
      notice(error.message, "bad");
      if (!(error instanceof Refused)) console.error(error);
    }
  }

  async #load() {
    const found = await get(`/api/runs/${this.id}`);
    const replaced = this.details && this.details.generation !== found.generation;
    this.details = found;
    if (replaced) this.rewound();
    this.clock.setRange(found.replay.from, found.replay.to, found.state === "running");
    this.draw();
    if (this.clock.time === null || this.tab.always) this.tabRefresher.ask();
  }

  async #moved() {
    this.tab?.moved?.();
    this.tabRefresher.ask();
    this.draw();
    if (this.clock.time === null) {
      this.at = null;
      this.draw();
      return;
    }
    this.atRefresher ??= refresher(
      async () => {
        if (this.clock.time === null) return;
        this.at = await get(`/api/runs/${this.id}/at${this.time("?")}`);
        this.draw();
      },
      (error) => this.#failed(error),
      150,
    );
    this.atRefresher.ask();
  }

  draw() {
    const run = { ...live.runs.get(this.id), ...this.details, ...live.runs.get(this.id) };
    say(this.name, run.name ?? (this.gone ? "No such run" : "…"));
    document.title = `${run.name ?? "Run"} · CaBaFL watch`;
    this.state.set(run.state ?? "", run.detail);
    this.state.hidden = !run.state || this.gone;
    say(
      this.about,
      [
        run.method,
        run.dataset,
        run.model,
        run.seed === undefined || run.seed === null ? null : `seed ${run.seed}`,
        run.devices ? `${format.count(run.devices)} devices` : null,
        run.slots ? `${format.count(run.slots)} at the same time` : null,
        run.started ? `started ${format.date(run.started)}` : null,
      ]
        .filter(Boolean)
        .join(" · "),
    );
    this.fleet.hidden = !run.fleet;
    if (run.fleet) this.fleet.setAttribute("href", address(["fleet", run.fleet]));
    say(this.detail, this.gone ? "" : (run.detail ?? ""));
    this.bar.set(run.progress ?? null);
    say(
      this.left,
      run.state === "running" && run.left !== null
        ? `${format.percent(run.progress)}, ${format.duration(run.left)} left`
        : format.percent(run.progress),
    );
    say(
      this.reading,
      run.indexed < 1
        ? `Reading the event log: ${format.percent(run.indexed)}. Counts are those of what has been read.`
        : "",
    );
    if (run.state) this.figures.set(this.clock.time !== null && this.at ? this.#then(run) : this.#now(run));
  }

  #now(run) {
    const name = run.metric?.name ?? "metric";
    return [
      [name, format.metric(run.value, run.metric), run.metric?.more_is_better === false ? "less is better" : ""],
      ...(run.averaged_value === null
        ? []
        : [["averaged", format.metric(run.averaged_value, run.metric), `${name} of the averaged model`]]),
      ["best", format.metric(run.best, run.metric)],
      ["loss", format.number(run.loss)],
      ["version", format.count(run.version)],
      ["uploads", format.count(run.uploads)],
      ["in flight", format.count(run.in_flight)],
      ["lost jobs", format.count(run.lost)],
      ["jobs", format.rate(run.jobs_per_second), "uploads per real second"],
      ["events", format.rate(run.events_per_second), "events per real second"],
      ["transfers", format.si(run.transfers)],
      ["bytes", format.si(run.bytes, "B")],
      ["energy", format.si(run.joules, "J")],
    ];
  }

  #then(run) {
    const { at } = this,
      lost = Object.values(at.losses).reduce((sum, value) => sum + value, 0);
    const value = this.tab?.valueAt?.(at.time);
    return [
      ["at", format.seconds(at.time)],
      ...(value === undefined || value === null
        ? []
        : [[run.metric?.name ?? "metric", format.metric(value, run.metric)]]),
      ["version", format.count(at.version)],
      ["uploads", format.count(at.uploads)],
      ["in flight", format.count(at.in_flight)],
      ["lost jobs", format.count(lost)],
      ...Object.entries(at.devices).map(([state, number]) => [state, format.count(number), "devices"]),
    ];
  }
}
