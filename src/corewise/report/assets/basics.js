// Shared helpers: create elements from values (never from markup), read data blocks, copy, save.
"use strict";
window.corewiseState = { tables: {}, open: {} };

function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function decodeBase64(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  return Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
}

async function readBlock(id) {
  const block = document.getElementById(`${id}-data`);
  if (block.dataset.encoding === "json") return JSON.parse(block.textContent);
  if (!window.DecompressionStream) throw new Error("this browser cannot unpack the data; use a browser of 2023 or later");
  const stream = new Blob([decodeBase64(block.textContent)]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

function announce(text) {
  document.getElementById("announcements").textContent = text;
}

async function copyText(text, button) {
  let done = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without clipboard permission, the older method copies a selection.
    const area = make("textarea", { class: "unseen" });
    area.value = text;
    document.body.append(area);
    area.select();
    done = document.execCommand("copy");
    area.remove();
    button.focus();
  }
  const label = button.dataset.label || button.textContent;
  button.dataset.label = label;
  button.textContent = done ? "Copied" : "Not copied";
  announce(button.textContent);
  setTimeout(() => { button.textContent = label; }, 1500);
}

function saveFile(name, blob) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

function debounce(wait_ms, action) {
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...values), wait_ms);
  };
}
