// The original beside its translation: for one section by a button of its own, for the whole page by one in the bar or
// the key O, which is remembered. The buttons are made here, since without scripts they would be dead; what they do is
// loaded with their first use.
"use strict";

{
  const { dataset: words } = document.currentScript;
  const KEY = "sidelit-original";
  const buttons = new Map();
  let ready = null;
  const load = async () => {
    await new Promise((onload, onerror) => {
      document.head.append(make("script", "", [], { src: words.script, onload, onerror }));
    });
    return originals(words);
  };
  const turn = async (on, ids) => {
    ready ??= load();
    (await ready)(on, ids);
    for (const [id, made] of buttons) if (!ids || ids[0] === id) made.ariaPressed = on;
    whole.ariaPressed = [...buttons.values()].every((made) => made.ariaPressed === "true");
  };
  // What cannot be shown here can still be visited.
  const toggle = (made, ids) => {
    const on = made.ariaPressed !== "true";
    return turn(on, ids).catch(() => { location.href = words.url + (ids ? `#${ids[0]}` : ""); });
  };

  const whole = button("beside", [], async () => {
    await toggle(whole);
    stored(KEY, whole.ariaPressed === "true" ? "on" : "");
    restore();
  });
  // A page that is loaded again is at first too short to be at the place at which it was left.
  const restore = () => { history.scrollRestoration = stored(KEY) && "onscrollend" in window ? "manual" : "auto"; };
  addEventListener("scrollend", () => {
    if (stored(KEY)) history.replaceState({ read: scrollY }, "");
  });
  whole.title = whole.ariaLabel = words.all;
  whole.ariaPressed = false;
  // Words that stand in their own language are not translated yet, and so there is nothing to show beside them.
  const WORDS = "p:not([lang], .acts, .aside, .badge, .eyebrow, .label, .origin)";
  for (const place of all(`main :is(section:has(> .doc > ${WORDS}), :is(.essay, .text) > :is(h2, h3):not([lang]))[id]`)) {
    const made = button("", [words.label], async () => {
      await toggle(made, [place.id]);
      made.scrollIntoView({ block: "nearest" });
    });
    made.title = words.title;
    made.ariaPressed = false;
    buttons.set(place.id, made);
    // Below a heading stands the line that cites it.
    (one(":scope > .doc > .acts", place) ?? place.nextElementSibling).append(made);
  }
  if (one(`:is(.doc, .essay, .text, .lead) > ${WORDS}`)) one(".langs").after(whole);
  if (stored(KEY)) {
    restore();
    turn(true).then(() => { if (history.state?.read) scrollTo({ top: history.state.read, behavior: "instant" }); }, () => {});
  }
  addEventListener("keydown", (event) => {
    if (event.key === "o" && keyed(event)) whole.click();
  });
}
