"""Checkpoints inside of sharded units and around them: the same numbers, how many gathers each costs, and
what is stored meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import ranks
from book.live import LiveStorages
from book.reference import STAGES, assert_same_gradients, assert_train_alike, fill_gradients, padded_bytes
from book.toys import assert_equal, features, plain_gradients, reference_step, whole_gradients
from tiers import rows

WIDTH, UNITS, WORLD = 6, 4, 2
Checkpoint = Callable[..., Any]
VARIANTS = ("reentrant", "saved")


def variant(name: str) -> Checkpoint:
    from shardbook.checkpointing.reentrant import checkpoint_reentrant
    from shardbook.checkpointing.saved_tensors import checkpoint_saved

    return {"reentrant": checkpoint_reentrant, "saved": checkpoint_saved}[name]


def plainly(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


class Block(nn.Module):
    """A unit that may compute a part of itself again."""

    def __init__(self, again: Checkpoint) -> None:
        super().__init__()
        self.first, self.second, self.again = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), again

    def body(self, x: Tensor) -> Tensor:
        return torch.tanh(self.second(nn.functional.dropout(torch.tanh(self.first(x)), 0.2)))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.again(self.body, x)  # type: ignore[no-any-return]


class Model(nn.Module):
    """Four units, with a checkpoint inside of each, or around some."""

    def __init__(self, how: str, again: Checkpoint) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how, self.again = how, again
        self.blocks = nn.ModuleList(Block(again if how == "inside" else plainly) for _ in range(UNITS))

    def part(self, start: int, stop: int, x: Tensor) -> Tensor:
        for block in self.blocks[start:stop]:
            x = block(x)
        return x

    def each(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = self.again(block, x)
        return x

    def nest(self, x: Tensor) -> Tensor:
        x = self.again(partial(self.part, 1, 3), self.blocks[0](x))
        return self.blocks[3](x)  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        match self.how:
            case "each":
                return self.each(x)
            case "pairs":
                return self.again(partial(self.part, 2, 4), self.again(partial(self.part, 0, 2), x))  # type: ignore[no-any-return]
            case "all":
                return self.again(partial(self.part, 0, 4), x)  # type: ignore[no-any-return]
            case "nested":
                return self.again(self.nest, x)  # type: ignore[no-any-return]
            case "nested each":
                return self.again(self.each, x)  # type: ignore[no-any-return]
        return self.part(0, UNITS, x)


# In stage 3, how often a unit is gathered in a step, summed over the four units. Without a checkpoint it is
# twice each. A second run of a unit's forward pass is one more gather, unless the unit is whole already.
GATHERS = {
    "plain": {"reentrant": 8, "saved": 8},
    "inside": {"reentrant": 8, "saved": 8},
    "each": {"reentrant": 12, "saved": 8},
    "pairs": {"reentrant": 12, "saved": 10},
    "all": {"reentrant": 12, "saved": 11},
    "nested": {"reentrant": 14, "saved": 12},
    "nested each": {"reentrant": 16, "saved": 11},
}
ORDERS = ("inside", "each", "pairs", "all", "nested")


def loss(model: nn.Module, rank: int, number: int) -> Tensor:
    torch.manual_seed(100 * number + rank)
    x = torch.randn(3, WIDTH, requires_grad=True)
    out: Tensor = model(x).square().mean()
    return out


def train(stage: int) -> None:
    from shardbook import shard

    models = [
        shard(Model(how, variant(name)), stage=stage, units=Block) for name in VARIANTS for how in ORDERS
    ]
    assert_train_alike(Model("plain", plainly), models, loss=loss, steps=2)


@pytest.mark.nightly
@pytest.mark.parametrize("stage", rows(STAGES, now=[2, 3]))
def test_losses_gradients_and_values_are_those_of_plain_training_to_the_bit(stage: int) -> None:
    ranks.run(WORLD, train, stage)


Sent = list[dict[str, int]]


def sent(stage: int, prefetch: int) -> dict[tuple[str, str], tuple[int, list[tuple[int, int]]]]:
    """The bytes of all units together, and for each of three steps the gathers and the bytes they sent."""
    from shardbook import shard
    from shardbook.foundations.collectives import ledger

    found = {}
    for how in GATHERS:
        for name in VARIANTS:
            model = shard(Model(how, variant(name)), stage=stage, units=Block, prefetch=prefetch)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            steps = []
            for step in range(3):
                with ledger() as book:
                    loss(model, dist.get_rank(), step).backward()
                calls = [call.sent for call in book.calls if call.collective == "all-gather"]
                steps.append((len(calls), sum(calls)))
                optimizer.step()
                optimizer.zero_grad()
            found[how, name] = padded_bytes(model), steps
    return found


@pytest.mark.nightly
def test_each_order_costs_in_stage_3_what_the_chapter_says() -> None:
    for found in ranks.run(WORLD, sent, 3, 0):
        for (how, name), (size, steps) in found.items():
            gathers = GATHERS[how][name]
            # A rank sends half of a unit to one other, in each of the gathers.
            assert steps == [(gathers, gathers * size // UNITS // WORLD)] * 3, (how, name)


@pytest.mark.nightly
def test_gathering_ahead_gathers_as_often() -> None:
    for found in ranks.run(WORLD, sent, 3, 1):
        counts = {key: {count for count, _ in steps} for key, (_, steps) in found.items()}
        assert counts == {(how, name): {GATHERS[how][name]} for how in GATHERS for name in VARIANTS}


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize("stage", rows([0, 1, 2], now=[2]))
def test_in_the_other_stages_a_checkpoint_costs_no_gather(stage: int) -> None:
    for found in ranks.run(WORLD, sent, stage, 1):
        for (how, name), (_, steps) in found.items():
            plain = found["plain", name][1]
            # In stage 0 what is gathered are means, of small units together or not.
            costs = [sent for _, sent in steps] if stage == 0 else steps
            assert costs == ([sent for _, sent in plain] if stage == 0 else plain), (how, name)


WIDE, LAYERS = 64, 8


class Checkpointed(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = checkpoint(layer, x, use_reentrant=False)
        return x


def checkpoint_each_layer() -> None:
    """Checkpointed layer by layer, each unit is gathered twice a step, and two units are whole at most."""
    from shardbook import shard
    from shardbook.foundations.collectives import ledger

    model = shard(Checkpointed(*[nn.Linear(WIDE, WIDE) for _ in range(LAYERS)]))
    unit = (WIDE * WIDE + WIDE) * 4
    stored: list[int] = []
    with LiveStorages() as live, ledger() as book:
        for parameter in model.parameters():
            live.note(parameter)
        x = torch.ones(1, WIDE, requires_grad=True)
        y = model(x)
        x.register_hook(lambda _: stored.append(live.bytes()))
        y.sum().backward()
    assert sum(call.collective == "all-gather" for call in book.calls) == 2 * LAYERS
    # Shards, means, two units whole, two vectors of gradients, what an exchange receives, activations.
    assert stored[0] <= LAYERS * unit + 5 * unit


def test_recomputation_gathers_nothing_in_vain() -> None:
    ranks.run(WORLD, checkpoint_each_layer)


class Segments(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        half = len(self) // 2
        for part in (self[:half], self[half:]):
            x = checkpoint(nn.Sequential.forward, part, x, use_reentrant=False)
        return x


def checkpoint_two_segments() -> None:
    from shardbook import shard

    def build() -> nn.Module:
        torch.manual_seed(0)
        return Segments(*[nn.Linear(WIDE, WIDE) for _ in range(LAYERS)])

    plain, model = build(), shard(build())
    unit = (WIDE * WIDE + WIDE) * 4
    stored: list[int] = []
    rank = dist.get_rank()
    reference_step(
        plain,
        [[lambda other=other: plain(features(other, WIDE)).square().sum() for other in range(2)]],  # type: ignore[misc]
    )
    with LiveStorages() as live:
        for parameter in model.parameters():
            live.note(parameter)
        x = features(rank, WIDE).requires_grad_()
        y = model(x)
        x.register_hook(lambda _: stored.append(live.bytes()))
        y.square().sum().backward()
    assert stored[0] <= LAYERS * unit + 5 * unit
    assert_equal(whole_gradients(model), plain_gradients(plain))


def test_gradients_leave_while_a_checkpointed_segment_runs_backward() -> None:
    ranks.run(WORLD, checkpoint_two_segments)


class Boom(Exception):
    pass


class Fragile(nn.Linear):
    """Fails where a backward pass runs it again, as often as it is told to."""

    fails = 0

    def forward(self, x: Tensor) -> Tensor:
        from shardbook.foundations.hook_context import in_backward

        if self.fails and in_backward():
            self.fails -= 1
            raise Boom
        return super().forward(x)


def fail_and_go_on(stage: int, name: str) -> None:
    from shardbook import shard

    def build(again: Checkpoint) -> nn.Module:
        model = Model("all", again)
        model.blocks[1].second = Fragile(WIDTH, WIDTH)
        return model

    model = shard(build(variant(name)), stage=stage, units=Block)
    plain = build(plainly)
    plain.load_state_dict(model.state_dict())
    fragile: Any = model.blocks[1]  # type: ignore[index]
    fragile.second.fails = 1
    state = loss(model, dist.get_rank(), 0)
    before = torch.get_rng_state()
    with pytest.raises(Boom):
        state.backward()
    assert torch.equal(torch.get_rng_state(), before)
    model.zero_grad()
    fill_gradients(plain, [[[partial(loss, plain, rank, 0)] for rank in range(WORLD)]])
    loss(model, dist.get_rank(), 0).backward()
    assert_same_gradients(model, plain)


@pytest.mark.cases(now=1, ci=1)
@pytest.mark.parametrize("name", VARIANTS)
def test_a_second_run_that_fails_leaves_the_next_step_as_it_should_be(name: str) -> None:
    for stage in (0, 3):
        ranks.run(WORLD, fail_and_go_on, stage, name)
