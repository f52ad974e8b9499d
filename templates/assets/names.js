// Names in code: pointing at one, moving the focus to it or a long press shows a card that says what it is. What the
// card says, and all that is needed to say it, is loaded with the first question.
"use strict";

// What a script of cards hands over: the title of its page, the language of that, a row for each definition.
let cards;
const { dataset: nameWords } = document.currentScript;
const loaded = (tag, more, done) => new Promise((onload, onerror) => {
  document.head.append(make(tag, "", [], { ...more, onload: () => onload(done?.()), onerror }));
});

{
  const card = make("div", "name-card", [], { hidden: true, id: "name-card", role: "tooltip" });
  let ready = null;
  let now = null;
  let timer = 0;
  const later = (wait, link) => {
    clearTimeout(timer);
    timer = setTimeout(show, wait, link);
  };
  const show = async (link) => {
    clearTimeout(timer);
    if (link === now) return;
    now?.removeAttribute("aria-describedby");
    card.hidden = true;
    now = link;
    if (!link) return;
    ready ??= Promise.all([
      loaded("script", { src: nameWords.script }),
      loaded("link", { rel: "stylesheet", href: nameWords.sheet }),
    ]);
    const parts = await ready.then(() => nameParts(link), () => null);
    // Meanwhile somebody may have gone on.
    if (!parts || link !== now) return;
    card.replaceChildren(...parts);
    one("main").append(card);
    card.hidden = false;
    link.setAttribute("aria-describedby", card.id);
    const { left, top, bottom } = link.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = card;
    const above = bottom + height + 6 > innerHeight && top > height + 60;
    const from = card.offsetParent.getBoundingClientRect();
    card.style.left = `${Math.max(8, Math.min(left, document.body.clientWidth - width - 8)) - from.left}px`;
    card.style.top = `${(above ? top - height - 6 : bottom + 6) - from.top}px`;
  };

  const near = (target) => target.closest("main .n");
  let pressed = false;
  addEventListener("pointerover", (event) => {
    const { target, pointerType } = event;
    // What a key has opened has the focus.
    if (pointerType === "touch" || (now && now === document.activeElement && rests(event))) return;
    const link = near(target);
    if (card.contains(target)) clearTimeout(timer);
    // What a symbol means is said by another box.
    else later(250, link && !one("[data-sym]", link) ? link : null);
  });
  addEventListener("focusin", ({ target }) => { if (target.matches("main .n:focus-visible")) show(target); });
  addEventListener("focusout", ({ target }) => { if (target === now) show(null); });
  addEventListener("pointerdown", ({ target, pointerType }) => {
    pressed = false;
    if (!card.contains(target)) show(null);
    const link = near(target);
    if (pointerType === "touch" && link) timer = setTimeout(() => { pressed = true; show(link); }, 450);
  });
  for (const kind of ["pointerup", "pointercancel"]) {
    addEventListener(kind, ({ pointerType }) => { if (pointerType === "touch") clearTimeout(timer); });
  }
  for (const kind of ["contextmenu", "click"]) {
    addEventListener(kind, (event) => { if (pressed && near(event.target)) event.preventDefault(); });
  }
  addEventListener("keydown", (event) => {
    const { key } = event;
    if (key === "Escape") show(null);
    if (!/^n$/i.test(key) || !keyed(event)) return;
    const sill = one(".top").offsetHeight;
    const links = all("main .n").filter((link) => {
      const { top, bottom } = link.getBoundingClientRect();
      return top > sill && bottom < innerHeight && link.checkVisibility();
    });
    if (key === "N") links.reverse();
    (links[links.indexOf(document.activeElement) + 1] ?? links[0])?.focus();
  });
}
