"""What ZeRO-3 in fifty lines gets wrong, row by row of the lesson, and the library gets right."""

from __future__ import annotations

import copy
import re
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import ranks
from book import sketches
from book.sketches import Chain, Hang, chain, changed, from_plain, models, one_step, sketched, watched
from shardbook import Disagreement, clip_grad_norm_, join, shard, whole
from shardbook.check.race_recorder import Recorder, Stream, device
from shardbook.check.race_replay import races

LESSON = Path(__file__).parents[2] / "site" / "lessons" / "fifty_lines.md"
MEAN = "return total / dist.get_world_size(), None"


def features(rank: int, number: int = 0) -> Tensor:
    """What a rank reads; no two ranks and no two batches are alike."""
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(10 * number + rank))


def error(model: Any, rank: int, number: int = 0) -> Tensor:
    loss: Tensor = model(features(rank, number)).square().mean()
    return loss


def distances(trio: Any) -> tuple[float, float]:
    """How far the sketch and the library are from the plain model."""
    plain, split, library = trio
    return from_plain(plain, split), from_plain(plain, library)


def only_the_sketch_is_wrong(found: Any, *, at_least: float = 1e-3, rounding: float = 0.0) -> None:
    for wrong, right in found:
        assert wrong > at_least
        assert right <= rounding


# A line of the sketch is another one.


def sum_of_gradients(optimizer: Any) -> tuple[float, float]:
    trio = models(chain(), changed((MEAN, "return total, None")).Sharded)
    one_step(trio, error, optimizer)
    return distances(trio)


@pytest.mark.full
def test_sum() -> None:
    only_the_sketch_is_wrong(ranks.run(2, sum_of_gradients, sketches.sgd))
    # AdamW divides by the size of the gradients, and conceals it.
    for wrong, right in ranks.run(2, sum_of_gradients, sketches.adamw):
        assert wrong < 1e-4
        assert right == 0


ASSIGNS = (
    ("context.full = full", "context.full, context.shard = full, shard"),
    (MEAN, "context.shard.grad = total / dist.get_world_size(); return None, None"),
)


def two_micro_batches() -> tuple[float, float]:
    trio = plain, *split = models(chain(), changed(*ASSIGNS).Sharded)
    for number in range(2):
        sketches.mean_backward(plain, lambda model, rank, number=number: error(model, rank, number))
        for model in split:
            error(model, dist.get_rank(), number).backward()
    for model in trio:
        sketches.sgd(model.parameters()).step()
    return distances(trio)


def test_micro_batches() -> None:
    only_the_sketch_is_wrong(ranks.run(2, two_micro_batches), rounding=1e-7)


def layer_used_twice() -> tuple[float, float]:
    trio = models(chain(), changed(*ASSIGNS).Sharded)
    for model in trio:
        model.path = [0, 1, 0, 2]  # type: ignore[assignment]
    one_step(trio, error, sketches.sgd)
    return distances(trio)


def test_used_twice() -> None:
    only_the_sketch_is_wrong(ranks.run(2, layer_used_twice), rounding=1e-7)


def norm_with_padding() -> tuple[float, float, float]:
    # Fresh memory may hold NaN; here it does on each run.
    zeros = "(0, -len(vector) % dist.get_world_size())"
    fresh = changed((f"F.pad(vector, {zeros})", f'F.pad(vector, {zeros}, value=float("nan"))'))
    torch.manual_seed(0)
    trio = models(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)), fresh.Sharded)
    squares = []
    for model in trio:
        squares.append(torch.stack([p.detach().square().sum() for p in model.parameters()]).sum())
        if model is not trio[0]:
            dist.all_reduce(squares[-1])
    plain, wrong, right = squares
    return wrong.item(), right.item(), plain.item()


def test_padding() -> None:
    for wrong, right, expected in ranks.run(2, norm_with_padding):
        assert wrong != wrong
        assert right == pytest.approx(expected)


def stale_prefetch() -> tuple[float, float]:
    plain, _, library = models(chain())
    trio = plain, sketches.prefetching(plain, next_step=True), library
    for _ in range(2):
        one_step(trio, error, sketches.sgd)
    return distances(trio)


