// Decisions with their reasons, newest first, each linked to its mark in the plots.

import { byId, keyed, make, mark, say } from "./dom.js";
import { moment, span } from "./figures.js";

/** Decisions listed at once. */
const LISTED = 60;

/** True if an entry concerns a subject: of a pool those of its tenants do, too. */
const concerns = (subject) => (entry) =>
  entry.subject === "" || entry.subject === subject || entry.subject.startsWith(`${subject}/`);

export class Timeline {
  /** `onChoose(record)` when one is chosen here. */
  constructor(onChoose) {
    this.list = byId("timeline");
    this.by = byId("by");
    this.everywhere = byId("everywhere");
    this.onChoose = onChoose;
    this.chosen = null;
    this.shown = [];
    this.list.addEventListener("keydown", (event) => this.#key(event));
  }

  /** Those of `all` that are listed and marked in the plots, oldest first. */
  select(all, subject) {
    let found = this.everywhere.checked ? all : all.filter(concerns(subject));
    const kinds = [...new Set(all.map((record) => record.by))].sort();
    this.#kinds(kinds);
    if (this.by.value) found = found.filter((record) => record.by === this.by.value);
    this.shown = found.slice(-LISTED);
    return this.shown;
  }

  draw(now, subject) {
    const newest = [...this.shown].reverse();
    keyed(this.list, newest, (record) => record.id, (record) => this.#create(record), (node, record) => {
      const { time, head, because, times } = node.parts;
      say(time, moment(record.from, now));
      const name = record.subject === subject || record.subject === "" ? "" : `${readable(record.subject)} · `;
      say(head, `${name}${record.by}: ${record.reason.replaceAll("_", " ")}`);
      say(because, record.because);
      const lasted = record.until - record.from;
      say(times, lasted >= 1 ? `for ${span(lasted)}${record.times > 1 ? `, ${record.times} times` : ""}` : "");
      node.classList.toggle("chosen", record.id === this.chosen);
      mark(node.button, "aria-pressed", record.id === this.chosen);
    });
    if (newest.length === 0) {
      keyed(this.list, [0], () => "none", () => make("li", { className: "none" }, "No decision of this time."), () => {});
    }
  }

  /** Marks one; `focus`: goes there. */
  choose(id, focus) {
    this.chosen = id;
    const node = this.list.nodes?.get(id);
    for (const other of this.list.children) {
      const chosen = other === node;
      other.classList.toggle("chosen", chosen);
      if (other.button) mark(other.button, "aria-pressed", chosen);
    }
    if (!node) return;
    // Only the list moves, not the page.
    const [top, bottom] = [node.offsetTop, node.offsetTop + node.offsetHeight];
    if (top < this.list.scrollTop || bottom > this.list.scrollTop + this.list.clientHeight) this.list.scrollTop = top - 8;
    if (focus) node.button.focus({ preventScroll: false });
  }

  /** Goes to the newest one. */
  focus() {
    this.list.querySelector("button")?.focus();
  }

  #create(record) {
    const parts = { time: make("time"), head: make("strong"), because: make("span", { className: "because" }), times: make("span", { className: "times" }) };
    const button = make("button", { type: "button" }, parts.time, parts.head, parts.because, parts.times);
    const node = make("li", {}, button);
    node.dataset.by = record.by.split(" ")[0];
    Object.assign(node, { parts, button });
    button.addEventListener("click", () => this.onChoose(record));
    return node;
  }

  #kinds(kinds) {
    const now = [...this.by.options].slice(1).map((option) => option.value);
    if (now.join("\n") === kinds.join("\n")) return;
    const chosen = this.by.value;
    this.by.replaceChildren(make("option", { value: "" }, "all"), ...kinds.map((kind) => make("option", { value: kind }, kind)));
    if (kinds.includes(chosen)) this.by.value = chosen;
  }

  #key(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const buttons = [...this.list.querySelectorAll("button")];
    const place = buttons.indexOf(document.activeElement);
    if (!step || place < 0) return;
    event.preventDefault();
    buttons[Math.min(buttons.length - 1, Math.max(0, place + step))].focus();
  }
}

/** The names in an address. */
export const readable = (address) => address.slice(2).split("/").map(decodeURIComponent).at(-1) ?? "";
