// What the card of a name says: its definition, the first sentence about it, and where it stands. All of it is text:
// whatever somebody wrote into a docstring is shown as it is written.
"use strict";

const nameParts = (() => {
  const loads = {};
  const rows = (page) => (loads[page] ??= loaded("script", { src: page.replace(/\.html$/, ".cards.js") }, () => {
    const [title, titleLang, found] = cards;
    return new Map(found.map(([id, code, said, number, lang]) => [id, { code, said, number, lang, title, titleLang }]));
  }).catch(() => new Map()));
  const decoded = (text) => {
    try {
      return decodeURIComponent(text);
    } catch {
      return text;
    }
  };
  const outside = (link) => ({
    code: link.dataset.name ?? decoded(link.hash.slice(1) || link.pathname.replace(/^.*\/|\.html$/g, "")),
    title: nameWords.outside.replace("{host}", link.host),
  });
  // A line that this page shows says it itself; a parameter has a row among those of its function.
  const beside = (link) => {
    const number = link.hash.startsWith("#line-") && all(".num").find(({ href }) => href === link.href);
    if (!number) return null;
    const name = all(".fields th code", number.closest(".sec")).find((each) => each.textContent === link.textContent);
    const code = [...number.parentNode.childNodes].slice(1).map((part) => part.textContent).join("").trim();
    return { code, said: name?.closest("tr").lastElementChild.textContent };
  };
  const told = async (link) => {
    if (/^\w+:/.test(link.getAttribute("href"))) return outside(link);
    const near = beside(link);
    const known = near?.said ? null : (await rows(link.href.replace(/[?#].*/, ""))).get(decoded(link.hash.slice(1)));
    return known ?? near;
  };

  return async (link) => {
    const row = await told(link);
    if (!row) return null;
    const { code, said, number, lang, title, titleLang } = row;
    const spoken = (lang) => (lang ? { lang } : {});
    const words = (said ?? "").split("`").map((part, at) => (at % 2 ? make("code", "", [part]) : part));
    const place = [number ? `§ ${number} ` : "", make("span", "", [title ?? ""], spoken(titleLang))];
    return [
      make("p", "", [make("code", "", [code])]),
      ...(said ? [make("p", "", words, spoken(lang))] : []),
      ...(title ? [make("p", "stands", place)] : []),
    ];
  };
})();
