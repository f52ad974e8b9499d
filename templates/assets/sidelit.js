// What scripts add to a page that is complete without them: the reader's theme, a language menu that keeps the
// section, contents that know where one is, and fewer stops for the keyboard. The contents themselves are in sidebar.js.
"use strict";

{
  const words = document.body.dataset;
  const bar = one(".top");

  // ---- The theme: as the system, light, dark. The button exists only here, since without scripts it would be dead.
  const { dataset } = document.documentElement;
  const NEXT = { auto: "light", light: "dark", dark: "auto" };
  const theme = button("theme", [], () => {
    const next = NEXT[dataset.theme ?? "auto"];
    if (next === "auto") delete dataset.theme;
    else dataset.theme = next;
    stored("sidelit-theme", dataset.theme ?? "");
    showTheme();
  });
  const showTheme = () => {
    const name = { light: words.themeLight, dark: words.themeDark }[dataset.theme] ?? words.themeAuto;
    theme.ariaLabel = theme.title = `${words.themeLabel}: ${name}`;
  };

  // ---- Where the reader is: the section an address named, until the reader scrolls on; then the one at the top.
  // A section without words begins at a line of the one before, which has its id.
  const places = all("main section[id], main :is(h2, h3)[id], main tr[id], main .works > [id], main .line:has(> .alias)");
  const called = (found) => (found?.matches(".line") ? one(".alias", found) : found)?.id ?? "";
  let place = null;
  let address = null;
  const nameTarget = () => {
    if (location.hash === address) return;
    address = location.hash;
    const target = named(address);
    const around = target?.closest("main section[id], tr[id]") ?? target;
    const reached = (each) => around.contains(each) && !(target.compareDocumentPosition(each) & Node.DOCUMENT_POSITION_FOLLOWING);
    place = target && (places.findLast(reached) ?? around);
  };
  const current = () => {
    const box = called(place) && place.getBoundingClientRect();
    if (box && box.bottom > bar.offsetHeight && box.top < innerHeight) return place;
    if (scrollY < 8) return null;
    let found = null;
    for (const each of places) {
      if (each.closest("details:not([open])")) continue;
      const { height, top } = each.getBoundingClientRect();
      if (height && top > bar.offsetHeight + 12) break;
      if (height) found = each;
    }
    return found;
  };

  const languages = all(".langs a").map((link) => [link, link.getAttribute("href").split("#")[0]]);
  // A section has an entry in the panel, and another one where the page opens.
  const entries = Map.groupBy(all(".toc a"), (link) => decodeURIComponent(link.hash.slice(1)));
  // What a lesson shows of a chapter belongs to the heading above it.
  let last = [];
  for (const { id } of all(".course [id]")) {
    last = entries.get(id) ?? last;
    entries.set(id, last);
  }
  const here = make("li", "here");
  here.ariaHidden = "true";
  one(".chapter .crumbs ol")?.append(here);

  let waiting = false;
  const follow = () => {
    waiting = false;
    const id = called(current());
    for (const [link, href] of languages) link.href = id ? `${href}#${id}` : href;
    // A comment block has no entry of its own in the contents: the definition it stands in has, or one around that.
    const name = id.split("/")[0];
    let entry = entries.get(id);
    for (let each = name; each && !entry; each = each.replace(/\.?[^.]*$/, "")) entry = entries.get(each);
    for (const links of entries.values()) {
      for (const link of links) link.ariaCurrent = links === entry ? "location" : null;
    }
    const inside = name && name !== "module";
    here.classList.toggle("on", inside);
    if (inside) here.textContent = name;
  };
  const soon = () => {
    if (!waiting) requestAnimationFrame(follow);
    waiting = true;
  };

  // ---- A box that can scroll is a stop for the keyboard only while it has something to scroll.
  const labels = new Map(all("main [tabindex='0'][role='group']").map((box) => [box, box.ariaLabel]));
  // Either the box changes its width, or what it holds does: with the window, and once the fonts are there.
  const sizes = new ResizeObserver((seen) => {
    for (const box of new Set(seen.map(({ target }) => (labels.has(target) ? target : target.parentElement)))) {
      const scrolls = box.scrollWidth > box.clientWidth;
      if (scrolls) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
      box.role = scrolls ? "group" : null;
      box.ariaLabel = scrolls ? labels.get(box) : null;
    }
  });
  for (const box of labels.keys()) for (const part of [box, ...box.children]) sizes.observe(part);

  one(".tools")?.append(theme);
  showTheme();
  nameTarget();
  follow();
  for (const kind of ["scroll", "resize"]) addEventListener(kind, soon, { passive: true });
  addEventListener("hashchange", () => { nameTarget(); soon(); });
  // The contents open at the section one is in.
  one(".panel")?.addEventListener("toggle", follow);
  // What folds or unfolds exchanges what stands at the top. The event does not bubble: it is caught on its way down.
  addEventListener("toggle", soon, true);
  // A hand can be ahead of the next frame: a link to another language is looked at again when it is used.
  for (const kind of ["pointerdown", "click"]) {
    addEventListener(kind, ({ target }) => {
      if (!target.closest(".langs a")) return;
      nameTarget();
      follow();
    }, true);
  }
  for (const kind of ["wheel", "touchmove"]) addEventListener(kind, () => { place = null; }, { passive: true });
  addEventListener("keydown", ({ key }) => {
    if (/^(Page|Home|End|Arrow(Down|Up)|\s$)/.test(key)) place = null;
  });
}
