// Sets the light or dark theme before anything is painted: the reader's choice, else the system's.
"use strict";
(() => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  let choice = "system";
  try { choice = localStorage.getItem("corewise-theme") || "system"; } catch { /* Storage may be forbidden. */ }
  const apply = () => {
    root.dataset.themeChoice = choice;
    root.dataset.theme = choice === "system" ? (system.matches ? "dark" : "light") : choice;
  };
  system.addEventListener("change", apply);
  window.corewiseTheme = (next) => {
    choice = next;
    try { localStorage.setItem("corewise-theme", next); } catch { /* Without storage, the choice lasts until the page closes. */ }
    apply();
  };
  root.classList.add("scripted");
  apply();
})();
