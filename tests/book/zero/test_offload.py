"""Masters on the host: the same bits as without, and the bytes that cross between host and device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import init_device_mesh

import ranks
from book.reference import STAGES, second_step, storages
from book.toys import assert_equal, batch, chain, error, optimizer_for, whole_gradients
from shardbook.zero.policy import Policy
from shardbook.zero.scheduler import scheduler_of
from tiers import rows

BF16 = torch.bfloat16
FORMATS: list[dict[str, Any]] = [
    {},
    {"param_dtype": BF16},
    {"param_dtype": BF16, "reduce_dtype": torch.float32, "fp32_modules": (), "fp32_norms": ()},
]


# --- the same bits ---

Step = Callable[[nn.Module, torch.optim.Optimizer, int], None]


def plainly(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    error(model, batch(dist.get_rank(), step)).backward()


def accumulating(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Two micro-batches that are exchanged as one, then one that is exchanged by itself."""
    from shardbook import no_sync

    with no_sync(model):
        plainly(model, optimizer, 10 * step)
    plainly(model, optimizer, 10 * step + 1)
    plainly(model, optimizer, 10 * step + 2)


def clipping(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    from shardbook import clip_grad_norm_, clip_grad_value_

    plainly(model, optimizer, step)
    assert clip_grad_norm_(model, 0.1) > 0
    clip_grad_value_(model, 0.01)


def tied() -> nn.Module:
    model = chain()
    model[4].weight = model[0].weight
    return model


def frozen() -> nn.Module:
    model = chain()
    for parameter in model[1].parameters():
        parameter.requires_grad_(False)
    return model


def on_meta() -> nn.Module:
    torch.manual_seed(3)
    with torch.device("meta"):
        return nn.Sequential(
            nn.Embedding(16, 8), nn.Sequential(nn.Linear(8, 13), nn.LayerNorm(13)), nn.Linear(13, 16)
        )


def training(
    build: Callable[[], nn.Module], step: Step, policy: Policy, stage: int, mesh: Any
) -> dict[str, torch.Tensor]:
    """Gradients and values of some steps, as a program finds them."""
    from shardbook import shard

    model = shard(build(), stage=stage, policy=policy, mesh=mesh)
    optimizer = optimizer_for("adamw", model.parameters())
    found = {}
    for number in range(2):
        step(model, optimizer, number)
        for name, gradient in whole_gradients(model).items():
            found[f"{name} in step {number}"] = gradient
        optimizer.step()
        optimizer.zero_grad()
    state = model.state_dict()
    model.load_state_dict({name: value * 2 for name, value in state.items()})
    found.update(model.state_dict())
    return found


WAYS: list[tuple[Callable[[], nn.Module], Step]] = [
    (chain, plainly),
    (tied, accumulating),
    (frozen, clipping),
    (on_meta, plainly),
]


def same_bits(repeated: bool) -> None:
    mesh = None
    if repeated:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    for (build, step), (index, formats) in zip(WAYS, [*enumerate(FORMATS), (1, FORMATS[1])], strict=True):
        for stage in STAGES[1:] if repeated else STAGES:
            with_offload, without = (
                training(build, step, Policy(**formats, offload=offload), stage, mesh)
                for offload in (True, False)
            )
            assert_equal(with_offload, without)
        assert index < len(FORMATS)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("world_size", "repeated"), rows([(2, False), (3, False), (4, True)], now=[(2, False)])
)
def test_training_gives_the_same_bits_as_without(world_size: int, repeated: bool) -> None:
    ranks.run(world_size, same_bits, repeated, timeout=150)


def fused_steps() -> None:
    """Each rank reads the same batch, so the mean over the ranks is the gradient of one."""
    from shardbook import shard

    for stage in STAGES:
        found = []
        for sharded in (False, True):
            model = chain()
            if sharded:
                shard(model, stage=stage, policy=Policy(offload=True))
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
            for number in range(3):
                error(model, batch(0, number)).backward()
                optimizer.step()
                optimizer.zero_grad()
            found.append(dict(model.state_dict()))
        assert_equal(*found)


