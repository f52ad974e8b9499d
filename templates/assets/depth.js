// What a browser adds to <details>, which open without this: for depth a switch for the whole page that is
// remembered, and paper on which nothing is folded; for all of them links that open what they lead to.
"use strict";

if (one("details.depth")) {
  const KEY = "sidelit-depth";
  const words = document.body.dataset;
  const folds = all("details.depth");
  const isOpen = () => folds.every((fold) => fold.open);
  const turn = (open) => folds.forEach((fold) => { fold.open = open; });

  // ---- The switch. It exists only here, since without scripts it would be dead.
  const label = make("span", "");
  const unfold = button("unfold", [label], () => {
    const open = !isOpen();
    const sill = one(".top").offsetHeight;
    const around = folds.find((fold) => {
      const { top, bottom } = fold.getBoundingClientRect();
      return top < sill && bottom > sill;
    });
    turn(open);
    stored(KEY, open ? "open" : "");
    show();
    // Who was reading what folds away is left at the line above it.
    if (!open) around?.scrollIntoView();
  });
  const show = () => {
    unfold.dataset.open = isOpen();
    label.textContent = unfold.title = isOpen() ? words.depthFold : words.depthShow;
  };
  // `toggle` does not bubble: it is caught on its way down.
  addEventListener("toggle", show, true);
  one(".tools")?.prepend(unfold);

  if (stored(KEY)) {
    turn(true);
    // All that was opened above it has moved the place that the address names.
    if (performance.getEntriesByType("navigation")[0]?.type === "navigate") named(location.hash)?.scrollIntoView();
  }
  show();

  // ---- On paper nothing can be opened. Where the stylesheet cannot see to that, this does.
  let closed = [];
  addEventListener("beforeprint", () => {
    closed = folds.filter((fold) => !fold.open);
    turn(true);
  });
  addEventListener("afterprint", () => closed.splice(0).forEach((fold) => { fold.open = false; }));
}

// ---- A link opens what it leads to, in depth or in another list. Browsers that do so themselves have done it, and
// scrolled there.
{
  const reveal = (hash) => {
    const target = named(hash);
    if (!target?.closest("details:not([open])")) return;
    for (let fold; (fold = target.closest("details:not([open])"));) fold.open = true;
    target.scrollIntoView();
  };
  reveal(location.hash);
  addEventListener("hashchange", () => reveal(location.hash));
  // A link to the place that the address already names changes nothing, and so nobody hears of it.
  addEventListener("click", ({ target }) => {
    const link = target.closest("a[href*='#']");
    if (link && link.pathname === location.pathname && link.search === location.search) reveal(link.hash);
  });
}