@pytest.mark.full
def test_stale_prefetch() -> None:
    only_the_sketch_is_wrong(ranks.run(2, stale_prefetch))


def evaluation_with_gradients(gradients: bool) -> tuple[float, float]:
    plain, _, library = models(chain())
    trio = plain, sketches.prefetching(plain, next_step=False), library
    for model in trio[1:] if gradients else ():
        error(model, dist.get_rank(), number=1)
    for _ in range(2):
        one_step(trio, error, sketches.sgd)
    return distances(trio)


@pytest.mark.full
def test_evaluation() -> None:
    only_the_sketch_is_wrong(ranks.run(2, evaluation_with_gradients, True))
    assert ranks.run(2, evaluation_with_gradients, False) == [(0, 0), (0, 0)]


def races_of_both() -> tuple[int, int]:
    """How many races there are if the sketch gathers on a stream of its own, without a wait."""
    gather = "    dist.all_gather([*full.chunk(dist.get_world_size())], shard.detach())"
    early = changed((gather, "    with side():\n    " + gather))
    counts = []
    for make in (lambda: sketched(chain(), early.Sharded), lambda: shard(chain())):
        with Recorder() as recorder:
            stream = Stream("cpu")
            vars(early)["side"] = partial(device.stream, stream)
            error(make(), dist.get_rank()).backward()
        counts.append(len(races(recorder.trace)))
    return counts[0], counts[1]


@pytest.mark.full
def test_two_streams() -> None:
    for wrong, right in ranks.run(2, races_of_both):
        assert wrong > 0
        assert right == 0


# The sketch as it is, with another program.


def along(paths: list[list[int]], model: Chain, rank: int) -> Tensor:
    """The loss of a rank that runs the layers in an order of its own."""
    model.path = paths[rank]
    return error(model, rank)


def refused(model: Any, paths: list[list[int]]) -> str:
    """What the library says instead of mixing."""
    with pytest.raises(Disagreement) as caught:
        along(paths, model, dist.get_rank()).backward()
    return str(caught.value)


def would_hang(paths: list[list[int]]) -> tuple[str, str]:
    _, split, library = models(chain())
    with pytest.raises(Hang) as caught, watched(split):
        along(paths, split, dist.get_rank()).backward()
    return str(caught.value), refused(library, paths)


def test_skipped_layer() -> None:
    (hang, first), (_, second) = ranks.run(2, would_hang, [[0, 1], [0]])
    assert hang == "collective 2: rank 0 would gather layer 1, rank 1 would gather layer 0"
    assert first == second
    assert "rank 1" in first


def in_another_order(paths: list[list[int]]) -> tuple[float, str]:
    plain, split, library = models(chain())
    one_step((plain, split, copy.deepcopy(plain)), partial(along, paths), sketches.sgd)
    return from_plain(plain, split), refused(library, paths)


def test_another_order() -> None:
    """The layers have the same size, so the sketch mixes their values, and no error is raised."""
    (wrong, first), (also, second) = ranks.run(2, in_another_order, [[0, 1, 2], [1, 0, 2]])
    assert min(wrong, also) > 1e-3
    assert first == second


def tied() -> tuple[float, float]:
    plain = chain()
    plain[2].weight = plain[0].weight
    trio = models(plain)
    for _ in range(2):
        one_step(trio, error, sketches.sgd)
    return distances(trio)


def test_tied_weights() -> None:
    only_the_sketch_is_wrong(ranks.run(2, tied), rounding=1e-6)


class BadBatch(Exception):
    """What one rank finds in its data."""


def skip_bad_batches(model: Any) -> None:
    """The loop of a program that leaves out a batch on the rank on which it is bad."""

    def refuse(*_: Any) -> None:
        raise BadBatch

    for number in range(2):
        bad = number == 0 and dist.get_rank() == 1
        hook = model[1].register_forward_pre_hook(refuse) if bad else None
        try:
            error(model, dist.get_rank(), number).backward()
        except BadBatch:
            continue
        finally:
            if hook:
                hook.remove()


