"""# Directives of a page

> Lists of lessons and parts, the columns of a home page, boxes, and figures.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from markupsafe import Markup

from sidelit.config.chapters import Proof
from sidelit.config.prose import Prose
from sidelit.site.directives.kind import DirectiveContext, DirectiveType, ProjectIndex, nearest, plain
from sidelit.text.directives import Directive

# ## Lists of what there is
#
# > The lessons and the labs with their minutes, the parts, each with its question, and the tests.
#
# Nothing is said twice: titles, minutes and ledes are those of the pages, and the question of a part stands
# below its label in `site/sidelit.toml`. A part without a question shows its label. What a test states is the
# beginning of its own docstring, or its name.


def _check_lessons(given: Directive, book: ProjectIndex) -> None:
    plain(given, body=False)
    if not book.config.course.lessons:
        raise given.error("the project has no lessons", hint="`[course]` in site/sidelit.toml lists them")


def _lessons(given: Directive, place: DirectiveContext) -> Markup:
    return _taken(place, place.book.config.course.lessons, "lessons.html")


def _check_labs(given: Directive, book: ProjectIndex) -> None:
    plain(given, body=False)
    if not book.config.labs.lessons:
        raise given.error("the project has no labs", hint="`[labs]` in site/sidelit.toml lists them")


def _labs(given: Directive, place: DirectiveContext) -> Markup:
    return _taken(place, place.book.config.labs.lessons, "labs.html")


def _taken(place: DirectiveContext, items: Sequence[Prose], template: str) -> Markup:
    """What is taken in order, with its minutes."""
    names = {item.name for item in items}
    taken = [item for group in place.nav() for item in group.items if item.lesson in names]
    return place.fragment(template, lessons=taken, minutes=sum(item.minutes for item in taken))


def _check_parts(given: Directive, book: ProjectIndex) -> None:
    plain(given, body=False)
    if not any(part.label for part in book.config.parts):
        raise given.error("the project has no parts", hint="`[[parts]]` in site/sidelit.toml lists them")


def _parts(given: Directive, place: DirectiveContext) -> Markup:
    parts = [group for group in place.nav() if group.label and group.kind in ("part", "workshop")]
    return place.fragment("parts.html", parts=parts)


def _check_proofs(given: Directive, book: ProjectIndex) -> None:
    plain(given, body=False)
    if not any(chapter.proves for chapter in book.config.chapters):
        hint = "`proves` of a chapter in site/sidelit.toml names some"
        raise given.error("no chapter of the project names a test", hint=hint)


def _proofs(given: Directive, place: DirectiveContext) -> Markup:
    """The parts with those of their chapters that tests prove."""
    config = place.book.config
    chapters = {place.address(each.output, ""): each for each in config.chapters if each.proves}
    parts = []
    for group in place.nav():
        proved = [(item, chapters[item.url]) for item in group.items if item.url in chapters]
        if proved:
            rows = [(item, [_stated(proof, place) for proof in chapter.proves]) for item, chapter in proved]
            files = {proof.path for _, chapter in proved for proof in chapter.proves}
            parts.append((group, rows, len(files)))
    tag = place.other_language(config.source_language)
    return place.fragment("proofs.html", parts=parts, tests_lang=tag)


def _stated(proof: Proof, place: DirectiveContext) -> tuple[str, str | None, Markup]:
    """The name of a test, its address, and what it states, with its code marked."""
    says, address = place.proved(proof)
    words = (
        Markup("<code>{}</code>" if number % 2 else "{}").format(each)
        for number, each in enumerate(says.split("`"))
    )
    return str(proof), address, Markup("").join(words)


LESSONS = DirectiveType("lessons", _check_lessons, _lessons, everywhere=True)
LABS = DirectiveType("labs", _check_labs, _labs, everywhere=True)
PARTS = DirectiveType("parts", _check_parts, _parts, everywhere=True)
PROOFS = DirectiveType("proofs", _check_proofs, _proofs, everywhere=True)


# ## What a home page is arranged of
#
# > An opening beside a picture, doors to go in by, columns, and figures beside what they leave open.
#
#     ::: opening
#     ::: doors
#     - [Learn](lessons/first.md) what it is, in an afternoon.
#     - [Use](api.md) it.
#     :::
#     ---
#     ::: figure bars
#     :::
#     :::
#
# The words of an opening stand below the title of the page, and a second part beside both. Below that stands
# the project's `home_figure`, if there is one.


def _check_opening(given: Directive, book: ProjectIndex) -> None:
    plain(given, parts=len(given.parts))
    if len(given.parts) > 2:
        raise given.error("`opening` has two parts at most, the words and the picture beside them")


def _opening(given: Directive, place: DirectiveContext) -> Markup:
    words, *beside = (place.words(part) for part in given.parts)
    drawn = place.book.config.home_figure
    return place.fragment("opening.html", words=words, beside=Markup("").join(beside), drawn=drawn)


def _check_doors(given: Directive, book: ProjectIndex) -> None:
    plain(given)
    if [token.type for token in given.body if not token.level - given.body[0].level] != [
        "bullet_list_open",
        "bullet_list_close",
    ]:
        raise given.error("`doors` is one list, and each item of it begins with a link")


def _doors(given: Directive, place: DirectiveContext) -> Markup:
    return place.fragment("doors.html", words=_headed(place.words(given.body)))


def _headed(words: Markup) -> Markup:
    """A list whose items begin with a link on a line of its own: a colon behind it would begin the next."""
    # As a `str`: what is put together of pieces of markup would be escaped once more.
    label = r"(<li>\s*(?:<(?:p|strong)>)*<a\b(?:(?!</a>).)*</a>(?:</strong>)?)\s*[:：]\s*"
    return Markup(re.sub(label, r"\1 ", str(words), flags=re.DOTALL))


def _check_columns(given: Directive, book: ProjectIndex) -> None:
    plain(given, parts=max(2, len(given.parts)))


def _columns(given: Directive, place: DirectiveContext) -> Markup:
    return place.fragment("columns.html", columns=[place.words(part) for part in given.parts])


def _check_numbers(given: Directive, book: ProjectIndex) -> None:
    plain(given, parts=2)


def _numbers(given: Directive, place: DirectiveContext) -> Markup:
    numbers, beside = (place.words(part) for part in given.parts)
    return place.fragment("numbers.html", numbers=_headed(numbers), beside=beside)


OPENING = DirectiveType("opening", _check_opening, _opening, everywhere=True)
DOORS = DirectiveType("doors", _check_doors, _doors, everywhere=True)
COLUMNS = DirectiveType("columns", _check_columns, _columns, everywhere=True)
NUMBERS = DirectiveType("numbers", _check_numbers, _numbers, everywhere=True)


# ## Words set apart
#
# > A question whose answer is folded, something to try, and the way to a lab.


def _check_question(given: Directive, book: ProjectIndex) -> None:
    plain(given, parts=2)


def _question(given: Directive, place: DirectiveContext) -> Markup:
    asked, answered = (place.words(part) for part in given.parts)
    return place.fragment("question.html", asked=asked, answered=answered)


def _check_try(given: Directive, book: ProjectIndex) -> None:
    plain(given)


def _try(given: Directive, place: DirectiveContext) -> Markup:
    return place.fragment("try.html", words=place.words(given.body))


def _check_lab(given: Directive, book: ProjectIndex) -> None:
    """Where a project has labs, it wants no other one named; where it has none, any number goes."""
    plain(given, argument=True)
    numbers = [lab.number for lab in book.config.labs.lessons]
    if numbers and given.argument not in (*numbers, *book.config.labs.coming):
        hint = nearest(given.argument, numbers, f"there is {', '.join(numbers)}")
        raise given.error(f"there is no lab {given.argument!r}", hint=hint)


def _lab(given: Directive, place: DirectiveContext) -> Markup:
    labs = place.book.config.labs
    own = [lab for lab in labs.lessons if lab.number == given.argument]
    return place.fragment(
        "lab.html",
        number=given.argument,
        address=place.address(own[0].output, "") if own else "",
        coming=given.argument in labs.coming,
        words=place.words(given.body),
    )


def _hint(given: Directive, place: DirectiveContext) -> Markup:
    return place.fragment("hint.html", words=place.words(given.body))


QUESTION = DirectiveType("question", _check_question, _question, everywhere=True)
TRY = DirectiveType("try", _check_try, _try)
LAB = DirectiveType("lab", _check_lab, _lab)
HINT = DirectiveType("hint", _check_try, _hint)


# ## A figure
#
# > The name of a drawing stands where the drawing shall be.


def _check(given: Directive, book: ProjectIndex) -> None:
    plain(given, argument=True, body=False)
    names = sorted(path.stem for path in (book.config.folder / "figures").glob("*.toml"))
    if given.argument not in names:
        raise given.error(f"there is no figure {given.argument!r}", hint=nearest(given.argument, names))


def _html(given: Directive, place: DirectiveContext) -> Markup:
    return place.figure(given.argument, given.path, given.line)


FIGURE = DirectiveType("figure", _check, _html, everywhere=True)
