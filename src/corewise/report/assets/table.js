// A table with sorting, filters, pages and export; it draws one page of rows at a time.
"use strict";
// Tables with at most this many rows have no filter; tables without numbers need one later.
const SMALL_TABLE = 4;
const SMALL_LIST = 12;
const PAGE_SIZES = [25, 100, 500];
const PRINTED_ROWS = 1000;
// Tables with at most this many rows are not split between printed sheets.
const UNCUT_ROWS = 15;
// Characters: shorter texts stay on one line, longer ones are cut with a button for the rest.
const SHORT_TEXT = 28;
const LONG_TEXT = 140;
const SORT_MARKS = { none: "↕", ascending: "▲", descending: "▼" };

class TableView {
  constructor(id, title, data, place) {
    this.id = id;
    this.title = title;
    this.allColumns = data.columns.map((meta, i) => new ColumnView(meta, data.values[i]));
    this.columns = joinIntervals(this.allColumns);
    this.numRows = data.num_rows;
    this.best = new Set(data.best);
    this.state = window.corewiseState.tables[id] ||= {
      sort: -1, direction: 1, filter: "", typed: {}, page: 0, size: PAGE_SIZES[0], byColumn: false,
    };
    this.all = Uint32Array.from({ length: this.numRows }, (_, row) => row);
    this.shown = this.all;
    this.lines = null;
    this.build(place);
    this.refresh();
  }

  get small() {
    return this.numRows <= (this.columns.some(({ numeric }) => numeric) ? SMALL_TABLE : SMALL_LIST);
  }

  get paged() {
    return this.numRows > PAGE_SIZES[0] + 5;
  }

  build(place) {
    this.body = make("tbody");
    this.headings = this.columns.map((column, i) => this.heading(column, i));
    this.filterRow = make("tr", { class: "filters" }, this.best.size ? make("td") : null,
      ...this.columns.map((column, i) => make("td", {}, this.columnFilter(column, i))));
    const table = make("table", { class: this.sizeClass(), "aria-label": this.title },
      make("thead", {}, make("tr", {}, this.best.size ? this.bestHeading() : null, ...this.headings), this.filterRow), this.body);
    this.scroller = make("div", { class: "scroll", role: "region", "aria-label": `${this.title}, table` }, table);
    this.count = make("span", { class: "count", role: "status" });
    const [controls, pager, legend, hints] = [this.controls(), this.pager(), this.legend(), this.hints()];
    const order = this.small ? [this.scroller, legend, controls, hints] : [controls, this.scroller, pager, legend, hints];
    place.replaceChildren(...order.filter(Boolean));
    // A scrollable table must be reachable by keyboard.
    new ResizeObserver(() => {
      if (this.scroller.scrollWidth > this.scroller.clientWidth) this.scroller.tabIndex = 0;
      else this.scroller.removeAttribute("tabindex");
    }).observe(this.scroller);
    this.filterRow.hidden = !this.state.byColumn;
  }

  sizeClass() {
    const width = this.columns.length > 12 ? "very-wide" : this.columns.length > 8 ? "wide" : "";
    return this.numRows <= UNCUT_ROWS ? `${width} uncut`.trim() : width;
  }

  bestHeading() {
    return make("th", { scope: "col", class: "star" }, make("span", { class: "unseen" }, "Best"));
  }

  heading(column, i) {
    const mark = make("span", { class: "sort-mark", "aria-hidden": "true" });
    const unit = column.unit ? make("span", { class: "unit" }, ` (${column.unit})`) : null;
    const button = make("button", { type: "button", id: `${this.id}-sort-${i}`, title: column.meta.hint || null,
      onclick: () => this.sortBy(i) }, make("span", { dir: "auto" }, column.meta.title), unit, mark);
    return make("th", { scope: "col", class: column.numeric ? "number" : "text", "aria-sort": "none" }, button);
  }

  columnFilter(column, i) {
    const input = make("input", { type: "text", id: `${this.id}-filter-${i}`, size: 6, autocomplete: "off", spellcheck: "false",
      "aria-label": `Filter ${column.heading}`, placeholder: column.numeric ? ">10, 2..8" : "contains" });
    input.value = this.state.typed[i] || "";
    input.addEventListener("input", debounce(120, () => {
      this.state.typed[i] = input.value;
      this.changed();
    }));
    return input;
  }

