// Symbols: pointing at one lights every place where it stands and shows what it means. The rows of the notation are
// one stop for the keyboard, walked by arrows; the keys S and Shift+S walk the symbols that are in sight.
"use strict";

{
  const rows = new Map();
  for (const row of all(".notation tbody tr")) {
    for (const mark of all("[data-sym]", row.cells[0])) if (!rows.has(mark.dataset.sym)) rows.set(mark.dataset.sym, row);
  }
  const box = make("div", "gloss", [], { hidden: true, ariaLive: "polite" });
  document.body.append(box);

  let now = null;
  let timer = 0;
  const later = (what, wait) => {
    clearTimeout(timer);
    timer = setTimeout(what, wait);
  };
  const dark = () => {
    clearTimeout(timer);
    for (const mark of all(".lit")) mark.classList.remove("lit");
    box.hidden = true;
    now = null;
  };
  const light = (mark) => {
    if (mark === now) return;
    dark();
    const keys = mark.dataset.sym.split(" ");
    for (const key of keys) for (const each of all(`[data-sym~="${key}"]`)) each.classList.add("lit");
    now = mark;
    // In the list the meaning stands beside it.
    const told = mark.closest(".notation") ? [] : keys.map((key) => rows.get(key)).filter(Boolean);
    box.replaceChildren(...told.map((row) => {
      const cells = [...row.cells].map((cell) => make("span", "", [...cell.cloneNode(true).childNodes]));
      return make("p", "", cells);
    }));
    box.hidden = !told.length;
    const { left, top, bottom } = mark.getBoundingClientRect();
    const { offsetWidth, offsetHeight } = box;
    const above = top - offsetHeight - 8;
    box.style.left = `${scrollX + Math.max(8, Math.min(left, document.body.clientWidth - offsetWidth - 8))}px`;
    box.style.top = `${scrollY + (above > one(".top").offsetHeight ? above : bottom + 8)}px`;
  };

  addEventListener("pointerover", ({ target, pointerType }) => {
    if (pointerType === "touch") return;
    const mark = target.closest("main [data-sym]");
    if (mark) later(() => light(mark), 90);
    else if (box.contains(target)) clearTimeout(timer);
    else later(dark, 250);
  });
  addEventListener("click", ({ target }) => {
    const mark = target.closest("main [data-sym]");
    if (mark && !target.closest("a")) light(mark);
    else if (!box.contains(target)) dark();
  });

  const list = [...new Set(rows.values())];
  list.forEach((row, place) => { row.tabIndex = place ? -1 : 0; });
  addEventListener("focusin", ({ target }) => {
    if (list.includes(target)) light(one("[data-sym]", target));
  });
  addEventListener("keydown", (event) => {
    const { key, target } = event;
    if (key === "Escape") dark();
    const step = { ArrowDown: 1, ArrowUp: -1 }[key];
    const next = list[list.indexOf(target) + step];
    if (list.includes(target) && step) {
      next?.focus();
      event.preventDefault();
    }
    const turn = { s: 1, S: -1 }[key];
    if (!turn || !keyed(event)) return;
    const marks = all("main [data-sym]").filter((mark) => {
      const { top, bottom } = mark.getBoundingClientRect();
      return top > one(".top").offsetHeight && bottom < innerHeight && mark.checkVisibility();
    });
    const seen = marks.indexOf(now);
    const mark = seen < 0 ? marks.at(turn > 0 ? 0 : -1) : marks[(seen + turn + marks.length) % marks.length];
    if (mark) light(mark);
  });
}
