"""# Directives that show code

> A section of a chapter in a lesson, in one or all languages, and a cell of a lab with its output.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass, replace

from markupsafe import Markup, escape

from sidelit.cache.graph import as_one
from sidelit.errors import SidelitError
from sidelit.labs import cells, outputs
from sidelit.labs.cells import Cell
from sidelit.labs.outputs import Output
from sidelit.site.content import SECTION as SHOWN
from sidelit.site.content import PageSection, SourcePage
from sidelit.site.directives.kind import DirectiveContext, DirectiveType, ProjectIndex, nearest
from sidelit.site.links import Target
from sidelit.text.code import coloured
from sidelit.text.directives import Directive

# ## A section of a chapter
#
# > A lesson names a section, and the page shows it as it is today: its words beside its code.
#
#     ::: section src:zero/unit.py#Unit.gather from="if self.state" to="return"
#     Words of the lesson's own.
#     :::
#
# With `from` and `to` only those lines are shown, and each of the two texts is found in exactly one line of
# the section's code, so that a change of the code cannot quietly change what a lesson shows. Words in between
# replace the commentary. Nothing is copied: a section that went, was renamed or became depth fails the build.
# A renamed one is not followed, although a link would be, since what the lesson says about it has to be read
# again.


OPTIONS = ("from", "to")


@dataclass(frozen=True, slots=True)
class Taken:
    """A section that a lesson shows, and which of its lines, counted from 0."""

    page: SourcePage
    section: PageSection
    start: int
    stop: int


def take(given: Directive, book: ProjectIndex) -> Taken:
    """Find what a directive names.

    :raises SidelitError: if it is not there, or is depth, or its lines are not found
    """
    for key in given.options:
        if key not in OPTIONS:
            raise given.error(
                f"`section` has no option `{key}`", hint=nearest(key, OPTIONS, "there is from, to")
            )
    if len(given.parts) > 1:
        raise given.error("`section` has one part, and here is a line `---`")
    path, _, anchor = given.argument.partition("#")
    if not path or not anchor:
        hint = "write `::: section src:PATH#ID`; `sidelit sections FILE` lists the ids of a file"
        raise given.error("`section` does not say which section of which file", hint=hint)
    target = _page(given, path, book)
    with as_one(SHOWN.format(target.source, anchor)):
        page = book.pages[target.source]
        if page.prose:
            raise given.error(f"{target.source} is no chapter", hint="sections are taken from chapters")
        section = _section(given, anchor, page, target, book)
    if section.fold is not None:
        what = f"{target.source}#{section.id} is depth, and a lesson shows what is core"
        raise given.error(what, hint="show the section that calls it, or link to it")
    start = _line(given, "from", page, section, 0)
    last = _line(given, "to", page, section, len(section.lines) - 1)
    if section.lines and last < start:
        raise given.error(f"the line of `to` stands above the line of `from` in {target.source}#{section.id}")
    return Taken(page, section, start, last + 1)


def _page(given: Directive, path: str, book: ProjectIndex) -> Target:
    found = book.index.page(path, book.index.targets[given.path], given.line)
    if found is None:
        root = f"{book.index.source_root}/"
        known = [f"src:{source.removeprefix(root)}" for source in book.index.targets]
        raise given.error(f"there is no chapter {path!r}", hint=nearest(path, known))
    return found


def _section(
    given: Directive, anchor: str, page: SourcePage, target: Target, book: ProjectIndex
) -> PageSection:
    for section in page.sections:
        if section.id == anchor:
            return section
    what = f"{page.item.source} has no section {anchor!r}"
    renamed = next((section.id for section in page.sections if anchor in section.aliases), "")
    if renamed:
        raise given.error(what, hint=f"it is called {renamed!r} now")
    if (lead := target.knows(anchor)[1]) is not None:
        there = next(each for each in book.pages.values() if each.item.output == lead.output)
        raise given.error(what, hint=f"it is {lead.id!r} of {there.item.source} now")
    core = [section.id for section in page.sections if section.fold is None]
    raise given.error(what, hint=nearest(anchor, core, "`sidelit sections FILE` lists the ids of a file"))


def _line(given: Directive, key: str, page: SourcePage, section: PageSection, otherwise: int) -> int:
    """The one line that holds the text of an option."""
    wanted = given.options.get(key)
    if wanted is None:
        return otherwise
    found = _holding(wanted, section)
    if len(found) == 1 and wanted:
        return found[0]
    if found:
        numbers = ", ".join(str(section.lines[place][0]) for place in found)
        what = f"`{key}` is {wanted!r}, which stands in several lines of {section.id}: {numbers}"
        raise given.error(what, hint="write more of the line")
    what = f"`{key}` is {wanted!r}, which stands in no line of {section.id}"
    elsewhere = next((other.id for other in page.sections if _holding(wanted, other)), "")
    if elsewhere:
        raise given.error(what, hint=f"it stands in {elsewhere!r}")
    raise given.error(what, hint=nearest(wanted, [line.strip() for line in _plain(section)]))


def _holding(wanted: str, section: PageSection) -> list[int]:
    return [place for place, line in enumerate(_plain(section)) if wanted in line]


def _plain(section: PageSection) -> list[str]:
    """The lines of a section without their colours."""
    return [html.unescape(re.sub(r"<[^>]*>", "", code)) for _, code in section.lines]


def _section_html(given: Directive, place: DirectiveContext) -> Markup:
    taken = take(given, place.book)
    view = place.section(taken.page, taken.section)
    shown = replace(view, lines=view.lines[taken.start : taken.stop])
    if given.body:
        shown = replace(shown, title=Markup(""), doc=place.words(given.body), state=None)
    home = place.address(taken.page.item.output, taken.section.id)
    page = place.address(taken.page.item.output, "")
    return place.fragment("section.html", section=shown, home=home, page=page, source=taken.page.item.source)


SECTION = DirectiveType("section", take, _section_html)


# ## A section in every language
#
# > One section of a chapter as its own page prints it, and a choice of the language of its words.
#
#     ::: editions src:zero/unit.py#Unit.gather
#     :::
#
# The code is the same in all languages, so it stands there once. The choice is a group of radio buttons,
# which need no script.


def _check_editions(given: Directive, book: ProjectIndex) -> None:
    for key in given.options:
        raise given.error(f"`editions` has no option `{key}`")
    if given.body:
        raise given.error("`editions` takes no words", hint="write them below its `:::`")
    take(given, book)


def _editions_html(given: Directive, place: DirectiveContext) -> Markup:
    taken = take(given, place.book)
    return place.fragment(
        "editions.html",
        editions=place.editions(taken.page, taken.section),
        home=place.address(taken.page.item.output, taken.section.id),
        page=place.address(taken.page.item.output, ""),
        source=taken.page.item.source,
    )


EDITIONS = DirectiveType("editions", _check_editions, _editions_html, everywhere=True)


# ## A cell of a lab
#
# > The code as a student gets it, what it printed when it was recorded, and the solution, folded.
#
# Nobody writes this directive: the press makes one of each cell of code.


def _check_cell(given: Directive, book: ProjectIndex) -> None:
    if not given.body or "cell" not in given.body[0].meta:
        raise given.error("a cell is written as `# %%`, in a lab", hint="write the code in a fence")


def _cell_html(given: Directive, place: DirectiveContext) -> Markup:
    cell: Cell = given.body[0].meta["cell"]
    run = place.run()
    return place.fragment(
        "cell.html",
        cell=cell,
        code=_coloured(cells.student(cell.text)),
        solution=_coloured(cells.solution(cell.text)) if cell.exercise else "",
        outputs=[
            _shown(each, number, given, place) for number, each in enumerate(run.outputs.get(cell.name, ()))
        ],
        output_lang=place.other_language(run.lang),
    )


def _coloured(code: str) -> Markup:
    return Markup(coloured(code, "python"))


def _shown(output: Output, number: int, given: Directive, place: DirectiveContext) -> Markup:
    if output.kind == "text":
        return Markup('<pre class="printed">{}</pre>').format(escape(output.content))
    try:
        svg = outputs.inline(output.content, f"{given.argument}-{number}", place.colours())
    except ValueError as error:
        raise SidelitError(
            str(error), path=given.path, line=given.line, hint="record the lab again"
        ) from None
    about = Markup('<svg role="img" aria-label="{}"').format(outputs.words(output.content))
    svg = about + Markup(svg.removeprefix("<svg"))
    return place.fragment("plot.html", svg=svg)


CELL = DirectiveType(cells.CELL, _check_cell, _cell_html)
