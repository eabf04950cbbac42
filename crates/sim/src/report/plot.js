// Draws one plot as SVG: values under the cursor, series to toggle, zoom along x, all of it from the keyboard as well.
// drawPlot(plot, group) answers the element; plots of one group share window and cursor.

const COLOURS = 8;
const DASHES = ["", "6 4", "2 3", "8 3 2 3"];
const colour = index => `var(--series-${index % COLOURS})`;
const dash = index => DASHES[Math.floor(index / COLOURS) % DASHES.length];
const HEIGHT = 300;
const MARGIN = { left: 62, right: 14, top: 12, bottom: 44, beside: 7, below: 17 };
const NEAR = 60; // Pixels from a point at which it still answers the pointer.

const newGroup = () => ({ window: null, cursor: null, plots: [] });

class PlotView extends Axes {
  constructor(plot, group) {
    super(HEIGHT, MARGIN);
    this.plot = plot;
    this.group = group;
    this.x = SCALES[plot.x.scale];
    this.y = SCALES[plot.y.scale];
    this.series = plot.series.map((series, index) => ({
      ...series,
      index,
      visible: !series.hidden,
      // In places of the scales; a point that is not on them is a gap.
      points: series.points.map(([x, y]) => [x === null ? null : this.x.to(x), y === null ? null : this.y.to(y)]),
      values: series.points,
    }));
    // Points of a curve answer one by one, those of a course of time all together.
    this.single = plot.series.some(series => series.style === "dots" || series.style === "dotted");
    this.chosen = null;
    this.drag = null;
    this.build();
    group.plots.push(this);
  }

  build() {
    const { plot } = this;
    this.root = element("figure", { class: "plot" });
    const caption = element("figcaption", {}, this.root);
    element("h3", {}, caption, plot.title);
    if (plot.note) element("p", { class: "note" }, caption, plot.note);
    this.legend = element("div", { class: "legend", role: "group", "aria-label": "Series" }, this.root);
    this.buttons = this.series.map(series => this.button(series));
    this.frame = element("div", {
      class: "frame", tabindex: "0", role: "application", "aria-label":
        `${plot.title}: ${plot.y.label} over ${plot.x.label}. Arrow keys move the cursor, plus and minus zoom, Escape resets.`,
    }, this.root);
    this.canvas = shape("svg", { height: HEIGHT, "aria-hidden": "true" }, this.frame);
    this.tip = element("div", { class: "tip", role: "status", hidden: "" }, this.frame);
    const tools = element("div", { class: "tools" }, this.root);
    this.reset = element("button", { type: "button" }, tools, "Whole range");
    this.reset.addEventListener("click", () => this.zoom(null));
    element("button", { type: "button" }, tools, "CSV").addEventListener("click", () => this.download());
    this.frame.addEventListener("pointermove", event => this.moved(event));
    this.frame.addEventListener("pointerdown", event => this.pressed(event));
    this.frame.addEventListener("pointerup", event => this.released(event));
    this.frame.addEventListener("pointercancel", () => { this.drag = null; this.draw(); });
    this.frame.addEventListener("pointerleave", () => { if (!this.drag) this.point(null); });
    this.frame.addEventListener("dblclick", () => this.zoom(null));
    onKeys(this.frame, event => this.keys(event));
    this.frame.addEventListener("blur", () => this.point(null));
    new ResizeObserver(() => this.draw()).observe(this.frame);
  }

  button(series) {
    const button = element("button", { type: "button", title: "Click: show or hide. Double click: only this one." }, this.legend);
    const swatch = shape("svg", { width: 22, height: 10, "aria-hidden": "true" }, button);
    if (series.style === "dots" || series.style === "dotted") shape("circle", { cx: 11, cy: 5, r: 3.5, fill: colour(series.index) }, swatch);
    if (series.style !== "dots") {
      shape("line", { x1: 0, x2: 22, y1: 5, y2: 5, stroke: colour(series.index), "stroke-width": 2.5, "stroke-dasharray": dash(series.index) }, swatch);
    }
    element("span", {}, button, series.name);
    button.addEventListener("click", () => { series.visible = !series.visible; this.draw(); });
    button.addEventListener("dblclick", () => {
      for (const other of this.series) other.visible = other === series;
      this.draw();
    });
    return button;
  }

