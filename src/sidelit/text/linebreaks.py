"""# Where a line ends

> A name, an option and a number stay whole, a heading ends its lines behind a phrase, and no paragraph ends
> with one letter.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from html import unescape
from itertools import accumulate, pairwise

from sidelit.text.inline_syntax import CJK, is_cjk

# ## Code in a line
#
# > A line of code ends at a space: neither inside an option nor inside a path.
#
# A browser would end it behind any hyphen and slash. A sample is set line by line: what does not fit stands
# below its own line, further in than the line begins, so that Python looks indented as it is.

WHOLE = '<span class="whole">'
# A longer word of a sample, and of code in a sentence, has to be broken on a phone.
_LONG, _SHORT = 32, 22
_ANY = r"""<[^"'>]*(?:"[^"]*"[^"'>]*|'[^']*'[^"'>]*)*>"""
_PIECE = re.compile(rf"{_ANY}|[^<]+")
_WORD = re.compile(r"(?:&[#\w]+;|[^\s&])+")
_BREAKS = re.compile(r"[-/?!|\[{\u2013\u2026]")
# Behind these a long word of code may end its line, and a part of it that is too long yet behind those.
_BEHIND = re.compile(r"(?<=[./(,=:\[])(?=[^\s./(,=:\[)\]])")
_WITHIN = re.compile(r"(?<=_)(?=[^_])|(?<=[a-z])(?=[A-Z])")


def word(html: str) -> str:
    """Escaped code of a sentence with the places where its lines may end."""
    return _WORD.sub(_broken, html)


def _broken(found: re.Match[str]) -> str:
    if len(unescape(found[0])) <= _SHORT:
        return f"{WHOLE}{found[0]}</span>" if _BREAKS.search(found[0]) else found[0]
    parts = (
        part
        for piece in _BEHIND.split(found[0])
        for part in ([piece] if len(unescape(piece)) <= _SHORT else _WITHIN.split(piece))
    )
    return "<wbr>".join(_whole(part, _SHORT) for part in parts)


def _whole(html: str, most: int) -> str:
    fits = _BREAKS.search(html) and 1 < len(unescape(html)) <= most
    return f"{WHOLE}{html}</span>" if fits else html


def rows(html: str) -> str:
    """The HTML of a sample, in which every element ends on its line, as rows that stay indented."""
    return "".join(map(_row, re.findall(r"[^\n]*\n|[^\n]+", html)))


def _row(html: str) -> str:
    text = re.sub(r"<[^>]*>", "", html)
    indent = min(12, (len(text) - len(text.lstrip(" "))) // 2 * 2)
    # The blanks that a line begins with may stand inside of its first element.
    pieces = (
        piece if piece.startswith("<") else _WORD.sub(lambda it: _whole(it[0], _LONG), piece)
        for piece in _PIECE.findall(html)
    )
    return f'<span class="row{f" by-{indent}" if indent else ""}">{"".join(pieces)}</span>'


# ## Words without spaces
#
# > In Japanese and Chinese a line may end behind any letter. It reads better where it ends behind a phrase.
#
# Browsers know the phrases of Japanese alone, and not all browsers do. BudouX knows those of both languages
# and is a small table of weights. A name of two words in katakana is one phrase to it: such a name is cut
# where a term of the glossary ends.


_PARSERS = {
    "ja": "load_default_japanese_parser",
    "zh": "load_default_simplified_chinese_parser",
    "zh-Hant": "load_default_traditional_chinese_parser",
}
_KATAKANA = re.compile("[\u30a1-\u30fa\u30fc]{3,}")
# No line begins with these.
_CLOSING = re.compile("[、。，．！？：；）」』”’】％・ーぁぃぅぇぉっゃゅょァィゥェォッャュョ々…]")
_OPENING = re.compile("[（「『“‘【]$")
# The letters of the last line, and those of a phrase that may stand alone.
_LAST, _MOST, _LEAST = 4, 9, 2
# How many letters before its end tell where the last phrases of a paragraph begin.
_SEEN = 18
# The halves of an ideograph that the last letters take together with the code before them.
_ROOM = 26


class Phrases:
    """Cuts the words of a language into phrases; it knows some terms that are no phrase's middle."""

    def __init__(self, lang: str, terms: Iterable[str] = ()) -> None:
        import budoux

        self._parse: Callable[[str], list[str]] = getattr(budoux, _PARSERS[lang])().parse
        self._terms = tuple(filter(_KATAKANA.fullmatch, terms))
        self.cut = lru_cache(4096)(self._cut)

    def _cut(self, text: str) -> tuple[int, ...]:
        """The places of a text behind which a phrase begins."""
        pieces = [piece for phrase in self._parse(text) for piece in self._parts(phrase)]
        places = list(accumulate(map(len, pieces)))[:-1]
        return tuple(place for place in places if self._may(text, place))

    def _parts(self, phrase: str) -> Iterator[str]:
        """A phrase, or the terms that a long name in it consists of."""
        done = 0
        for found in _KATAKANA.finditer(phrase):
            ends = (found.start() + len(term) for term in self._terms if found[0].startswith(term))
            place = max((end for end in ends if end < found.end()), default=0)
            if place:
                yield phrase[done:place]
                done = place
        # A colon ends a phrase, whatever follows it.
        yield from filter(None, re.split("(?<=：)", phrase[done:]))

    @staticmethod
    def _may(text: str, place: int) -> bool:
        before, after = text[:place], text[place:]
        if _CLOSING.match(after) or _OPENING.search(before):
            return False
        return is_cjk(before[-1]) or is_cjk(after[0]) or not before[-1].isascii()


def is_cjk_language(tag: str) -> bool:
    """Whether a language is written in ideographs."""
    return tag.partition("-")[0] in _PARSERS


@lru_cache(8)
def phrases_of(tag: str, terms: tuple[str, ...] = ()) -> Phrases | None:
    """What cuts the words of a language into phrases, if they are known."""
    traditional = re.search(r"-(hant|tw|hk|mo)\b", tag.lower())
    lang = "zh-Hant" if traditional else tag.partition("-")[0]
    return Phrases(lang, terms) if lang in _PARSERS else None


# ## The lines of a page
#
# > One pass over the finished page finds the blocks of words in it.
#
# What is put in are elements alone. So a page that is copied, searched or read aloud has the letters that its
# author wrote.


# These hold no other of their kind.
_CLOSED = ("pre", "script", "style", "template", "button", "select")
_WHOLE = "|".join(rf"<{kind}\b(?s:.*?)</{kind}>" for kind in _CLOSED)
_TAG = re.compile(f"({_WHOLE}|{_ANY})")
_KIND = re.compile(r"</?([a-zA-Z][a-zA-Z0-9]*)")
_SKIPPED = {"svg", "math"}
_HEADS = {"h1", "h2", "h3", "h4", "h5", "h6", "th", "caption", "summary"}
_BLOCKS = {"p", "li", "dd", "dt", "td", "figcaption", *_HEADS}
_OTHERS = {"div", "ul", "ol", "dl", "table", "tr", "section", "aside", "blockquote", "figure", "details"}
_INLINE = {"a", "em", "strong", "b", "i", "code", "span", "cite", "small"}
_SAID = re.compile(r'class="[^"]*\b(?:lede|claim|question|title|kind|label)\b')
# A number with its range and what it counts.
_NUMBER = re.compile(
    r"(?<![\w.])[~≈≤≥+\u2212-]?\d(?:[\d.,]*\d)?"
    r"(?:[–]\d(?:[\d.,]*\d)?(?: ?[%×])?| [%×](?!\w)"
    r"| (?:[kMGTP]i?B(?:/s)?|[mµn]?s|Gbit/s|[TGP]?FLOPs?|GHz)(?!\w))"
)
_DIGIT = re.compile(r"\d")
# Behind an ideograph a browser makes room for a letter, and for a full stop of ASCII, which touches its word.
_STOP = re.compile(f"(?<={CJK.pattern})[!,.:;?]+")
# Stand for elements until the numbers are found: no page holds these characters.
_WBR, _OPEN, _CLOSE, _TOUCHES = "\ufdd0", "\ufdd1", "\ufdd2", "\ufdd3"
_MARKS = {
    ord(_WBR): "<wbr>",
    ord(_OPEN): WHOLE,
    ord(_CLOSE): "</span>",
    ord(_TOUCHES): '<span class="touches">',
}
_MARKED = re.compile(f"[{_WBR}{_OPEN}{_CLOSE}{_TOUCHES}]")
_SAMPLE = re.compile(r'(<pre class="(?:sample|printed)"[^>]*>(?:<code>)?)(.*?)(?=</code>|</pre>)', re.DOTALL)


def settle(html: str, phrases: Phrases | None = None) -> str:
    """A page with the places where lines end, in its main part."""
    before, opening, rest = html.partition("<main")
    main, closing, after = rest.partition("</main>")
    if not closing:
        return html
    main = _SAMPLE.sub(lambda found: found[1] + rows(found[2]), main)
    parts = _TAG.split(opening + main)
    words, code = _find(parts, phrases)
    for at in code:
        parts[at] = parts[at] if _MARKED.search(parts[at]) else word(parts[at])
    for at in words:
        if _DIGIT.search(parts[at]):
            parts[at] = _NUMBER.sub(f"{_OPEN}\\g<0>{_CLOSE}", parts[at])
        if phrases is not None:
            parts[at] = _STOP.sub(f"{_TOUCHES}\\g<0>{_CLOSE}", parts[at])
        if _MARKED.search(parts[at]):
            parts[at] = parts[at].translate(_MARKS)
    return before + "".join(parts) + closing + after


def _find(parts: list[str], phrases: Phrases | None) -> tuple[list[int], list[int]]:
    """The places of the words among the parts of a page, and of the code in them.

    The words of a block are settled when it ends.
    """
    words: list[int] = []
    code: list[int] = []
    opened: list[tuple[str, int]] = []
    skipped, depth, begun, coded = "", 0, 0, False

    def settled(kind: str, start: int, end: int) -> None:
        if phrases is not None and kind in _BLOCKS and words and words[-1] > start:
            _settle_block(parts, start, end, words[bisect(words, start) :], phrases)

    for at, part in enumerate(parts):
        if not at % 2:
            if not skipped and not part.isspace() and part:
                words.append(at)
                if coded:
                    code.append(at)
            continue
        kind = found[1] if (found := _KIND.match(part)) else ""
        if skipped:
            depth += (kind == skipped) * (-1 if part[1] == "/" else 1)
            if not depth:
                skipped = ""
                _join(parts, begun, at)
        elif part[1] != "/":
            coded = coded or kind == "code"
            if kind in _CLOSED:
                continue
            if kind in _SKIPPED or 'class="katex' in part:
                skipped, depth, begun = kind, 1, at
            elif kind in _BLOCKS or kind in _OTHERS:
                if opened:
                    # The words before a list are a block, and so are those behind it.
                    settled(*opened[-1], at)
                    opened[-1] = opened[-1][0], at
                opened.append((kind, at))
        elif kind == "code":
            coded = False
        elif opened and kind == opened[-1][0]:
            settled(*opened.pop(), at)
            if opened:
                opened[-1] = opened[-1][0], at
    return words, code


def _join(parts: list[str], start: int, end: int) -> None:
    """Keep a comma or a bracket that closes on the line of the formula before it: a formula is no letter."""
    box, behind = parts[max(start - 2, 0)], parts[min(end + 3, len(parts) - 1)]
    if box.startswith('<span class="math') and "display" not in box and _CLOSING.match(behind):
        parts[start - 2], parts[end + 3] = WHOLE + box, f"{behind[0]}{_CLOSE}{behind[1:]}"


def _settle_block(parts: list[str], start: int, end: int, words: Sequence[int], phrases: Phrases) -> None:
    if "&" in parts[words[-1]] or not any(CJK.search(parts[at]) for at in words):
        return
    if _KIND.match(parts[start])[1] in _HEADS or _SAID.search(parts[start]):  # type: ignore[index]
        _phrase(parts, start, words, phrases)
    else:
        _bind(parts, start, end, words[-1], phrases)


def _phrase(parts: list[str], start: int, words: Sequence[int], phrases: Phrases) -> None:
    """Let the lines of a heading end behind its phrases alone."""
    texts = [parts[at] for at in words]
    if any("&" in text for text in texts):
        return
    text = "".join(texts)
    kept: list[int] = []
    for place in phrases.cut(text):
        # A phrase of a letter or two goes with the one before it.
        if place - (kept[-1] if kept else 0) >= _LEAST and len(text) - place > _LEAST:
            kept.append(place)
    done = 0
    for at, text in zip(words, texts, strict=True):
        inside = [place - done for place in kept if done < place <= done + len(text)]
        edges = [0, *inside, len(text)]
        parts[at] = _WBR.join(text[left:right] for left, right in pairwise(edges))
        done += len(text)
    if parts[start].startswith("<h1"):
        longest = max(right - left for left, right in zip([0, *kept], [*kept, done], strict=True))
        _name_length(parts, start, longest)


def _name_length(parts: list[str], start: int, longest: int) -> None:
    """Say that a title has a long phrase, as templates say it of a long word of letters half as wide."""
    kind = "longer" if longest > 8 else "long" if longest > 6 else ""
    if kind and 'class="' not in parts[start]:
        parts[start] = f'<h1 class="{kind}"{parts[start].removeprefix("<h1")}'


def _bind(parts: list[str], start: int, end: int, last: int, phrases: Phrases) -> None:
    """Keep the last letters of a paragraph on one line."""
    if any(not _closes(parts[at]) for at in range(last + 1, end, 2)):
        return
    text = parts[last].rstrip()
    if not CJK.search(text[-_MOST:]):
        return
    if len(text) > _LAST or (len(text) > 1 and not any(parts[start + 1 : last])):
        beginning = max(0, len(text) - _SEEN)
        cuts = [beginning + place for place in phrases.cut(text[beginning:])]
        fit = [place for place in cuts if _LAST <= len(text) - place <= _MOST]
        place = max(fit, default=0 if len(text) <= _MOST else len(text) - _LAST - 1)
        parts[last] = f"{text[:place]}{_OPEN}{text[place:]}{_CLOSE}"
        return
    # So few letters stay with the piece of code, or with the link, before them.
    depth, width = 0, 2 * len(text)
    for at in range(last - 1, start, -1):
        if at % 2:
            kind = found[1] if (found := _KIND.match(parts[at])) else ""
            if kind not in _INLINE:
                return
            depth += 1 if parts[at][1] == "/" else -1
            if depth < 0:
                return
            if not depth and parts[at][1] != "/":
                # A coloured square, say, is laid out by whatever holds it.
                if not any(parts[at + 1 : last : 2]):
                    return
                parts[at] = WHOLE + parts[at]
                parts[last] = text + _CLOSE
                return
        else:
            width += len(parts[at]) + len(CJK.findall(parts[at]))
            if width > _ROOM or (not depth and parts[at]):
                return


def _closes(part: str) -> bool:
    return part.startswith("</")
