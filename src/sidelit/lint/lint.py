"""# Lints

> What a machine can find wrong with a translation or a source before a reader does.

On pages translated by machine, comparing the markup and looking up the glossary found two bad sentences
of three. What no lint finds is a sentence that says the contrary; for that, somebody has to read it
beside the code. Each rule is one small function in `lint_markup`, `lint_language` or `lint_terms`, and
the table here gives it its name.

A translator who knows better says so in a comment above the entry:

    # allow: term, here "free" means at no cost
"""

from __future__ import annotations

import ast
import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from sidelit.catalog.catalog import Catalog, Entry
from sidelit.catalog.sync import is_translated
from sidelit.errors import SidelitError
from sidelit.glossary import Glossary
from sidelit.lint import language, markup, terms
from sidelit.lint.unit import Pair, pair, vocabulary
from sidelit.source import literals, source
from sidelit.text import code


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
    Rule("code-spans", markup.code_spans),
    Rule("formulas", markup.formulas),
    Rule("links", markup.links),
    Rule("footnotes", markup.footnotes),
    Rule("numbers", markup.numbers, english=True),
    Rule("blanks", markup.blanks),
    Rule("emphasis", markup.emphasis),
    Rule("structure", markup.structure),
    Rule("stray-marker", markup.stray_markers),
    Rule("empty-parentheses", markup.empty_parentheses),
    Rule("adjacent-spans", markup.adjacent_spans),
    Rule("term", terms.term),
    Rule("never", terms.never),
    Rule("english", terms.english, _CJK, english=True),
    Rule("please", language.please, _CJK),
    Rule("kana", language.kana, ("zh",)),
    Rule("unsimplified", language.unsimplified, ("zh",)),
    Rule("simplified", language.simplified, ("ja",)),
    Rule("long-vowel", language.long_vowels, ("ja",)),
    Rule("spacing", language.spacing, _CJK),
    Rule("punctuation", language.punctuation, _CJK),
    Rule("negation", language.negation, _CJK, "warning", english=True),
)
FIRST_USE = "first-use"
ALLOW = "allow"
TEX_NOT_RAW = "tex-not-raw"
STRAY = "hide-and-show"
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
    for index, sentence in terms.first_uses(pairs):
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


def lint_source(text: str, path: str) -> tuple[Finding, ...]:
    r"""Lint the docstrings of one Python source: TeX wants `r\"\"\"`.

    In an ordinary docstring Python reads `\t` of `\text` as a tab and `\b` of `\beta` as a backspace, in
    silence.
    """
    text = text.removeprefix("\ufeff")
    found = [Finding(path, line, STRAY, _STRAY) for line in source.parse(text, path).stray]
    for literal in _docstrings(text, path):
        lines = literals.commands(ast.get_source_segment(text, literal) or "")
        if (line := next(lines, None)) is not None:
            found.append(Finding(path, literal.lineno + line, TEX_NOT_RAW, _RAW))
    return tuple(found)


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
    try:
        tree = literals.tree(text)
    except SyntaxError as error:
        raise SidelitError(f"this is not valid Python: {error.msg}", path=path, line=error.lineno) from None
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
            first = node.body[0].value if isinstance(node.body[0], ast.Expr) else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first
