"""# How strict the lints are

> Each rule about sources and pages is an error, a warning or off, and a configuration says which.

    [lint]
    lines = 25                          # of code, before a section has to say something
    words = 40                          # in a sentence

    [lint.rules]
    code-without-words = "error"

    [[lint.avoid]]                      # what this house does not say
    pattern = "utili[sz]e"
    say = "write `use`"

    [[lint.allow]]                      # one section that may break a rule, and why
    rule = "code-without-words"
    source = "src/unit.py"
    section = "module/units"            # in brackets behind the finding; "" for the symbols of a page
    because = "it is a table"
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, cast

from sidelit.tables import Table

Severity = Literal["error", "warning", "off"]

# Every rule that a project may choose for itself, and what it is where nothing is said. What no formula, link
# or translation can do without is no matter of choice.
USUAL: Mapping[str, Severity] = {
    "unbound-symbol": "error",
    "unknown-name": "error",
    "unused-symbol": "error",
    "symbol-twice": "error",
    "hidden-character": "error",
    "code-without-words": "warning",
    "repeats-code": "warning",
    "picture-without-words": "warning",
    "hash-id": "warning",
    "long-sentence": "warning",
    "short-sentences": "warning",
    "opening": "warning",
    "word": "warning",
}


@dataclass(frozen=True, slots=True)
class Word:
    """An expression that the house does not use, and what to write instead."""

    pattern: re.Pattern[str]
    say: str


@dataclass(frozen=True, slots=True)
class Allowance:
    """A section that may break a rule; `line` is where the configuration says so."""

    rule: str
    source: str
    section: str
    line: int


@dataclass(frozen=True, slots=True)
class Strictness:
    """What a project asks of its own words.

    :param lines: how many lines of code may stand without a word.
    :param words: how many words a sentence may have.
    """

    lines: int = 25
    words: int = 40
    severities: Mapping[str, Severity] = field(default_factory=lambda: USUAL)
    forbidden: tuple[Word, ...] = ()
    allowed: tuple[Allowance, ...] = ()


def read(table: Table | None) -> Strictness:
    """Read `[lint]`.

    Raises `SidelitError` for a rule that is none, a pattern that is none, and an allowance without a reason.
    """
    if table is None:
        return Strictness()
    lines, words = (_count(table, key, usual) for key, usual in (("lines", 25), ("words", 40)))
    severities = dict(USUAL)
    if rules := table.table("rules"):
        severities.update(_severities(rules))
    forbidden = tuple(map(_word, table.tables("avoid")))
    allowed = tuple(map(_allowance, table.tables("allow")))
    table.finish()
    return Strictness(lines, words, severities, forbidden, allowed)


def _severities(rules: Table) -> Iterator[tuple[str, Severity]]:
    for rule, said in rules.data.items():
        _known(rule, rules)
        if said not in ("error", "warning", "off"):
            raise rules.error(f'the rule {rule} is "error", "warning" or "off"', rule)
        yield rule, cast("Severity", said)


def _count(table: Table, key: str, usual: int) -> int:
    count = table.take(key, int, usual)
    if count < 1 or count is True:
        raise table.error(f"`{key}` must be a number from 1 on", key)
    return count


def _word(table: Table) -> Word:
    said, instead = table.take("pattern", str), table.take("say", str)
    if not said:
        raise table.error(
            "an empty `pattern` finds everything", "pattern", hint="write what is to be avoided"
        )
    try:
        pattern = re.compile(said, re.IGNORECASE)
    except re.error as error:
        raise table.error(f"{said!r} is no pattern: {error}", said) from None
    table.finish()
    return Word(pattern, instead)


def _allowance(table: Table) -> Allowance:
    rule, source = table.take("rule", str), table.take("source", str)
    section, reason = table.take("section", str), table.take("because", str)
    _known(rule, table)
    if not reason.strip():
        raise table.error("an allowance says why", "because", hint='write because = "…"')
    table.finish()
    return Allowance(rule, source, section, table.line("section"))


def _known(rule: str, table: Table) -> None:
    if rule not in USUAL:
        raise table.error(f"there is no rule {rule!r}", rule, hint=f"there are {', '.join(USUAL)}")
