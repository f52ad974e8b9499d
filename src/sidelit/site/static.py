"""# Static files

> What lies beside the pages: pictures, the files for programs that read a site, and cards of names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from html import unescape
from urllib.parse import urlsplit
from xml.etree import ElementTree

from markdown_it.token import Token

from sidelit.config.chapters import Chapter
from sidelit.config.config import Config
from sidelit.errors import SidelitError
from sidelit.files import assets
from sidelit.site import context, data_pages, links, metadata, navigation, pictures
from sidelit.site.content import PageSection
from sidelit.site.context import BuildContext
from sidelit.site.edition import Page, SectionText
from sidelit.site.metadata import Project
from sidelit.theme import Theme

# ## Files beside the pages
#
# > Pictures and other files go into the site as they are, unless a browser would run something in them.
#
# A page of the press carries a policy that allows no program but the press's own. A file that lies beside the
# pages carries none, so it may not be one that a browser opens as a page: no HTML, no drawing with a script.


# What a browser shows as a page when it is opened by itself.
_PAGES = (".html", ".htm", ".xhtml", ".xht", ".shtml", ".mhtml", ".mht", ".xml", ".xsl")


def static_files(config: Config, theme: Theme, made: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files of the press, those that it has `made`, and those that lie beside the pages of prose.

    Raises `SidelitError` for one that is a page of its own, lies elsewhere, or has the place of another.
    """
    found = {f"assets/{name}": content for name, content in assets.served(theme.assets).items()} | dict(made)
    for name in data_pages.pictures(config):
        path = config.folder / "pages" / name
        shown = f"{links.pages_folder(config)}/{name}"
        assets.refuse_outside(path, config.project, shown)
        if name.lower().endswith(_PAGES):
            what = "an HTML file beside the pages would have none of their policy, languages and checks"
            raise SidelitError(what, path=shown, hint="write it as Markdown")
        if name in found:
            what = f"two files would be written to {name}, and one of them is the press's own"
            raise SidelitError(what, path=shown, hint="give it another name")
        content = assets.data(path)
        if name.lower().endswith(".svg") and pictures.runs(content):
            what = "this drawing holds a program, which would run when a reader opens it by itself"
            raise SidelitError(
                what, path=shown, hint="remove its scripts, handlers, entities and stylesheets"
            )
        found[name] = content
    return found


# ## Files for programs
#
# > A page that is not there, a list of those that are, the releases, and the pictures that networks show.
#
# All of them need the public address; without one there are none. Of a site with several versions, only the
# newest one has more than pictures: programs need no list of pages that are out of date.


NOT_FOUND = "404.html"
_SITEMAP = "http://www.sitemaps.org/schemas/sitemap/0.9"
_XHTML = "http://www.w3.org/1999/xhtml"


def public_files(build: BuildContext, project: Project) -> dict[str, bytes]:
    """The files of a site that are no pages of its text, by their names."""
    config = build.config
    if not config.public.url:
        return {}
    made: dict[str, bytes] = {}
    if not config.public.base:
        made = {NOT_FOUND: _not_found(build), "sitemap.xml": _sitemap(build)}
        if project.releases:
            made[metadata.NAME] = metadata.atom(config, project.credits, project.releases)
    for path in sorted((config.folder / metadata.CARDS).rglob("*.png")):
        made[f"{metadata.CARDS}/{path.relative_to(config.folder / metadata.CARDS).as_posix()}"] = assets.data(
            path
        )
    return made


def _not_found(build: BuildContext) -> bytes:
    """What a server shows for an address that leads nowhere, whatever its depth.

    So its addresses begin at the root of the server, and the public address tells the path from there.
    """
    config = build.config
    root = urlsplit(config.public.here).path
    languages = [config.language(code) for code in config.languages]
    homes = [f"{root}{navigation.address(config, config.home, code)}" for code in config.languages]
    values = {"languages": list(zip(languages, homes, strict=True)), "root": root, "title": config.title}
    return context.fragment(NOT_FOUND, languages[0], build.theme, values).encode()


def _sitemap(build: BuildContext) -> bytes:
    """Every page in every language, each with where it is in the others."""
    config = build.config
    top = ElementTree.Element("urlset", {"xmlns": _SITEMAP, "xmlns:xhtml": _XHTML})
    for lang in config.languages:
        edition = build.editions[lang]
        pages = [each for each in edition.pages.values() if not each.original]
        for shown in (*pages, *([navigation.contents(config, edition)] if len(pages) > 1 else ())):
            entry = ElementTree.SubElement(top, "url")
            ElementTree.SubElement(entry, "loc").text = metadata.address(config, shown, lang)
            for tag, other in metadata.alternates(config, shown):
                link = {"rel": "alternate", "hreflang": tag, "href": other}
                ElementTree.SubElement(entry, "xhtml:link", link)
    return metadata.written(top)


# ## Cards of names
#
# > A link in code says what it leads to before a reader follows it: how the name is defined, and the first
# > sentence of its docstring.
#
# Beside the page of each source lies a script, `ring.cards.js` beside `ring.html`. A reader's first question
# about a name of that page loads it. It does nothing but hand over a table, since a page on a disk may read
# no other file. It holds every definition of the page, whoever links to it, so it changes with its own page
# alone.


# How long a card may be, in characters; what is longer can be read where the link leads.
_CODE, _SAID = 320, 280

