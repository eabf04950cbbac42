// Figures in few characters, the same as in `evenkeel top`.

export const NONE = "–";

/** A count or rate: 0, 3.2, 840, 12.5k, 1.20M. */
export function count(value) {
  if (!Number.isFinite(value)) return NONE;
  if (value < 0.05) return "0";
  if (value < 9.95) return value.toFixed(1).replace(/\.0$/, "");
  if (value < 9999.5) return value.toFixed(0);
  if (value < 999950) return `${(value / 1e3).toFixed(1)}k`;
  return value < 9995000 ? `${(value / 1e6).toFixed(2)}M` : `${(value / 1e6).toFixed(0)}M`;
}

const three = (value) => (value < 9.995 ? value.toFixed(2) : value < 99.95 ? value.toFixed(1) : value.toFixed(0));

/** Bytes per second as MB/s, without the unit. */
export function megabytes(value) {
  if (!Number.isFinite(value)) return NONE;
  return value < 5000 ? "0" : three(value / 1e6);
}

/** Milliseconds, without the unit. */
export function ms(value) {
  if (!Number.isFinite(value)) return NONE;
  return value < 0.0995 ? value.toFixed(3) : three(value);
}

/** A size: 180 KiB. */
export function bytes(value) {
  if (!Number.isFinite(value)) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (value >= 1023.5 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  const digits = unit > 0 && value < 9.95 ? 1 : 0;
  return `${value.toFixed(digits).replace(/\.0$/, "")} ${units[unit]}`;
}

export const percent = (part) => (Number.isFinite(part) ? `${(part * 100).toFixed(0)} %` : NONE);

/** A duration in its largest units. */
export function span(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  if (s < 120) return `${s} s`;
  if (s < 7200) return `${Math.floor(s / 60)} min`;
  if (s < 172800) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const MINUTE = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const DATE = new Intl.DateTimeFormat("en-CA", { year: "numeric", month: "2-digit", day: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
/** Times of day and days of Unix times in seconds, in the browser's zone. */
export const clock = (seconds) => CLOCK.format(seconds * 1e3);
export const minute = (seconds) => MINUTE.format(seconds * 1e3);
export const day = (seconds) => DAY.format(seconds * 1e3);

/** A moment: its time of day, with the date if that is not today's. */
export function moment(seconds, now) {
  const date = DATE.format(seconds * 1e3);
  return date === DATE.format(now * 1e3) ? clock(seconds) : `${date} ${clock(seconds)}`;
}

/** A limit in both units. */
export function rates(iops, bytesPerS) {
  const parts = [];
  if (iops) parts.push(`${count(iops)} IOPS`);
  if (bytesPerS) parts.push(`${megabytes(bytesPerS)} MB/s`);
  return parts.join(", ") || "none";
}

export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;
