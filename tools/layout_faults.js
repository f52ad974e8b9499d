// What is wrong with the lines, tables and drawings of a page as it is shown: rows of a kind and an example. The last
// row counts the blocks of Japanese or Chinese words that have more than one line.
() => {
  const found = [];
  const add = (kind, text) => found.push([kind, text.replace(/\s+/g, " ").trim().slice(0, 110)]);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const shown = (element) => element.checkVisibility({ visibilityProperty: true });
  const seen = (selector) => all(`main ${selector}`).filter(shown);
  const cued = (element) => getComputedStyle(element).backgroundImage !== "none";
  const over = (element) => element.clientWidth && element.scrollWidth > element.clientWidth + 1;

  function* words(root, without) {
    const walk = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    for (let node; (node = walk.nextNode());) if (!node.parentElement.closest(without)) yield node;
  }
  // The box of each letter, or null for one without a width.
  const letters = (node) => [...node.data].map((_, at) => {
    const range = document.createRange();
    range.setStart(node, at);
    range.setEnd(node, at + 1);
    const boxes = range.getClientRects();
    const last = boxes[boxes.length - 1];
    return last?.width ? last : null;
  });

  // ---- What is cut, or scrolls without a sign of it.
  for (const box of seen(".scroll")) if (over(box)) add(cued(box) ? "table scrolls" : "table cut", box.textContent);
  for (const box of seen(".math.display")) if (over(box) && !cued(box)) add("formula cut", box.textContent);

  // ---- Numbers of a table that take two lines.
  const number = /[~≈<>≤≥+\u2212-]?\d[\d.,]*([ \u202f]?[–-]\s?\d[\d.,]*)?([ \u00a0\u202f]?(%|×|[kMGT]?i?B|m?s)(?![a-z]))?/g;
  for (const cell of seen(":is(td, th)")) {
    if (!/\d/.test(cell.textContent) || cell.offsetHeight < 34) continue;
    for (const node of words(cell, ".katex, code, svg")) {
      for (const { 0: text, index } of node.data.matchAll(number)) {
        if (/[A-Za-z]-?$/.test(node.data.slice(0, index))) continue;
        const range = document.createRange();
        range.setStart(node, index);
        range.setEnd(node, index + text.length);
        const rows = new Set([...range.getClientRects()].filter(({ width }) => width).map(({ bottom }) => Math.round(bottom / 6)));
        if (rows.size > 1) add("number broken", `${text} in: ${cell.textContent}`);
      }
    }
  }

  // ---- Lines of a sample that go on where the sample begins.
  for (const sample of seen(":is(.sample, .printed)")) {
    const style = getComputedStyle(sample);
    const left = sample.getBoundingClientRect().left + parseFloat(style.paddingLeft) + parseFloat(style.borderLeftWidth);
    let [before, bottom, row] = ["\n", null, ""];
    for (const node of words(sample, "button")) {
      const boxes = letters(node);
      [...node.data].forEach((letter, at) => {
        const box = boxes[at];
        if (box && bottom !== null && before !== "\n" && box.bottom > bottom + 6 && box.left < left + 4) {
          add("sample at column 0", `${row}⏎${node.data.slice(at, at + 20)}`);
        }
        bottom = box?.bottom ?? bottom;
        before = letter;
        row = letter === "\n" ? "" : row + letter;
      });
    }
  }

  // ---- Lines of Japanese and Chinese: none begins with a sign that closes, few end a paragraph with a letter or two.
  let blocks = 0;
  const block = ":is(p, li, dd, dt, td, th, figcaption, h1, h2, h3, h4, caption, summary)";
  const ideographs = /^(ja|zh)/.test(document.documentElement.lang);
  for (const each of ideographs ? seen(block) : []) {
    if (each.closest("svg, pre, .employed") || each.querySelector(`${block}, pre, .display`)) continue;
    if (each.offsetHeight < 1.6 * parseFloat(getComputedStyle(each).lineHeight)) continue;
    const rows = [];
    for (const node of words(each, ".katex-mathml, button")) {
      const formula = node.parentElement.closest(".katex-base");
      if (formula) {
        const { top, bottom, width } = formula.getBoundingClientRect();
        const middle = (top + bottom) / 2;
        if (!width) continue;
        if (!rows.length || middle > rows.at(-1).bottom) rows.push({ text: "", bottom: middle });
        rows.at(-1).text += "∎";
        continue;
      }
      const boxes = letters(node);
      [...node.data].forEach((letter, at) => {
        const box = boxes[at];
        if (!box || /\s/.test(letter)) return;
        if (!rows.length || box.top > rows.at(-1).bottom - 4) rows.push({ text: "", bottom: 0 });
        rows.at(-1).text += letter;
        rows.at(-1).bottom = Math.max(rows.at(-1).bottom, box.bottom);
      });
    }
    if (rows.length < 2) continue;
    blocks += 1;
    for (const { text } of rows) if (/^[：，。、；）」』！？]/.test(text)) add("line begins with a sign", text);
    if (rows.at(-1).text.length <= 3) add("short last line", `${each.tagName} ${rows.map(({ text }) => text).join("⏎").slice(-60)}`);
  }

  // ---- Labels of a drawing that lie on each other, drawings that touch what follows, symbols out of their column.
  for (const drawing of seen(".sheet svg")) {
    const labels = all("text", drawing).filter((label) => label.textContent.trim());
    const boxes = labels.map((label) => label.getBoundingClientRect());
    boxes.forEach((one, at) => boxes.slice(at + 1).forEach((other, next) => {
      const wide = Math.min(one.right, other.right) - Math.max(one.left, other.left);
      const high = Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top);
      if (wide > 1.5 && high > Math.min(one.height, other.height) / 2) {
        add("labels collide", `${labels[at].textContent} × ${labels[at + 1 + next].textContent}`);
      }
    }));
  }
  for (const figure of seen(":is(.drawing, .stepper, .moment)")) {
    const next = figure.nextElementSibling;
    const gap = next && shown(next) ? next.getBoundingClientRect().top - figure.getBoundingClientRect().bottom : 99;
    if (Math.abs(gap) < 8) add("figure touches", next.textContent);
  }
  for (const list of seen(".symbols")) {
    if (list.getBoundingClientRect().left < 8) add("symbols at the edge", list.textContent);
    const names = all("tbody tr td:first-child", list).map((cell) => cell.textContent.trim());
    const twice = names.find((name, at) => names.indexOf(name) < at);
    if (twice) add("symbol twice", twice);
  }
  return [...found, ["blocks", String(blocks)]];
}
