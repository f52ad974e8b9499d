"""# The press for Python programs

> Two functions: one builds a site, the other prints any Python files.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sidelit.config import config
from sidelit.errors import SidelitError
from sidelit.files import atomic
from sidelit.site import navigation, printing, site


@dataclass(frozen=True, slots=True)
class Printed:
    """What was written: a folder and its pages; what was odd and is no error; why files were left out.

    A list of all pages is none of them.
    """

    folder: Path
    pages: tuple[Path, ...]
    warnings: tuple[SidelitError, ...] = ()
    skipped: tuple[SidelitError, ...] = ()


def build(
    file: str | Path | None = None,
    out: str | Path | None = None,
    *,
    keep_going: bool = False,
    jobs: int | None = None,
) -> Printed:
    """Build a whole site, in all its languages.

    `file` is its `site/sidelit.toml`, by default the nearest one in the current folder or above it. `out` is
    the folder to write, by default `build/site` of that project.

    With `keep_going`, here or in the configuration, a source that is no Python is left out, and a formula or
    link that is wrong is printed as it was typed; `skipped` and `warnings` tell of them. `jobs` is the number
    of processes that share the work, by default one for each core.

    Raises `SidelitError` with all mistakes, each with its file and line; then `out` is as it was.
    """
    made = config.load(Path(file) if file is not None else config.find(Path.cwd()))
    folder = Path(out) if out is not None else made.project / "build" / "site"
    with atomic.written(folder) as fresh:
        done = site.write(made, fresh, keep_going=keep_going, jobs=jobs)
    lists = {navigation.address(made, made.contents, lang) for lang in made.languages}
    pages = tuple(folder / name for name in done.files if name.endswith(".html") and name not in lists)
    return Printed(folder, pages, done.odd, done.skipped)


def print_files(
    files: Iterable[str | Path],
    out: str | Path,
    *,
    lang: str = "",
    locale: str | Path | None = None,
    strict: bool = False,
    source: str = "",
    dialect: str = "",
    jobs: int | None = None,
) -> Printed:
    """Print Python files, or folders of them, as pages in the folder `out`.

    `source` is the language that the files are written in, by default that of the site that they are part
    of, or English. `lang` is the language of the pages, by default that of the files, and `locale` a folder
    of translations into it, `LANG/PAGE.po`. `dialect` is what the docstrings are written in, one of
    `sidelit.config.chapters.DIALECTS`, by default what the site says; without one each is guessed. `jobs` is
    the number of processes that share the work, by default one for each core.

    One of several files that cannot be read as Python is left out, and `skipped` says why. What the next run
    can use is kept in the user's cache, as `sidelit print --help` says.

    Raises `SidelitError` if no file can be read, and with `strict` for each file that cannot and each formula
    or link that is wrong; then `out` is as it was.
    """
    paths, folder = tuple(map(Path, files)), Path(out)
    translations = Path(locale) if locale is not None else None
    if translations is not None and not translations.is_dir():
        raise SidelitError("there is no such folder of translations", path=translations, hint="name another")
    with atomic.written(folder) as fresh:
        made = printing.write(printing.Job(paths, lang, translations, strict, source, dialect), fresh, jobs)
    return Printed(folder, tuple(folder / name for name in made.pages), made.odd, made.skipped)
