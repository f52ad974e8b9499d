// A section is cited in a dialog: the page's own box once more, with the section's id, number, name and address in
// the blanks. What can be copied gets a button, where a browser lets a page copy.
"use strict";

{
  const box = one("details.cite");
  const words = box.dataset;
  const dialog = make("dialog", "cite", [], { closedBy: "any" });
  const tex = (text) => text.replace(/[{}\\]/g, "").replace(/[%&#_$]/g, "\\$&");
  const json = (text) => JSON.stringify(text).slice(1, -1);
  const written = { apa: (text) => text, bibtex: tex, csl: json };

  const copying = (within) => {
    if (!navigator.clipboard) return;
    for (const form of all(".form", within)) {
      const copy = button("copy", [words.copy], () => {
        navigator.clipboard.writeText(one("pre", form).textContent).then(() => { copy.textContent = words.copied; }, () => {});
      });
      one("dt", form).append(copy);
    }
  };

  const cite = (section) => {
    const { id } = section;
    const label = section.dataset.title ?? id;
    const number = one(".acts .at", section)?.textContent.replace("§ ", "") ?? "";
    const anchor = encodeURIComponent(id).replaceAll("%2F", "/").replaceAll("%3A", ":");
    const url = words.base ? words.base + anchor : one(".acts .source", section)?.href;
    const filled = one("template", box).content.cloneNode(true);
    for (const form of all(".form", filled)) {
      const say = written[form.dataset.form];
      // The key of an entry, which comes first, has the id as it is.
      const text = one("pre", form);
      const keyed = text.textContent.replace(":◰", `:${id}`);
      const said = { "◰": say(id), "◱": number, "◲": say(label), "◳": url };
      text.textContent = keyed.replace(/[◰-◳]/g, (blank) => said[blank] ?? "");
    }
    const link = one(".link", filled);
    link.textContent = link.href = url ?? new URL(`#${anchor}`, location).href;
    copying(filled);
    const close = button("close", ["×"], () => dialog.close());
    close.ariaLabel = words.close;
    const title = make("h2", "", [words.what.replace("{what}", number ? `§ ${number} ${label}` : label)]);
    dialog.replaceChildren(close, title, filled);
    dialog.ariaLabel = title.textContent;
    dialog.showModal();
  };

  copying(box);
  if (one("template", box)) {
    document.body.append(dialog);
    for (const section of all("main section.sec")) {
      const acts = [...section.querySelectorAll(".acts")].find((line) => line.closest("section") === section);
      acts?.append(button("citing", [words.cite], () => cite(section)));
    }
  }
}
