"""# Scopes and bindings

> Where a name is bound, and which binding a name means at its place.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

# ## Scopes
#
# > Where a name is bound, and which binding a name means at its place.
#
# Python decides by the text alone to which scope a name belongs, so a reader can be told without running
# anything. What is bound more than once is another matter: of two functions of one name nobody knows which
# one is called, and then there is no answer here.


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
    :param number: which of the bindings of its name in the file it is.
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
    number: int = 0

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


# ## Bindings
#
# > What an assignment, a loop or an import binds, and in which scope.


def bind(scope: Scope, made: Binding) -> None:
    """Let a scope bind a name, or the scope that it says the name belongs to."""
    # A name that the scope says is another's is bound there.
    said = scope.elsewhere.get(made.name)
    if said == "global":
        scope = scope.top
    elif said:
        around = scope.parent
        while around and (around.kind == "class" or made.name not in around.bindings):
            around = around.parent
        scope = around or scope
    scope.bindings.setdefault(made.name, []).append(made)


def targets(
    node: ast.expr,
    scope: Scope,
    source: Source,
    annotation: ast.expr | None = None,
    lines: range | None = None,
) -> Iterator[ast.expr]:
    """Bind what is assigned to.

    Attributes and subscripts bind no name: they are handed out, since they are uses. A class is told what its
    methods assign to `self`.
    """
    if isinstance(node, ast.Name):
        made = binding(node.id, node, scope, source)
        made.annotation, made.lines = annotation, lines
        bind(scope, made)
    elif isinstance(node, ast.Tuple | ast.List):
        for place, each in enumerate(node.elts):
            starred = any(isinstance(other, ast.Starred) for other in node.elts[: place + 1])
            inner = LOST if starred else Source(source.value, source.how, (*source.path, place))
            yield from targets(
                each.value if isinstance(each, ast.Starred) else each, scope, inner, lines=lines
            )
    else:
        yield node
        if isinstance(node, ast.Attribute):
            _note_attribute(node, scope.function, source, annotation)


def absolute(node: ast.ImportFrom, package: str) -> str:
    """The module that `from … import` names, if the statement stands in `package`; empty if it leads out."""
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    if node.level > len(parts):
        return ""
    around = parts[: len(parts) - node.level + 1]
    return ".".join([*around, *([node.module] if node.module else [])])


def binding(name: str, node: ast.AST, scope: Scope, source: Source = LOST) -> Binding:
    """The binding of a variable where a node stands."""
    return Binding(name, "variable", node, scope, node.lineno, node.col_offset, source)  # type: ignore[attr-defined]


def _note_attribute(node: ast.Attribute, scope: Scope, source: Source, annotation: ast.expr | None) -> None:
    """Let the class know what its methods assign to their first parameter."""
    around = scope.parent
    if around is None or not scope.receiver or (source is LOST and annotation is None):
        return
    if isinstance(node.value, ast.Name) and node.value.id == scope.receiver:
        line, column = place(node)
        made = Binding(node.attr, "variable", node, scope, line, column, source, annotation)
        around.attributes.setdefault(node.attr, []).append(made)


def place(node: ast.Attribute) -> tuple[int, int]:
    """Where the name of an attribute starts: its line, and its column in bytes."""
    return node.end_lineno or node.lineno, (node.end_col_offset or 0) - len(node.attr.encode())


def block(body: Sequence[ast.stmt]) -> range:
    """The lines of a block."""
    return range(body[0].lineno, (body[-1].end_lineno or body[-1].lineno) + 1)


def receiver(node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> str:
    """What a method that is defined in `scope` calls its object, if it is one."""
    words = {each.id for each in node.decorator_list if isinstance(each, ast.Name)}
    given = [*node.args.posonlyargs, *node.args.args]
    return given[0].arg if scope.kind == "class" and given and "staticmethod" not in words else ""


def gathered(node: ast.arg, named: bool) -> ast.expr | None:
    """The annotation of `*args`, or of `**named`, as the function sees it."""
    if node.annotation is None:
        return None
    text = "dict[str, _]" if named else "tuple[_, ...]"
    made = ast.parse(text, mode="eval").body
    assert isinstance(made, ast.Subscript)
    assert isinstance(made.slice, ast.Tuple)
    made.slice.elts[1 if named else 0] = node.annotation
    return made
