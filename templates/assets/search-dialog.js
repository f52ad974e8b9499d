// The search as a dialog: what is typed finds links to sections, and the arrow keys walk them.
"use strict";

{
  const { ui, version } = searching.about();
  const input = make("input", "", [], { type: "search", placeholder: ui.hint, ariaLabel: ui.label, autocomplete: "off", spellcheck: false });
  const count = make("p", "count", [], { role: "status" });
  const list = make("ol", "");
  const close = () => dialog.close();
  const dialog = make("dialog", "search", [input, button("", ["×"], close), count, list], { ariaLabel: ui.label });
  dialog.children[1].ariaLabel = ui.close;

  const parts = {};
  const part = (name) => (parts[name] ??= script(`${searchWords.index + name}.js?${version}`));
  const entry = (place, marks) => {
    const words = make("span", "excerpt");
    part(`text-${place.at}`).then(() => {
      const { parts, code, lang } = searching.excerpt(place, marks);
      words.append(...parts.map(([text, marked]) => (marked ? make("mark", "", [text]) : text)));
      words.classList.toggle("code", code);
      if (lang) words.lang = lang;
    });
    const title = make(place.code ? "code" : "b", "", [place.title]);
    const page = make("span", "page", [place.page], place.lang ? { lang: place.lang } : {});
    const href = searchWords.pages + place.address + (place.id && `#${encodeURI(place.id)}`);
    return make("li", "", [make("a", "", [title, page, words], { href })]);
  };
  const show = async () => {
    const query = input.value;
    try {
      await Promise.all(searching.needs(query).map((number) => part(`words-${number}`)));
    } catch {
      count.textContent = ui.failed;
    }
    // Meanwhile somebody may have typed on.
    if (query !== input.value) return;
    const { found, marks, total } = searching.rank(query);
    list.replaceChildren(...found.map((place) => entry(place, marks)));
    const said = total > found.length ? ui.best : total ? ui.count : ui.none;
    count.textContent = query.trim() && said.replace("{shown}", found.length).replace("{count}", total);
  };

  input.oninput = show;
  dialog.onkeydown = (event) => {
    const { key, target, isComposing } = event;
    // The keys of the page rest; those of an input method are its own.
    event.stopPropagation();
    if (isComposing) return;
    const stops = [input, ...all("a", list)];
    const step = { ArrowDown: 1, ArrowUp: -1 }[key];
    if (step) {
      event.preventDefault();
      stops[stops.indexOf(target) + step]?.focus();
    } else if (key === "Enter" && target === input) {
      stops[1]?.click();
    } else if (key.length === 1 && target.href) {
      input.focus();
    } else if (key === "Escape") {
      event.preventDefault();
      close();
    }
  };
  dialog.onclick = ({ target, ctrlKey, metaKey, shiftKey }) => {
    if (target === dialog || (target.closest("a") && !ctrlKey && !metaKey && !shiftKey)) close();
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
