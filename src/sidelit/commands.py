"""# What the commands do

> Each command asks one function of the press and prints its answer.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sidelit import adopt, api, cards, config, origin, pack, public, serve, slides, versions
from sidelit.cite import authors, forms
from sidelit.errors import SidelitError
from sidelit.given import configuration as _config
from sidelit.given import path as _path
from sidelit.ids import anchors
from sidelit.notebooks import making
from sidelit.site import anchoring, citation, edition, linting, meta, partial, site
from sidelit.site.search import ask
from sidelit.source import source


def build_site(given: argparse.Namespace) -> int:
    """`sidelit build`."""
    return _told(api.build(given.config, given.out, keep_going=given.keep_going, jobs=given.jobs))


def pack_site(given: argparse.Namespace) -> int:
    """`sidelit pack`."""
    made = _config(given)
    folder, archive = pack.pack(made, given.out or made.project / "build" / "pack", _gaps)
    print(f"{folder}\n{archive}: {archive.stat().st_size / 1e6:.1f} MB")
    return 0


def book_site(given: argparse.Namespace) -> int:
    """`sidelit book`."""
    # The package that binds is none that the other commands need.
    from sidelit.book import book, browser, fonts

    made = _config(given)
    langs = _languages(made, given.lang)
    program = browser.find(given.browser)
    for lang in langs:
        if said := fonts.lacking(made.language(lang)):
            print(f"sidelit: {said}", file=sys.stderr, flush=True)
    out = given.out or made.project / "build" / "book"
    for each in book.books(made, out, program, langs, _gaps):
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
    made = _config(given)
    for path in slides.slides(made, given.lesson, given.out, _languages(made, given.lang), _gaps):
        print(path)
    return 0


def make_labs(given: argparse.Namespace) -> int:
    """`sidelit lab`."""
    made = _config(given)
    found = making.notebooks(made)
    if given.check:
        wrong = list(making.differing(made, found))
        for path in wrong:
            print(f"{path} is not what its lab is today: run `sidelit lab`", file=sys.stderr)
        return 1 if wrong else 0
    for path in making.write(made, found):
        print(path)
    print(f"{len(found)} notebooks are up to date.")
    return 0


def serve_site(given: argparse.Namespace) -> int:
    """`sidelit serve`."""
    path = _path(given)
    old: Mapping[str, bytes] = {}
    # What no build could read is told where the server was started. It has no page that could be open.
    unread: set[str] | None = None

    def build() -> tuple[Mapping[str, bytes], str]:
        nonlocal old, unread
        # The configuration is read anew each time: it may be what was saved.
        files, done = partial.files(config.load(path))
        _gaps(done)
        broken = {str(error.path): str(error) for error in done.skipped}
        unread = set(broken) if unread is None else unread & broken.keys()
        # The page of a file that is half typed stays as it was, and the message stands below it.
        old = {**old, **files} if broken else files
        return old, "\n".join(said for name, said in broken.items() if name not in unread)

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
    for path in written:
        print(path.as_posix())
    files, parts = found.files, len(found.parts)
    print(f"{files} file{'s' * (files != 1)} in {parts} part{'s' * (parts != 1)}. Next:")
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
    return _told(done)


def _gaps(done: partial.Done) -> None:
    """Tell what is wrong in a site, and what it was made without."""
    for warning in done.odd:
        print(f"warning: {warning}", file=sys.stderr)
    for reason in done.skipped:
        print(f"skipped: {reason}", file=sys.stderr, flush=True)


def _told(done: api.Printed) -> int:
    _gaps(partial.Done((), done.warnings, done.skipped))
    pages, skipped = len(done.pages), len(done.skipped)
    left = f", and {skipped} file{'s' * (skipped != 1)} skipped" if skipped else ""
    print(f"{pages} page{'s' * (pages != 1)} in {done.folder}{left}")
    return 0


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
    findings = linting.findings(_config(given))
    for finding in findings:
        print(finding, file=sys.stderr if finding.severity == "error" else sys.stdout)
    errors = sum(finding.severity == "error" for finding in findings)
    warnings = len(findings) - errors
    print(f"{errors} error{'s' * (errors != 1)}, {warnings} warning{'s' * (warnings != 1)}.")
    return 1 if errors else 0


def cite(given: argparse.Namespace) -> int:
    """`sidelit cite`."""
    made = _config(given)
    lang = given.lang or made.languages[0]
    if lang not in made.languages:
        raise SidelitError(f"{lang!r} is not a language of this site")
    made = versions.checked_out(made)
    texts = site.texts(partial.sound(made))
    text, piece = citation.find(texts, given.id)
    book = None if lang == made.languages[0] else site.shelf(made, texts).catalog(text.item.name, lang)
    project = citation.Project(made, origin.origin(made), authors.read(made))
    said = citation.record(project, edition.page(text, book, lang), piece)
    words = made.language(lang).words
    wanted = [given.form] if given.form else list(forms.FORMS)
    address = [said.url] if said.url and not given.form else []
    print("\n\n".join((*address, *(forms.written(said, form, words) for form in wanted))))
    return 0


def search(given: argparse.Namespace) -> int:
    """`sidelit search`: what the search of the site answers."""
    made = _config(given)
    lang = given.lang or made.languages[0]
    if lang not in made.languages:
        raise SidelitError(
            f"{lang!r} is not a language of this site", hint=f"it has {', '.join(made.languages)}"
        )
    answers = ask.Index(site.searchable(partial.sound(made), lang), lang).ask(" ".join(given.words))
    for each in answers:
        said = "".join(f"[{part}]" if marked else part for part, marked in each.excerpt)
        print(f"{each.address}  {each.name}" + (f"\n    {said}" if said else ""))
    return 0 if answers else 1


def draw_cards(given: argparse.Namespace) -> int:
    """`sidelit cards`."""
    made = _config(given)
    written = cards.draw(partial.sound(made), given.font)
    print(f"{len(written)} cards in {made.shown(made.folder / meta.CARDS)}")
    return 0


def compose_versions(given: argparse.Namespace) -> int:
    """`sidelit versions`."""
    made = _config(given)
    if given.url:
        made = replace(made, public=public.at(made.public, given.url))
    out = given.out or made.project / "build" / "versions"
    done = versions.compose(made, out, draft=given.draft, without=given.without, jobs=given.jobs)
    for each in done:
        label = each.label or "the present state"
        print(f"{label}: {each.pages} pages in {given.out or made.shown(out)}/{each.folder}")
    return 0


def publish(given: argparse.Namespace) -> int:
    """`sidelit publish`."""
    made = _config(given)
    path = anchoring.publish(made, _redirects(given.redirect))
    count = len(made.chapters)
    print(f"The ids of {count} {'chapter' if count == 1 else 'chapters'} are fixed in {made.shown(path)}.")
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
