// Plots of a time: what was measured as areas, what was guaranteed and allowed as lines, decisions as marks, gaps in grey.

import { Axes, byId, keyed, make, mark, niceStep, onKeys, pathOf, roundTicks, say, SCALES, shape } from "./dom.js";
import { bytes, clock, count, day, megabytes, minute, moment, ms, span } from "./figures.js";

const HEIGHT = 118;
const MARGIN = { left: 40, right: 6, top: 12, bottom: 16, beside: 4, below: 13, ticks: 3 };
/** A guarantee or limit so many times above all that was measured stays outside: it would flatten the rest. */
const FAR = 4;
/** The same on a logarithmic axis. */
const FAR_OF_DECADES = 1000;
/** An axis is logarithmic if its largest value is so many times the smallest, and shows so many times at most. */
const DECADES = 30;
const MOST_DECADES = 1e4;
/** About so many parts of an axis have a line of the grid each. */
const PARTS = 3;
/** A mark is at the cursor within so many seconds, or this part of the width. */
const NEAR_S = 4;
const NEAR = 0.01;
/** Plots of at most so many seconds show times of day with seconds, or those of at most so many without. */
const SHORT_S = 600;
const OF_DAYS_S = 172800;

/** What is plotted of a subject. `stack`: measured, from below; `lines`: guaranteed and allowed. */
function specs(subject, unit) {
  const [format, name, guaranteed, limit] = unit === "bytes"
    ? [megabytes, "MB/s", "guaranteedBytes", "limitBytes"] : [count, "IOPS", "guaranteedIops", "limitIops"];
  const response = {
    key: "response", title: "Latency, ms", hint: "time from arrival to completion, without the network: queue and device together", format: ms, decades: true,
    // Of the past the parts are not known.
    stack: [["mean", "mean"], ["device", "device"], ["queue", "queue"]],
    lines: [["p50", "p50", "p50"], ["p99", "p99", "p99"], ["p999", "p99.9", "p999"], ["targetMs", "target", "guarantee"], ["judgedMs", "as the target counts", "judged"]],
  };
  const throughput = {
    key: "throughput", title: `Throughput, ${name}`, hint: "payload or requests completed per second, with guarantee and limit", format,
    stack: [[unit, "got"]], lines: [[guaranteed, "guaranteed", "guarantee"], [limit, "limit", "limit"]],
  };
  const requests = (lines) => ({
    key: "requests", title: "Requests", hint: "requests in flight in the device, and queued where they can still be reordered", format: count, stack: [["inFlight", "in flight", "inFlight"], ["waiting", "queued", "waiting"]],
    lines: [...lines, ["errors", "failed", "failed"]],
  });
  if (subject.tenants) {
    const budget = { key: "budget", title: "Cost in flight", hint: "bytes in flight, each request with its base cost, and the budget of admission control", format: bytes, stack: [["used", "in flight", "inFlight"]], lines: [["bound", "budget", "limit"]] };
    return [response, throughput, budget, requests([])];
  }
  const delay = { key: "delay", title: "Delay of its slots, ms", hint: "time for which a slot stays empty after a request: the throttle for a latency target", format: ms, stack: [["delay", "delay"]], lines: [] };
  return [response, throughput, requests([["bound", "slots", "limit"]]), delay];
}

/** As `niceStep`, for sizes: a power of two. */
const niceBytes = (least) => 2 ** Math.ceil(Math.log2(least) - 0.001);

