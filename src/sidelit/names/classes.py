"""# Attributes of a class

> The class in which an attribute is found, in the order in which Python looks.

An attribute is defined by the body of a class, or else by the first method that assigns it to `self`, with
`__init__` before all others. A base that nobody can name ends the search: what is behind it might be
hidden by it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from sidelit.names import scopes
from sidelit.names.kinds import Class, Instance, Known
from sidelit.names.scopes import Binding, Scope

Base: TypeAlias = "Binding | str | None"
"""A class of the project, a class from outside, or one that is not known."""

# Bases from outside that give a class no attribute that its other bases have.
EMPTY = frozenset(
    {
        "builtins.object",
        "abc.ABC",
        "typing.Generic",
        "typing.Protocol",
        "typing_extensions.Protocol",
        "typing.NamedTuple",
    }
)


class Classes:
    """The classes of a project.

    :param inner: the scope that the body of each class is
    :param base: what an expression among the bases of a class means, read in the scope around it
    """

    def __init__(self, inner: Callable[[Binding], Scope], base: Callable[[ast.expr, Scope], Base]) -> None:
        self._inner = inner
        self._base = base
        self._orders: dict[Binding, Sequence[Base]] = {}

    def order(self, what: Binding) -> Sequence[Base]:
        """The order in which Python looks through a class and its bases; `None` is where nobody knows."""
        if what not in self._orders:
            # A class among its own bases is no valid program, but it may be on the disk.
            self._orders[what] = (what, None)
            self._orders[what] = self._linear(what)
        return self._orders[what]

    def attribute(self, what: Binding, name: str, after: Binding | None = None) -> Binding | str | None:
        """Where an attribute of a class or of its objects is defined: a binding, or a dotted name from
        outside, or nobody knows.

        :param after: begin behind this class, as `super()` does in it
        """
        order = list(self.order(what))
        if after is not None:
            order = order[order.index(after) + 1 :] if after in order else [None]
        for place, each in enumerate(order):
            if each is None:
                return None
            if isinstance(each, str):
                if each not in EMPTY:
                    return f"{each}.{name}"
                continue
            body = self._inner(each)
            if name in body.bindings:
                found = scopes.meant(body.bindings[name])
                return found[0] if found else None
            if name in body.attributes:
                return self._assigned(body, name, order[place + 1 :])
        return None

    def _assigned(self, body: Scope, name: str, rest: Sequence[Base]) -> Binding | None:
        """Where the methods of a class define an attribute. A base that has it defines it instead.

        What is assigned after an object was made may be an attribute of a base that nobody can look into.
        """
        above = self._above(rest, name)
        if above is not None:
            return above
        first = self._first(body.attributes[name])
        known = all(isinstance(each, Binding) or each in EMPTY for each in rest)
        return first if known or _method(first) in _MAKERS else None

    def _above(self, order: Sequence[Base], name: str) -> Binding | None:
        for each in order:
            if isinstance(each, Binding):
                body = self._inner(each)
                if name in body.bindings:
                    return next(iter(scopes.meant(body.bindings[name])), None)
                if name in body.attributes:
                    return self._assigned(body, name, order[order.index(each) + 1 :])
        return None

    @staticmethod
    def _first(found: Sequence[Binding]) -> Binding:
        return min(found, key=lambda each: (_method(each) not in _MAKERS, each.line, each.column))

    def _linear(self, what: Binding) -> Sequence[Base]:
        """The C3 linearisation, in which every base stands before its own bases."""
        node = what.node
        assert isinstance(node, ast.ClassDef)
        said = [each.value if isinstance(each, ast.Subscript) else each for each in node.bases]
        bases = [self._base(each, what.scope) for each in said]
        if any(each is None for each in bases):
            # The first ones can be trusted as far as nobody unknown stands before them.
            known = bases[: bases.index(None)]
            return (what, *(self.order(known[0]) if known and isinstance(known[0], Binding) else ()), None)
        rows = [list(self.order(each)) if isinstance(each, Binding) else [each] for each in bases]
        rows.append(list(bases))
        merged: list[Base] = [what]
        while rows := [row for row in rows if row]:
            heads = (row[0] for row in rows)
            head = next((each for each in heads if all(each not in row[1:] for row in rows)), None)
            merged.append(head)
            if head is None:
                return merged
            for row in rows:
                if row[0] == head:
                    del row[0]
        return merged


_MAKERS = ("__init__", "__new__", "setUp")


def _method(found: Binding) -> str:
    return getattr(found.scope.node, "name", "")


def decorators(what: Binding) -> Mapping[str, ast.expr]:
    """The last words of the decorators of a definition: `property` of `@functools.cached_property` none."""
    node = what.node
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {}
    found = {}
    for each in node.decorator_list:
        called = each.func if isinstance(each, ast.Call) else each
        word = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        found[word] = each
    return found


def own(scope: Scope, node: ast.AST | None = None) -> Known | None:
    """What the first parameter of a method is, or what `Self` means in a class."""
    around: Scope | None = scope
    while around and around.kind != "class":
        around = around.parent
    if around is None or around.parent is None or not isinstance(around.node, ast.ClassDef):
        return None
    bindings = around.parent.bindings.get(around.node.name, ())
    own = next((each for each in bindings if each.node is around.node), None)
    if own is None:
        return None
    names = {getattr(each, "id", "") for each in getattr(node, "decorator_list", ())}
    made = names & {"classmethod"} or getattr(node, "name", "") in ("__new__", "__init_subclass__")
    return Class(own) if made else Instance(own)


# Decorators that leave what a call gives as it is annotated.
HARMLESS = frozenset(
    {
        "staticmethod",
        "classmethod",
        "property",
        "cached_property",
        "abstractmethod",
        "override",
        "final",
        "cache",
        "lru_cache",
        "contextmanager",
        "wraps",
        "no_grad",
    }
)
