r"""# Restoring autocast

> A recomputation runs after the block of `torch.autocast` has ended, so the settings
> are captured and restored.

A forward pass usually runs inside `with torch.autocast(...)`, and the backward pass
after it. So a recomputation in the backward pass finds autocast off, and would compute
in FP32 what the forward pass computed in BF16. The gradient would then belong to
slightly different activations, and the recomputed activations would take twice the
memory.

Therefore a checkpoint captures these settings before the first run and restores them
for the second:

| setting | set for | what goes wrong without it |
|---|---|---|
| enabled | each type of device | the second run computes in another dtype |
| dtype | each type of device | BF16 becomes FP16, or the reverse |
| whether casts are kept | the thread | the gradient differs in its last bits |
| how many blocks surround the function | the thread | the gradient differs in its last bits |

The third setting is the cache of casts. With the cache, a weight that is used twice is
cast once, and the gradients of both uses are added in 16 bits. Without the cache the
weight is cast twice, and the gradients are added in FP32. PyTorch clears the cache when
the outermost block of `torch.autocast` ends. In the second run a block inside the
function must not become the outermost one. So a checkpoint counts the blocks that
surround the function.

[This book's autocast](autocast.py) has settings of its own, and they are captured in
the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shardbook.foundations.torch_private import tree_is_leaf, tree_leaves
from shardbook.parameters.norms import rules_in_force
from shardbook.precision.autocast import current
from shardbook.precision.autocast import restored as casting_restored
from shardbook.precision.casting import Setting

__all__ = ["AmbientAutocast", "capture_autocast", "device_types"]


@dataclass(frozen=True, slots=True)
class AmbientAutocast:
    """The settings of autocast at one moment.

    :param settings: for each type of device whether autocast is enabled, and its dtype
    :param keeps_casts: whether a weight that was cast once is kept in its new dtype
    :param depth: how many blocks of `torch.autocast` are open
    :param own: the settings of [this book's autocast](autocast.py#current)
    :param rules: gives a block in which [norms and losses](norms.py#rules_in_force) of
        a sharded model are computed as they were
    """

    settings: dict[str, tuple[bool, torch.dtype]]
    keeps_casts: bool
    depth: int
    own: dict[str, Setting]
    rules: Callable[[], AbstractContextManager[None]]

    @contextmanager
    def restored(self) -> Iterator[None]:
        """A block with these settings. At its end the settings from before the block
        come back, even if the block raises.
        """
        surrounding = capture_autocast(self.settings)
        # This book's autocast is a function mode, which runs Python code at each
        # operation. If its settings already agree, no mode is entered.
        differs = self.own != surrounding.own
        try:
            with casting_restored(self.own) if differs else nullcontext(), self.rules():
                self.set()
                yield
        finally:
            surrounding.set()

    def set(self) -> None:
        """Make these settings those of the current thread.

        The cache of casts is cleared both on the way into the block and on the way out.
        The cache finds a cast by the weight alone, so on the way in it could return a
        cast to another dtype. On the way out it holds casts from the recomputation's
        graph, and would keep their memory after the backward pass.
        """
        torch.clear_autocast_cache()
        for device_type, (enabled, dtype) in self.settings.items():
            torch.set_autocast_enabled(device_type, enabled)
            torch.set_autocast_dtype(device_type, dtype)
        torch.set_autocast_cache_enabled(self.keeps_casts)
        depth = torch.autocast_increment_nesting()
        while depth > self.depth:
            depth = torch.autocast_decrement_nesting()
        while depth < self.depth:
            depth = torch.autocast_increment_nesting()


def capture_autocast(types: Iterable[str] = ()) -> AmbientAutocast:
    """Capture the current settings for the CPU, for this machine's accelerator, and for
    other types of devices.

    A function may move its arguments from the CPU to the accelerator, so the
    accelerator's settings are captured even if all arguments are on the CPU. Reading a
    setting initialises no device.

    :param types: more types of devices, such as `"cuda"`; types without autocast are
        skipped

    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     ambient = capture_autocast()
    >>> with ambient.restored():
    ...     torch.mm(torch.ones(1, 1), torch.ones(1, 1)).dtype
    torch.bfloat16
    """
    accelerator = torch.accelerator.current_accelerator()
    found = dict.fromkeys(["cpu", *([accelerator.type] if accelerator else []), *types])
    settings = {
        device_type: (
            torch.is_autocast_enabled(device_type),
            torch.get_autocast_dtype(device_type),
        )
        for device_type in found
        if torch.amp.is_autocast_available(device_type)
    }
    keeps_casts = torch.is_autocast_cache_enabled()
    # PyTorch returns the depth only from the functions that change it.
    torch.autocast_increment_nesting()
    depth = torch.autocast_decrement_nesting()
    return AmbientAutocast(settings, keeps_casts, depth, current(), rules_in_force())


def device_types(*args: Any) -> set[str]:
    """The types of the devices that hold the tensors among some arguments."""
    types = set()
    for value in args:
        if isinstance(value, Tensor):
            types.add(value.device.type)
        elif not tree_is_leaf(value):
            types |= device_types(*tree_leaves(value))
    return types
