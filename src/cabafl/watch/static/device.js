// One device: what it does now, and its last jobs.

import { get } from "./api.js";
import { card, el, facts, say, table } from "./dom.js";
import * as format from "./format.js";

const SHOWN = 12; // jobs

export class DevicePanel {
  constructor(page, onclose) {
    Object.assign(this, { page, device: -1 });
    this.title = el("h2");
    this.list = facts("pairs");
    this.jobs = el("div");
    this.host = card(
      "",
      el(
        "div",
        { class: "row" },
        this.title,
        el("span", { class: "grow" }),
        el("button", { type: "button", class: "small", "aria-label": "Close the device", onclick: onclose }, "×"),
      ),
      this.list,
      this.jobs,
    );
    this.host.classList.add("device");
    this.host.setAttribute("aria-live", "polite");
    this.host.hidden = true;
  }

  /** Shows a device; -1: none. */
  show(device) {
    this.device = device;
    this.host.hidden = device < 0;
    say(this.title, `Device ${device}`);
    if (device >= 0) this.page.tabRefresher.ask();
  }

  async refresh() {
    if (this.device < 0) return;
    const asked = this.device,
      found = await get(`/api/runs/${this.page.id}/device/${asked}${this.page.time("?")}`);
    if (asked !== this.device) return;
    const { status } = found;
    this.list.set([
      ["state", found.state],
      ["tier", found.tier ?? "–"],
      ["jobs", format.count(found.selections)],
      ["lost", format.count(found.lost)],
      ["energy", format.si(found.joules, "J")],
      ["last seen", found.seen === null ? "never" : `at ${format.seconds(found.seen)}`],
      ...(status
        ? [
            ["connected", status.online ? "yes" : "no"],
            ["samples", format.count(status.samples)],
            ["faults", format.count(status.faults)],
            ["declined", status.declined ?? "no"],
          ]
        : []),
    ]);
    const { jobs } = found,
      last = jobs.job
        .map((_, i) => i)
        .reverse()
        .slice(0, SHOWN);
    this.jobs.replaceChildren(
      last.length
        ? table(
            ["Job", "Model", "Sent", "End", "Outcome"],
            last.map((i) => [
              String(jobs.job[i]),
              String(jobs.slot[i]),
              format.seconds(jobs.start[i]),
              format.seconds(jobs.end[i]),
              jobs.outcome[i] === 0
                ? "under way"
                : jobs.outcome[i] === 1
                  ? `uploaded${jobs.staleness[i] === null ? "" : `, stale ${jobs.staleness[i]}`}`
                  : `lost: ${found.outcomes?.[jobs.outcome[i]] ?? "?"}`,
            ]),
          )
        : el("p", { class: "quiet" }, "No job so far."),
    );
  }
}
