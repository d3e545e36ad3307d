// One column of a table: its values, their texts, their order and a test from what a reader typed.
"use strict";
const NUMERIC = new Set(["number", "percent", "bytes", "seconds"]);
const NATURAL = new Intl.Collator("en", { numeric: true, sensitivity: "base" });
const MANY_DISTINCT = 5000; // above it, sorting by the rules of a language takes too long to wait for
const COMPARISONS = {
  ">": (a, b) => a > b, "<": (a, b) => a < b, ">=": (a, b) => a >= b, "<=": (a, b) => a <= b,
  "=": (a, b) => a === b, "!=": (a, b) => a !== b,
};

class Column {
  constructor(meta, packed) {
    this.meta = meta;
    this.numeric = NUMERIC.has(meta.kind);
    this.distinct = packed.distinct || null;
    this.values = packed.distinct ? packed.places : packed;
    const distinct = this.distinct || this.values;
    const numbers = this.numeric ? distinct.filter((value) => typeof value === "number") : [];
    this.format = this.numeric ? numberFormat(meta, numbers) : { unit: meta.kind === "time" ? "UTC" : meta.unit, size: 1 };
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
    return this.meta.kind === "time" ? shownTime(value) : String(value);
  }

  text(row) {
    const text = this.textOf(this.value(row));
    if (!this.high || text === MISSING) return text;
    const high = this.high.value(row);
    return typeof high === "number" ? `${text}–${this.format.show(high)}` : text;
  }

  // Numbers that sort as the values do; NaN where there is none.
  sortRanks() {
    if (this.ranks) return this.ranks;
    const distinct = this.distinct || [...new Set(this.values)];
    const rankOf = new Map(distinct.map((value) => [value, typeof value === "number" ? value : NaN]));
    const words = distinct.filter((value) => typeof value === "string" || typeof value === "boolean");
    if (words.length && !this.numeric) {
      const texts = distinct.filter((value) => value !== null).map((value) => [value, this.textOf(value)]);
      const order = texts.length > MANY_DISTINCT
        ? (a, b) => (a[1] < b[1] ? -1 : Number(a[1] > b[1]))
        : (a, b) => NATURAL.compare(a[1], b[1]);
      texts.sort(order).forEach(([value], place) => rankOf.set(value, place));
    } else if (words.length) {
      rankOf.set("∞", Infinity).set("-∞", -Infinity);
    }
    this.ranks = Float64Array.from(this.values, (_, row) => rankOf.get(this.value(row)));
    return this.ranks;
  }

  // A test of a row; null when nothing is asked, undefined when it cannot be understood.
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
    if (sign.endsWith("=") && sign.length < 3 && sign !== ">=" && sign !== "<=") { // as shown, not to the last digit
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

// The columns to show: the low end of an interval takes its high end along.
function joinedIntervals(columns) {
  for (const column of columns) {
    column.high = column.meta.upto ? columns.find(({ meta }) => meta.key === column.meta.upto) : null;
  }
  const joined = new Set(columns.map(({ high }) => high));
  return columns.filter((column) => !joined.has(column));
}

// Row numbers in the order of a column, +1 or -1; rows without a value come last, ties keep their order.
function sortedRows(rows, column, direction) {
  const ranks = column.sortRanks();
  return rows.slice().sort((a, b) => {
    const [x, y] = [ranks[a], ranks[b]];
    if (x !== x || y !== y) return x !== x && y !== y ? a - b : x !== x ? 1 : -1;
    return x === y ? a - b : (x < y ? -direction : direction);
  });
}
