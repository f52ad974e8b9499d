"""# The head of a lesson

> Below its lede a lesson says how long it takes, what it needs, and what a reader can do afterwards.

    :minutes: 15
    :needs: [the lesson before](before.md), and a pencil
    :aim: say what a rank stores
    :aim: predict what it sends

The words of `needs` and `aim` are translated like any others; the number is the same in every language.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from markdown_it.token import Token

from sidelit.errors import SidelitError
from sidelit.text import fields, markup

FIELDS = ("minutes", "needs", "aim")


@dataclass(frozen=True, slots=True)
class Head:
    """What stands at the head of a lesson; `needs` and each of the `aims` are the tokens of their words."""

    minutes: int
    needs: tuple[Token, ...]
    aims: tuple[tuple[Token, ...], ...]
    rest: tuple[Token, ...]
    """The text below it."""


def split(tokens: Sequence[Token], path: str) -> Head:
    """Take the head off the tokens that follow the lede.

    :raises SidelitError: if it is missing, or says something else than it should
    """
    if not tokens or tokens[0].type != "field_list_open":
        line = markup.line_of(tokens[0]) if tokens else 1
        raise _missing("minutes", "15", path, line)
    end = fields.closing(tokens, 0)
    said: dict[str, list[tuple[Token, ...]]] = {name: [] for name in FIELDS}
    for row in (row for table in fields.tables(tokens[1:end]).values() for row in table):
        name = str(row.name.meta["kind"])
        if name not in said or row.name.meta["argument"]:
            close = difflib.get_close_matches(name, FIELDS, n=1)
            what = f"the head of a lesson has no field `:{row.name.content}:`"
            hint = f"did you mean `:{close[0]}:`?" if close else f"there is {', '.join(FIELDS)}"
            raise SidelitError(what, path=path, line=markup.line_of(row.name), hint=hint)
        if said[name] and name != "aim":
            what = f"the head of a lesson says `:{name}:` twice"
            raise SidelitError(what, path=path, line=markup.line_of(row.name))
        said[name].append(row.body)
    for name, example in (("minutes", "15"), ("aim", "say what a reader will be able to do")):
        if not said[name]:
            raise _missing(name, example, path, markup.line_of(tokens[0]))
    (needs,) = said["needs"] or [()]
    minutes = _minutes(said["minutes"][0], path, markup.line_of(tokens[0]))
    return Head(minutes, needs, tuple(said["aim"]), tuple(tokens[end + 1 :]))


def _minutes(body: Sequence[Token], path: str, line: int) -> int:
    words = markup.plain(body)
    if not words.isdecimal() or int(words) == 0:
        line = markup.line_of(body[0]) if body else line
        raise SidelitError(f"`:minutes:` is a whole number, and not {words!r}", path=path, line=line)
    return int(words)


def _missing(name: str, example: str, path: str, line: int) -> SidelitError:
    hint = f"write `:{name}: {example}` below the lede"
    return SidelitError(f"the head of this lesson has no `:{name}:`", path=path, line=line, hint=hint)