  shown() { return this.series.filter(series => series.visible); }

  // The whole extent of the visible series along one axis; `within` limits it to a window of x.
  extent(axis, within) {
    let low = Infinity, high = -Infinity;
    for (const series of this.shown()) {
      for (const point of series.points) {
        if (point[0] === null || point[1] === null) continue;
        if (within && (point[0] < within[0] || point[0] > within[1])) continue;
        low = Math.min(low, point[axis]);
        high = Math.max(high, point[axis]);
      }
    }
    return low > high ? null : [low, high];
  }

  layout() {
    let [left, right] = this.group.window ?? this.extent(0) ?? [0, 1];
    if (left === right) [left, right] = [left - 0.5, right + 0.5];
    if (this.single && !this.group.window) {
      const room = (right - left) * 0.04;
      left = this.plot.x.scale === "linear" && left >= 0 && left < right / 2 ? 0 : left - room;
      right += room;
    }
    let [bottom, top] = this.extent(1, this.group.window) ?? [0, 1];
    if (this.plot.y.scale === "linear" && bottom >= 0) bottom = 0;
    if (bottom === top) [bottom, top] = [bottom - 0.5, top + 0.5];
    const room = (top - bottom) * 0.06;
    if (bottom !== 0 && this.plot.y.scale !== "nines") bottom -= room;
    this.edges(Math.max(200, this.frame.clientWidth), [left, right], [bottom, top + room]);
  }

  draw() {
    this.layout();
    this.series.forEach((series, index) => this.buttons[index].setAttribute("aria-pressed", String(series.visible)));
    this.reset.disabled = this.group.window === null;
    const { canvas: svg, x0, x1, y0, y1 } = this;
    svg.replaceChildren();
    svg.setAttribute("width", this.width);
    this.grid(this.x.ticks(this.left, this.right, Math.max(2, (x1 - x0) / 90)), this.y.ticks(this.bottom, this.top, 5), svg);
    shape("rect", { class: "box", x: x0, y: y1, width: x1 - x0, height: y0 - y1 }, svg);
    shape("text", { class: "label", x: (x0 + x1) / 2, y: HEIGHT - 8, "text-anchor": "middle" }, svg, this.plot.x.label);
    shape("text", { class: "label", transform: `translate(13 ${(y0 + y1) / 2}) rotate(-90)`, "text-anchor": "middle" }, svg, this.plot.y.label);
    const inner = shape("svg", { x: x0, y: y1, width: x1 - x0, height: y0 - y1, viewBox: `${x0} ${y1} ${x1 - x0} ${y0 - y1}` }, svg);
    for (const mark of this.plot.marks) {
      const place = this.x.to(mark.at), at = this.px(place);
      const line = shape("g", { class: "mark" }, inner);
      shape("title", {}, line, mark.label);
      this.upright({}, place, line);
      const flip = at > x1 - 120;
      shape("text", { x: at + (flip ? -4 : 4), y: y1 + 11, "text-anchor": flip ? "end" : "start" }, line, mark.label);
    }
    for (const series of this.shown()) this.drawSeries(series, inner);
    this.overlay = shape("g", {}, svg);
    this.drawCursor();
  }

  drawSeries(series, parent) {
    const paint = colour(series.index);
    if (series.style !== "dots") {
      shape("path", { class: "line", d: this.path(series), stroke: paint, "stroke-dasharray": dash(series.index) }, parent);
    }
    if (series.style === "dots" || series.style === "dotted") {
      for (const [x, y] of series.points) {
        if (x !== null && y !== null) shape("circle", { cx: this.px(x), cy: this.py(y), r: 4, fill: paint }, parent);
      }
    }
  }

