// Starts the page: visible parts first, the rest when idle, everything before printing.
"use strict";
const VERY_LONG_TEXT = 900;
// Maps an element to { started: promise, view }.
const parts = new Map();

function startTable(section) {
  return readBlock(section.id).then((data) => new TableView(section.id, section.querySelector("h3").textContent, data, section.querySelector(".grid")));
}

async function startChart(figure) {
  const data = await readBlock(figure.id);
  const chart = new ChartView(figure, data);
  try { await chart.draw(); } catch (error) { chart.failed(error); return chart; }
  const rows = figure.querySelector("details.rows");
  const showOnce = () => { if (rows.open && !rows.lastElementChild.hasChildNodes()) chart.showRows(rows.lastElementChild); };
  rows.addEventListener("toggle", showOnce);
  showOnce();
  figure.querySelectorAll("[data-save]").forEach((button) => button.addEventListener("click", () => chart.save(button.dataset.save)));
  figure.querySelector(".actions").hidden = false;
  return chart;
}

function startPart(element) {
  if (!parts.has(element)) {
    const begin = element.matches("[data-table]") ? startTable : startChart;
    const part = { view: null };
    part.started = begin(element).then((view) => { part.view = view; }).catch((error) => {
      element.querySelector(".waiting")?.replaceChildren(`This part cannot be shown: ${error.message}.`);
    });
    parts.set(element, part);
  }
  return parts.get(element).started;
}

function startParts(elements, whenDone) {
  const observer = new IntersectionObserver((entries) => {
    for (const entry of entries.filter(({ isIntersecting }) => isIntersecting)) {
      observer.unobserve(entry.target);
      startPart(entry.target);
    }
  }, { rootMargin: "500px 0px" });
  elements.forEach((element) => observer.observe(element));
  const whenIdle = window.requestIdleCallback || ((action) => setTimeout(action, 50));
  const waiting = [...elements];
  (function next() {
    const element = waiting.find((one) => !parts.has(one));
    if (element) whenIdle(() => startPart(element).then(next));
    else Promise.all(elements.map(startPart)).then(whenDone);
  })();
}

async function startAll() {
  await Promise.all([...document.querySelectorAll("[data-chart], [data-table]")].map(startPart));
}

function addCopyButtons() {
  for (const code of document.querySelectorAll("main code")) {
    const text = code.textContent;
    // A single word is not a command.
    if (!/\s/.test(text.trim())) continue;
    const button = make("button", { type: "button", class: "copy", "aria-label": `Copy ${text}`, onclick: () => copyText(text, button) }, "Copy");
    code.after(" ", button);
  }
}

// Cuts very long texts and adds a button that shows the rest.
function clampLongText() {
  for (const element of document.querySelectorAll("main :is(p, li, dd, h1, h2, h3, figcaption, .reason)")) {
    if (element.textContent.length < VERY_LONG_TEXT || element.querySelector("p, li, dd")) continue;
    const content = make("span", { class: "clamped" });
    content.append(...element.childNodes);
    const button = make("button", { type: "button", class: "more", "aria-expanded": "false" }, "Show all");
    button.addEventListener("click", (event) => {
      // In a summary, the click would also fold the part.
      event.preventDefault();
      const open = !content.classList.toggle("clamped");
      button.setAttribute("aria-expanded", String(open));
      button.textContent = open ? "Show less" : "Show all";
    });
    element.append(content, button);
  }
}

function startTheme() {
  const button = document.getElementById("theme");
  const choices = ["system", "light", "dark"];
  const show = () => { button.textContent = `Theme: ${document.documentElement.dataset.themeChoice}`; };
  button.addEventListener("click", () => {
    const at = choices.indexOf(document.documentElement.dataset.themeChoice);
    window.corewiseTheme(choices[(at + 1) % choices.length]);
    show();
  });
  button.hidden = false;
  show();
}

function startPrinting() {
  const button = document.getElementById("print");
  button.addEventListener("click", () => startAll().then(() => print()));
  button.hidden = false;
  let opened = [];
  addEventListener("beforeprint", () => {
    startAll();
    opened = [...document.querySelectorAll("details[data-print-open]:not([open])")];
    opened.forEach((element) => { element.open = true; });
    parts.forEach(({ view }) => view?.beforePrint?.());
  });
  addEventListener("afterprint", () => {
    opened.forEach((element) => { element.open = false; });
    parts.forEach(({ view }) => view?.afterPrint?.());
  });
}

// Keeps the contents open where there is room, and folds them on a phone.
function startContents() {
  const contents = document.getElementById("contents");
  if (!("contents" in window.corewiseState.open)) contents.open = matchMedia("(min-width: 80rem)").matches;
  const links = new Map([...contents.querySelectorAll("a")].map((link) => [link.hash.slice(1), link]));
  const near = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) links.get(target.id).classList.toggle("here", isIntersecting);
    scrollListTo(contents.parentElement, [...contents.querySelectorAll("a.here")].pop());
  }, { rootMargin: "-15% 0px -70% 0px" });
  links.forEach((_, id) => near.observe(document.getElementById(id)));
}

// Scrolls the list of contents along with the reader, without moving the page.
function scrollListTo(list, link) {
  if (!link || list.scrollHeight <= list.clientHeight || list.matches(":hover, :focus-within")) return;
  const [box, own] = [list.getBoundingClientRect(), link.getBoundingClientRect()];
  const margin_px = box.height / 6;
  if (own.top < box.top + margin_px || own.bottom > box.bottom - margin_px) {
    list.scrollTop += own.top - box.top - (box.height - own.height) / 2;
  }
}

function startPage() {
  history.scrollRestoration = "manual";
  loadState();
  startTheme();
  startPrinting();
  startContents();
  addCopyButtons();
  clampLongText();
  startLive();
  addEventListener("pagehide", saveState);
  const keepPlace = createPlaceKeeper();
  startParts([...document.querySelectorAll("[data-table]")], keepPlace);
  const drawCharts = () => {
    startParts([...document.querySelectorAll("[data-chart]")], keepPlace);
    document.documentElement.classList.add("ready");
  };
  // Vega is loaded by DOMContentLoaded.
  if (document.readyState === "loading") addEventListener("DOMContentLoaded", drawCharts);
  else drawCharts();
}

startPage();
