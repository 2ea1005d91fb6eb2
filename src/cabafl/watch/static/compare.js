// Several runs in one chart.

import { badge } from "./badge.js";
import { swatch } from "./chart.js";
import { CurvesView, names } from "./curves.js";
import { pick } from "./dialog.js";
import { el } from "./dom.js";
import * as format from "./format.js";
import { live, refresher } from "./live.js";
import { seriesColour, seriesDash } from "./look.js";
import { notice } from "./notices.js";
import { MOST_OVERLAID } from "./overview.js";
import { address } from "./route.js";

/** Opens the list of runs; resolves to the chosen ids, or null. */
export function chooseRuns(title, chosen, without = null) {
  const entries = [...live.runs.values()]
    .filter(({ id }) => id !== without)
    .sort((a, b) => (a.name < b.name ? -1 : 1))
    .map((run) => [run.id, run.name, [run.method, run.dataset, run.state].filter(Boolean).join(" · ")]);
  return pick(title, entries, chosen, without ? MOST_OVERLAID - 1 : MOST_OVERLAID);
}

export class ComparePage {
  constructor(host, ids) {
    this.ids = ids
      .split(",")
      .filter((id) => /^[0-9a-f]{16}$/.test(id))
      .slice(0, MOST_OVERLAID);
    const change = el(
      "button",
      {
        type: "button",
        onclick: async () => {
          const chosen = await chooseRuns("Overlay runs", this.ids);
          if (chosen) location.hash = address(["compare"], { runs: chosen.join(",") });
        },
      },
      "Choose runs …",
    );
    this.view = new CurvesView({
      extra: change,
      onRewound: (id) => notice(`${names([id])[0]} was rewound or replaced; its curve was loaded again.`),
    });
    this.view.setRuns(this.ids);
    this.body = el("tbody");
    host.replaceChildren(
      el("h1", {}, `${this.ids.length} runs`),
      this.view.host,
      el(
        "section",
        { class: "card" },
        el(
          "div",
          { class: "scroll" },
          el(
            "table",
            { class: "plain" },
            el(
              "thead",
              {},
              el(
                "tr",
                {},
                ["", "Run", "State", "Method", "Data", "Metric", "Best", "Loss", "Transfers", "Energy", "Jobs"].map(
                  (text) => el("th", { scope: "col" }, text),
                ),
              ),
            ),
            this.body,
          ),
        ),
      ),
    );
    document.title = `${this.ids.length} runs · CaBaFL watch`;
    this.refresher = refresher(
      () => this.view.refresh(),
      (error) => notice(error.message, "bad"),
    );
    live.follow(this.ids);
    this.off = live.on((kind, data) => {
      if (kind === "head" && this.ids.includes(data.id)) this.refresher.ask();
      if (kind === "overview") this.draw();
    });
    this.refresher.ask();
    this.draw();
  }

  draw() {
    const labels = names(this.ids);
    this.body.replaceChildren(
      ...this.ids.map((id, place) => {
        const run = live.runs.get(id),
          state = badge();
        if (!run)
          return el("tr", {}, el("td"), el("td", { colspan: 10, class: "quiet" }, "This run's folder is gone."));
        state.set(run.state, run.detail);
        return el(
          "tr",
          {},
          el("td", {}, swatch({ colour: seriesColour(place), dash: seriesDash(place), width: 3 })),
          el("td", {}, el("a", { href: address(["run", id]) }, labels[place])),
          el("td", {}, state),
          [
            `${run.method ?? "–"} · seed ${run.seed ?? "–"}`,
            run.dataset ?? "–",
            `${format.metric(run.averaged_value ?? run.value, run.metric)} ${run.metric?.name ?? ""}`,
            format.metric(run.best, run.metric),
            format.number(run.loss),
            format.si(run.transfers),
            format.si(run.joules, "J"),
            format.count(run.uploads),
          ].map((text) => el("td", {}, text)),
        );
      }),
    );
    this.view.draw();
  }

  close() {
    this.off();
    this.refresher.stop();
    this.view.close();
  }
}
