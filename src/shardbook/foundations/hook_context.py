r"""# The context of a hook

> A hook runs in the middle of a program, and must find out what else is under way.

The hooks of this library do not call the program; the program calls the hooks. At that
moment it may be in a backward pass, inside another call of the same module, or in a
compiler's trace. The arguments of a hook contain none of this. The functions of this
chapter find it out.

A hook must also mark its own work. Take [a policy of a checkpoint](selective.py), which
counts the operations of a function in its first run, and finds each of them again in
the second run. If the function calls a sharded unit, the unit's gather makes copies
between the operations. The second run may find the unit unsharded already and make no
copies. From there on each count would belong to another operation. So hooks mark the
time in which they work, and a policy ignores the operations of that time.

The last part of this chapter changes the tensors that go into a module or come out of
it.
"""

from __future__ import annotations

import threading
from collections import UserDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import fields, is_dataclass
from functools import cache
from types import BuiltinFunctionType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from shardbook.foundations.torch_private import (
    as_plain,
    graph_task,
    tree_flatten,
    tree_map_only,
    tree_unflatten,
)

__all__ = [
    "in_backward",
    "is_freed",
    "machinery",
    "machinery_at_work",
    "map_tensors",
    "not_compiled",
    "tensors_in",
]


@contextmanager
def machinery() -> Iterator[None]:
    """A block in which this thread does the library's own work.

    Blocks may nest. As a decorator, `machinery()` makes a whole method such a block.

    >>> with machinery():
    ...     machinery_at_work()
    True
    >>> machinery_at_work()
    False
    """
    before, here.at_work = here.at_work, True
    try:
        yield
    finally:
        here.at_work = before


def machinery_at_work() -> bool:
    """Whether this thread is in a block of [`machinery`](#machinery)."""
    return here.at_work


class Here(threading.local):
    """The state of one thread.

    While one thread gathers, another may run a function that is watched.
    """

    at_work = False


here = Here()


def in_backward() -> bool:
    """Whether this thread is inside a backward pass."""
    return graph_task() != -1


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor among the arguments or results of a module, each of them once.

    The search enters containers of all kinds and the attributes of objects, but no
    modules. If the search [overlooks a tensor](demand.py), its unit is gathered later
    than possible.

    >>> class Output:
    ...     def __init__(self, tensor):
    ...         self.states, self.itself = [{"last": tensor}], self
    >>> list(tensors_in((Output(torch.ones(1)), None)))
    [tensor([1.])]
    """
    seen: set[int] = set()
    waiting = [value]
    # An argument may refer to a whole program, such as a data set.
    while waiting and len(seen) < MOST:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            yield value
        else:
            waiting += [v for v in inside(value) if type(v) not in _PLAIN][::-1]


# sidelit: depth Containers of all kinds, objects without a dictionary, and whole programs.


def inside(value: Any) -> Iterable[Any]:
    """The elements of a container, or the attributes of an object."""
    kind = type(value)
    if kind is dict:
        return value.values()  # type: ignore[no-any-return]
    if kind is tuple or kind is list:
        return value  # type: ignore[no-any-return]
    if isinstance(value, (nn.Module, type, ModuleType)):
        return ()
    found = [getattr(value, name, None) for name in slots_of(kind)]  # type: ignore[arg-type]
    if isinstance(value, dict):
        found += value.values()
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        found += value
    return found + list(getattr(value, "__dict__", {}).values())


@cache
def slots_of(kind: type) -> tuple[str, ...]:
    """The attributes that the objects of a class hold outside a dictionary."""
    found: list[str] = []
    for one in kind.__mro__:
        slots = vars(one).get("__slots__", ())
        found += (slots,) if isinstance(slots, str) else slots
    return tuple(found)


MOST = 10_000


_PLAIN = {
    *(type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device),
    *(FunctionType, BuiltinFunctionType, type, ModuleType, torch.Size),
}

# sidelit: core


def map_tensors(
    change: Callable[[Tensor], Tensor], value: Any, *, opens: bool = False
) -> Any:
    """Change the tensors in lists, dictionaries, dataclasses and other containers.

    A container in which nothing changes remains the same object. A decoder writes into
    the cache that it gets as an argument, for example, and in a copy of the cache these
    values would be lost.

    >>> given = ([], [torch.ones(1)])
    >>> found = map_tensors(torch.neg, given)
    >>> found[1], found[0] is given[0]
    ([tensor([-1.])], True)

    :param opens: whether the attributes of the value itself are changed, too, if it is
        an object of any other class, as a model may return it. An object inside of
        another one stays, because it may be a cache.
    """
    # A compiler cannot compare the identity of two containers.
    if isinstance(value, Tensor) or torch.compiler.is_compiling():
        return tree_map_only(Tensor, change, value)
    # Only the outermost container is opened. The function below must not refer to it:
    # PyTorch holds that function in a reference cycle, which would keep the tensors
    # until the garbage collector runs.
    once = iter([False])
    children, structure = tree_flatten(value, is_leaf=lambda _: next(once, True))
    names = []
    if structure.is_leaf():
        names = attributes_of(value, opens)
        if not names:
            return value
        children = [getattr(value, name) for name in names]
    found = [map_tensors(change, child) for child in children]
    if all(new is old for new, old in zip(found, children, strict=True)):
        return value
    if not names:
        return tree_unflatten(found, structure)
    value = copy(value)
    for name, new in zip(names, found, strict=True):
        # A frozen dataclass can be changed in this way, too.
        object.__setattr__(value, name, new)
    return value


def attributes_of(value: Any, opens: bool) -> list[str]:
    """The attributes that hold the contents of an object; none if it stays as it is."""
    if isinstance(value, (nn.Module, type, ModuleType, FunctionType)):
        return []
    if isinstance(value, UserDict):
        return ["data"]
    if is_dataclass(value):
        return [f.name for f in fields(value) if hasattr(value, f.name)]
    if opens or isinstance(value, SimpleNamespace):
        return list(getattr(value, "__dict__", ()))
    return []


# sidelit: depth Programs that are compiled, and tensors whose memory was given back.


def not_compiled(hook: Callable[..., Any]) -> Callable[..., Any]:
    """A hook marked as the library's work, which `torch.compile` does not compile.

    With `fullgraph=True`, which allows no uncompiled part, the compiler raises an error
    with the reason.
    """

    def work(*args: Any, **kwargs: Any) -> Any:
        with machinery():
            return hook(*args, **kwargs)

    quiet: Callable[..., Any] = torch.compiler.disable(
        work,
        reason="a sharded unit gathers its parameters here; compile its units by "
        "themselves, as in unit.compile()",
    )
    return quiet


def is_freed(tensor: Tensor) -> bool:
    """Whether a tensor's memory has been freed while the tensor still exists."""
    kind = type(tensor)
    if kind not in (Tensor, nn.Parameter) and not hasattr(kind, "may_be_freed"):
        return False
    with as_plain():
        return (
            tensor.layout is torch.strided
            and tensor.numel() > 0
            and tensor.untyped_storage().nbytes() == 0
        )
