"""# The names of a file

> One walk over the syntax tree finds every scope, every binding and every use of a name.

The names of a comprehension are its own, but its first iterable is read outside of it. The default of a
parameter and a decorator are read outside of the function. What `:=` binds belongs to the function around the
comprehension. These rules of the language are all that stands here; what a name means is asked later.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import chain

from sidelit.names.scopes import (
    LOST,
    Binding,
    Bound,
    How,
    Scope,
    Source,
    absolute,
    bind,
    binding,
    block,
    gathered,
    receiver,
    targets,
)

Defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
Import = ast.Import | ast.ImportFrom


@dataclass(slots=True)
class Survey:
    """All scopes of a file and what is to be linked in it.

    :param uses: each name and attribute with the scope it is read in.
    :param imports: each statement that imports, with its scope.
    :param lines: the lines on which each name is bound, in the order of the numbers of its bindings.
    """

    top: Scope
    uses: list[tuple[ast.Name | ast.Attribute, Scope]] = field(default_factory=list)
    imports: list[tuple[Import, Scope]] = field(default_factory=list)
    lines: dict[str, tuple[int, ...]] = field(default_factory=dict)


def survey(tree: ast.Module, module: str, package: bool) -> Survey:
    """Walk over a file.

    :param module: its dotted name
    :param package: whether it is the `__init__` of a package, which relative imports start from
    """
    walk = _Walk(Survey(Scope("module", tree, module)), module if package else module.rpartition(".")[0])
    walk.many(tree.body, walk.found.top)
    walk.found.lines = _numbered(walk.found.top)
    return walk.found


def _numbered(top: Scope) -> dict[str, tuple[int, ...]]:
    """Number the bindings of each name; returns their lines.

    The numbers follow from the code alone, so they stay what they are when words move it to other lines.
    """
    lines: dict[str, list[int]] = {}
    for scope in (top, *top.inner.values()):
        for name, found in chain(scope.bindings.items(), scope.attributes.items()):
            known = lines.setdefault(name, [])
            for each in found:
                each.number = len(known)
                known.append(each.line)
    return {name: tuple(known) for name, known in lines.items()}


class _Walk:
    def __init__(self, found: Survey, package: str) -> None:
        self.found = found
        self.package = package

    def many(self, nodes: Iterable[ast.AST | None], scope: Scope) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node, scope)

    def visit(self, node: ast.AST, scope: Scope) -> None:
        """Visit a node; what has rules of its own has a method of its own."""
        special = _SPECIAL.get(type(node))
        if special is None:
            for child in ast.iter_child_nodes(node):
                self.visit(child, scope)
        else:
            special(self, node, scope)

    # ---- Uses

    def name(self, node: ast.Name, scope: Scope) -> None:
        self.found.uses.append((node, scope))

    def attribute(self, node: ast.Attribute, scope: Scope) -> None:
        self.visit(node.value, scope)
        self.found.uses.append((node, scope))

    def call(self, node: ast.Call, scope: Scope) -> None:
        """What a test asks about, it narrows: its annotation says less than the code after it knows."""
        if isinstance(node.func, ast.Name) and node.func.id in _TESTS and node.args:
            scope.function.narrowed.add(ast.unparse(node.args[0]))
        self.many((node.func, *node.args, *node.keywords), scope)

    # ---- Definitions

    def define(self, node: Defined, scope: Scope) -> None:
        kind: Bound = "class" if isinstance(node, ast.ClassDef) else "function"
        bind(scope, Binding(node.name, kind, node, scope, node.lineno, node.col_offset))
        self.many(node.decorator_list, scope)
        if isinstance(node, ast.ClassDef):
            self.many((*node.bases, *node.keywords), scope)
            inner = self.open("class", node, scope)
        else:
            inner = self.function(node, scope)
            self.visit_if(node.returns, inner if getattr(node, "type_params", ()) else scope)
            inner.receiver = receiver(node, scope)
        for parameter in getattr(node, "type_params", ()):
            bind(inner, binding(parameter.name, parameter, inner))
        self.many(node.body, inner)

    def function(self, node: Function, scope: Scope) -> Scope:
        self.many((*node.args.defaults, *node.args.kw_defaults), scope)
        inner = self.open("function", node, scope)
        given = node.args
        for each in (*given.posonlyargs, *given.args, *given.kwonlyargs):
            self.parameter(each, scope, inner, each.annotation)
        # What gathers the rest is a tuple or a dictionary of what its annotation says.
        for each in filter(None, (given.vararg, given.kwarg)):
            self.parameter(each, scope, inner, gathered(each, each is given.kwarg))
        return inner

    def parameter(self, node: ast.arg, scope: Scope, inner: Scope, annotation: ast.expr | None) -> None:
        self.visit_if(node.annotation, scope)
        made = Binding(node.arg, "parameter", node, inner, node.lineno, node.col_offset)
        made.annotation = annotation
        bind(inner, made)

    def lambda_(self, node: ast.Lambda, scope: Scope) -> None:
        self.visit(node.body, self.function(node, scope))

    def comprehension(self, node: Comprehension, scope: Scope) -> None:
        inner = self.open("comprehension", node, scope)
        for number, part in enumerate(node.generators):
            self.visit(part.iter, inner if number else scope)
            self.target(part.target, inner, Source(part.iter, "lost" if part.is_async else "each"))
            self.many(part.ifs, inner)
        made = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
        self.many(made, inner)

    def open(self, kind: str, node: ast.AST, scope: Scope) -> Scope:
        inner = Scope(kind, node, scope.module, scope)  # type: ignore[arg-type]
        self.found.top.inner[node] = inner
        return inner

    def visit_if(self, node: ast.AST | None, scope: Scope) -> None:
        if node is not None:
            self.visit(node, scope)

    # ---- Bindings

    def target(
        self,
        node: ast.expr,
        scope: Scope,
        source: Source,
        annotation: ast.expr | None = None,
        lines: range | None = None,
    ) -> None:
        self.many(targets(node, scope, source, annotation, lines), scope)

    def assign(self, node: ast.Assign, scope: Scope) -> None:
        self.visit(node.value, scope)
        for each in node.targets:
            self.target(each, scope, Source(node.value))

    def annotated(self, node: ast.AnnAssign, scope: Scope) -> None:
        self.visit(node.annotation, scope)
        self.visit_if(node.value, scope)
        self.target(node.target, scope, Source(node.value), node.annotation)

    def augmented(self, node: ast.AugAssign, scope: Scope) -> None:
        self.visit(node.value, scope)
        if isinstance(node.target, ast.Name):
            self.name(node.target, scope)
        self.target(node.target, scope, LOST)

    def walrus(self, node: ast.NamedExpr, scope: Scope) -> None:
        self.visit(node.value, scope)
        self.target(node.target, scope.function, Source(node.value))

    def loop(self, node: ast.For | ast.AsyncFor, scope: Scope) -> None:
        self.visit(node.iter, scope)
        how: How = "each" if isinstance(node, ast.For) else "lost"
        self.target(node.target, scope, Source(node.iter, how), lines=block(node.body))
        self.many((*node.body, *node.orelse), scope)

    def enter(self, node: ast.With | ast.AsyncWith, scope: Scope) -> None:
        how: How = "enter" if isinstance(node, ast.With) else "lost"
        for item in node.items:
            self.visit(item.context_expr, scope)
            if item.optional_vars is not None:
                source = Source(item.context_expr, how)
                self.target(item.optional_vars, scope, source, lines=block(node.body))
        self.many(node.body, scope)

    def caught(self, node: ast.ExceptHandler, scope: Scope) -> None:
        self.visit_if(node.type, scope)
        if node.name:
            made = binding(node.name, node, scope)
            made.annotation = None if isinstance(node.type, ast.Tuple) else node.type
            made.lines = block(node.body)
            bind(scope, made)
        self.many(node.body, scope)

    def match(self, node: ast.Match, scope: Scope) -> None:
        scope.function.narrowed.add(ast.unparse(node.subject))
        self.many((node.subject, *node.cases), scope)

    def captured(self, node: ast.MatchAs | ast.MatchStar, scope: Scope) -> None:
        self.many(ast.iter_child_nodes(node), scope)
        if node.name:
            bind(scope, binding(node.name, node, scope))

    def rest(self, node: ast.MatchMapping, scope: Scope) -> None:
        self.many(ast.iter_child_nodes(node), scope)
        if node.rest:
            bind(scope, binding(node.rest, node, scope))

    # ---- Imports, and names that belong elsewhere

    def import_(self, node: ast.Import, scope: Scope) -> None:
        self.found.imports.append((node, scope))
        for alias in node.names:
            made = binding(alias.asname or alias.name.partition(".")[0], alias, scope)
            made.kind = "import"
            made.target = alias.name if alias.asname else made.name
            bind(scope, made)

    def import_from(self, node: ast.ImportFrom, scope: Scope) -> None:
        self.found.imports.append((node, scope))
        origin = absolute(node, self.package)
        for alias in node.names:
            if alias.name == "*":
                scope.top.stars.append(origin)
                continue
            made = binding(alias.asname or alias.name, alias, scope)
            made.kind, made.target = "import", f"{origin}:{alias.name}"
            bind(scope, made)

    def elsewhere(self, node: ast.Global | ast.Nonlocal, scope: Scope) -> None:
        for name in node.names:
            scope.elsewhere[name] = "global" if isinstance(node, ast.Global) else "nonlocal"


# What says more about a value than its annotation does.
_TESTS = frozenset({"isinstance", "issubclass", "hasattr", "callable"})

_SPECIAL: dict[type[ast.AST], Callable[..., None]] = {
    ast.Name: _Walk.name,
    ast.Attribute: _Walk.attribute,
    ast.Call: _Walk.call,
    ast.FunctionDef: _Walk.define,
    ast.AsyncFunctionDef: _Walk.define,
    ast.ClassDef: _Walk.define,
    ast.Lambda: _Walk.lambda_,
    ast.ListComp: _Walk.comprehension,
    ast.SetComp: _Walk.comprehension,
    ast.DictComp: _Walk.comprehension,
    ast.GeneratorExp: _Walk.comprehension,
    ast.Assign: _Walk.assign,
    ast.AnnAssign: _Walk.annotated,
    ast.AugAssign: _Walk.augmented,
    ast.NamedExpr: _Walk.walrus,
    ast.For: _Walk.loop,
    ast.AsyncFor: _Walk.loop,
    ast.With: _Walk.enter,
    ast.AsyncWith: _Walk.enter,
    ast.ExceptHandler: _Walk.caught,
    ast.Match: _Walk.match,
    ast.MatchAs: _Walk.captured,
    ast.MatchStar: _Walk.captured,
    ast.MatchMapping: _Walk.rest,
    ast.Import: _Walk.import_,
    ast.ImportFrom: _Walk.import_from,
    ast.Global: _Walk.elsewhere,
    ast.Nonlocal: _Walk.elsewhere,
}
