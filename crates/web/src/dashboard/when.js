// The time that is shown: the present, or a moment of the past, with the length of the plots.

import { byId, make, mark, say } from "./dom.js";
import { moment } from "./figures.js";

/** Lengths of the plots in seconds, with the step of the history that fits, and from tick to tick. */
const LENGTHS = [
  { name: "10 min", seconds: 600, step: 1, tick: 120 },
  { name: "hour", seconds: 3600, step: 10, tick: 600 },
  { name: "day", seconds: 86400, step: 60, tick: 14400 },
  { name: "month", seconds: 2592000, step: 600, tick: 432000 },
];
const UNITS = { s: 1, m: 60, min: 60, h: 3600, d: 86400 };
/** The last moment that a browser can write as a date, Unix time in seconds. */
const LAST_S = 8.64e12;
/** Name of the browser's time zone, in which times are written and read. */
const ZONE = new Intl.DateTimeFormat().resolvedOptions().timeZone;

/** The moment that a text names in the browser's zone, Unix time in seconds; `null` for the present, NaN for no time. */
export function read(text, now) {
  const at = parsed(text, now);
  return at === null || (at >= 0 && at <= LAST_S) ? at : NaN;
}

function parsed(text, now) {
  const trimmed = text.trim();
  if (trimmed === "" || trimmed === "now") return null;
  const ago = /^-(\d+(?:\.\d+)?) ?(s|min|m|h|d)$/.exec(trimmed);
  if (ago) return now - Number(ago[1]) * UNITS[ago[2]];
  if (/^\d{9,}$/.test(trimmed)) return Number(trimmed);
  const time = /^(\d{1,2}):(\d{2})(?::(\d{2}))?$/.exec(trimmed);
  if (time) {
    const [hours, minutes, seconds] = time.slice(1).map((part) => Number(part ?? 0));
    if (hours > 23 || minutes > 59 || seconds > 59) return NaN;
    const at = new Date(now * 1e3);
    at.setHours(hours, minutes, seconds, 0);
    // Of the last 24 hours.
    if (at.getTime() > now * 1e3) at.setDate(at.getDate() - 1);
    return at.getTime() / 1e3;
  }
  if (!/^\d{4}-\d{2}-\d{2}/.test(trimmed)) return NaN;
  return Date.parse(trimmed.length === 10 ? `${trimmed}T00:00` : trimmed.replace(" ", "T")) / 1e3;
}

export class When {
  /** `now()`: time of the server, Unix time in seconds. `onChange()` when another time is chosen. */
  constructor(now, onChange) {
    this.now = now;
    this.onChange = onChange;
    this.length = LENGTHS[0];
    /** The moment, Unix time in seconds; `null`: the present. */
    this.at = null;
    this.field = byId("at");
    for (const length of LENGTHS) {
      const button = make("button", { type: "button" }, length.name);
      button.addEventListener("click", () => this.#choose(length));
      byId("lengths").append(button);
    }
    byId("live").addEventListener("click", () => this.go(null));
    byId("earlier").addEventListener("click", () => this.step(-1));
    byId("later").addEventListener("click", () => this.step(1));
    this.field.addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.#typed();
      if (event.key === "Escape") {
        this.#show();
        this.field.blur();
      }
    });
    this.#fromAddress();
    this.#show();
  }

  /** Begin and end of the plots, Unix time in seconds. */
  window() {
    const now = this.now();
    const to = this.at === null ? now : Math.min(now, this.at + this.length.seconds / 2);
    return { from: to - this.length.seconds, to };
  }

  /** Goes to a moment, or (`null`) back to the present. */
  go(at) {
    this.at = at === null || at >= this.now() - 1 ? null : Math.floor(at);
    this.#changed();
  }

  /** Reads the address again, when the server's clock is known: by the browser's, `-2h` may be another moment. */
  settle() {
    const { at } = this;
    this.#fromAddress();
    if (this.at !== at) this.#show();
  }

  /** Goes to a moment at the shortest length. */
  closer(at) {
    this.length = LENGTHS[0];
    this.go(at);
  }

  /** Half a length earlier (-1) or later (1). */
  step(by) {
    this.go((this.at ?? this.now()) + (by * this.length.seconds) / 2);
  }

  /** The next length. */
  next() {
    this.#choose(LENGTHS[(LENGTHS.indexOf(this.length) + 1) % LENGTHS.length]);
  }

  #choose(length) {
    this.length = length;
    this.#changed();
  }

  #typed() {
    const at = read(this.field.value, this.now());
    const wrong = Number.isNaN(at);
    mark(this.field, "aria-invalid", wrong ? "true" : null);
    if (wrong) say(byId("when"), "This is not a time: write 02:40, 2026-11-28 02:40, -2h or now.");
    else this.go(at);
  }

  #changed() {
    this.#show();
    this.#toAddress();
    this.onChange();
  }

  #show() {
    const now = this.now();
    [...byId("lengths").children].forEach((button, i) => mark(button, "aria-pressed", LENGTHS[i] === this.length));
    mark(byId("live"), "aria-pressed", this.at === null);
    byId("later").disabled = this.at === null;
    mark(this.field, "aria-invalid", null);
    this.field.value = this.at === null ? "" : moment(this.at, now);
    document.body.dataset.time = this.at === null ? "present" : "past";
    say(byId("when"), this.at === null ? "" : `Figures, decisions and troubles of ${moment(this.at, now)}, time zone ${ZONE}.`);
  }

  /** `?at=02:40&length=hour` is in the address, for links and after a reload. */
  #fromAddress() {
    const asked = new URLSearchParams(location.search);
    const at = read(asked.get("at") ?? "", this.now());
    if (!Number.isNaN(at)) this.at = at === null || at >= this.now() - 1 ? null : Math.floor(at);
    this.length = LENGTHS.find(({ name }) => name === asked.get("length")) ?? LENGTHS[0];
  }

  #toAddress() {
    const asked = new URLSearchParams();
    if (this.at !== null) asked.set("at", new Date(this.at * 1e3).toISOString().replace(".000", ""));
    if (this.length !== LENGTHS[0]) asked.set("length", this.length.name);
    const query = asked.toString();
    history.replaceState(null, "", `${location.pathname}${query && `?${query}`}${location.hash}`);
  }
}
