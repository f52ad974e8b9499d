"""# The glossary

> One table of terms serves the reader as a page and the translator as a lint.

A row of `glossary.toml` says what a term is called in each language:

    [[term]]
    en = "forward pass"
    ja = "順伝播"
    zh = "前向传播"
    never = ["前方パス", "向前传球"]

The row has a word for each language of the site, and the first of them, here `en`, is the one that the
sources are written in. That is all a plain term needs. A lint also has to know what the language does to
words, hence the other fields. `match` lists the forms that call for the term (the word, and in English its
plural, unless given; empty for a word too ordinary to insist on), `accept` what a translation may say
instead of the words shown. `never` is wrong wherever it stands; `wrong` only where the original says the
term, since "reduce" may mean the collective or simply "less". `pattern` is a regular expression for what is
wrong only in some company. `first_use` asks each page to give the original in parentheses once. `note` is a
remark for readers, in each language.

`meaning` says in each language what the term means, and `see` links to the pages that explain it, as prose
links do. A row with neither only translates.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sidelit.config.languages import CODE
from sidelit.config.toml import read_toml
from sidelit.errors import SidelitError


@dataclass(frozen=True, slots=True)
class Term:
    """One row: `name` is the term in the language of the sources.

    `text[lang]` is what readers of another language see, `accept[lang]` what a translation may say.
    """

    name: str
    text: Mapping[str, str]
    match: tuple[str, ...]
    accept: Mapping[str, tuple[str, ...]]
    never: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    pattern: Mapping[str, str] | None = None
    first_use: bool = False
    note: Mapping[str, str] | None = None
    meaning: Mapping[str, str] | None = None
    see: tuple[str, ...] = ()
    line: int = 0


@dataclass(frozen=True, slots=True)
class Glossary:
    """The terms in file order, and the words that are the same in every language."""

    terms: tuple[Term, ...] = ()
    allow: tuple[str, ...] = ()


_FIELDS = ("match", "accept", "never", "wrong", "pattern", "first_use", "note", "meaning", "see")


def read(path: Path, shown: str, languages: Sequence[str]) -> Glossary:
    """Read the glossary of a site in `languages`, the first of which its sources are written in.

    No file means no terms. A glossary may serve more languages than one site shows.

    `shown` is the path that messages name. Raises `SidelitError` at the row that is wrong.
    """
    if not path.is_file():
        return Glossary()
    data = read_toml(path, shown)
    rows = data.get("term", [])
    if unknown := sorted(data.keys() - {"term", "allow"}):
        raise SidelitError(
            f"unknown table {unknown[0]!r}", path=shown, line=1, hint="there are `allow` and [[term]]"
        )
    tables = isinstance(rows, list) and all(isinstance(row, dict) for row in rows)
    if not tables or not _strings(data.get("allow", [])):
        raise SidelitError("`allow` is a list of words and [[term]] a list of tables", path=shown, line=1)
    starts = _starts(path.read_text(encoding="utf-8"))
    # Rows may also be written as one list, which shows no places.
    starts = starts if len(starts) == len(rows) else [1] * len(rows)
    terms = tuple(_Row(row, shown, line, languages).term() for row, line in zip(rows, starts, strict=True))
    _check_unique(terms, shown)
    return Glossary(terms, tuple(data.get("allow", [])))


def _starts(text: str) -> list[int]:
    return [
        number for number, line in enumerate(text.split("\n"), 1) if re.match(r"\s*\[\[\s*term\s*]]", line)
    ]


def _strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) and item.strip() for item in value)


def _check_unique(terms: Sequence[Term], shown: str) -> None:
    seen: dict[str, int] = {}
    for term in terms:
        for form in term.match:
            if seen.setdefault(form.casefold(), term.line) != term.line:
                what = f"{form!r} is also matched by the row at line {seen[form.casefold()]}"
                raise SidelitError(what, path=shown, line=term.line, hint="a form has one row")


class _Row:
    """Reads the fields of one row, with its line at hand for complaints."""

    def __init__(self, row: Any, shown: str, line: int, languages: Sequence[str]) -> None:
        self._row, self._shown, self._line, self._languages = row, shown, line, languages
        self._source, *self._others = languages

    def term(self) -> Term:
        """The row as a `Term`, every field checked."""
        for name in self._row:
            if name not in _FIELDS and not CODE.fullmatch(name):
                known = ", ".join((*self._languages, *_FIELDS))
                raise self._error(f"unknown field `{name}`", f"there is {known}")
        name = self._text(self._source)
        text = {lang: self._text(lang) for lang in self._others}
        accept = self._by_language("accept", lambda value: _strings(value) and bool(value), "a list of words")
        first_use = self._row.get("first_use", False)
        if not isinstance(first_use, bool):
            raise self._error("`first_use` is true or false")
        return Term(
            name=name,
            text=text,
            match=self._list("match") if "match" in self._row else _forms(name, self._source),
            accept={lang: tuple(accept.get(lang, (text[lang],))) for lang in self._others},
            never=self._list("never"),
            wrong=self._list("wrong"),
            pattern=self._by_language("pattern", _is_pattern, "a regular expression"),
            first_use=first_use,
            note=self._by_language("note", lambda value: isinstance(value, str), "a text"),
            meaning=self._meaning(),
            see=self._list("see"),
            line=self._line,
        )

    def _meaning(self) -> dict[str, str]:
        """What the term means, in every language or in none: half a glossary is a mistake."""
        said = self._by_language("meaning", lambda value: isinstance(value, str), "a text")
        for lang in self._languages:
            if said and not said.get(lang, "").strip():
                raise self._error(f"`meaning` lacks {lang!r}", f'give it as `meaning.{lang} = "…"`')
        return said

    def _text(self, name: str) -> str:
        value = self._row.get(name)
        if not isinstance(value, str) or not value.strip():
            raise self._error(f"the row has no `{name}`", f'give it as `{name} = "…"`')
        return value

    def _list(self, name: str) -> tuple[str, ...]:
        value = self._row.get(name, [])
        if not _strings(value):
            raise self._error(f"`{name}` is a list of words")
        return tuple(value)

    def _by_language(self, name: str, valid: Any, kind: str) -> dict[str, Any]:
        value = self._row.get(name, {})
        if not isinstance(value, dict):
            raise self._error(f"`{name}` is a table by language", self._by_example(name))
        for lang, item in value.items():
            if not CODE.fullmatch(lang) or not valid(item):
                raise self._error(f"`{name}.{lang}` should be {kind}", self._by_example(name))
        return value

    def _by_example(self, name: str) -> str:
        lang = (*self._others, self._source)[0]
        return f"write `{name} = {{ {lang} = … }}`"

    def _error(self, what: str, hint: str | None = None) -> SidelitError:
        return SidelitError(what, path=self._shown, line=self._line, hint=hint)


def _is_pattern(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(re.compile(value))
    except re.error:
        return False


def _forms(name: str, lang: str) -> tuple[str, ...]:
    """A noun and, in English, its plural."""
    if lang.partition("-")[0] != "en":
        return (name,)
    if re.search(r"(s|x|ch|sh)$", name):
        return name, f"{name}es"
    if re.search(r"[^aeiou]y$", name):
        return name, f"{name[:-1]}ies"
    return name, f"{name}s"


class Finder:
    """Finds the terms of a glossary in the text of the sources, the longest form first.

    `reduce-scatter` is one term: neither "reduce" nor "scatter" is found inside it. A term of several
    words is also found with hyphens, as it stands before a noun.
    """

    def __init__(self, glossary: Glossary) -> None:
        self._terms = {_joined(form): term for term in glossary.terms for form in term.match}
        forms = sorted({form for term in glossary.terms for form in term.match}, key=len, reverse=True)
        self._regex = re.compile(rf"(?<!\w)(?:{'|'.join(map(_pattern, forms))})(?!\w)" if forms else r"(?!)")

    def find(self, text: str) -> Iterator[tuple[str, Term]]:
        """Each form as it stands in the text, with its term."""
        for match in self._regex.finditer(text):
            yield match[0], self._terms[_joined(match[0])]


def _pattern(form: str) -> str:
    spaced = re.escape(form).replace(r"\ ", r"[\s-]+")
    # A word may begin a sentence, but a name is written one way: `ZeRO` is not "zero".
    return f"(?i:{spaced})" if form.islower() else spaced


def _joined(form: str) -> str:
    return re.sub(r"[\s-]+", " ", form.casefold())
