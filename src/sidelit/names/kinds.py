"""# What a value is

> As much of its type as is needed to say what a dot after it means.

What is not known is `None`, and nothing follows from it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from sidelit.names import scopes
from sidelit.names.scopes import Binding, Scope


@dataclass(frozen=True, slots=True)
class Class:
    """A class itself: one of the project's, or one from outside by its dotted name."""

    what: Binding | str


@dataclass(frozen=True, slots=True)
class Instance:
    """An object of a class.

    :param parts: of a container, what it holds: keys and values of a `dict`, elements of the others; of a
        tuple, that of each place.
    :param fixed: whether it is a tuple with as many places as `parts`.
    """

    what: Binding | str
    parts: tuple[Known | None, ...] = ()
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the project; `receiver` is what it is called on."""

    what: Binding
    receiver: Known | None = None


@dataclass(frozen=True, slots=True)
class Outside:
    """A module, a function or a class from outside, by its dotted name; `receiver` is what a method is called
    on.
    """

    name: str
    receiver: Known | None = None


@dataclass(frozen=True, slots=True)
class Module:
    """A module of the project."""

    name: str


@dataclass(frozen=True, slots=True)
class Above:
    """What `super()` gives in a class: the classes above it, for an object or for a class."""

    what: Binding
    receiver: Known


@dataclass(frozen=True, slots=True)
class Either:
    """One of several."""

    kinds: tuple[Known, ...]


Known: TypeAlias = Class | Instance | Function | Outside | Module | Above | Either

NOTHING = Instance("builtins.None")


def either(kinds: Iterable[Known | None]) -> Known | None:
    """What a value is that is one of these. `None` is left out: who goes on with a dot has excluded it."""
    found: dict[Known, None] = {}
    for kind in kinds:
        if kind is None:
            return None
        for each in kind.kinds if isinstance(kind, Either) else (kind,):
            if each != NOTHING:
                found[each] = None
    if len(found) < 2:
        return next(iter(found), NOTHING)
    return Either(tuple(found))


# ## Containers
#
# > What the containers of Python give when they are looped over, indexed and asked.


# A function decorated as a context manager gives this; what it yields is its one part.
MANAGER = "contextlib.AbstractContextManager"

_ABC = "collections.abc"
_ONE = {
    *(f"builtins.{name}" for name in ("list", "set", "frozenset", "tuple", "generator", "enumerate")),
    "collections.deque",
    *(
        f"{_ABC}.{name}"
        for name in (
            *("Iterable", "Iterator", "Collection", "Sequence", "MutableSequence", "Set", "MutableSet"),
            *("Generator", "Reversible", "KeysView", "ValuesView", "ItemsView"),
        )
    ),
}
_MAPS = {
    "builtins.dict",
    "collections.defaultdict",
    "collections.OrderedDict",
    f"{_ABC}.Mapping",
    f"{_ABC}.MutableMapping",
}
_SEQUENCES = {
    "builtins.list",
    "builtins.tuple",
    f"{_ABC}.Sequence",
    f"{_ABC}.MutableSequence",
    "collections.deque",
}

_OF_TYPING = {
    **{name: f"builtins.{name.lower()}" for name in ("List", "Dict", "Set", "FrozenSet", "Tuple")},
    **{name.rpartition(".")[2]: name for name in (*_ONE, *_MAPS) if name.startswith(_ABC)},
    "AbstractSet": f"{_ABC}.Set",
    "Set": "builtins.set",
    "Deque": "collections.deque",
    "DefaultDict": "collections.defaultdict",
    "OrderedDict": "collections.OrderedDict",
    "Text": "builtins.str",
}

# Classes from outside that are written small, as functions are.
_SMALL = {
    *(
        f"builtins.{name}"
        for name in ("str", "bytes", "int", "float", "bool", "list", "set", "dict", "tuple")
    ),
    *("collections.deque", "collections.defaultdict", "torch.device", "builtins.bytearray"),
    *("builtins.frozenset", "builtins.memoryview", "builtins.complex"),
}


def canonical(word: str) -> str:
    """The container that a name of `typing` stands for; empty for the rest of `typing`."""
    return _OF_TYPING.get(word, "")


def each(whole: Instance) -> Known | None:
    """What a loop over a container gives."""
    if whole.fixed:
        return whole.parts[0] if len(set(whole.parts)) == 1 else None
    held = whole.what in _ONE or whole.what in _MAPS
    return whole.parts[0] if held and whole.parts else None


def place(whole: Instance, number: int) -> Known | None:
    """What stands at one place of what is taken apart."""
    if whole.fixed:
        return whole.parts[number] if -len(whole.parts) <= number < len(whole.parts) else None
    return each(whole)


def item(whole: Instance, index: ast.expr) -> Known | None:
    """What an index gives."""
    if isinstance(index, ast.Slice):
        return whole if whole.what in _SEQUENCES and not whole.fixed else None
    if whole.what in _MAPS:
        return whole.parts[1] if len(whole.parts) == 2 else None
    if whole.fixed:
        number = index
        negative = isinstance(number, ast.UnaryOp) and isinstance(number.op, ast.USub)
        value = number.operand if isinstance(number, ast.UnaryOp) else number
        if isinstance(value, ast.Constant) and isinstance(value.value, int):
            return place(whole, -value.value if negative else value.value)
        return each(whole)
    return each(whole) if whole.what in _SEQUENCES else None


def result(
    called: Outside, given: Sequence[Known | None], node: ast.Call, of: Callable[[Known | None], Known | None]
) -> Known | None:
    """What a call of something from outside gives; `of` says what a loop over a value gives."""
    module, _, word = called.name.rpartition(".")
    if isinstance(called.receiver, Instance):
        return _method(called.receiver, word, of)
    if called.receiver is not None:
        return None
    if module == "builtins" and word in _BUILT_IN:
        return _built_in(word, given, of)
    if called.name in _SMALL or (word[:1].isupper() and not word.isupper()):
        return Instance(called.name)
    return None


_BUILT_IN = frozenset(
    {"list", "tuple", "set", "frozenset", "sorted", "reversed", "iter", "next", "enumerate", "zip", "filter"}
)


def _built_in(
    word: str, given: Sequence[Known | None], of: Callable[[Known | None], Known | None]
) -> Known | None:
    held = [of(each) for each in given]
    first = held[0] if held else None
    if word == "next":
        return first if len(given) == 1 else None
    if word == "zip":
        return Instance("builtins.generator", (Instance("builtins.tuple", tuple(held), fixed=True),))
    if word == "enumerate":
        return Instance("builtins.enumerate", (_pair(Instance("builtins.int"), first),))
    if word == "filter":
        return Instance("builtins.generator", (held[1] if len(held) == 2 else None,))
    kind = {"sorted": "list", "reversed": "generator", "iter": "generator"}.get(word, word)
    return Instance(f"builtins.{kind}", (first,))


def _method(whole: Instance, word: str, of: Callable[[Known | None], Known | None]) -> Known | None:
    """What a method of a container gives."""
    if whole.what in _MAPS and len(whole.parts) == 2:
        key, value = whole.parts
        views = {"keys": key, "values": value, "items": _pair(key, value)}
        if word in views:
            return Instance(f"{_ABC}.Iterable", (views[word],))
        return value if word in ("get", "pop", "setdefault") else whole if word == "copy" else None
    if whole.what in _ONE and word in ("pop", "popleft", "__next__"):
        return of(whole)
    if whole.what == "builtins.str":
        lists = {"split", "rsplit", "splitlines"}
        text = Instance("builtins.str")
        return Instance("builtins.list", (text,)) if word in lists else text if word in _TEXT else None
    return whole if word == "copy" and whole.what in _ONE else None


_TEXT = frozenset(
    {
        *(
            "strip",
            "lstrip",
            "rstrip",
            "lower",
            "upper",
            "join",
            "replace",
            "format",
            "removeprefix",
            "removesuffix",
        ),
        *("title", "capitalize", "ljust", "rjust", "center", "zfill", "expandtabs", "casefold", "translate"),
    }
)


def _pair(first: Known | None, second: Known | None) -> Known:
    return Instance("builtins.tuple", (first, second), fixed=True)


# ## Attributes of a class
#
# > The class in which an attribute is found, in the order in which Python looks.
#
# An attribute is defined by the body of a class, or else by the first method that assigns it to `self`, with
# `__init__` before all others. A base that nobody can name ends the search: what is behind it might be
# hidden by it.


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
        return first if known or _name_of_method(first) in _MAKERS else None

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
        return min(found, key=lambda each: (_name_of_method(each) not in _MAKERS, each.line, each.column))

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


def _name_of_method(found: Binding) -> str:
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
