"""# A site as one PDF

> The pages of a site are printed by a browser and bound in the order of the contents.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from sidelit import citing, theme
from sidelit.citing import Place, Record
from sidelit.config import origin
from sidelit.config.config import Config
from sidelit.config.languages import Language
from sidelit.errors import SidelitError, refused
from sidelit.export import pack, pdf_documents, pdf_pages
from sidelit.export.pdf_pages import bind
from sidelit.files import atomic
from sidelit.site import edition, navigation, site

# ## The browser that prints
#
# > Whoever writes a site has a browser, and it sets pages better than any small library.
#
# A Chromium prints a document by one command, without a window and without a network. Page numbers stand in
# the margins of a page, which Chromium knows since its version 131.


OLDEST = 131
_NAMES = (
    *("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"),
    *("microsoft-edge", "msedge", "brave-browser", "chromium-headless-shell"),
)
# Where browsers lie that are on no PATH: on macOS, on Windows, and what Playwright downloads.
_PLACES = (
    ("/Applications", "*/Contents/MacOS/Google Chrome"),
    ("/Applications", "*/Contents/MacOS/Chromium"),
    ("/Applications", "*/Contents/MacOS/Microsoft Edge"),
    ("C:/Program Files", "Google/Chrome/Application/chrome.exe"),
    ("C:/Program Files (x86)", "Microsoft/Edge/Application/msedge.exe"),
    ("~/.cache/ms-playwright", "chromium-*/chrome-linux*/chrome"),
)
_QUIET = (
    *("--headless", "--disable-gpu", "--no-first-run", "--disable-extensions", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-default-apps"),
    # Without a window, letters would be as wide as on a coarse screen.
    "--font-render-hinting=none",
    # Containers give little memory to share, and this one shares with nobody.
    "--disable-dev-shm-usage",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)
_OPEN, _NO_SANDBOX = "--no-sandbox", "No usable sandbox"
_HINT = "install Chromium or Chrome, or name yours with --browser"


def find(named: str | None = None) -> str:
    """The program of a browser that can print a book.

    :param named: the one to take, a path or a name on the PATH; by default the first that is found.

    Raises `SidelitError` if there is none, or if it is older than `OLDEST`.
    """
    found = shutil.which(named) if named else next(_candidates(), None)
    if found is None:
        what = f"there is no program {named}" if named else "no browser is here, and a PDF is printed by one"
        raise SidelitError(what, hint=_HINT)
    version = _version(found)
    if version < OLDEST:
        what = (
            f"{found} is version {version}, and page numbers need {OLDEST}"
            if version
            else (f"{found} does not start, or is no Chromium")
        )
        raise SidelitError(what, hint=_HINT)
    return found


def _candidates() -> Iterator[str]:
    yield from (path for name in _NAMES if (path := shutil.which(name)))
    for folder, pattern in _PLACES:
        yield from map(str, sorted(Path(folder).expanduser().glob(pattern), reverse=True))


def _version(program: str) -> int:
    """The first number of its version, 0 if it tells none."""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    said = re.search(r"(?:Chrom\w+|Edge|Brave\w*)\D* (\d+)\.", done.stdout)
    return int(said[1]) if said else 0


class Browser:
    """Prints documents, several at once if threads ask for them."""

    def __init__(self, program: str) -> None:
        self.program = program
        self._running: set[subprocess.Popen[bytes]] = set()
        # Ctrl-C may come while this thread holds it.
        self._lock = threading.RLock()
        self._ended = False

    def print_pdf(self, document: Path, out: Path, profile: Path) -> None:
        """Print a document of this disk as a PDF.

        :param profile: a folder for what the browser remembers while it runs; each that runs needs its own.

        Raises `SidelitError` with what the browser says when it prints nothing.
        """
        printing = ("--no-pdf-header-footer", "--disable-pdf-tagging", f"--print-to-pdf={out}")
        command = [self.program, *_QUIET, f"--user-data-dir={profile}", *printing, document.as_uri()]
        # Root may not lock itself in, nor may anybody in some containers; what is printed has no scripts.
        rooted = hasattr(os, "geteuid") and os.geteuid() == 0
        said, done = self._said([*command, _OPEN] if rooted else command)
        if not done and _NO_SANDBOX in said and not rooted:
            said, done = self._said([*command, _OPEN])
        if not done or not out.is_file():
            last = said.splitlines()[-1] if said else "it said nothing"
            raise SidelitError(f"{self.program} printed nothing: {last}", hint=_HINT)

    def end(self) -> None:
        """End what still runs, and start nothing more."""
        with self._lock:
            self._ended = True
            for process in self._running:
                _end(process)

    def _said(self, command: list[str]) -> tuple[str, bool]:
        """What a browser says, and whether it came to its end."""
        with self._started(command) as process:
            said = process.communicate()[1].decode(errors="replace").strip()
        with self._lock:
            self._running.discard(process)
        return said, process.returncode == 0

    def _started(self, command: list[str]) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._ended:
                raise SidelitError(f"{self.program} was ended")
            # In a session of its own Ctrl-C does not reach it before this process has heard of it.
            process = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
            )
            self._running.add(process)
        return process


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a browser that still runs, with the processes that it started."""
    if process.poll() is not None:
        return
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()


