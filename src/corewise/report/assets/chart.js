// Draws Vega-Lite specifications as SVG in the page's colours, which follow the theme without redrawing.
"use strict";
const NARROW_PX = 560;
// The printable width of A4 and Letter.
const PRINTED_PX = 680;
// The average width of a character in a label.
const CHARACTER_PX = 6.6;
// The height of axes and legend around the plot, and how far the first chart may shrink.
const AROUND_PLOT_PX = 115;
const SHORTEST_PX = 180;
const SHRINK_LIMIT = 0.6;
const FONT = getComputedStyle(document.documentElement).fontFamily;
// Maps the colours of specifications to the page's variables, which differ in the light and dark theme.
// Black and white stay, because text on coloured cells uses them.
const PAGE_COLOURS = {
  "#888888": "--ink-soft", "#999999": "--grey", "#222222": "--ink", "#fefefe": "--paper",
  "#0072b2": "--blue", "#d55e00": "--vermillion", "#009e73": "--green", "#cc79a7": "--purple",
  "#e69f00": "--orange", "#56b4e9": "--sky", "#f0e442": "--yellow",
};
const CATEGORIES = ["--blue", "--vermillion", "--green", "--purple", "--orange", "--sky", "--grey"];

function themeConfig(narrow) {
  const [ink, faint, rule, grid] = ["var(--ink)", "var(--ink-soft)", "var(--rule)", "var(--grid)"];
  const text = { labelColor: faint, titleColor: ink, labelFontSize: 12, titleFontSize: 12, titleFontWeight: 600 };
  return {
    background: "transparent", font: FONT, aria: false,
    view: { stroke: "transparent" },
    axis: { ...text, gridColor: grid, domainColor: rule, tickColor: rule, labelLimit: narrow ? 90 : 220 },
    legend: { ...text, ...(narrow ? { orient: "top", direction: "horizontal" } : {}) },
    header: text,
    title: { color: ink, subtitleColor: faint, fontSize: 13, anchor: "start" },
    style: { "guide-label": { fill: faint }, "guide-title": { fill: ink }, "group-title": { fill: ink } },
  };
}

const DEFAULTS = {
  mark: { color: "var(--blue)", tooltip: true }, text: { color: "var(--ink)" }, rule: { color: "var(--ink-soft)" },
  range: { category: CATEGORIES.map((name) => `var(${name})`) },
};

function merge(low, high) {
  const isGroup = (value) => value && typeof value === "object" && !Array.isArray(value);
  const result = { ...low };
  for (const [key, value] of Object.entries(high || {})) {
    result[key] = isGroup(value) && isGroup(result[key]) ? merge(result[key], value) : value;
  }
  return result;
}

// Replaces the colours of a specification by the page's variables; data stay unchanged.
function usePageColours(value, key) {
  if (key === "values" || key === "datasets") return value;
  if (typeof value === "string") {
    const name = PAGE_COLOURS[value.toLowerCase()];
    return name ? `var(${name})` : value;
  }
  if (Array.isArray(value)) return value.map((item) => usePageColours(item));
  if (!value || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, usePageColours(item, name)]));
}

// Limits the length of labels and the columns of legends to the available width.
function fitLabels(value, width_px) {
  if (Array.isArray(value)) return value.map((item) => fitLabels(item, width_px));
  if (!value || typeof value !== "object") return value;
  const result = {};
  for (const [key, item] of Object.entries(value)) {
    result[key] = key === "values" || key === "datasets" ? item : fitLabels(item, width_px);
  }
  if (value.axis && value.axis.labelLimit) result.axis = { ...result.axis, labelLimit: Math.min(value.axis.labelLimit, 0.35 * width_px) };
  const labels = value.field && value.legend !== null && value.scale && value.scale.domain;
  if (!Array.isArray(labels) || !labels.every((label) => typeof label === "string")) return result;
  const label_px = 40 + CHARACTER_PX * Math.min(34, Math.max(...labels.map((label) => label.length)));
  const columns = Math.max(1, Math.floor((width_px - 60) / label_px));
  const asked = (value.legend || {}).columns || (width_px < NARROW_PX ? labels.length : columns);
  const limit_px = Math.min((value.legend || {}).labelLimit || 240, width_px - 90);
  result.legend = { ...value.legend, labelLimit: limit_px, columns: Math.min(columns, asked) };
  return result;
}

