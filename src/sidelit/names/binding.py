"""# Bindings

> What an assignment, a loop or an import binds, and in which scope.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from sidelit.names.scopes import LOST, Binding, Scope, Source


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
