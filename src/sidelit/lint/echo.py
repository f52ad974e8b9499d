"""# Words that repeat the code

> `# Add one to the count` beside `count += 1` says nothing that the line does not.

The words of a comment are looked for among those of the code: the parts of its names, its keywords, and what
its signs are called. Words of grammar and endings do not count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

# The lines that a comment may be a repetition of.
_LINES = 2
_HEAD = re.compile(r"\s*(?:async\s+def|def|class|@)\b")
_GRAMMAR = (
    "a an and all are as at be by each for from get gets has have here if in into is it its new now of off on"
    " onto or our out over return returns so that the their them then there these they this those to up use"
    " uses using value values via was we which will with"
)
_SIGNS = {
    "+=": "add adds increment increments increase increases plus",
    "-=": "subtract subtracts decrement decrements decrease decreases minus",
    "=": "set sets assign assigns store stores save saves create creates make makes initialize initialise"
    " define defines compute computes calculate calculates call calls",
    "==": "equal equals same check checks compare compares",
    "!=": "not differ differs different check checks compare compares",
    "<": "less smaller below check checks",
    ">": "more greater larger above check checks",
    "(": "call calls run runs",
    "for ": "loop loops iterate iterates through go goes every",
    "while ": "loop loops repeat repeats until",
    "if ": "check checks whether when test tests",
    "import ": "imports module package",
    "def ": "define defines function method",
    "class ": "define defines",
    "None": "nothing none",
    "[]": "empty list",
    "{}": "empty dict dictionary",
    "0": "zero",
    "1": "one",
}


def repeats(words: str, code: Sequence[str], *, definition: bool = False) -> bool:
    """Whether every word of a comment is in the lines of code right beside it.

    A docstring sums up the body of its `definition`, so only the head counts there.
    """
    lines = [line for line in code if line.strip()][:_LINES]
    if definition:
        lines = [line for line in lines if _HEAD.match(line)]
    said = {_stem(word) for word in _parts(words)} - {_stem(word) for word in _GRAMMAR.split()}
    return bool(said) and bool(lines) and said <= {_stem(word) for word in _known("\n".join(lines))}


def _known(code: str) -> Iterator[str]:
    yield from _parts(code)
    for sign, called in _SIGNS.items():
        if sign in code:
            yield from called.split()


def _parts(text: str) -> Iterator[str]:
    """The words of a text, and the parts of its names: `takeNext_one` is three words."""
    for word in re.findall(r"[^\W_]+", text):
        yield from (part.casefold() for part in re.findall(r"[A-Z]?[^A-Z\d]+|[A-Z]+(?![^A-Z\d])|\d+", word))


def _stem(word: str) -> str:
    """A word without the endings of English grammar, roughly."""
    return re.sub(r"(?:ies|es|s|ing|ed|e|y|er)$", "", word) if len(word) > 3 else word
