"""Hostile words on pages in a browser: nothing of them runs, asks for anything or breaks a page.

What is typed lies in `tests/press/data/hostile`; here all of it is printed into few pages, which are opened.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import polib
import pytest
from playwright.sync_api import Browser

from browser.conftest import Window
from browser.serving import serve
from browser.test_validity import complaints
from press.hostile import cases, limited
from press.project import sidelit

pytestmark = pytest.mark.full

SCRIPTS = cases.read("scripts")
# A policy that was broken is told to the page, before anything of the page runs.
LISTEN = """
window.broken = [];
document.addEventListener("securitypolicyviolation",
  (event) => window.broken.push(`${event.violatedDirective}: ${event.blockedURI} ${event.sample}`));
"""
# What no page of ours has, wherever it came from.
LOOK = r"""
() => {
  const found = [...window.broken.map((what) => `policy: ${what}`)];
  if (window.hacked) found.push("a program ran");
  if (typeof document.getElementById !== "function" || document.body.tagName !== "BODY") {
    found.push("a name hides a part of the page");
  }
  const tags = "iframe object embed base form frame applet portal marquee video audio dialog style"
    + " foreignObject animate set handler maction";
  const parts = [document, ...[...document.querySelectorAll("template")].map((each) => each.content)];
  const all = (what) => parts.flatMap((part) => [...part.querySelectorAll(what)]);
  for (const element of all(tags.split(" ").join(","))) {
    if (!(element.localName === "dialog" && element.closest("body") && element.classList.length)) {
      found.push(`an element: ${element.outerHTML.slice(0, 80)}`);
    }
  }
  for (const meta of all("meta[http-equiv]")) {
    if (!/^(content-security-policy|x-ua-compatible)$/i.test(meta.httpEquiv)) found.push(meta.outerHTML);
  }
  for (const script of all("script")) {
    const data = /json$/.test(script.type);
    if (data) JSON.parse(script.textContent);
    else if (!new URL(script.src, location.href).pathname.includes("/assets/")) found.push(script.outerHTML);
  }
  const fetches = /^(src|srcset|action|formaction|data|poster|background|ping|xlink:href)$/i;
  for (const element of all("*")) {
    for (const { name, value } of element.attributes) {
      const said = `${element.localName} ${name}=${value.slice(0, 60)}`;
      if (/^on/i.test(name)) found.push(`a handler: ${said}`);
      if (name === "style" && /url|expression|fixed|@/i.test(value)) found.push(`a style: ${said}`);
      if (!/^href$/i.test(name) && !fetches.test(name)) continue;
      let address = null;
      try { address = new URL(value, location.href); } catch { continue; }
      const link = element.localName === "a" || /^(license|canonical)$/.test(element.rel);
      const elsewhere = address.origin !== location.origin;
      if (elsewhere && !(link && /^(https?|mailto):$/.test(address.protocol))) {
        found.push(`an address: ${said}`);
      }
    }
  }
  return found;
}
"""


# What a page may do as far as HTML goes: its words may be odd, and its headings those of an author.
ADVICE = ("Normalization Form C", "Consider using the “h1”", "Private Use Area", "Charmod")
# What no source can hold, and no catalogue.
FORBIDDEN = r"[\0-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029]"


class Words:
    """A project that says each hostile text in every place that shows words."""

    def __init__(self, folder: Path) -> None:
        self.root = limited.replaced(folder, {"path": "site/notes.txt", "text": ""})
        self.texts = [cases.text(case) for case in SCRIPTS.values()]
        self.source()
        self.page()
        self.translations()
        self.data()

    def source(self) -> None:
        """A docstring and a comment for each, and their names in strings."""
        parts = ['"""# Hostile\n\n> Words.\n"""\n']
        for number, text in enumerate(self.texts):
            lines = re.split(r"[\r\n]", text.replace("\0", ""))
            comment = "\n".join(f"    # {line}" for line in lines)
            docstring = repr(text)
            if "$" in text:
                # A formula is read as it is written, and so half a character cannot be written by its number.
                docstring = f'r"""{re.sub(FORBIDDEN, "", text)} """'
            parts.append(f"\n\ndef case_{number}():\n    {docstring}\n\n{comment}\n    x = {text!r}\n")
        text = "".join(parts)
        (self.root / "src/sample/ring.py").write_bytes(text.encode("utf-8", "surrogatepass"))

    def page(self) -> None:
        """A section of a page for each, but for those that begin what only their own end would end."""
        said = [text for text in self.texts if ":::" not in text and "~~~" not in text and "[^" not in text]
        words = "\n\n".join(f"## Case {number}\n\n{text}" for number, text in enumerate(said))
        (self.root / "site/pages/index.md").write_text(f"# Hostile\n\n{words}\n", "utf-8")
        (self.root / "site/pages/notes/reading.md").write_text("# A\n\n::: figure bars\n:::\n", "utf-8")

    def translations(self) -> None:
        """A translation of a harmless sentence for each."""
        window = self.root / "src/sample/tools/window.py"
        harmless = "\n\n".join(f"Sentence {number}." for number in range(len(self.texts)))
        window.write_text(f'"""# A window\n\n{harmless}\n"""\n', "utf-8")
        sidelit("sync", cwd=self.root)
        path = self.root / "site/locale/ja/sample/tools/window.po"
        catalogue = polib.pofile(str(path), wrapwidth=0)
        for entry in catalogue:
            if found := re.fullmatch(r"Sentence (\d+)\.", entry.msgid):
                # What a catalogue cannot hold is refused at its line.
                entry.msgstr = re.sub(
                    r"[\0-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]", " ", self.texts[int(found[1])]
                )
        catalogue.save()

    def data(self) -> None:
        """All files of data that are printed rather than refused, at once."""
        wanted = (
            *("a title with a script", "a tagline with a script", "a part with a script"),
            *("a number of a part with a script", "a command with a script", "a licence with a script"),
            *("a term with a script", "a work with scripts", "a recording with words that are scripts"),
            *("words of a figure with a script", "a citation file with scripts"),
        )
        known = cases.read("data")
        for name in wanted:
            path = self.root / known[name]["path"]
            if "old" in known[name]:
                before = path.read_text("utf-8")
                path.write_text(before.replace(known[name]["old"], known[name]["new"]), "utf-8")
            else:
                path.write_text(cases.text(known[name]), "utf-8")


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A folder with a site, pages of sources and pages of files with odd names; and its address."""
    folder = tmp_path_factory.mktemp("hostile")
    site = folder / "printed"
    site.mkdir()
    project = Words(folder)
    sidelit("build", "--keep-going", "--out", site / "site", cwd=project.root)
    foreign = folder / "foreign"
    foreign.mkdir()
    for number, case in enumerate(cases.read("sources").values()):
        if len(text := cases.text(case)) < 5000:
            (foreign / f"module_{number}.py").write_bytes(text.encode("utf-8", "surrogatepass"))
    sidelit("print", foreign, project.root / "src", "--out", site / "sources", cwd=folder)
    named = folder / "named"
    named.mkdir()
    for name in cases.file_names():
        for path in (named / name, named / "package" / "__init__.py"):
            path.parent.mkdir(exist_ok=True)
            path.write_text('"""# A title"""\nimport os\n', "utf-8")
    sidelit("print", named, "--out", site / "files", cwd=folder)
    with serve(site) as address:
        yield site, address


