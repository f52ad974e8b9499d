"""# A site as a book

> One PDF in each language, with page numbers, contents, and links that work on a screen and on paper.

The pages are those of the site. They are cut out of it, printed in pieces, and bound. A browser prints them
as the handouts that single pages are; what a book has besides is its title page, its contents, the lines at
the top and the foot of each page, and the number of a page behind each link.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sidelit import interrupts, look, origin, output, pack
from sidelit.book import browser, contents, documents, leaves, rounds
from sidelit.book.binding import bind
from sidelit.cite import authors, forms
from sidelit.cite.record import Place, Record
from sidelit.config import Config
from sidelit.errors import refused
from sidelit.languages import Language
from sidelit.site import edition, partial, site, ways


@dataclass(frozen=True, slots=True)
class Made:
    """A book: its file, and how many pages it has."""

    path: Path
    pages: int


def books(
    config: Config,
    out: Path,
    program: str,
    langs: Sequence[str] = (),
    told: partial.Told = partial.nobody,
) -> Iterator[Made]:
    """Print the book of a site in some of its languages, by default in each.

    A file takes its place when it is whole.

    :param program: the browser that prints.
    :param told: hears what the configuration allows to be wrong.

    Raises `SidelitError` if the site has a mistake, the browser prints nothing, or the disk refuses.
    """
    printing = browser.Browser(program)
    config, skipped = partial.readable(config) if config.keep_going else (config, ())
    try:
        # The work is done beside the books: some browsers may not read the system's folder for that.
        with output.fresh_folder(out / "book") as folder, interrupts.tidied(printing.end):
            (folder / "site").mkdir()
            told(replace(partial.write(config, folder / "site"), skipped=skipped))
            written = site.texts(config)
            shelf = site.shelf(config, written)
            for lang in langs or config.languages:
                shown = edition.edition(config, written, shelf, lang)
                yield _Printer(config, shown, folder, printing).book(out)
    except OSError as error:
        raise refused(error) from None


class _Printer:
    """Prints one language."""

    def __init__(
        self, config: Config, shown: edition.Edition, folder: Path, printing: browser.Browser
    ) -> None:
        self.config, self.shown, self.folder, self.printing = config, shown, folder, printing
        self.language = config.language(shown.lang)
        self.cover = cover(config, shown, self.language)
        self.setting = documents.Setting(self.language, look.look(config), self.cover, folder / "site")
        self.groups = contents.groups(config, shown)

    def book(self, out: Path) -> Made:
        """Print everything and bind it."""
        found = {leaf.name: leaf for leaf in self._leaves()}
        bundle = rounds.printed(self.setting, self.groups, list(found.values()), self._print)
        opening = contents.Mark(self.language.words["contents"], documents.CONTENTS)
        marks = [opening, *contents.marks(self.groups, found)]
        path = out / f"{self._name()}.pdf"
        draft = self.folder / path.name
        bind(bundle.documents, bundle.places, marks, self._about(), self.language.tag, draft)
        draft.replace(path)
        return Made(path, sum(each.pages for each in bundle.documents))

    def _leaves(self) -> Iterator[leaves.Leaf]:
        entries = [entry for group in self.groups for entry in group.entries]
        names = {ways.address(self.config, entry.output, self.shown.lang): entry.leaf for entry in entries}
        for address in names:
            text = (self.setting.folder / address).read_text(encoding="utf-8")
            if cut := leaves.leaf(text, address, names, self.config.public.here):
                yield cut

    def _print(self, document: Path) -> Path:
        made = document.with_suffix(".pdf")
        self.printing.print_pdf(document, made, self.folder / "browsers" / document.stem)
        return made

    def _name(self) -> str:
        return "-".join(filter(None, (pack.slug(self.config.title), self.cover.version, self.shown.lang)))

    def _about(self) -> dict[str, str]:
        given = {
            "/Title": self.cover.title,
            "/Author": ", ".join(self.cover.authors),
            "/Subject": self.cover.tagline,
            "/CreationDate": f"D:{self.cover.date.replace('-', '')}" if self.cover.date else "",
        }
        return {key: said for key, said in given.items() if said}


def cover(config: Config, shown: edition.Edition, language: Language) -> documents.Cover:
    """What the title page of an edition says."""
    state, credits = origin.origin(config), authors.read(config)
    version, date = state.version or credits.version, state.date or credits.date
    record = Record(
        book=config.title,
        page="",
        name="",
        place=Place(),
        source="",
        authors=credits.authors,
        language=language.tag,
        version=version,
        commit=state.label or "",
        date=date,
        url=config.public.lasting,
        doi=credits.doi,
    )
    return documents.Cover(
        title=config.title,
        tagline=shown.tagline,
        authors=tuple(each.name for each in credits.authors),
        version=version,
        commit=record.commit,
        date=date,
        licence=shown.licence_note,
        address=record.url,
        citation=forms.apa(record, language.words),
    )
