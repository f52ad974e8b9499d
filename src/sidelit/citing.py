"""# Citing

> Who wrote a project, what of it is cited, and the forms in which a citation is written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sidelit.config.config import Config
from sidelit.errors import SidelitError
from sidelit.files import assets

# ## Who wrote it
#
# > `CITATION.cff` names the authors for every tool that reads one, so the press reads them there too.
#
# The configuration may name them instead (`authors`), for a project without such a file. Without either they
# are "The … authors".


FILE = "CITATION.cff"


@dataclass(frozen=True, slots=True)
class Author:
    """A person, with a family name, or a group, whose whole name is `name`."""

    name: str
    family: str = ""
    given: str = ""


@dataclass(frozen=True, slots=True)
class Credits:
    """Who wrote a project, and what else its `CITATION.cff` says of the whole of it."""

    authors: tuple[Author, ...]
    doi: str = ""
    version: str = ""
    date: str = ""


def read(config: Config) -> Credits:
    """Read the authors of a project.

    Raises `SidelitError` with the line when `CITATION.cff` is not what its format asks for.
    """
    path = config.project / FILE
    said = _parsed(path) if path.is_file() else {}
    date = _text(said.get("date-released", ""))
    if date and not re.fullmatch(r"\d{4}(-\d{2}){0,2}", date):
        raise _wrong(path, f"{date[:40]!r} in `date-released` is no day; write it as 2026-01-31")
    named = tuple(map(_named, config.authors)) or tuple(
        _author(each, path) for each in said.get("authors", ())
    )
    return Credits(
        authors=named or (Author(f"The {config.title} authors"),),
        doi=_text(said.get("doi", "")),
        version=_text(said.get("version", "")),
        date=date,
    )


def _parsed(path: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(assets.text(path))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise SidelitError(f"not valid YAML: {error.problem}", path=FILE, line=line) from None
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        raise SidelitError("cannot be read as YAML", path=FILE, line=1) from None
    if not isinstance(data, dict) or not isinstance(data.get("authors", []), list):
        raise _wrong(path, "not a citation file: it needs a list of `authors`")
    return data


def _author(said: object, path: Path) -> Author:
    """An entry of the list: a person has `family-names` and `given-names`, anything else a `name`."""
    given = {str(key): _text(value) for key, value in said.items()} if isinstance(said, dict) else {}
    family = " ".join(filter(None, (given.get("name-particle"), given.get("family-names"))))
    if not family:
        name = given.get("name") or given.get("given-names") or given.get("alias")
        if not name:
            raise _wrong(path, "an author needs a `name`, or `family-names` and `given-names`")
        return Author(name)
    first = given.get("given-names", "")
    return Author(f"{first} {family}".strip(), family, first)


def _text(value: object) -> str:
    """A word, a number or a day; a list has no place there, and one of aliases could be without an end."""
    return "" if isinstance(value, (list, dict)) else str(value)


def _named(name: str) -> Author:
    """A name of the configuration: `Family, Given` is a person, all else is taken as it is."""
    family, comma, given = (part.strip() for part in name.partition(","))
    return Author(f"{given} {family}", family, given) if comma and given else Author(name)


def _wrong(path: Path, what: str) -> SidelitError:
    lines = assets.text(path).splitlines()
    line = next((number for number, text in enumerate(lines, 1) if re.match("authors", text)), 1)
    return SidelitError(what, path=FILE, line=line, hint="see https://citation-file-format.github.io")


# ## What a citation names
#
# > Everything that a citation can say stands in one record; the forms write it down.
#
# It names the section by its title, its number and its id, the page, and the state of the project in which it
# was read: version, commit and date. Nothing here is asked of the clock, so each build gives the same
# citation.


@dataclass(frozen=True, slots=True)
class Place:
    """What is cited of a page: a section, or without an id the whole of it."""

    id: str = ""
    """As in an address: `Unit.gather`."""
    number: str = ""
    """As in the contents: `12.4`."""
    title: str = ""
    """Its heading; a section without one is called by its id."""

    @property
    def label(self) -> str:
        """What it is called in a sentence."""
        return self.title or self.id


@dataclass(frozen=True, slots=True)
class Record:
    """What all forms of one citation say. What is not known is empty."""

    book: str
    page: str
    """The title of the page, in the language of the citation."""
    name: str
    """The name of the page in the site, of which keys are made: `shardbook/unit`."""
    place: Place
    source: str
    authors: tuple[Author, ...]
    language: str
    version: str = ""
    commit: str = ""
    date: str = ""
    """Of the commit, as `2026-11-23`."""
    url: str = ""
    doi: str = ""

    @property
    def year(self) -> str:
        """The year of the date."""
        return self.date[:4]

    @property
    def title(self) -> str:
        """Page and section in one title."""
        if not self.place.id:
            return self.page
        return f"{self.page}, {' '.join(filter(None, (self.sign, self.place.label)))}"

    @property
    def sign(self) -> str:
        """The number of the section behind its sign."""
        return f"§ {self.place.number}" if self.place.number else ""


# ## The forms of a citation
#
# > A sentence for a list of references, BibTeX for LaTeX, CSL-JSON for everything else.
#
# The sentence follows APA. The press writes it by itself, because it has one kind of work with few fields. A
# program for citation styles (citeproc-py, with its files of styles) would be many times as large as this
# module. Who needs another style gives the CSL-JSON to a program that has it.


# The forms, and what they are called in every language.
FORMS = {"apa": "APA", "bibtex": "BibTeX", "csl": "CSL-JSON"}
# APA names all authors up to this many, and of more the first ones and the last.
MOST = 20


def written(record: Record, form: str, words: Mapping[str, str]) -> str:
    """Write a citation in one of the `FORMS`; `words` are those of the interface, in its language."""
    if form == "apa":
        return apa(record, words)
    return bibtex(record, words) if form == "bibtex" else csl(record, words)


def apa(record: Record, words: Mapping[str, str]) -> str:
    """One sentence, as the seventh edition of APA sets it; words that it adds are those of the language.

    Without a page the record is that of the whole book.
    """
    year = record.year or words["cite_undated"]
    state = ", ".join(_state(record, words))
    book = words["cite_in"].format(book=record.book) if record.title else record.book
    said = (
        f"{_apa_authors(record.authors)} ({year}).",
        record.title and f"{record.title}.",
        f"{book}{f' ({state})' if state else ''}.",
    )
    doi = f"https://doi.org/{record.doi}" if record.doi and not record.url else ""
    return " ".join(filter(None, (*said, record.url or doi)))


def bibtex(record: Record, words: Mapping[str, str]) -> str:
    """An entry of the kind `misc`, which every style knows."""
    fields = {
        "author": " and ".join(map(_bibtex_author, record.authors)),
        "title": f"{{{_tex(record.title)}}}",
        "howpublished": _tex(record.book),
        "year": record.year,
        "date": record.date,
        "version": _tex(record.version),
        "note": _tex(", ".join(_note(record, words))),
        "doi": record.doi,
        "url": re.sub("[{}]", "", record.url),
    }
    lines = "".join(f"  {name} = {{{value}}},\n" for name, value in fields.items() if value)
    return f"@misc{{{key(record)},\n{lines}}}"


def csl(record: Record, words: Mapping[str, str]) -> str:
    """A JSON list with one item, as programs that manage references import it."""
    item: dict[str, object] = {
        "id": key(record),
        "type": "chapter",
        "title": record.title,
        "container-title": record.book,
        "author": [_csl_author(author) for author in record.authors],
        "issued": {"date-parts": [[int(part) for part in record.date.split("-")]]} if record.date else None,
        "section": record.place.number or record.place.id,
        "version": record.version,
        "note": ", ".join(_note(record, words)),
        "DOI": record.doi,
        "URL": record.url,
        "language": record.language,
    }
    # One field a line, for those who read it before they copy it.
    lines = (f"  {json.dumps(name)}: {_json(value)}" for name, value in item.items() if value)
    return "[{\n" + ",\n".join(lines) + "\n}]"


def key(record: Record) -> str:
    """What a text cites it by: `shardbook:shardbook/unit:Unit.gather`."""
    name = f"{record.book.lower()}:{record.name}:{record.place.id}".removesuffix(":")
    # In the form for a script four signs stand for what it will put there.
    return re.sub(r"[^\w.:/@◰-◳-]+", "-", name)


def _note(record: Record, words: Mapping[str, str]) -> list[str]:
    """Where the text stands, exactly: the file, the id of the section, the state."""
    section = words["cite_section"].format(id=record.place.id) if record.place.id else ""
    return list(filter(None, (record.source, section, *_state(record, words))))


def _state(record: Record, words: Mapping[str, str]) -> list[str]:
    version = words["cite_version"].format(version=record.version) if record.version else ""
    commit = words["cite_commit"].format(commit=record.commit) if record.commit else ""
    return list(filter(None, (version, commit)))


# ## Authors


def _apa_authors(authors: Sequence[Author]) -> str:
    names = [_apa_author(author) for author in authors]
    if len(names) > MOST:
        return f"{', '.join(names[: MOST - 1])}, … {_stopped(names[-1])}"
    if len(names) > 1:
        return f"{', '.join(names[:-1])}, & {_stopped(names[-1])}"
    return _stopped(names[0])


def _apa_author(author: Author) -> str:
    """Family name and initials; given names that are not in Latin letters have none."""
    if not author.family:
        return author.name
    if not author.given.isascii():
        latin = re.match(r"[\u00c0-\u024f]|[A-Za-z]", author.given)
        if not latin:
            return f"{author.family} {author.given}"
    parts = re.split(r"([\s-]+)", author.given)
    initials = "".join(
        part if part.startswith("-") else f"{part[:1]}." if part.strip() else " " for part in parts
    )
    return f"{author.family}, {initials}" if author.given else author.family


def _stopped(name: str) -> str:
    return name if name.endswith(".") else f"{name}."


def _bibtex_author(author: Author) -> str:
    """The name of a group stands in braces of its own, so that it is not taken apart."""
    if author.family and author.given:
        return f"{_tex(author.family)}, {_tex(author.given)}"
    return f"{{{_tex(author.name)}}}"


def _csl_author(author: Author) -> dict[str, str]:
    if author.family:
        return {"family": author.family, "given": author.given} if author.given else {"family": author.family}
    return {"literal": author.name}


# ## What a form does to a value


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _tex(value: str) -> str:
    """A value as TeX reads it back; a brace could end the field."""
    value = re.sub(r"[{}\\]", "", value)
    return re.sub(r"([%&#_$])", r"\\\1", value)