# A sentence ends at a full stop of East Asia, or of the West with a blank and no small letter behind it.
_END = re.compile(
    r"[。！？](?![」』）])|(?<!\be\.g)(?<!\bi\.e)(?<!\bcf)(?<!\bvs)[.!?][\"')\]]*(?=\s+[^a-z\s])"
)
_COMMENT = re.compile(r'<span class="c\w*">.*?</span>')
_PART = re.compile(r'(?P<string><span class="s\w*">.*?</span>)|<[^>]*>|(?P<text>[^<]+)')
_DEFINES = re.compile(r"\s*(?:async\s+)?(?:def|class)\s")
_VARIABLE = re.compile(r"(\w+)(?:, \w+)* *(?::|=(?!=))")
_FIELD = re.compile(r"self\.(\w+)(?:, self\.\w+)* *(?::|=(?!=))")


def address(output: str) -> str:
    """Where the cards of a page lie."""
    return f"{output.removesuffix('.html')}.cards.js"


def script(shown: Page) -> bytes:
    """The cards of a page in its language; empty if it is no page of a source."""
    if not isinstance(shown.source.item, Chapter):
        return b""
    rows = [_module(shown), *_definitions(shown), *_variables(shown)]
    table = [shown.label, shown.label_lang or "", rows]
    return f"cards={json.dumps(table, ensure_ascii=False, separators=(',', ':'))};\n".encode()


# A row: what a link to it ends in, its code, its first sentence, its number, the language of the sentence.
Row = tuple[str, str, str, str, str]


def _module(shown: Page) -> Row:
    item = shown.source.item
    said = _sentence(_words(shown.lede))
    lang = shown.source_lang if shown.lede_state in _FOREIGN else ""
    return "", getattr(item, "module", "") or shown.label, said, str(shown.source.number or ""), lang


def _definitions(shown: Page) -> Iterator[Row]:
    for section, words in zip(shown.source.sections, shown.words, strict=True):
        if section.kind in ("class", "function"):
            said, lang = _said(words, shown)
            yield section.id, _header(section), said, section.number, lang


def _variables(shown: Page) -> Iterator[Row]:
    """The first lines that bind a name of a module or of a class, or an attribute of `self`.

    A comment is about the line below it.
    """
    functions = {section.qualname for section in shown.source.sections if section.kind == "function"}
    known: set[tuple[str, str]] = set()
    for section, words in zip(shown.source.sections, shown.words, strict=True):
        inside = section.qualname in functions
        around = section.qualname.rpartition(".")[0] if inside else section.qualname
        for place, (number, html) in enumerate(section.lines):
            code = _plain(html).strip()
            found = (_FIELD if inside else _VARIABLE).match(code)
            if found and (around, found[1]) not in known:
                known.add((around, found[1]))
                said, lang = _said(words, shown) if section.kind == "comment" and place == 0 else ("", "")
                yield f"line-{number}", _cut(code, _CODE), said, section.number, lang


# ### What a card says


_FOREIGN = ("stale", "missing", "original")


def _said(words: SectionText, shown: Page) -> tuple[str, str]:
    """The first sentence of a docstring, and its language where that is not the page's."""
    opens = words.tokens and words.tokens[0].type == "paragraph_open"
    state = words.tokens[0].attrGet("data-state") if opens else words.state
    said = _sentence(_words(words.tokens[1:2] if opens else words.title))
    return said, shown.source_lang if said and (shown.original or state in _FOREIGN) else ""


def _words(tokens: Sequence[Token]) -> str:
    """Plain words, with code between backticks."""
    parts = (child for token in tokens for child in token.children or ())
    return " ".join("".join(map(_part, parts)).split())


def _part(token: Token) -> str:
    if token.type == "code_inline":
        return f"`{token.content.replace('`', '')}`"
    if token.type in ("softbreak", "hardbreak"):
        return " "
    silent = token.type.startswith(("html", "footnote", "anchor"))
    return "" if silent else token.content.replace("`", "")


def _sentence(text: str) -> str:
    end = _END.search(text)
    return _cut(text[: end.end()] if end else text, _SAID)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most].rstrip()}…"


# ### The code on a card


def _plain(html: str) -> str:
    return unescape(re.sub(r"<[^>]*>", "", _COMMENT.sub("", html)))


def _header(section: PageSection) -> str:
    """The first statement of a definition up to its colon, in one line, under its qualified name."""
    rows = [_COMMENT.sub("", html) for _, html in section.lines]
    start = next((at for at, html in enumerate(rows) if _DEFINES.match(_plain(html))), None)
    if start is None:
        return section.qualname
    text = " ".join(_until_colon("\n".join(rows[start:])).split())
    text = re.sub(r"([(\[{]) ", r"\1", re.sub(r",? ([)\]}])", r"\1", text))
    return _cut(
        re.sub(r"^((?:async )?(?:def|class)) \w+", lambda found: f"{found[1]} {section.qualname}", text),
        _CODE,
    )


def _until_colon(html: str) -> str:
    """The program in coloured lines up to the first colon outside of brackets; a string may hold any sign."""
    made, depth = "", 0
    for part in _PART.finditer(html):
        if part["string"]:
            made += _plain(part["string"])
        for sign in unescape(part["text"] or ""):
            depth += (sign in "([{") - (sign in ")]}")
            if sign == ":" and depth == 0:
                return made
            made += sign
    return made
