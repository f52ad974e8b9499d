"""# Cards of names

> A link in code says what it leads to before a reader follows it: how the name is defined, and the first
> sentence of its docstring.

Beside the page of each source lies a script, `ring.cards.js` beside `ring.html`. A reader's first question
about a name of that page loads it. It does nothing but hand over a table, since a page on a disk may read no
other file. It holds every definition of the page, whoever links to it, so it changes with its own page alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from html import unescape

from markdown_it.token import Token

from sidelit.config import Chapter
from sidelit.site.content import Piece
from sidelit.site.edition import Page, Words

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
    if not isinstance(shown.text.item, Chapter):
        return b""
    rows = [_module(shown), *_definitions(shown), *_variables(shown)]
    table = [shown.label, shown.label_lang or "", rows]
    return f"cards={json.dumps(table, ensure_ascii=False, separators=(',', ':'))};\n".encode()


# A row: what a link to it ends in, its code, its first sentence, its number, the language of the sentence.
Row = tuple[str, str, str, str, str]


def _module(shown: Page) -> Row:
    item = shown.text.item
    said = _sentence(_words(shown.lede))
    lang = shown.source_lang if shown.lede_state in _FOREIGN else ""
    return "", getattr(item, "module", "") or shown.label, said, str(shown.text.number or ""), lang


def _definitions(shown: Page) -> Iterator[Row]:
    for piece, words in zip(shown.text.pieces, shown.words, strict=True):
        if piece.kind in ("class", "function"):
            said, lang = _said(words, shown)
            yield piece.id, _header(piece), said, piece.number, lang


def _variables(shown: Page) -> Iterator[Row]:
    """The first lines that bind a name of a module or of a class, or an attribute of `self`.

    A comment is about the line below it.
    """
    functions = {piece.qualname for piece in shown.text.pieces if piece.kind == "function"}
    known: set[tuple[str, str]] = set()
    for piece, words in zip(shown.text.pieces, shown.words, strict=True):
        inside = piece.qualname in functions
        around = piece.qualname.rpartition(".")[0] if inside else piece.qualname
        for place, (number, html) in enumerate(piece.lines):
            code = _plain(html).strip()
            found = (_FIELD if inside else _VARIABLE).match(code)
            if found and (around, found[1]) not in known:
                known.add((around, found[1]))
                said, lang = _said(words, shown) if piece.kind == "comment" and place == 0 else ("", "")
                yield f"line-{number}", _cut(code, _CODE), said, piece.number, lang


# ## What is said


_FOREIGN = ("stale", "missing", "original")


def _said(words: Words, shown: Page) -> tuple[str, str]:
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


# ## Code


def _plain(html: str) -> str:
    return unescape(re.sub(r"<[^>]*>", "", _COMMENT.sub("", html)))


def _header(piece: Piece) -> str:
    """The first statement of a definition up to its colon, in one line, under its qualified name."""
    rows = [_COMMENT.sub("", html) for _, html in piece.lines]
    start = next((at for at, html in enumerate(rows) if _DEFINES.match(_plain(html))), None)
    if start is None:
        return piece.qualname
    text = " ".join(_until_colon("\n".join(rows[start:])).split())
    text = re.sub(r"([(\[{]) ", r"\1", re.sub(r",? ([)\]}])", r"\1", text))
    return _cut(
        re.sub(r"^((?:async )?(?:def|class)) \w+", lambda found: f"{found[1]} {piece.qualname}", text), _CODE
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
