"use strict";
// Common to the plots of reports and of the dashboard: elements, scales, axes, paths and keys. The file is put in front of the
// script that draws the plots, and so neither imports nor exports. Names go in as text only.

const filled = (made, attributes, parent, text) => {
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  if (parent) parent.append(made);
  return made;
};
// The namespace of SVG, asked of the parser.
const SVG = new DOMParser().parseFromString("<svg></svg>", "text/html").querySelector("svg").namespaceURI;
const shape = (tag, attributes = {}, parent, text) => filled(document.createElementNS(SVG, tag), attributes, parent, text);
const element = (tag, attributes = {}, parent, text) => filled(document.createElement(tag), attributes, parent, text);

const grouped = (value, digits) => value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const decade = value => value >= 1e6 || value < 1e-4 ? value.toExponential(0).replace("e+", "e") : String(+value.toPrecision(6));
const short = value => {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e9 || size < 1e-4) return value.toExponential(3);
  return value.toLocaleString("en", size >= 1000 ? { maximumFractionDigits: 0 } : { maximumSignificantDigits: 4 });
};
const percent = share => `${+(share * 100).toFixed(6)} %`;

// The first of 1, 2, 5 times a power of ten that is not below `least`.
const niceStep = least => {
  const power = 10 ** Math.floor(Math.log10(least));
  return power * [1, 2, 5, 10].find(factor => factor * power >= least * 0.999);
};
// Round values between two others, each with its text.
const roundTicks = (low, high, about, step = niceStep(Math.max(high - low, 1e-300) / about)) => {
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const ticks = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n += 1) ticks.push(n * step || 0); // Never -0.
  return ticks.map(value => [value, grouped(value, digits)]);
};
// A scale takes values to evenly spaced places and back, and knows the places of round values between two places.
const SCALES = {
  linear: { to: value => value, back: place => place, ticks: (low, high, about) => roundTicks(low, high, about), text: short },
  log: {
    to: value => value > 0 ? Math.log10(value) : null,
    back: place => 10 ** place,
    ticks: (low, high, about) => {
      if (high - low < 0.7) {
        const ticks = roundTicks(10 ** low, 10 ** high, about).filter(([value]) => value > 0);
        return ticks.map(([value, text]) => [Math.log10(value), text]);
      }
      const every = Math.max(1, Math.ceil((high - low) / about));
      const factors = high - low < about / 2.5 ? [1, 2, 5] : [1];
      const ticks = [];
      for (let power = Math.floor(low); power <= high; power += every) {
        for (const factor of factors) ticks.push(Math.log10(factor) + power);
      }
      return ticks.filter(place => place >= low && place <= high).map(place => [place, decade(10 ** place)]);
    },
    text: short,
  },
  nines: {
    to: share => share < 1 ? -Math.log10(1 - share) : null,
    back: place => 1 - 10 ** -place,
    ticks: (low, high) => [0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999]
      .map(share => [-Math.log10(1 - share), percent(share)])
      .filter(([place]) => place >= low - 1e-9 && place <= high + 1e-9),
    text: percent,
  },
};

// The axes of a plot: edges in pixels and in places, and what is drawn along them.
class Axes {
  // `margin`: pixels outside the edges, the distances `beside` and `below` of the texts, and the length of x's `ticks`, if short.
  constructor(height, margin) {
    Object.assign(this, { height, margin, y0: height - margin.bottom, y1: margin.top, x0: margin.left });
  }

  edges(width, [left, right], [bottom, top]) {
    Object.assign(this, { width, left, right, bottom, top, x1: width - this.margin.right });
  }

  px(place) { return this.x0 + (place - this.left) / (this.right - this.left) * (this.x1 - this.x0); }

  py(place) { return this.y0 - (place - this.bottom) / (this.top - this.bottom) * (this.y0 - this.y1); }

  placeAt(pixel) { return this.left + (pixel - this.x0) / (this.x1 - this.x0) * (this.right - this.left); }

  // The pixels in `node` at which the pointer is, and `inside`, the nearest x between the edges.
  pointer(event, node) {
    const box = node.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    return { x, y, inside: Math.min(Math.max(x, this.x0), this.x1) };
  }

  // A line over the whole height.
  upright(attributes, place, parent) {
    const at = this.px(place);
    return shape("line", { ...attributes, x1: at, x2: at, y1: this.y0, y2: this.y1 }, parent);
  }

  // A rectangle over the whole height between two pixels.
  band(attributes, from, to, parent) {
    return shape("rect", { ...attributes, x: from, y: this.y1, width: to - from, height: this.y0 - this.y1 }, parent);
  }

  // Ticks are places with their texts; one of x may have a `text-anchor` of its own.
  grid(xs, ys, parent) {
    const { x0, x1, y0, margin } = this;
    const grid = shape("g", { class: "grid" }, parent);
    for (const [place, text, anchor = "middle"] of xs) {
      const line = this.upright({}, place, grid);
      if (margin.ticks) line.setAttribute("y2", y0 + margin.ticks);
      shape("text", { x: this.px(place), y: y0 + margin.below, "text-anchor": anchor }, grid, text);
    }
    for (const [place, text] of ys) {
      const at = this.py(place);
      shape("line", { x1: x0, x2: x1, y1: at, y2: at }, grid);
      shape("text", { x: x0 - margin.beside, y: at + 4, "text-anchor": "end" }, grid, text);
    }
  }
}

// A path through points in pixels, straight or in steps; `null` is a gap.
const pathOf = (points, inSteps) => {
  let path = "", open = false;
  for (const point of points) {
    const [x, y] = point ? point.map(at => at.toFixed(1)) : [];
    if (point) path += !open ? `M${x} ${y}` : inSteps ? `H${x}V${y}` : `L${x} ${y}`;
    open = point !== null;
  }
  return path;
};

// Answers the keys of an element: `actions(event)` has a function for each that it knows.
const onKeys = (node, actions) => node.addEventListener("keydown", event => {
  const action = event.ctrlKey || event.metaKey || event.altKey ? undefined : actions(event)[event.key];
  if (!action) return;
  event.preventDefault();
  action();
});
