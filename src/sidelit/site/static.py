"""# Files beside the pages

> Pictures and other files go into the site as they are, unless a browser would run something in them.

A page of the press carries a policy that allows no program but the press's own. A file that lies beside the
pages carries none, so it may not be one that a browser opens as a page: no HTML, no drawing with a script.
"""

from __future__ import annotations

from collections.abc import Mapping

from sidelit import bundles, drawings, reading
from sidelit.config import Config
from sidelit.errors import SidelitError
from sidelit.look import Look
from sidelit.site import index, links

# What a browser shows as a page when it is opened by itself.
_PAGES = (".html", ".htm", ".xhtml", ".xht", ".shtml", ".mhtml", ".mht", ".xml", ".xsl")


def files(config: Config, look: Look, made: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files of the press, those that it has `made`, and those that lie beside the pages of prose.

    Raises `SidelitError` for one that is a page of its own, lies elsewhere, or has the place of another.
    """
    found = {f"assets/{name}": content for name, content in bundles.served(look.assets).items()} | dict(made)
    for name in index.pictures(config):
        path = config.folder / "pages" / name
        shown = f"{links.pages_folder(config)}/{name}"
        reading.refuse_outside(path, config.project, shown)
        if name.lower().endswith(_PAGES):
            what = "an HTML file beside the pages would have none of their policy, languages and checks"
            raise SidelitError(what, path=shown, hint="write it as Markdown")
        if name in found:
            what = f"two files would be written to {name}, and one of them is the press's own"
            raise SidelitError(what, path=shown, hint="give it another name")
        content = reading.data(path)
        if name.lower().endswith(".svg") and drawings.runs(content):
            what = "this drawing holds a program, which would run when a reader opens it by itself"
            raise SidelitError(
                what, path=shown, hint="remove its scripts, handlers, entities and stylesheets"
            )
        found[name] = content
    return found
