"""# What an expression is

> A value is followed from its annotation, its assignment or the class that is called, as far as that is
> certain.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from sidelit.names import containers, scopes
from sidelit.names.kinds import (
    NOTHING,
    Function,
    Instance,
    Known,
    Outside,
    either,
)
from sidelit.names.library import Library, Meaning
from sidelit.names.objects import Objects
from sidelit.names.scopes import Scope

_DEEPEST = 40


class Values(Objects):
    """The values of a project."""

    def __init__(self, library: Library) -> None:
        super().__init__(library)
        self._depth = 0

    # ---- Expressions

    def of(self, node: ast.expr | None, scope: Scope) -> Known | None:
        """What an expression is, read in a scope."""
        ask = _ASKED.get(type(node))
        if ask is None or self._depth > _DEEPEST:
            return None
        self._depth += 1
        try:
            return ask(self, node, scope)
        finally:
            self._depth -= 1

    def meaning(self, node: ast.Name | ast.Attribute, scope: Scope) -> Meaning | None:
        """What a name or an attribute means."""
        if isinstance(node, ast.Name):
            return self.library.look_up(scope, node.id, node.lineno)
        return self.attribute(self.of(node.value, scope), node.attr)[0]

    def name(self, node: ast.Name, scope: Scope) -> Known | None:
        if node.id in scope.function.narrowed:
            return None
        around, bindings = scopes.find(scope, node.id)
        if bindings and all(each.kind in ("variable", "parameter") for each in bindings):
            if around.stars and self.library.look_up(scope, node.id, node.lineno) is None:
                return None
            line = node.lineno if around is scope.function or around is scope else 0
            return self._variable(scopes.meant(bindings, line))
        return self.known(self.library.look_up(scope, node.id, node.lineno))

    def dotted(self, node: ast.Attribute, scope: Scope) -> Known | None:
        if scope.function.narrowed and ast.unparse(node) in scope.function.narrowed:
            return None
        return self.attribute(self.of(node.value, scope), node.attr)[1]

    def call(self, node: ast.Call, scope: Scope) -> Known | None:
        if isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args:
            return self._above(scope)
        called = self.of(node.func, scope)
        if isinstance(called, Outside):
            given = [self.of(each, scope) for each in node.args]
            return containers.result(called, given, node, lambda each: self.each(each))
        return self.result(called)

    def subscript(self, node: ast.Subscript, scope: Scope) -> Known | None:
        whole = self.of(node.value, scope)
        if isinstance(whole, Instance) and isinstance(whole.what, str):
            return containers.item(whole, node.slice)
        return None

    def constant(self, node: ast.Constant, scope: Scope) -> Known | None:
        return NOTHING if node.value is None else Instance(f"builtins.{type(node.value).__name__}")

    def text(self, node: ast.expr, scope: Scope) -> Known | None:
        return Instance("builtins.str")

    def display(self, node: ast.List | ast.Set, scope: Scope) -> Known | None:
        parts = {self.of(each, scope) for each in node.elts}
        return Instance(f"builtins.{_DISPLAYS[type(node)]}", (parts.pop() if len(parts) == 1 else None,))

    def row(self, node: ast.Tuple, scope: Scope) -> Known | None:
        if any(isinstance(each, ast.Starred) for each in node.elts):
            return Instance("builtins.tuple", (None,))
        return Instance("builtins.tuple", tuple(self.of(each, scope) for each in node.elts), fixed=True)

    def table(self, node: ast.Dict, scope: Scope) -> Known | None:
        sides = []
        for side in (node.keys, node.values):
            parts = {self.of(each, scope) for each in side}
            sides.append(parts.pop() if len(parts) == 1 else None)
        return Instance("builtins.dict", tuple(sides))

    def made(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp, scope: Scope) -> Known | None:
        return Instance(f"builtins.{_DISPLAYS[type(node)]}", (self.of(node.elt, scope.top.inner[node]),))

    def made_table(self, node: ast.DictComp, scope: Scope) -> Known | None:
        inner = scope.top.inner[node]
        return Instance("builtins.dict", (self.of(node.key, inner), self.of(node.value, inner)))

    def choice(self, node: ast.IfExp, scope: Scope) -> Known | None:
        return either((self.of(node.body, scope), self.of(node.orelse, scope)))

    def first_true(self, node: ast.BoolOp, scope: Scope) -> Known | None:
        return either(self.of(each, scope) for each in node.values) if isinstance(node.op, ast.Or) else None

    def assigned(self, node: ast.NamedExpr, scope: Scope) -> Known | None:
        return self.of(node.value, scope)

    def awaited(self, node: ast.Await, scope: Scope) -> Known | None:
        called = self.of(node.value.func, scope) if isinstance(node.value, ast.Call) else None
        if isinstance(called, Function) and isinstance(called.what.node, ast.AsyncFunctionDef):
            return self._returned(called)
        return None


_DISPLAYS: dict[type[ast.AST], str] = {
    ast.List: "list",
    ast.Set: "set",
    ast.ListComp: "list",
    ast.SetComp: "set",
    ast.GeneratorExp: "generator",
}

_ASKED: dict[type, Callable[..., Known | None]] = {
    ast.Name: Values.name,
    ast.Attribute: Values.dotted,
    ast.Call: Values.call,
    ast.Subscript: Values.subscript,
    ast.Constant: Values.constant,
    ast.JoinedStr: Values.text,
    ast.List: Values.display,
    ast.Set: Values.display,
    ast.Tuple: Values.row,
    ast.Dict: Values.table,
    ast.ListComp: Values.made,
    ast.SetComp: Values.made,
    ast.GeneratorExp: Values.made,
    ast.DictComp: Values.made_table,
    ast.IfExp: Values.choice,
    ast.BoolOp: Values.first_true,
    ast.NamedExpr: Values.assigned,
    ast.Await: Values.awaited,
}
