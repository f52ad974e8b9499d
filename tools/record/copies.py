"""The copies of a unit's parameters and gradients at each moment of a step: where, and in which dtype."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from tools.record.frame import ranks
from torch import Tensor, nn

from shardbook import Policy, shard
from shardbook.foundations.collectives import ledger
from shardbook.foundations.hook_context import observers
from shardbook.zero import offload
from shardbook.zero.offload import host_memory
from shardbook.zero.scheduler import scheduler_of
from shardbook.zero.unit import Unit

RANKS, STAGE, WIDTH = 2, 3, 64
POLICIES = {
    "fp32": Policy(),
    "bf16": Policy(param_dtype=torch.bfloat16),
    "bf16, sent in fp32": Policy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
    "bf16, offloaded": Policy(param_dtype=torch.bfloat16, offload=True),
}


def record() -> Any:
    """For each policy the moments of rank 0, and the bytes that it sends and moves for the whole model."""
    found = ranks(RANKS, on_a_rank)[0]
    return {"world_size": RANKS, "stage": STAGE, "parameters_of_the_unit": WIDTH * WIDTH, "policies": found}


def on_a_rank() -> Any:
    """One model after the other."""
    return {name: under(policy) for name, policy in POLICIES.items()}


def under(policy: Policy) -> Any:
    """Two steps under a policy, the second one watched at its middle unit."""
    torch.manual_seed(0)
    with pytest.MonkeyPatch.context() as patch:
        on_host = OnHost(patch)
        model = shard(
            nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3)]),
            stage=STAGE,
            policy=policy,
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
        inputs = torch.randn(4, WIDTH)

        def backward() -> None:
            model(inputs).float().pow(2).mean().backward()

        backward()
        optimizer.step()
        optimizer.zero_grad()
        unit = list(scheduler_of(model).units)[1]
        watch = Copies(unit, optimizer, on_host)
        observers.append(watch)
        with ledger() as book:
            watch.note("between steps")
            backward()
            watch.note("before the optimizer")
            optimizer.step()
            watch.note("after the optimizer")
            optimizer.zero_grad()
        observers.remove(watch)
    return {"moments": watch.moments, "sent": book.sent, "moved": book.moved}


class OnHost:
    """Knows which memory the library has taken on the host.

    On a CPU both sides are one memory. But on every device the library takes what is on the host through one
    function.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.storages: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
        patch.setattr(offload, "host_memory", self.take)

    def take(self, *args: Any, **kwargs: Any) -> Tensor:
        """Memory on the host."""
        memory = host_memory(*args, **kwargs)
        self.storages.add(memory.untyped_storage())
        return memory

    def place(self, tensor: Tensor) -> str:
        """Where a tensor is."""
        return "host" if tensor.untyped_storage() in self.storages else "device"


class Copies:
    """Lists the copies that exist whenever the unit has acted."""

    def __init__(self, unit: Unit, optimizer: torch.optim.Optimizer, on_host: OnHost) -> None:
        self.unit, self.optimizer, self.on_host = unit, optimizer, on_host
        (self.flat,) = unit.flats
        self.moments: list[dict[str, Any]] = []
        self.flat.after_gradient(0, lambda _: self.note("gradient"))

    def begins(self, act: str, about: Any) -> None:
        """Nothing has changed yet."""

    def ends(self, act: str, about: Any) -> None:
        """A unit has acted."""
        if about == self.unit.name:
            self.note(act)

    def note(self, moment: str) -> None:
        """Write down what there is now."""
        flat, (parameter,) = self.flat, self.flat.parameters
        state = self.optimizer.state[parameter]
        copies = [
            self.copy("masters", flat.shard),
            self.copy("whole", flat.full),
            self.copy("gradients, collected", flat.grad_full),
            self.copy("gradients, on their way", flat.sending),
            # PyTorch wants a gradient where its parameter is, and the optimizer makes its moments there.
            self.copy("mean gradient", parameter.grad, beside=flat.shard),
            self.copy("moment 1", state["exp_avg"], beside=flat.shard),
            self.copy("moment 2", state["exp_avg_sq"], beside=flat.shard),
        ]
        self.moments.append({"moment": moment, "copies": [copy for copy in copies if copy]})

    def copy(self, name: str, tensor: Tensor | None, beside: Tensor | None = None) -> dict[str, Any] | None:
        """One copy, if it has memory."""
        if tensor is None or not tensor.untyped_storage().nbytes():
            return None
        return {
            "name": name,
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "elements": tensor.numel(),
            "bytes": tensor.nbytes,
            "place": self.on_host.place(tensor if beside is None else beside),
        }
