"""# A cell of a lab

> The code as a student gets it, what it printed when it was recorded, and the solution, folded.

Nobody writes this directive: the press makes one of each cell of code.
"""

from __future__ import annotations

from markupsafe import Markup, escape

from sidelit.errors import SidelitError
from sidelit.labs import exercises, plots, written
from sidelit.labs.cells import Cell
from sidelit.labs.outputs import Output
from sidelit.site.directives.kind import Book, Kind, Place
from sidelit.text.directives import Directive
from sidelit.text.samples import coloured


def _check(given: Directive, book: Book) -> None:
    if not given.body or "cell" not in given.body[0].meta:
        raise given.error("a cell is written as `# %%`, in a lab", hint="write the code in a fence")


def _html(given: Directive, place: Place) -> Markup:
    cell: Cell = given.body[0].meta["cell"]
    run = place.run()
    return place.fragment(
        "cell.html",
        cell=cell,
        code=_coloured(exercises.student(cell.text)),
        solution=_coloured(exercises.solution(cell.text)) if cell.exercise else "",
        outputs=[
            _shown(each, number, given, place) for number, each in enumerate(run.outputs.get(cell.name, ()))
        ],
        output_lang=place.other_language(run.lang),
    )


def _coloured(code: str) -> Markup:
    return Markup(coloured(code, "python"))


def _shown(output: Output, number: int, given: Directive, place: Place) -> Markup:
    if output.kind == "text":
        return Markup('<pre class="printed">{}</pre>').format(escape(output.content))
    try:
        svg = plots.inline(output.content, f"{given.argument}-{number}", place.colours())
    except ValueError as error:
        raise SidelitError(
            str(error), path=given.path, line=given.line, hint="record the lab again"
        ) from None
    about = Markup('<svg role="img" aria-label="{}"').format(plots.words(output.content))
    svg = about + Markup(svg.removeprefix("<svg"))
    return place.fragment("plot.html", svg=svg)


CELL = Kind(written.CELL, _check, _html)