@pytest.mark.full
def test_the_fused_optimizer_trains_masters_on_the_host_as_it_trains_a_plain_model() -> None:
    ranks.run(2, fused_steps)


def steps_in_backward() -> None:
    from shardbook import shard, step_in_backward

    for stage in STAGES:
        found = []
        for offload in (True, False):
            model = shard(chain(), stage=stage, policy=Policy(param_dtype=BF16, offload=offload))
            step_in_backward(model, partial(torch.optim.AdamW, lr=1e-2))
            for number in range(3):
                error(model, batch(dist.get_rank(), number)).backward()
            found.append(dict(model.state_dict()))
        assert_equal(*found)


@pytest.mark.nightly
def test_steps_in_the_backward_pass_give_the_same_bits() -> None:
    ranks.run(2, steps_in_backward, timeout=120)


# --- what moves, and what is where ---


def moved_in_a_step(formats: dict[str, Any]) -> list[tuple[dict[str, int], dict[str, int], dict[str, int]]]:
    from shardbook import shard
    from shardbook.foundations.collectives import ledger

    policy, found = Policy(**formats, offload=True), []
    for stage in STAGES:
        model = shard(chain(), stage=stage, policy=policy)
        book = second_step(model, "adamw")
        # The same without offload: what goes to the network has not changed.
        other = shard(chain(), stage=stage, policy=Policy(**formats))
        error(other, batch(0, 0)).backward()
        with ledger() as plain:
            error(other, batch(0, 1)).backward()
        assert plain.sent == book.sent
        assert plain.moved == {}
        layouts = [flat.layout for unit in scheduler_of(model).units for flat in unit.flats]
        kept = [layout.shard_numel if stage else layout.padded for layout in layouts]
        vectors = {
            "parameters to the device": sum(
                numel * layout.computes_in.itemsize for numel, layout in zip(kept, layouts, strict=True)
            ),
            "gradients to the host": sum(
                numel * policy.sends_in(layout.computes_in).itemsize
                for numel, layout in zip(kept, layouts, strict=True)
            ),
        }
        found.append((book.moved, vectors, book.sent))
    return found


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize("formats", FORMATS, ids=["fp32", "bf16", "wide wire"])
def test_each_rank_moves_its_own_part_in_the_format_in_which_it_is_used(formats: dict[str, Any]) -> None:
    for found in ranks.run(2, moved_in_a_step, formats):
        for stage, (moved, vectors, _) in zip(STAGES, found, strict=True):
            gathers = 2 if stage == 3 else 1
            name = "parameters to the device"
            assert moved == {**vectors, name: gathers * vectors[name]}


def where_things_are() -> list[dict[str, int]]:
    from shardbook import shard

    found = []
    for stage in STAGES:
        model = shard(chain(), stage=stage, policy=Policy(param_dtype=BF16, offload=True))
        optimizer = optimizer_for("adamw", model.parameters())
        error(model, batch(dist.get_rank(), 0)).backward()
        units = list(scheduler_of(model).units)
        flats = [flat for unit in units for flat in unit.flats]
        device = {flat.full.untyped_storage()._cdata for flat in flats}
        for parameter in model.parameters():
            assert parameter.untyped_storage()._cdata not in device
            assert parameter.grad is not None
            assert parameter.grad.dtype == parameter.dtype == torch.float32
        optimizer.step()
        found.append(
            {
                "masters": storages(model.parameters()),
                "device": storages(flat.full for flat in flats),
                "padded": sum(flat.layout.padded for flat in flats),
                "low": sum(flat.layout.padded * flat.layout.computes_in.itemsize for flat in flats),
            }
        )
    return found


def test_the_device_holds_only_what_is_computed_with() -> None:
    for found in ranks.run(2, where_things_are):
        for stage, stored in zip(STAGES, found, strict=True):
            assert stored["masters"] == 4 * stored["padded"] // (2 if stage else 1)
            assert stored["device"] == (0 if stage == 3 else stored["low"])
