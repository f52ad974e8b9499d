"""# Printing files that belong to no site

> Any Python file becomes a page, without a configuration.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path, PurePosixPath

from sidelit import workers
from sidelit.cache import store
from sidelit.cache.graph import Graph, LazySequence, Noted
from sidelit.cache.records import Ids, Packed
from sidelit.cache.store import Store
from sidelit.catalog import catalog, sync
from sidelit.config import chapters, languages, origin
from sidelit.config.chapters import Chapter, DocstringStyle, Part
from sidelit.config.config import Config
from sidelit.config.languages import Language
from sidelit.config.prose import Prose
from sidelit.errors import Collector, SidelitError
from sidelit.files import assets
from sidelit.files.atomic import Output
from sidelit.ids import anchors
from sidelit.site import anchoring, content, edition, identifiers, links, making, navigation, pictures
from sidelit.site.context import BuildContext, Notations
from sidelit.site.search import index as search
from sidelit.source import decoding, source
from sidelit.text import code
from sidelit.text.math import Typesetter

# ## Files that belong to no site
#
# > Which files are printed, what their pages are called, and the site that they make.


def configuration(paths: Sequence[Path], lang: str, spoken: Language | None = None) -> Config:
    """A site made of nothing but these files, each at its place below the folder they have in common.

    :param spoken: the language of the pages, if its words are known already.
    """
    base = Path(os.path.commonpath([path.resolve().parent for path in paths]))
    is_package = cache(lambda folder: (folder / "__init__.py").is_file())
    chapters = tuple(_chapter(path, base, is_package) for path in paths)
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
        spoken={lang: spoken or _language(base, lang)},
    )


def _language(base: Path, lang: str) -> Language:
    """The language of the pages, with the words of the project around the files if it has its own."""
    folders = [folder / "site" / languages.FOLDER for folder in (base, *base.parents)]
    nearest = next((folder for folder in folders if folder.is_dir()), folders[0])
    return languages.load(lang, nearest, str(nearest))


def _chapter(path: Path, base: Path, is_package: Callable[[Path], bool]) -> Chapter:
    below = PurePosixPath(path.resolve().relative_to(base).as_posix())
    placed = chapters.module_name(PurePosixPath(path.resolve().as_posix()), below)
    module = _import_name(path, placed, is_package)
    return Chapter(
        path.as_posix(), str(below.with_suffix(".html")), str(below.with_suffix("")), module=module
    )


def _import_name(path: Path, placed: str, is_package: Callable[[Path], bool]) -> str:
    """The name a program imports a file by. Packages are the folders around it that say they are.

    Without any, `placed` is the name, made of the folders below the common one, if it can be a name.
    """
    path = path.resolve()
    names = [] if path.stem == "__init__" else [path.stem]
    folder = path.parent
    while is_package(folder):
        names.insert(0, folder.name)
        folder = folder.parent
    if len(names) > 1:
        return ".".join(names)
    return placed if all(part.isidentifier() for part in placed.split(".")) else path.stem


def expanded(paths: Sequence[Path], refused: Callable[[SidelitError], None]) -> Iterator[Path]:
    """The files that are printed: those that are named, and those in the folders that are.

    In a folder, a symbolic link to somewhere else is `refused`; nobody has asked for what it leads to.
    """
    for path in paths:
        if not path.exists():
            raise SidelitError("there is no such file", path=path)
        inside = sorted(filter(_visible(path), path.rglob("*.py"))) if path.is_dir() else [path]
        if not inside:
            raise SidelitError("there is no Python file in this folder", path=path)
        for each in inside:
            _check_name(each)
            if path.is_dir() and not each.resolve().is_relative_to(path.resolve()):
                what = "this leads out of the folder that is printed by a symbolic link"
                refused(SidelitError(what, path=each, hint="name the file itself"))
            else:
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


# ## Printing files that are not ours
#
# > Any literate Python becomes pages, without a configuration and without conditions.
#
# What other people write in docstrings follows other rules, or none. So nothing that is odd in their words
# stops the printing: a formula that cannot be set and a link that leads nowhere are shown as they were typed,
# and a warning names the place. With `strict` they are errors, as they are in a site. A file that is not
# Python is an error anyway.
#
# A file may be part of a site, whose configuration then answers what nobody was asked on the command line:
# the language it is written in, and so that of its page, its translations, the dialect of its docstrings.


# What files of no site are taken to be written in.
USUAL = "en"


@dataclass(frozen=True, slots=True)
class Job:
    """What to print. What is left empty follows the site that a file is part of.

    :param lang: the language of the pages; without it that of the files.
    :param locale: the folder of translations into it, if there is one.
    :param source: the language that the files are written in.
    :param dialect: what their docstrings are written in; of files of no site it is guessed.
    """

    paths: tuple[Path, ...]
    lang: str = ""
    locale: Path | None = None
    strict: bool = False
    source: str = ""
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
    """The pages of the files, what was odd in them, and why which sources were left out."""

    pages: tuple[str, ...]
    odd: tuple[SidelitError, ...]
    skipped: tuple[SidelitError, ...]


@workers.looking_seldom()
def write(job: Job, out: Output, jobs: int | None = None) -> Made:
    """Write the pages into an empty folder. One of many sources that cannot be read as Python is left out.

    `jobs` is the number of processes that read and print, by default one for each core.

    Raises `SidelitError` if no source can be read, and with `strict` for everything that is odd.
    """
    unread = Collector()
    # A file that is named twice, or found in a folder too, is printed once.
    found = expanded(job.paths, unread.add)
    paths = tuple({path.resolve(): path for path in found}.values())
    if not paths:
        unread.check()
    homes = anchoring.Homes()
    job, spoken = _in_language(job, paths, homes)
    made = configuration(paths, job.lang, spoken)
    names = _names(paths, made, job, homes)
    faults: list[SidelitError] = []
    written: list[content.SourcePage] = []
    shown: Packed[identifiers.Shown] = Packed()
    with _kept(made.project, out.folder) as kept:
        graph = Graph(kept)
        code.prepare()
        files = list(map(_File, paths, made.chapters))
        read = partial(_read, homes, graph, job)
        for file, (there, told) in zip(files, workers.shared(read, files, jobs), strict=True):
            if there is None:
                unread.errors += told
            else:
                make = partial(_sections, homes, job, file)
                again = partial(graph.alone, "pieces", there.key, make)
                sections = LazySequence(again, there.length, content.READ.format(file.chapter.source))
                written.append(replace(there.page, sections=sections, graph=graph))
                shown.put(file.chapter.source, there.shown)
                faults += told
        if job.strict or not written:
            unread.check()
        chapters = tuple(page.item for page in written if isinstance(page.item, Chapter))
        made = replace(made, parts=(replace(made.parts[0], chapters=chapters),))
        # The links of all files together may be more than memory holds.
        linked = identifiers.linked(Path.cwd(), written, jobs, shown, sparing=True)
        title = made.language(job.lang).word("files")
        written += [content.SourcePage(item, title, (), Ids()) for item in made.front]
        linking = identifiers.Identifiers(shown, linked.links, {}, linked.outlines)
        done = _pages(made, written, job, names, linking, faults, out, jobs, kept, graph)
        graph.keep()
    return replace(done, skipped=tuple(unread.errors))


def _in_language(job: Job, paths: Sequence[Path], homes: anchoring.Homes) -> tuple[Job, Language | None]:
    """The job with the language of its pages, and with the words of that language where a site has them.

    Where nobody asks for one, it is that of the files; those of several sites may have none in common.

    Raises `SidelitError` for translations of which nobody says into what language.
    """
    if job.locale and not job.lang:
        what = "nobody says into what language these translations are"
        raise SidelitError(what, path=job.locale, hint="name it with --lang")
    if job.lang or job.source:
        return replace(job, lang=job.lang or job.source), None
    owners = filter(None, map(homes.owner, paths))
    found = {own.source_language: own for own, _ in owners}
    if len(found) != 1:
        return replace(job, lang=USUAL), None
    ((lang, own),) = found.items()
    return replace(job, lang=lang), own.language(lang)


@dataclass(frozen=True, slots=True)
class _File:
    """A file to print."""

    path: Path
    chapter: Chapter


@dataclass(frozen=True, slots=True)
class _Made:
    """The page of a file, without its sections, which are kept under the key."""

    key: str
    page: content.SourcePage
    length: int
    shown: identifiers.Shown
    faults: tuple[SidelitError, ...]


def _read(
    homes: anchoring.Homes, graph: Graph, job: Job, file: _File
) -> tuple[_Made | None, list[SidelitError]]:
    """The page of a file and what is odd in it; no page, and the reason, where it cannot be read."""
    faults: list[SidelitError] = []
    try:
        key, make = _told(homes, job, file, faults)

        def first() -> _Made:
            odd: list[SidelitError] = []
            page, document = make(odd.append)
            sections = tuple(page.sections)
            graph.alone("pieces", key, lambda: sections)
            kept = replace(page, sections=(), digest=key, code=anchoring.code_of(document))
            return _Made(key, kept, len(sections), identifiers.shown(page), (*odd, *document.faults))

        made = graph.alone("printed", key, first)
    except SidelitError as error:
        return None, [error]
    return made, [*faults, *made.faults]


def _sections(homes: anchoring.Homes, job: Job, file: _File) -> tuple[content.PageSection, ...]:
    """The sections of a file that was read, where the store has lost them."""
    _, make = _told(homes, job, file, [])
    return tuple(make(lambda error: None)[0].sections)


def _told(
    homes: anchoring.Homes, job: Job, file: _File, faults: list[SidelitError]
) -> tuple[str, Callable[[anchoring.Report], tuple[content.SourcePage, source.Document]]]:
    """What stands for all that a page is made from, and what makes it, together with its document."""
    path, docstring_style = file.path, _docstring_style(file.path, job, homes)
    chapter = replace(
        file.chapter, dialect=docstring_style.dialect, equation_numbers=docstring_style.numbered
    )
    written, encoding = decoding.read_source(path, chapter.source)
    parsed = cache(lambda: source.parse(written, chapter.source, encoding))
    # The ids of a file that belongs to no site follow from its words.
    names = None if homes.owner(path) is None else _anchors(path, parsed(), homes, faults)

    def make(report: anchoring.Report) -> tuple[content.SourcePage, source.Document]:
        named = anchors.assign(parsed()) if names is None else names
        return content.chapter(chapter, parsed(), named, report=report), parsed()

    return store.digest(written, encoding, chapter, names), make


def _anchors(
    path: Path, document: source.Document, homes: anchoring.Homes, faults: list[SidelitError]
) -> tuple[anchors.Anchor, ...]:
    """The names of the sections of a file; the site that it belongs to tells them, unless that is broken."""
    try:
        return homes.anchors(path, document)
    except SidelitError as error:
        faults.append(error)
        return anchors.assign(document)


def _docstring_style(path: Path, job: Job, homes: anchoring.Homes) -> DocstringStyle:
    """How the docstrings of a file are written: as was asked for, or as its own site says."""
    home = homes.owner(path)
    if job.dialect or home is None:
        return DocstringStyle(job.dialect or "auto")
    return DocstringStyle(home[1].dialect, home[1].equation_numbers)


def _pages(
    made: Config,
    written: Sequence[content.SourcePage],
    job: Job,
    names: dict[str, Translations],
    linked: identifiers.Identifiers,
    faults: Sequence[SidelitError],
    out: Output,
    jobs: int | None,
    kept: Store,
    graph: Graph,
) -> Made:
    gathered = Collector([*faults])
    build = BuildContext(
        config=made,
        editions={job.lang: _edition(made, written, job, names)},
        index=links.Index(
            {
                page.item.source: links.Target(page.item.source, page.item.name, page.item.output, page.ids)
                for page in written
            },
            {},
            frozenset(),
            "",
            "",
        ),
        math=Typesetter(store=kept),
        pages=Noted({page.item.source: page for page in written}, content.READ),
        names=linked,
        notations=Notations(written),
        origin=origin.Origin(),
        pictures=pictures.pictures(made, written),
        lenient=not job.strict,
        report=gathered.add,
    )
    static = build.pictures.files()
    static |= {f"assets/{name}": content for name, content in assets.served(build.theme.assets).items()}
    if made.front:
        static[f"{navigation.FOLDER}{job.lang}.js"] = navigation.script(made, build.editions[job.lang])
    orders = [making.PageJob(*each) for each in build.editions[job.lang].pages.items()]
    for error in making.clashes(orders):
        build.report(error)
    index = search.Index(search.Material(made, build.editions))
    making.write(build, [[order] for order in orders], out, jobs, graph, ahead=index.ahead)
    for name, data in static.items():
        out.put(name, data)
    index.write(out.put)
    if job.strict:
        gathered.check()
    odd = tuple({str(error): error for error in gathered.errors}.values())
    return Made(tuple(sorted(each.name for each in orders if each.is_chapter)), odd, ())


def _edition(
    made: Config, written: Sequence[content.SourcePage], job: Job, names: dict[str, Translations]
) -> edition.Edition:
    """Translate what has a catalogue; the rest is taken to be in the page's language already."""
    pages = {}
    for page in written:
        translations = names.get(page.item.output)
        if translations is None:
            pages[page.item.output] = edition.page(page, None, job.lang)
            continue
        units = sync.PageUnits(translations.name, content.page_units(page).sections, translations.former)
        codes = tuple({job.lang, *(path.name for path in translations.folder.glob("*") if path.is_dir())})
        books = catalog.load((units,), translations.folder, codes, translations.tag)
        book = books.translation(translations.name, job.lang)
        pages[page.item.output] = edition.page(page, book, job.lang)
    unnamed = (("", None),)
    return edition.Edition(job.lang, pages, unnamed, "", "", unnamed * len(made.courses))


