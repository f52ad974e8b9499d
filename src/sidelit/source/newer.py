r"""# Syntax of a newer Python

> A file that this Python cannot read may be sound. Then its author is told which Python reads it.

The press parses with the Python that it runs on. Each version of Python adds syntax, and an older parser
says of it no more than `invalid syntax`. So what newer versions have added is *lowered* in a copy of the
file: `def first[T](many: list[T])` becomes `def first(many: list[T])`. If the copy is valid, so is the file,
and the newest of what was lowered names the version.

| since | what is lowered |
|---|---|
| 3.11 | `except*`, a star in an index, and a star in the annotation of `*args` |
| 3.12 | type parameters, `type X = int`, and f-strings that hold their own quotes, a backslash or a comment |
| 3.13 | type parameters with a default |
| 3.14 | `except` with several types and no parentheses, and t-strings |
| 3.15 | `lazy import`, and unpacking in a comprehension |
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

Version = tuple[int, int]
RUNNING: Version = sys.version_info[:2]


@dataclass(frozen=True, slots=True)
class Newer:
    """Syntax of a newer Python: what it is, since which version, and the line of the first of it."""

    what: str
    since: Version
    line: int


def newer(text: str, parse: Callable[[str], object], running: Version = RUNNING) -> Newer | None:
    """The newest syntax in a text that this Python refuses; `None` if no Python is known to read it.

    :param text: its newlines are all `\\n`.
    :param parse: raises `SyntaxError` for what the `running` Python cannot read.
    """
    newest = None
    for since, what, find in _FEATURES:
        if since <= running:
            continue
        try:
            edits = sorted(find(_Text(text)))
        except RecursionError:
            return None
        if not edits:
            continue
        if newest is None or since > newest.since:
            newest = Newer(what, since, text.count("\n", 0, edits[0].start) + 1)
        text = _applied(text, edits)
        try:
            parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        return newest
    return None


# ## Changes of the copy
#
# > What stands between two places is exchanged; what has to be valid by itself is added at the end.
#
# Lines may move: the copy is only parsed. A field of an f-string goes to the end of the copy as an expression
# of its own, so that an error in it is still found.


@dataclass(frozen=True, slots=True, order=True)
class _Edit:
    """What stands from one place to another is replaced; `also` is added to the end of the text."""

    start: int
    end: int
    new: str = ""
    also: str = ""


def _applied(text: str, edits: list[_Edit]) -> str:
    made, at = [], 0
    for each in edits:
        # What lies inside of an exchanged piece went with it.
        if each.start >= at:
            made += [text[at : each.start], each.new]
            at = each.end
    added = (f"\n{each.also}\n" for each in edits if each.also)
    return "".join((*made, text[at:], *added))


# ## Strings, as the newest Python reads them
#
# > Since 3.12 a field of an f-string may hold any string, so its end is where its braces end.


@dataclass(frozen=True, slots=True)
class _String:
    """A string or a comment, and the expressions in the fields of an f-string or a t-string."""

    start: int
    end: int
    prefix: str
    quote: str
    fields: tuple[tuple[int, int], ...] = ()


_OPENING = re.compile(r"""#[^\n]*|(?:(?<!\w)([A-Za-z]{1,2}))?('''|\"""|'|")""")
_FORMATTED = frozenset({"f", "fr", "rf", "t", "tr", "rt"})
_OPEN, _CLOSE = "([{", ")]}"
# What an expression in a field ends at, where no bracket of its own is open: `==` and `!=` are part of it.
_BEHIND = re.compile(r"[}:]|!(?!=)|(?<![=!<>])=\s*[!:}]")


def _strings(text: str, at: int = 0, end: int | None = None) -> Iterator[_String]:
    end = len(text) if end is None else end
    while found := _OPENING.search(text, at, end):
        quote, prefix = found[2] or "", (found[1] or "").lower()
        if not quote:
            each = _String(found.start(), found.end(), "#", "")
        elif prefix in _FORMATTED:
            each = _formatted(text, found.start(), found.end(), prefix, quote)
        else:
            each = _String(found.start(), _plain(text, found.end(), quote), prefix, quote)
        yield each
        at = each.end