export class Plots {
  /** `onMark(record)` when a decision's mark is chosen, `onTime(time)` when a time without a mark is. */
  constructor(onMark, onTime) {
    this.place = byId("plots");
    this.onMark = onMark;
    this.onTime = onTime;
    /** Seconds before the end at which the plots are read; `null`: at the end. */
    this.cursor = null;
    this.span = SHORT_S;
    this.last = null;
    this.width = 300;
    new ResizeObserver(() => this.#again()).observe(this.place);
  }

  /**
   * Draws the plots of `subject`; `decisions` are marked, the `chosen` one most. `view`: `from`, `to`, `span`, `tick`,
   * `live`, `series(field)`, `gaps`, `step` and `gap` (longer silence is a gap, not a slope), `home` (the time to read, else the end).
   */
  draw(view, subject, unit, decisions, chosen) {
    this.last = [view, subject, unit, decisions, chosen];
    const home = view.home === undefined ? null : view.to - view.home;
    if (this.home !== home && (this.cursor === (this.home ?? null) || this.view?.live !== view.live)) this.cursor = home;
    this.home = home;
    this.view = view;
    this.now = view.to;
    this.span = view.span;
    this.marks = decisions.filter(({ from }) => from >= view.from && from <= view.to);
    this.chosen = chosen;
    const columns = getComputedStyle(this.place).gridTemplateColumns.split(" ");
    this.width = Math.max(160, Math.floor(parseFloat(columns[0])) || 300);
    keyed(this.place, specs(subject, unit), (spec) => spec.key, (spec) => this.#create(spec), (node, spec) => {
      const series = (fields) => fields.map(([field]) => view.series(field).filter(([time]) => time >= view.from && time <= view.to));
      this.#update(node.parts, spec, series(spec.stack), series(spec.lines));
    });
  }

  /** Reads the plots at another time, so many seconds before the end, or (`null`) where they are read by themselves. */
  read(cursor) {
    if (cursor === null) this.cursor = this.home ?? null;
    else this.cursor = cursor <= 0 ? null : Math.min(this.span - 1, cursor);
    this.#again();
  }

  /** Reads the plots at a time, if they have it. */
  readAt(time) {
    const ago = this.now - time;
    this.read(ago < this.span ? Math.max(1, ago) : null);
  }

