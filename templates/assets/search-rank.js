// Which places answer a query, the best first, and what of them to show. It touches no page: `sidelit search` runs it,
// too. The index comes as scripts that fill it in; src/sidelit/site/search/index.py makes them.
"use strict";

const searching = (() => {
  const [words, texts] = [[], []];
  let data, places, run, cutter, piece, between, strange, rows;

  // ---- What counts for how much. The figures were chosen by questions of people (tools/questions.py).
  // A term in code; one in words, from once in a long text to often in a short one; one in a title.
  const STEPS = [0.3, 0.35, 0.48, 0.61, 0.74, 0.87, 1, 1.6];
  const TITLE = 7;
  // A title that is a name of a program says less than a heading, and as a synonym little.
  const [NAME, OTHER_NAME] = [1, 0.4];
  // Pages of use and lessons, chapters, pages in another language, the workshop, labs. Then text, names, terms, works.
  const RANKS = [1.12, 1, 0.6, 0.8, 1];
  const KINDS = [1, 1, 0.35, 0.6];
  // Where a page begins; what is folded; a page of use, where a query is one thing.
  const [OPENING, DEPTH, USE] = [1.15, 0.85, 1.35];
  const W = {
    page: 0.65, // What the whole page says, beside the section,
    size: 0.12, // and less where it has many sections.
    synonym: 0.75, // A synonym.
    part: 0.3, // Some words of several that name one thing, where a place has all,
    loose: 0.8, // and where none has,
    partly: 0.5, // by how many of them there are.
    more: 0.3, // One more word of several.
    prefix: 0.35, // The beginning of a word: of the last one,
    inner: 0.15, // and of another one that is not known.
    typo: 0.6, // A word with one wrong letter,
    alike: 0.3, // or with one wrong ideograph.
    single: 0.7, // A single ideograph.
    kana: 1.8, // A word in kana.
    ident: 2, // A name with `_`.
    share: 0.4, // A title of nothing else,
    head: 1.6, // above all that of a page.
    cover: 0.4, // How many of the words there are,
    around: 0.3, // and how many on the page.
    begun: 0.5, // A name that begins with the query.
    repeat: 0.45, // One more section of the same page.
    least: 0.15, // Where the results end, beside the best.
    number: 0.3, // A number among words, as messages of errors have them,
    fault: 0.6, // and the class of an error.
    parts: 0.8, // The parts of a name, where the name itself is on no page.
  };

  // ---- Words.
  const fold = (text) => {
    if (/^[\x20-~]*$/.test(text)) return text.toLowerCase().trim();
    const plain = text.normalize("NFKC").normalize("NFD").replace(/[\u0300-\u036f]/g, "").normalize("NFC");
    return data.folds.reduce((folded, [sign, letters]) => folded.replace(sign, letters), plain.toLowerCase()).trim();
  };
  // One word of its forms: "saved", "saves" and "saving" are "sav".
  const stems = new Map();
  const stem = (word) => {
    if (!stems.has(word)) {
      const [ending, left] = data.endings.find(([each]) => each.test(word)) ?? [];
      stems.set(word, ending ? word.replace(ending, left) : word);
    }
    return stems.get(word);
  };
  const found = (text) => text.match(cutter) ?? [];
  // A run of a script without spaces is cut where the kinds of its characters meet, and at stop words. What is left of
  // it are words whose terms are pairs of characters, as in the index.
  const HAN = /\p{Script=Han}/u;
  const LONG = /(?<=[\u30a1-\u30fa\u30fc]{3})\u30fc$/u;
  const pairs = (word) => {
    const signs = [...word];
    return signs[2] ? signs.slice(1).map((sign, before) => signs[before] + sign) : [word];
  };
  const split = (text) => found(text).flatMap((word) => {
    if (!run.test(word)) return data.stops.has(word) ? [] : { word, terms: [word] };
    const parts = word.match(piece).flatMap((part) => part.split(between)).filter((part) => part);
    return parts.map((part) => part.replace(LONG, "")).map((part) => ({ word: part, terms: pairs(part), run: true }));
  });
  const cut = (text) => split(fold(text)).flatMap(({ terms }) => terms);

  const core = (given) => {
    Object.assign(searching, given);
    const folds = given.folds.map(([sign, letters]) => [RegExp(sign, "gu"), letters]);
    const endings = given.endings.map(([ending, left]) => [RegExp(`^(?:${ending})$`, "u"), left]);
    data = { ...given, folds, endings, stops: new Set(given.stops) };
    run = RegExp(`[${given.unspaced.join("")}]`, "u");
    cutter = RegExp(`${run.source}+|(?:(?!${run.source})[\\p{L}\\p{N}_])+`, "gu");
    piece = RegExp(given.unspaced.map((kind) => `[${kind}]+`).join("|"), "gu");
    const inside = given.stops.filter((word) => run.test(word)).sort((a, b) => b.length - a.length);
    between = RegExp(inside.join("|") || "(?!)", "u");
    strange = RegExp(`[^\\x00-@\\[-\\x7f${given.unspaced.join("")}]`, "gu");
    rows = null;
    places = given.pages.flatMap(([address, page, module, lang, rank, inside], at) => inside.map(([id, title, kinds], order) => {
      const kind = kinds & 3;
      const own = id === "module" ? module : id.split("/")[0];
      const prior = RANKS[rank] * KINDS[kind] * (kinds > 3 ? DEPTH : 1) * (order ? 1 : OPENING);
      const names = kind === 1 && { name: fold(own), full: fold(`.${module}.${own}`) };
      return { address, page, lang, at, order, id, kind, rank, prior, code: !title, title: title || own, ...names };
    }));
  };

  // ---- What a query asks for: the synonyms that it names, the longest first, and the words that are left.
  // The signs by which synonyms are found: stems, and the characters of a run.
  const signs = (text) => found(text).flatMap((word) => (run.test(word) ? [...word].map((sign, at) => ({ sign, word: sign, first: !at })) : { sign: stem(word), word, first: true }));
  const spell = (all) => ` ${all.map((each) => each?.sign ?? "\n").join(" ")} `;
  // A name asks for its parts, too: `AllGather` for "all gather".
  const PARTS = /_+|(?<=[a-z0-9])(?=[A-Z])/;
  const worth = (word) => (/^\d\d+$/.test(word) ? W.number : /.error$/.test(word) ? W.fault : 1);
  const joined = (all) => all.map((each) => (each ? (each.first ? " " : "") + each.word : " ")).join("");
  const parse = (query) => {
    const row = (asked) => (said) => ({ said, key: spell(signs(fold(said))), asked });
    rows ??= data.synonyms.flatMap(([asked, more]) => [...asked, ...more].map(row(asked))).filter(({ key }) => key[2]);
    rows.sort((a, b) => b.key.length - a.key.length);
    const all = signs(fold(query));
    const units = [];
    let key = spell(all);
    for (const { said, asked, key: wanted } of rows) {
      const at = key.indexOf(wanted);
      // A single character is no word within a run.
      if (at < 0 || (!wanted[3] && run.test(wanted) && all[1])) continue;
      const parts = all.splice(key.slice(0, at).split(" ").length - 1, wanted.split(" ").length - 2, null);
      const direct = split(joined(parts));
      // Where stop words are a part of a name, as in "out of memory", its other words alone say less.
      direct.worth = run.test(said) ? 1 : direct.length / parts.length;
      const known = units.find((unit) => unit.asked === asked);
      if (known) known.direct.push(direct);
      else units.push({ asked, direct: [direct], others: asked.filter((word) => word !== said).map((word) => split(fold(word))), said: [said, ...asked] });
      key = spell(all);
    }
    const parts = new Map(found(query).map((word) => [fold(word), word.split(PARTS).filter((part) => part[1])]));
    const left = split(joined(all)).map((word) => {
      const inside = parts.get(word.word) ?? [];
      return { direct: [[word]], others: inside[1] ? [split(fold(inside.join(" ")))].filter(([part]) => part) : [], said: [] };
    });
    if (units[0] || left[1]) for (const { direct: [words] } of left) words.worth = worth(words[0].word);
    const last = /\s$/.test(query) ? null : found(fold(query)).at(-1);
    return { units: [...units, ...left], last };
  };

  // ---- The index.
  // How a term begins in all of its forms, and, if it is no synonym, in what is like it.
  const begin = (term, { run, other }) => {
    if (run) return other || !HAN.test(term) ? term : [...term][0];
    return term.slice(0, !other && term[4] ? 2 : Math.min(term.length, Math.max(2, stem(term).length - 1)));
  };
  const among = (start) => {
    const from = (term) => Math.max(0, data.starts.findLastIndex((each) => each <= term));
    return [...data.starts.keys()].slice(from(start), from(`${start}\uffff`) + 1);
  };
  // The parts of the index that a query needs.
  const needs = (query) => {
    const starts = (words, other) => words.flat().flatMap(({ terms, run }) => terms.map((term) => begin(term, { run, other })));
    const asked = parse(query).units.flatMap(({ direct, others }) => [...starts(direct), ...starts(others, true)]);
    return [...new Set(asked.flatMap(among))].sort((a, b) => a - b);
  };

  // Whether one letter is another, one too many or missing, or exchanged with its neighbour.
  const near = (a, b) => {
    let at = 0;
    while (at < b.length && a[at] === b[at]) at += 1;
    const [c, d] = [a.slice(at), b.slice(at)];
    const [e, f] = [c.slice(1), d.slice(1)];
    return e === f || c === f || e === d || c === f[0] + d[0] + f.slice(1);
  };

  // A word that few places have tells more.
  const rarity = (count) => Math.log(1 + places.length / count);
  // What a query has met: the words to mark, the words that are known, and the titles that have its words.
  const met = { marks: new Set(), known: new Set(), titles: new Map() };

  // The places of a term, each with what the term counts for there. `last` is a word that somebody may type on,
  // `other` one of a synonym, and `quiet` one that is marked with its neighbours alone.
  const look = (term, { run, last, other, quiet }) => {
    const [forms, begun, alike] = [[], [], []];
    const start = begin(term, { run, other });
    for (const part of among(start)) {
      if (typeof words[part] === "string") words[part] = words[part].split("\n");
      for (const line of words[part] ?? []) {
        if (!line.startsWith(start)) continue;
        const [each, ...steps] = line.split(" ");
        if (each === term || (!run && stem(each) === stem(term))) forms.push([each, steps, 1]);
        else if (each.startsWith(term)) begun.push([each, steps, last ? W.prefix : W.inner]);
        else if (run ? term !== start : term[4] && !other && near(each, term)) alike.push([each, steps, run ? W.alike : W.typo]);
      }
    }
    const count = forms.reduce((sum, [, { length }]) => sum + length, 0);
    if (count) met.known.add(term);
    const best = new Map();
    for (const [each, steps, fit] of [...forms, ...(last || !count ? begun : []), ...(count || begun[0] ? [] : alike)]) {
      if (!run && !quiet) met.marks.add(each);
      const rare = fit === 1 ? rarity(count) : Math.min(rarity(count || 1), rarity(steps.length));
      const exact = each === term && term.includes("_");
      const value = fit * rare * (exact ? W.ident : 1);
      let number = 0;
      for (const digits of steps) {
        const step = parseInt(digits, 36);
        number += step >> 3;
        const named = (step & 7) === TITLE && places[number].code;
        if ((step & 7) === TITLE && fit === 1) met.titles.set(number, (met.titles.get(number) ?? new Set()).add(each));
        best.set(number, Math.max(best.get(number) ?? 0, value * (named ? (other ? OTHER_NAME : NAME) : STEPS[exact ? Math.max(step & 7, 2) : step & 7])));
      }
    }
    return { best, rare: count ? rarity(count) : 3 };
  };

  // How many of some words each place has, and what they count for.
  const together = (all) => {
    const sums = new Map();
    for (const { best } of all) {
      for (const [place, value] of best) {
        const [count, sum] = sums.get(place) ?? [0, 0];
        sums.set(place, [count + 1, sum + value]);
      }
    }
    return [...sums];
  };
  // The same of a word. One without spaces around it is there where its pairs are: of kana all, of ideographs some.
  const one = ({ word, terms, run }, { last, other, quiet }) => {
    if (!run) return look(word, { last: word === last, other, quiet });
    const size = terms.length;
    if (size === 1) {
      const { best, rare } = look(word, { run, last: word === last, other });
      if (!quiet) met.marks.add(word);
      const worth = [...word][1] ? 1 : W.single;
      return { best: new Map([...best].map(([place, value]) => [place, value * worth])), rare: rare * worth };
    }
    const kana = !HAN.test(word);
    if (!quiet) for (const mark of kana ? [word] : [word, ...terms]) met.marks.add(mark);
    const sums = together(terms.map((term) => look(term, { run, other })));
    const full = sums.filter(([, [count]]) => count === size).length;
    const worth = (count) => (count === size ? 1 : kana ? (count / size) ** 3 / 2 : count / size) * (kana ? W.kana : (size + 1) / 2);
    return { best: new Map(sums.map(([place, [count, sum]]) => [place, worth(count) * sum / size])), rare: full ? rarity(full) : 3 };
  };

  // The places of words that name one thing: those that have all of them count for as much as such places are rare.
  const name = (all, most) => {
    const parts = all.filter(({ best }) => best.size);
    const sums = together(parts);
    const whole = sums.filter(([, [count]]) => count === all.length);
    const rare = Math.min(most, rarity(whole.length || 1) * (1 + W.more * (all.length - 1)));
    const total = parts.reduce((sum, part) => sum + part.rare, 0);
    return { parts, sums, rare, whole: whole.map(([place, [, sum]]) => [place, rare * sum / total]) };
  };
  const raise = (best, place, value) => best.set(place, Math.max(best.get(place) ?? 0, value));
  // The places of what a query asks for, in its own words or in those of a synonym.
  const ask = ({ direct, others, said }, last) => {
    const best = new Map();
    let most = 0;
    for (const words of direct) {
      const all = words.map((word) => one(word, { last }));
      const { parts, sums, whole, rare } = name(all, Infinity);
      const here = new Map(all[1] ? whole : all[0]?.best);
      if (all[1]) for (const [place, [count, sum]] of sums) raise(here, place, (whole[0] ? W.part : W.loose) * sum * (count / parts.length) ** W.partly);
      for (const [place, value] of here) best.set(place, (best.get(place) ?? 0) + value * (words.worth ?? 1));
      if (whole[0]) most = Math.max(most, rare);
    }
    for (const words of others) {
      const all = words.map((word) => one(word, { other: true, quiet: words[1] }));
      const { parts, sums, whole } = name(all, most || Infinity);
      for (const [place, value] of whole) raise(best, place, value * W.synonym);
      // A name that is on no page.
      if (!best.size && !said[0]) for (const [place, [count, sum]] of sums) raise(best, place, W.parts * sum * (count / all.length) ** W.partly / parts.length);
    }
    return best;
  };

  // ---- The order.
  // A name that is the query, or that ends with it; then one that begins with it or has it inside, which counts as much
  // where the query is no word.
  const namely = ({ name, full }, wanted, begun) => {
    if (name === wanted) return 9;
    if (full.endsWith(`.${wanted}`)) return 8;
    if (name.startsWith(wanted)) return begun ? 7 : 1;
    return wanted[3] && name.includes(wanted) && (begun ? 6 : 0.4);
  };
  // A title that is the query, or a synonym of it; a term tells more than a heading within a page of use.
  const titled = ({ title, kind, order, rank }, phrase, alike) => {
    const titles = fold(title).split(" · ");
    if (titles.includes(phrase)) return kind === 2 ? 4 : order && !rank ? 3.5 : 5;
    return kind !== 2 && titles.some((each) => alike.has(each)) && 2;
  };
  // How much of a title a query has.
  const share = (number) => {
    const hits = met.titles.get(number)?.size;
    return hits ? Math.min(1, hits / Math.max(1, cut(places[number].title).length)) : 0;
  };

  const rank = (query, most = 20) => {
    for (const each of Object.values(met)) each.clear();
    const { units, last } = parse(query);
    const phrase = fold(query);
    const wanted = phrase.replace("()", "").replace(/\s+/g, "_");
    const sums = new Map();
    const around = data.pages.map(() => 0);
    let top = 0;
    for (const unit of units) {
      const best = ask(unit, last);
      const highest = Math.max(0, ...best.values());
      const pages = new Map();
      for (const [number, value] of best) {
        const [own, cover] = sums.get(number) ?? [0, 0];
        sums.set(number, [own + value, cover + highest]);
        raise(pages, places[number].at, value);
      }
      for (const [at, value] of pages) around[at] += value;
      for (const said of unit.said) met.marks.add(fold(said));
      top += highest;
    }
    // Where a query is one thing by its names, a page that has one of them as its title is about it.
    const alike = new Set(units[1] ? [] : units.flatMap(({ said }) => said).map(fold));
    // What is no word, or has a point or `_` in it, is a name that somebody has begun to type.
    const begun = !/\s/.test(phrase) && (/[._]/.test(phrase) || !met.known.has(phrase));
    // Names among other words.
    const dotted = units[1] ? phrase.match(/\w+(?:\.\w+)+/g) ?? [] : [];
    const scored = [];
    places.forEach((place, number) => {
      const [own, cover] = sums.get(number) ?? [0, 0];
      const named = (place.name && namely(place, wanted, begun)) || ((met.titles.has(number) || !units[0]) && titled(place, phrase, alike)) || (place.name && dotted.some((name) => place.full.endsWith(`.${name}`)) && 2) || 0;
      if (!phrase || !(own || named)) return;
      const section = own * (1 + W.share * share(number) * (place.order ? 1 : W.head));
      const page = W.page * around[place.at] * data.pages[place.at][5].length ** -W.size;
      const sum = place.prior * (units[1] || place.rank ? 1 : USE) * (section + page) * (cover / (top || 1)) ** W.cover * (around[place.at] / (top || 1)) ** W.around;
      scored.push({ place, named, sum: sum + named * (named > 3 ? 100 : W.begun * top) });
    });
    const order = () => scored.sort((a, b) => b.sum - a.sum);
    // The first results are of several pages.
    const seen = new Map();
    for (const each of order()) {
      const { at } = each.place;
      if (each.named <= 3) each.sum *= W.repeat ** (seen.get(at) ?? 0);
      seen.set(at, (seen.get(at) ?? 0) + 1);
    }
    const best = order().find(({ named }) => named < 1)?.sum ?? 0;
    const kept = scored.filter(({ sum }) => sum >= best * W.least);
    return { found: kept.slice(0, most).map(({ place }) => place), marks: [...met.marks], total: kept.length };
  };

  // ---- What a result shows.
  // A text in which marks can be looked for: each sign is folded, and none changes its place.
  const level = (text) => text.replace(strange, (sign) => {
    const folded = fold(sign);
    return folded.length === sign.length ? folded : sign;
  });
  // Finds what is marked: words, and no parts of words; neighbours are one.
  let finder = [];
  const marking = (marks) => {
    if (finder[0] === marks) return finder[1];
    const edge = (sign, beside) => (run.test(sign) ? "" : beside);
    const each = [...marks].sort((a, b) => b.length - a.length).map((mark) => {
      const inside = mark.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&").replace(/\s+/g, "[\\s_-]+");
      return edge(mark[0], "(?<![\\p{L}\\p{N}])") + inside + edge(mark.at(-1), "(?![\\p{L}\\p{N}])");
    });
    const any = `(?:${each.join("|") || "(?!)"})`;
    finder = [marks, RegExp(`${any}(?:[\\s_-]*${any})*`, "gu")];
    return finder[1];
  };
  const hits = (text, marks) => [...level(text).matchAll(marking(marks))].map(({ 0: { length }, index }) => ({ from: index, to: index + length }));
  // How much of what is marked a text says from one place on: each word counts once.
  const told = (text, all, from) => {
    const here = all.filter((hit) => hit.from >= from && hit.to <= from + 130).map((hit) => text.slice(hit.from, hit.to).toLowerCase());
    return [...new Set(here)].join("").length;
  };

  // A stretch of a place's text, or a line of its code, around most of the marked words.
  const excerpt = ({ at, order }, marks) => {
    const [said, code, lang] = texts[at][order];
    const inside = hits(said, marks);
    const place = inside[0] ? -1 : level(code).search(marking(marks));
    const line = place >= 0 && code.slice(code.lastIndexOf("\n", place) + 1).split("\n", 1)[0];
    const text = line || said;
    const all = line ? hits(line, marks) : inside;
    const scores = all.map(({ from }) => told(text, all, from));
    const first = all[scores.indexOf(Math.max(...scores))]?.from ?? 0;
    // Words are not cut where there are gaps between them.
    let from = Math.max(0, first - 50);
    if (from) from += /^\S{0,24}\s|/.exec(text.slice(from, first))[0].length;
    let end = from + text.slice(from, from + 180).replace(text[from + 180] ? /\s\S{0,24}$/ : "", "").length;
    // A sign that takes two places stays whole: the codes of second halves begin with these bits.
    from -= text.charCodeAt(from) >> 10 === 55;
    end -= text.charCodeAt(end) >> 10 === 55;
    const parts = [[from ? "… " : ""]];
    for (const hit of [...all, { from: end, to: end }]) {
      if (hit.from < from || hit.to > end) continue;
      parts.push([text.slice(from, hit.from)], [text.slice(hit.from, hit.to), true]);
      from = hit.to;
    }
    return { parts: [...parts, [text[end] ? " …" : ""]].filter(([part]) => part), line, lang };
  };

  return { words, texts, core, needs, cut, rank, excerpt };
})();
