"""# Where the templates are

> The press carries its look with it, wherever it was installed.

In a wheel the templates lie inside the package; in a clone they lie at the top of the repository, where
designers look for them. Everything else asks this module and never builds such a path itself.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from sidelit import reading
from sidelit.errors import SidelitError
from sidelit.scripts import compact


@cache
def templates_folder() -> Path:
    """Return the folder that holds the templates, the assets and the words of the interface.

    Raises `SidelitError` when neither place has them, which means a broken installation.
    """
    package = Path(__file__).resolve().parent
    for folder in (package / "templates", package.parent.parent / "templates"):
        if (folder / "ui").is_dir():
            return folder
    raise SidelitError(
        "the templates of sidelit are not installed",
        hint="install the package again, or work in a full clone",
    )


def asset_files() -> tuple[tuple[str, Path], ...]:
    """List the files a page may refer to, as (name below `assets/`, file), in a fixed order.

    Notes for those who keep the assets are not part of a site; licences are.
    """
    folder = templates_folder() / "assets"
    files = (file for file in folder.rglob("*") if file.is_file() and not file.name.startswith("."))
    kept = (file for file in files if file.suffix != ".md" and file.name != "CHECKSUMS")
    return tuple(sorted((file.relative_to(folder).as_posix(), file) for file in kept))


def content(path: Path) -> bytes:
    """What is served of a file of the assets: the press's own scripts without their comments."""
    own = path.suffix == ".js" and path.parent == templates_folder() / "assets"
    return compact(path.read_text(encoding="utf-8")).encode() if own else reading.data(path)
