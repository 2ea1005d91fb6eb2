// Numbers as text.

const NONE = "–";
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const four = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const PREFIXES = [
  [1e12, "T"],
  [1e9, "G"],
  [1e6, "M"],
  [1e3, "k"],
];

const known = (value) => typeof value === "number" && Number.isFinite(value);

/** 1,234 */
export const count = (value) => (known(value) ? whole.format(value) : NONE);

/** Four digits that count. */
export const number = (value) => (known(value) ? four.format(value) : NONE);

/** 7.2 GB, 1.2 MJ, 4.3 k */
export function si(value, unit = "") {
  if (!known(value)) return NONE;
  for (const [size, prefix] of PREFIXES) {
    if (Math.abs(value) >= size) return `${Number((value / size).toPrecision(3))} ${prefix}${unit}`;
  }
  return `${Number(value.toPrecision(3))}${unit ? ` ${unit}` : ""}`;
}

/** Seconds of a run's clock: 3,120 s */
export function seconds(value) {
  if (!known(value)) return NONE;
  return `${value < 100 && !Number.isInteger(value) ? value.toFixed(1) : whole.format(value)} s`;
}

/** Real seconds, in the two largest units: 2 h 5 min */
export function duration(value) {
  if (!known(value)) return NONE;
  const s = Math.max(0, Math.round(value));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

/** A date: 20 s ago */
export function ago(at) {
  if (!known(at)) return "never";
  const s = Math.max(0, Math.round(Date.now() / 1000 - at));
  if (s < 60) return `${s} s ago`;
  if (s < 3600) return `${Math.floor(s / 60)} min ago`;
  return s < 172800 ? `${Math.floor(s / 3600)} h ago` : `${Math.floor(s / 86400)} d ago`;
}

/** A date in the browser's own form. */
export const date = (at) => (known(at) ? new Date(at * 1000).toLocaleString() : NONE);

/** 26 % */
export const percent = (share, digits = 0) => (known(share) ? `${(100 * share).toFixed(digits)} %` : NONE);

/** A value of a run's metric. */
export function metric(value, about) {
  if (!known(value)) return NONE;
  return about?.percent ? percent(value, 1) : number(value);
}

/** The same on an axis: no more digits than needed. */
export function metricTick(value, about) {
  return about?.percent ? `${Number((100 * value).toFixed(2))} %` : number(value);
}

/** A rate per second. */
export const rate = (value) => (known(value) ? `${number(Number(value.toPrecision(3)))} /s` : NONE);

/** Any setting or field of an event, on one line. */
export function anything(value) {
  if (value === null || value === undefined) return NONE;
  if (typeof value === "number") return Number.isInteger(value) ? count(value) : number(value);
  if (Array.isArray(value)) {
    const shown = value.slice(0, 8).map(anything).join(", ");
    return value.length > 8 ? `${shown}, … (${count(value.length)})` : shown || "none";
  }
  if (typeof value === "object") return JSON.stringify(value);
  return String(value);
}