# ## A site as a book
#
# > One PDF in each language, with page numbers, contents, and links that work on a screen and on paper.
#
# The pages are those of the site. They are cut out of it, printed in pieces, and bound. A browser prints them
# as the handouts that single pages are; what a book has besides is its title page, its contents, the lines at
# the top and the foot of each page, and the number of a page behind each link.


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
    told: site.BuildListener = site.nobody,
) -> Iterator[Made]:
    """Print the book of a site in some of its languages, by default in each.

    A file takes its place when it is whole.

    :param program: the browser that prints.
    :param told: hears what the configuration allows to be wrong.

    Raises `SidelitError` if the site has a mistake, the browser prints nothing, or the disk refuses.
    """
    printing = Browser(program)
    config, skipped = site.readable(config) if config.keep_going else (config, ())
    try:
        # The work is done beside the books: some browsers may not read the system's folder for that.
        with atomic.fresh_folder(out / "book") as folder, atomic.tidied(printing.end):
            (folder / "site").mkdir()
            told(replace(site.write(config, atomic.Output(folder / "site")), skipped=skipped))
            written = site.texts(config)
            catalogs = site.catalogs(config, written)
            for lang in langs or config.languages:
                shown = edition.edition(config, written, catalogs, lang)
                yield _Printer(config, shown, folder, printing).book(out)
    except OSError as error:
        raise refused(error) from None


class _Printer:
    """Prints one language."""

    def __init__(self, config: Config, shown: edition.Edition, folder: Path, printing: Browser) -> None:
        self.config, self.shown, self.folder, self.printing = config, shown, folder, printing
        self.language = config.language(shown.lang)
        self.cover = cover(config, shown, self.language)
        self.setting = pdf_documents.Setting(self.language, theme.theme(config), self.cover, folder / "site")
        self.groups = pdf_documents.groups(config, shown)

    def book(self, out: Path) -> Made:
        """Print everything and bind it."""
        found = {leaf.name: leaf for leaf in self._leaves()}
        bundle = pdf_pages.printed(self.setting, self.groups, list(found.values()), self._print)
        opening = pdf_documents.Mark(self.language.words["contents"], pdf_documents.CONTENTS)
        marks = [opening, *pdf_documents.marks(self.groups, found)]
        path = out / f"{self._name()}.pdf"
        draft = self.folder / path.name
        bind(bundle.documents, bundle.places, marks, self._about(), self.language.tag, draft)
        draft.replace(path)
        return Made(path, sum(each.pages for each in bundle.documents))

    def _leaves(self) -> Iterator[pdf_documents.Leaf]:
        entries = [entry for group in self.groups for entry in group.entries]
        names = {
            navigation.address(self.config, entry.output, self.shown.lang): entry.leaf for entry in entries
        }
        for address in names:
            text = (self.setting.folder / address).read_text(encoding="utf-8")
            if cut := pdf_documents.leaf(text, address, names, self.config.public.here):
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


def cover(config: Config, shown: edition.Edition, language: Language) -> pdf_documents.Cover:
    """What the title page of an edition says."""
    state, credits = origin.origin(config), citing.read(config)
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
    return pdf_documents.Cover(
        title=config.title,
        tagline=shown.tagline,
        authors=tuple(each.name for each in credits.authors),
        version=version,
        commit=record.commit,
        date=date,
        licence=shown.licence_note,
        address=record.url,
        citation=citing.apa(record, language.words),
    )
