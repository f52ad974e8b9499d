"""# Directives that move

> A stepper walks through a recorded run, and sliders through a table of answers.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from markupsafe import Markup

from sidelit.cache.graph import as_one
from sidelit.figures import interactive, words
from sidelit.figures.interactive import Event, Payload, Row, Run, Stepper
from sidelit.site.content import LINES, SourcePage
from sidelit.site.directives.kind import DirectiveContext, DirectiveType, ProjectIndex, nearest, plain
from sidelit.site.model import CodeLine, Link, code_line
from sidelit.text import directives
from sidelit.text.directives import Directive

# ## Lines around a line
#
# > A recording names a line of a chapter by its definition and its text; here it is found as it is today.
#
# The number of a line changes with every comment above it, so a recording has none. A line that is not there
# any more, or is there twice, fails the build: then the run has to be recorded again.


# What a task notes that looks for the page of a stepper.
STANDS = "stands:{}"

MOST = 14
AROUND = 12


@dataclass(frozen=True, slots=True)
class Spot:
    """A line of a chapter: what it belongs to, its number, its coloured code and what stands around it."""

    page: SourcePage
    definition: str
    number: int
    code: CodeLine
    excerpt: tuple[CodeLine, ...]


class Excerpts:
    """The lines that the events of a run stand at; near events show the same lines.

    Raises `SidelitError` at the directive if a line is not found.
    """

    def __init__(self, given: Directive, book: ProjectIndex, events: Iterable[Event]) -> None:
        self.given, self.book = given, book
        found = [(event, *self._found(event)) for event in events]
        seen: dict[str, set[int]] = {}
        for event, _, _, at in found:
            seen.setdefault(_key(event), set()).add(at)
        self.places = tuple(
            Spot(
                page,
                event.definition,
                lines[at].n,
                lines[at],
                lines[slice(*_window(len(lines), at, seen[_key(event)]))],
            )
            for event, page, lines, at in found
        )

    def _found(self, event: Event) -> tuple[SourcePage, tuple[CodeLine, ...], int]:
        """The chapter, all lines of the definition, and which of them it is."""
        sources = [f"{self.book.index.source_root}/{event.path}", event.path]
        named = next((source for source in sources if source in self.book.pages), None)
        if named is None:
            what = f"the recording names {event.path}, which is no chapter"
            raise self.given.error(what, hint=nearest(sources[0], self.book.pages))
        with as_one(LINES.format(named, event.definition)):
            page = self.book.pages[named]
            sections = [one for one in page.sections if one.qualname == event.definition and one.fold is None]
        # A reader of these lines moves through the run, not through the code: so they have no links.
        lines = tuple(code_line(number, html) for section in sections for number, html in section.lines)
        at = [place for place, line in enumerate(lines) if _plain(line.html).strip() == event.line]
        if len(at) == 1:
            return page, lines, at[0]
        what = f"the recording names the line {event.line!r} of {event.path}#{event.definition}"
        why = f"which is there {len(at)} times" if at else "which is not there, or in depth"
        raise self.given.error(f"{what}, {why}", hint="record the run again")


def _key(event: Event) -> str:
    return f"{event.path}#{event.definition}"


def _plain(code: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", code))


def _window(count: int, at: int, seen: set[int]) -> tuple[int, int]:
    """Which of `count` lines to show around one, so that the lines of other events near it are there too."""
    if count <= MOST:
        return 0, count
    first = min(place for place in seen if at - AROUND < place <= at)
    last = max(place for place in seen if place < first + AROUND)
    start = max(0, min(first - (AROUND - (last - first)) // 2, count - AROUND))
    return start, start + AROUND


# ## A stepper
#
# > A recorded run that a reader can step through: its sentences, the lines it ran and what was stored.
#
# Without scripts it is a strip of all scenes, one below the other, and so it is on paper.


HEIGHT = 100


@dataclass(frozen=True, slots=True)
class Note:
    """What is known beside the memory; `twin` is empty where the program is as it should be."""

    twin: str
    words: Markup


@dataclass(frozen=True, slots=True)
class Moment:
    """One event as the template shows it."""

    number: int
    url: str
    line: int
    code: Markup
    excerpt: int
    unit: str
    unit_number: int
    states: tuple[int, ...]
    stacks: tuple[tuple[int, ...], ...]
    payload: Payload | None
    size: str
    notes: tuple[Note, ...]
    removed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Still:
    """What is stored at an event, alone."""

    number: int
    states: tuple[int, ...]
    stacks: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Lines of one definition, which `where` links to."""

    number: int
    page: str
    where: Link
    lines: tuple[CodeLine, ...]


