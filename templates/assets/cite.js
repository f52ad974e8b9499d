// A section is cited in a dialog: the page's own box once more, with the section's id, number, name and address in
// the blanks. What can be copied gets a button, where a browser lets a page copy.
"use strict";

if (one("details.cite")) {
  const box = one("details.cite");
  const { dataset: words } = box;
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
    const label = section.dataset.title ?? (one(".acts", section) ? id : section.textContent);
    const at = one(".acts .at", section)?.textContent ?? "";
    const anchor = encodeURIComponent(id).replaceAll("%2F", "/").replaceAll("%3A", ":");
    const url = words.base ? words.base + anchor : one(".acts .source", section)?.href ?? words.url;
    const filled = one("template", box).content.cloneNode(true);
    for (const form of all(".form", filled)) {
      const say = written[form.dataset.form];
      // The key of an entry, which comes first, has the id as it is.
      const text = one("pre", form);
      const keyed = text.textContent.replace(":◰", `:${id}`);
      const said = { "◰": say(id), "◱": at.slice(2), "◲": say(label), "◳": url };
      text.textContent = keyed.replace(/[◰-◳]/g, (blank) => said[blank] ?? "");
    }
    const link = one(".link", filled);
    if (link) link.textContent = link.href = url;
    copying(filled);
    const close = button("close", ["×"], () => dialog.close());
    close.ariaLabel = words.close;
    dialog.ariaLabel = words.what.replace("{what}", `${at} ${label}`.trim());
    dialog.replaceChildren(close, make("h2", "", [dialog.ariaLabel]), filled);
    dialog.showModal();
  };

  copying(box);
  if (one("template", box)) {
    document.body.append(dialog);
    for (const section of all("main :is(.sec:not(.taken), :is(.essay, .text) > :is(h2, h3))[id]")) {
      let acts = all(".acts", section).find((line) => line.closest(".sec") === section);
      // Beside a heading of prose the line is made here.
      if (!acts) section.after(acts = make("p", "aside"));
      acts.append(button("citing", [words.cite], () => cite(section)));
    }
  }
}