  // Of many points in one column of pixels, the first, lowest, highest and last look like all.
  path(series) {
    let column = null, kept = [];
    const points = [];
    const flush = () => {
      if (kept.length > 4) {
        const order = kept.slice(1, -1).sort((a, b) => a[1] - b[1]);
        kept = [kept[0], order[0], order[order.length - 1], kept[kept.length - 1]];
      }
      points.push(...kept);
      kept = [];
    };
    for (const [x, y] of series.points) {
      if (x === null || y === null) { flush(); points.push(null); continue; }
      const at = [this.px(x), this.py(y)];
      if (this.single || Math.floor(at[0]) !== column) flush();
      column = Math.floor(at[0]);
      kept.push(at);
    }
    flush();
    const inSteps = series.style === "steps", last = points.at(-1);
    if (inSteps && last) points.push([this.px(this.right), last[1]]);
    return pathOf(points, inSteps);
  }

  // The point of a series at a place of x: the last one before it for steps, else the nearest.
  at(series, place) {
    const low = Math.max(0, series.points.findLastIndex(([x]) => x !== null && x <= place));
    const [here, next] = series.points.slice(low, low + 2);
    if (!here || here[0] === null) return null;
    return series.style !== "steps" && next && next[0] - place < place - here[0] ? low + 1 : low;
  }

  drawCursor() {
    this.overlay.replaceChildren();
    if (this.drag) {
      const [from, to] = [this.drag.from, this.drag.to].sort((a, b) => a - b);
      this.band({ class: "brush" }, from, to, this.overlay);
    }
    const place = this.group.cursor;
    const rows = this.single ? this.rowsOfChosen() : this.rowsAt(place);
    this.tip.hidden = rows.length === 0;
    if (rows.length === 0) return;
    this.tip.replaceChildren();
    for (const { text, paint, head } of rows) {
      const row = element("div", head ? { class: "head" } : {}, this.tip);
      if (paint) element("i", {}, row).style.background = paint;
      element("span", {}, row, text);
    }
    const at = this.single ? this.px(this.chosen.series.points[this.chosen.index][0]) : this.px(place);
    const left = at + 14 + this.tip.offsetWidth > this.width ? at - 14 - this.tip.offsetWidth : at + 14;
    this.tip.style.left = `${Math.max(0, left)}px`;
  }

  rowsAt(place) {
    if (place === null || place < this.left || place > this.right) return [];
    this.upright({ class: "cursor" }, place, this.overlay);
    const rows = [{ head: true, text: `${this.plot.x.label}: ${this.x.text(this.x.back(place))}` }];
    for (const series of this.shown()) {
      const index = this.at(series, place);
      const point = index === null ? null : series.points[index];
      rows.push({ paint: colour(series.index), text: `${series.name}: ${point ? this.y.text(series.values[index][1]) : "–"}${series.labels[index] ? ` (${series.labels[index]})` : ""}` });
      if (point && point[1] !== null) shape("circle", { class: "dot", cx: this.px(point[0]), cy: this.py(point[1]), r: 4, fill: colour(series.index) }, this.overlay);
    }
    return rows;
  }

  rowsOfChosen() {
    const { series, index } = this.chosen ?? {};
    if (!series || !series.visible) return [];
    const [x, y] = series.points[index];
    shape("circle", { class: "ring", cx: this.px(x), cy: this.py(y), r: 7, stroke: colour(series.index) }, this.overlay);
    const [vx, vy] = series.values[index];
    return [
      { head: true, paint: colour(series.index), text: series.labels[index] ? `${series.name}: ${series.labels[index]}` : series.name },
      { text: `${this.plot.x.label}: ${this.x.text(vx)}` },
      { text: `${this.plot.y.label}: ${this.y.text(vy)}` },
    ];
  }

  // Sets the cursor of the whole group.
  point(place) {
    this.group.cursor = place;
    if (place === null) this.chosen = null;
    for (const view of this.group.plots) if (view.overlay) view.drawCursor();
  }

  // Sets the window of the whole group, in places of x; null is everything.
  zoom(window) {
    this.group.window = window;
    for (const view of this.group.plots) view.draw();
  }

