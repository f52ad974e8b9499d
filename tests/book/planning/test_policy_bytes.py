"""The bytes that a policy stores, sends and moves: formulas against real ranks and against 64 pretended."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

import ranks
from book.live import FakeStorages, LiveStorages
from shardbook.foundations.collectives import ledger
from shardbook.models import gpt
from shardbook.models.gpt import Config
from shardbook.planning import planner
from shardbook.planning.forecast import Setup, forecast
from shardbook.planning.planner import Own
from shardbook.zero.model import shard
from shardbook.zero.policy import Policy
from shardbook.zero.scheduler import scheduler_of
from tiers import rows

pytestmark = pytest.mark.full

BF16, FP32 = torch.bfloat16, torch.float32
POLICIES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "narrow wire": {"reduce_dtype": BF16},
    "bf16": {"param_dtype": BF16},
    "bf16, wide wire": {"param_dtype": BF16, "reduce_dtype": FP32},
    "all in bf16": {"param_dtype": BF16, "fp32_modules": ()},
    "offload": {"offload": True},
    "bf16, offload": {"param_dtype": BF16, "offload": True},
    "bf16, wide wire, offload": {"param_dtype": BF16, "reduce_dtype": FP32, "offload": True},
}
SMALL = Config(layers=3, width=24, heads=2, context=8, vocabulary=19)
BILLIONS = Config(layers=32, width=4416, heads=32, context=1024)


def counted(config: Config, stage: int, options: dict[str, Any], *, fake: bool = False) -> dict[str, int]:
    """What is stored and sent in a second step, all of it by counting."""
    torch.manual_seed(0)
    with FakeStorages() if fake else LiveStorages() as storages:
        model = shard(gpt.GPT(config), stage=stage, policy=Policy(**options))
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        for _ in range(2):
            with ledger() as book:
                before = storages.bytes()
                tokens = torch.zeros(1, config.context, dtype=torch.long)
                gpt.loss(model(tokens), tokens).backward()
                del tokens
                gradients = storages.bytes() - before
                optimizer.step()
                optimizer.zero_grad()
        flats = [flat for unit in scheduler_of(model).units for flat in unit.flats]
        device = {f.full.untyped_storage()._cdata: f.full.untyped_storage().nbytes() for f in flats}
        return {
            "stored": storages.bytes(),
            "whole": sum(device.values()),
            "gradients": gradients,
            "sent": book.total,
            "moved": sum(book.moved.values()),
        }


def assert_as_planned(
    config: Config, world_size: int, stage: int, options: dict[str, Any], found: Any
) -> None:
    policy = Policy(**options)
    layouts = planner.layouts_of(config, world_size, policy)
    own = planner.own_bytes(layouts, stage, "adamw", policy=policy)
    assert own.sent == found["sent"]
    assert (own.moved or 0) == found["moved"]
    masters = 4 * sum(layout.shard_numel if stage else layout.padded for layout in layouts)
    if policy.offload:
        assert own.parameters == found["whole"]
        # The gradients are there only in a step.
        assert own.host is not None
        assert own.steady + own.host - masters == found["stored"]
    else:
        assert own.steady == found["stored"]
    # After the backward pass the means are there, in the masters' dtype.
    assert found["gradients"] == masters
    predicted = forecast(Setup(config, world_size, 1, stage=stage, policy=policy), rank=0)
    assert sum(predicted.steady.values()) == found["stored"]
    assert (predicted.sent, predicted.moved) == (found["sent"], found["moved"])
    assert predicted.host == ((own.host or 0) - masters if policy.offload else 0)
    assert_by_hand(own, layouts, stage, policy)


def assert_by_hand(own: Own, layouts: Any, stage: int, policy: Policy) -> None:
    """The main terms once more without the planner: 12 bytes for each parameter in FP32, and the copies."""
    if policy.param_dtype != BF16 or policy.fp32_modules:
        return
    numel, n = sum(layout.numel for layout in layouts), layouts[0].world_size
    copies = 0 if stage == 3 else 2
    split = 12 / (n if stage else 1)
    assert own.steady == pytest.approx((copies + split) * numel, rel=0.05)


def count_all(config: Config, options: dict[str, Any]) -> list[dict[str, int]]:
    return [counted(config, stage, options) for stage in range(4)]


@pytest.mark.cases(ci=1)
@pytest.mark.parametrize("world_size", rows([2, 3], now=[2]))
@pytest.mark.parametrize("name", rows(POLICIES, now=["all in bf16", "bf16, wide wire, offload"]))
def test_the_planners_bytes_are_those_of_real_ranks(world_size: int, name: str) -> None:
    found = ranks.run(world_size, count_all, SMALL, POLICIES[name])[0]
    for stage, figures in enumerate(found):
        assert_as_planned(SMALL, world_size, stage, POLICIES[name], figures)


def count_at_scale(stage: int, options: dict[str, Any]) -> dict[str, int]:
    dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=64)
    with FakeTensorMode():
        return counted(BILLIONS, stage, options, fake=True)


@pytest.mark.nightly
def test_at_scale_a_rank_stores_what_the_formula_says() -> None:
    options = {**POLICIES["all in bf16"], "reduce_dtype": FP32}
    (found,) = ranks.run(1, count_at_scale, 3, options, timeout=240)
    assert_as_planned(BILLIONS, 64, 3, options, found)
    numel = gpt.parameters(BILLIONS)
    assert found["stored"] == pytest.approx(12 * numel / 64, rel=1e-4)
    # Twice 2 bytes to gather each number, and 4 for its gradient.
    assert found["sent"] == pytest.approx(8 * numel * 63 / 64, rel=1e-4)


def count_off_gloo() -> dict[tuple[str, int], dict[str, int]]:
    dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    with FakeTensorMode():
        cases = ("all in bf16", 0), ("bf16, offload", 0), ("bf16, offload", 3)
        return {(name, stage): counted(SMALL, stage, POLICIES[name], fake=True) for name, stage in cases}


@pytest.mark.nightly
def test_off_gloo_as_many_bytes_travel() -> None:
    (found,) = ranks.run(1, count_off_gloo)
    for (name, stage), figures in found.items():
        policy = Policy(**POLICIES[name])
        layouts = planner.layouts_of(SMALL, 4, policy)
        own = planner.own_bytes(layouts, stage, "adamw", policy=policy)
        assert any(policy.sends_in(each.computes_in).itemsize == 2 for each in layouts), name
        assert figures["sent"] == own.sent, (name, stage)
        assert figures["moved"] == (own.moved or 0), (name, stage)
