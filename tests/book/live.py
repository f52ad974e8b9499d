"""Every storage that an operation of torch has made and that is still alive, and its size now.

Python's garbage collector does not know what autograd saves, so the operations themselves are watched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from shardbook.planning.forecast import wait_for_gloo


class LiveStorages(TorchDispatchMode):
    """Inside the block, `bytes()` is the sum over all storages seen by any operation in it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, StorageWeakRef] = {}

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves((args, kwargs, result)):
            if isinstance(value, Tensor):
                self.note(value)
        return result

    def note(self, tensor: Tensor) -> None:
        """Count this tensor's storage, too."""
        storage = tensor.untyped_storage()
        self.seen[storage._cdata] = StorageWeakRef(storage)

    def bytes(self) -> int:
        """The bytes that all live storages hold now."""
        total = 0
        for reference in self.seen.values():
            if not reference.expired():
                storage = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)  # type: ignore[attr-defined]
                total += storage.nbytes() if storage is not None else 0
        return total

    def settled(self) -> int:
        """The same, once gloo's threads have let go of their tensors."""
        wait_for_gloo()
        return self.bytes()


class FakeStorages(LiveStorages):
    """The storages of fake tensors. Behind a number that it is given, PyTorch also keeps a real tensor."""

    def note(self, tensor: Tensor) -> None:
        if isinstance(tensor, FakeTensor):
            super().note(tensor)
