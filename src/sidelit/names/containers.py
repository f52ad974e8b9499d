"""# Containers

> What the containers of Python give when they are looped over, indexed and asked.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from sidelit.names.kinds import Instance, Known, Outside

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
