// The button that opens the search. All else is loaded with its first use. The button is made here, since without
// scripts it would be dead.
"use strict";

const { dataset: searchWords } = document.currentScript;
// Scripts run in the order in which they were asked for.
const script = (name) => new Promise((onload, onerror) => {
  document.head.append(make("script", "", [], { src: searchWords.index + name, onload, onerror, async: false }));
});
// The index, and what it answers: the contents ask it, too.
let searchLoads;
const searchIndex = () => (searchLoads ??= Promise.all(["../../search-rank.js", "core.js"].map(script)));
const searchParts = {};
const searchPart = (name) => (searchParts[name] ??= script(`${name}.js?${searching.version}`));
const searchAnswers = async (query) => {
  await searchIndex();
  await Promise.all(searching.needs(query).map((number) => searchPart(`words-${number}`)));
  return searching.rank(query);
};
const finder = button("find", [], async () => {
  finder.onclick = null;
  document.head.append(make("link", "", [], { rel: "stylesheet", href: `${searchWords.index}../../search.css` }));
  try {
    await Promise.all([searchIndex(), script("../../search-dialog.js")]);
  } catch {
    finder.replaceWith(make("span", "", [searchWords.failed], { role: "alert" }));
  }
});
finder.title = finder.ariaLabel = searchWords.label;
finder.dataset.search = "";
if (searchWords.index) one(".tools").prepend(finder);
