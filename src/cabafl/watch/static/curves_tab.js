// The curves of a run, and what it did over time.

import { get } from "./api.js";
import { LineChart, bars } from "./chart.js";
import { chooseRuns } from "./compare.js";
import { CurvesView } from "./curves.js";
import { card, el, table } from "./dom.js";
import * as format from "./format.js";
import { seriesColour } from "./look.js";
import { address } from "./route.js";

const PARTS = 120;

export class CurvesTab {
  always = true; // new evaluations are drawn during a replay as well

  constructor(page) {
    this.page = page;
    const overlay = el("button", { type: "button", onclick: () => this.#overlay() }, "Overlay runs …");
    this.view = new CurvesView({ clock: page.clock, extra: overlay, onRewound: () => page.rewound() });
    this.flow = new LineChart("Jobs", { height: 180, sync: "activity", stepped: true, zero: true });
    this.flight = new LineChart("In flight", { height: 180, sync: "activity", stepped: true, zero: true });
    this.stale = el("div");
    this.losses = el("div");
    this.host = el(
      "div",
      {},
      this.view.host,
      el("div", { class: "two" }, this.flow.host, this.flight.host),
      el("div", { class: "two" }, card("Staleness", this.stale), card("Lost jobs", this.losses)),
    );
    this.changed();
  }

  changed() {
    this.view.setRuns([this.page.id, ...this.page.others]);
  }

  dropped() {
    for (const curve of this.view.curves) curve.drop();
  }

  moved() {
    this.view.mark();
    this.flow.setMark(this.page.clock.time);
    this.flight.setMark(this.page.clock.time);
  }

  valueAt(time) {
    return this.view.curves[0]?.last(time, "value");
  }

  async refresh() {
    const { generation, rows, events } = this.page.details ?? {};
    const head = `${generation} ${rows} ${events} ${this.page.others}`;
    if (this.page.clock.time !== null && head === this.head) return; // the replay moves only the mark
    await this.view.refresh();
    const found = await get(`/api/runs/${this.page.id}/activity?points=${PARTS}`);
    this.head = head;
    this.#drawActivity(found);
    this.#drawStaleness();
    this.#drawLosses();
    this.moved();
  }

  close() {
    this.view.close();
    this.flow.destroy();
    this.flight.destroy();
  }

  async #overlay() {
    const chosen = await chooseRuns("Overlay runs", this.page.others, this.page.id);
    if (chosen) location.hash = address(["run", this.page.id], { with: chosen.join(",") });
  }

  #drawActivity({ edges, dispatches, uploads, in_flight: flying, losses }) {
    const x = edges.slice(1),
      how = { x: format.count, y: format.count, xLabel: "time of the run in seconds" };
    const lines = [
      ["dispatched", dispatches],
      ["uploaded", uploads],
      ...Object.entries(losses).map(([kind, values]) => [`lost: ${kind}`, values]),
    ];
    this.flow.note.textContent = `per ${format.seconds(edges[1] - edges[0])} of the run's clock`;
    this.flow.set(
      lines.map(([label, y], place) => ({ key: label, label, colour: seriesColour(place), width: 1.25, x, y })),
      how,
    );
    this.flight.set(
      [{ key: "in flight", label: "jobs in flight", colour: seriesColour(0), width: 1.25, x, y: flying }],
      how,
    );
  }

  #drawStaleness() {
    const { counts = [], mean = null, max = null } = this.page.details?.staleness ?? {};
    const text = JSON.stringify(counts);
    if (text === this.staleText) return;
    this.staleText = text;
    if (!counts.length) {
      this.stale.replaceChildren(el("p", { class: "quiet" }, "No upload yet."));
      return;
    }
    const name = (place) => (place === 63 ? "63+" : String(place));
    this.stale.replaceChildren(
      el(
        "p",
        { class: "quiet" },
        `Versions published while a job was under way: mean ${format.number(mean)}, most ${format.count(max)}.`,
      ),
      bars(counts, { label: "Uploads by staleness", name, format: (value) => `${format.count(value)} uploads` }),
    );
  }

  #drawLosses() {
    const losses = Object.entries(this.page.details?.losses ?? {}).sort((a, b) => b[1] - a[1]);
    const sent = this.page.details?.kinds?.dispatch ?? 0;
    const text = JSON.stringify([losses, sent]);
    if (text === this.lossText) return;
    this.lossText = text;
    this.losses.replaceChildren(
      losses.length
        ? table(
            ["Kind", "Jobs", "Share of all jobs"],
            losses.map(([kind, jobs]) => [kind, format.count(jobs), sent ? format.percent(jobs / sent, 2) : "–"]),
          )
        : el("p", { class: "quiet" }, "None."),
    );
  }
}