@dataclass(frozen=True, slots=True)
class Scene:
    """A few moments under one sentence; `excerpts` are those that no scene before it has shown."""

    number: int
    words: Markup
    moments: tuple[Moment, ...]
    excerpts: tuple[Excerpt, ...]


def _check_stepper(given: Directive, book: ProjectIndex) -> Stepper:
    plain(given, argument=True, body=False)
    known = interactive.stepper_names(book.config)
    if given.argument not in known:
        raise given.error(f"there is no stepper {given.argument!r}", hint=nearest(given.argument, known))
    made = interactive.read_stepper(book.config, given.argument)
    Excerpts(given, book, made.run.events)
    return made


def _stepper_html(given: Directive, place: DirectiveContext) -> Markup:
    made = interactive.read_stepper(place.book.config, given.argument)
    place.needs("stepper")
    run, script = made.run, made.script

    def said(context: str, values: Run = run) -> Markup:
        return place.said(script, context, values.values)

    return place.fragment(
        "stepper.html",
        name=made.name,
        title=said("title"),
        caption=said("caption"),
        scenes=tuple(_scenes(given, made, place)),
        kinds=[said(f"kinds/{kind}") for kind in run.kinds],
        states=[said(f"states/{state}") for state in made.states],
        units=run.units,
        ranks=run.ranks,
        most=run.most,
        count=len(run.events),
        twins=[
            (name, said(f"twins/{name}/label", twin), said(f"twins/{name}/about", twin))
            for name, twin in made.twins.items()
        ],
        curves=[_curve(run, rank) for rank in range(run.ranks)],
        recordings=[run.recording, *(twin.recording for twin in made.twins.values())],
        size=words.size,
        height=HEIGHT,
    )


def _scenes(given: Directive, made: Stepper, place: DirectiveContext) -> Iterator[Scene]:
    excerpts = Excerpts(given, place.book, made.run.events)
    numbers: dict[tuple[CodeLine, ...], int] = {}
    for scene, (name, _) in enumerate(made.run.scenes):
        known, moments = len(numbers), []
        for number in made.run.scene(scene):
            at = excerpts.places[number]
            excerpt = numbers.setdefault(at.excerpt, len(numbers))
            page = place.address(at.page.item.output, "")
            moments.append(_moment(made, place, number, f"{page}#line-{at.number}", at.code, excerpt))
        new = tuple(
            _excerpt(place, excerpts, lines, number) for lines, number in numbers.items() if number >= known
        )
        words = place.said(made.script, f"scenes/{name}", made.run.values)
        yield Scene(scene + 1, words, tuple(moments), new)


def _excerpt(
    place: DirectiveContext, excerpts: Excerpts, lines: tuple[CodeLine, ...], number: int
) -> Excerpt:
    at = next(at for at in excerpts.places if at.excerpt == lines)
    output = at.page.item.output
    where = Link(at.definition, place.address(output, at.definition))
    return Excerpt(number, place.address(output, ""), where, lines)


def _moment(
    made: Stepper, place: DirectiveContext, number: int, url: str, code: CodeLine, excerpt: int
) -> Moment:
    event = made.run.events[number]
    return Moment(
        number=number + 1,
        url=url,
        line=code.n,
        code=Markup(code.html.lstrip(" ")),
        excerpt=excerpt,
        unit=event.unit or "",
        unit_number=made.run.units.index(event.unit) if event.unit else -1,
        states=tuple(made.states.index(state) for state in event.states),
        stacks=event.nbytes,
        payload=event.payload,
        size=words.size(event.payload.nbytes) if event.payload else "",
        notes=tuple(_notes(made, place, number)),
        removed=tuple(name for name, twin in made.twins.items() if twin.events[number].removed),
    )


def _notes(made: Stepper, place: DirectiveContext, number: int) -> Iterator[Note]:
    """What is known of an event, and of the same one in a twin where that is something else."""
    notes = made.run.events[number].notes
    for name, run in (("", made.run), *made.twins.items()):
        for key, values in run.events[number].notes.items():
            if not name or notes.get(key) != values:
                yield Note(name, place.said(made.script, f"notes/{key}", values))


