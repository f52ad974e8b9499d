// The page of the original, fetched once, and its paragraphs put below those of the translation.
"use strict";

const originals = async ({ url, lang, sheet }) => {
  // ---- The blocks of each section, in the order in which they stand; the same on both pages.
  const WORDS = ":is(h1, h2, h3, h4, p, ul, ol, dl, table, blockquote, .scroll, .admonition, .ask, .footnotes):not(.acts, .aside, .badge, .eyebrow, .label, .origin)";
  const sections = (page) => {
    const found = {};
    for (const box of all("main :is(section > .doc, .told, .essay, .text, .intro, .plan)", page)) {
      let id = box.matches(".doc, .told") ? box.closest("section").id : box.className;
      for (const block of all(":scope > *, :scope > .pair > * > *", box)) {
        if (block.matches(":is(h2, h3)[id]")) id = block.id;
        if (block.matches(WORDS)) (found[id] ??= []).push(block);
      }
    }
    return found;
  };

  // ---- A page that was opened from a disk may ask for a script only, and a pack for that has one.
  const added = (tag, more) => new Promise((onload, onerror) => {
    document.head.append(make(tag, "", [], { ...more, onload, onerror }));
  });
  const read = async () => {
    if (location.protocol === "file:") {
      await added("script", { src: `${url}.js` });
      return new DOMParser().parseFromString(sidelitOriginal, "text/html");
    }
    const request = new XMLHttpRequest();
    request.open("GET", url);
    request.responseType = "document";
    await new Promise((onload, onerror) => Object.assign(request, { onload, onerror }).send());
    return request.response;
  };
  const [page] = await Promise.all([read(), added("link", { rel: "stylesheet", href: sheet })]);
  const theirs = sections(page);
  const ours = sections(document);
  const blocks = Object.values(ours).flat();

  // ---- A link leads to the page of its name in the reader's language, and an id stays the translation's.
  const copied = (block) => {
    let said = block.cloneNode(true);
    if (said.matches("h1, h2, h3, h4")) said = make("p", "", said.childNodes);
    for (const each of [said, ...all("[id]", said)]) each.removeAttribute("id");
    for (const each of all("[src]", said)) each.src = new URL(each.getAttribute("src"), new URL(url, location));
    return make("div", "original", [said], { lang });
  };
  const placed = (mine, other = []) => {
    const paired = mine.length === other.length;
    const made = [];
    for (const [place, block] of other.entries()) {
      const above = paired ? mine[place] : made.at(-1) ?? mine.at(-1);
      if (paired && block.textContent === above.textContent) continue;
      made.push(copied(block));
      above.after(made.at(-1));
    }
    return made;
  };

  const shown = {};
  return (on, ids = Object.keys(ours)) => {
    // The line that one reads stays where it is.
    const sill = one(".top").offsetHeight;
    const box = (block) => block.getBoundingClientRect();
    const line = blocks.find((block) => box(block).bottom > sill) ?? blocks[0];
    const { top } = box(line);
    for (const id of ids) {
      shown[id] ??= placed(ours[id], theirs[id]);
      for (const each of shown[id]) each.hidden = !on;
    }
    scrollBy({ top: box(line).top - top, behavior: "instant" });
  };
};
