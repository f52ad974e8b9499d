"""# What a home page is arranged of

> An opening beside a picture, doors to go in by, columns, and figures beside what they leave open.

    ::: opening
    ::: doors
    - [Learn](lessons/first.md) what it is, in an afternoon.
    - [Use](api.md) it.
    :::
    ---
    ::: figure bars
    :::
    :::

The words of an opening stand below the title of the page. Without a second part the project's
`home_figure` stands beside them.
"""

from __future__ import annotations

from markupsafe import Markup

from sidelit.site.directives.kind import Book, Kind, Place, plain
from sidelit.text.directives import Directive


def _check_opening(given: Directive, book: Book) -> None:
    plain(given, parts=len(given.parts))
    if len(given.parts) > 2:
        raise given.error("`opening` has two parts at most, the words and the picture beside them")


def _opening(given: Directive, place: Place) -> Markup:
    words, *picture = (place.words(part) for part in given.parts)
    drawn = "" if picture else place.book.config.home_figure
    return place.fragment("opening.html", words=words, picture=Markup("").join(picture), drawn=drawn)


def _check_doors(given: Directive, book: Book) -> None:
    plain(given)
    if [token.type for token in given.body if not token.level - given.body[0].level] != [
        "bullet_list_open",
        "bullet_list_close",
    ]:
        raise given.error("`doors` is one list, and each item of it begins with a link")


def _doors(given: Directive, place: Place) -> Markup:
    return place.fragment("doors.html", words=place.words(given.body))


def _check_columns(given: Directive, book: Book) -> None:
    plain(given, parts=max(2, len(given.parts)))


def _columns(given: Directive, place: Place) -> Markup:
    return place.fragment("columns.html", columns=[place.words(part) for part in given.parts])


def _check_numbers(given: Directive, book: Book) -> None:
    plain(given, parts=2)


def _numbers(given: Directive, place: Place) -> Markup:
    numbers, beside = (place.words(part) for part in given.parts)
    return place.fragment("numbers.html", numbers=numbers, beside=beside)


OPENING = Kind("opening", _check_opening, _opening, everywhere=True)
DOORS = Kind("doors", _check_doors, _doors, everywhere=True)
COLUMNS = Kind("columns", _check_columns, _columns, everywhere=True)
NUMBERS = Kind("numbers", _check_numbers, _numbers, everywhere=True)
