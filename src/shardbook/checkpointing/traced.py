r"""# Checkpoints inside compiled code

> Inside `torch.compile` a checkpoint becomes a mark in the graph, and the compiler
> recomputes the marked operations.

```python
checkpoint_module(model, units=Block)
for block in model.blocks:
    block.compile()
```

`torch.compile` records what a function computes as a graph, and compiles the graph. The
compiler could not record a checkpoint directly, because its second run begins in the
middle of a backward pass, where no graph is recorded. So PyTorch's compiler treats one
function specially, `torch.utils.checkpoint.checkpoint`. The operations inside it are
recorded with a mark that they are to be recomputed. When the compiler later cuts the
graph into a forward and a backward graph, it copies the marked operations into the
second.

Therefore a checkpoint of this library calls PyTorch's checkpoint while the compiler
records. Gradients and memory are then those of PyTorch's checkpoint:

| option | inside compiled code |
|---|---|
| `use_reentrant`, `early_stop`, `determinism_check="none"` | no effect: there is one graph |
| `preserve_rng_state` | always on |
| `policy`, `context_fn` | the operations that they name are not copied into the backward graph |
| `debug`, `determinism_check="debug"` | not recorded, because they look at each operation while it runs |

A function may contain something that cannot be recorded, such as a call of `print`.
Then nothing can be marked, the checkpoint runs as it does without the compiler, and no
part of the function is compiled. [A warning](#warn_if_compiling) says so. With
`fullgraph=True` the compiler raises an error instead.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from types import CodeType, FunctionType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch.utils.checkpoint import checkpoint as torch_checkpoint
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from shardbook.checkpointing.selective import (
    SavePolicy,
    contexts,
    policy_of,
    torch_policy,
)
from shardbook.foundations.rng import capture
from shardbook.foundations.torch_private import (
    compiler_at_work,
    compiler_is_loaded,
    skip_frame,
    traces_graph,
)
from shardbook.zero.scheduler import calls_from_outside

__all__ = [
    "compile_apart",
    "enters_graph",
    "not_a_beginning",
    "not_recorded",
    "warn_if_compiling",
]

# sidelit: hide
F = TypeVar("F", bound=Callable[..., Any])
# sidelit: show


def enters_graph(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    policy: SavePolicy | Collection[Any] | None,
    context_fn: Callable[[], Any] | None,
) -> Any:
    """Call PyTorch's checkpoint, while the compiler records.

    The arguments are handed over by position, so none of them is taken for an option.

    :param policy: the results to keep; `None` keeps nothing
    :param context_fn: makes the caller's context managers, used instead of a policy
    """
    count, names = len(args), tuple(kwargs)

    def call(*given: Any) -> Any:
        return function(*given[:count], **dict(zip(names, given[count:], strict=True)))

    return torch_checkpoint(
        call,
        *args,
        *kwargs.values(),
        use_reentrant=False,
        context_fn=context_fn or partial(blocks_of_graph, policy),
    )


def blocks_of_graph(policy: SavePolicy | Collection[Any] | None) -> tuple[Any, Any]:
    """Make the context managers in which the recorded operations run, one for each of
    the two runs.

    There are two cases. A compiler that cuts the graph into two runs the operations
    once for inspection, and reads what the policy returns from PyTorch's own context
    managers. A backend that does not cut the graph runs the recorded operations through
    PyTorch's checkpoint in each step, but does not restore the state of the generators.
    There, dropout would draw another mask in the second run. So these context managers
    restore that state.
    """
    if torch.compiler.is_compiling() or traces_graph():
        asked = None if policy is None else policy_of(policy)
        answers = partial(torch_policy, asked)
        found: tuple[Any, Any] = create_selective_checkpoint_contexts(answers)
        return found
    forward, again = contexts([] if policy is None else policy)
    accelerator = torch.accelerator.current_accelerator()
    random = capture(*([accelerator] if accelerator else []))
    return Together(forward), Together(again, random.restored)


# sidelit: depth Backends that do not cut the graph, and functions that cannot be recorded.


class Together:
    """Several blocks as one block that may be entered many times.

    It is a class, because the compiler sets an attribute on the block of the forward
    pass.

    :param blocks: blocks, or functions that return a new one
    """

    def __init__(self, *blocks: Any) -> None:
        self.blocks = blocks
        self.open = list[ExitStack]()

    def __enter__(self) -> None:
        stack = ExitStack()
        for block in self.blocks:
            give: AbstractContextManager[Any] = block() if callable(block) else block
            stack.enter_context(give)
        self.open.append(stack)

    def __exit__(self, *error: Any) -> None:
        self.open.pop().__exit__(*error)


def not_a_beginning(function: F) -> F:
    """Mark a function that the compiler records inside recorded code, but skips where
    the function is the first that the compiler reaches.

    Such a function takes one of two branches: the compiler's branch while it is
    recorded, the plain branch otherwise. If the compiler gives up the recording, the
    function is called plainly.
    """
    skip_frame(function, inside=False)
    return function


def not_recorded(function: F) -> F:
    """Mark a function that the compiler skips, with everything that it calls."""
    skip_frame(function, inside=True)
    return function


def compile_apart(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a caller for a function: the first function that the compiler reaches.

    The compiler stores its results with the code of the first function, and only a few
    versions for each code. If the `forward` of all classes were called from one line,
    they would compete for these versions. So each has a copy of the caller.

    :returns: `call(run, *args)`, which calls `run(*args)`
    """
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    # Nothing compiles before the compiler is loaded.
    if code is None or not compiler_is_loaded():
        return caller
    if code not in CALLERS:
        own = caller.__code__.replace(co_name=f"checkpointed_{code.co_name}")
        CALLERS[code] = FunctionType(own, caller.__globals__)
    return CALLERS[code]


def caller(run: Callable[..., Any], *args: Any) -> Any:
    return run(*args)


CALLERS: WeakKeyDictionary[CodeType, FunctionType] = WeakKeyDictionary()


@not_a_beginning
def warn_if_compiling(function: Callable[..., Any]) -> None:
    """Warn that a compiler at work does not compile this function."""
    # While the compiler is at work, it has installed a function that inspects each
    # frame.
    if compiler_at_work():
        name = getattr(function, "__qualname__", type(function).__qualname__)
        warnings.warn(
            f"{name} is checkpointed and could not be recorded by torch.compile as one "
            "graph, so nothing of it is compiled; find the reason with fullgraph=True, "
            "or checkpoint a function that is compiled by itself, as in "
            "checkpoint(torch.compile(block), x)",
            stacklevel=calls_from_outside(),
        )
