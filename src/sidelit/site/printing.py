"""# Printing files that are not ours

> Any literate Python becomes pages, without a configuration and without conditions.

What other people write in docstrings follows other rules, or none. So nothing that is odd in their words
stops the printing: a formula that cannot be set and a link that leads nowhere are shown as they were typed,
and a warning names the place. With `strict` they are errors, as they are in a site. A file that is not
Python is an error anyway.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from sidelit import assets, config, languages, origin
from sidelit.catalog import catalog
from sidelit.config import Chapter, Config, Part, Prose
from sidelit.errors import SidelitError
from sidelit.ids import anchors
from sidelit.languages import Language
from sidelit.site import anchoring, assemble, content, edition, links, page, site
from sidelit.site.press import Press
from sidelit.site.search import index as search
from sidelit.source import source
from sidelit.text.math import Typesetter


@dataclass(frozen=True, slots=True)
class Job:
    """What to print.

    :param lang: the language of the pages.
    :param locale: the folder of translations into it, if there is one.
    :param source: the language that the files are written in, unless a project that they are part of says so.
    :param dialect: what their docstrings are written in, if that is not to be guessed.
    """

    paths: tuple[Path, ...]
    lang: str = "en"
    locale: Path | None = None
    strict: bool = False
    source: str = "en"
    dialect: str = ""


@dataclass(frozen=True, slots=True)
class Translations:
    """Where the translations of a page are: the folder of all, the page's name, and the names it had."""

    folder: Path
    name: str
    source: str
    """The code of the language that the page is written in."""
    tag: str
    """The tag of the same."""
    former: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Made:
    """Every file by its path, what was odd, and why which sources were left out."""

    files: dict[str, bytes]
    odd: tuple[SidelitError, ...]
    skipped: tuple[SidelitError, ...]


def files(job: Job) -> Made:
    """Make the pages. One of many sources that cannot be read as Python is left out.

    Raises `SidelitError` if no source can be read, and with `strict` for everything that is odd.
    """
    # A file that is named twice, or found in a folder too, is printed once.
    paths = tuple({path.resolve(): path for path in _expanded(job.paths)}.values())
    made = _configuration(paths, job.lang)
    homes = anchoring.Homes()
    written, names = [], _names(paths, made, job, homes)
    faults: list[SidelitError] = []
    unread = site.Collector()
    for path, chapter in zip(paths, made.chapters, strict=True):
        try:
            document = source.read(path, shown=chapter.source)
            spoken = replace(chapter, dialect=_dialect(path, job, homes))
            names_of = _anchors(path, document, homes, faults)
            text = content.chapter(spoken, document, names_of, report=faults.append)
            written.append(replace(text, label=_import_name(path, text.label)))
            faults += document.faults
        except SidelitError as error:
            unread.add(error)
    if job.strict or not written:
        unread.check()
    read = tuple(text.item for text in written if isinstance(text.item, Chapter))
    made = replace(made, parts=(replace(made.parts[0], chapters=read),))
    title = made.language(job.lang).word("files")
    written += [content.Text(item, title, (), frozenset()) for item in made.front]
    return replace(_pages(made, written, job, names, faults), skipped=tuple(unread.errors))


def _anchors(
    path: Path, document: source.Document, homes: anchoring.Homes, faults: list[SidelitError]
) -> tuple[anchors.Anchor, ...]:
    """The names of the sections of a file; the site that it belongs to tells them, unless that is broken."""
    try:
        return homes.anchors(path, document)
    except SidelitError as error:
        faults.append(error)
        return anchors.assign(document)


def _dialect(path: Path, job: Job, homes: anchoring.Homes) -> str:
    """What the docstrings of a file are written in: what was asked for, or what its own site says."""
    home = homes.owner(path)
    return job.dialect or (home[1].dialect if home else "auto")


def _pages(
    made: Config,
    written: Sequence[content.Text],
    job: Job,
    names: dict[str, Translations],
    faults: Sequence[SidelitError],
) -> Made:
    gathered = site.Collector([*faults])
    press = Press(
        config=made,
        editions={job.lang: _edition(made, written, job, names)},
        index=links.Index(
            {
                text.item.source: links.Target(text.item.source, text.item.name, text.item.output, text.ids)
                for text in written
            },
            {},
            frozenset(),
            "",
            "",
        ),
        math=Typesetter(cache=None),
        origin=origin.Origin(),
        lenient=not job.strict,
        report=gathered.add,
    )
    done = {f"assets/{name}": assets.content(path) for name, path in press.look.assets.items()}
    for output, shown in press.editions[job.lang].pages.items():
        done[output] = page.render(assemble.view(press, shown), press.look).encode()
    done |= search.files(search.Material(made, press.editions))
    if job.strict:
        gathered.check()
    odd = tuple({str(error): error for error in gathered.errors}.values())
    return Made(dict(sorted(done.items())), odd, ())


