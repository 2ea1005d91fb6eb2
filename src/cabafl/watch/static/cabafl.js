// CaBaFL at work: where each model is, how far it is in its cycle, how balanced the data it has seen are, and whether
// it has entered the L1 cache.

import { get } from "./api.js";
import { bars } from "./chart.js";
import { card, el, say } from "./dom.js";
import * as format from "./format.js";
import { icon, seriesColour } from "./look.js";

const SHOWN = 60; // models, more on request
const MOST_PIPS = 24,
  MOST_VISITED = 12;
const WHY = {
  late: "accepted: in the second half of its cycle",
  similar: "accepted: balanced enough",
  dissimilar: "refused: not balanced enough yet",
  "no screening": "accepted: screening is off",
};

class ModelCard {
  constructor(slot) {
    this.where = el("span", { class: "where" });
    this.pips = el("span", { class: "pips" });
    this.trained = el("span", { class: "quiet" });
    this.share = el("span", { class: "done" });
    this.gamma = el("span", {
      class: "gamma",
      title: "gamma: what lies below is refused in the first half of a cycle",
    });
    this.rank = el("span", { class: "gauge" }, this.share, this.gamma);
    this.similarity = el("b");
    this.rankText = el("span", { class: "quiet" });
    this.l1 = el("p", { class: "l1" });
    this.weight = el("span", { class: "done" });
    this.weightText = el("b");
    this.visited = el("p", { class: "visited quiet" });
    this.host = el(
      "article",
      { class: "card model" },
      el(
        "div",
        { class: "row" },
        el("h3", {}, el("i", { class: "patch", style: { background: seriesColour(slot) } }), `Model ${slot}`),
        el("span", { class: "grow" }),
        this.where,
      ),
      el("div", { class: "row" }, this.pips, this.trained),
      el("div", { class: "meter" }, el("span", {}, "similarity ", this.similarity), this.rank),
      this.rankText,
      this.l1,
      el(
        "div",
        { class: "meter" },
        el("span", {}, "weight ", this.weightText),
        el("span", { class: "gauge weight" }, this.weight),
      ),
      this.visited,
    );
  }

  set(slot, { slots, cabafl, heaviest }) {
    const device = slots.device[slot],
      { k, gamma } = cabafl,
      trained = cabafl.trained[slot];
    say(this.where, device < 0 ? "waits" : `on device ${device}`);
    this.host.classList.toggle("away", device < 0);
    this.#drawPips(trained, k);
    const similarity = cabafl.similarity[slot],
      rank = cabafl.rank[slot],
      length = cabafl.length[slot];
    say(this.similarity, format.number(similarity));
    const share = rank === null || !length ? null : rank / length;
    this.share.style.width = share === null ? "0" : `${(100 * share).toFixed(1)}%`;
    this.gamma.hidden = typeof gamma !== "number" || !cabafl.screening;
    if (!this.gamma.hidden) this.gamma.style.left = `${(100 * gamma).toFixed(1)}%`;
    say(
      this.rankText,
      share === null
        ? "no upload since its aggregation"
        : `rank ${format.count(rank)} of ${format.count(length)} uploads`,
    );
    this.#drawL1(cabafl.accepted[slot], cabafl.why[slot], cabafl.l1[slot]);
    const weight = cabafl.weight[slot];
    say(this.weightText, weight === null ? "–" : format.number(weight));
    this.weight.style.width = weight === null ? "0" : `${((100 * weight) / heaviest).toFixed(1)}%`;
    const visited = slots.visited?.[slot] ?? [];
    const path = visited.slice(-MOST_VISITED).join(" → ");
    say(this.visited, visited.length > MOST_VISITED ? `… → ${path}` : path);
    this.visited.title = "devices it has visited since its last aggregation";
  }

  #drawPips(trained, k) {
    const pips = typeof k === "number" && k <= MOST_PIPS;
    say(this.trained, `trained ${format.count(trained)} of ${format.anything(k)}`);
    if (!pips || this.drawn === `${trained} ${k}`) return;
    this.drawn = `${trained} ${k}`;
    this.pips.replaceChildren(...Array.from({ length: k }, (_, i) => el("i", { class: i < trained ? "on" : "" })));
  }

  #drawL1(accepted, why, replaced) {
    const age = replaced === null ? "" : ` (its L1 is of ${format.seconds(replaced)})`;
    const text = `${WHY[why] ?? "not judged yet"}${age}`;
    if (text === this.l1Text) return;
    this.l1Text = text;
    this.l1.className = `l1 ${accepted === null ? "" : accepted ? "yes" : "no"}`;
    this.l1.replaceChildren(...(accepted === null ? [] : [icon(accepted ? "finished" : "failed"), " "]), `L1 ${text}`);
  }
}

