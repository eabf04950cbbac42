// A table of many rows, of which one page is in the document: sorted, searched, paged.

import { keyed, make, mark, say } from "./dom.js";

/** Rows of a page. */
const PAGE = 20;

/** Orders figures from the largest on, those without one last. */
export const largest = (of) => (a, b) => {
  const [x, y] = [of(a), of(b)].map((value) => (Number.isFinite(value) ? value : -Infinity));
  return x === y ? 0 : y - x;
};
/** Orders texts from A on; numbers in them as numbers. */
const collator = new Intl.Collator("en", { numeric: true });
export const first = (of) => (a, b) => collator.compare(of(a), of(b));

/**
 * `columns`: `{ key, title, hint, order, text(row), fill(cell, row), numeric }`; the first one names the row.
 * `href(row)` makes that name a link.
 */
export class PagedTable {
  constructor(place, { caption, columns, sort, key, href, match, size = PAGE }) {
    Object.assign(this, { columns, key, href, match, size });
    this.sort = { column: columns.find((column) => column.key === sort), down: false };
    this.page = 0;
    this.needle = "";
    this.rows = [];
    this.chosen = null;
    this.head = make("tr");
    this.body = make("tbody");
    this.table = make("table", {}, make("caption", { className: "unseen" }, caption), make("thead", {}, this.head), this.body);
    this.info = make("p", { className: "info", role: "status" });
    this.back = make("button", { type: "button", ariaLabel: "previous page" }, "‹");
    this.on = make("button", { type: "button", ariaLabel: "next page" }, "›");
    this.pager = make("div", { className: "pager" }, this.info, this.back, this.on);
    this.back.addEventListener("click", () => this.turn(-1));
    this.on.addEventListener("click", () => this.turn(1));
    for (const column of columns) this.head.append(this.#heading(column));
    place.append(make("div", { className: "scroll" }, this.table), this.pager);
  }

  /** Shows these rows. */
  show(rows) {
    this.rows = rows;
    this.draw();
  }

  /** Shows the rows that contain a text. */
  search(text) {
    this.needle = text.trim().toLowerCase();
    this.page = 0;
    this.draw();
  }

  /** Turns so many pages. */
  turn(by) {
    this.page += by;
    this.draw();
  }

  /** Marks a row, and turns to its page if `reveal`. */
  choose(id, reveal) {
    this.chosen = id;
    const place = this.listed().findIndex((row) => this.key(row) === id);
    if (reveal && place >= 0) this.page = Math.floor(place / this.size);
    this.draw();
  }

  /** The row so many places from the chosen one. */
  beside(by) {
    const rows = this.listed();
    const place = rows.findIndex((row) => this.key(row) === this.chosen);
    return rows[place < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, place + by))];
  }

  /** All rows that are looked for, in order. */
  listed() {
    const found = this.needle ? this.rows.filter((row) => this.match(row).toLowerCase().includes(this.needle)) : [...this.rows];
    const { column, down } = this.sort;
    const byName = this.columns[0].order;
    found.sort((a, b) => (down ? -1 : 1) * column.order(a, b) || byName(a, b));
    return found;
  }

  draw() {
    const rows = this.listed();
    const pages = Math.max(1, Math.ceil(rows.length / this.size));
    this.page = Math.min(pages - 1, Math.max(0, this.page));
    const from = this.page * this.size;
    const shown = rows.slice(from, from + this.size);
    keyed(this.body, shown, this.key, () => this.#row(), (node, row) => this.#fill(node, row));
    mark(this.table, "aria-rowcount", rows.length + 1);
    [...this.body.rows].forEach((node, i) => mark(node, "aria-rowindex", from + i + 2));
    const of = rows.length === this.rows.length ? "" : ` found of ${this.rows.length}`;
    say(this.info, rows.length > this.size ? `${from + 1} to ${from + shown.length} of ${rows.length}${of}` : `${rows.length}${of}`);
    this.back.disabled = this.page === 0;
    this.on.disabled = this.page === pages - 1;
    this.back.hidden = this.on.hidden = pages === 1;
    this.pager.hidden = pages === 1 && !this.needle;
  }

  #heading(column) {
    const button = make("button", { type: "button", title: column.hint ?? "" }, column.title);
    const cell = make("th", { scope: "col", className: column.numeric ? "numeric" : "" }, button);
    cell.dataset.key = column.key;
    const show = () => {
      for (const other of this.head.cells) mark(other, "aria-sort", null);
      mark(cell, "aria-sort", Boolean(column.numeric) === this.sort.down ? "ascending" : "descending");
    };
    button.addEventListener("click", () => {
      this.sort = { column, down: this.sort.column === column && !this.sort.down };
      this.page = 0;
      show();
      this.draw();
    });
    if (column === this.sort.column) show();
    return cell;
  }

  #row() {
    const node = make("tr");
    this.columns.forEach((column, i) => {
      const cell = make(i === 0 ? "th" : "td", { className: column.numeric ? "numeric" : "" });
      cell.dataset.key = column.key;
      if (i === 0) cell.scope = "row";
      if (i === 0 && this.href) cell.append(make("a"));
      node.append(cell);
    });
    if (this.href) node.addEventListener("click", (event) => {
      // All of the row leads where its name leads.
      if (!event.target.closest("a") && !getSelection().toString()) location.hash = node.querySelector("a").hash;
    });
    return node;
  }

  #fill(node, row) {
    this.columns.forEach((column, i) => {
      const cell = node.cells[i];
      if (i === 0 && this.href) {
        mark(cell.firstChild, "href", this.href(row));
        say(cell.firstChild, column.text(row));
        mark(cell, "title", column.text(row));
      } else if (column.fill) column.fill(cell, row);
      else {
        say(cell, column.text(row));
        mark(cell, "title", column.hover?.(row) || null);
      }
    });
    const chosen = this.key(row) === this.chosen;
    mark(node, "class", chosen ? "chosen" : null);
    if (this.href) mark(node.cells[0].firstChild, "aria-current", chosen ? "true" : null);
  }
}
