"""# Kinds of pages

> A kind of page is a template of its name and one line here.

The configuration says of which kind a page is: by the table that lists it, as `[labs]` does, or by `append`,
where a table of data follows the words of the page:

    [[back]]
    source = "glossary.md"
    append = "glossary"

Such data is read once a build, and not at all where no page shows it. The rows of the table, the ids that
links to them end in and what a search finds in them are methods of its [class](data_pages.py#DataTable).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sidelit.config.chapters import Chapter
from sidelit.config.config import Config
from sidelit.config.glossary import Glossary
from sidelit.config.prose import Prose
from sidelit.errors import SidelitError
from sidelit.site import cli_reference, data_pages
from sidelit.site.data_pages import DataTable
from sidelit.site.directives.kind import nearest


@dataclass(frozen=True, slots=True)
class PageKind:
    """One kind of page.

    :param name: what the configuration and the template call it.
    :param table: reads the data that it shows below its words; the glossary is read already.
    :param resource: what it is to search engines, in the words of schema.org's `learningResourceType`.
    :param in_blocks: whether its words stand one block below the other, so that their original can be shown.
    :param directives: the only directives that it may have, if it is a lesson and may not have all.
    :param listed: whether the contents of the site list it.
    :param cited: whether it says something that somebody may cite.
    :param described: whether its head describes it to programs.
    """

    name: str
    table: Callable[[Config, Glossary], DataTable] | None = None
    resource: str = "text"
    in_blocks: bool = False
    directives: tuple[str, ...] = ()
    listed: bool = True
    cited: bool = True
    described: bool = True


KINDS = {
    kind.name: kind
    for kind in (
        PageKind("chapter", resource="annotated source code", in_blocks=True),
        PageKind("lesson", resource="lesson", in_blocks=True),
        # A lab is a notebook, too, and what a page alone can draw would be missing there.
        PageKind("lab", resource="lesson", directives=("question", "try", "hint", "cell")),
        PageKind("home"),
        PageKind("prose", in_blocks=True),
        PageKind("glossary", data_pages.terms),
        PageKind("bibliography", lambda config, _: data_pages.works(config)),
        PageKind("commands", lambda config, _: cli_reference.programs(config)),
        # What the press adds: the index of printed files, the list of all pages, a page at an old address.
        PageKind("listing", listed=False),
        PageKind("contents", cited=False),
        PageKind("forward", cited=False, described=False),
    )
}


def of(item: Chapter | Prose) -> PageKind:
    """The kind of a page."""
    return KINDS[item.kind]


def tables(config: Config, terms: Glossary) -> Mapping[str, DataTable]:
    """The tables that pages of the site show, by the names of their kinds.

    :raises SidelitError: if `append` names none, or the data of one is wrong
    """
    known = {name: kind.table for name, kind in KINDS.items() if kind.table}
    for page in config.prose:
        if page.append is not None and page.append not in known:
            what = f"nothing is made under the name {page.append!r}"
            hint = nearest(page.append, known, f"there is {', '.join(known)}")
            raise SidelitError(what, path=config.shown(config.path), line=page.append_line, hint=hint)
    shown = dict.fromkeys(page.append for page in config.prose if page.append)
    return {name: known[name](config, terms) for name in shown}
