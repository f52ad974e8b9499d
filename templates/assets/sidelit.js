// What scripts add to a page that is complete without them: the reader's theme, a language menu that keeps the
// section, contents that know where one is, and fewer stops for the keyboard.
"use strict";

(() => {
  const root = document.documentElement;
  const words = document.body.dataset;
  const bar = document.querySelector(".top");

  // ---- The theme: as the system, light, dark. The button exists only here, since without scripts it would be dead.
  const SVG = "http://www.w3.org/2000/svg";
  const DRAWINGS = {
    auto: ["M12 3a9 9 0 1 0 0 18a9 9 0 1 0 0-18z", "M12 3a9 9 0 0 1 0 18z"],
    light: ["M12 7.5a4.5 4.5 0 1 0 0 9a4.5 4.5 0 1 0 0-9z", "M12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.4 1.4M17.6 17.6L19 19M5 19l1.4-1.4M17.6 6.4L19 5"],
    dark: ["M20 14.5A8.5 8.5 0 0 1 9.5 4a8.5 8.5 0 1 0 10.5 10.5z"],
  };
  const ORDER = ["auto", "light", "dark"];

  const drawing = (theme) => {
    const svg = document.createElementNS(SVG, "svg");
    for (const [name, value] of Object.entries({ viewBox: "0 0 24 24", fill: "none", stroke: "currentColor", "stroke-width": "1.7", "stroke-linecap": "round", "aria-hidden": "true" })) {
      svg.setAttribute(name, value);
    }
    DRAWINGS[theme].forEach((d, index) => {
      const path = document.createElementNS(SVG, "path");
      path.setAttribute("d", d);
      if (theme === "auto" && index === 1) path.setAttribute("fill", "currentColor");
      svg.append(path);
    });
    return svg;
  };

  const themeSwitch = () => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "theme";
    const show = () => {
      const theme = root.dataset.theme ?? "auto";
      const name = `${words.themeLabel}: ${words[`theme${theme[0].toUpperCase()}${theme.slice(1)}`]}`;
      button.replaceChildren(drawing(theme));
      button.setAttribute("aria-label", name);
      button.title = name;
    };
    button.addEventListener("click", () => {
      const theme = ORDER[(ORDER.indexOf(root.dataset.theme ?? "auto") + 1) % ORDER.length];
      if (theme === "auto") delete root.dataset.theme;
      else root.dataset.theme = theme;
      try {
        if (theme === "auto") localStorage.removeItem("sidelit-theme");
        else localStorage.setItem("sidelit-theme", theme);
      } catch {
        // Storage may be forbidden; the choice then lasts as long as the page.
      }
      show();
    });
    show();
    document.querySelector(".tools")?.append(button);
  };

  // ---- Where the reader is: the section an address named, until the reader scrolls on; then the one at the top.
  const places = [...document.querySelectorAll("main section[id], main :is(h2, h3)[id], main tr[id], main .works > [id]")];
  let named = null;
  let address = null;

  // An address that somebody cut in the middle of a `%` code is no reason to stop.
  const decoded = (text) => {
    try {
      return decodeURIComponent(text);
    } catch {
      return text;
    }
  };
  const inView = (element) => {
    const box = element.getBoundingClientRect();
    return box.bottom > bar.offsetHeight && box.top < innerHeight;
  };
  const nameTarget = () => {
    if (location.hash === address) return;
    address = location.hash;
    const id = decoded(location.hash.slice(1));
    const target = id ? document.getElementById(id) : null;
    named = target && (target.closest("main section[id], tr[id]") ?? target);
  };
  const current = () => {
    if (named?.id && inView(named)) return named;
    if (scrollY < 8) return null;
    const sill = bar.offsetHeight + 12;
    let found = null;
    for (const place of places) {
      if (place.closest("details:not([open])")) continue;
      const box = place.getBoundingClientRect();
      if (box.height && box.top > sill) break;
      if (box.height) found = place;
    }
    return found;
  };

  const languages = [...document.querySelectorAll(".langs a")].map((link) => [link, link.getAttribute("href").split("#")[0]]);
  // A section has an entry in the panel, and another one where the page opens.
  const entries = Map.groupBy(document.querySelectorAll(".toc a"), (link) => decodeURIComponent(link.hash.slice(1)));
  const lastCrumb = document.querySelector(".chapter .crumbs ol");
  const here = lastCrumb && document.createElement("li");
  if (here) {
    here.className = "here";
    here.setAttribute("aria-hidden", "true");
    lastCrumb.append(here);
  }

  const follow = () => {
    const place = current();
    const id = place?.id ?? "";
    for (const [link, href] of languages) link.setAttribute("href", id ? `${href}#${id}` : href);
    // A comment block has no entry of its own in the contents: the definition it stands in has.
    const entry = entries.get(id) ?? entries.get(id.split("/")[0]);
    for (const links of entries.values()) {
      for (const link of links) {
        if (links === entry) link.setAttribute("aria-current", "location");
        else link.removeAttribute("aria-current");
      }
    }
    if (here) {
      const name = id.split("/")[0];
      here.classList.toggle("on", Boolean(name) && name !== "module");
      if (name && name !== "module") here.textContent = name;
    }
  };

  let waiting = false;
  const soon = () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      follow();
    });
  };

  // ---- The contents panel opens at its place, is walked by arrow keys, and closes as a menu does.
  const menus = [...document.querySelectorAll("details.menu")];
  const close = () => menus.forEach((menu) => { menu.open = false; });
  const middle = (box, element) => {
    const [outer, inner] = [box.getBoundingClientRect(), element.getBoundingClientRect()];
    box.scrollTop += inner.top - outer.top - (outer.height - inner.height) / 2;
  };
  for (const menu of menus) {
    const panel = menu.querySelector(".panel");
    menu.addEventListener("toggle", () => {
      if (!menu.open) return;
      follow();
      // Wide, each list scrolls by itself; narrow, the panel does, and the section is what one looks for there.
      for (const name of [".book", ".toc"]) {
        const list = panel.querySelector(name);
        const mark = list?.querySelector("[aria-current]");
        if (mark) middle(list.scrollHeight > list.clientHeight ? list : panel, mark);
      }
    });
    menu.addEventListener("focusout", ({ relatedTarget }) => {
      if (relatedTarget && !menu.contains(relatedTarget)) menu.open = false;
    });
    menu.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (!step || !menu.open) return;
      const stops = [...menu.querySelectorAll("summary, a")].filter((stop) => stop.checkVisibility());
      stops[stops.indexOf(document.activeElement) + step]?.focus();
      event.preventDefault();
    });
  }

  // ---- A box that can scroll is a stop for the keyboard only while it has something to scroll.
  const labels = new Map([...document.querySelectorAll("main [tabindex='0'][role='group']")].map((box) => [box, box.getAttribute("aria-label")]));
  const reachable = (boxes) => {
    for (const box of boxes) {
      if (box.scrollWidth > box.clientWidth) {
        box.tabIndex = 0;
        box.setAttribute("role", "group");
        box.setAttribute("aria-label", labels.get(box));
      } else {
        for (const name of ["tabindex", "role", "aria-label"]) box.removeAttribute(name);
      }
    }
  };
  // Either the box changes its width, or what it holds does: with the window, and once the fonts are there.
  const sizes = new ResizeObserver((entries) => {
    reachable(new Set(entries.map(({ target }) => (labels.has(target) ? target : target.parentElement))));
  });
  for (const box of labels.keys()) for (const part of [box, ...box.children]) sizes.observe(part);

  themeSwitch();
  nameTarget();
  follow();
  addEventListener("scroll", soon, { passive: true });
  addEventListener("resize", soon, { passive: true });
  addEventListener("hashchange", () => { nameTarget(); soon(); });
  // What folds or unfolds exchanges what stands at the top. The event does not bubble: it is caught on its way down.
  addEventListener("toggle", soon, { capture: true });
  // A hand can be ahead of the next frame: a link to another language is looked at again when it is used.
  for (const kind of ["pointerdown", "click"]) {
    addEventListener(kind, (event) => {
      if (!event.target.closest(".langs a")) return;
      nameTarget();
      follow();
    }, { capture: true });
  }
  for (const kind of ["wheel", "touchmove"]) addEventListener(kind, () => { named = null; }, { passive: true });
  addEventListener("keydown", (event) => {
    if (["PageDown", "PageUp", "Home", "End", "ArrowDown", "ArrowUp", " "].includes(event.key)) named = null;
    if (event.key === "Escape") {
      const open = menus.find((menu) => menu.open);
      close();
      open?.querySelector("summary").focus();
    }
  });
  addEventListener("click", (event) => {
    const menu = event.target.closest("details.menu");
    if (!menu || event.target.closest("a")) close();
  });
})();
