"""# The glossary

> One table of terms serves the reader as a page and the translator as a lint.

A row of `glossary.toml` says what a term is called in each language:

    [[term]]
    en = "forward pass"
    ja = "順伝播"
    zh = "前向传播"
    never = ["前方パス", "向前传球"]

That is all a plain term needs. A lint also has to know what the language does to words, hence the other
fields. `match` lists the English forms that call for the term (the word and its plural, unless given;
empty for a word too ordinary to insist on), `accept` what a translation may say instead of the words
shown. `never` is wrong wherever it stands; `wrong` only where the English says the term, since "reduce"
may mean the collective or simply "less". `pattern` is a regular expression for what is wrong only in some
company. `first_use` asks each page to give the English in parentheses once. `note` is a remark for
readers, in each language.

`meaning` says in each language what the term means, and `see` links to the pages that explain it, as prose
links do. A row with neither only translates.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sidelit.errors import SidelitError
from sidelit.tables import read_toml


@dataclass(frozen=True, slots=True)
class Term:
    """One row: `text[lang]` is what readers see, `accept[lang]` what a translation may say."""

    en: str
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
    """The terms in file order, and the words that stay English in every language."""

    terms: tuple[Term, ...] = ()
    allow: tuple[str, ...] = ()


_FIELDS = ("en", "match", "accept", "never", "wrong", "pattern", "first_use", "note", "meaning", "see")
# A glossary may serve more languages than one site shows.
_LANGUAGE = re.compile(r"[a-z]{2,3}")


def read(path: Path, shown: str, languages: Sequence[str]) -> Glossary:
    """Read the glossary of a site that is translated into `languages`; no file means no terms.

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
                raise SidelitError(what, path=shown, line=term.line, hint="an English form has one row")


class _Row:
    """Reads the fields of one row, with its line at hand for complaints."""

    def __init__(self, row: Any, shown: str, line: int, languages: Sequence[str]) -> None:
        self._row, self._shown, self._line, self._languages = row, shown, line, languages

    def term(self) -> Term:
        """The row as a `Term`, every field checked."""
        for name in self._row:
            if name not in _FIELDS and not _LANGUAGE.fullmatch(name):
                known = ", ".join((*_FIELDS, *self._languages))
                raise self._error(f"unknown field `{name}`", f"there is {known}")
        en = self._text("en")
        text = {lang: self._text(lang) for lang in self._languages}
        accept = self._by_language("accept", lambda value: _strings(value) and bool(value), "a list of words")
        first_use = self._row.get("first_use", False)
        if not isinstance(first_use, bool):
            raise self._error("`first_use` is true or false")
        return Term(
            en=en,
            text=text,
            match=self._list("match") if "match" in self._row else _forms(en),
            accept={lang: tuple(accept.get(lang, (text[lang],))) for lang in self._languages},
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
        for lang in ("en", *self._languages):
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
            raise self._error(f"`{name}` is a table by language", f"write `{name} = {{ ja = … }}`")
        for lang, item in value.items():
            if not _LANGUAGE.fullmatch(lang) or not valid(item):
                raise self._error(f"`{name}.{lang}` should be {kind}", f"write `{name} = {{ ja = … }}`")
        return value

    def _error(self, what: str, hint: str | None = None) -> SidelitError:
        return SidelitError(what, path=self._shown, line=self._line, hint=hint)


def _is_pattern(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(re.compile(value))
    except re.error:
        return False


def _forms(en: str) -> tuple[str, ...]:
    """An English noun and its plural."""
    if re.search(r"(s|x|ch|sh)$", en):
        return en, f"{en}es"
    if re.search(r"[^aeiou]y$", en):
        return en, f"{en[:-1]}ies"
    return en, f"{en}s"


class Finder:
    """Finds the terms of a glossary in English text, the longest form first.

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
