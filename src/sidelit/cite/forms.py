"""# The forms of a citation

> A sentence for a list of references, BibTeX for LaTeX, CSL-JSON for everything else.

The sentence follows APA. The press writes it by itself, because it has one kind of work with few fields. A
program for citation styles (citeproc-py, with its files of styles) would be many times as large as this
module. Who needs another style gives the CSL-JSON to a program that has it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from sidelit.cite.authors import Author
from sidelit.cite.record import Record

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
