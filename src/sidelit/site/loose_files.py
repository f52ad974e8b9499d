"""# Files that belong to no site

> Which files are printed, what their pages are called, and the site that they make.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path, PurePosixPath

from sidelit import config, languages
from sidelit.config import Chapter, Config, Part, Prose
from sidelit.errors import SidelitError
from sidelit.languages import Language


def configuration(paths: Sequence[Path], lang: str) -> Config:
    """A site made of nothing but these files, each at its place below the folder they have in common."""
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
        spoken={lang: _language(base, lang)},
    )


def _language(base: Path, lang: str) -> Language:
    """The language of the pages, with the words of the project around the files if it has its own."""
    folders = [folder / "site" / languages.FOLDER for folder in (base, *base.parents)]
    nearest = next((folder for folder in folders if folder.is_dir()), folders[0])
    return languages.load(lang, nearest, str(nearest))


def _chapter(path: Path, base: Path, is_package: Callable[[Path], bool]) -> Chapter:
    below = PurePosixPath(path.resolve().relative_to(base).as_posix())
    placed = config.module_name(PurePosixPath(path.resolve().as_posix()), below)
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
