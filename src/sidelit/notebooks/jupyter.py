"""# What Jupyter reads

> The press's directives and the head of a lab become Markdown and HTML that every Jupyter shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sidelit.languages import Language

_BEGIN = re.compile(r"::: +(\w+) *(.*)")
_FIELD = re.compile(r":(\w+): *(.*)")


def markdown(text: str, words: Language, lesson: str) -> str:
    """The Markdown of one cell; `lesson` is a link to the lesson of the lab, as Markdown."""
    return "\n".join(_lines(text, words, lesson))


def _lines(text: str, words: Language, lesson: str) -> Iterator[str]:
    ui, kind = words.words, ""
    aims = False
    for each in text.split("\n"):
        if found := _FIELD.fullmatch(each):
            name, said = found[1], found[2]
            if name == "aim" and not aims:
                yield f"- {ui['lab_aims']}:"
                aims = True
            yield _field(name, said, words, lesson)
        elif found := _BEGIN.fullmatch(each):
            kind = found[1]
            yield from _folded(ui["lab_hint"]) if kind == "hint" else (f"**{ui[kind]}**", "")
        elif kind == "question" and each == "---":
            yield from ("", *_folded(ui["answer"]))
        elif kind and each == ":::":
            yield from ("", "</details>") if kind in ("question", "hint") else ("",)
            kind = ""
        else:
            yield each


def _folded(label: str) -> tuple[str, ...]:
    """What begins something folded; Markdown goes on below a blank line."""
    return ("<details>", f"<summary>{label}</summary>", "")


def _field(name: str, said: str, words: Language, lesson: str) -> str:
    ui = words.words
    match name:
        case "minutes":
            return f"- {ui['minutes'].format(minutes=said)}"
        case "lesson":
            return f"- {ui['lab_lesson']}: {lesson}"
        case "needs":
            return f"- {ui['needs']}: {said}"
        case _:
            return f"  - {said}"
