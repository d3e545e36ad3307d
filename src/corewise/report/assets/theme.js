// Light or dark before anything is painted: what the reader chose here, else what the system asks for.
"use strict";
(() => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  let choice = "system";
  try { choice = localStorage.getItem("corewise-theme") || "system"; } catch { /* storage may be forbidden */ }
  const apply = () => {
    root.dataset.themeChoice = choice;
    root.dataset.theme = choice === "system" ? (system.matches ? "dark" : "light") : choice;
  };
  system.addEventListener("change", apply);
  window.corewiseTheme = (next) => {
    choice = next;
    try { localStorage.setItem("corewise-theme", next); } catch { /* then it lasts as long as the page */ }
    apply();
  };
  root.classList.add("scripted");
  apply();
})();