def _names(paths: Sequence[Path], made: Config, job: Job, homes: anchoring.Homes) -> dict[str, Translations]:
    """Where the translations of each page are: in the folder given, or in the project the file is part of."""
    found = {}
    for path, chapter in zip(paths, made.chapters, strict=True):
        known = _translations(path, chapter, job, homes.owner(path))
        if known is not None and job.lang != known.source:
            found[chapter.output] = known
    return found


def _translations(
    path: Path, printed: Chapter, job: Job, home: tuple[Config, Chapter] | None
) -> Translations | None:
    """Where the translations of a file are; `None` if nobody has said that it is to be translated."""
    if home is None or (job.source and job.source != home[0].source_language):
        # The catalogues of a site translate from its own language.
        source = job.source or USUAL
        return Translations(job.locale, printed.name, source, source) if job.locale else None
    own, chapter = home
    written = own.language(own.source_language)
    if job.locale:
        return Translations(job.locale, printed.name, written.code, written.tag)
    folder = own.folder / "locale"
    if job.lang not in own.written_in(chapter) and not (folder / job.lang).is_dir():
        return None
    former = tuple(each.name for each in chapter.former if each.told)
    return Translations(folder, chapter.name, written.code, written.tag, former)


# ## What is kept for the next time
#
# > A folder that is printed again costs what has changed in it, and nothing is written beside its files.
#
# What follows from the same files is kept for the user who prints, in a folder of their cache, for the last
# folders that were printed. It may be deleted at any time. Where a user has no place for it, it is kept
# beside the pages until they are made.


FOLDER = "printed"
# How many folders are kept, each within the bound that a site has.
KEPT = 8


@contextmanager
def _kept(base: Path, out: Path) -> Iterator[Store]:
    """What was made before of the files in a folder."""
    home = store.home()
    own = home and home / FOLDER / store.digest(base)
    kept = Store(own)
    if own and kept.keeps:
        with suppress(OSError):
            own.mkdir(parents=True, exist_ok=True)
            os.utime(own)
            used = sorted(own.parent.iterdir(), key=lambda each: each.lstat().st_mtime, reverse=True)
            for each in used[KEPT:]:
                shutil.rmtree(each, ignore_errors=True)
        yield kept
        return
    with (
        tempfile.TemporaryDirectory(dir=out) as name,
        closing(Store(Path(name), secrets.token_bytes(32))) as kept,
    ):
        yield kept