def _plain(text: str, at: int, quote: str) -> int:
    """Where a string ends that is open at a place."""
    ends = re.compile(rf"\\.|{quote}" if len(quote) == 3 else rf"\\.|{quote}|(?=\n)", re.DOTALL)
    return next((each.end() for each in ends.finditer(text, at) if each[0][:1] != "\\"), len(text))


def _formatted(text: str, start: int, at: int, prefix: str, quote: str) -> _String:
    fields: list[tuple[int, int]] = []
    while at < len(text) and not text.startswith(quote, at):
        char, two = text[at], text[at : at + 2]
        if char == "\n" and len(quote) == 1:
            break
        if two == "\\N" and text[at + 2 : at + 3] == "{" and "r" not in prefix:
            at = max(text.find("}", at), at + 3)
        elif two in ("{{", "}}") or (char == "\\" and two[1:] not in _OPEN + _CLOSE):
            at += 2
        elif char == "{":
            at = _field(text, at + 1, fields)
        else:
            at += 1
    # One that is never closed is no Python of any version.
    found = tuple(fields) if text.startswith(quote, at) else ()
    return _String(start, min(at + len(quote), len(text)), prefix, quote, found)


def _field(text: str, start: int, fields: list[tuple[int, int]]) -> int:
    """Read a field that was opened before a place; returns where it is closed."""
    at, depth = start, 0
    while at < len(text):
        if _OPENING.match(text, at):
            at = next(_strings(text, at)).end
            continue
        char = text[at]
        if depth == 0 and _BEHIND.match(text, at):
            break
        depth += (char in _OPEN) - (char in _CLOSE)
        at += 1
    fields.append((start, at))
    while at < len(text) and text[at] not in ":}":
        at += 1
    while at < len(text) and text[at] != "}":
        at = _field(text, at + 1, fields) if text[at] == "{" else at + 1
    return at + 1


def _in_old_words(text: str, string: _String) -> _Edit:
    """A string without fields in its place, and what they hold at the end."""
    return _Edit(string.start, string.end, "''", "\n".join(_expressions(text, string)))


def _expressions(text: str, string: _String) -> Iterator[str]:
    for start, end in string.fields:
        inner = [each for each in _strings(text, start, end) if each.fields]
        bare = [_Edit(each.start - start, each.end - start, "''") for each in inner]
        # Nothing between the braces is an error, which it would not be between parentheses.
        yield f"({_applied(text[start:end], bare).strip() or '!'}\n)"
        for each in inner:
            yield from _expressions(text, each)


# ## A text, and what stands outside of its strings
#
# > A pattern is looked for among the code alone, and a bracket ends where its partner stands.


@dataclass(slots=True)
class _Text:
    """A text; in `code` each string is a row of dollar signs, and each comment one of blanks."""

    text: str
    strings: list[_String] = field(init=False)
    code: str = field(init=False)
    _partners: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        self.strings = list(_strings(self.text))
        made, at = [], 0
        for each in self.strings:
            made += [
                self.text[at : each.start],
                (" " if each.prefix == "#" else "$") * (each.end - each.start),
            ]
            at = each.end
        self.code = "".join((*made, self.text[at:]))
        self._partners = dict(_partners(self.code))

    def closing(self, at: int) -> int:
        """The place behind the partner of the bracket at a place; just behind it, if it has none."""
        return self._partners.get(at, at) + 1

    def flat(self, start: int, end: int) -> str:
        """The code between two places, with blanks for all that stands in brackets of its own."""
        made, depth = [], 0
        for char in self.code[start:end]:
            depth -= char in _CLOSE
            made.append(char if depth == 0 else " ")
            depth += char in _OPEN
        return "".join(made)


def _partners(code: str) -> Iterator[tuple[int, int]]:
    opened: list[int] = []
    for found in re.finditer(r"[()\[\]{}]", code):
        if found[0] in _OPEN:
            opened.append(found.start())
        elif opened:
            opening = opened.pop()
            # Python reads no deeper ones.
            if len(opened) < _DEEPEST:
                yield opening, found.start()


_DEEPEST = 200


# ## What each version has added
#
# > One function for each feature finds what has to be exchanged.


def _except_star(it: _Text) -> Iterator[_Edit]:
    for found in re.finditer(r"(?m)^[ \t]*except[ \t]*(\*)", it.code):
        yield _Edit(found.start(1), found.end(1), " ")