  controls() {
    const copy = make("button", { type: "button", onclick: () => copyText(this.separated("\t"), copy) }, "Copy");
    const save = make("button", { type: "button", onclick: () => this.saveCsv() }, "Save CSV");
    if (this.small) return make("div", { class: "controls" }, copy, save);
    const input = make("input", { type: "search", id: `${this.id}-filter`, autocomplete: "off", spellcheck: "false" });
    input.value = this.state.filter;
    input.addEventListener("input", debounce(150, () => {
      this.state.filter = input.value;
      this.changed();
    }));
    const byColumn = make("button", { type: "button", id: `${this.id}-by-column`, "aria-expanded": String(this.state.byColumn) },
      "By column");
    byColumn.addEventListener("click", () => {
      this.state.byColumn = !this.state.byColumn;
      this.filterRow.hidden = !this.state.byColumn;
      byColumn.setAttribute("aria-expanded", String(this.state.byColumn));
      this.changed();
    });
    return make("div", { class: "controls" }, make("label", {}, "Filter ", input), byColumn, this.count, copy, save);
  }

  pager() {
    if (!this.paged) return null;
    const turn = (label, name, step) => make("button", { type: "button", id: `${this.id}-${name}`,
      onclick: () => this.turnTo(step(this.state.page)) }, label);
    this.turns = [
      turn("« First", "first", () => 0), turn("‹ Previous", "previous", (page) => page - 1),
      turn("Next ›", "next", (page) => page + 1), turn("Last »", "last", () => Infinity),
    ];
    this.where = make("span", { class: "where" });
    const sizes = make("select", { id: `${this.id}-size`, onchange: () => {
      this.state.size = Number(sizes.value);
      this.turnTo(0);
    } }, ...PAGE_SIZES.map((size) => make("option", { value: size, selected: size === this.state.size }, String(size))));
    return make("div", { class: "pager" }, this.turns[0], this.turns[1], this.where, this.turns[2], this.turns[3],
      make("label", {}, "Rows ", sizes));
  }

  legend() {
    return this.best.size ? make("p", { class: "legend" }, make("b", {}, "★"), " best, or no significant difference from the best") : null;
  }

  hints() {
    const explained = this.columns.filter((column) => column.meta.hint);
    if (!explained.length) return null;
    const pairs = explained.map((column) => make("div", {}, make("dt", {}, column.heading), make("dd", {}, column.meta.hint)));
    return make("details", { class: "hints", id: `${this.id}-hints` }, make("summary", {}, "What the columns mean"),
      make("dl", { class: "pairs" }, ...pairs));
  }

  sortBy(i) {
    const state = this.state;
    if (state.sort !== i) Object.assign(state, { sort: i, direction: 1 });
    else if (state.direction === 1) state.direction = -1;
    else Object.assign(state, { sort: -1, direction: 1 });
    this.changed();
    const order = { 1: "ascending", [-1]: "descending" }[state.direction];
    announce(state.sort < 0 ? "In the original order" : `Sorted by ${this.columns[i].heading}, ${order}`);
  }

  changed() {
    this.state.page = 0;
    this.refresh();
  }

  turnTo(page) {
    this.state.page = page;
    this.draw();
  }

  // Filters and sorts the rows, then draws one page of them.
  refresh() {
    const tests = [this.testAllTerms(this.state.filter)];
    this.columns.forEach((column, i) => {
      const test = this.state.byColumn ? column.test(this.state.typed[i] || "") : null;
      this.filterRow.querySelectorAll("input")[i].setAttribute("aria-invalid", String(test === undefined));
      tests.push(test);
    });
    const active = tests.filter(Boolean);
    const matching = active.length ? this.all.filter((row) => active.every((test) => test(row))) : this.all;
    const column = this.columns[this.state.sort];
    this.shown = column ? sortRows(matching, column, this.state.direction) : matching;
    this.headings.forEach((heading, i) => {
      const order = i !== this.state.sort ? "none" : this.state.direction > 0 ? "ascending" : "descending";
      heading.setAttribute("aria-sort", order);
      heading.querySelector(".sort-mark").textContent = SORT_MARKS[order];
    });
    this.draw();
  }

  // Every typed term must occur somewhere in the row.
  testAllTerms(typed) {
    const terms = typed.toLowerCase().split(/\s+/).filter(Boolean);
    if (!terms.length) return null;
    this.lines ||= Array.from(this.all, (row) =>
      `${this.best.has(row) ? "★ " : ""}${this.columns.map((column) => column.text(row)).join("\n")}`.toLowerCase());
    return (row) => terms.every((term) => this.lines[row].includes(term));
  }