def _curve(run: Run, rank: int) -> list[str]:
    """For each kind the outline of its band: what a rank stores of it over the events, in stacked steps."""
    floors = [0.0] * len(run.events)
    most = run.most
    paths = []
    for kind in range(len(run.kinds)):
        tops = [
            floor + HEIGHT * event.nbytes[rank][kind] / most
            for floor, event in zip(floors, run.events, strict=True)
        ]
        there = "".join(f"V{HEIGHT - top:.1f}H{place + 1}" for place, top in enumerate(tops))
        backwards = [*enumerate(floors)][::-1]
        back = "".join(f"V{HEIGHT - floor:.1f}H{place}" for place, floor in backwards)
        paths.append(f"M0 {HEIGHT - floors[0]:.1f}{there}{back}Z")
        floors = tops
    return paths


def _check_moment(given: Directive, book: ProjectIndex) -> None:
    """The scene of a stepper that may stand on the same page: `::: moment NAME SCENE`."""
    plain(given, argument=True, body=False)
    name, _, scene = given.argument.partition(" ")
    known = interactive.stepper_names(book.config)
    if name not in known:
        raise given.error(f"there is no stepper {name!r}", hint=nearest(name, known))
    scenes = [known for known, _ in interactive.read_stepper(book.config, name).run.scenes]
    if scene not in scenes:
        raise given.error(f"the stepper {name!r} has no scene {scene!r}", hint=nearest(scene, scenes))


def _moment_html(given: Directive, place: DirectiveContext) -> Markup:
    name, _, scene = given.argument.partition(" ")
    made = interactive.read_stepper(place.book.config, name)
    place.needs("stepper")
    number = [known for known, _ in made.run.scenes].index(scene)
    last = made.run.scene(number)[-1]
    event = made.run.events[last]
    anchor, page = f"{name}-{last + 1}", page_of(name, place.book)
    elsewhere = page is not None and page.item.source != given.path
    return place.fragment(
        "moment.html",
        url=place.address(page.item.output, anchor) if page and elsewhere else f"#{anchor}",
        kinds=[place.said(made.script, f"kinds/{kind}", {}) for kind in made.run.kinds if elsewhere],
        words=place.said(made.script, f"scenes/{scene}", made.run.values),
        moment=Still(last + 1, tuple(map(made.states.index, event.states)), event.nbytes),
        units=made.run.units,
        ranks=made.run.ranks,
        most=made.run.most,
        size=words.size,
    )


def page_of(name: str, book: ProjectIndex) -> SourcePage | None:
    """The page that the stepper stands on."""
    with as_one(STANDS.format(name)):
        for page in book.pages.values():
            for tokens in page.directives:
                given = directives.read(tokens)
                if (given.name, given.argument) == ("stepper", name):
                    return page
    return None


STEPPER = DirectiveType("stepper", _check_stepper, _stepper_html)
MOMENT = DirectiveType("moment", _check_moment, _moment_html, everywhere=True)


# ## Sliders
#
# > A table of answers, one of which is shown; a script adds what chooses another one.


def _check_sliders(given: Directive, book: ProjectIndex) -> None:
    plain(given, argument=True, body=False)
    known = interactive.slider_names(book.config)
    if given.argument not in known:
        raise given.error(f"there are no sliders {given.argument!r}", hint=nearest(given.argument, known))
    interactive.read_sliders(book.config, given.argument)


def _sliders_html(given: Directive, place: DirectiveContext) -> Markup:
    made = interactive.read_sliders(place.book.config, given.argument)
    place.needs("sliders")

    def said(context: str) -> Markup:
        return place.said(made.script, context, {})

    return place.fragment(
        "sliders.html",
        name=made.name,
        title=said("title"),
        caption=said("caption"),
        axes=[(said(f"axes/{axis.name}"), axis) for axis in made.axes],
        rows=[(said(f"rows/{name}"), row) for name, row in zip(made.rows, made.start, strict=True)],
        parts=[said(f"parts/{part}") for part in made.parts],
        points=";".join("|".join(map(_packed, point)) for point in made.points),
        recording=made.recording,
    )


def _packed(row: Row) -> str:
    """A row as the script reads it; what is written holds none of its signs."""
    return " ".join([row.text, *(f"{width:g}" for width in row.widths)])


SLIDERS = DirectiveType("sliders", _check_sliders, _sliders_html, everywhere=True)
