// What a browser adds to depth, which is <details> and opens without this: a switch for the whole page that is
// remembered, links that open what they lead to in every browser, and paper on which nothing is folded.
"use strict";

(() => {
  const KEY = "sidelit-depth";
  const words = document.body.dataset;
  const folds = [...document.querySelectorAll("details.depth")];
  const isOpen = () => folds.every((fold) => fold.open);
  const turn = (open) => folds.forEach((fold) => { fold.open = open; });

  const remembered = () => {
    try {
      return localStorage.getItem(KEY) === "open";
    } catch {
      return false;
    }
  };
  const remember = (open) => {
    try {
      if (open) localStorage.setItem(KEY, "open");
      else localStorage.removeItem(KEY);
    } catch {
      // Storage may be forbidden; the choice then lasts as long as the page.
    }
  };

  // ---- A link opens what it leads to. Browsers that do so themselves have done it, and scrolled there.
  const decoded = (text) => {
    try {
      return decodeURIComponent(text);
    } catch {
      return text;
    }
  };
  const reveal = (hash) => {
    const target = document.getElementById(decoded(hash.slice(1)));
    const fold = target?.closest("details.depth:not([open])");
    if (!fold) return;
    fold.open = true;
    target.scrollIntoView();
  };

  // ---- The switch. It exists only here, since without scripts it would be dead.
  const SVG = "http://www.w3.org/2000/svg";
  const TO_OPEN = "M7 9l5-5l5 5M7 15l5 5l5-5";
  const TO_FOLD = "M7 4l5 5l5-5M7 20l5-5l5 5";

  const depthSwitch = () => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "unfold";
    const svg = document.createElementNS(SVG, "svg");
    for (const [name, value] of Object.entries({ viewBox: "0 0 24 24", fill: "none", stroke: "currentColor", "stroke-width": "1.7", "stroke-linecap": "round", "stroke-linejoin": "round", "aria-hidden": "true" })) {
      svg.setAttribute(name, value);
    }
    const path = svg.appendChild(document.createElementNS(SVG, "path"));
    const label = document.createElement("span");
    const show = () => {
      const open = isOpen();
      path.setAttribute("d", open ? TO_FOLD : TO_OPEN);
      label.textContent = button.title = open ? words.depthFold : words.depthShow;
    };
    button.addEventListener("click", () => {
      const open = !isOpen();
      const sill = document.querySelector(".top").offsetHeight;
      const around = folds.find((fold) => {
        const box = fold.getBoundingClientRect();
        return box.top < sill && box.bottom > sill;
      });
      turn(open);
      remember(open);
      show();
      // Who was reading what folds away is left at the line above it.
      if (!open) around?.scrollIntoView();
    });
    // `toggle` does not bubble: it is caught on its way down.
    addEventListener("toggle", show, { capture: true });
    button.append(svg, label);
    show();
    document.querySelector(".tools")?.prepend(button);
  };

  if (remembered()) {
    turn(true);
    // All that was opened above it has moved the place that the address names.
    const [way] = performance.getEntriesByType("navigation");
    if (location.hash && way?.type === "navigate") document.getElementById(decoded(location.hash.slice(1)))?.scrollIntoView();
  }
  depthSwitch();
  reveal(location.hash);
  addEventListener("hashchange", () => reveal(location.hash));
  // A link to the place that the address already names changes nothing, and so nobody hears of it.
  addEventListener("click", (event) => {
    const link = event.target.closest("a[href*='#']");
    if (link && link.pathname === location.pathname && link.search === location.search) reveal(link.hash);
  });

  // ---- On paper nothing can be opened. Where the stylesheet cannot see to that, this does.
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = folds.filter((fold) => !fold.open);
    turn(true);
  });
  addEventListener("afterprint", () => closed.splice(0).forEach((fold) => { fold.open = false; }));
})();
