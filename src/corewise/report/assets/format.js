// Formats values: four significant digits, one unit per column, a dash for missing values.
"use strict";
const MISSING = "–";
const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const SUPERSCRIPTS = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };
const SCALE_SAMPLES = 500;
const SCALES = {
  seconds: [["s", 1], ["ms", 1e-3], ["µs", 1e-6], ["ns", 1e-9]],
  bytes: [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10], ["B", 1]],
};

function formatNumber(value) {
  const size = Math.abs(value);
  if (value === 0) return "0";
  if (size >= 1e12 || size < 1e-4) {
    const [digits, exponent] = value.toExponential(3).split("e");
    return `${digits}×10${[...exponent.replace("+", "")].map((char) => SUPERSCRIPTS[char]).join("")}`;
  }
  return size >= 999.95 ? WHOLE.format(value) : value.toPrecision(4);
}

// The largest unit in which the median is at least 1; the whole column uses it.
function chooseScale(kind, numbers) {
  const scales = SCALES[kind];
  // A few hundred values are enough to estimate the median.
  const stride = Math.ceil(numbers.length / SCALE_SAMPLES);
  const some = numbers.filter((_, i) => i % stride === 0);
  const sizes = some.map(Math.abs).filter((size) => size > 0).sort((a, b) => a - b);
  const middle = sizes.length ? sizes[sizes.length >> 1] : scales[0][1];
  return scales.find(([, size]) => middle >= size) || scales[scales.length - 1];
}

function formatTime(value) {
  const text = typeof value === "number" ? new Date(value * 1000).toISOString() : String(value);
  return text.replace("T", " ").replace(/(\.\d+)?(Z|\+00:00)$/, "");
}

// The unit of a column, the size of that unit, and a function that formats one number.
function chooseNumberFormat(column, numbers) {
  if (column.kind === "percent") return { unit: "%", size: 0.01, show: (value) => (value * 100).toFixed(1) };
  if (column.kind === "seconds" || column.kind === "bytes") {
    const [unit, size] = chooseScale(column.kind, numbers);
    const whole = size === 1 && numbers.every(Number.isInteger);
    return { unit, size, show: (value) => (whole ? WHOLE.format(value) : formatNumber(value / size)) };
  }
  const whole = numbers.every(Number.isInteger);
  return { unit: column.unit, size: 1, show: whole ? (value) => WHOLE.format(value) : formatNumber };
}
