// Runs before the first paint, so that a chosen theme never flashes the other one, and before the stylesheets name
// the fonts, so that fewer words are shown in another face first. The theme's switch itself is in sidelit.js.
"use strict";

// ---- What all scripts share.
const one = (selector, within = document) => within.querySelector(selector);
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const make = (tag, className, parts = [], more = {}) => {
  const made = Object.assign(document.createElement(tag), { className, ...more });
  made.append(...parts);
  return made;
};
const button = (className, parts, onclick) => make("button", className, parts, { type: "button", onclick });
// Storage may be forbidden; a choice then lasts as long as the page.
const stored = (key, value) => {
  try {
    if (value === "") localStorage.removeItem(key);
    else if (value) localStorage.setItem(key, value);
    return localStorage.getItem(key);
  } catch {
    return null;
  }
};
// What an address names. One that somebody cut in the middle of a `%` code is no reason to stop.
const named = (hash) => {
  try {
    return document.getElementById(decodeURIComponent(hash.slice(1)));
  } catch {
    return null;
  }
};

const chosen = stored("sidelit-theme");
if (["light", "dark"].includes(chosen)) document.documentElement.dataset.theme = chosen;
// Whether the reader keeps the contents beside the page, or has put them away.
const contents = stored("sidelit-contents");
if (["open", "shut"].includes(contents)) document.documentElement.dataset.contents = contents;
// A page that was opened from a disk may use its fonts, but not ask for them ahead.
if (location.protocol !== "file:") {
  for (const href of document.currentScript.dataset.faces.split(" ")) {
    document.head.append(make("link", "", [], { rel: "preload", as: "font", type: "font/woff2", crossOrigin: "", href }));
  }
}
