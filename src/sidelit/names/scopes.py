"""# Scopes

> Where a name is bound, and which binding a name means at its place.

Python decides by the text alone to which scope a name belongs, so a reader can be told without running
anything. What is bound more than once is another matter: of two functions of one name nobody knows which one
is called, and then there is no answer here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["module", "class", "function", "comprehension"]
Bound = Literal["class", "function", "import", "variable", "parameter"]
How = Literal["is", "each", "enter", "lost"]


@dataclass(frozen=True, slots=True)
class Source:
    """Where the value of a variable comes from.

    :param how: it is the value, each element of it in turn, what it gives when a `with` enters it; or that
        is lost.
    :param path: the places in it, where it is taken apart: `(1,)` for `b` in `a, b = value`.
    """

    value: ast.expr | None
    how: How = "is"
    path: tuple[int, ...] = ()


LOST = Source(None, "lost")


@dataclass(eq=False, slots=True)
class Binding:
    """One place where a name gets a meaning.

    :param node: the definition, the `alias` of an import, the parameter, or the target of an assignment.
    :param column: where the name starts, in bytes; of a definition, its keyword.
    :param lines: the block in which a loop or a `with` binds it, and `None` for other bindings.
    :param target: what an import names: `package.module`, or `package.module:name`.
    """

    name: str
    kind: Bound
    node: ast.AST
    scope: Scope
    line: int
    column: int
    source: Source = LOST
    annotation: ast.expr | None = None
    lines: range | None = None
    target: str = ""

    @property
    def qualname(self) -> str:
        """The dotted name of it in its module, without `<locals>`."""
        around = self.scope.qualname
        return f"{around}.{self.name}" if around else self.name


@dataclass(eq=False, slots=True)
class Scope:
    """A module, a class body, a function or a comprehension, and the names that it binds.

    :param elsewhere: names that `global` or `nonlocal` say belong to another scope.
    :param stars: the modules all of whose names it takes, by `from … import *`.
    :param narrowed: the expressions, as they are written, that a test such as `isinstance` says more about
        than their annotation.
    """

    kind: Kind
    node: ast.AST
    module: str
    parent: Scope | None = None
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    elsewhere: dict[str, Literal["global", "nonlocal"]] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    narrowed: set[str] = field(default_factory=set)
    attributes: dict[str, list[Binding]] = field(default_factory=dict)
    """What the methods of a class assign to `self`."""
    receiver: str = ""
    """What a method calls its object, or its class if it is a class method."""
    inner: dict[ast.AST, Scope] = field(default_factory=dict)
    """Of a module: the scope that each definition and comprehension in it opens."""

    @property
    def qualname(self) -> str:
        """The dotted name of the definition that it is the inside of; empty for a module."""
        scope = self
        while scope.kind == "comprehension" and scope.parent:
            scope = scope.parent
        if not isinstance(scope.node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return scope.parent.qualname if scope.parent else ""
        around = scope.parent.qualname if scope.parent else ""
        return f"{around}.{scope.node.name}" if around else scope.node.name

    @property
    def function(self) -> Scope:
        """The nearest scope around that is no comprehension, itself included."""
        scope = self
        while scope.kind == "comprehension" and scope.parent:
            scope = scope.parent
        return scope

    @property
    def around(self) -> Iterator[Scope]:
        """The scopes that it stands in, from the nearest to the module's."""
        scope = self.parent
        while scope:
            yield scope
            scope = scope.parent

    @property
    def top(self) -> Scope:
        """The scope of the module."""
        scope = self
        while scope.parent:
            scope = scope.parent
        return scope


def find(scope: Scope, name: str) -> tuple[Scope, Sequence[Binding]]:
    """The scope that a name belongs to, seen from `scope`, and its bindings there; none in the module's if it
    is bound nowhere.
    """
    start, around = scope, scope
    while True:
        said = around.elsewhere.get(name)
        if said == "global":
            around = around.top
        # The names of a class are seen in its body alone, not in its methods.
        elif name in around.bindings and (around.kind != "class" or around is start) and not said:
            return around, around.bindings[name]
        if around.parent is None:
            return around, around.bindings.get(name, ())
        around = around.parent


def meant(bindings: Sequence[Binding], line: int = 0) -> Sequence[Binding]:
    """Those of the bindings of a name that it may mean on a line, the one to show first; none if that is not
    certain.
    """
    if len(bindings) < 2:
        return bindings
    if any(each.kind in ("class", "function", "import") for each in bindings):
        return _one_definition(bindings)
    # Inside of a loop that binds the name, and binds it nowhere else, it is the loop's.
    blocks = [each for each in bindings if each.lines and line in each.lines]
    for each in reversed(blocks):
        if all(other is each or other.line not in (each.lines or ()) for other in bindings):
            return [each]
    return bindings


def _one_definition(bindings: Sequence[Binding]) -> Sequence[Binding]:
    """A property with its accessors is one thing, and so is one import that is written twice."""
    first = bindings[0]
    if all(isinstance(each.node, ast.FunctionDef) for each in bindings):
        accessors = all(_accessor_of(each.node, first.name) for each in bindings[1:])
        return bindings[:1] if accessors and not _accessor_of(first.node, first.name) else ()
    return bindings[:1] if len({each.target for each in bindings}) == 1 and first.target else ()


def _accessor_of(node: ast.AST, name: str) -> bool:
    """Whether a definition says `@name.setter` or its kin."""
    return isinstance(node, ast.FunctionDef) and any(
        isinstance(each, ast.Attribute)
        and each.attr in ("setter", "getter", "deleter")
        and isinstance(each.value, ast.Name)
        and each.value.id == name
        for each in node.decorator_list
    )
