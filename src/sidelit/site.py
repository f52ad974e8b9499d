"""# The site

> Read everything, check everything, and only then hand out the files.

This is the pipeline in one place: sources and prose are read, sections get their names, catalogues their
matches, and each page is assembled in each language. The result is a set of files in memory. Who writes
them, the command line, mkdocs or a server, is of no concern here, and a site that has a mistake anywhere is
never handed out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sidelit import (
    about,
    anchors,
    assemble,
    assets,
    catalog,
    content,
    edition,
    glossary,
    links,
    listing,
    page,
    source,
    ways,
)
from sidelit.config import Config, Prose, load
from sidelit.errors import SidelitError
from sidelit.math import Typesetter
from sidelit.views import Work

CACHE = ".cache/sidelit"


class Failures(SidelitError):
    """Several mistakes at once, one line each."""

    def __init__(self, errors: Sequence[SidelitError]) -> None:
        super().__init__(f"{len(errors)} mistakes")
        # The same slip shows in every language; it is said once, and in the order of the places.
        self.errors = tuple({str(error): error for error in errors}.values())

    def __str__(self) -> str:
        return "\n".join(str(error) for error in self.errors)


@dataclass(slots=True)
class Collector:
    """Gathers mistakes, so that an author hears of all of them at once."""

    errors: list[SidelitError] = field(default_factory=list)

    def add(self, error: SidelitError) -> None:
        """Take note of one mistake, or of several at once."""
        self.errors += error.errors if isinstance(error, Failures) else [error]

    def check(self) -> None:
        """Raise what was gathered, if anything was."""
        if len(self.errors) == 1:
            raise self.errors[0]
        if self.errors:
            raise Failures(self.errors)


def texts(config: Config) -> tuple[content.Text, ...]:
    """Read every page of the site in the language it was written in.

    Raises `SidelitError` with all the sources that cannot be read.
    """
    ledger = _ledger(config)
    found: list[content.Text] = []
    gathered = Collector()
    for item in config.order:
        try:
            if isinstance(item, Prose):
                found.append(content.prose(item, config.project / item.source))
            else:
                document = source.read(config.project / item.source, shown=item.source)
                names = anchors.assign(document, ledger.get(item.name))
                found.append(content.chapter(item, document, [(name.id, name.aliases) for name in names]))
        except SidelitError as error:
            gathered.add(error)
    gathered.check()
    return tuple(found)


def _ledger(config: Config) -> anchors.Ledger:
    path = config.folder / "anchors.json"
    try:
        ledger = anchors.load(path)
        anchors.check_pages(ledger, [chapter.name for chapter in config.chapters], path)
    except SidelitError as error:
        raise SidelitError(error.what, path=config.shown(path), line=error.line, hint=error.hint) from None
    return ledger


def shelf(config: Config, written: Sequence[content.Text]) -> catalog.Shelf:
    """Open the catalogues of the site and match them with its pages."""
    return catalog.load(content.units(config, written), config.folder / "locale", config.languages[1:])


def files(config: Config) -> dict[str, bytes]:
    """Make the whole site: every file by its path, in a fixed order.

    Raises `SidelitError` (one, or `Failures`) when anything in it is wrong.
    """
    page.forget()
    written = texts(config)
    books = shelf(config, written)
    editions = {lang: edition.edition(config, written, books, lang) for lang in config.languages}
    terms, works = _data(config)
    gathered = Collector()
    press = assemble.Press(
        config=config,
        editions=editions,
        index=_index(config, written, terms, works),
        math=Typesetter(cache=config.project / CACHE / "math"),
        origin=about.origin(config),
        glossary=terms,
        works=works,
        report=gathered.add,
    )
    made = {name: path.read_bytes() for name, path in _static(config)}
    for lang, each in editions.items():
        for output, shown in each.pages.items():
            made[ways.address(config, output, lang)] = page.render(assemble.view(press, shown)).encode()
    gathered.check()
    return dict(sorted(made.items()))


def watched(path: Path) -> tuple[Path, ...]:
    """The files and folders whose change makes another site.

    `path` is the configuration, which may be broken at the moment.
    """
    try:
        made = load(path)
        sources = tuple(made.project / chapter.source for chapter in made.chapters)
    except SidelitError:
        sources = ()
    return (path.parent, assets.templates_folder(), *sources)


def _static(config: Config) -> Iterator[tuple[str, Path]]:
    yield from ((f"assets/{name}", path) for name, path in assets.asset_files())
    yield from ((name, config.folder / "pages" / name) for name in _pictures(config))


def _pictures(config: Config) -> tuple[str, ...]:
    """What lies beside the prose and is not prose: pictures and other files that pages refer to."""
    folder = config.folder / "pages"
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return tuple(sorted(name for name in names if not name.endswith(".md") and "/." not in f"/{name}"))


def _index(
    config: Config, written: Sequence[content.Text], terms: glossary.Glossary, works: Sequence[Work]
) -> links.Index:
    made = {
        "glossary": {listing.term_id(term) for term in terms.terms},
        "bibliography": {work.id for work in works},
    }
    targets = {}
    home = None
    for text in written:
        append = text.item.append if isinstance(text.item, Prose) else None
        home = text.item.output if append == "bibliography" else home
        ids = text.ids | made.get(append or "", set())
        targets[text.item.source] = links.Target(text.item.source, text.item.name, text.item.output, ids)
    return links.Index(
        targets=targets,
        works={listing.key_of(work): home for work in works} if home else {},
        files=frozenset(_pictures(config)),
        source_root=config.source_root,
        pages=links.pages_folder(config),
    )


def _data(config: Config) -> tuple[glossary.Glossary, tuple[Work, ...]]:
    words, works = config.folder / "glossary.toml", config.folder / "bibliography.toml"
    terms = glossary.read(words, config.shown(words), config.languages[1:])
    return terms, listing.works(works, config.shown(works))