  moved(event) {
    const { x, y, inside } = this.pointer(event, this.frame);
    if (this.drag) { this.drag.to = inside; this.drawCursor(); return; }
    if (!this.single) { this.point(this.placeAt(inside)); return; }
    let best = null;
    for (const series of this.shown()) {
      series.points.forEach(([px, py], index) => {
        if (px === null || py === null) return;
        const distance = Math.hypot(this.px(px) - x, this.py(py) - y);
        if (distance < NEAR && (!best || distance < best.distance)) best = { series, index, distance };
      });
    }
    this.chosen = best;
    this.drawCursor();
  }

  pressed(event) {
    const { x, inside } = this.pointer(event, this.frame);
    if (event.button !== 0 || x !== inside) return;
    this.drag = { from: x, to: x };
    this.frame.setPointerCapture(event.pointerId);
  }

  released() {
    const drag = this.drag;
    this.drag = null;
    if (drag && Math.abs(drag.to - drag.from) > 5) {
      this.zoom([drag.from, drag.to].sort((a, b) => a - b).map(pixel => this.placeAt(pixel)));
    } else if (drag) {
      this.drawCursor();
    }
  }

  keys(event) {
    const { left, right } = this;
    const cursor = this.group.cursor ?? (left + right) / 2;
    const nearer = () => this.zoom([cursor - (cursor - left) / 2, cursor + (right - cursor) / 2]);
    return {
      ArrowLeft: () => this.walk(-1, event.shiftKey),
      ArrowRight: () => this.walk(1, event.shiftKey),
      ArrowUp: () => this.change(-1),
      ArrowDown: () => this.change(1),
      "+": nearer,
      "=": nearer,
      "-": () => this.zoom(this.wider(cursor - (cursor - left) * 2, cursor + (right - cursor) * 2)),
      Escape: () => this.zoom(null),
    };
  }

  // A window that does not reach beyond the data; null once it covers everything.
  wider(left, right) {
    const [low, high] = this.extent(0) ?? [0, 1];
    return left <= low && right >= high ? null : [Math.max(left, low), Math.min(right, high)];
  }

  // Moves the cursor: to the next point of a curve, or a hundredth (with shift a tenth) of the window along x.
  walk(direction, far) {
    if (!this.single) {
      const { left, right } = this;
      const place = (this.group.cursor ?? (left + right) / 2) + direction * (right - left) * (far ? 0.1 : 0.01);
      this.point(Math.min(Math.max(place, left), right));
      return;
    }
    const series = this.chosen?.series ?? this.shown()[0];
    if (!series || series.points.length === 0) return;
    const count = series.points.length;
    let index = this.chosen ? this.chosen.index + direction : 0;
    while (index >= 0 && index < count && series.points[index].includes(null)) index += direction;
    if (index >= 0 && index < count) this.chosen = { series, index };
    this.drawCursor();
  }

  // Takes the next series of a curve plot.
  change(direction) {
    const shown = this.shown();
    if (!this.single || shown.length === 0) return;
    const now = shown.indexOf(this.chosen?.series);
    const series = shown[(now + direction + shown.length) % shown.length];
    const index = series.points.findIndex(point => !point.includes(null));
    if (index >= 0) this.chosen = { series, index };
    this.drawCursor();
  }

  download() {
    const quote = text => `"${String(text).replaceAll('"', '""')}"`;
    const lines = [["series", this.plot.x.label, this.plot.y.label, "label"].map(quote).join(",")];
    for (const series of this.series) {
      series.values.forEach(([x, y], index) => lines.push([quote(series.name), x ?? "", y ?? "", quote(series.labels[index] ?? "")].join(",")));
    }
    const link = element("a", { download: `${this.plot.title.replace(/[^\w-]+/g, "-")}.csv` });
    link.href = URL.createObjectURL(new Blob([lines.join("\n") + "\n"], { type: "text/csv" }));
    link.click();
    URL.revokeObjectURL(link.href);
  }
}

const drawPlot = (plot, group) => new PlotView(plot, group).root;
