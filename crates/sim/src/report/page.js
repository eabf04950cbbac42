"use strict";
// Builds the page out of the data it carries. Everything goes in as text, never as markup.

const PAGE = JSON.parse(document.getElementById("data").textContent);
const main = document.getElementById("content");
const paragraphs = (texts, parent) => texts.forEach(text => element("p", {}, parent, text));

const cellText = cell => {
  if (cell === "empty") return "";
  if ("text" in cell) return cell.text;
  if ("number" in cell) return short(cell.number);
  // An uncertainty needs no more than two digits.
  if ("interval" in cell) return `${short(cell.interval[0])} ± ${cell.interval[1] === null ? "?" : short(+cell.interval[1].toPrecision(2))}`;
  return cell.met ? "✓ met" : "✗ missed";
};
const cellKey = cell => {
  if (cell === "empty") return null;
  if ("text" in cell) return cell.text;
  if ("number" in cell) return cell.number;
  if ("interval" in cell) return cell.interval[0];
  return cell.met ? 1 : 0;
};
const compare = (a, b) => a === b ? 0 : a === null ? 1 : b === null ? -1
  : typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });

const drawTable = table => {
  const root = element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": table.title || "Table" });
  const grid = element("table", {}, root);
  if (table.title) element("caption", {}, grid, table.title);
  const head = element("tr", {}, element("thead", {}, grid));
  const body = element("tbody", {}, grid);
  let sorted = null;
  const fill = () => {
    const rows = [...table.rows];
    if (sorted) rows.sort((a, b) => sorted.way * compare(cellKey(a[sorted.column]), cellKey(b[sorted.column])));
    body.replaceChildren();
    for (const row of rows) {
      const line = element("tr", {}, body);
      row.forEach((cell, index) => {
        const kind = cell !== "empty" && "met" in cell ? (cell.met ? "met" : "missed") : cell !== "empty" && "text" in cell ? "text" : "";
        element(index === 0 ? "th" : "td", index === 0 ? { scope: "row" } : { class: kind }, line, cellText(cell));
      });
    }
    head.querySelectorAll("th").forEach((cell, index) => {
      cell.setAttribute("aria-sort", sorted?.column !== index ? "none" : sorted.way > 0 ? "ascending" : "descending");
    });
  };
  table.columns.forEach((name, column) => {
    const textual = table.rows.every(row => row[column] === "empty" || "text" in row[column]);
    const cell = element("th", { scope: "col", class: textual ? "text" : "" }, head);
    element("button", { type: "button", title: "Sort" }, cell, name).addEventListener("click", () => {
      sorted = { column, way: sorted?.column === column ? -sorted.way : 1 };
      fill();
    });
  });
  fill();
  return root;
};

const drawListing = ({ title, text }) => {
  const root = element("details");
  element("summary", {}, root, title);
  element("pre", { tabindex: "0" }, root, text);
  return root;
};

// More checks than these are folded away, but for those that are missed.
const CHECKS_SHOWN = 8;

const drawChecks = checks => {
  const missed = checks.filter(check => !check.met);
  const section = element("section", { "aria-labelledby": "verdict" });
  const sentence = missed.length === 0 ? `All ${checks.length} checks met` : `${missed.length} of ${checks.length} checks missed`;
  element("h2", { id: "verdict", class: missed.length === 0 ? "met" : "missed" }, section, sentence);
  const list = (checks, parent) => {
    const root = element("ul", { class: "checks" }, parent);
    for (const check of checks) {
      const item = element("li", { class: check.met ? "met" : "missed" }, root);
      element("b", {}, item, check.met ? "✓ met" : "✗ missed");
      element("span", {}, item, check.what);
      element("span", { class: "measured" }, item, check.measured);
      if (check.note) element("small", {}, item, check.note);
    }
  };
  if (checks.length <= CHECKS_SHOWN) {
    list(checks, section);
    return section;
  }
  if (missed.length > 0) list(missed, section);
  const rest = element("details", {}, section);
  element("summary", {}, rest, `${checks.length - missed.length} met`);
  list(checks.filter(check => check.met), rest);
  return section;
};

const header = element("header", {}, main);
element("h1", {}, header, PAGE.title);
const facts = element("dl", {}, header);
for (const [name, value] of PAGE.facts) {
  const fact = element("div", {}, facts);
  element("dt", {}, fact, name);
  element("dd", {}, fact, value);
}
paragraphs(PAGE.intro, header);
if (PAGE.checks.length > 0) main.append(drawChecks(PAGE.checks));

const groups = new Map();
const groupOf = link => {
  if (link === "") return newGroup();
  if (!groups.has(link)) groups.set(link, newGroup());
  return groups.get(link);
};
for (const { title, text, blocks } of PAGE.sections) {
  const section = element("section", {}, main);
  element("h2", {}, section, title);
  paragraphs(text, section);
  let row = null;
  for (const block of blocks) {
    if (block.kind !== "plot") row = null;
    if (block.kind === "table") section.append(drawTable(block));
    if (block.kind === "listing") section.append(drawListing(block));
    if (block.kind === "plot") {
      row ??= element("div", { class: "plots" }, section);
      row.append(drawPlot(block, groupOf(block.link)));
    }
  }
}
if (main.querySelector(".plot")) {
  element("footer", {}, main, "Plots: move the pointer for values, drag to zoom, double click for the whole range; "
    + "with the keyboard Tab to a plot, then arrow keys, + and −, Escape. The legend shows and hides series.");
}
