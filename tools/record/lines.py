"""Stop at chosen lines of the library while it runs, and write down what is so there.

A point is a definition and a piece of one of its lines. That line is found in the source, and its number and
the frame that reaches it come from the interpreter: a line that is not run leaves no event.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import shardbook

BOOK = Path(shardbook.__file__).parent.parent


@dataclass(frozen=True)
class Point:
    """A statement to stop at, in lines of its file, and what a reader is shown of it."""

    file: str
    definition: str
    line: str
    first: int
    last: int


@dataclass
class Pending:
    """A point that a frame is in, and how many events there were when it came there."""

    point: Point
    event: dict[str, Any]
    events: int


def points(wanted: Mapping[str, Sequence[str]]) -> dict[tuple[str, int], list[Point]]:
    """The points by the file and the first line of the code they stand in.

    :param wanted: for each `file.py#Definition` pieces of its lines, each of which stands in one of them
    """
    found: dict[tuple[str, int], list[Point]] = {}
    for address, pieces in wanted.items():
        file, _, definition = address.partition("#")
        text = (BOOK / file).read_text("utf-8")
        node = dict(definitions(ast.parse(text)))[definition]
        start = min([node.lineno, *(one.lineno for one in node.decorator_list)])
        lines = text.splitlines()
        for piece in pieces:
            (number,) = (n for n in code_lines(node) if piece in lines[n - 1])
            statement = min(
                (one for one in ast.walk(node) if isinstance(one, ast.stmt) and one.lineno <= number),
                key=lambda one: (abs(one.lineno - number), end_of(one)),
            )
            last = end_of(statement)
            point = Point(file, definition, lines[number - 1].strip(), number, last)
            found.setdefault((str(BOOK / file), start), []).append(point)
    return found


def definitions(tree: Any, inside: str = "") -> Iterator[tuple[str, Any]]:
    """All functions and methods of a module by their qualified names."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield inside + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from definitions(node, f"{inside}{node.name}.")


def code_lines(node: ast.FunctionDef) -> range:
    """The lines of a function below its docstring."""
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    return range(body[0].lineno, (node.end_lineno or node.lineno) + 1)


def end_of(statement: ast.stmt) -> int:
    """The last line of a statement, or of the head of one that has a body."""
    body = getattr(statement, "body", None)
    return body[0].lineno - 1 if body else statement.end_lineno or statement.lineno


class Lines:
    """Inside the block, each point that this thread reaches is an event.

    `look` says what is so at a moment. An event without others inside of it is looked at when its line has
    run, and any other one when its line begins.

    :param look: what an event says beside its place, given the frame; `None` for no event
    """

    def __init__(
        self, wanted: Mapping[str, Sequence[str]], look: Callable[[Point, FrameType], dict[str, Any] | None]
    ) -> None:
        self.points = points(wanted)
        self.look = look
        self.events: list[dict[str, Any]] = []
        self.at: dict[FrameType, Pending] = {}

    def __enter__(self) -> Lines:
        sys.settrace(self.called)
        return self

    def __exit__(self, *error: Any) -> None:
        sys.settrace(None)

    def called(self, frame: FrameType, kind: str, value: Any) -> Any:
        """A function was called: follow it line by line if it has points."""
        code = frame.f_code
        return self.followed if (code.co_filename, code.co_firstlineno) in self.points else None

    def followed(self, frame: FrameType, kind: str, value: Any) -> Any:
        """A function goes on to its next line, or ends."""
        pending = self.at.get(frame)
        inside = kind == "line" and pending and pending.point.first <= frame.f_lineno <= pending.point.last
        if pending and not inside:
            del self.at[frame]
            if len(self.events) == pending.events:
                pending.event.update(self.look(pending.point, frame) or {})
        if kind == "line" and not inside:
            self.reach(frame)
        return self.followed

    def reach(self, frame: FrameType) -> None:
        """A line is about to run."""
        code = frame.f_code
        for point in self.points[code.co_filename, code.co_firstlineno]:
            if point.first == frame.f_lineno and (seen := self.look(point, frame)) is not None:
                event = {"at": f"{point.file}#{point.definition}", "line": point.line, **seen}
                self.events.append(event)
                self.at[frame] = Pending(point, event, len(self.events))


def removed(function: Callable[..., Any], piece: str) -> CodeType:
    """The code of a function without one line; all other lines keep their numbers.

    The function of another run is made the same as this one's by assigning it to `__code__`.
    """
    file = function.__code__.co_filename
    lines = Path(file).read_text("utf-8").splitlines()
    node = dict(definitions(ast.parse("\n".join(lines))))[function.__qualname__]
    (number,) = (n for n in code_lines(node) if piece in lines[n - 1])
    line = lines[number - 1]
    lines[number - 1] = " " * (len(line) - len(line.lstrip())) + "pass"
    whole = compile("\n".join(lines), file, "exec")
    (code,) = (
        one for one in nested(whole) if (one.co_name, one.co_firstlineno) == same_place(function.__code__)
    )
    return code


def same_place(code: CodeType) -> tuple[str, int]:
    """What tells a function from all others of its file."""
    return code.co_name, code.co_firstlineno


def nested(code: CodeType) -> Iterator[CodeType]:
    """A code object and all that are made in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from nested(constant)
