"""# What the commands do

> Each command asks one function of the press and prints its answer.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sidelit import api, citing, serve
from sidelit.catalog import catalog
from sidelit.cli import adopt
from sidelit.config import config, origin, publication
from sidelit.errors import LINT, SidelitError, summed
from sidelit.export import cards, notebooks, pack, slides, versions
from sidelit.files import atomic
from sidelit.ids import anchors
from sidelit.site import anchoring, content, edition, linting, metadata, site
from sidelit.site.search import ask
from sidelit.source import source


def build_site(given: argparse.Namespace) -> int:
    """`sidelit build`."""
    return _told(api.build(given.config, given.out, keep_going=given.keep_going, jobs=given.jobs))


def pack_site(given: argparse.Namespace) -> int:
    """`sidelit pack`."""
    made = given_configuration(given)
    folder, archive = pack.pack(made, given.out or made.project / "build" / "pack", _gaps)
    print(f"{folder}\n{archive}: {archive.stat().st_size / 1e6:.1f} MB")
    return 0


def book_site(given: argparse.Namespace) -> int:
    """`sidelit book`."""
    # The package that binds is none that the other commands need.
    from sidelit.export import pdf, pdf_documents

    made = given_configuration(given)
    langs = _languages(made, given.lang)
    program = pdf.find(given.browser)
    for lang in langs:
        if said := pdf_documents.lacking(made.language(lang)):
            print(f"sidelit: {said}", file=sys.stderr, flush=True)
    out = given.out or made.project / "build" / "book"
    for each in pdf.books(made, out, program, langs, _gaps):
        print(f"{each.path}: {each.pages} pages, {each.path.stat().st_size / 1e6:.1f} MB", flush=True)
    return 0


def _languages(made: config.Config, asked: Sequence[str]) -> Sequence[str]:
    """The languages that were asked for, or else all of the site."""
    if strange := [lang for lang in asked if lang not in made.languages]:
        hint = f"it has {', '.join(made.languages)}"
        raise SidelitError(f"{strange[0]!r} is not a language of this site", hint=hint)
    return asked or made.languages


def make_slides(given: argparse.Namespace) -> int:
    """`sidelit slides`."""
    made = given_configuration(given)
    for path in slides.slides(made, given.lesson, given.out, _languages(made, given.lang), _gaps):
        print(path)
    return 0


def make_labs(given: argparse.Namespace) -> int:
    """`sidelit lab`."""
    made = given_configuration(given)
    found = notebooks.notebooks(made)
    if given.check:
        wrong = list(notebooks.differing(made, found))
        for path in wrong:
            print(f"{path} is not what its lab is today: run `sidelit lab`", file=sys.stderr)
        return 1 if wrong else 0
    for path in notebooks.write(made, found):
        print(path)
    print(f"{len(found)} notebooks are up to date.")
    return 0


def serve_site(given: argparse.Namespace) -> int:
    """`sidelit serve`."""
    path = given_path(given)
    # What each source held when a build could read it. What none could read is told where the server runs.
    last: dict[str, bytes] = {}
    unread: set[str] | None = None

    def build() -> tuple[serve.Files, str]:
        nonlocal unread
        # The configuration is read anew each time: it may be what was saved.
        made = config.load(path)
        with atomic.written(folder) as out:
            done = site.write(made, out, last=last)
        broken = {str(error.path): str(error) for error in done.skipped}
        unread = set(broken) if unread is None else unread & broken.keys()
        typed = [said for name, said in broken.items() if name not in unread]
        _gaps(replace(done, skipped=tuple(each for each in done.skipped if str(each) not in typed)))
        if made.keep_going:
            sources = [each.source for each in made.chapters if each.source not in broken]
            last.update({source: (made.project / source).read_bytes() for source in sources})
        return serve.Files(folder, frozenset(done.files)), "\n".join(typed)

    with tempfile.TemporaryDirectory() as name, atomic.tidied(lambda: shutil.rmtree(name, True)):
        # What a build leaves as it was is not written again by the next one.
        folder = Path(name, "site")
        serve.serve(
            build,
            lambda: site.watched(path),
            given.port,
            lambda line: print(line, flush=True) if line else None,
        )
    return 0


def init(given: argparse.Namespace) -> int:
    """`sidelit init`."""
    found, written = adopt.init(given.folder, codes=given.lang, mkdocs=given.mkdocs)
    for reason in found.left_out:
        print(f"skipped: {reason}", file=sys.stderr)
    for path in written:
        print(path.as_posix())
    files, parts = sum(part.files for part in found.parts), len(found.parts)
    left = _skipped(found.left_out)
    print(f"{files} file{'s' * (files != 1)} in {parts} part{'s' * (parts != 1)}{left}. Next:")
    there = (
        ""
        if given.folder.resolve() == Path.cwd()
        else f" --config {(given.folder / adopt.CONFIGURATION).as_posix()}"
    )
    print(f"  sidelit serve{there}    shows the site on this machine and builds it again on every save")
    print(f"  sidelit build{there}    writes it into {(given.folder / 'build/site').as_posix()}/")
    return 0


def print_files(given: argparse.Namespace) -> int:
    """`sidelit print`."""
    done = api.print_files(
        given.files,
        given.out,
        lang=given.lang,
        locale=given.locale,
        strict=given.strict,
        source=given.source,
        dialect=given.dialect,
        jobs=given.jobs,
    )
    return _told(done, "--strict")


def _gaps(done: site.BuildResult, listing: str = LINT) -> None:
    """Tell what is wrong in a site, and what it was made without; `listing` tells all of it."""
    for warning in summed(done.odd, listing):
        print(f"warning: {warning}", file=sys.stderr)
    for reason in done.skipped:
        print(f"skipped: {reason}", file=sys.stderr, flush=True)


def _told(done: api.Printed, listing: str = LINT) -> int:
    _gaps(site.BuildResult((), done.warnings, done.skipped), listing)
    pages, left = len(done.pages), _skipped(done.skipped)
    # Where there is one, nothing else leads to it.
    print((f"1 page: {done.pages[0]}" if pages == 1 else f"{pages} pages in {done.folder}") + left)
    return 0


def _skipped(files: Sequence[SidelitError]) -> str:
    return f", and {len(files)} file{'s' * (len(files) != 1)} skipped" if files else ""


def sections(given: argparse.Namespace) -> int:
    """`sidelit sections`: a JSON list with one object a section, one a line."""
    document = source.read(given.file)
    try:
        names = anchoring.Homes().anchors(given.file, document)
    except SidelitError as error:
        what = "the site that this file belongs to is broken, so its ids are proposals"
        print(f"warning: {what}: {error}", file=sys.stderr)
        names = anchors.assign(document)
    objects = (
        {
            "id": name.id,
            "kind": section.kind,
            "commentary": section.commentary,
            "code": "\n".join(text for _, text in section.code),
            "source": section.source,
            "first_line": section.first_line,
            "last_line": section.last_line,
            "depth": section.depth.words if section.depth else None,
        }
        for section, name in zip(document.sections, names, strict=True)
    )
    # ASCII only: a source may hold characters that this terminal's encoding does not.
    print("[\n" + ",\n".join(json.dumps(each) for each in objects) + "\n]")
    return 0


def lint(given: argparse.Namespace) -> int:
    """`sidelit lint`."""
    findings = linting.findings(given_configuration(given))
    for finding in findings:
        print(finding, file=sys.stderr if finding.severity == "error" else sys.stdout)
    errors = sum(finding.severity == "error" for finding in findings)
    warnings = len(findings) - errors
    print(f"{errors} error{'s' * (errors != 1)}, {warnings} warning{'s' * (warnings != 1)}.")
    return 1 if errors else 0


def cite(given: argparse.Namespace) -> int:
    """`sidelit cite`."""
    made = given_configuration(given)
    lang = given.lang or made.languages[0]
    if lang not in made.languages:
        raise SidelitError(f"{lang!r} is not a language of this site")
    made = versions.checked_out(made)
    pages = site.texts(site.sound(made))
    page, section = metadata.find(pages, given.id)
    book = None if lang == made.languages[0] else site.catalogs(made, pages).catalog(page.item.name, lang)
    project = metadata.Project(made, origin.origin(made), citing.read(made))
    said = metadata.record(project, edition.page(page, book, lang), section)
    words = made.language(lang).words
    wanted = [given.form] if given.form else list(citing.FORMS)
    address = [said.url] if said.url and not given.form else []
    print("\n\n".join((*address, *(citing.written(said, form, words) for form in wanted))))
    return 0


def search(given: argparse.Namespace) -> int:
    """`sidelit search`: what the search of the site answers."""
    if given.site is not None:
        index = ask.opened(given.site, given.lang)
    else:
        made = given_configuration(given)
        index = ask.opened(made.project / "build" / "site", given.lang, made.languages[0])
    asked = " ".join(given.words)
    answers = index.ask(asked)
    if not answers:
        print(f"Nothing in this site is found by {asked!r}.", file=sys.stderr)
    for each in answers:
        said = "".join(f"[{part}]" if marked else part for part, marked in each.excerpt)
        print(f"{each.address}  {each.name}" + (f"\n    {said}" if said else ""))
    return 0 if answers else 1


def draw_cards(given: argparse.Namespace) -> int:
    """`sidelit cards`."""
    made = given_configuration(given)
    written = cards.draw(site.sound(made), given.font)
    print(f"{len(written)} cards in {made.shown(made.folder / metadata.CARDS)}")
    return 0


def compose_versions(given: argparse.Namespace) -> int:
    """`sidelit versions`."""
    made = given_configuration(given)
    if given.url:
        made = replace(made, public=publication.at(made.public, given.url))
    out = given.out or made.project / "build" / "versions"
    done = versions.compose(made, out, draft=given.draft, without=given.without, jobs=given.jobs)
    for each in done:
        label = each.label or "the present state"
        print(f"{label}: {each.pages} pages in {given.out or made.shown(out)}/{each.folder}")
    return 0


def publish(given: argparse.Namespace) -> int:
    """`sidelit publish`."""
    made = given_configuration(given)
    path = anchoring.publish(made, _redirects(given.redirect))
    chapters, pages = len(made.chapters), len(made.prose)
    said = f"{chapters} chapter{'s' * (chapters != 1)} and {pages} page{'s' * (pages != 1)} of Markdown"
    print(f"The ids of {said} are fixed in {made.shown(path)}.")
    return 0


def _redirects(said: Sequence[str]) -> dict[str, dict[str, str]]:
    redirects: dict[str, dict[str, str]] = {}
    for each in said:
        page, _, names = each.partition("#")
        old, arrow, new = names.partition("=")
        if not (page and old and arrow and new):
            raise SidelitError(f"{each!r} is not a redirect", hint="write PAGE#OLD=NEW")
        redirects.setdefault(page, {})[old] = new
    return redirects


# ## What the commands for translators do
#
# > One writes what is to be translated, one counts it, and one says that a translation was read again.


def sync(given: argparse.Namespace) -> int:
    """`sidelit sync`."""
    made = given_configuration(given)
    pages = content.units(made, site.texts(made))
    written = catalog.sync(pages, made.folder / "locale", made.languages[1:])
    for path in written:
        print(made.shown(path))
    print(f"{len(written)} catalogues written.")
    return 0


def status(given: argparse.Namespace) -> int:
    """`sidelit status`."""
    made = given_configuration(given)
    made = site.sound(made)
    books = site.catalogs(made, site.texts(made))
    if given.todo:
        for each in catalog.pending(books):
            print(each)
        return 0
    rows = catalog.status(books)
    names = ("page", "lang", "current", "recheck", "stale", "missing")
    if given.json:
        keys = (*names, "optional")
        print(json.dumps([{name: getattr(row, name) for name in keys} for row in rows], indent=2))
        return 0
    width = max((len(row.page) for row in rows), default=4) + 2
    print(f"{'page':<{width}}lang" + "".join(f"{name:>9}" for name in names[2:]))
    for optional in (False, True):
        chosen = [row for row in rows if row.optional is optional]
        if optional and chosen:
            print("\nThe workshop, which nobody has to translate:")
        for row in chosen:
            counts = "".join(f"{getattr(row, name):>9}" for name in names[2:])
            print(f"{row.page:<{width}}{row.lang:<4}{counts}")
    return 0


def reviewed(given: argparse.Namespace) -> int:
    """`sidelit reviewed`."""
    made = given_configuration(given)
    pages = content.units(made, site.texts(made))
    known = {page.name for page in pages}
    if given.lang and given.lang not in made.languages[1:]:
        raise SidelitError(f"{given.lang!r} is not a language that this site is translated into")
    cleared = 0
    for wanted in given.page:
        name, _, context = wanted.partition("#")
        if name not in known:
            raise SidelitError(f"there is no page {name!r}", hint="`sidelit status` lists the pages")
        cleared += catalog.reviewed(
            pages,
            made.folder / "locale",
            made.languages[1:],
            page=name,
            lang=given.lang,
            context=context or None,
        )
    print(f"{cleared} translations marked as reviewed.")
    return 0


# ## What was given on the command line
#
# > Most commands work on a site, which is found by its configuration.


def given_path(given: argparse.Namespace) -> Path:
    """The configuration that was named, or the nearest one in the current folder or above it.

    Raises `SidelitError` if there is none.
    """
    return given.config or config.find(Path.cwd())


def given_configuration(given: argparse.Namespace) -> config.Config:
    """What that configuration says.

    Raises `SidelitError` if it cannot be read.
    """
    return config.load(given_path(given))
