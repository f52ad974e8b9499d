"""# Finding the tests

> A test that a chapter names has to be there. It is looked for in the text of its file, and nothing is run.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from functools import cache
from itertools import accumulate
from pathlib import Path

from sidelit import proofs
from sidelit.config import Chapter, Config
from sidelit.errors import SidelitError
from sidelit.memory import Memory
from sidelit.proofs import Proof
from sidelit.source import remembered

Report = Callable[[SidelitError], None]


def lines(config: Config, report: Report, memory: Memory | None = None) -> dict[Proof, int]:
    """The line of each test in its own file; what is wrong goes to `report`, with the line that names it."""
    found: dict[Proof, int] = {}
    named = cache(lambda path: _tests(config, path, memory))
    for chapter in config.chapters:
        _check_run(config, chapter, report)
        for proof in chapter.proves:
            try:
                found[proof] = _line(proof, config, named(proof.path))
            except SidelitError as error:
                report(error)
    return found


def _tests(config: Config, path: str, memory: Memory | None) -> Mapping[str, int]:
    """The functions and classes of a file and the methods of its classes, as pytest calls them."""
    if not (config.project / path).is_file():
        return {}
    sections = remembered.read(config.project / path, path, memory).sections
    classes = {each.qualname for each in sections if each.kind == "class"}
    found: dict[str, int] = {}
    for each in sections:
        *around, _ = accumulate(each.qualname.split("."), "{}.{}".format)
        if each.kind in ("class", "function") and classes.issuperset(around):
            found.setdefault(each.qualname.replace(".", "::"), each.first_line)
    return found


def _line(proof: Proof, config: Config, tests: Mapping[str, int]) -> int:
    place = config.shown(config.path)
    if not (config.project / proof.path).is_file():
        raise SidelitError(f"the file {proof.path} does not exist", path=place, line=proof.line)
    if not proof.name:
        return 1
    if proof.name not in tests:
        close = difflib.get_close_matches(proof.name, tests, n=1)
        what = f"{proof.path} has no function or class {proof.name!r}"
        raise SidelitError(
            what, path=place, line=proof.line, hint=f"did you mean {close[0]!r}?" if close else None
        )
    return tests[proof.name]


def _check_run(config: Config, chapter: Chapter, report: Report) -> None:
    """The command that runs a chapter starts no test that does not prove it."""
    path = proofs.left_out(chapter.run, chapter.proves) if chapter.proves else ""
    if path:
        what = f"`run` starts {path}, which `proves` does not name"
        hint = "name it there, or let the command start another file"
        report(SidelitError(what, path=config.shown(config.path), line=chapter.line, hint=hint))


def files(config: Config) -> tuple[Path, ...]:
    """The files of all tests that chapters name."""
    paths = {proof.path: None for chapter in config.chapters for proof in chapter.proves}
    return tuple(config.project / path for path in paths)