// Fits the specification to the width: one view fills it, several views wrap.
function fitToWidth(spec, width_px) {
  const result = { ...spec };
  const encoding = spec.encoding || {};
  const several = spec.facet || spec.concat || spec.hconcat || spec.vconcat || spec.repeat || encoding.facet || encoding.row || encoding.column;
  if (!several) {
    if (typeof spec.width !== "object") Object.assign(result, { width: "container", autosize: { type: "fit-x", contains: "padding" } });
    return result;
  }
  const part_px = (((spec.spec || spec).width) || 300) + 90;
  const columns = Math.max(1, Math.floor(width_px / part_px));
  if (spec.hconcat && columns < spec.hconcat.length) {
    delete result.hconcat;
    result.concat = spec.hconcat;
    result.columns = columns;
  } else if (spec.columns || (spec.facet && spec.facet.field)) {
    result.columns = Math.min(columns, spec.columns || columns);
  } else if (encoding.facet) {
    result.encoding = { ...encoding, facet: { ...encoding.facet, columns: Math.min(columns, encoding.facet.columns || columns) } };
  }
  return result;
}

// Shrinks the first chart, within limits, so that answer and chart fit on the first screen.
function computeFirstHeight(height_px, drawing) {
  const top_px = drawing.getBoundingClientRect().top + scrollY;
  const room_px = innerHeight - top_px - AROUND_PLOT_PX;
  return Math.round(Math.min(height_px, Math.max(room_px, SHORTEST_PX, SHRINK_LIMIT * height_px)));
}

class ChartView {
  constructor(figure, data) {
    this.figure = figure;
    this.data = data;
    this.drawing = figure.querySelector(".drawing");
    this.view = null;
    this.width_px = 0;
    const redraw = debounce(200, () => {
      const width_px = this.drawing.clientWidth;
      const turned = (width_px < NARROW_PX) !== (this.width_px < NARROW_PX);
      if (this.view && width_px && (turned || (!this.filling && Math.abs(width_px - this.width_px) > 40))) this.draw();
    });
    new ResizeObserver(redraw).observe(this.drawing);
  }

  async draw() {
    this.width_px = this.drawing.clientWidth || 700;
    const narrow = this.width_px < NARROW_PX;
    const spec = fitToWidth(fitLabels(usePageColours(this.data.spec), this.width_px), this.width_px);
    this.filling = spec.width === "container";
    if (this.figure.closest(".answer") && typeof spec.height === "number" && !narrow) spec.height = computeFirstHeight(spec.height, this.drawing);
    if (spec.title === this.data.title) delete spec.title;
    spec.config = merge(merge(DEFAULTS, spec.config), themeConfig(narrow));
    const place = make("div", { class: this.filling ? "fill" : "own" });
    this.drawing.replaceChildren(place);
    const options = { mode: "vega-lite", renderer: "svg", actions: false, ast: true, defaultStyle: false, tooltip: showTooltip, hover: false };
    if (this.result) this.result.finalize();
    this.result = await window.vegaEmbed(place, spec, options);
    this.view = this.result.view;
    this.figure.dataset.drawn = "yes";
  }

  // Redraws at the width of a sheet; shrinking the screen version would shrink its text as well.
  beforePrint() {
    if (this.filling && this.view) this.view.signal("width", PRINTED_PX).run();
  }

  afterPrint() {
    if (this.filling && this.view) this.view.signal("width", this.drawing.clientWidth).run();
  }

  failed(error) {
    this.drawing.replaceChildren(make("p", { class: "alt" }, `${this.data.alt} (The chart could not be drawn: ${error.message})`));
    this.figure.dataset.drawn = "failed";
  }

  // Returns SVG in light colours without CSS variables, for papers and slides.
  async svgText() {
    const text = await this.view.toSVG();
    const root = document.documentElement;
    const theme = root.dataset.theme;
    root.dataset.theme = "light";
    const style = getComputedStyle(root);
    const resolved = text.replace(/var\((--[a-z-]+)\)/g, (_, name) => style.getPropertyValue(name).trim());
    root.dataset.theme = theme;
    return resolved;
  }

