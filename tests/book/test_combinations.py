"""All techniques at once: each combination trains like one plain model, bit for bit.

The reference knows nothing of ours. It is one process with FP32 masters and a low copy of them, `torch`'s own
scaler, and no checkpoints. A stage, a way of checkpointing, and offload change where numbers stand and when
they are computed, and not one bit of them. So all are held against one reference, on the same two ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import ranks
from book.masters import fill_masters, low_copy
from book.reference import STAGES, assert_same_gradients, assert_same_values
from book.toys import VOCABULARY, batch, error, optimizer_for
from tiers import rows

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
CHECKPOINTING = ("none", "reentrant", "non-reentrant")
STEPS = 3
# In FP16 the first gradients overflow, so the first step is skipped; with the next factor they fit.
SCALE = {"init_scale": 2.0**100, "backoff_factor": 2.0**-90, "growth_interval": 1}


def model(frozen: bool, seed: int = 0) -> nn.Sequential:
    """A chain with dropout in its blocks, so that a recomputation with other random numbers would show."""
    torch.manual_seed(seed)
    layers = nn.Sequential(
        nn.Embedding(VOCABULARY, 8),
        nn.Sequential(nn.Linear(8, 13), nn.GELU(), nn.Dropout(0.2), nn.Linear(13, 8)),
        nn.LayerNorm(8),
        nn.Sequential(nn.Linear(8, 5, bias=False), nn.GELU(), nn.Dropout(0.2), nn.Linear(5, 8)),
        nn.Linear(8, VOCABULARY),
    )
    if frozen:
        layers[1][0].requires_grad_(False)
        layers[2].requires_grad_(False)
    return layers


def loss_of(model: nn.Module, rank: int, step: int, factor: float = 1.0) -> Tensor:
    """The loss of a rank, in FP32, with the random numbers of that rank and step."""
    torch.manual_seed(100 * step + rank)
    return error(lambda tokens: model(tokens).float(), batch(rank, step)) * factor


def variants(precision: str, frozen: bool) -> Iterator[tuple[str, nn.Module]]:
    """Every combination that has to give the numbers of one reference, with its name."""
    from shardbook import Policy, checkpoint_module, shard

    for stage, checkpointing, offload in product(STAGES, CHECKPOINTING, (False, True)):
        made = model(frozen, seed=dist.get_rank())
        if checkpointing != "none":
            checkpoint_module(
                made, units=lambda name, _: name in ("1", "3"), use_reentrant=checkpointing == "reentrant"
            )
        dtype = None if precision == "fp32" else DTYPES[precision]
        policy = Policy(param_dtype=dtype, output_dtype=dtype and torch.float32, offload=offload)
        yield f"{stage=} {checkpointing} {offload=}", shard(made, stage=stage, policy=policy)


def walk(precision: str, frozen: bool) -> dict[str, Any]:
    from shardbook import ShardedGradScaler

    scaling = precision == "fp16"
    plain, sharded = model(frozen), dict(variants(precision, frozen))
    low = partial(low_copy, dtype=DTYPES[precision])
    oracle = torch.amp.GradScaler("cpu", **SCALE, enabled=scaling)
    scalers = {name: ShardedGradScaler(**SCALE, enabled=scaling) for name in sharded}
    optimizer = optimizer_for("adamw", plain.parameters())
    optimizers = {name: optimizer_for("adamw", each.parameters()) for name, each in sharded.items()}
    factors = []
    for step in range(STEPS):
        factors.append(oracle.get_scale())
        oracle.scale(torch.zeros(()))  # what tells torch's scaler that it is in use
        losses = fill_masters(plain, [[step]], low, loss=partial(loss_of, factor=factors[-1]))
        for name, each in sharded.items():
            loss = scalers[name].scale(loss_of(each, dist.get_rank(), step))
            loss.backward()
            assert loss.item() == losses[0][dist.get_rank()][0], name
            if all(
                parameter.grad.isfinite().all() for parameter in plain.parameters() if parameter.requires_grad
            ):
                same(name, each, plain, assert_same_gradients)
            scalers[name].step(optimizers[name])
            scalers[name].update()
            optimizers[name].zero_grad()
        oracle.step(optimizer)
        oracle.update()
        optimizer.zero_grad()
        assert {scaler.get_scale() for scaler in scalers.values()} == {oracle.get_scale()}
    for name, each in sharded.items():
        same(name, each, plain, assert_same_values)
    return {"factors": factors, "variants": list(sharded)}


def finite(model: nn.Module) -> bool:
    """Whether no gradient is infinite or NaN: a NaN is not even equal to itself."""
    return all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)


def same(name: str, each: nn.Module, plain: nn.Module, compare: Any) -> None:
    try:
        compare(each, plain)
    except AssertionError as difference:
        raise AssertionError(f"{name}: {difference}") from None


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize("frozen", rows([False, True], now=[True]), ids=["all", "frozen"])
@pytest.mark.parametrize("precision", rows(DTYPES, now=["bf16"]))
def test_every_combination_trains_like_one_plain_model(precision: str, frozen: bool) -> None:
    for told in ranks.run(2, walk, precision, frozen, timeout=200):
        assert len(told["variants"]) == len(STAGES) * len(CHECKPOINTING) * 2
        # The scaler of the oracle has skipped a step and taken others, or had nothing to do.
        assert told["factors"] == ([2.0**100, 2.0**10, 2.0**11] if precision == "fp16" else [1.0] * STEPS)
