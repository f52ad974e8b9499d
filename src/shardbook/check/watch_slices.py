r"""# Checking code that uses slices

> The check detects calls that see only this rank's slice of a parameter or gradient,
> such as PyTorch's clipping.

In stages 1 to 3 a parameter is this rank's slice. Suppose a gradient is $(3, 4)$, and
each of 2 ranks has one element. Its norm is 5, but `p.grad.norm()` returns 3 on rank 0
and 4 on rank 1. Most operations that need the whole parameter [are
refused](access.py). Reading a slice cannot be refused, because an optimizer has to read
it, too. So the check watches these calls:

| call | what happens | weight |
|---|---|---|
| `torch.nn.utils.clip_grad_norm_`, `get_total_norm` | each rank clips by another norm | error |
| `torch.amp.GradScaler.step` | each rank looks for an overflow in its part | error |
| a write through `.data` in `with whole(model):` | the write is lost | error |
| `p.grad.norm()`, `torch.linalg.vector_norm(p.grad)` | the norm of this rank's part, as in SAM | warning |
| `p.norm()`, `p.sum()` of a parameter, under `no_grad` | the norm or sum of this rank's slice | warning |
| `p.dim()`, `p.shape`, `p.numel()` | the slice's shape; groups by shape and counts go wrong | warning |
| `p.grad` between two backward passes in `no_sync` | gradients that wait are not in it | warning |

Warnings are given only for calls that your program makes itself. Libraries read shapes
for many harmless reasons.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from shardbook.check.watch_gradients import digest
from shardbook.check.watches import Watch, called_by_user, is_sliced, place
from shardbook.foundations.torch_private import as_plain, no_modes, tree_leaves
from shardbook.zero.access import Guarded, place_of
from shardbook.zero.flat import owner_of
from shardbook.zero.hooks import Hooks

__all__ = ["Slices"]

LOOKS = {"dim", "ndim", "ndimension", "shape", "size", "numel", "nelement"}
REDUCES = {"norm", "sum", "mean", "std", "var", "vector_norm", "prod", "nansum"}


class Slices(Watch):
    """Checks the calls in the table."""

    def patches(self) -> Sequence[Any]:
        """Wrap each of these functions, so that its arguments are checked first."""
        asked: list[tuple[Any, str, Callable[..., None]]] = [
            (torch.nn.utils, "clip_grad_norm_", self.clips),
            (torch.nn.utils.clip_grad, "clip_grad_norm_", self.clips),
            (torch.nn.utils, "get_total_norm", self.clips),
            (torch.nn.utils, "clip_grads_with_norm_", self.clips),
            (torch, "norm", self.norms),
            (torch.linalg, "norm", self.norms),
            (torch.linalg, "vector_norm", self.norms),
            (Tensor, "norm", self.norms),
        ]
        # The package has a function of the same name as this module.
        whole = importlib.import_module("shardbook.training.whole")
        scaler = torch.amp.GradScaler
        return [
            *(
                patch.object(at, name, before(getattr(at, name), ask))
                for at, name, ask in asked
            ),
            patch.object(scaler, "step", before(scaler.step, self.scales)),
            patch.object(whole, "end", before(whole.end, self.leaves)),
            patch.object(
                Guarded, "__torch_function__", self.guarded(Guarded.__torch_function__)
            ),
        ]

    def clips(self, given: Any, *rest: Any) -> None:
        """Report PyTorch's clipping if it gets slices or their gradients."""
        given = [given] if isinstance(given, Tensor) else [*given]
        if any(map(is_sliced, given)) or self.has_gradients(given):
            self.found.add(
                "error",
                "local-norm",
                "PyTorch's clipping sees only this rank's part of each gradient, "
                "so each rank scales by another factor",
                "call shardbook.clip_grad_norm_(model, max_norm)",
                place(),
            )

    def scales(self, scaler: Any, optimizer: Any, *rest: Any) -> None:
        """Report a scaler that does not exchange overflows between ranks."""
        if scaler.is_enabled() and any(
            is_sliced(p) for group in optimizer.param_groups for p in group["params"]
        ):
            self.found.add(
                "error",
                "local-scaler",
                "torch.amp.GradScaler looks for an overflow in this rank's part only, "
                "so one rank may skip a step that the others take",
                "use shardbook.ShardedGradScaler()",
                place(),
            )

    def leaves(self, hooks: Hooks) -> None:
        """At the end of a block `with whole(model):`, report a write that will be lost."""
        for flat in hooks.unit.flats:
            if (
                not flat.sliced
                or not flat.full.untyped_storage().nbytes()
                or hooks.unit.pins > 1
            ):
                continue
            kept, shown = flat.shard, flat.full[flat.place_of_shard]
            # The bits are compared, because NaN is not equal to itself.
            if digest([kept.to(shown.dtype)]) != digest([shown]):
                self.found.add(
                    "error",
                    "lost-write",
                    f"a parameter of {hooks.unit.name} was written to in with whole(model):, "
                    "and the write is lost",
                    "set values by load_state_dict()",
                    place(),
                )

    def norms(self, given: Any, *rest: Any) -> None:
        """Warn of a norm of a slice or of its gradient."""
        for value in tree_leaves(given):
            self.looks("norm", value)
        if not self.found.has("gradient-norm") and self.has_gradients(
            tree_leaves(given)
        ):
            self.warn(
                "gradient-norm",
                "the norm of p.grad is that of this rank's part",
                'shardbook.clip_grad_norm_(model, float("inf")) returns the norm and changes nothing; '
                "a SAM-like optimizer needs stage=0",
            )

    def has_gradients(self, given: Iterable[Any]) -> bool:
        """Whether one of these tensors is the gradient of a slice, or a view of one."""
        places = {
            p.grad.data_ptr()
            for _, p, _ in self.run.parameters()
            if is_sliced(p) and p.grad is not None
        }
        return any(
            isinstance(t, Tensor) and t.data_ptr() in places - {0} for t in given
        )

    def guarded(self, original: Callable[..., Any]) -> classmethod[Any, Any, Any]:
        """Wrap what PyTorch calls for each operation on a slice, to check the operation first."""

        def call(
            cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            name = getattr(func, "__name__", "")
            if name == "__get__":
                name = func.__self__.__name__
            if args and (name in LOOKS or name in REDUCES or name == "grad"):
                with no_modes(), as_plain():
                    self.looks(name, args[0])
            return original(func, types, args, kwargs)

        return classmethod(call)

    def looks(self, name: str, value: Any) -> None:
        """Warn of code that reads the shape, norm or gradient of a slice."""
        if not is_sliced(value):
            return
        whole = place_of(value)
        if name == "grad":
            flat = owner_of(value)
            if flat is not None and flat.waits:
                self.warn(
                    "early-gradient",
                    f"the gradient of {whole.name} was read while a part of it waits in no_sync()",
                    "read it after a backward pass outside of no_sync()",
                )
        elif name in REDUCES:
            self.warn(
                "slice-norm",
                f"{name}() of {whole.name} is that of this rank's slice",
                "compute it before shard(), or in with whole(model):",
            )
        elif name in ("dim", "ndim", "ndimension"):
            if len(whole.shape) != 1 and not whole.uncut:
                self.warn(
                    "slice-shape",
                    f"{name} of {whole.name} is 1, that of a slice; the parameter has {len(whole.shape)}",
                    "ask before shard(): parameter groups by shape are made there",
                )
        elif whole.shape != value.shape:
            self.warn(
                "slice-shape",
                f"{name} of {whole.name} is that of this rank's slice",
                "ask before shard(), or in with whole(model):",
            )

    def warn(self, kind: str, what: str, todo: str) -> None:
        """Add a warning, at most once for each line of the user's program."""
        line = called_by_user()
        if line is not None and not any(
            f.where == line and f.kind == kind for f in self.found.made
        ):
            self.found.add("warning", kind, what, todo, line)


def before(
    function: Callable[..., Any], ask: Callable[..., None]
) -> Callable[..., Any]:
    """Wrap a function, so that `ask` is called with the same arguments first."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        # A generator can be read only once, so it is read into a list for both.
        args = tuple([*each] if isinstance(each, Iterator) else each for each in args)
        with no_modes(), as_plain(), torch.no_grad():
            ask(*args, *kwargs.values())
        return function(*args, **kwargs)

    return call