  async save(format) {
    const svg = new Blob([await this.svgText()], { type: "image/svg+xml" });
    if (format === "svg") return saveFile(`${this.figure.id}.svg`, svg);
    const image = new Image();
    const url = URL.createObjectURL(svg);
    await new Promise((done, fail) => { Object.assign(image, { onload: done, onerror: fail, src: url }); });
    const canvas = make("canvas", { width: image.width * 2, height: image.height * 2 });
    const pen = canvas.getContext("2d");
    pen.fillStyle = "#ffffff";
    pen.fillRect(0, 0, canvas.width, canvas.height);
    pen.drawImage(image, 0, 0, canvas.width, canvas.height);
    URL.revokeObjectURL(url);
    return canvas.toBlob((blob) => saveFile(`${this.figure.id}.png`, blob));
  }

  // Shows the data of the chart, one table per data set.
  showRows(place) {
    const sets = findDataSets(this.data.spec);
    if (!sets.length) place.textContent = "This chart has no data.";
    sets.forEach((rows, i) => {
      const part = make("div", { class: "grid" });
      place.append(part);
      const title = sets.length > 1 ? `${this.data.title}, data ${i + 1}` : `${this.data.title}, data`;
      new TableView(`${this.figure.id}-rows-${i}`, title, buildTable(rows, collectTitles(this.data.spec)), part);
    });
  }
}

function findDataSets(spec) {
  const found = [];
  (function walk(value) {
    if (!value || typeof value !== "object") return;
    if (value.data && Array.isArray(value.data.values)) found.push(value.data.values);
    for (const [key, item] of Object.entries(value)) {
      if (key === "datasets") found.push(...Object.values(item));
      else if (key !== "data") walk(item);
    }
  })(spec);
  return found.filter((rows) => rows.length && typeof rows[0] === "object");
}

function collectTitles(spec) {
  const titles = {};
  (function walk(value, key) {
    if (!value || typeof value !== "object" || key === "datasets" || key === "values") return;
    if (typeof value.field === "string" && typeof value.title === "string") titles[value.field] ||= value.title;
    Object.entries(value).forEach(([name, item]) => walk(item, name));
  })(spec, "");
  return titles;
}

function buildTable(rows, titles) {
  const keys = [...new Set(rows.flatMap((row) => Object.keys(row)))];
  const cell = (value) => (value && typeof value === "object" ? JSON.stringify(value) : value === undefined ? null : value);
  const values = keys.map((key) => rows.map((row) => cell(row[key])));
  const chooseFormat = (column) => (column.every((value) => value === null || typeof value === "number") ? "number" : "text");
  const columns = keys.map((key, i) => ({ key, title: titles[key] || key, kind: chooseFormat(values[i]), unit: "", hint: "" }));
  return { columns, values, num_rows: rows.length, best: [] };
}

// Shows a mark's values next to the pointer, as text and never as markup.
function showTooltip(_, event, item, value) {
  const box = document.getElementById("tooltip") || document.body.appendChild(make("div", { id: "tooltip", "aria-hidden": "true" }));
  if (value === null || value === undefined || value === "") {
    box.hidden = true;
    return;
  }
  const pairs = typeof value === "object" && !Array.isArray(value) ? Object.entries(value) : [["", value]];
  box.replaceChildren(make("dl", {}, ...pairs.flatMap(([name, text]) =>
    [name ? make("dt", {}, name) : null, make("dd", { dir: "auto" }, typeof text === "object" ? JSON.stringify(text) : String(text))])));
  box.hidden = false;
  const gap_px = 14;
  const left = event.clientX + gap_px + box.offsetWidth > innerWidth ? event.clientX - gap_px - box.offsetWidth : event.clientX + gap_px;
  const top = event.clientY + gap_px + box.offsetHeight > innerHeight ? event.clientY - gap_px - box.offsetHeight : event.clientY + gap_px;
  Object.assign(box.style, { left: `${Math.max(4, left)}px`, top: `${Math.max(4, top)}px` });
}
