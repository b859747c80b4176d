// Numbers in the words of the terminal: "45.6 GB", "28 min 38 s", "62 %". What nobody measured is "–".

export const NONE = "–";
const known = (value) => typeof value === "number" && Number.isFinite(value);

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/** A count with separators: 37,915,119. */
export const count = (value) => (known(value) ? whole.format(value) : NONE);

/** A count with its noun: 1 line, 2 lines. */
export const counted = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;

/** Three significant digits, without trailing noise: 0.738, 12.4, 4,705. */
export function figure(value, digits = 3) {
  if (!known(value)) return NONE;
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1000) return whole.format(value);
  if (size < 1e-3) return value.toExponential(Math.max(0, digits - 1)).replace(/\.?0+e/, "e");
  return Number(value.toPrecision(digits)).toString();
}

/** A loss in nats, with four decimals. */
export const loss = (value) => (known(value) ? value.toFixed(4) : NONE);

/** Bytes in decimal units, as the terminal writes them. */
export function bytes(value) {
  if (!known(value)) return NONE;
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let at = 0;
  let size = value;
  while (Math.abs(size) >= 999.5 && at < units.length - 1) {
    size /= 1000;
    at += 1;
  }
  const digits = at === 0 || Math.abs(size) >= 99.95 ? 0 : 1;
  return `${size.toFixed(digits)} ${units[at]}`;
}

/** A number of parameters: 2.27 B, 566 k. */
export function parameters(value) {
  if (!known(value)) return NONE;
  for (const [size, unit] of [
    [1e9, "B"],
    [1e6, "M"],
    [1e3, "k"],
  ]) {
    if (value >= size) return `${Number((value / size).toPrecision(3))} ${unit}`;
  }
  return count(value);
}

/** A share from 0 to 1 in percent. */
export function percent(share, digits = 0) {
  return known(share) ? `${(share * 100).toFixed(digits)} %` : NONE;
}

/** Seconds in at most two units: 28 min 38 s, 10 h 18 min. */
export function duration(seconds) {
  if (!known(seconds) || seconds < 0) return NONE;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${Number(seconds.toFixed(1))} s`;
  const total = Math.round(seconds);
  const parts = [
    [86400, "d"],
    [3600, "h"],
    [60, "min"],
    [1, "s"],
  ];
  const first = parts.findIndex(([size]) => total >= size);
  const [size, unit] = parts[first];
  const rest = Math.floor((total % size) / (parts[first + 1]?.[0] ?? 1));
  const more = parts[first + 1] && rest > 0 ? ` ${rest} ${parts[first + 1][1]}` : "";
  return `${Math.floor(total / size)} ${unit}${more}`;
}

/** Milliseconds as a duration. */
export const milliseconds = (value) => {
  if (!known(value)) return NONE;
  return value < 1000 ? `${figure(value)} ms` : duration(value / 1000);
};

/** How long ago a time in microseconds since 1970 was. */
export function ago(us, now = Date.now()) {
  if (!known(us)) return NONE;
  const seconds = (now - us / 1000) / 1000;
  if (seconds < 5) return "just now";
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  if (seconds < 86400 * 7) return `${Math.floor(seconds / 86400)} d ago`;
  return date(us);
}

const dates = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric" });
const times = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });

/** The day of a time in microseconds since 1970. */
export const date = (us) => (known(us) ? dates.format(us / 1000) : NONE);
/** The time of day, in the browser's zone. */
export const clock = (us) => (known(us) ? times.format(us / 1000) : NONE);
/** Day and time. */
export const moment = (us) => (known(us) ? `${date(us)}, ${clock(us)}` : NONE);

/** A name from JSON as words: `train_s` → train s. */
export const words = (name) => String(name).replaceAll("_", " ");

/** The first letter in upper case. */
export const sentence = (text) => (text ? text[0].toUpperCase() + text.slice(1) : "");
