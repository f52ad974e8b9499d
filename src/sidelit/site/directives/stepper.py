"""# A stepper

> A recorded run that a reader can step through: its sentences, the lines it ran and what was stored.

Without scripts it is a strip of all scenes, one below the other, and so it is on paper.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup

from sidelit.figures import quantities
from sidelit.interactive import stepper
from sidelit.interactive.replay import Payload, Run
from sidelit.interactive.stepper import Stepper
from sidelit.site.content import Text
from sidelit.site.directives.excerpts import Excerpts
from sidelit.site.directives.kind import Book, Kind, Place, nearest, plain
from sidelit.site.lines import CodeLine
from sidelit.site.link_views import Link
from sidelit.text import directives
from sidelit.text.directives import Directive

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


def _check(given: Directive, book: Book) -> Stepper:
    plain(given, argument=True, body=False)
    known = stepper.names(book.config)
    if given.argument not in known:
        raise given.error(f"there is no stepper {given.argument!r}", hint=nearest(given.argument, known))
    made = stepper.read(book.config, given.argument)
    Excerpts(given, book, made.run.events)
    return made


def _html(given: Directive, place: Place) -> Markup:
    made = stepper.read(place.book.config, given.argument)
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
        size=quantities.size,
        height=HEIGHT,
    )


def _scenes(given: Directive, made: Stepper, place: Place) -> Iterator[Scene]:
    excerpts = Excerpts(given, place.book, made.run.events)
    numbers: dict[tuple[CodeLine, ...], int] = {}
    for scene, (name, _) in enumerate(made.run.scenes):
        known, moments = len(numbers), []
        for number in made.run.scene(scene):
            at = excerpts.places[number]
            excerpt = numbers.setdefault(at.excerpt, len(numbers))
            page = place.address(at.text.item.output, "")
            moments.append(_moment(made, place, number, f"{page}#line-{at.number}", at.code, excerpt))
        new = tuple(
            _excerpt(place, excerpts, lines, number) for lines, number in numbers.items() if number >= known
        )
        words = place.said(made.script, f"scenes/{name}", made.run.values)
        yield Scene(scene + 1, words, tuple(moments), new)


def _excerpt(place: Place, excerpts: Excerpts, lines: tuple[CodeLine, ...], number: int) -> Excerpt:
    at = next(at for at in excerpts.places if at.excerpt == lines)
    output = at.text.item.output
    where = Link(at.definition, place.address(output, at.definition))
    return Excerpt(number, place.address(output, ""), where, lines)


def _moment(made: Stepper, place: Place, number: int, url: str, code: CodeLine, excerpt: int) -> Moment:
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
        size=quantities.size(event.payload.nbytes) if event.payload else "",
        notes=tuple(_notes(made, place, number)),
        removed=tuple(name for name, twin in made.twins.items() if twin.events[number].removed),
    )


def _notes(made: Stepper, place: Place, number: int) -> Iterator[Note]:
    """What is known of an event, and of the same one in a twin where that is something else."""
    notes = made.run.events[number].notes
    for name, run in (("", made.run), *made.twins.items()):
        for key, values in run.events[number].notes.items():
            if not name or notes.get(key) != values:
                yield Note(name, place.said(made.script, f"notes/{key}", values))


def _curve(run: Run, rank: int) -> list[str]:
    """For each kind the outline of its band: what a rank stores of it over the events, in stacked steps."""
    floors = [0.0] * len(run.events)
    paths = []
    for kind in range(len(run.kinds)):
        tops = [
            floor + HEIGHT * event.nbytes[rank][kind] / run.most
            for floor, event in zip(floors, run.events, strict=True)
        ]
        there = "".join(f"V{HEIGHT - top:.1f}H{place + 1}" for place, top in enumerate(tops))
        backwards = [*enumerate(floors)][::-1]
        back = "".join(f"V{HEIGHT - floor:.1f}H{place}" for place, floor in backwards)
        paths.append(f"M0 {HEIGHT - floors[0]:.1f}{there}{back}Z")
        floors = tops
    return paths


def _check_moment(given: Directive, book: Book) -> None:
    """The scene of a stepper that may stand on the same page: `::: moment NAME SCENE`."""
    plain(given, argument=True, body=False)
    name, _, scene = given.argument.partition(" ")
    known = stepper.names(book.config)
    if name not in known:
        raise given.error(f"there is no stepper {name!r}", hint=nearest(name, known))
    scenes = [known for known, _ in stepper.read(book.config, name).run.scenes]
    if scene not in scenes:
        raise given.error(f"the stepper {name!r} has no scene {scene!r}", hint=nearest(scene, scenes))


def _moment_html(given: Directive, place: Place) -> Markup:
    name, _, scene = given.argument.partition(" ")
    made = stepper.read(place.book.config, name)
    place.needs("stepper")
    number = [known for known, _ in made.run.scenes].index(scene)
    last = made.run.scene(number)[-1]
    event = made.run.events[last]
    anchor, page = f"{name}-{last + 1}", _page_of(name, place.book)
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
        size=quantities.size,
    )


def _page_of(name: str, book: Book) -> Text | None:
    """The page that the stepper stands on."""
    for text in book.texts.values():
        for tokens in text.directives:
            given = directives.read(tokens)
            if (given.name, given.argument) == ("stepper", name):
                return text
    return None


STEPPER = Kind("stepper", _check, _html)
MOMENT = Kind("moment", _check_moment, _moment_html, everywhere=True)
