r"""# Markup

> Markdown becomes tokens, and every sentence a reader may want translated is exactly one of them.

All text of a site passes through `parse`: docstrings, comment blocks, prose pages. The tokens are those of
markdown-it-py, with a promise on top: **a token of type `inline` is a unit of translation, and nothing
else is.** Its `content` keeps the inline Markdown, so that a translator sees `code` and $N_d$ as they were
written. Names of fields, labels that the press itself chooses, code and displayed formulas have other types.

`token.map` counts lines from 0 in the text; `line_of` turns it into a line of the file.
"""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token

from sidelit.text import dialect


@dataclass(frozen=True, slots=True)
class Opening:
    """How a chapter begins: its title, the one-sentence lede, and all that follows.

    `title` is the inline token of the first heading, `lede` the tokens inside the blockquote after it.
    """

    title: Token | None
    lede: tuple[Token, ...]
    rest: tuple[Token, ...]


def parse(text: str, *, path: str = "", first_line: int = 1, directives: bool = False) -> tuple[Token, ...]:
    """Parse Markdown into tokens.

    :param text: the Markdown, as it is on the page.
    :param path: the file it comes from, which messages name.
    :param first_line: the line of that file on which the text starts.
    :param directives: whether a line `::: NAME` begins a directive, as on pages; commentary has none.
    """
    env: dict[str, Any] = {}
    tokens = _parser(directives).parse(_printable(text), env)
    shared = {"references": env.get("references", {}), "footnotes": _footnotes(tokens)}
    for token in tokens:
        token.meta.update(path=path, first_line=first_line)
    for before, token in itertools.pairwise(tokens):
        if before.type == "fieldlist_name_open":
            _name_field(token)
        elif before.type == "admonition_title_open" and token.content == _made_up_title(before):
            token.type = "admonition_label"
        if token.type == "inline":
            token.meta.update(shared)
    slug_headings(tokens)
    # A name stands on a line of its own before a title, and the text still begins with its title.
    return tuple(sorted(tokens, key=lambda token: token.type == "anchor"))


def line(text: str, *, path: str = "", number: int = 1) -> tuple[Token, ...]:
    """Parse one line as a paragraph, whatever it begins with: `2. Later` is no list here.

    :param number: where in the file it stands.
    """
    meta = {"references": {}, "footnotes": {}, "path": path, "first_line": number}
    opening = Token("paragraph_open", "p", 1, block=True)
    inline = reinline(Token("inline", "", 0, level=1, block=True, meta=meta), text)
    return opening, inline, Token("paragraph_close", "p", -1, block=True)


# What HTML forbids: control characters, half surrogate pairs, code points that will never be characters.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")


def _printable(text: str) -> str:
    """Replace what no page can hold by the replacement character; an evaluated docstring may contain it.

    A form feed is a blank to Python, and nothing to a page.
    """
    return _FORBIDDEN.sub("\ufffd", text.replace("\f", " "))


@functools.cache
def _parser(directives: bool = False) -> MarkdownIt:
    return dialect.configured(directives=directives)


def _footnotes(tokens: Iterable[Token]) -> dict[str, int]:
    """The number of each footnote by its label, so that a translated sentence can refer to it again."""
    return {token.meta["label"]: token.meta["id"] for token in tokens if token.type == "footnote_open"}


def _name_field(token: Token) -> None:
    """Turn the name of a field into a token of its own: `param int x` is code, nobody translates it."""
    kind, _, rest = token.content.strip().partition(" ")
    token.type = "field_name"
    token.meta.update(kind=kind.lower(), argument=rest.strip())
    token.children = _parser().parseInline(rest.strip())[0].children


def _made_up_title(title_open: Token) -> str:
    # Without a title the plugin makes one up (`!!! note` gives `Note`); the press has its own words for it.
    return title_open.markup.split()[-1].title()


# The ids that templates and footnotes have on a page.
_PAGES_OWN = re.compile(r"main-text|note-\d+|(?:title-|lede-)?ref-\d+-\d+")