@pytest.mark.nightly
def test_nothing_hostile_runs_on_a_page(printed: tuple[Path, str], browser: Browser) -> None:
    site, address = printed
    window = Window(browser, address, scripts=True)
    dialogs: list[str] = []
    window.page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    window.page.add_init_script(LISTEN)
    pages = [*site.glob("site/**/*.html"), site / "sources/index.html", site / "files/contents.html"]
    pages += [*sorted(site.glob("sources/**/ring.html")), *sorted(site.glob("files/*.html"))[:4]]
    pages += sorted(site.glob("sources/**/module_*.html"))[:8]
    assert len(pages) > 20
    found = {}
    for path in dict.fromkeys(pages):
        page = window.open(quote(path.relative_to(site).as_posix()))
        page.mouse.move(300, 300)
        if said := page.evaluate(LOOK):
            found[path.name] = said
    window.page.context.close()
    assert found == {}
    assert dialogs == []
    window.verdict()


def test_nothing_hostile_breaks_a_page(printed: tuple[Path, str]) -> None:
    site, _ = printed
    names = ("index.html", "ring.html", "ja/tools/window.html", "glossary.html")
    paths = [site / "site" / name for name in names] + [site / "files/contents.html"]
    said = complaints(*paths, *sorted(site.glob("sources/**/module_?.html")))
    assert [each for each in said if not any(words in each for words in ADVICE)] == []
