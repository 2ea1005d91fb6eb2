// What the server pushes: the rows of the overview, and which of the followed runs have changed.

import { get } from "./api.js";
import { setServerTime } from "./format.js";

const RETRY = [1000, 2000, 5000, 10000]; // milliseconds

class Live {
  runs = new Map();
  fleets = new Map();
  connected = false;
  loaded = false;
  #revision = -1;
  #source = null;
  #followed = "";
  #tries = 0;
  #timer = 0;
  #waiting = null; // news that came while the overview was loading
  #listeners = new Set();

  /** Calls `listener(kind, data)`: "overview" (rows changed), "head" (a followed run changed), "connection". */
  on(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  start() {
    if (!this.#source) this.#open();
    document.addEventListener("visibilitychange", () => this.wake());
    window.addEventListener("online", () => this.wake());
    window.addEventListener("pagehide", () => this.#source?.close());
  }

  /** Tries again at once, if the connection is lost. */
  wake() {
    if (!document.hidden && !this.connected) this.#open();
  }

  /** Asks for news of these runs, beside the overview. */
  follow(ids) {
    const wanted = ids.map((id) => `run=${encodeURIComponent(id)}`).join("&");
    if (wanted === this.#followed && this.#source) return;
    this.#followed = wanted;
    this.#open();
  }

  #tell(kind, data) {
    for (const listener of [...this.#listeners]) listener(kind, data);
  }

  #open() {
    clearTimeout(this.#timer);
    this.#source?.close();
    const source = new EventSource(`/api/stream${this.#followed ? `?${this.#followed}` : ""}`);
    this.#source = source;
    source.addEventListener("hello", () => {
      this.#tries = 0;
      this.#setConnected(true);
      this.#load();
    });
    source.addEventListener("runs", (event) => this.#take(JSON.parse(event.data)));
    source.addEventListener("run", (event) => this.#tell("head", JSON.parse(event.data)));
    source.addEventListener("error", () => {
      if (source !== this.#source) return;
      this.#setConnected(false);
      source.close();
      this.#source = null;
      this.#timer = setTimeout(() => this.#again(), RETRY[Math.min(this.#tries++, RETRY.length - 1)]);
    });
  }

  async #again() {
    try {
      await get("/api/session"); // asks for a log-in if the session has ended
    } catch {
      // still away: the stream fails again, and waits longer
    }
    this.#open();
  }

  #setConnected(connected) {
    if (this.connected === connected) return;
    this.connected = connected;
    this.#tell("connection", connected);
  }

  /** The whole overview: after each greeting, since changes while we were away were not sent. */
  async #load() {
    this.#waiting = [];
    try {
      const all = await get("/api/runs");
      this.runs = new Map(all.runs.map((run) => [run.id, run]));
      this.fleets = new Map(all.fleets.map((fleet) => [fleet.id, fleet]));
      this.#revision = all.revision;
      setServerTime(all.at);
      this.loaded = true;
      this.#tell("overview", null);
    } catch {
      // the stream fails as well, and everything begins again
    }
    const waiting = this.#waiting;
    this.#waiting = null;
    for (const news of waiting ?? []) this.#take(news);
  }

  #take(news) {
    if (this.#waiting) {
      this.#waiting.push(news);
      return;
    }
    if (!this.loaded || news.revision <= this.#revision) return;
    this.#revision = news.revision;
    for (const id of news.removed) {
      this.runs.delete(id);
      this.fleets.delete(id);
    }
    for (const run of news.runs) this.runs.set(run.id, run);
    for (const fleet of news.fleets) this.fleets.set(fleet.id, fleet);
    this.#tell("overview", news);
  }
}

export const live = new Live();

/**
 * Carries out `task` when asked: one at a time, `gap` milliseconds apart, not while the page is hidden. Requests in
 * between are one request, afterwards. `failed` gets what goes wrong.
 */
export function refresher(task, failed, gap = 1000) {
  let running = false,
    wanted = false,
    stopped = false,
    last = -Infinity,
    timer = 0;
  const run = async () => {
    timer = 0;
    if (stopped || running || document.hidden) return;
    wanted = false;
    running = true;
    last = performance.now();
    try {
      await task();
    } catch (error) {
      if (!stopped) failed(error);
    }
    running = false;
    if (wanted) ask();
  };
  const ask = () => {
    wanted = true;
    if (stopped || running || timer) return;
    timer = setTimeout(run, Math.max(0, last + gap - performance.now()));
  };
  const seen = () => {
    if (!document.hidden && wanted) ask();
  };
  document.addEventListener("visibilitychange", seen);
  return {
    ask,
    stop() {
      stopped = true;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
    },
  };
}
