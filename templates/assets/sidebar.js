// The contents beside a page: what a page does not list itself comes from a script that all pages share. A field filters
// them, and a reader may keep them open or put them away. The drawer itself is the browser's.
"use strict";

if (one(".panel")) {
  const panel = one(".panel");
  const words = panel.dataset;
  const menu = one(".menu");
  const root = document.documentElement.dataset;
  const drawn = () => panel.matches(":popover-open");
  const close = () => drawn() && panel.hidePopover();

  // ---- The lists. They are loaded when somebody sees the contents; where they are not to be had, the links do.
  const list = (rows) => make("ul", "", rows.map(([url, label, lang, number, lesson, labs]) => {
    const link = make("a", "", number ? [make("span", "number", [number]), " ", label] : [label], { href: searchWords.pages + url });
    if (lang) link.lang = lang;
    if (lesson) link.dataset.lesson = lesson;
    return make("li", "", [link, ...(labs[0] ? [list(labs)] : [])]);
  }));
  const folded = (said, lang, inside) => {
    const summary = make("summary", "", said);
    if (lang) summary.lang = lang;
    return make("details", "group", [summary, ...inside]);
  };
  const inner = ([label, lang, rows]) => (label ? folded([make("span", "", [label])], lang, [list(rows)]) : list(rows));
  const fill = () => {
    for (const link of all("a.group", panel)) {
      const [part, place] = link.hash.match(/\d+/g);
      const inside = place ? [list(listed[part][place][2])] : listed[part].map(inner);
      const focused = link === document.activeElement;
      const group = folded([...link.childNodes], link.lang, inside);
      link.replaceWith(group);
      if (focused) group.firstChild.focus();
    }
    // Whoever marks the lessons that are finished sees those that have come.
    dispatchEvent(new Event("storage"));
  };
  let loads;
  const filled = () => (loads ??= new Promise((onload, onerror) => {
    document.head.append(make("script", "", [], { src: words.list, onload, onerror }));
  }).then(fill, () => {}));

  // ---- They open at the page and the section one is in.
  const settle = () => {
    const marks = all("[aria-current]", panel).filter((mark) => mark.checkVisibility());
    if (!marks[0]) return;
    const [outer, mark] = [panel, marks.at(drawn() ? 0 : -1)].map((each) => each.getBoundingClientRect());
    if (mark.bottom > outer.bottom || mark.top < outer.top + 60) panel.scrollTop += mark.top - outer.top - outer.height / 3;
  };
  new ResizeObserver(() => {
    if (panel.offsetWidth && words.list && one("a.group", panel)) filled().then(settle);
  }).observe(panel);
  panel.addEventListener("toggle", () => {
    const toc = one(".toc", panel);
    if (toc) toc.open = drawn();
    settle();
  });
  panel.addEventListener("focusout", ({ relatedTarget }) => {
    if (relatedTarget && relatedTarget !== menu && !panel.contains(relatedTarget)) close();
  });
  panel.addEventListener("click", ({ target }) => target.closest("a") && close());
  const walk = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const stops = [menu, ...all("summary, a", panel)].filter((stop) => stop.checkVisibility());
    const at = stops.indexOf(document.activeElement);
    if (!step || at < 0 || (at === 0 && !drawn())) return;
    stops[at + step]?.focus();
    event.preventDefault();
  };
  for (const each of [panel, menu]) each.addEventListener("keydown", walk);

  // ---- Kept open, or put away: wherever there is room, until the reader says otherwise.
  const turn = (to) => {
    close();
    root.contents = to;
    stored("sidelit-contents", to);
  };
  const hide = button("hide", [], () => {
    turn("shut");
    menu.focus();
  });
  const keep = button("keep", [], () => {
    turn("open");
    hide.focus();
  });
  hide.title = hide.ariaLabel = words.hide;
  keep.title = keep.ariaLabel = words.keep;

  // ---- The filter: what holds the letters that one types; where nothing does, the pages that the search finds.
  const field = make("input", "filter", [], { type: "search", placeholder: words.filter, ariaLabel: words.filter });
  const before = new Map();
  const narrow = (wanted, found = []) => {
    const pages = new Set(found.map(({ address }) => new URL(searchWords.pages + address, location).href));
    const meant = (item) => item.textContent.toLowerCase().includes(wanted) || all("a", item).some(({ href }) => pages.has(href));
    for (const item of all("li", panel)) item.hidden = !meant(item);
    for (const group of all(".group", panel)) {
      if (!before.has(group)) before.set(group, group.open);
      group.open = wanted || before.get(group);
      group.hidden = !one("li:not([hidden])", group);
    }
    if (!wanted) before.clear();
  };
  field.oninput = async () => {
    const wanted = field.value.toLowerCase();
    await filled();
    if (field.value.toLowerCase() !== wanted) return;
    narrow(wanted);
    if (one("li:not([hidden])", panel) || !searchWords.index) return;
    // Where the index cannot be loaded, the letters have to do; meanwhile somebody may have typed on.
    const { found } = await searchAnswers(wanted).catch(() => ({ found: [] }));
    if (field.value.toLowerCase() === wanted) narrow(wanted, found);
  };
  one(".past", panel).after(make("div", "seek", [field, keep, hide]));
}
