// The method at work. CaBaFL has a page of its own; every other method gets one from the events it records.

import { get } from "./api.js";
import { CabaflView } from "./cabafl.js";
import { bars } from "./chart.js";
import { card, el, facts, table } from "./dom.js";
import { fieldsOf } from "./events.js";
import * as format from "./format.js";
import { SeriesChart } from "./series.js";

const MOST_SLOTS = 64; // in a table

export class MethodTab {
  constructor(page) {
    this.page = page;
    this.summary = facts("figures");
    this.own = el("div");
    this.series = new SeriesChart(page);
    this.notes = el("div");
    this.settings = facts("pairs");
    this.host = el(
      "div",
      {},
      this.summary,
      this.own,
      el("div", { class: "two" }, this.series.host, card("Settings of the method", this.settings)),
      card("Newest notes of the method", this.notes),
    );
    this.summary.hidden = true;
  }

  async refresh() {
    const found = await get(`/api/runs/${this.page.id}/method${this.page.time("?")}`);
    const special = found.page === "cabafl" && found.cabafl?.trained;
    if (special !== this.special || !this.view) {
      this.special = special;
      this.view?.close();
      this.view = special ? new CabaflView(this.page) : new GenericView();
      this.own.replaceChildren(this.view.host);
    }
    this.summary.hidden = false;
    this.summary.set(this.view.figures(found));
    await this.view.set(found);
    this.settings.set(
      Object.entries(found.settings).map(([key, value]) => [
        key,
        typeof value === "number" ? String(value) : format.anything(value),
      ]),
    );
    this.notes.replaceChildren(
      found.recent.length
        ? table(
            ["Time", "Note", "Fields"],
            found.recent.map((event) => [format.seconds(event.time), String(event.event), fieldsOf(event)]),
          )
        : el("p", { class: "quiet" }, "This method has noted nothing but its publications."),
    );
    await this.series.set(found);
  }

  close() {
    this.view?.close();
    this.series.close();
  }
}

/** Buffer, versions and models of any method. */
class GenericView {
  constructor() {
    this.buffer = el("div");
    this.versions = el("div");
    this.published = el("div");
    this.models = el("div");
    this.host = el(
      "div",
      {},
      el(
        "div",
        { class: "two" },
        card("Since the last publication", this.buffer),
        card("Uploads in each version", this.versions),
      ),
      el("div", { class: "two" }, card("The last publication", this.published), card("Models", this.models)),
    );
  }

  figures(found) {
    const per = found.per_version,
      mean = per.length ? per.reduce((a, b) => a + b, 0) / per.length : null;
    return [
      ["method", found.name ?? "–"],
      ["version", format.count(found.version)],
      ["buffered", format.count(found.since_published.uploads), "uploads since the last publication"],
      ["per version", format.number(mean), `uploads: mean of the last ${per.length} versions`],
      ...found.kinds.map(({ kind, count }) => [`${kind} events`, format.count(count)]),
    ];
  }

  async set(found) {
    const { uploads, devices } = found.since_published;
    const left = uploads - devices.length;
    this.buffer.replaceChildren(
      el("p", {}, uploads ? `${format.count(uploads)} uploads, from devices` : "No upload yet."),
      el(
        "p",
        { class: "chips" },
        devices.slice(-60).map((device) => el("span", {}, String(device))),
        left > 0 || devices.length > 60 ? " …" : "",
      ),
    );
    const per = found.per_version,
      first = found.version - per.length + 1;
    this.versions.replaceChildren(
      per.length
        ? bars(per, {
            label: "Uploads in each of the last versions",
            name: (i) => String(first + i),
            format: (value) => `${value} uploads`,
          })
        : el("p", { class: "quiet" }, "Nothing published yet."),
    );
    this.#drawPublished(found.published);
    this.#drawModels(found.slots);
  }

  #drawPublished(event) {
    if (!event) {
      this.published.replaceChildren(el("p", { class: "quiet" }, "None yet."));
      return;
    }
    const lists = Object.entries(event).filter(
      ([, value]) =>
        Array.isArray(value) &&
        value.length > 1 &&
        value.length <= 200 &&
        value.every((item) => typeof item === "number"),
    );
    const devices = lists.find(([name]) => name === "devices")?.[1] ?? [];
    const drawn = lists.filter(([, values]) => values.some((value) => !Number.isInteger(value)));
    const plain = Object.fromEntries(
      Object.entries(event).filter(([name]) => !drawn.some(([other]) => other === name)),
    );
    this.published.replaceChildren(
      el("p", {}, `At ${format.seconds(event.time)}: ${fieldsOf(plain)}`),
      ...drawn.flatMap(([name, values]) => [
        el("h3", {}, name),
        bars(values, {
          label: name,
          name: (i) => (devices.length === values.length ? `device ${devices[i]}` : String(i)),
          tick: (i) => String(devices.length === values.length ? devices[i] : i),
          format: format.number,
        }),
      ]),
    );
  }

  #drawModels(slots) {
    const used = slots.slot.filter((slot) => slots.uploads[slot] > 0 || slots.device[slot] >= 0);
    if (used.length < 2) {
      this.models.replaceChildren(el("p", { class: "quiet" }, "One global model goes to all devices."));
      return;
    }
    const shown = used.slice(0, MOST_SLOTS);
    this.models.replaceChildren(
      table(
        ["Model", "Where", "Since", "Expected", "Uploads", "Last upload"],
        shown.map((slot) => [
          String(slot),
          slots.device[slot] < 0 ? "waits" : `device ${slots.device[slot]}`,
          format.seconds(slots.since[slot]),
          format.seconds(slots.due[slot]),
          format.count(slots.uploads[slot]),
          format.seconds(slots.last[slot]),
        ]),
      ),
      used.length > shown.length ? el("p", { class: "quiet" }, `The first ${shown.length} of ${used.length}.`) : "",
    );
  }

  close() {}
}
