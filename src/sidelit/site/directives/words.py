"""# Words set apart

> A question whose answer is folded, something to try, and the way to a lab.
"""

from __future__ import annotations

from markupsafe import Markup

from sidelit.site.directives.kind import Book, Kind, Place, nearest, plain
from sidelit.text.directives import Directive


def _check_question(given: Directive, book: Book) -> None:
    plain(given, parts=2)


def _question(given: Directive, place: Place) -> Markup:
    asked, answered = (place.words(part) for part in given.parts)
    return place.fragment("question.html", asked=asked, answered=answered)


def _check_try(given: Directive, book: Book) -> None:
    plain(given)


def _try(given: Directive, place: Place) -> Markup:
    return place.fragment("try.html", words=place.words(given.body))


def _check_lab(given: Directive, book: Book) -> None:
    """A project that lists its labs wants no other one named; where it lists none, any number goes."""
    plain(given, argument=True)
    labs = book.config.course.labs
    if labs is not None and given.argument not in labs:
        hint = nearest(given.argument, labs, f"there is {', '.join(labs) or 'none'}")
        raise given.error(f"there is no lab {given.argument!r}", hint=hint)


def _lab(given: Directive, place: Place) -> Markup:
    return place.fragment("lab.html", number=given.argument, words=place.words(given.body))


QUESTION = Kind("question", _check_question, _question, everywhere=True)
TRY = Kind("try", _check_try, _try)
LAB = Kind("lab", _check_lab, _lab)
