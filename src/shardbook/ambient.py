r"""# The ambient autocast

> Autocast is a setting of the thread, and a recomputation runs when the setting has changed.

A forward pass usually runs inside of `with torch.autocast(...)`, and the backward pass
after it. So a recomputation in the backward pass finds autocast off. It would compute
in FP32 what the forward pass computed in BF16. The gradient would then be that of
slightly other activations, and the memory that autocast was to save would be taken
after all.

So the settings are captured with the first run and restored for the second:

| setting | of | what goes wrong without it |
|---|---|---|
| enabled | each type of device | the second run computes in another dtype |
| dtype | each type of device | BF16 becomes FP16, or the reverse |
| keep casts | all | the gradient has other last bits |

The third setting is the cache of casts. With it, a weight that is used twice is cast
once, and the gradients of both uses are added in 16 bits; without it they are added in
FP32.

[This book's autocast](autocast.py) has settings of its own, for which the same holds.
They are captured, too.
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from shardbook.autocast import current
from shardbook.autocast import restored as casting_restored
from shardbook.casting import Setting
from shardbook.norms import rules_in_force

__all__ = ["AmbientAutocast", "capture_autocast", "device_types"]
# sidelit: show


@dataclass(frozen=True, slots=True)
class AmbientAutocast:
    """The settings of autocast at one moment.

    :param settings: for each type of device whether autocast is enabled, and its dtype
    :param keeps_casts: whether a weight that was cast once is kept in its new dtype
    :param own: the settings of [this book's autocast](autocast.py#current)
    :param rules: gives a block in which [norms and losses](norms.py#rules_in_force) of a
        sharded model are computed as they were
    """

    settings: dict[str, tuple[bool, torch.dtype]]
    keeps_casts: bool
    own: dict[str, Setting]
    rules: Callable[[], AbstractContextManager[None]]

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Inside of the block the settings are these; after it they are what they were
        before the block, also if it raises.
        """
        surrounding = capture_autocast(self.settings)
        # Its function mode would be asked at every operation, so it stays away if there
        # is nothing to restore.
        differs = self.own != surrounding.own
        try:
            self.set()
            with casting_restored(self.own) if differs else nullcontext(), self.rules():
                yield
        finally:
            surrounding.set()

    def set(self) -> None:
        """Make these the settings of this thread.

        The casts that were kept until now go. On the way in they may have another
        dtype, since they are found by the weight alone. On the way out they belong to
        the graph of the recomputation, and would keep memory after its backward pass.
        """
        torch.clear_autocast_cache()
        for device_type, (enabled, dtype) in self.settings.items():
            torch.set_autocast_enabled(device_type, enabled)
            torch.set_autocast_dtype(device_type, dtype)
        torch.set_autocast_cache_enabled(self.keeps_casts)


def capture_autocast(types: Iterable[str] = ()) -> AmbientAutocast:
    """The present settings for the CPU, for this machine's accelerator, and for other
    types of devices.

    A function may move its arguments from the CPU to the accelerator. So that one is
    captured in any case. To read a setting initialises no device.

    :param types: as `"cuda"`; types for which there is no autocast are passed over

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
    return AmbientAutocast(settings, keeps_casts, current(), rules_in_force())


def device_types(*args: Any) -> set[str]:
    """The types of the devices that hold the tensors among some arguments."""
    return {
        value.device.type for value in tree_leaves(args) if isinstance(value, Tensor)
    }
