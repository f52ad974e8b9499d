r"""# Counting the stored bytes

> A meter adds up the memory of all live tensors after every operation.

Memory is easy to misjudge. Of the allocator's figures, `memory_reserved` includes its
cache and `memory_allocated` does not. The system's figures include the interpreter. And
none of them tells which tensor takes the memory. This meter counts *storages*, the
blocks of memory under the tensors. Two views of one storage count once. A storage that
was shrunk to nothing, such as [a unit's vector](flat.py) between its uses, counts
nothing.

```python
with Meter() as meter:
    step()
print(meter.peak, meter.now())
```

The meter is slow, so use it for one step and not for a whole run.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from shardbook.foundations.store_rounds import until
from shardbook.foundations.torch_private import (
    TorchDispatchMode,
    storage_id,
    tree_leaves,
)

__all__ = ["Meter"]


class Meter(TorchDispatchMode):
    """Counts the bytes of all live storages, on all devices except `meta`.

    The meter sees each operation below autograd. So it also sees the tensors to which
    only the graph refers. A sparse tensor has no storage of its own, and is left out.
    The book makes none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        # The key is the storage's address in C++. An entry goes when its storage does:
        # torch keeps a storage's Python object for as long as the storage is in use,
        # and weak references follow that object.
        self.storages: WeakValueDictionary[int, torch.UntypedStorage] = (
            WeakValueDictionary()
        )

    def __enter__(self) -> Meter:
        wait_for_gloo()
        # Tensors from before the step are stored even if the step does not use them.
        # `type` is used because `isinstance` reads the object's class, and for some
        # objects that raises a warning.
        gc.collect()
        for thing in gc.get_objects():
            if issubclass(type(thing), Tensor):
                self.see(thing)
        self.peak = self.now()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        wait_for_gloo()

    def __torch_dispatch__(
        self,
        operation: Callable[..., Any],
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        result = operation(*args, **(kwargs or {}))
        for value in tree_leaves((args, kwargs, result)):
            if isinstance(value, Tensor):
                self.see(value)
        self.peak = max(self.peak, self.now())
        return result

    def see(self, tensor: Tensor) -> None:
        """Record the storage under a tensor."""
        if tensor.layout is torch.strided and not tensor.is_meta:
            storage = tensor.untyped_storage()
            self.storages[storage_id(storage)] = storage

    def now(self) -> int:
        """The bytes of all storages that are alive, at their present sizes."""
        return sum(storage.nbytes() for storage in self.storages.values())

    def settled(self) -> int:
        """The same, when the exchanges before have let go of their tensors."""
        wait_for_gloo()
        return self.now()


# sidelit: depth What gloo still holds.


def wait_for_gloo() -> None:
    """Wait until gloo's threads have let go of the tensors that they have exchanged.

    Such a thread holds them for a moment after it has reported the end of the exchange,
    and on a busy machine the moment may be half a second. Then it sleeps. So this
    function waits until all other threads of the process sleep, for at most two
    seconds.
    """
    # A thread that sleeps may also wait for Python's lock, which reading a file gives
    # away. So each thread must be found asleep twice.
    until(lambda: others_sleep() and others_sleep(), timedelta(seconds=2))


def others_sleep() -> bool:
    """Whether no other thread of this process runs. Only Linux tells; elsewhere the answer is yes."""
    own = str(threading.get_native_id())
    states = Path("/proc/self/task").glob("*/stat")
    return not any(runs(each) for each in states if each.parent.name != own)


def runs(state: Path) -> bool:
    """Whether a thread runs or is ready to. One that has ended does not."""
    try:
        # The name of a thread stands before this, in parentheses.
        return state.read_text().rpartition(")")[2].split()[0] == "R"
    except OSError:
        return False