def _edition(
    made: Config, written: Sequence[content.Text], job: Job, names: dict[str, Translations]
) -> edition.Edition:
    """Translate what has a catalogue; the rest is taken to be in the page's language already."""
    pages = {}
    for text in written:
        shelf = names.get(text.item.output)
        if shelf is None:
            pages[text.item.output] = edition.page(text, None, job.lang)
            continue
        units = catalog.PageUnits(shelf.name, content.page_units(text).sections, shelf.former)
        codes = tuple({job.lang, *(path.name for path in shelf.folder.glob("*") if path.is_dir())})
        books = catalog.load((units,), shelf.folder, codes, shelf.tag)
        book = books.translation(shelf.name, job.lang)
        pages[text.item.output] = edition.page(text, book, job.lang)
    return edition.Edition(job.lang, pages, (("", None),), "", "")


def _names(paths: Sequence[Path], made: Config, job: Job, homes: anchoring.Homes) -> dict[str, Translations]:
    """Where the translations of each page are: in the folder given, or in the project the file is part of."""
    found = {}
    for path, chapter in zip(paths, made.chapters, strict=True):
        given = Translations(job.locale, chapter.name, job.source, job.source) if job.locale else None
        known = given or _project(path, homes)
        if known is not None and job.lang != known.source:
            found[chapter.output] = known
    return found


def _project(path: Path, homes: anchoring.Homes) -> Translations | None:
    home = homes.owner(path)
    if home is None:
        return None
    own, chapter = home
    former = tuple(each.name for each in chapter.former if each.told)
    written = own.language(own.source_language)
    return Translations(own.folder / "locale", chapter.name, written.code, written.tag, former)


def _configuration(paths: Sequence[Path], lang: str) -> Config:
    """A site made of nothing but these files, each at its place below the folder they have in common."""
    base = Path(os.path.commonpath([path.resolve().parent for path in paths]))
    chapters = tuple(_chapter(path, base) for path in paths)
    taken: dict[str, str] = {}
    for chapter in chapters:
        if (other := taken.setdefault(chapter.output, chapter.source)) != chapter.source:
            what = f"its page would be {chapter.output}, and so would that of {other}"
            raise SidelitError(what, path=chapter.source, hint="print one of them into another folder")
    index = "index.html" if "index.html" not in taken else "contents.html"
    front = (Prose("", index, "", "listing"),) if len(paths) > 1 else ()
    home = chapters[0].output if len(paths) == 1 else index
    title = paths[0].resolve().stem if len(paths) == 1 else base.name
    return Config(
        path=base / "site" / "sidelit.toml",
        project=base,
        title=title,
        tagline="",
        languages=(lang,),
        front=front,
        parts=(Part("", "", chapters),),
        back=(),
        source_root="",
        home=home,
        spoken={lang: _language(base, lang)},
    )


def _language(base: Path, lang: str) -> Language:
    """The language of the pages, with the words of the project around the files if it has its own."""
    folders = [folder / "site" / languages.FOLDER for folder in (base, *base.parents)]
    nearest = next((folder for folder in folders if folder.is_dir()), folders[0])
    return languages.load(lang, nearest, str(nearest))


def _chapter(path: Path, base: Path) -> Chapter:
    below = PurePosixPath(path.resolve().relative_to(base).as_posix())
    module = config.module_name(PurePosixPath(path.resolve().as_posix()), below)
    return Chapter(
        path.as_posix(), str(below.with_suffix(".html")), str(below.with_suffix("")), module=module
    )


def _import_name(path: Path, placed: str) -> str:
    """The name a program imports a file by. Packages are the folders around it that say they are.

    Without any, `placed` is the name, made of the folders below the common one, if it can be a name.
    """
    path = path.resolve()
    names = [] if path.stem == "__init__" else [path.stem]
    folder = path.parent
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    if len(names) > 1:
        return ".".join(names)
    return placed if all(part.isidentifier() for part in placed.split(".")) else path.stem


def _expanded(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if not path.exists():
            raise SidelitError("there is no such file", path=path)
        inside = sorted(filter(_visible(path), path.rglob("*.py"))) if path.is_dir() else [path]
        if not inside:
            raise SidelitError("there is no Python file in this folder", path=path)
        for each in inside:
            _check_name(each)
            yield each


def _check_name(path: Path) -> None:
    """A page names its file, and a name that is no text, as old archives hold them, has no place there."""
    try:
        str(path.resolve()).encode()
    except UnicodeEncodeError:
        what = "the name of this file is not UTF-8"
        raise SidelitError(what, path=ascii(str(path))[1:-1], hint="give it another name") from None


def _visible(folder: Path) -> Callable[[Path], bool]:
    """Nobody wants a page of what editors and environments keep under names that begin with a dot."""
    return lambda path: not any(part.startswith(".") for part in path.relative_to(folder).parts)
