// The search as a dialog: what is typed finds links to sections, and the arrow keys walk them.
"use strict";

{
  const { ui } = searching;
  const input = make("input", "", [], { placeholder: ui.hint, ariaLabel: ui.label, spellcheck: false });
  const status = make("p", "", [], { role: "status" });
  const list = make("ol", "");
  const close = Object.assign(button("", ["×"], () => dialog.close()), { ariaLabel: ui.close });
  const dialog = make("dialog", "search", [input, close, status, list], { ariaLabel: ui.label });

  // What a result says is loaded when it comes into sight.
  const seen = new IntersectionObserver((changed) => changed.forEach(({ target, isIntersecting }) => isIntersecting && target.fill()));
  const entry = (place, marks) => {
    const { address, id, at, title, code, page, lang } = place;
    const href = searchWords.pages + address + (id && `#${encodeURI(id)}`);
    const words = make("span", "found");
    const link = make("a", "", [make(code ? "code" : "b", "", [title]), make("span", "page", [page], { lang }), words], { href });
    link.fill = async () => {
      seen.unobserve(link);
      await searchPart(`text-${at}`);
      const { parts, line, lang } = searching.excerpt(place, marks);
      words.append(...parts.map(([text, marked]) => (marked ? make("mark", "", [text]) : text)));
      if (line) words.className = "found of-code";
      words.lang = lang ?? "";
    };
    seen.observe(link);
    return make("li", "", [link]);
  };
  const show = async () => {
    const query = input.value;
    // A word is asked for when it is typed, not each of its letters.
    await new Promise((done) => setTimeout(done, 120));
    if (query !== input.value) return;
    const { found, marks, total } = await searchAnswers(query);
    // Meanwhile somebody may have typed on.
    if (query !== input.value) return;
    list.replaceChildren(...found.map((place) => entry(place, marks)));
    const said = found.length < total ? ui.best : total ? ui.count : ui.none;
    status.textContent = query && said.replace("{shown}", found.length).replace("{count}", total);
  };
  let shown = null;
  input.oninput = () => { shown = show(); };
  dialog.onkeydown = (event) => {
    const { key, target } = event;
    // The keys of the page rest; those of an input method are its own.
    event.stopPropagation();
    if (event.isComposing) return;
    const stops = [input, ...all("a", list)];
    const step = { ArrowDown: 1, ArrowUp: -1 }[key];
    if (step) {
      event.preventDefault();
      stops[stops.indexOf(target) + step]?.focus();
    } else if (key === "Enter" && target === input) shown?.then(() => one("a", list)?.click());
    else if (!key[1] && target.href) input.focus();
  };
  dialog.onclick = ({ target, ctrlKey, metaKey }) => {
    if (target === dialog || (target.closest("a") && !ctrlKey && !metaKey)) dialog.close();
  };
  document.body.append(dialog);
  finder.onclick = () => {
    // What has the focus now gets it back.
    finder.focus();
    dialog.showModal();
    input.select();
  };
  finder.click();
}
