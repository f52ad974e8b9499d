"""Other wrappers around a sharded model, or inside of one: refused at once, in one sentence, on all ranks."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DataParallel, DistributedDataParallel

import ranks
from book.toys import assert_equal, batch, chain, error
from shardbook import shard

pytestmark = pytest.mark.full

AFTER = (
    "{} is sharded, so {} cannot exchange it once more; use the model that shard returned without a wrapper, "
    "with stage=0 for what DistributedDataParallel does"
)
JIT = (
    "rank 0: {} was compiled by torch.jit, and its code cannot be given other parameters; shard the plain "
    "module, and compile a plain one with the trained state_dict()"
)
COMPOSABLE = "fully_shard, replicate or FullyShardedDataParallel"


def saying(act: Callable[[], Any]) -> str:
    """What `act` is refused with."""
    with pytest.raises((RuntimeError, ValueError)) as caught:
        act()
    return str(caught.value)


class Outer(nn.Module):
    """A module around another."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x)
        return y


class Own(DistributedDataParallel):
    """A class that somebody has derived."""


def after_shard() -> dict[str, str]:
    from torch.distributed._composable.replicate import replicate
    from torch.distributed._composable.replicate_with_fsdp import replicate as replicate_with_fsdp

    said = {}
    for stage in range(4):
        model = shard(chain(), stage=stage)
        expected = {name: value.clone() for name, value in model.state_dict().items()}
        said[f"ddp {stage}"] = saying(lambda model=model: DistributedDataParallel(model))
        said[f"derived {stage}"] = saying(lambda model=model: Own(model))
        said[f"ddp around {stage}"] = saying(lambda model=model: DistributedDataParallel(Outer(model)))
        said[f"ddp part {stage}"] = saying(lambda model=model: DistributedDataParallel(model[1]))
        said[f"dp {stage}"] = saying(lambda model=model: DataParallel(model))
        said[f"fsdp1 {stage}"] = saying(
            lambda model=model: FullyShardedDataParallel(model, device_id=torch.device("cpu"))
        )
        said[f"fully_shard {stage}"] = saying(lambda model=model: fully_shard(model))
        said[f"fully_shard around {stage}"] = saying(lambda model=model: fully_shard(Outer(model)))
        said[f"fully_shard part {stage}"] = saying(lambda model=model: fully_shard(model[1]))
        said[f"replicate {stage}"] = saying(lambda model=model: replicate(model))
        said[f"replicate with fsdp {stage}"] = saying(lambda model=model: replicate_with_fsdp(model))
        # What was refused has left no trace: the model is as it was, and trains.
        assert_equal(dict(model.state_dict()), expected)
        error(model, batch(dist.get_rank(), 0)).backward()
    return said


def test_no_wrapper_goes_around_a_sharded_model() -> None:
    kinds = {"ddp": "DistributedDataParallel", "derived": "DistributedDataParallel", "dp": "DataParallel"}
    for said in ranks.run(2, after_shard):
        for way, sentence in said.items():
            kind, _, rest = way.partition(" ")
            prefix = "inner." if "around" in rest else ""
            # The composable functions ask the sharded module itself, which knows its name in the model.
            name = f"{prefix if kind in kinds else ''}0.weight"
            if rest.startswith("part") and kind not in kinds:
                name = "1.0.weight"
            assert sentence == AFTER.format(name, kinds.get(kind, COMPOSABLE)), way


def before_shard() -> dict[str, str]:
    said = {}
    said["ddp"] = saying(lambda: shard(DistributedDataParallel(chain())))
    said["ddp inside"] = saying(lambda: shard(Outer(DistributedDataParallel(chain()))))
    said["dp"] = saying(lambda: shard(DataParallel(chain())))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted, traced = torch.jit.script(chain()), torch.jit.trace(chain(), batch(0, 0)[0])
        harmless = torch.jit.script(nn.Tanh())
    said["scripted"] = saying(lambda: shard(scripted))
    said["traced inside"] = saying(lambda: shard(Outer(traced)))
    trained = shard(nn.Sequential(chain(), harmless), units=nn.Linear)
    error(trained, batch(dist.get_rank(), 0)).backward()
    cut = chain()
    fully_shard(cut[1])
    said["fully_shard inside"] = saying(lambda: shard(cut))
    whole = fully_shard(chain())
    said["fully_shard"] = saying(lambda: shard(whole))
    said["inside of fully_shard"] = saying(lambda: shard(whole[1]))
    # A model that was sharded inside of a wrapper cannot be called by the wrapper, but without it.
    held = DistributedDataParallel(Outer(chain()))
    said["inside of ddp"] = saying(lambda: shard(held.module.inner))
    outer = DataParallel(Outer(chain()))
    inner = shard(outer.module.inner, units=nn.Sequential)
    said["called"] = saying(lambda: outer(batch(0, 0)[0]))
    error(inner, batch(dist.get_rank(), 0)).backward()
    return said


def test_what_another_wrapper_holds_is_not_sharded() -> None:
    for said in ranks.run(2, before_shard):
        plain = "{} is a {}; shard the plain model instead, with no other wrapper around it"
        assert said == {
            "ddp": "rank 0: " + plain.format("the model", "DistributedDataParallel"),
            "ddp inside": "rank 0: " + plain.format("inner", "DistributedDataParallel"),
            "dp": "rank 0: " + plain.format("the model", "DataParallel"),
            "fully_shard inside": "rank 0: " + plain.format("1", "FSDPModule"),
            "fully_shard": "rank 0: " + plain.format("the model", "FSDPModule"),
            "inside of fully_shard": "rank 0: 0.weight is a DTensor, so something else has distributed it "
            "already; shard the plain model instead, without fully_shard or a parallel plan",
            "inside of ddp": "rank 0: the node that accumulates the gradient of 0.weight is in use, and "
            "hooks on it would never be called; drop it, or the result that was computed before sharding, "
            "and step inside the backward pass by step_in_backward()",
            "called": AFTER.format("0.weight", "DataParallel"),
            "scripted": JIT.format("the model"),
            "traced inside": JIT.format("inner"),
        }
