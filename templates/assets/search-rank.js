// Which places answer a query, the best first, and what of them to show. It touches no page: `sidelit search` runs it,
// too. The index comes as scripts that call `core`, `words` and `text`; src/sidelit/site/search/index.py makes them.
"use strict";

const searching = (() => {
  const shards = [];
  const texts = [];
  let index, places, cutter, run;

  const fold = (text) => text.normalize("NFKC").toLowerCase();
  // A run of a script without spaces becomes pairs of characters, as in the index.
  const cut = (text) => (fold(text).match(cutter) ?? []).flatMap((word) => {
    const signs = [...word];
    return run.test(word) && signs[2] ? signs.slice(1).map((sign, before) => signs[before] + sign) : word;
  });

  const core = (data) => {
    index = data;
    run = RegExp(`[${data.unspaced}]`, "u");
    cutter = RegExp(`${run.source}+|(?:(?!${run.source})[\\p{L}\\p{N}_])+`, "gu");
    places = data.pages.flatMap(([address, page, module, lang, inside], at) => inside.map(([id, title, kind], order) => {
      const own = id === "module" ? module : id.split("/")[0];
      const name = kind === 1 && fold(own);
      return { address, page, lang, at, order, id, kind, name, title: title || own, code: !title, begun: cut(title), full: `.${fold(module)}.${name}` };
    }));
  };

  // The parts of the index that may hold the words of a query, or words with one wrong letter behind the second.
  const needs = (query) => {
    const from = (term) => Math.max(0, index.starts.findLastIndex((start) => start <= term));
    return [...new Set(cut(query).flatMap((word) => {
      const begin = word[4] ? word.slice(0, 2) : word;
      const first = from(begin);
      return index.starts.slice(first, from(`${begin}\uffff`) + 1).map((_, step) => first + step);
    }))];
  };

  // Whether one letter is missing, one too many, another one, or exchanged with its neighbour.
  const near = (term, word) => {
    let same = 0;
    while (same < word.length && term[same] === word[same]) same += 1;
    const [a, b] = [term.slice(same), word.slice(same)];
    const [less, fewer] = [a.slice(1), b.slice(1)];
    return less === b || fewer === a || less === fewer || (b[0] + a[0] === a.slice(0, 2) && less.slice(1) === fewer.slice(1));
  };

  // Names first: a name that is the query, one that begins with it, one that holds it; then titles, then terms.
  const tier = ({ kind, name, full, title, begun }, wanted, phrase, words) => {
    if (name === wanted) return 9;
    if (name && full.endsWith(`.${wanted}`)) return 8;
    if (name && full.split(".").at(-1).startsWith(wanted)) return 7;
    if (name && name.includes(wanted) && wanted[2]) return 6;
    const is = fold(title).split(" · ").includes(phrase);
    const has = words.every((word) => begun.some((term) => term.startsWith(word)));
    return is || has ? (is ? 5 : 4) - (kind === 2 && 2) : 0;
  };

  const rank = (query, most = 20) => {
    const words = [...new Set(cut(query))];
    const phrase = fold(query).trim().replace(/\s+/g, " ");
    const marks = new Set([phrase, ...phrase.split(" "), ...words]);
    const scores = new Map();
    for (const word of words) {
      const best = new Map();
      for (const [term, list] of shards.flat()) {
        const typo = word[4] && near(term, word);
        let fit = term === word ? 1 : term.startsWith(word) ? 0.6 : typo ? 0.3 : 0;
        if (!fit) continue;
        if (typo) marks.add(term);
        // A word that few places have tells more.
        fit *= Math.log(1 + places.length / list.length);
        let number = 0;
        for (const step of list) {
          number += step >> 2;
          best.set(number, Math.max(best.get(number) ?? 0, fit * (1 + (step & 3))));
        }
      }
      for (const [number, score] of best) {
        const [count, sum] = scores.get(number) ?? [0, 0];
        scores.set(number, [count + 1, sum + score]);
      }
    }
    // Where no place has every word, those that have most of them.
    const least = Math.max(...[...scores.values()].map(([count]) => count));
    const wanted = phrase.replace("()", "").replaceAll(" ", "_");
    const found = (words[0] ? places : []).map((place, number) => {
      const [count, sum] = scores.get(number) ?? [];
      return [tier(place, wanted, phrase, words) * 1000 + (count === least ? sum : 0), place];
    }).filter(([score]) => score > 0).sort((a, b) => b[0] - a[0]);
    return { found: found.slice(0, most).map(([, place]) => place), marks: [...marks], total: found.length };
  };

  // A stretch of a place's text, or a line of its code, where most of the marked words stand together.
  const excerpt = ({ at, order }, marks) => {
    const [words, code, lang = ""] = texts[at][order];
    const literal = (mark) => (run.test(mark) ? "" : "(?<![\\p{L}\\p{N}])") + mark.replace(/[^\p{L}\p{N}_\s]/gu, "\\$&");
    const any = RegExp(marks.sort((a, b) => b.length - a.length).map(literal).join("|"), "giu");
    const line = words.search(any) < 0 && code.split("\n").find((each) => each.search(any) >= 0);
    const text = line || words;
    const hits = [...text.matchAll(any)];
    const near = ({ index: from }) => new Set(hits.map((hit) => hit.index >= from && hit.index < from + 120 && fold(hit[0]))).size;
    const first = hits.reduce((a, b) => (near(b) > near(a) ? b : a), hits[0])?.index ?? 0;
    // Words are not cut where there are gaps between them.
    let from = Math.max(0, first - 50);
    if (from) from += text.slice(from, first).indexOf(" ") + 1;
    const until = text[from + 180] ? from + text.slice(from, from + 180).replace(/\s\S*$/, "").length : text.length;
    const parts = [[from ? "… " : ""]];
    for (const hit of [...hits, { index: until, 0: "" }]) {
      if (hit.index < from || hit.index + hit[0].length > until) continue;
      parts.push([text.slice(from, hit.index)], [hit[0], true]);
      from = hit.index + hit[0].length;
    }
    return { parts: [...parts, [text[until] ? " …" : ""]], code: line, lang };
  };

  return {
    core, needs, rank, excerpt,
    words: (number, terms) => { shards[number] = terms; },
    text: (number, sections) => { texts[number] = sections; },
    about: () => index,
  };
})();
