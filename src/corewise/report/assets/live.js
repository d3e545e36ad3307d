// Reloads the page while a study runs, and keeps order, filters, open parts and scroll position.
"use strict";
const STATE_NAME = `corewise-page:${location.pathname}`;
const TICK_MS = 250;
// A page that is older than this many periods may belong to a study that ended.
const STALE_PERIODS = 3;

function findPlace() {
  const marks = [...document.querySelectorAll("main [id]")].filter((element) => element.matches("section, figure"));
  const top = marks.filter((element) => element.getBoundingClientRect().top <= 1).pop();
  const element = top || marks[0];
  return { id: element.id, offset_px: element.getBoundingClientRect().top };
}

function saveState() {
  const state = window.corewiseState;
  state.open = {};
  document.querySelectorAll("details[id]").forEach((element) => { state.open[element.id] = element.open; });
  state.place = findPlace();
  const focused = document.activeElement;
  state.focus = focused && focused.id ? { id: focused.id, at: focused.selectionStart ?? null } : null;
  try { sessionStorage.setItem(STATE_NAME, JSON.stringify(state)); } catch { /* Without storage, a reload resets the page. */ }
}

function loadState() {
  try {
    const saved = JSON.parse(sessionStorage.getItem(STATE_NAME));
    if (saved && saved.tables && saved.open) window.corewiseState = saved;
  } catch { /* There is no saved state. */ }
  const { open } = window.corewiseState;
  document.querySelectorAll("details[id]").forEach((element) => {
    if (element.id in open) element.open = open[element.id];
  });
}

// Returns a function that restores the scroll position, unless the reader has moved since.
function createPlaceKeeper() {
  const { place, focus } = window.corewiseState;
  let moved = !place;
  for (const name of ["wheel", "touchmove", "keydown", "pointerdown"]) {
    addEventListener(name, () => { moved = true; }, { once: true, passive: true });
  }
  const keep = () => {
    const element = !moved && document.getElementById(place.id);
    if (element) scrollTo({ top: scrollY + element.getBoundingClientRect().top - place.offset_px, behavior: "instant" });
    const focused = !moved && focus && document.getElementById(focus.id);
    if (!focused || document.activeElement === focused) return;
    focused.focus({ preventScroll: true });
    if (focus.at !== null && focused.setSelectionRange) focused.setSelectionRange(focus.at, focus.at);
  };
  keep();
  return keep;
}

// The time since the page was written. A reader's clock may be wrong: after the first rewrite, only local time counts.
function computePageAge(bar) {
  const made = bar.dataset.made;
  const seen = window.corewiseState.seen;
  if (!seen || seen.made !== made) window.corewiseState.seen = { made, at_ms: Date.now(), rewritten: Boolean(seen) };
  const { at_ms, rewritten } = window.corewiseState.seen;
  return Date.now() - (rewritten ? at_ms : Date.parse(made) || at_ms);
}

function formatRoughTime(age_ms) {
  const minutes = Math.max(1, Math.round(age_ms / 60000));
  const [num, unit] = minutes < 120 ? [minutes, "minute"] : [Math.round(minutes / 60), "hour"];
  return `${num} ${unit}${num === 1 ? "" : "s"}`;
}

function describeLiveState(period_s, age_ms, paused) {
  if (age_ms > STALE_PERIODS * period_s * 1000) {
    const stale = `The page has not been rewritten for ${formatRoughTime(age_ms)}: the study may have ended or been killed.`;
    return paused ? `${stale} Updating is paused.` : stale;
  }
  return paused ? "The study is running; updating is paused." : `The study is running; updating every ${Math.max(1, Math.round(period_s))} s.`;
}

function startLive() {
  const bar = document.getElementById("live");
  if (!bar) return;
  const state = window.corewiseState;
  const period_s = Number(bar.dataset.refresh);
  const status = document.getElementById("live-status");
  const button = document.getElementById("pause");
  let left_ms = period_s * 1000;
  const show = () => {
    const age_ms = computePageAge(bar);
    const text = describeLiveState(period_s, age_ms, state.paused);
    if (status.textContent !== text) status.textContent = text;
    const button_text = state.paused ? "Resume" : "Pause";
    if (button.textContent !== button_text) button.textContent = button_text;
    bar.classList.toggle("paused", Boolean(state.paused) || age_ms > STALE_PERIODS * period_s * 1000);
  };
  button.hidden = false;
  button.addEventListener("click", () => {
    state.paused = !state.paused;
    show();
  });
  show();
  setInterval(() => {
    show();
    const reading = document.hidden || state.paused || !getSelection().isCollapsed;
    if (reading) return;
    left_ms -= TICK_MS;
    if (left_ms > 0) return;
    saveState();
    location.reload();
  }, TICK_MS);
}
