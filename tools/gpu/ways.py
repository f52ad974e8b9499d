"""The ways to train a model that `speed.py` compares: the library's, and PyTorch's own.

The models compute in BF16; masters, mean gradients and AdamW's moments are in FP32. The library and FSDP2 do
that with their policies, and both send gradients in BF16. DDP and the plain model do it with autocast. The
library computes norms in FP32, and FSDP2 does not. So one way is the library without its tables of norms.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from shardbook import Policy, checkpoint_module, shard
from shardbook.models import gpt

BF16 = torch.bfloat16
Parallel = tuple[nn.Module, torch.optim.Optimizer]


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """The same optimizer for all."""
    return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def ours(model: gpt.GPT, low: torch.dtype | None, *, compiled: bool = False, **options: Any) -> Parallel:
    """This library's stage 3."""
    wide = None if low is None else torch.float32
    shard(model, policy=Policy(param_dtype=low, output_dtype=wide, **options))
    if compiled:
        compile_blocks(model)
    return model, adamw(model)


def fsdp2(
    model: gpt.GPT,
    low: torch.dtype | None,
    *,
    tuned: bool = False,
    offload: bool = False,
    compiled: bool = False,
) -> Parallel:
    """PyTorch's sharding of the same units. Tuned, each unit names the next one in both directions."""
    place = next(model.parameters()).device
    # A mesh by default would have a group of its own on NCCL, if there is a GPU and the usual one is on gloo.
    world: Any = dist.group.WORLD
    mesh = DeviceMesh.from_group(world, place.type)
    policy = CPUOffloadPolicy(pin_memory=place.type == "cuda") if offload else OffloadPolicy()
    if compiled:
        compile_blocks(model)
    for part in model:
        precision = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=low)
        fully_shard(part, mesh=mesh, mp_policy=precision, offload_policy=policy)
    wide = None if low is None else torch.float32
    precision = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=low, output_dtype=wide)
    fully_shard(model, mesh=mesh, mp_policy=precision, offload_policy=policy)
    if tuned:
        for part, following in pairwise(each for each in model if isinstance(each, FSDPModule)):
            part.set_modules_to_forward_prefetch([following])
            following.set_modules_to_backward_prefetch([part])
    return model, adamw(model)


def megatron(model: gpt.GPT, low: torch.dtype | None) -> Parallel:
    """NVIDIA's sharding of the same units. It computes in the dtype of the model, and makes masters."""
    megatron_shard = import_module("megatron_fsdp").fully_shard
    if low is not None:
        model = model.to(low)
    units = [gpt.Embedding, gpt.Block, gpt.Head]
    sharded, optimizer = megatron_shard(module=model, optimizer=adamw(model), fsdp_unit_modules=units)
    return sharded, optimizer


def ddp(model: gpt.GPT, low: torch.dtype | None) -> Parallel:
    """Every rank holds everything."""
    wrapped = DistributedDataParallel(model)
    return wrapped, adamw(wrapped)


def plain(model: gpt.GPT, low: torch.dtype | None) -> Parallel:
    """One rank alone, without any library."""
    return model, adamw(model)


def our_checkpoint(model: gpt.GPT, low: torch.dtype | None) -> Parallel:
    """The plain model, with our checkpoint around each block."""
    return plain(checkpoint_module(model, gpt.Block), low)


def torch_checkpoint(model: gpt.GPT, low: torch.dtype | None) -> Parallel:
    """The plain model, with PyTorch's checkpoint around each block."""
    for block in model.blocks:
        again = partial(checkpoint, block.forward, use_reentrant=False)
        block.forward = again  # type: ignore[method-assign]
    return plain(model, low)


def compile_blocks(model: gpt.GPT) -> None:
    """Compile what each block computes."""
    from torch._inductor import config

    # A rank may have no pool of processes.
    config.compile_threads = 1
    for block in model.blocks:
        block.compile()


Make = Callable[[gpt.GPT, torch.dtype | None], Parallel]
# How each way is made, and whether it needs autocast to compute in BF16. Some differ by the title.
WAYS: dict[str, tuple[Make, bool]] = {
    "ours": (ours, False),
    "ours, norms in BF16": (partial(ours, fp32_modules=(), fp32_norms=()), False),
    "FSDP2": (fsdp2, False),
    "FSDP2 tuned": (partial(fsdp2, tuned=True), False),
    "Megatron-FSDP": (megatron, False),
    "DDP": (ddp, True),
    "plain": (plain, True),
    "checkpoint: ours": (our_checkpoint, True),
    "checkpoint: torch's": (torch_checkpoint, True),
    "checkpoint: none": (plain, True),
    "offload: ours": (partial(ours, offload=True), False),
    "offload: FSDP2": (partial(fsdp2, offload=True), False),
    "compiled: ours": (partial(ours, compiled=True), False),
    "compiled: FSDP2": (partial(fsdp2, compiled=True), False),
    "compiled: ours, not compiled": (ours, False),
}
