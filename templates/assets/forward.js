// Sends a reader of an old address on: to the section that the address names, or to the page that took this one's place.
"use strict";

(() => {
  const page = document.querySelector("a.forward");
  const links = new Map([...document.querySelectorAll(".moved li")].map((item) => [item.id, item.querySelector("a").href]));

  // An address that somebody cut in the middle of a `%` code is no reason to stop.
  const decoded = (text) => {
    try {
      return decodeURIComponent(text);
    } catch {
      return text;
    }
  };

  const go = () => {
    // What was never published, such as the number of a line, keeps its name: it may well be there.
    const address = links.get(decoded(location.hash.slice(1))) ?? (page && page.href + location.hash);
    // The old address leaves no trace in the history, where it would catch whoever goes back.
    if (address) location.replace(address);
  };

  go();
  addEventListener("hashchange", go);
})();
