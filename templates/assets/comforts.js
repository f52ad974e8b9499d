// Comforts for those who read long: keys, a copy button on code, sections that fold. Each
// control is made here, since without scripts it would be dead.
"use strict";

// Whether a key is meant for the page: not while one types, not with a modifier, and not if the reader has said no.
const keyed = ({ target, ctrlKey, metaKey, altKey }) => {
  const typing = target.closest("[type=search], textarea, select, dialog");
  return !(typing || ctrlKey || metaKey || altKey || stored("sidelit-keys"));
};
// Whether a pointer stands still: where a page moves below it, it comes to something without being moved.
let pointed = "";
addEventListener("pointermove", ({ screenX, screenY }) => { pointed = `${screenX} ${screenY}`; });
const rests = ({ screenX, screenY }) => !pointed || pointed === `${screenX} ${screenY}`;

{
  const written = one("template.keys");
  const words = written.dataset;
  const dialog = make("dialog", "shortcuts", [written.content], { ariaLabel: words.title });
  written.after(dialog);
  const told = (control, word) => { control.ariaLabel = control.title = word; };

  // ---- Keys. A list of them opens by `?` and from the foot, where a reader can also switch them off.
  const turn = button("turn", [], () => {
    stored("sidelit-keys", stored("sidelit-keys") ? "" : "off");
    name();
  });
  const name = () => { turn.textContent = stored("sidelit-keys") ? words.on : words.off; };
  name();
  dialog.append(make("p", "", [turn, button("", [words.close], () => dialog.close())]));
  const help = () => dialog.showModal();
  one(".foot").append(button("help", [words.title], help));

  const places = all("main :is(section, h2, h3)[id], .works > [id]");
  const walk = (step) => {
    const sill = one(".top").offsetHeight + 13;
    const seen = places.filter((place) => place.checkVisibility());
    const beyond = (place) => (place.getBoundingClientRect().top - sill) * step > 13 - 13 * step;
    const from = seen.indexOf(document.activeElement);
    const place = from < 0 ? seen[step > 0 ? "find" : "findLast"](beyond) : seen[from + step];
    if (!place) return;
    place.tabIndex = -1;
    place.focus({ preventScroll: true });
    place.scrollIntoView();
  };
  const follow = (selector) => one(selector)?.click();
  const acts = {
    "/": () => follow("[data-search]"),
    "[": () => follow(".prev"),
    "]": () => follow(".next"),
    j: () => walk(1),
    k: () => walk(-1),
    "?": help,
  };
  addEventListener("keydown", (event) => {
    if (!acts[event.key] || !keyed(event)) return;
    event.preventDefault();
    acts[event.key]();
  });

  // ---- Who changes the language goes on at the same line of the section: all languages have the same ones.
  const READ = "sidelit-read";
  const lines = (hash) => {
    const found = all("main :is([id], p, li, tr):not(.badge, .aside, .original *)");
    const at = found.indexOf(named(hash)) + 1;
    return at ? found.slice(at) : [];
  };
  const past = (line) => {
    const { top, height } = line.getBoundingClientRect();
    return [one(".top").offsetHeight - top, height];
  };
  addEventListener("click", ({ target }) => {
    const below = lines(target.closest(".langs a")?.hash ?? "");
    const place = below.findIndex((line) => past(line)[1] > Math.max(0, past(line)[0]));
    if (place < 0) return;
    const [gone, height] = past(below[place]);
    stored(READ, `${place} ${gone / height}`);
  });
  const [place, part] = (stored(READ) ?? "").split(" ");
  stored(READ, "");
  addEventListener("load", () => {
    const line = part && lines(location.hash)[place];
    if (line) scrollBy({ top: past(line)[1] * part - past(line)[0], behavior: "instant" });
  });

  // ---- Code is copied without the numbers, the prompts and what was printed.
  for (const block of navigator.clipboard ? all("pre:is(.code, .sample)") : []) {
    const copy = button("copy", [], async () => {
      const text = block.cloneNode(true);
      for (const other of all(".num, .gp, .go, button", text)) other.remove();
      const left = text.textContent.trimEnd();
      await navigator.clipboard.writeText(one(".gp", block) ? left.replace(/\n+/g, "\n") : left);
      told(copy, words.copied);
      copy.classList.add("done");
    });
    told(copy, words.copy);
    block.append(copy);
  }

  // ---- A section with a name folds, and with a class all that is in it. What one searches for unfolds.
  for (const section of all(".chapter .sec:is(.is-class, .is-function)")) {
    const parts = [
      ...all(":scope > :not(.doc), :scope > .doc > :not(.acts, :is(h2, h3, h4):first-child)", section),
      ...all("main section").filter(({ id }) => id.startsWith(`${section.id}.`)),
    ];
    const turnTo = (shut) => {
      for (const part of parts) part.hidden = shut && "until-found";
      fold.textContent = shut ? words.unfold : words.fold;
      fold.ariaExpanded = !shut;
    };
    const fold = button("folding", [], () => turnTo(fold.ariaExpanded === "true"));
    for (const part of parts) part.onbeforematch = () => turnTo(false);
    turnTo(false);
    one(".acts", section).append(fold);
  }
}
