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
    """Where a project has labs, it wants no other one named; where it has none, any number goes."""
    plain(given, argument=True)
    numbers = [lab.number for lab in book.config.labs.labs]
    if numbers and given.argument not in (*numbers, *book.config.labs.coming):
        hint = nearest(given.argument, numbers, f"there is {', '.join(numbers)}")
        raise given.error(f"there is no lab {given.argument!r}", hint=hint)


def _lab(given: Directive, place: Place) -> Markup:
    labs = place.book.config.labs
    own = [lab for lab in labs.labs if lab.number == given.argument]
    return place.fragment(
        "lab.html",
        number=given.argument,
        address=place.address(own[0].output, "") if own else "",
        coming=given.argument in labs.coming,
        words=place.words(given.body),
    )


def _hint(given: Directive, place: Place) -> Markup:
    return place.fragment("hint.html", words=place.words(given.body))


QUESTION = Kind("question", _check_question, _question, everywhere=True)
TRY = Kind("try", _check_try, _try)
LAB = Kind("lab", _check_lab, _lab)
HINT = Kind("hint", _check_try, _hint)
