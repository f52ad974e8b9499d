"""# A lexer that asks once

> Pygments tries the rules of a lexer one by one at every place of a text; joined to one pattern they are
> tried at once.

A lexer has up to fifty rules for a place, and asks each of them in Python whether it matches. That would be
most of the time that a page of code takes. An alternation `(?:first)|(?:second)|…` asks the same questions in
the same order inside of the regular expression engine: the first that matches wins, with the match that it
would have had alone. So the tokens are those that Pygments makes itself, to the character.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pygments.lexer import RegexLexer
from pygments.token import Error, Whitespace

# A rule as Pygments keeps it: the match of its pattern, the kind of token or a function, the next state.
Rule = tuple[Callable[[str, int], "re.Match[str] | None"], Any, Any]
Tokens = Iterator[tuple[int, Any, str]]


@dataclass(frozen=True, slots=True)
class _State:
    """The rules of one state, and one pattern for all; `which` maps the last group of a match to its rule."""

    match: Callable[[str, int], re.Match[str] | None]
    which: Mapping[int, Rule]


def joined(lexer: type[RegexLexer]) -> type[RegexLexer]:
    """The same lexer with the rules of each state joined.

    A lexer whose rules cannot be joined is returned as it is: one that refers to its groups, or gives them
    names, since a longer pattern has other groups.
    """
    # Pygments compiles the rules when the first lexer of the class is made.
    rules: Mapping[str, Sequence[Rule]] = lexer()._tokens
    try:
        states = {name: _joined(each) for name, each in rules.items()}
    except (ValueError, AttributeError, re.error):
        return lexer

    class Joined(lexer):  # type: ignore[misc]
        def get_tokens_unprocessed(self, text: str, stack: Sequence[str] = ("root",)) -> Tokens:
            return _tokens(self, states, text, list(stack))

    return Joined


def _joined(rules: Sequence[Rule]) -> _State:
    parts = []
    for rule in rules:
        pattern: re.Pattern[str] = rule[0].__self__  # type: ignore[attr-defined]
        if pattern.groupindex or pattern.flags & re.VERBOSE or _REFERENCE.search(pattern.pattern):
            raise ValueError
        # An empty group at the end of a rule tells which one matched.
        parts.append(f"{_alone(pattern)}()")
    return _State(re.compile("|".join(parts)).match, dict(enumerate(rules, 1)))


_REFERENCE = re.compile(r"\\[1-9]|\(\?\(")
# What may hold a parenthesis that opens no group, and the one that opens a group with a number.
_GROUP = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|(\((?!\?))", re.DOTALL)
_FLAGS = {"i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL}


def _alone(pattern: re.Pattern[str]) -> str:
    """A pattern as it stands in a longer one: with its own flags and no others, and without its groups.

    The engine knows at once whether an alternative may begin with a character, unless a group begins it.
    """
    on = "".join(letter for letter, flag in _FLAGS.items() if pattern.flags & flag)
    off = "".join(letter for letter in _FLAGS if letter not in on)
    bare = _GROUP.sub(lambda found: "(?:" if found[1] else found[0], pattern.pattern)
    return f"(?{on}{'-' if off else ''}{off}:{re.sub(r'^[(][?][a-z]+[)]', '', bare)})"


def _tokens(lexer: RegexLexer, states: Mapping[str, _State], text: str, stack: list[str]) -> Tokens:
    """The tokens of a text.

    What no rule knows is a token `Error`, and at the end of a line all begins anew.
    """
    place, end = 0, len(text)
    state = states[stack[-1]]
    while True:
        match = state.match(text, place)
        if match is not None and match.lastindex is not None:
            alone, action, following = state.which[match.lastindex]
            if callable(action):
                # It asks for the groups of its own pattern.
                yield from action(lexer, alone(text, place))
            elif action is not None:
                yield place, action, match[0]
            place = match.end()
            if following is not None:
                _follow(stack, following)
                state = states[stack[-1]]
        elif place >= end:
            return
        elif text[place] == "\n":
            stack[:] = ["root"]
            state = states["root"]
            yield place, Whitespace, "\n"
            place += 1
        else:
            yield place, Error, text[place]
            place += 1


def _follow(stack: list[str], following: Any) -> None:
    """Go where a rule leads: some states on, or some back, but never out of the first."""
    if isinstance(following, int):
        del stack[1 if abs(following) >= len(stack) else following :]
        return
    for name in following if isinstance(following, tuple) else (following,):
        if name == "#pop":
            del stack[max(1, len(stack) - 1) :]
        else:
            stack.append(stack[-1] if name == "#push" else name)
