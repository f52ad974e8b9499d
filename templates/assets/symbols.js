// Symbols: pointing at one lights every place where it stands and shows what it means. The rows of the notation are
// one stop for the keyboard, walked by arrows; the keys S and Shift+S walk the symbols that are in sight.
"use strict";

{
  const rows = new Map();
  for (const mark of all(".notation td:first-child [data-sym]")) rows.set(mark.dataset.sym, mark.closest("tr"));
  const list = [...new Set(rows.values())];
  const box = make("div", "gloss", [], { hidden: true, ariaLive: "polite" });
  document.body.append(box);
  const sill = one(".top").offsetHeight;

  let now = null;
  let byKey = false;
  let timer = 0;
  const later = (wait, mark) => {
    clearTimeout(timer);
    timer = setTimeout(light, wait, mark);
  };
  const light = (mark, key = false) => {
    clearTimeout(timer);
    byKey = key;
    if (mark === now) return;
    for (const each of all(".lit")) each.classList.remove("lit");
    now = mark;
    const keys = mark?.dataset.sym.split(" ") ?? [];
    for (const key of keys) for (const each of all(`[data-sym~="${key}"]`)) each.classList.add("lit");
    // In the list the meaning stands beside it.
    const told = keys.map((key) => rows.get(key)).filter((row) => row && !row.contains(mark));
    box.replaceChildren(...told.map((row) => make("p", "", row.cloneNode(true).cells)));
    box.hidden = !told[0];
    if (box.hidden) return;
    const { left, top, bottom } = mark.getBoundingClientRect();
    const above = top - box.offsetHeight - 8;
    const right = document.body.clientWidth - box.offsetWidth - 8;
    box.style.left = `${scrollX + Math.max(8, Math.min(left, right))}px`;
    box.style.top = `${scrollY + (above > sill ? above : bottom + 8)}px`;
  };

  const near = (target) => target.closest("main [data-sym]");
  addEventListener("pointerover", (event) => {
    const { target, pointerType } = event;
    if (pointerType === "touch" || (byKey && rests(event))) return;
    if (box.contains(target)) clearTimeout(timer);
    else later(near(target) ? 90 : 250, near(target));
  });
  addEventListener("click", ({ target }) => {
    if (!box.contains(target) && !target.closest("a")) later(0, near(target));
  });
  for (const row of list) {
    row.tabIndex = row === list[0] ? 0 : -1;
    row.onfocus = () => light(one("[data-sym]", row), true);
  }
  addEventListener("keydown", (event) => {
    const { key, target } = event;
    if (key === "Escape") light(null);
    const step = { ArrowDown: 1, ArrowUp: -1 }[key];
    if (step && list.includes(target)) {
      event.preventDefault();
      list[list.indexOf(target) + step]?.focus();
    }
    if (!/^s$/i.test(key) || !keyed(event)) return;
    const marks = all("main [data-sym]").filter((mark) => {
      const { top, bottom } = mark.getBoundingClientRect();
      return top > sill && bottom < innerHeight && mark.checkVisibility();
    });
    if (key === "S") marks.reverse();
    light(marks[marks.indexOf(now) + 1] ?? marks[0] ?? null, true);
  });
}
