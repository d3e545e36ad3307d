// One column of a table: values, displayed texts, sort order, and the filter that a reader typed.
"use strict";
const NUMERIC = new Set(["number", "percent", "bytes", "seconds"]);
const NATURAL = new Intl.Collator("en", { numeric: true, sensitivity: "base" });
// With more distinct texts than this, language-aware sorting takes too long.
const MANY_DISTINCT = 5000;
const COMPARISONS = {
  ">": (a, b) => a > b, "<": (a, b) => a < b, ">=": (a, b) => a >= b, "<=": (a, b) => a <= b,
  "=": (a, b) => a === b, "!=": (a, b) => a !== b,
};

class ColumnView {
  constructor(meta, packed) {
    this.meta = meta;
    this.numeric = NUMERIC.has(meta.kind);
    this.distinct = packed.distinct || null;
    this.values = packed.distinct ? packed.places : packed;
    const distinct = this.distinct || this.values;
    const numbers = this.numeric ? distinct.filter((value) => typeof value === "number") : [];
    this.format = this.numeric ? chooseNumberFormat(meta, numbers) : { unit: meta.kind === "time" ? "UTC" : meta.unit, size: 1 };
    this.ranks = null;
  }

  get unit() {
    return this.format.unit === this.meta.title ? "" : this.format.unit;
  }

  get heading() {
    return this.unit ? `${this.meta.title} (${this.unit})` : this.meta.title;
  }

  value(row) {
    return this.distinct ? this.distinct[this.values[row]] : this.values[row];
  }

  textOf(value) {
    if (value === null || value === undefined) return MISSING;
    if (typeof value === "boolean") return value ? "yes" : "no";
    if (typeof value === "number" && this.numeric) return this.format.show(value);
    return this.meta.kind === "time" ? formatTime(value) : String(value);
  }

  text(row) {
    const text = this.textOf(this.value(row));
    if (!this.high || text === MISSING) return text;
    const high = this.high.value(row);
    return typeof high === "number" ? `${text}–${this.format.show(high)}` : text;
  }

  // Numbers that sort like the values; NaN where a value is missing.
  sortRanks() {
    if (this.ranks) return this.ranks;
    const distinct = this.distinct || [...new Set(this.values)];
    const rankOf = new Map(distinct.map((value) => [value, typeof value === "number" ? value : NaN]));
    const texts = distinct.filter((value) => typeof value === "string" || typeof value === "boolean");
    if (texts.length && !this.numeric) {
      const pairs = distinct.filter((value) => value !== null).map((value) => [value, this.textOf(value)]);
      const order = pairs.length > MANY_DISTINCT
        ? (a, b) => (a[1] < b[1] ? -1 : Number(a[1] > b[1]))
        : (a, b) => NATURAL.compare(a[1], b[1]);
      pairs.sort(order).forEach(([value], place) => rankOf.set(value, place));
    } else if (texts.length) {
      rankOf.set("∞", Infinity).set("-∞", -Infinity);
    }
    this.ranks = Float64Array.from(this.values, (_, row) => rankOf.get(this.value(row)));
    return this.ranks;
  }

  // A test of a row; null for an empty filter, undefined for one that cannot be parsed.
  test(typed) {
    const text = typed.trim();
    if (!text) return null;
    const range = this.numeric && /^(-?[\d.,]+)\s*(?:\.\.|–|to)\s*(-?[\d.,]+)$/.exec(text);
    if (range) {
      const [low, high] = [readNumber(range[1]), readNumber(range[2])];
      return (row) => this.scaled(row) >= low && this.scaled(row) <= high;
    }
    const asked = /^(>=|<=|!=|>|<|=)\s*(.+)$/.exec(text);
    if (asked && this.numeric) return this.numberTest(asked[1], readNumber(asked[2]));
    if (asked && !asked[1].includes("<") && !asked[1].includes(">")) {
      const wanted = asked[2].toLowerCase();
      return (row) => COMPARISONS[asked[1]](this.text(row).toLowerCase(), wanted);
    }
    if (/^[<>=!]+$/.test(text)) return undefined;
    const part = text.toLowerCase();
    return (row) => this.text(row).toLowerCase().includes(part);
  }

  numberTest(sign, wanted) {
    if (Number.isNaN(wanted)) return undefined;
    const isWanted = COMPARISONS[sign];
    // Equality compares the displayed text, not the last digit.
    if (sign.endsWith("=") && sign.length < 3 && sign !== ">=" && sign !== "<=") {
      const shown = this.textOf(wanted * this.format.size);
      return (row) => isWanted(this.text(row), shown);
    }
    return (row) => isWanted(this.scaled(row), wanted);
  }

  scaled(row) {
    const value = this.value(row);
    return typeof value === "number" ? value / this.format.size : NaN;
  }
}

function readNumber(text) {
  return !/\d/.test(text) ? NaN : Number(text.replace(/,/g, "").replace(/\s*[%a-zµ/]+$/i, ""));
}

// The columns to show: the two ends of an interval share one column.
function joinIntervals(columns) {
  for (const column of columns) {
    column.high = column.meta.upto ? columns.find(({ meta }) => meta.key === column.meta.upto) : null;
  }
  const joined = new Set(columns.map(({ high }) => high));
  return columns.filter((column) => !joined.has(column));
}

// Sorts row numbers by a column, ascending (+1) or descending (-1); missing values come last, ties keep their order.
function sortRows(rows, column, direction) {
  const ranks = column.sortRanks();
  return rows.slice().sort((a, b) => {
    const [x, y] = [ranks[a], ranks[b]];
    if (x !== x || y !== y) return x !== x && y !== y ? a - b : x !== x ? 1 : -1;
    return x === y ? a - b : (x < y ? -direction : direction);
  });
}
