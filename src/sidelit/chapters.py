"""# Chapters

> A chapter is one literate source, and a part is chapters under one heading.

Both are read from `site/sidelit.toml`. What a part says about its chapters, such as the dialect of their
docstrings or the languages that they stand in, holds for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from sidelit import dialects, languages, page_names, patterns, proofs
from sidelit.page_names import Former
from sidelit.proofs import Proof
from sidelit.tables import Table


@dataclass(frozen=True, slots=True)
class Chapter:
    """One literate source and where its page goes."""

    source: str
    """Path from the project folder, with forward slashes: `src/shardbook/unit.py`."""
    output: str
    """Path of the page in the site: `unit.html`."""
    name: str
    """Name of its catalogue and of its entry in the ledger, wherever the source lies: `shardbook/unit`."""
    run: str | None = None
    """The command that runs this chapter."""
    proves: tuple[Proof, ...] = ()
    """The tests that prove it."""
    module: str = ""
    """The name a program imports it by, as far as its path tells: `shardbook.zero.unit`."""
    former: tuple[Former, ...] = ()
    """What it was called before."""
    line: int = 1
    """Where the configuration names it."""
    dialect: str = "markdown"
    """What its docstrings are written in, one of `sidelit.dialects.DIALECTS`."""
    languages: tuple[str, ...] = ()
    """The languages it stands in; empty for all those of the site."""


@dataclass(frozen=True, slots=True)
class Part:
    """Chapters under one heading of the table of contents."""

    number: str
    label: str
    chapters: tuple[Chapter, ...]
    question: str = ""
    """What a reader may ask that it answers."""


def part(table: Table, tree: patterns.Tree, usual: str, codes: Sequence[str]) -> Part:
    """Read one part: `usual` is the dialect of the site, and `codes` are its languages."""
    number, label, question = (
        table.take("number", str, ""),
        table.take("label", str),
        table.take("question", str, ""),
    )
    folder, output = table.take("folder", str, tree.root).strip("/"), table.take("output", str, "").strip("/")
    dialect, entries = dialects.read(table, usual), patterns.chapters(table, folder, tree)
    found = (_chapter(entry, folder, output, tree.root) for entry in entries)
    kept = languages.kept(table, codes)
    chapters = tuple(replace(each, dialect=dialect, languages=kept) for each in found)
    table.finish()
    return Part(number, label, chapters, question)


def _chapter(table: Table, folder: str, output: str, root: str) -> Chapter:
    given = table.take("source", str)
    if not given.endswith(".py"):
        raise table.error(f"{given!r} is not a Python file", given)
    source = PurePosixPath(folder) / given
    below = source.relative_to(root) if source.is_relative_to(root) else source
    run, proved = table.take("run", str, "") or None, proofs.read(table)
    called = page_names.chapter(table, source, given, below, output)
    table.finish()
    return Chapter(
        source=str(source),
        output=called.output,
        name=called.name,
        run=run,
        proves=proved,
        module=module_name(source, below),
        former=called.former,
        line=table.line(given),
    )


def module_name(source: PurePosixPath, below: PurePosixPath) -> str:
    """The name a program imports a source by, when its path below the source root is `below`."""
    parts = below.with_suffix("").parts
    if parts == ("__init__",):
        return source.parent.name
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
