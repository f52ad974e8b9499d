"""# Lists of what there is

> The lessons and the labs with their minutes, and the parts, each with the question that it answers.

Nothing is said twice: titles, minutes and ledes are those of the pages, and the question of a part stands
below its label in `site/sidelit.toml`. A part without a question shows its label.
"""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from sidelit.config import Lesson
from sidelit.site.directives.kind import Book, Kind, Place, plain
from sidelit.text.directives import Directive


def _check_lessons(given: Directive, book: Book) -> None:
    plain(given, body=False)
    if not book.config.course.lessons:
        raise given.error("the project has no lessons", hint="`[course]` in site/sidelit.toml lists them")


def _lessons(given: Directive, place: Place) -> Markup:
    return _taken(place, place.book.config.course.lessons, "lessons.html")


def _check_labs(given: Directive, book: Book) -> None:
    plain(given, body=False)
    if not book.config.labs.labs:
        raise given.error("the project has no labs", hint="`[labs]` in site/sidelit.toml lists them")


def _labs(given: Directive, place: Place) -> Markup:
    return _taken(place, place.book.config.labs.labs, "labs.html")


def _taken(place: Place, items: Sequence[Lesson], template: str) -> Markup:
    """What is taken in order, with its minutes."""
    names = {item.name for item in items}
    taken = [item for group in place.nav() for item in group.items if item.lesson in names]
    return place.fragment(template, lessons=taken, minutes=sum(item.minutes for item in taken))


def _check_parts(given: Directive, book: Book) -> None:
    plain(given, body=False)
    if not any(part.label for part in book.config.parts):
        raise given.error("the project has no parts", hint="`[[parts]]` in site/sidelit.toml lists them")


def _parts(given: Directive, place: Place) -> Markup:
    parts = [group for group in place.nav() if group.label and not any(item.lesson for item in group.items)]
    return place.fragment("parts.html", parts=parts)


LESSONS = Kind("lessons", _check_lessons, _lessons, everywhere=True)
LABS = Kind("labs", _check_labs, _labs, everywhere=True)
PARTS = Kind("parts", _check_parts, _parts, everywhere=True)