def exception_in_forward() -> tuple[str, str]:
    _, split, library = models(chain())
    with pytest.raises(Hang) as hang, watched(split):
        skip_bad_batches(split)
    with pytest.raises(Disagreement) as caught:
        skip_bad_batches(library)
    return str(hang.value), str(caught.value)


def test_exception() -> None:
    (hang, first), (_, second) = ranks.run(2, exception_in_forward)
    assert hang == "collective 2: rank 0 would gather layer 1, rank 1 would gather layer 0"
    assert first == second


def sixteen_bits() -> tuple[float, float]:
    plain = nn.Sequential(nn.Linear(1, 1, bias=False, dtype=torch.half))
    _, split, library = models(plain)
    for model in (split, library):
        (model(torch.ones(1, 1, dtype=torch.half)).float().sum() * 40_000).backward()
    found = [
        max((p.grad.max().item() for p in model.parameters() if p.numel()), default=0.0)
        for model in (split, library)
    ]
    return found[0], found[1]


def test_sum_in_16_bits() -> None:
    found = ranks.run(2, sixteen_bits)
    assert float("inf") in [wrong for wrong, _ in found]
    assert sorted(right for _, right in found) == [0, 40_000]


def saved() -> tuple[list[str], str, float]:
    plain, split, library = models(chain())
    restored = chain(seed=1)
    with pytest.raises(RuntimeError) as caught:
        restored.load_state_dict(split.state_dict())
    restored.load_state_dict(library.state_dict())
    return list(split.state_dict()), str(caught.value), from_plain(plain, restored)


def test_saving() -> None:
    for names, message, right in ranks.run(2, saved):
        assert names == ["0.shard", "1.shard", "2.shard"]
        assert "Missing key(s) in state_dict" in message
        assert right == 0


def clipped() -> tuple[float, float]:
    trio = plain, split, library = models(chain())
    sketches.mean_backward(plain, error)
    nn.utils.clip_grad_norm_(plain.parameters(), 0.01)
    for model in (split, library):
        error(model, dist.get_rank()).backward()
    nn.utils.clip_grad_norm_(split.parameters(), 0.01)
    clip_grad_norm_(library, 0.01)
    for model in trio:
        sketches.sgd(model.parameters()).step()
    return distances(trio)


def test_clipping() -> None:
    only_the_sketch_is_wrong(ranks.run(2, clipped), at_least=1e-5, rounding=1e-8)


def other_seeds() -> tuple[float, float]:
    own, of_rank_0 = chain(seed=dist.get_rank()), chain(seed=0)
    return from_plain(of_rank_0, sketched(own)), from_plain(of_rank_0, shard(own))


def test_other_seeds() -> None:
    only_the_sketch_is_wrong(ranks.run(2, other_seeds))


def frozen() -> tuple[float, float]:
    plain = chain()
    plain[1].weight.requires_grad_(False)
    trio = models(plain)
    one_step(trio, error, sketches.sgd)
    return distances(trio)


def test_frozen() -> None:
    only_the_sketch_is_wrong(ranks.run(2, frozen))


