// What the method, the defences and the operator have recorded, newest first.

import { get } from "./api.js";
import { dropdown, el } from "./dom.js";
import * as format from "./format.js";

const PAGE = 100;

/** An event without its time and kind, on one line. */
export function fieldsOf(event) {
  return Object.entries(event)
    .filter(([key]) => !["time", "event", "number", "shortened"].includes(key))
    .map(([key, value]) => `${key} ${format.anything(value)}`)
    .join("  ·  ");
}

export class EventsTab {
  constructor(page) {
    this.page = page;
    this.limit = PAGE;
    this.kind = "";
    this.kinds = dropdown("Kind", [["", "all"]], "", (kind) => {
      this.kind = kind;
      this.limit = PAGE;
      this.refresh();
    });
    this.body = el("tbody");
    this.more = el(
      "button",
      {
        type: "button",
        onclick: () => {
          this.limit = Math.min(500, this.limit + PAGE);
          this.refresh();
        },
      },
      "Show more",
    );
    this.host = el(
      "div",
      {},
      el("div", { class: "row controls" }, this.kinds),
      el(
        "section",
        { class: "card" },
        el(
          "div",
          { class: "scroll" },
          el(
            "table",
            { class: "plain events" },
            el(
              "thead",
              {},
              el(
                "tr",
                {},
                ["Time", "Event", "Fields"].map((text) => el("th", { scope: "col" }, text)),
              ),
            ),
            this.body,
          ),
        ),
        this.more,
      ),
    );
  }

  async refresh() {
    const kind = this.kind ? `&kind=${encodeURIComponent(this.kind)}` : "";
    const found = await get(`/api/runs/${this.page.id}/events?limit=${this.limit}${kind}${this.page.time("&")}`);
    const hidden = new Set(["dispatch", "upload", "answer", "evaluation"]);
    const kinds = Object.keys(this.page.details?.kinds ?? {})
      .filter((kind) => !hidden.has(kind))
      .sort();
    const text = kinds.join();
    if (text !== this.kindText) {
      this.kindText = text;
      this.kinds.set([["", "all"], ...kinds.map((kind) => [kind, kind])], this.kind);
    }
    this.body.replaceChildren(
      ...found.events.map((event) =>
        el(
          "tr",
          {},
          el("td", { class: "number" }, format.seconds(event.time)),
          el("td", {}, String(event.event)),
          el("td", { class: "fields" }, fieldsOf(event)),
        ),
      ),
    );
    if (!found.events.length)
      this.body.append(el("tr", {}, el("td", { colspan: 3, class: "quiet" }, "Nothing recorded yet.")));
    this.more.hidden = !found.more || this.limit >= 500;
  }

  close() {}
}
