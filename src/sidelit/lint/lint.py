"""# Lints

> What a machine can find wrong with a translation or a source before a reader does.

On pages translated by machine, comparing the markup and looking up the glossary found two bad sentences
of three. What no lint finds is a sentence that says the contrary; for that, somebody has to read it
beside the code. Each rule is one small function in `unit` or `language`, and the
table here gives it its name.

A translator who knows better says so in a comment above the entry:

    # allow: term, here "free" means at no cost
"""

from __future__ import annotations

import ast
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from markdown_it.token import Token

from sidelit.catalog.catalog import Catalog
from sidelit.catalog.po_file import Entry
from sidelit.catalog.sync import is_translated
from sidelit.config.glossary import Glossary
from sidelit.errors import SidelitError
from sidelit.lint import style, translation
from sidelit.lint.translation import Pair, pair, vocabulary
from sidelit.source import source, syntax
from sidelit.symbols import formula, marking
from sidelit.text import code, directives, markup


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a lint objects to; `str()` is the line that is printed.

    :param section: the id by which the configuration may allow it, if it may.
    """

    path: str
    line: int
    rule: str
    sentence: str
    severity: Literal["error", "warning"] = "error"
    section: str = ""

    def __str__(self) -> str:
        place = f" [{self.section}]" if self.section else ""
        return f"{self.path}:{self.line}: {self.rule}: {self.sentence}{place}"


@dataclass(frozen=True, slots=True)
class Rule:
    """A named check of one sentence, and the languages it is for (none named: all).

    :param english: whether it reads the original as English, and is silent about any other.
    """

    name: str
    check: Callable[[Pair], Iterator[str]]
    languages: tuple[str, ...] = ()
    severity: Literal["error", "warning"] = "error"
    english: bool = False


_CJK = ("ja", "zh")
RULES = (
    Rule("code-spans", translation.code_spans),
    Rule("formulas", translation.formulas),
    Rule("links", translation.links),
    Rule("footnotes", translation.footnotes),
    Rule("numbers", translation.numbers, english=True),
    Rule("blanks", translation.blanks),
    Rule("emphasis", translation.emphasis),
    Rule("structure", translation.structure),
    Rule("stray-marker", translation.stray_markers),
    Rule("empty-parentheses", translation.empty_parentheses),
    Rule("adjacent-spans", translation.adjacent_spans),
    Rule("term", style.term),
    Rule("never", style.never),
    Rule("english", style.english, _CJK, english=True),
    Rule("please", style.please, _CJK),
    Rule("kana", style.kana, ("zh",)),
    Rule("unsimplified", style.unsimplified, ("zh",)),
    Rule("simplified", style.simplified, ("ja",)),
    Rule("long-vowel", style.long_vowels, ("ja",)),
    Rule("spacing", style.spacing, _CJK),
    Rule("punctuation", style.punctuation, _CJK),
    Rule("negation", style.negation, _CJK, "warning", english=True),
)
FIRST_USE = "first-use"
ALLOW = "allow"
TEX_NOT_RAW = "tex-not-raw"
STRAY = "hide-and-show"
# What other stages refuse: the words of a source, a directive of a page, the tests of a chapter.
SOURCE, DIRECTIVE, PROVES = "source", "directive", "proves"
_STRAY = "this marker has no partner; write `# sidelit: show` behind the last line that readers need not see"
_RAW = "a formula has a backslash, and Python reads it first; start the docstring with " + 'r"' + '""'
_NAMES = frozenset((*(rule.name for rule in RULES), FIRST_USE))


def lint_catalog(catalog: Catalog, glossary: Glossary) -> tuple[Finding, ...]:
    """Lint every translation of a page that readers see; what is stale or missing they do not see."""
    words, english = vocabulary(glossary, catalog.lang), catalog.source.partition("-")[0] == "en"
    entries = [entry for entry in catalog.entries.values() if is_translated(entry) and not entry.same]
    pairs = [pair(entry.msgid, entry.msgstr, words) for entry in entries]
    findings: list[Finding] = []
    for entry, one in zip(entries, pairs, strict=True):
        findings += _overruled(entry, _check(entry, one, english))
    for index, sentence in style.first_uses(pairs):
        if FIRST_USE not in _allowed(entries[index]):
            entry = entries[index]
            findings.append(Finding(entry.path, entry.line, FIRST_USE, sentence, "warning"))
    return tuple(findings)


def _check(entry: Entry, one: Pair, english: bool) -> list[Finding]:
    return [
        Finding(entry.path, entry.line, rule.name, sentence, rule.severity)
        for rule in RULES
        if (not rule.languages or one.lang in rule.languages) and english >= rule.english
        for sentence in rule.check(one)
    ]


def _overruled(entry: Entry, found: list[Finding]) -> list[Finding]:
    """Leave out what the translator allowed; an allowance has a reason, names a rule and is needed."""
    allowed = _allowed(entry)
    kept = [finding for finding in found if finding.rule not in allowed]
    for rule, reason in allowed.items():
        sentence = ""
        if rule not in _NAMES:
            sentence = f"there is no rule {rule!r}"
        elif not reason:
            sentence = f"say why: `# allow: {rule}, because …`"
        elif rule != FIRST_USE and rule not in {finding.rule for finding in found}:
            sentence = f"nothing here breaks the rule {rule!r} any more; remove the comment"
        if sentence:
            kept.append(Finding(entry.path, entry.line, ALLOW, sentence))
    return kept


def _allowed(entry: Entry) -> dict[str, str]:
    found = [re.match(r"allow:\s*([\w-]+)[,\s]*(.*)", note) for note in entry.notes]
    return {match[1]: match[2] for match in found if match}


def refused(error: SidelitError, rule: str) -> Finding:
    """What another stage refuses, as a finding."""
    sentence = error.what + (f"; {error.hint}" if error.hint else "")
    return Finding(error.path or "", error.line or 1, rule, sentence)


def lint_source(document: source.Document) -> tuple[Finding, ...]:
    r"""Lint the docstrings of one Python source: TeX wants `r\"\"\"`.

    In an ordinary docstring Python reads `\t` of `\text` as a tab and `\b` of `\beta` as a backspace, in
    silence.
    """
    path, text = document.path, document.text.removeprefix("\ufeff")
    found = [Finding(path, line, STRAY, _STRAY) for line in document.stray]
    rows = re.split(r"(?<=\n)|(?<=\r)(?!\n)", text)
    for literal in _docstrings(text, path):
        lines = syntax.commands(_typed(literal, rows))
        if (line := next(lines, None)) is not None:
            found.append(Finding(path, literal.lineno + line, TEX_NOT_RAW, _RAW))
    return tuple(found)


def _typed(literal: ast.Constant, rows: Sequence[str]) -> str:
    """A literal as it was typed; `ast.get_source_segment` would cut the whole file into rows for each."""
    typed = [row.encode() for row in rows[literal.lineno - 1 : literal.end_lineno]]
    typed[-1] = typed[-1][: literal.end_col_offset]
    typed[0] = typed[0][literal.col_offset :]
    return b"".join(typed).decode()


def lint_characters(text: str) -> Iterator[tuple[int, str]]:
    """Find [characters that nobody sees](../text/code.py): a source can look like another one by them.

    :returns: the lines, each with a sentence.
    """
    for number, line in enumerate(re.split(r"\r\n?|\n", text.removeprefix("\ufeff")), start=1):
        if not line.isascii() and (found := code.HIDDEN.search(line)):
            name = unicodedata.name(found[0], "a character without a name")
            what = f"U+{ord(found[0]):04X}, {name}, is not seen by who reads this line"
            yield number, f"{what}; remove it, or write its escape"


def _docstrings(text: str, path: str) -> Iterator[ast.Constant]:
    for node in ast.walk(syntax.parsed(text, path)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
            first = node.body[0].value if isinstance(node.body[0], ast.Expr) else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first


# ## Lints for symbols
#
# > A page that says what its symbols mean says it of all of them, and of no others.
#
# A page that declares no notation is asked nothing.


UNBOUND, UNKNOWN, UNUSED, TWICE = "unbound-symbol", "unknown-name", "unused-symbol", "symbol-twice"

Unbound = tuple[str, SidelitError]


def lint_symbols(tokens: Sequence[Token], program: Mapping[str, Sequence[str]]) -> Iterator[Unbound]:
    """Look at the notation of a page with these words.

    :param program: for every last word of a name the words and signs of the lines that have it, in all
        chapters: what a chapter calls by its name may be defined in another.
    """
    known = marking.read(tokens)
    if not known:
        return
    said, _ = directives.parted(tokens, marking.KIND)
    bodies = [token for row in directives.take(tokens, marking.KIND)[1] for token in row.body]
    used: set[str] = set()
    for inline, tex, line in _formulas((*said, *bodies)):
        read = formula.read(tex)
        used |= {each.key for _, each in _found(read.symbols, known, read.counting) if each}
        for name in _unbound(read, known, tex):
            hint = f"add `:notation ${name}$: what it means`"
            what = f"no `:notation` of this page says what ${name}$ means"
            yield UNBOUND, SidelitError(what, path=markup.path_of(inline), line=line, hint=hint)
    for meaning in known.meanings:
        yield from _declared(meaning, known, used, program)


def _declared(
    meaning: marking.Meaning,
    known: marking.Notation,
    used: set[str],
    program: Mapping[str, Sequence[str]],
) -> Iterator[Unbound]:
    first = known.find(formula.Symbol(meaning.base, meaning.below, 0, 0), frozenset())
    if first is not meaning:
        yield TWICE, _at(meaning, f"this page says twice what ${meaning.name}$ means")
    elif meaning.key not in used:
        yield UNUSED, _at(meaning, f"no formula of this page uses ${meaning.name}$", "remove the line")
    if meaning.code and not _is_there(meaning, program):
        code = "".join(meaning.code)
        what = f"no chapter has `{code}` in its code, which ${meaning.name}$ is said to be called there"
        yield UNKNOWN, _at(meaning, what, "begin with a name of the code, or with the words")


def _is_there(meaning: marking.Meaning, program: Mapping[str, Sequence[str]]) -> bool:
    last = next((word for word in reversed(meaning.code) if marking.is_word(word)), "")
    return next(marking.positions(program.get(last, ()), meaning), None) is not None


def program(lines: Iterable[str]) -> Mapping[str, Sequence[str]]:
    """For each word of some coloured lines of code all words and signs of the lines that have it."""
    found: dict[str, list[str]] = {}
    for html in lines:
        tokens = marking.program(html)
        for word in filter(marking.is_word, dict.fromkeys(tokens)):
            # What stands in two lines is no name.
            found.setdefault(word, []).extend((*tokens, "\n"))
    return found


def _at(meaning: marking.Meaning, what: str, hint: str | None = None) -> SidelitError:
    return SidelitError(what, path=meaning.path, line=meaning.line, hint=hint)


def _found(
    symbols: Iterable[formula.Symbol], known: marking.Notation, counting: frozenset[str]
) -> Iterator[tuple[formula.Symbol, marking.Meaning | None]]:
    """Every symbol with its meaning; what is below one is part of it, unless its letter is known alone."""
    for symbol in symbols:
        meaning = known.find(symbol, counting)
        yield symbol, meaning
        if meaning is not None and not meaning.below:
            yield from _found(symbol.below_symbols, known, counting)
        yield from _found(symbol.above_symbols, known, counting)


def _unbound(read: formula.Formula, known: marking.Notation, tex: str) -> Mapping[str, None]:
    """The names of what a formula uses and nobody explains, each once."""
    customary = formula.places(read.symbols, tex)
    return {
        symbol.name: None
        for symbol, meaning in _found(read.symbols, known, read.counting)
        if meaning is None and symbol.start not in customary and not _excused(symbol, read, known)
    }


def _excused(symbol: formula.Symbol, read: formula.Formula, known: marking.Notation) -> bool:
    """What needs no explanation: what the formula counts with, and an index."""
    if symbol.below:
        return False
    index = any(each.index == symbol.base for each in known.meanings)
    return symbol.base in read.counting or index


def _formulas(tokens: Sequence[Token]) -> Iterator[tuple[Token, str, int]]:
    for token in tokens:
        if token.type == "math_block":
            yield token, token.content, markup.line_of(token)
        yield from ((token, each.content, markup.line_of(each, token)) for each in _inline(token))


def _inline(token: Token) -> Iterator[Token]:
    for child in token.children or ():
        if child.type.startswith("math"):
            yield child
        yield from _inline(child)