  #again() {
    if (this.last) this.draw(...this.last);
  }

  #create(spec) {
    const [title, legend] = [make("h3"), make("p", { className: "legend" })];
    const svg = shape("svg", { height: HEIGHT, "aria-hidden": "true" });
    const slider = make("div", { className: "plot-area", tabIndex: 0, role: "slider" }, svg);
    mark(slider, "aria-valuemax", 0);
    mark(slider, "aria-orientation", "horizontal");
    const node = make("div", { className: "plot" }, title, legend, slider);
    node.dataset.plot = spec.key;
    const axes = new Axes(HEIGHT, MARGIN);
    node.parts = { title, legend, svg, slider, axes };
    onKeys(slider, (event) => this.#keys(event));
    slider.addEventListener("pointermove", (event) => {
      const { x, inside } = axes.pointer(event, slider);
      this.read(x === inside ? this.now - axes.placeAt(x) : null);
    });
    slider.addEventListener("pointerleave", () => this.read(null));
    slider.addEventListener("click", () => this.#open());
    return node;
  }

  #update({ title, legend, svg, slider, axes }, spec, stack, lines) {
    mark(title, "title", spec.hint);
    // Each level of the stack stands on the sum of those below it that are known.
    const lows = stack.map(() => []);
    const highs = stack.map(() => []);
    let most = 0;
    let least = Infinity;
    (stack[0] ?? []).forEach((point, i) => {
      let sum = 0;
      stack.forEach((points, level) => {
        const value = points[i][1];
        lows[level][i] = sum;
        if (Number.isFinite(value)) sum += value;
        if (value > 0 && sum < least) least = sum;
        highs[level][i] = Number.isFinite(value) ? sum : NaN;
      });
      if (sum > most) most = sum;
    });
    const measured = most;
    let farthest = most;
    for (const points of lines) for (const [, value] of points) {
      if (value > most && (measured === 0 || value < FAR * measured)) most = value;
      if (value > farthest && (measured === 0 || value < FAR_OF_DECADES * measured)) farthest = value;
      if (value > 0 && value < least) least = value;
    }
    const empty = most === 0;
    // From so many decades on a linear axis shows only the largest values.
    const decades = spec.decades && !empty && farthest >= DECADES * least;
    if (decades) most = farthest;
    // Places along y are the values, or their logarithms.
    const place = (value) => (decades ? Math.max(bottom, Math.log10(value)) : value);
    const bottom = decades ? Math.floor(Math.log10(Math.max(least, most / MOST_DECADES)) + 0.001) : 0;
    const step = empty ? 0.5 : (spec.format === bytes ? niceBytes : niceStep)(most * 1.05 / PARTS);
    const top = empty ? 1 : decades ? Math.ceil(Math.log10(most) - 0.001) : step * Math.ceil(most * 1.05 / step);
    axes.edges(this.width, [this.now - this.span, this.now], [bottom, top]);
    const text = (value) => (empty ? "" : value === 0 ? "0" : spec.format(value).replace(" ", "\u2009").replace("iB", ""));
    const ys = decades ? SCALES.log.ticks(bottom, top, PARTS) : roundTicks(bottom, top, PARTS, step);
    const { gaps, tick } = this.view;
    const xs = Array.from({ length: Math.ceil(this.span / tick - 0.01) }, (_, i) => [this.now - i * tick, this.#label(i * tick), i === 0 ? "end" : "middle"]);

    say(title, decades ? `${spec.title}, log axis` : spec.title);
    mark(svg, "width", this.width);
    svg.replaceChildren();
    const grey = shape("g", { class: "gaps" }, svg);
    for (const { from_s: from, to_s: to } of gaps) {
      if (to <= axes.left || from >= axes.right) continue;
      const [begin, end] = [Math.max(axes.left, from), Math.min(axes.right, to)].map((time) => axes.px(time));
      axes.band({}, begin, Math.max(begin + 1, end), grey);
    }
    axes.grid(xs, ys.map(([at]) => [at, text(decades ? 10 ** at : at)]), svg);
    spec.stack.forEach(([, label, kind], level) => {
      const d = this.#area(axes, stack[level], (i) => place(lows[level][i]), (i) => place(highs[level][i]));
      shape("path", { class: `area ${kind ?? label}`, d }, svg);
    });
    spec.lines.forEach(([, , kind], i) => shape("path", { class: `line ${kind}`, d: this.#line(axes, lines[i], place) }, svg));
    const marks = shape("g", { class: "marks" }, svg);
    for (const record of this.marks) {
      const x = axes.px(record.from).toFixed(1);
      if (record.id === this.chosen) shape("path", { class: "chosen", d: `M${x} ${axes.y0}V${axes.y1}m-5 -9h10l-5 9z` }, marks);
      else shape("path", { d: `M${x} ${axes.y1 - 2}l-3 -6h6z` }, marks);
    }
    if (this.cursor !== null) axes.upright({ class: "cursor" }, this.now - this.cursor, svg);

    const figures = [...spec.stack, ...spec.lines].map(([, label, kind], i) => {
      const value = this.#read(i < stack.length ? stack[i] : lines[i - stack.length]);
      return { label, kind: kind ?? label, text: spec.format(value), there: Number.isFinite(value) };
    });
    keyed(legend, figures.filter((one, i) => one.there || (i < stack.length && one.kind !== "mean")), (one) => one.label,
      (one) => make("span", { className: `key ${one.kind}` }, make("i"), make("span")),
      (item, one) => say(item.lastChild, `${one.label} ${one.text}`));
    this.#tell(slider, spec, figures);
  }

  /** The same for those who do not see it. */
  #tell(slider, spec, figures) {
    // What changes every second would be read out every second.
    if (this.cursor === null && slider.told === null && slider === document.activeElement) return;
    slider.told = this.cursor;
    const time = this.now - (this.cursor ?? 0);
    const at = this.view.live ? `${span(this.cursor ?? 0)} ago` : moment(time, this.now);
    const when = this.cursor === null && this.view.live ? "now" : at;
    const gap = this.view.gaps.find(({ from_s: from, to_s: to }) => from <= time && time < to);
    const said = gap ? [`no record: ${gap.because}`] : figures.filter((one) => one.there).map((one) => `${one.label} ${one.text}`);
    const decision = this.cursor === null ? null : this.#near();
    const text = `${when}: ${said.join(", ") || "nothing"}${decision ? `; decision, ${decision.by}: ${decision.because}` : ""}`;
    mark(slider, "aria-label", spec.title);
    mark(slider, "aria-valuemin", 1 - this.span);
    mark(slider, "aria-valuenow", -Math.round(this.cursor ?? 0));
    mark(slider, "aria-valuetext", text);
  }

  /** A time on the axis. */
  #label(ago) {
    const { live, tick, to } = this.view;
    if (live && this.span <= SHORT_S) return ago === 0 ? "now" : tick < 60 ? `−${ago} s` : `−${ago / 60} min`;
    if (live && ago === 0) return "now";
    const time = to - ago;
    return this.span > OF_DAYS_S ? day(time) : this.span > SHORT_S ? minute(time) : clock(time);
  }

  /** Indexes of the points that have a value, in stretches without a gap. */
  #stretches(points, has) {
    const found = [];
    let before = -Infinity;
    points.forEach(([time], i) => {
      if (has(i) && time - before > this.view.gap) found.push([]);
      if (has(i)) found.at(-1).push(i);
      before = has(i) ? time : -Infinity;
    });
    return found;
  }

  /** Areas between two curves, one for each stretch. */
  #area(axes, points, low, high) {
    const at = (height) => ([i, earlier]) => [axes.px(points[i][0] - earlier), axes.py(height(i))];
    return this.#stretches(points, (i) => Number.isFinite(high(i))).map((stretch) => {
      // A single sample is as wide as the time it stands for.
      const ends = stretch.length > 1 ? stretch.map((i) => [i, 0]) : [[stretch[0], this.view.step], [stretch[0], 0]];
      return `${pathOf([...ends.map(at(high)), ...ends.reverse().map(at(low))])}z`;
    }).join("");
  }

  /** A line that stays as it is until it is set anew. */
  #line(axes, points, place) {
    const at = (i) => [axes.px(points[i][0]), axes.py(place(points[i][1]))];
    const has = (i) => Number.isFinite(points[i][1]) && place(points[i][1]) <= axes.top;
    return this.#stretches(points, has).map((stretch) => pathOf(stretch.map(at), true)).join("");
  }

  /** The value at the cursor: of the sample that ends next. */
  #read(points) {
    const time = this.now - (this.cursor ?? 0);
    const sample = points.find(([at]) => at >= time - 0.5) ?? points.at(-1);
    return sample && Math.abs(sample[0] - time) <= this.view.gap ? sample[1] : NaN;
  }

  /** The decision whose mark is at the cursor. */
  #near() {
    const time = this.now - (this.cursor ?? 0);
    const distance = (record) => Math.abs(record.from - time);
    const nearest = this.marks.reduce((a, b) => (!a || distance(b) <= distance(a) ? b : a), null);
    return nearest && distance(nearest) <= Math.max(NEAR_S, NEAR * this.span) ? nearest : null;
  }

  #open() {
    const record = this.#near();
    if (record) this.onMark(record);
    else if (this.span > SHORT_S && this.cursor !== null) this.onTime(this.now - this.cursor);
  }

  #keys({ shiftKey }) {
    const now = this.cursor ?? 0;
    const small = Math.max(1, Math.round(this.span / SHORT_S));
    const [step, large] = [shiftKey ? 30 * small : small, 30 * small];
    const places = { ArrowLeft: now + step, ArrowRight: now - step, PageUp: now + large, PageDown: now - large, Home: this.span - 1, End: 0 };
    const keys = Object.fromEntries(Object.entries(places).map(([key, to]) => [key, () => this.read(to)]));
    // Where a plot is read by itself, Escape leads from a tenant to its pool.
    if (this.cursor !== (this.home ?? null)) keys.Escape = () => this.read(null);
    return { ...keys, Enter: () => this.#open() };
  }
}
