"""# The places that a search can find

> Each section of a chapter, each heading of a page of prose, each row of the glossary is one.

A place has a name (a definition its qualified name, a heading its words), the text below it, and its code.
All of it is taken from the page's words in one language; what a translation lacks is in the original there,
as it is on the page.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markdown_it.token import Token

from sidelit.cache.records import quick
from sidelit.site.content import PageSection
from sidelit.site.edition import Page, SectionText
from sidelit.text import markup

# What a place is: its name is compared with a query accordingly.
WORDS, SYMBOL, TERM, WORK = 0, 1, 2, 3


@quick
@dataclass(frozen=True, slots=True)
class SearchPlace:
    """One answer that a search may give: `id` on its page, empty for the page itself."""

    id: str
    title: str
    """Empty where its id says what it is."""
    kind: int
    words: str
    code: str = ""
    foreign: bool = False
    """Whether its words are in the language that the site is written in, and not in the page's."""
    depth: bool = False
    """Whether it is folded: what few readers look for."""
    keywords: str = ""
    """What else it is found by, and does not say."""


def places(shown: Page) -> tuple[SearchPlace, ...]:
    """The places of the words and the code of a page, in its order."""
    return tuple(_headings(shown) if shown.source.prose else _sections(shown))


def _sections(shown: Page) -> Iterator[SearchPlace]:
    opening = _said(shown.lede)
    fold = None
    for number, (section, words) in enumerate(zip(shown.source.sections, shown.words, strict=True)):
        head = opening if number == 0 else ""
        if section.fold is not None and section.fold is not fold:
            head = f"{head} {_said(words.fold)}".strip()
        fold = section.fold
        yield _section(shown, section, words, head)


def _section(shown: Page, section: PageSection, words: SectionText, head: str) -> SearchPlace:
    module = section.kind == "module"
    title = shown.label if module else _said(words.title)
    code = _code(section)
    said = " ".join(filter(None, (head, _said(words.tokens))))
    named = module or (section.kind in ("class", "function") and "/" not in section.id)
    foreign = shown.original or words.state in ("stale", "missing")
    return SearchPlace(
        section.id, title, SYMBOL if named else WORDS, said, code, foreign, section.fold is not None
    )


def _code(section: PageSection) -> str:
    """The code without its colours, its indentation and its empty lines: one of them is shown in a result."""
    plain = html.unescape(re.sub(r"<[^>]*>", "", "\n".join(coloured for _, coloured in section.lines)))
    return "\n".join(filter(None, map(str.strip, plain.split("\n"))))


def _headings(shown: Page) -> Iterator[SearchPlace]:
    """A page of prose: what stands above its first heading belongs to the page."""
    place, title = "", shown.label
    held: list[Token] = [*shown.lede]
    states = [shown.lede_state]
    for words in shown.words:
        for index, token in enumerate(words.tokens):
            if token.type == "heading_open" and token.meta.get("slug"):
                yield _heading(shown, place, title, held, states)
                place, title = str(token.meta["slug"]), _said([words.tokens[index + 1]])
                held, states = [], [words.state]
            else:
                held.append(token)
    yield _heading(shown, place, title, held, states)


def _heading(
    shown: Page, place: str, title: str, held: Sequence[Token], states: Sequence[str | None]
) -> SearchPlace:
    foreign = shown.original or any(state in ("stale", "missing") for state in states)
    return SearchPlace(place, title, WORDS, _said(held).removeprefix(title).strip(), foreign=foreign)


def _said(tokens: Sequence[Token]) -> str:
    """Words, samples of code and the names of parameters; formulas only as far as they read as words."""
    return " ".join(filter(None, map(_plain, tokens)))


def _plain(token: Token) -> str:
    if token.type == "inline":
        children = (child for child in token.children or () if not child.type.startswith("html"))
        return markup.plain(_LEFT_OUT if _is_sign(child) else child for child in children)
    if token.type in ("fence", "code_block"):
        return " ".join(token.content.split())
    # `:param size:` is shown as the row of `size`.
    return token.content.split()[-1] if token.type == "field_name" and " " in token.content else ""


def _is_sign(token: Token) -> bool:
    return token.type.startswith("math") and "\\" in token.content


# Stands where a sentence has a formula that does not read as words.
_LEFT_OUT = Token("text", "", 0, content="…")
