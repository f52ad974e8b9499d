"""The four stages do the same training, and differ in what is stored and what is sent."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import ranks
from book.live import LiveStorages
from book.reference import (
    STAGES,
    all_losses,
    assert_same_gradients,
    assert_same_values,
    assert_train_alike,
    compared_bytes,
    fill_gradients,
    padded_bytes,
    second_step,
    storages,
)
from book.toys import batch, chain, error, optimizer_for
from shardbook.foundations.torch_private import ALL_GATHER, REDUCE_SCATTER
from tiers import rows

STEPS = 3


def each_stage_trains_like(optimizer: str) -> None:
    from shardbook import shard

    # Other ranks start elsewhere: rank 0's values must win.
    models = [shard(chain(seed=dist.get_rank()), stage=stage) for stage in STAGES]
    assert_train_alike(chain(), models, optimizer=optimizer, steps=STEPS)


@pytest.mark.cases(now=1, ci=1)
@pytest.mark.parametrize("world_size", rows([1, 2, 3, 4], now=[1, 3]))
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_every_stage_trains_like_a_reference_that_sums_in_rank_order(world_size: int, optimizer: str) -> None:
    ranks.run(world_size, each_stage_trains_like, optimizer)


def each_stage_trains_like_ddp() -> None:
    from shardbook import shard

    for kind in ("sgd", "adamw"):
        plain = chain()
        models = [DistributedDataParallel(plain), *(shard(chain(), stage=stage) for stage in STAGES)]
        optimizers = [optimizer_for(kind, model.parameters()) for model in models]
        for step in range(STEPS):
            losses = [error(model, batch(dist.get_rank(), step)) for model in models]
            for loss in losses:
                loss.backward()
            assert len({loss.item() for loss in losses}) == 1
            for model in models[1:]:
                assert_same_gradients(model, plain)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        for model in models[1:]:
            assert_same_values(model, plain)


@pytest.mark.full
def test_at_two_ranks_every_stage_trains_like_ddp() -> None:
    ranks.run(2, each_stage_trains_like_ddp)


def save_each_stage(folder: str) -> None:
    from shardbook import shard

    for stage in STAGES:
        model = shard(chain(), stage=stage)
        optimizer = optimizer_for("adamw", model.parameters())
        error(model, batch(0, 0)).backward()
        optimizer.step()
        state = model.state_dict()
        if dist.get_rank() == 0:
            torch.save(state, f"{folder}/{stage}.pt")


def load_each_stage(folder: str) -> None:
    from shardbook import shard

    for saved_by in STAGES:
        state = torch.load(f"{folder}/{saved_by}.pt")
        plain = chain(seed=1)
        plain.load_state_dict(state)
        for stage in STAGES:
            model = shard(chain(seed=2), stage=stage)
            # What was gathered before the load must not be used after it.
            error(model, batch(0, 0))
            model.load_state_dict(state)
            assert_same_values(model, plain)
            assert error(model, batch(0, 0)).item() == error(plain, batch(0, 0)).item()


@pytest.mark.nightly
def test_what_one_stage_saves_every_stage_loads_at_another_world_size(tmp_path: Path) -> None:
    ranks.run(3, save_each_stage, str(tmp_path))
    ranks.run(2, load_each_stage, str(tmp_path))


def the_models_own_parameters() -> None:
    from shardbook import shard

    for stage in STAGES:
        plain = chain()
        own = {name: id(parameter) for name, parameter in plain.named_parameters()}

        def assert_own(model: nn.Module, expected: dict[str, int] = own) -> None:
            assert {name: id(parameter) for name, parameter in model.named_parameters()} == expected

        model = shard(plain, stage=stage)
        for _ in range(2):
            assert_own(model)
            loss = error(model, batch(0, 0))
            assert_own(model)
            loss.backward()
            assert_own(model)
            with torch.no_grad():
                error(model, batch(0, 1))
            assert_own(model)
            model.state_dict()
            assert_own(model)


def an_optimizer_built_between_forward_and_backward() -> None:
    from shardbook import shard

    plain = chain()
    models = [shard(chain(), stage=stage) for stage in STAGES]
    fill_gradients(plain, [all_losses(plain, [0])])
    optimizer_for("adamw", plain.parameters()).step()
    for model in models:
        loss = error(model, batch(dist.get_rank(), 0))
        optimizer = optimizer_for("adamw", model.parameters())
        loss.backward()
        optimizer.step()
        assert_same_values(model, plain)


def no_stale_weights() -> None:
    """Each kind of forward pass that has no backward pass, then a step, then the next forward pass."""
    from shardbook import shard

    rank = dist.get_rank()
    for stage in STAGES:
        plain, model = chain(), shard(chain(), stage=stage)
        optimizers = [optimizer_for("sgd", each.parameters()) for each in (plain, model)]
        for step, grad in enumerate([True, False, True, False]):
            fill_gradients(plain, [all_losses(plain, [step])])
            error(model, batch(rank, step)).backward()
            with torch.set_grad_enabled(grad):
                abandoned = error(model, batch(rank, 9))
                assert abandoned.item() == error(plain, batch(rank, 9)).item()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            with torch.set_grad_enabled(not grad):
                assert error(model, batch(rank, 8)).item() == error(plain, batch(rank, 8)).item()


def one_rank_steps_by_hand() -> None:
    """Only rank 1 changes its part: the others have not stepped, and must see it all the same."""
    from shardbook import shard

    for stage in STAGES[1:]:
        model = shard(nn.Sequential(nn.Linear(40, 40)), stage=stage)
        before = model(torch.ones(1, 40)).detach()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(float(dist.get_rank()))
        found = model(torch.ones(1, 40)).detach()
        assert not torch.equal(found, before)
        everyone = [torch.empty_like(found) for _ in range(2)]
        dist.all_gather(everyone, found)
        assert torch.equal(*everyone)


HABITS = [the_models_own_parameters, an_optimizer_built_between_forward_and_backward, no_stale_weights]


@pytest.mark.cases(now=1, ci=1)
@pytest.mark.parametrize("habit", [*HABITS, one_rank_steps_by_hand], ids=lambda habit: habit.__name__)
def test_in_every_stage(habit: Any) -> None:
    ranks.run(2, habit)


def earlier_traps(stage: int) -> None:
    """What the tests of the layer hold against stage 3, in another stage."""
    import shardbook
    from book import reference
    from book.zero import test_arguments_and_results, test_hooks, test_parameter_kinds

    shardbook.shard = partial(shardbook.shard, stage=stage)
    if stage == 0:
        # There the parameters keep their shapes.
        for module in (reference, test_hooks):
            module.assert_all_sharded = lambda model: None  # type: ignore[attr-defined]
    for case, arguments in test_hooks.CASES:
        case(*arguments)
    for case in (*test_arguments_and_results.CASES, *test_parameter_kinds.CASES):
        case()


@pytest.mark.nightly
@pytest.mark.parametrize("stage", rows([0, 1, 2], now=[2]))
def test_what_a_layer_of_stage_3_stands_other_stages_stand(stage: int) -> None:
    ranks.run(2, earlier_traps, stage)


def sent_in_a_step() -> list[dict[str, Any]]:
    from shardbook import shard

    found = []
    for stage in STAGES:
        model = shard(chain(), stage=stage)
        book = second_step(model, "sgd")
        found.append({"sent": book.sent, "padded": padded_bytes(model), "compared": compared_bytes(model)})
    return found


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize("world_size", [2, 3])
def test_a_step_sends_two_vectors_in_stages_0_to_2_and_three_in_stage_3(world_size: int) -> None:
    for found in ranks.run(world_size, sent_in_a_step):
        for stage, step in zip(STAGES, found, strict=True):
            vector = step["padded"] * (world_size - 1) // world_size
            gathers = 2 if stage == 3 else 1
            expected = {"reduce-scatter": vector, "all-gather": gathers * vector}
            assert step["sent"] == {**expected, "all-reduce": step["compared"]}


def sent_in_an_evaluation() -> list[float]:
    from shardbook import shard
    from shardbook.foundations.collectives import ledger

    found = []
    for stage in STAGES:
        model = shard(chain(), stage=stage)
        with torch.no_grad(), ledger() as book:
            error(model, batch(dist.get_rank(), 0))
        found.append(book.total / padded_bytes(model))
    return found


def test_an_evaluation_sends_nothing_in_stage_0_and_one_vector_in_the_others() -> None:
    assert ranks.run(2, sent_in_an_evaluation) == [[0, 0.5, 0.5, 0.5]] * 2


LAYERS, WIDTH = 8, 64


class Measures(nn.Module):
    """A linear layer that notes what is stored whenever its backward pass begins."""

    def __init__(self, live: LiveStorages, stored: list[int]) -> None:
        super().__init__()
        self.linear, self.live, self.stored = nn.Linear(WIDTH, WIDTH), live, stored

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        y.register_hook(lambda _: self.stored.append(self.live.bytes()))
        return y


def stored_by_each_stage() -> list[dict[str, Any]]:
    from shardbook import shard

    found = []
    for stage in STAGES:
        live = LiveStorages()
        stored: list[int] = []
        model = nn.Sequential(*[Measures(live, stored) for _ in range(LAYERS)])
        shard(model, stage=stage)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        with live:
            for parameter in model.parameters():
                live.note(parameter)
            x = torch.ones(1, WIDTH)
            for _ in range(2):
                stored.clear()
                model(x).sum().backward()
                gradients = storages(p.grad for p in model.parameters())  # type: ignore[misc]
                optimizer.step()
                optimizer.zero_grad()
        counters = sum(state["step"].nbytes for state in optimizer.state.values())
        moments = [s[key] for s in optimizer.state.values() for key in ("exp_avg", "exp_avg_sq")]
        found.append(
            {
                "between steps": live.settled() - x.nbytes - counters,
                "moments": sum(moment.nbytes for moment in moments),
                "gradients": gradients,
                "backward": stored,
            }
        )
    return found


UNIT = (WIDTH * WIDTH + WIDTH) * 4  # no padding: both sizes are multiples of 64 bytes on two ranks


@pytest.mark.nightly
def test_between_steps_a_stage_stores_what_it_does_not_share_out() -> None:
    model = LAYERS * UNIT
    for found in ranks.run(2, stored_by_each_stage):
        expected = [3 * model, 2 * model, 2 * model, 3 * model // 2]
        assert [step["between steps"] for step in found] == expected
        assert [step["moments"] for step in found] == [2 * model, model, model, model]
        assert [step["gradients"] for step in found] == [model, model // 2, model // 2, model // 2]


@pytest.mark.full
def test_in_mid_backward_stage_2_has_sent_the_gradients_that_stage_1_still_keeps() -> None:
    activations = 3 * LAYERS * WIDTH * 4 + 64
    for found in ranks.run(2, stored_by_each_stage):
        one, two = found[1]["backward"], found[2]["backward"]
        for done in range(LAYERS):
            kept = one[done] - one[0]
            assert abs(kept - done * UNIT) <= activations
            # One vector on its way with what has arrived of it, and the mean pieces of those before.
            assert two[done] - two[0] <= done * UNIT // 2 + 2 * UNIT + activations
        assert one[-1] - one[0] > two[-1] - two[0]


EXCHANGES = (ALL_GATHER, REDUCE_SCATTER, "all_to_all_single", "all_reduce", "broadcast")


def exchanges_of_one(rows: int) -> list[str]:
    """The exchanges that a step asks of a group of one rank: alone, or one copy of the model on each rank."""
    from shardbook import clip_grad_norm_, shard

    called: list[str] = []

    def counted(name: str, exchange: Any) -> Any:
        def call(*args: Any, group: Any = None, **options: Any) -> Any:
            called.extend([name] * (dist.get_world_size(group) == 1))
            return exchange(*args, group=group, **options)

        return call

    for name in EXCHANGES:
        setattr(dist, name, counted(name, getattr(dist, name)))
    for stage in STAGES:
        mesh = init_device_mesh("cpu", (rows, 1)) if rows > 1 else None
        model = shard(chain(), stage=stage, mesh=mesh)
        optimizer = optimizer_for("adamw", model.parameters())
        for step in range(2):
            error(model, batch(dist.get_rank(), step)).backward()
            clip_grad_norm_(model, 1.0)
            optimizer.step()
            optimizer.zero_grad()
        model.state_dict()
    return called


@pytest.mark.cases(now=1, ci=1)
@pytest.mark.parametrize("rows", [1, 2])
def test_a_group_of_one_rank_exchanges_nothing(rows: int) -> None:
    assert ranks.run(rows, exchanges_of_one, rows) == [[]] * rows


def one_rank_looks() -> None:
    """In stage 0 an evaluation and a state_dict exchange nothing, so one rank may make them alone."""
    from shardbook import shard
    from shardbook.foundations.collectives import ledger

    model = shard(chain(), stage=0)
    optimizer = optimizer_for("sgd", model.parameters())
    for step in range(STEPS):
        error(model, batch(dist.get_rank(), step)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            with ledger() as book, torch.no_grad():
                error(model, batch(0, step))
                model.state_dict()
            assert sum(book.sent.values()) == 0


def test_in_stage_0_one_rank_evaluates_and_saves_alone() -> None:
    ranks.run(2, one_rank_looks)