class Spare(nn.Linear):
    """A layer with a parameter that a step may leave unused."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.spare = nn.Parameter(torch.ones(4))


def unused() -> tuple[float, float]:
    torch.manual_seed(0)
    trio = models(nn.Sequential(Spare(), Spare()))
    one_step(trio, error, sketches.adamw)
    return distances(trio)


def test_unused() -> None:
    only_the_sketch_is_wrong(ranks.run(2, unused), at_least=9e-4)


def decays(model: nn.Module) -> list[str]:
    return [name for name, _ in model.named_parameters() if not name.endswith("bias")]


def named() -> tuple[list[str], list[str], list[str]]:
    plain, split, library = models(chain())
    return decays(plain), decays(split), decays(library)


def test_weight_decay() -> None:
    for plain, wrong, right in ranks.run(2, named):
        assert plain == right == ["0.weight", "1.weight", "2.weight"]
        assert wrong == ["0.shard", "1.shard", "2.shard"]


class Pair(nn.Linear):
    """A layer that returns two tensors."""

    def forward(self, x: Any) -> Any:
        y = super().forward(x)
        return y, y.relu()


class Sum(nn.Linear):
    def forward(self, x: Any) -> Any:
        return super().forward(x[0] + x[1])


def two_outputs() -> tuple[str, float]:
    torch.manual_seed(0)
    plain, split, library = models(nn.Sequential(Pair(4, 4), Sum(4, 4)))
    with pytest.raises(AttributeError) as caught:
        error(split, dist.get_rank())
    one_step((plain, copy.deepcopy(plain), library), error, sketches.sgd)
    return str(caught.value), from_plain(plain, library)


def test_two_outputs() -> None:
    for message, right in ranks.run(2, two_outputs):
        assert message == "'tuple' object has no attribute 'requires_grad'"
        assert right == 0


def penalty_outside() -> tuple[str, float]:
    """The loss has a term of a weight, which is read outside of its layer's forward pass."""
    plain, split, library = models(chain())

    def loss(model: Any, rank: int) -> Tensor:
        with whole(model) if model is library else nullcontext():
            return error(model, rank) + model[0].weight.square().sum()

    split[0].weight = split[0].layer[0].weight
    with pytest.raises(RuntimeError) as caught:
        loss(split, dist.get_rank()).backward()
    one_step((plain, copy.deepcopy(plain), library), loss, sketches.sgd)
    return str(caught.value), from_plain(plain, library)


def test_weight_outside() -> None:
    for message, right in ranks.run(2, penalty_outside):
        assert "meta" in message
        assert right < 1e-6


def running_averages() -> tuple[str, float]:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    _, split, library = models(plain)
    with pytest.raises(RuntimeError) as caught:
        error(split, dist.get_rank())
    error(library, dist.get_rank()).backward()
    error(plain, dist.get_rank()).backward()
    found, expected = library.state_dict()["1.running_mean"], plain[1].running_mean
    return str(caught.value), (found - expected).abs().max().item()


def test_buffers() -> None:
    for message, right in ranks.run(2, running_averages):
        assert "meta" in message
        assert right == 0


def steps_of_rank(model: Any, batches: Any) -> None:
    optimizer = sketches.sgd(model.parameters())
    for number, weight in batches:
        (weight * error(model, dist.get_rank(), number)).backward()
        optimizer.step()
        optimizer.zero_grad()


def unequal_batches() -> tuple[str, float]:
    """Rank 0 has two batches, and rank 1 has one."""
    plain, split, library = models(chain())
    own = [0, 1][: 2 - dist.get_rank()]
    with pytest.raises(Hang) as caught, watched(split):
        steps_of_rank(split, [(number, 1.0) for number in own])
    steps_of_rank(library, join(own))
    optimizer = sketches.sgd(plain.parameters())
    for read in ([(0, 0), (1, 0)], [(0, 1)]):
        optimizer.zero_grad()
        for rank, number in read:
            (error(plain, rank, number) / 2).backward()
        optimizer.step()
    return str(caught.value), from_plain(plain, library)


@pytest.mark.full
def test_unequal_batches() -> None:
    (hang, first), (_, second) = ranks.run(2, unequal_batches)
    assert hang == "collective 10: rank 0 would gather layer 0, rank 1 would do no more"
    assert max(first, second) < 1e-6


def test_the_lesson_and_these_tests_have_the_same_rows() -> None:
    """Each row of its tables names a test of this file, and links to a section of a chapter."""
    text = LESSON.read_text("utf-8")
    table = re.findall(r"^\| .* \(`(\w+)`\) \| (.*) \|$", text, re.MULTILINE)
    named = [name for name, _ in table]
    tests = re.findall(r"^def test_(\w+)\(", Path(__file__).read_text("utf-8"), re.MULTILINE)
    assert tests[:-1] == named
    assert len(named) >= 12
    linked = re.compile(r" → \[[^]]+\]\(src:shardbook/[\w/]+\.py#[\w./-]+\)$")
    assert [answer for _, answer in table if not linked.search(answer)] == []
