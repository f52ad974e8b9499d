// The button that opens the search. All else is loaded with its first use. The button is made here, since without
// scripts it would be dead.
"use strict";

const { src: searchScript, dataset: searchWords } = document.currentScript;
const script = (src) => new Promise((onload, onerror) => {
  document.head.append(make("script", "", [], { src, onload, onerror, async: false }));
});
const finder = button("find", [], async () => {
  finder.onclick = null;
  const [sheet, rank, dialog] = ["search.css", "search-rank.js", "search-dialog.js"].map((name) => new URL(name, searchScript));
  document.head.append(make("link", "", [], { rel: "stylesheet", href: sheet }));
  try {
    await Promise.all([script(rank), script(`${searchWords.index}core.js`)]);
    await script(dialog);
  } catch {
    finder.replaceWith(make("span", "", [searchWords.failed], { role: "alert" }));
  }
});
finder.title = finder.ariaLabel = searchWords.label;
finder.dataset.search = "";
one(".tools").prepend(finder);
