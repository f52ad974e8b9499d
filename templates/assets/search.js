// The button that opens the search. All else is loaded with its first use. The button is made here, since without
// scripts it would be dead.
"use strict";

const { dataset: searchWords } = document.currentScript;
// Scripts run in the order in which they were asked for.
const script = (name) => new Promise((onload, onerror) => {
  document.head.append(make("script", "", [], { src: searchWords.index + name, onload, onerror, async: false }));
});
const finder = button("find", [], async () => {
  finder.onclick = null;
  document.head.append(make("link", "", [], { rel: "stylesheet", href: `${searchWords.index}../../search.css` }));
  try {
    await Promise.all(["../../search-rank.js", "core.js", "../../search-dialog.js"].map(script));
  } catch {
    finder.replaceWith(make("span", "", [searchWords.failed], { role: "alert" }));
  }
});
finder.title = finder.ariaLabel = searchWords.label;
finder.dataset.search = "";
if (searchWords.index) one(".tools").prepend(finder);
