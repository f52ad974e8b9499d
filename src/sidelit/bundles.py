"""# Files that go together

> What every page loads goes over the wire in few files, since each request costs a first visit time.

The sources stay apart, one subject a file, and are served as well: a template of a project may name them. A
file of the project that takes the place of one of the press's, by `override_assets`, takes it in the bundle.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from sidelit import assets

# In the order in which a browser reads them: later rules win, and later scripts use what earlier ones define.
BUNDLES = {
    "frame.css": ("fonts.css", "colours.css", "page.css"),
    "frame.js": (
        *(
            "depth.js",
            "lesson.js",
            "sidelit.js",
            "search.js",
            "comforts.js",
            "names.js",
            "cite.js",
            "forward.js",
        ),
    ),
}


def served(known: Mapping[str, Path]) -> dict[str, bytes]:
    """What is served of the assets, by the name below `assets/`.

    :param known: every file that a page may refer to.
    """
    files = {name: _content(path) for name, path in known.items()}
    bundles = {name: b"\n".join(files[part] for part in parts) for name, parts in BUNDLES.items()}
    return files | bundles


def _content(path: Path) -> bytes:
    """What is served of a file: the press's own stylesheets without comments and indentation."""
    content = assets.content(path)
    if path.suffix != ".css" or path.parent != assets.templates_folder() / "assets":
        return content
    # Strings stay as they are.
    text = _QUIET.sub(lambda found: found["string"] or "", content.decode("utf-8"))
    return re.sub(r"\s*\n\s*", "\n", text).strip().encode()


_QUIET = re.compile(r'(?P<string>"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\')|/\*[\s\S]*?\*/')
