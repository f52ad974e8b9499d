// Which places answer a query, the best first, and what of them to show. It touches no page: `sidelit search` runs it,
// too. The index comes as scripts that fill it in; src/sidelit/site/search/index.py makes them.
"use strict";

const searching = (() => {
  const [words, texts] = [[], []];
  let places, starts, cutter, run;

  const fold = (text) => text.normalize("NFKC").toLowerCase().trim();
  // A run of a script without spaces becomes pairs of characters, as in the index.
  const cut = (text) => (fold(text).match(cutter) ?? []).flatMap((word) => {
    const signs = [...word];
    return run.test(word) && signs[2] ? signs.slice(1).map((sign, before) => signs[before] + sign) : word;
  });

  const core = (data) => {
    Object.assign(searching, data);
    ({ starts } = data);
    run = RegExp(`[${data.unspaced}]`, "u");
    cutter = RegExp(`${run.source}+|(?:(?!${run.source})[\\p{L}\\p{N}_])+`, "gu");
    places = data.pages.flatMap(([address, page, module, lang, inside], at) => inside.map(([id, title, kind], order) => {
      const own = id === "module" ? module : id.split("/")[0];
      return { address, page, lang, at, order, id, kind, code: !title, title: title || own, name: kind === 1 && fold(own), full: fold(`.${module}.${own}`) };
    }));
  };

  // The parts of the index that may hold the words of a query, or words with one wrong letter behind the second.
  const needs = (query) => {
    const from = (term) => Math.max(0, starts.findLastIndex((start) => start <= term));
    const begun = cut(query).map((word) => (word[4] ? word.slice(0, 2) : word));
    return [...starts.keys()].filter((part) => begun.some((word) => part >= from(word) && part <= from(`${word}\uffff`)));
  };

  // Whether one letter is another, one too many or missing, or exchanged with its neighbour.
  const near = (a, b) => {
    let at = 0;
    while (at < b.length && a[at] === b[at]) at += 1;
    const [c, d] = [a.slice(at), b.slice(at)];
    const [e, f] = [c.slice(1), d.slice(1)];
    return e === f || c === f || e === d || c === f[0] + d[0] + f.slice(1);
  };

  // Names first: a name that is the query, one that ends or begins with it, one that holds it; then titles and terms.
  const tier = ({ kind, name, full, title }, wanted, phrase, asked) => {
    if (name) {
      if (name === wanted) return 9;
      if (full.endsWith(`.${wanted}`)) return 8;
      if (name.startsWith(wanted)) return 7;
      if (name.includes(wanted)) return 5.5 + name.includes(`.${wanted}`);
    }
    if (fold(title).split(" · ").includes(phrase)) return kind === 2 ? 4 : 5;
    return asked.every((word) => cut(title).some((term) => term.startsWith(word))) && 3;
  };

  const rank = (query, most = 20) => {
    const asked = cut(query);
    const phrase = fold(query);
    const wanted = phrase.replace("()", "").replace(/\s+/g, "_");
    const marks = [phrase, ...phrase.split(/\s+/), ...asked];
    const sums = places.map(() => 0);
    for (const word of new Set(asked)) {
      const best = {};
      for (const [term, list] of words.flat()) {
        const typo = word[4] && near(term, word);
        const fit = term === word ? 4 : term.startsWith(word) ? 2 : typo && 1;
        if (!fit) continue;
        if (typo) marks.push(term);
        let number = 0;
        for (const step of list) {
          number += step >> 2;
          // A word that few places have tells more.
          best[number] = Math.max(best[number] ?? 0, fit * (1 + (step & 3)) * Math.log(1 + places.length / list.length));
        }
      }
      // One more word tells more than any other one.
      for (const number in best) sums[number] += 1e3 + best[number];
    }
    const least = Math.max(1, ...sums) - 500;
    const score = (place, number) => [tier(place, wanted, phrase, asked) * 1e6 + (sums[number] > least && sums[number]), place];
    const found = asked[0] ? places.map(score).filter(([sum]) => sum).sort((a, b) => b[0] - a[0]) : [];
    return { found: found.slice(0, most).map(([, place]) => place), marks, total: found.length };
  };

  // A stretch of a place's text, or a line of its code, around the longest of the marked words.
  const excerpt = ({ at, order }, marks) => {
    const [said, code, lang] = texts[at][order];
    const plain = (mark) => (run.test(mark) ? "" : "(?<![\\p{L}\\p{N}])") + mark.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&");
    const any = RegExp(marks.sort((a, b) => b.length - a.length).map(plain).join("|"), "giu");
    const line = said.search(any) < 0 && code.split("\n").find((each) => each.search(any) >= 0);
    const text = line || said;
    const hits = [...text.matchAll(any)];
    const first = hits.reduce((a, b) => (b[0].length > a[0].length ? b : a), hits[0])?.index ?? 0;
    // Words are not cut where there are gaps between them.
    let from = Math.max(0, first - 50);
    if (from) from += /^\S{0,24}\s|/.exec(text.slice(from, first))[0].length;
    const until = from + text.slice(from, from + 180).replace(text[from + 180] ? /\s\S{0,24}$/ : "", "").length;
    const parts = [[from ? "… " : ""]];
    for (const { index, 0: hit } of [...hits, { index: until, 0: "" }]) {
      if (index < from || index + hit.length > until) continue;
      parts.push([text.slice(from, index)], [hit, true]);
      from = index + hit.length;
    }
    return { parts: [...parts, [text[until] ? " …" : ""]].filter(([part]) => part), line, lang };
  };

  return { words, texts, core, needs, cut, rank, excerpt };
})();