export class CabaflView {
  constructor(page) {
    this.page = page;
    this.cards = [];
    this.most = SHOWN;
    this.grid = el("div", { class: "models" });
    this.more = el("button", {
      type: "button",
      onclick: () => {
        this.most = Infinity;
        page.tabRefresher.ask();
      },
    });
    this.weights = el("div");
    this.balance = el("div");
    this.host = el(
      "div",
      {},
      this.grid,
      this.more,
      el(
        "div",
        { class: "two" },
        card("Weights of the last aggregation", this.weights),
        card("The longer a model travels, the more balanced the data it has seen", this.balance),
      ),
    );
  }

  figures({ version, cabafl, slots }) {
    const travelling = slots.device.filter((device) => device >= 0).length,
      last = cabafl.aggregation;
    return [
      ["models", format.count(slots.slot.length)],
      ["travelling", format.count(travelling)],
      ["cycle", `${format.anything(cabafl.k)} trainings`, "k"],
      [
        "gamma",
        format.anything(cabafl.gamma),
        "share of the least similar uploads that are refused in the first half of a cycle",
      ],
      ["version", format.count(version)],
      ["aggregated at", last ? format.seconds(last.time) : "–"],
      ["triggered by", last ? `model ${last.slot}` : "–", "the model whose cycle was complete"],
    ];
  }

  async set(found) {
    const count = Math.min(found.slots.slot.length, this.most),
      { cabafl } = found;
    while (this.cards.length < count) {
      const made = new ModelCard(this.cards.length);
      this.cards.push(made);
      this.grid.append(made.host);
    }
    while (this.cards.length > count) this.cards.pop().host.remove();
    const heaviest = Math.max(1e-12, ...cabafl.weight.map((weight) => weight ?? 0));
    this.cards.forEach((made, slot) => made.set(slot, { ...found, heaviest }));
    this.more.hidden = found.slots.slot.length <= count;
    say(this.more, `Show all ${found.slots.slot.length} models`);
    this.#drawWeights(cabafl);
    await this.#drawBalance();
  }

  #drawWeights({ weight, aggregation }) {
    const text = JSON.stringify(weight);
    if (text === this.weightText) return;
    this.weightText = text;
    this.weights.replaceChildren(
      aggregation && weight.some((value) => value !== null)
        ? bars(weight, { label: "Weight of each model", name: String, format: format.number })
        : el("p", { class: "quiet" }, "No aggregation yet."),
    );
  }

  async #drawBalance() {
    const { value, by, total } = await get(
      `/api/runs/${this.page.id}/series?kind=cache&field=similarity&by=trained&points=4000${this.page.time("&")}`,
    );
    if (total === this.total) return;
    this.total = total;
    const sums = new Map();
    value.forEach((similarity, i) => {
      const entry = sums.get(by[i]) ?? [0, 0];
      sums.set(by[i], [entry[0] + similarity, entry[1] + 1]);
    });
    const steps = [...sums.keys()].filter((step) => step > 0 && step <= 64).sort((a, b) => a - b);
    const means = steps.map((step) => sums.get(step)[0] / sums.get(step)[1]),
      low = Math.min(1, ...means);
    const floor = low - (1 - low) * 0.25;
    this.balance.replaceChildren(
      el(
        "p",
        { class: "quiet" },
        "Mean similarity of the uploads, by trainings since the last aggregation. 1: as balanced as all data together.",
      ),
      steps.length
        ? bars(
            means.map((mean) => mean - floor),
            {
              label: "Mean similarity",
              name: (i) => String(steps[i]),
              format: (mean) => `similarity ${format.number(mean + floor)}`,
              most: 1 - floor || 1,
            },
          )
        : el("p", { class: "quiet" }, "No upload yet."),
    );
  }

  close() {}
}
