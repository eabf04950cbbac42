// Plots of a time: what was measured as areas, what was guaranteed and allowed as lines, decisions as marks, gaps in grey.

import { byId, keyed, make, mark, say, shape } from "./dom.js";
import { bytes, clock, count, day, megabytes, minute, moment, ms, span } from "./figures.js";

const HEIGHT = 118;
const EDGE = { left: 40, right: 6, top: 12, bottom: 16 };
/** A guarantee or limit so many times above all that was measured stays outside: it would flatten the rest. */
const FAR = 4;
/** The same on a logarithmic axis. */
const FAR_OF_DECADES = 1000;
/** An axis is logarithmic if its largest value is so many times the smallest, and shows so many times at most. */
const DECADES = 30;
const MOST_DECADES = 1e4;
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

/** The next larger of 1, 2, 5 times a power of ten. */
function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 2, 2.5, 5, 10].find((step) => step * power >= value * 0.999);
}

/** The same of sizes, so that the axis has round ones. */
const niceBytes = (value) => 2 ** Math.ceil(Math.log2(value) - 0.001);

/** Values with a line in the grid: powers of ten from `floor` on, of many every second one; of a linear axis three. */
function ticksOf(floor, scale) {
  if (floor === 0) return [0, scale / 2, scale];
  const powers = Math.round(Math.log10(scale / floor));
  const every = powers > 3 ? 2 : 1;
  return Array.from({ length: Math.floor(powers / every) + 1 }, (_, i) => scale / 10 ** (i * every)).reverse();
}

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
      this.#update(node, spec, series(spec.stack), series(spec.lines));
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

  #x(time) {
    return EDGE.left + (this.width - EDGE.left - EDGE.right) * (1 - (this.now - time) / this.span);
  }

  #create(spec) {
    const parts = {
      title: make("h3"), legend: make("p", { className: "legend" }),
      svg: shape("svg", { height: HEIGHT, "aria-hidden": "true" }),
      gaps: shape("g", { class: "gaps" }), grid: shape("g", { class: "grid" }), areas: shape("g"), lines: shape("g"), marks: shape("g", { class: "marks" }),
      cursor: shape("line", { class: "cursor", y1: EDGE.top - 4, y2: HEIGHT - EDGE.bottom }),
    };
    const { title, legend, svg, gaps, grid, areas, lines, marks, cursor } = parts;
    svg.append(gaps, grid, areas, lines, marks, cursor);
    const slider = make("div", { className: "plot-area", tabIndex: 0, role: "slider" }, svg);
    mark(slider, "aria-valuemax", 0);
    mark(slider, "aria-orientation", "horizontal");
    const node = make("div", { className: "plot" }, title, legend, slider);
    node.dataset.plot = spec.key;
    node.parts = { ...parts, slider };
    slider.addEventListener("keydown", (event) => this.#key(event));
    slider.addEventListener("pointermove", (event) => this.#point(slider, event));
    slider.addEventListener("pointerleave", () => this.read(null));
    slider.addEventListener("click", () => this.#open());
    return node;
  }

  #update(node, spec, stack, lines) {
    const { title, legend, svg, gaps, grid, areas, lines: group, marks, cursor, slider } = node.parts;
    mark(title, "title", spec.hint);
    mark(svg, "width", this.width);
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
    const floor = decades ? 10 ** Math.floor(Math.log10(Math.max(least, most / MOST_DECADES)) + 0.001) : 0;
    const scale = empty ? 1 : decades ? 10 ** Math.ceil(Math.log10(most) - 0.001) : (spec.format === bytes ? niceBytes : nice)(most * 1.05);
    const part = (value) => (decades ? Math.log(Math.max(value, floor) / floor) / Math.log(scale / floor) : value / scale);
    const y = (value) => HEIGHT - EDGE.bottom - (HEIGHT - EDGE.top - EDGE.bottom) * part(value);
    say(title, decades ? `${spec.title}, log axis` : spec.title);
    this.#grid(grid, ticksOf(floor, scale), scale, empty ? () => "" : spec.format, y);
    this.#gaps(gaps);
    keyed(areas, stack.map((points, level) => ({ points, level })), ({ level }) => level,
      ({ level }) => shape("path", { class: `area ${spec.stack[level][2] ?? spec.stack[level][1]}` }),
      (path, { points, level }) => mark(path, "d", this.#area(points, (i) => lows[level][i], (i) => highs[level][i], y)));
    keyed(group, lines.map((points, i) => ({ points, i })), ({ i }) => spec.lines[i][0],
      ({ i }) => shape("path", { class: `line ${spec.lines[i][2]}` }),
      (path, { points }) => mark(path, "d", this.#line(points, scale, y)));
    keyed(marks, this.marks, (record) => record.id, () => shape("path"), (path, record) => {
      const x = this.#x(record.from).toFixed(1);
      const chosen = record.id === this.chosen;
      mark(path, "d", chosen ? `M${x} ${HEIGHT - EDGE.bottom}V${EDGE.top}m-5 -9h10l-5 9z` : `M${x} ${EDGE.top - 2}l-3 -6h6z`);
      mark(path, "class", chosen ? "chosen" : null);
    });
    const read = (points) => this.#read(points);
    const figures = [...spec.stack, ...spec.lines].map(([, label, kind], i) => {
      const value = read(i < stack.length ? stack[i] : lines[i - stack.length]);
      return { label, kind: kind ?? label, text: spec.format(value), there: Number.isFinite(value) };
    });
    keyed(legend, figures.filter((one, i) => one.there || (i < stack.length && one.kind !== "mean")), (one) => one.label, (one) => {
      const item = make("span", { className: `key ${one.kind}` }, make("i"), make("span"));
      return item;
    }, (item, one) => say(item.lastChild, `${one.label} ${one.text}`));
    const at = this.#x(this.now - (this.cursor ?? 0)).toFixed(1);
    mark(cursor, "x1", at);
    mark(cursor, "x2", at);
    mark(cursor, "visibility", this.cursor === null ? "hidden" : null);
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

  #gaps(group) {
    const { gaps, from, to } = this.view;
    const there = gaps.filter((gap) => gap.to_s > from && gap.from_s < to);
    keyed(group, there, (gap) => gap.from_s, () => shape("rect", { y: EDGE.top, height: HEIGHT - EDGE.top - EDGE.bottom }), (rect, gap) => {
      const [left, right] = [this.#x(Math.max(from, gap.from_s)), this.#x(Math.min(to, gap.to_s))];
      mark(rect, "x", left.toFixed(1));
      mark(rect, "width", Math.max(1, right - left).toFixed(1));
    });
  }

  #grid(group, values, scale, format, y) {
    const ticks = values.map((value) => ({ key: `y${value / scale}`, value }));
    const { tick: every } = this.view;
    const times = Array.from({ length: Math.ceil(this.span / every - 0.01) }, (_, i) => ({ key: `x${i}`, ago: i * every }));
    keyed(group, [...ticks, ...times], (tick) => tick.key, () => shape("g", {}, shape("line"), shape("text")), (node, tick) => {
      const [line, text] = node.children;
      if (tick.ago === undefined) {
        const at = y(tick.value).toFixed(1);
        for (const [name, value] of [["x1", EDGE.left], ["x2", this.width - EDGE.right], ["y1", at], ["y2", at]]) mark(line, name, value);
        mark(text, "x", EDGE.left - 4);
        mark(text, "y", +at + 3.5);
        mark(text, "text-anchor", "end");
        say(text, tick.value === 0 && format(1) ? "0" : format(tick.value).replace(" ", "\u2009").replace("iB", ""));
      } else {
        const at = this.#x(this.now - tick.ago).toFixed(1);
        for (const [name, value] of [["x1", at], ["x2", at], ["y1", HEIGHT - EDGE.bottom], ["y2", HEIGHT - EDGE.bottom + 3]]) mark(line, name, value);
        mark(text, "x", at);
        mark(text, "y", HEIGHT - 3);
        mark(text, "text-anchor", tick.ago === 0 ? "end" : "middle");
        say(text, this.#label(tick.ago));
      }
    });
  }

  /** Areas between two curves, one for each stretch without a gap. */
  #area(points, low, high, y) {
    let path = "";
    let stretch = [];
    const close = () => {
      if (stretch.length > 0) {
        const [first, last] = [stretch[0], stretch[stretch.length - 1]];
        // A single sample is as wide as the time it stands for.
        if (first === last) path += `M${this.#x(points[first][0] - this.view.step).toFixed(1)} ${y(high(first)).toFixed(1)}L${this.#x(points[first][0]).toFixed(1)} ${y(high(first)).toFixed(1)}V${y(low(first)).toFixed(1)}H${this.#x(points[first][0] - this.view.step).toFixed(1)}z`;
        else {
          const at = (i, value) => `${this.#x(points[i][0]).toFixed(1)} ${y(value(i)).toFixed(1)}`;
          path += `M${stretch.map((i) => at(i, high)).join("L")}L${[...stretch].reverse().map((i) => at(i, low)).join("L")}z`;
        }
      }
      stretch = [];
    };
    points.forEach(([time], i) => {
      const there = Number.isFinite(high(i));
      if (!there || (stretch.length > 0 && time - points[i - 1][0] > this.view.gap)) close();
      if (there) stretch.push(i);
    });
    close();
    return path || null;
  }

  /** A line that stays as it is until it is set anew. */
  #line(points, scale, y) {
    let path = "";
    let before = null;
    for (const [time, value] of points) {
      if (!Number.isFinite(value) || value > scale) {
        before = null;
        continue;
      }
      const [at, height] = [this.#x(time).toFixed(1), y(value).toFixed(1)];
      path += before === null || time - before > this.view.gap ? `M${at} ${height}` : `H${at}V${height}`;
      before = time;
    }
    return path || null;
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

  #point(slider, event) {
    const x = event.clientX - slider.getBoundingClientRect().left;
    const part = (x - EDGE.left) / (this.width - EDGE.left - EDGE.right);
    this.read(part < 0 || part > 1 ? null : this.span * (1 - part));
  }

  #key(event) {
    const now = this.cursor ?? 0;
    const small = Math.max(1, Math.round(this.span / SHORT_S));
    const [step, large] = [event.shiftKey ? 30 * small : small, 30 * small];
    const to = { ArrowLeft: now + step, ArrowRight: now - step, PageUp: now + large, PageDown: now - large, Home: this.span - 1, End: 0 }[event.key];
    if (to !== undefined) {
      event.preventDefault();
      this.read(to);
    } else if (event.key === "Enter") this.#open();
    else if (event.key === "Escape" && this.cursor !== (this.home ?? null)) {
      event.stopPropagation();
      this.read(null);
    }
  }
}
