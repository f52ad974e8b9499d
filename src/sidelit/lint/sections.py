"""# Lints for sections

> What a section lacks can be counted: words beside its code, words under its pictures, a name one can say.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from markdown_it.token import Token

from sidelit.ids import naming
from sidelit.lint import echo, english
from sidelit.lint.unit import words_of
from sidelit.source import literals
from sidelit.strictness import Strictness
from sidelit.text import markup


@dataclass(frozen=True, slots=True)
class Section:
    """A section of a source, or a stretch of a page, as its lints see it.

    :param id: its id, or the heading of the stretch.
    :param line: where it begins.
    :param prose: whether it is part of a page rather than of a source.
    :param code: the lines beside its words.
    :param definition: whether its words are the docstring of a function or a class.
    """

    source: str
    id: str
    line: int
    prose: bool
    tokens: Sequence[Token]
    code: tuple[str, ...] = ()
    definition: bool = False


Rule = Callable[[Section, Strictness], Iterator[tuple[int, str]]]


def lint(section: Section, asked: Strictness, *, is_english: bool) -> Iterator[tuple[str, int, str]]:
    """What is wrong with a section: each with the name of the rule, the line and a sentence."""
    for name, rule in (*ANY.items(), *(ENGLISH.items() if is_english else ())):
        if asked.severities[name] != "off":
            yield from ((name, line, sentence) for line, sentence in rule(section, asked))


def _code_without_words(section: Section, asked: Strictness) -> Iterator[tuple[int, str]]:
    if section.prose or any(markup.units(section.tokens)):
        return
    count = sum(bool(line.strip()) for line in section.code) - _saying_nothing(section.code)
    if count > asked.lines:
        yield section.line, f"{count} lines of code without a word; say what they do, or cut them by comments"


def _saying_nothing(code: Sequence[str]) -> int:
    """How many lines are imports, and lists of what is imported: nobody has words for those."""
    try:
        body = literals.tree(textwrap.dedent("\n".join(code))).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return 0
    found = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom) or _is_offer(node)]
    rows = {row for node in found for row in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    comments = {row for row, line in enumerate(code, start=1) if line.startswith("#")}
    return sum(bool(code[row - 1].strip()) for row in rows | comments)


def _is_offer(node: ast.stmt) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return any(isinstance(each, ast.Name) and each.id == "__all__" for each in targets)


def _hash_id(section: Section, asked: Strictness) -> Iterator[tuple[int, str]]:
    for word in re.findall("[0-9a-z]+", section.id.casefold()):
        if naming.UNSAYABLE.fullmatch(word):
            yield section.line, f"nobody can say the id {section.id}; {_sayable(word, section.id)}"


def _sayable(word: str, id: str) -> str:
    """What to do about a word of an id: code names definitions, and a release keeps all names."""
    if word in re.split("[/@]", id)[0].casefold():
        return "rename the definition: a published id still leads to it"
    return "a release has published it, so allow it in site/sidelit.toml, under [[lint.allow]]"


def _picture_without_words(section: Section, asked: Strictness) -> Iterator[tuple[int, str]]:
    for owner, image in _images(section.tokens):
        address = str(image.attrs.get("src", ""))
        words = markup.plain(image.children or ()).strip()
        # The name of the file is what a dialect puts there that has no words for pictures.
        if not words or words == address.rpartition("/")[2]:
            what = f"the picture {address} has no words for those who do not see it"
            yield markup.line_of(image, owner), f"{what}; write them between the brackets"


def _images(tokens: Iterable[Token], owner: Token | None = None) -> Iterator[tuple[Token | None, Token]]:
    for token in tokens:
        if token.type == "image":
            yield owner, token
        yield from _images(token.children or (), owner or token)


def _repeats_code(section: Section, asked: Strictness) -> Iterator[tuple[int, str]]:
    spoken = [(token, words) for token, words in english.sentences(section.tokens, everywhere=True)]
    if len(spoken) != 1 or section.prose:
        return
    words = markup.plain(section.tokens)
    if echo.repeats(words, section.code, definition=section.definition):
        yield (
            markup.line_of(spoken[0][0]),
            "these words say what the line of code says; say why, or leave them out",
        )


def _long_sentence(section: Section, asked: Strictness) -> Iterator[tuple[int, str]]:
    for token, words in english.sentences(section.tokens):
        if (count := len(words.split())) > asked.words:
            yield markup.line_of(token), f"a sentence of {count} words: “{english.begin(words)}”; cut it"


def _short_sentences(section: Section, asked: Strictness) -> Iterator[tuple[int, str]]:
    for token, run in english.runs(section.tokens):
        what = f"{len(run)} sentences of under {english.SHORT} words one after the other"
        yield markup.line_of(token), f"{what}: “{english.begin(' '.join(run))}”; join some of them"


def _opening(section: Section, asked: Strictness) -> Iterator[tuple[int, str]]:
    first = next(markup.units(section.tokens), None)
    # "This" may be the line of code right beside it.
    beside = ("This", "These") if any(line.strip() for line in section.code) else ()
    if first is None or section.prose:
        return
    if (word := english.pointer(words_of(first))) and word not in beside:
        yield markup.line_of(first), f"a section is read alone, and {word!r} points out of it; name the thing"


def _word(section: Section, asked: Strictness) -> Iterator[tuple[int, str]]:
    if not asked.forbidden:
        return
    for token in markup.units(section.tokens):
        words = words_of(token)
        for each in asked.forbidden:
            if found := each.pattern.search(words):
                yield markup.line_of(token), f"“{found[0]}”: {each.say}"


ANY: dict[str, Rule] = {
    "code-without-words": _code_without_words,
    "picture-without-words": _picture_without_words,
    "hash-id": _hash_id,
    "word": _word,
}
ENGLISH: dict[str, Rule] = {
    "repeats-code": _repeats_code,
    "long-sentence": _long_sentence,
    "short-sentences": _short_sentences,
    "opening": _opening,
}