def slug_headings(tokens: Sequence[Token]) -> None:
    """Give each heading the id it may have on a page, from the English, so that every language shares it."""
    taken: set[str] = set()
    # The number to try next: with many headings of one name, none of the lower ones is tried again.
    numbers: dict[str, Iterator[int]] = {}
    for before, token in itertools.pairwise(tokens):
        if before.type == "heading_open":
            slug = name = heading_slug(plain(token)) or "section"
            while slug in taken or _PAGES_OWN.fullmatch(slug):
                slug = f"{name}-{next(numbers.setdefault(name, itertools.count(2)))}"
            before.meta["slug"] = slug
            taken.add(slug)


def reinline(token: Token, content: str, *, path: str | None = None, line: int | None = None) -> Token:
    """A copy of an inline token with another content: how a translation takes the English's place.

    :param path: the file the content comes from, when that is another one (a catalogue).
    :param line: its line there.
    """
    meta = dict(token.meta)
    if path is not None:
        meta["origin"] = (path, line or 1)
    counts = {number: {"label": label, "count": 0} for label, number in meta["footnotes"].items()}
    refs = {f":{label}": number for label, number in meta["footnotes"].items()}
    env = {"references": meta["references"], "footnotes": {"refs": refs, "list": counts}}
    content = _printable(content)
    children = _parser().parseInline(content, env)[0].children
    return token.copy(content=content, meta=meta, attrs=dict(token.attrs), children=children)


def units(tokens: Iterable[Token]) -> Iterator[Token]:
    """The translatable units among `tokens`, in the order of the text."""
    return (token for token in tokens if token.type == "inline" and token.content.strip())


def anchors(tokens: Iterable[Token]) -> Iterator[str]:
    """The names that `<a id="…">` gives to places in the text, but for those that are the page's own."""
    for token in tokens:
        if token.type == "anchor" and not _PAGES_OWN.fullmatch(token.content):
            yield token.content
        yield from anchors(token.children or ())


def opening(tokens: Sequence[Token]) -> Opening:
    """Split a chapter into title (a first heading of level 1), lede (a blockquote after it) and rest."""
    title: Token | None = None
    if len(tokens) >= 3 and tokens[0].type == "heading_open" and tokens[0].tag == "h1":
        title, tokens = tokens[1], tokens[3:]
    if title is None or not tokens or tokens[0].type != "blockquote_open":
        return Opening(title, (), tuple(tokens))
    end = next(
        index for index, token in enumerate(tokens) if token.type == "blockquote_close" and token.level == 0
    )
    return Opening(title, tuple(tokens[1:end]), tuple(tokens[end + 1 :]))


def plain(tokens: Token | Iterable[Token]) -> str:
    """The words alone, for titles, descriptions and slugs: no markup, formulas as their TeX, one line."""
    parts: list[str] = []
    for token in (tokens,) if isinstance(tokens, Token) else tokens:
        if token.children is not None:
            parts.append(plain(token.children))
        elif token.type in ("softbreak", "hardbreak") or (token.nesting == -1 and token.block):
            parts.append(" ")
        elif token.type not in ("footnote_ref", "footnote_anchor", "anchor"):
            parts.append(token.content)
    return re.sub(r"\s+", " ", "".join(parts)).strip()


def heading_slug(text: str, words: int = 8) -> str:
    """The first words of `text` in ASCII lower case, joined by hyphens; empty when it has none."""
    ascii_text = unicodedata.normalize("NFKD", text.casefold()).encode("ascii", "ignore").decode()
    return "-".join(re.findall(r"[a-z0-9]+", ascii_text)[:words])


def line_of(token: Token, parent: Token | None = None) -> int:
    """The line of the file on which `token` starts; a child of an inline token needs that token too.

    A translated unit answers with its line in the catalogue, where the mistake would have to be mended.
    """
    owner = parent or token
    if "origin" in owner.meta:
        return int(owner.meta["origin"][1])
    first = owner.meta.get("first_line", 1)
    start = owner.map[0] if owner.map else 0
    return int(first + start + (token.meta.get("line", 0) if parent else 0))


def path_of(token: Token) -> str:
    """The file an inline token's content comes from: the source, or the catalogue of its translation."""
    return str(token.meta["origin"][0] if "origin" in token.meta else token.meta.get("path", ""))
