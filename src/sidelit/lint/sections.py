"""# Lints for sections

> What can be wrong with commentary: it repeats the code, it is long, it says what its author avoids.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from markdown_it.token import Token

from sidelit.config.config import LintOptions
from sidelit.ids import matching
from sidelit.lint.translation import words_of
from sidelit.source import syntax
from sidelit.text import markup

# ## Words that repeat the code
#
# > `# Add one to the count` beside `count += 1` says nothing that the line does not.
#
# The words of a comment are looked for among those of the code: the parts of its names, its keywords, and
# what its signs are called. Words of grammar and endings do not count.


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


# ## Lints for English
#
# > How long sentences are, and what they begin with, shows where a reader will read twice.


SHORT = 7
_RUN = 3
# A sentence ends before a capital letter, a code span or a formula; `e.g.` and `vs.` go on.
_END = re.compile(
    r"(?<![ (]e\.g\.)(?<![ (]i\.e\.)(?<!\bvs\.)(?<!\bcf\.)(?<=[.!?])"
    r"[)\"'”’]*\s+(?=[\"'(“‘]*[A-Z\ue000-\ue004])"
)
# "This rank" names something; "This is" does not. "It is possible that" points at what follows.
_POINTER = re.compile(
    r"(?!It (?:is|was|has been|can be|may be) (?:\S+ ){1,2}(?:to|that)\b)"
    r"(?:Its?|They|Them|Theirs?|Those|Here|(?:This|That|These|One|Such)"
    r"(?=,? (?:is|are|was|were|has|have|had|can|may|must|will|would|should|does|do|did|also|takes?|makes?"
    r"|needs?|gives?|holds?|keeps?|means?|lets?)\b))\b"
)


def sentences(tokens: Sequence[Token], *, everywhere: bool = False) -> Iterator[tuple[Token, str]]:
    """The sentences of paragraphs and of the items of lists, each with the token that it stands in.

    With `everywhere` those of headings and tables, too.
    """
    before = ""
    for token in tokens:
        if token.type == "inline" and (everywhere or before == "paragraph_open"):
            yield from ((token, each) for each in _END.split(words_of(token).strip()) if each)
        before = token.type


def runs(tokens: Sequence[Token]) -> Iterator[tuple[Token, list[str]]]:
    """Three sentences or more of under seven words, one after the other in a paragraph."""
    for _, paragraph in groupby(sentences(tokens), key=lambda each: id(each[0])):
        for is_short, some in groupby(paragraph, key=lambda each: len(each[1].split()) < SHORT):
            found = list(some)
            if is_short and len(found) >= _RUN:
                yield found[0][0], [words for _, words in found]


def pointer(words: str) -> str:
    """The word with which a text begins, if it points at something before it; empty otherwise."""
    found = _POINTER.match(words)
    return found[0] if found else ""


def begin(words: str) -> str:
    """The first words of a sentence, for a message."""
    shown = re.sub("[\ue000-\ue004]", "…", words).split()
    return " ".join(shown[:6]) + (" …" if len(shown) > 6 else "")


# ## Lints for sections
#
# > What a section lacks can be counted: words beside its code, words under its pictures, a name one can say.


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


Rule = Callable[[Section, LintOptions], Iterator[tuple[int, str]]]


def lint(section: Section, asked: LintOptions, *, is_english: bool) -> Iterator[tuple[str, int, str]]:
    """What is wrong with a section: each with the name of the rule, the line and a sentence."""
    for name, rule in (*ANY.items(), *(ENGLISH.items() if is_english else ())):
        if asked.severities[name] != "off":
            yield from ((name, line, sentence) for line, sentence in rule(section, asked))


def _code_without_words(section: Section, asked: LintOptions) -> Iterator[tuple[int, str]]:
    if section.prose or any(markup.units(section.tokens)):
        return
    count = sum(bool(line.strip()) for line in section.code) - _saying_nothing(section.code)
    if count > asked.lines:
        yield section.line, f"{count} lines of code without a word; say what they do, or cut them by comments"


def _saying_nothing(code: Sequence[str]) -> int:
    """How many lines are imports, and lists of what is imported: nobody has words for those."""
    try:
        body = syntax.tree(textwrap.dedent("\n".join(code))).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return 0
    found = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom) or _is_offer(node)]
    rows = {row for node in found for row in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    comments = {row for row, line in enumerate(code, start=1) if line.startswith("#")}
    return sum(bool(code[row - 1].strip()) for row in rows | comments)


def _is_offer(node: ast.stmt) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return any(isinstance(each, ast.Name) and each.id == "__all__" for each in targets)


def _hash_id(section: Section, asked: LintOptions) -> Iterator[tuple[int, str]]:
    for word in re.findall("[0-9a-z]+", section.id.casefold()):
        if matching.UNSAYABLE.fullmatch(word):
            yield section.line, f"nobody can say the id {section.id}; {_sayable(word, section.id)}"


def _sayable(word: str, id: str) -> str:
    """What to do about a word of an id: code names definitions, and a release keeps all names."""
    if word in re.split("[/@]", id)[0].casefold():
        return "rename the definition: a published id still leads to it"
    return "a release has published it, so allow it in site/sidelit.toml, under [[lint.allow]]"


def _picture_without_words(section: Section, asked: LintOptions) -> Iterator[tuple[int, str]]:
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


def _repeats_code(section: Section, asked: LintOptions) -> Iterator[tuple[int, str]]:
    spoken = [(token, words) for token, words in sentences(section.tokens, everywhere=True)]
    if len(spoken) != 1 or section.prose:
        return
    words = markup.plain(section.tokens)
    if repeats(words, section.code, definition=section.definition):
        yield (
            markup.line_of(spoken[0][0]),
            "these words say what the line of code says; say why, or leave them out",
        )


def _long_sentence(section: Section, asked: LintOptions) -> Iterator[tuple[int, str]]:
    for token, words in sentences(section.tokens):
        if (count := len(words.split())) > asked.words:
            yield markup.line_of(token), f"a sentence of {count} words: “{begin(words)}”; cut it"


def _short_sentences(section: Section, asked: LintOptions) -> Iterator[tuple[int, str]]:
    for token, run in runs(section.tokens):
        what = f"{len(run)} sentences of under {SHORT} words one after the other"
        yield markup.line_of(token), f"{what}: “{begin(' '.join(run))}”; join some of them"


def _opening(section: Section, asked: LintOptions) -> Iterator[tuple[int, str]]:
    first = next(markup.units(section.tokens), None)
    # "This" may be the line of code right beside it.
    beside = ("This", "These") if any(line.strip() for line in section.code) else ()
    if first is None or section.prose:
        return
    if (word := pointer(words_of(first))) and word not in beside:
        yield markup.line_of(first), f"a section is read alone, and {word!r} points out of it; name the thing"


def _word(section: Section, asked: LintOptions) -> Iterator[tuple[int, str]]:
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