def _star_in_index(it: _Text) -> Iterator[_Edit]:
    for found in re.finditer(r"[\w)\]]\[", it.code):
        start, end = found.end(), it.closing(found.end() - 1) - 1
        if re.search(r"(?:^|,)\s*\*", it.flat(start, end)):
            yield _Edit(start, end, f"({it.text[start:end].rstrip().rstrip(',')},)")


def _star_in_annotation(it: _Text) -> Iterator[_Edit]:
    for found in re.finditer(r"\*\w+\s*:\s*(\*)", it.code):
        yield _Edit(found.start(1), found.end(1))


def _parameters(it: _Text, default: bool) -> Iterator[_Edit]:
    for found in re.finditer(r"\b(?:def|class|type)[ \t]+\w+[ \t]*\[", it.code):
        start, end = found.end(), it.closing(found.end() - 1)
        inside = it.text[start : end - 1]
        if inside.strip() and ("=" in it.flat(start, end - 1)) == default:
            plain = re.sub(r"(^|[,=])(\s*)\*{1,2}", r"\1\2", inside)
            yield _Edit(start - 1, end, also=f"def _({plain}\n): pass")


def _type_parameters(it: _Text) -> Iterator[_Edit]:
    yield from _parameters(it, default=False)


def _type_defaults(it: _Text) -> Iterator[_Edit]:
    yield from _parameters(it, default=True)


def _type_statement(it: _Text) -> Iterator[_Edit]:
    for found in re.finditer(r"(?m)(?:^|[;:])[ \t]*(type[ \t]+)\w+\s*=", it.code):
        yield _Edit(found.start(1), found.end(1))


def _nested(it: _Text) -> Iterator[_Edit]:
    for each in it.strings:
        inside = [it.text[start:end] for start, end in each.fields]
        odd = ("\\", each.quote, *(("\n",) if len(each.quote) == 1 else ()))
        if "f" in each.prefix and any(
            any(sign in said for sign in odd) or any(other.prefix == "#" for other in _strings(said))
            for said in inside
        ):
            yield _in_old_words(it.text, each)


def _templates(it: _Text) -> Iterator[_Edit]:
    yield from (_in_old_words(it.text, each) for each in it.strings if "t" in each.prefix)


def _bare_except(it: _Text) -> Iterator[_Edit]:
    for found in re.finditer(r"(?m)^[ \t]*except\b[ \t]*\*?", it.code):
        line = it.code.find("\n", found.end())
        said = it.flat(found.end(), line if line >= 0 else len(it.code)).partition(":")[0]
        if "," in said and not re.search(r"\bas\b", said):
            start, end = found.end(), found.end() + len(said)
            yield _Edit(start, end, f" ({it.text[start:end].strip()})")


def _lazy(it: _Text) -> Iterator[_Edit]:
    for found in re.finditer(r"(?m)(?:^|[;:])[ \t]*(lazy[ \t]+)(?:import|from)\b", it.code):
        yield _Edit(found.start(1), found.end(1))


def _unpacking(it: _Text) -> Iterator[_Edit]:
    for found in re.finditer(r"[\[({]\s*(\*{1,2})", it.code):
        start, end = found.end(), it.closing(found.start()) - 1
        if re.search(r"\bfor\b", it.flat(start, end)):
            yield _Edit(found.start(1), found.end(1))


_Find = Callable[[_Text], Iterator[_Edit]]
_FEATURES: tuple[tuple[Version, str, _Find], ...] = (
    ((3, 11), "`except*`", _except_star),
    ((3, 11), "a star in an annotation", _star_in_annotation),
    ((3, 12), "a type parameter", _type_parameters),
    ((3, 12), "a statement `type`", _type_statement),
    ((3, 12), "what this f-string holds", _nested),
    ((3, 13), "a type parameter with a default", _type_defaults),
    # What is left between brackets is no type parameter.
    ((3, 11), "a star in an index", _star_in_index),
    ((3, 14), "`except` with several types and no parentheses", _bare_except),
    ((3, 14), "a t-string", _templates),
    ((3, 15), "a lazy import", _lazy),
    ((3, 15), "unpacking in a comprehension", _unpacking),
)