  draw() {
    const size = this.paged ? this.state.size : this.shown.length;
    const lastPage = Math.max(0, Math.ceil(this.shown.length / Math.max(1, size)) - 1);
    this.state.page = Math.min(Math.max(0, this.state.page), lastPage);
    const from = this.state.page * size;
    this.fill(this.shown.subarray(from, from + size));
    const total = WHOLE.format(this.numRows);
    const rows = this.numRows === 1 ? "row" : "rows";
    this.count.textContent = this.shown.length === this.numRows ? `${total} ${rows}` : `${WHOLE.format(this.shown.length)} of ${total} ${rows}`;
    if (!this.paged) return;
    this.where.textContent = `Page ${WHOLE.format(this.state.page + 1)} of ${WHOLE.format(lastPage + 1)}`;
    this.turns.forEach((button, i) => { button.disabled = i < 2 ? this.state.page === 0 : this.state.page === lastPage; });
  }

  fill(rows) {
    const drawn = Array.from(rows, (row) => this.row(row));
    if (!drawn.length) {
      const span = this.columns.length + (this.best.size ? 1 : 0);
      const message = this.numRows ? "No row matches the filter." : "No rows.";
      drawn.push(make("tr", {}, make("td", { class: "nothing", colspan: span }, message)));
    }
    this.body.replaceChildren(...drawn);
  }

  row(row) {
    const best = this.best.has(row);
    const star = best ? [make("span", { "aria-hidden": "true" }, "★"), make("span", { class: "unseen" }, "best")] : [];
    return make("tr", { class: best ? "best" : null }, this.best.size ? make("td", { class: "star" }, ...star) : null,
      ...this.columns.map((column) => this.cell(column, row)));
  }

  cell(column, row) {
    const text = column.text(row);
    const value = column.value(row);
    if (column.high) return make("td", { class: "number" }, text);
    if (column.numeric) {
      const exact = typeof value === "number" ? `${value}${{ seconds: " s", bytes: " B" }[column.meta.kind] || ""}` : null;
      return make("td", { class: "number", title: exact === text ? null : exact }, text);
    }
    const shown = text.length <= LONG_TEXT ? [text] : cutText(text);
    return make("td", { class: text.length <= SHORT_TEXT ? "text short" : "text", dir: "auto" }, ...shown);
  }

  separated(mark) {
    const quote = (value) => {
      let text = value === null || value === undefined ? "" : String(value);
      // A spreadsheet would run such a text as a formula.
      if (typeof value === "string" && /^\s*[=+\-@]/.test(text)) text = `'${text}`;
      if (mark === "\t") return text.replace(/[\t\n]/g, " ");
      return /[",\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
    };
    const units = { seconds: " (s)", bytes: " (B)", percent: " (share)" };
    const titles = this.allColumns.map(({ meta, high }) => meta.title + (high ? ", low" : "") + (units[meta.kind] || (meta.unit ? ` (${meta.unit})` : "")));
    const lines = [[...titles, ...(this.best.size ? ["Best"] : [])].map(quote).join(mark)];
    for (const row of this.shown) {
      const cells = this.allColumns.map((column) => column.value(row));
      if (this.best.size) cells.push(this.best.has(row) ? "best" : "");
      lines.push(cells.map(quote).join(mark));
    }
    return `${lines.join("\n")}\n`;
  }

  saveCsv() {
    saveFile(`${this.id}.csv`, new Blob([this.separated(",")], { type: "text/csv" }));
  }

  beforePrint() {
    if (!this.paged) return;
    this.fill(this.shown.subarray(0, PRINTED_ROWS));
    if (this.shown.length <= PRINTED_ROWS) return;
    const note = `The first ${WHOLE.format(PRINTED_ROWS)} of ${WHOLE.format(this.shown.length)} rows. The page on a screen has all of them.`;
    this.body.append(make("tr", {}, make("td", { class: "nothing", colspan: this.columns.length + 1 }, note)));
  }

  afterPrint() {
    if (this.paged) this.draw();
  }
}

// Cuts a long text and adds a button that shows the rest.
function cutText(text) {
  const content = document.createTextNode(`${text.slice(0, LONG_TEXT - 20)}… `);
  const button = make("button", { type: "button", class: "more", "aria-expanded": "false" }, "all");
  button.addEventListener("click", () => {
    const open = button.getAttribute("aria-expanded") === "true";
    content.data = open ? `${text.slice(0, LONG_TEXT - 20)}… ` : `${text} `;
    button.setAttribute("aria-expanded", String(!open));
    button.textContent = open ? "all" : "less";
  });
  return [content, button];
}
