"""The loss in chunks: the numbers of the plain loss, the memory of the formula, and the same when sharded."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

import ranks
from book.toys import Batch, assert_equal, optimizer_for, plain_gradients, reference_step, whole_gradients
from shardbook.models.chunked_loss import ChunkedGPT, ChunkedHead, chunked_loss
from shardbook.models.gpt import GPT, Config, Head, loss
from shardbook.planning.forecast import Meter
from shardbook.precision.autocast import autocast
from shardbook.zero.model import shard
from shardbook.zero.policy import Policy
from tiers import rows

WIDTH, VOCABULARY, BATCH, LENGTH = 24, 50, 2, 9
CONFIG = Config(layers=2, width=16, heads=2, context=8, vocabulary=30)
CHUNKS = [1, 2, 4, 5, 18, 100]


def task(dtype: torch.dtype = torch.float32) -> tuple[Head, Tensor, Tensor]:
    """A head, what it reads and what it should predict; the same values in every dtype."""
    torch.manual_seed(0)
    head = Head(Config(width=WIDTH, vocabulary=VOCABULARY))
    x_BTC = torch.randn(BATCH, LENGTH, WIDTH)
    return (
        head.to(dtype),
        x_BTC.to(dtype).requires_grad_(),
        torch.randint(VOCABULARY, (BATCH, LENGTH)),
    )


def results(
    error: Callable[[Head, Tensor, Tensor], Tensor], dtype: torch.dtype, scale: float = 1.0, ignore: int = 0
) -> dict[str, Tensor]:
    """The loss, and the gradients of everything below it."""
    head, x_BTC, targets_BT = task(dtype)
    targets_BT.view(-1)[:ignore] = -100
    value = error(head, x_BTC, targets_BT)
    (value * scale).backward()
    assert x_BTC.grad is not None
    return {"loss": value.detach(), "x": x_BTC.grad, **plain_gradients(head)}


def plain(head: Head, x_BTC: Tensor, targets_BT: Tensor) -> Tensor:
    return loss(head(x_BTC), targets_BT)


def in_chunks(chunks: int) -> Callable[[Head, Tensor, Tensor], Tensor]:
    return lambda head, x, targets: ChunkedHead(head, chunks)(x, targets)


def apart(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The largest difference, as a part of the largest value of that tensor."""
    assert list(found) == list(expected)
    return max(
        ((found[name].double() - value.double()).abs().max() / value.double().abs().max()).item()
        for name, value in expected.items()
    )


# --- the numbers ---


@pytest.mark.parametrize("chunks", CHUNKS)
def test_in_doubles_it_is_the_plain_loss(chunks: int) -> None:
    exact = results(plain, torch.float64)
    assert apart(results(in_chunks(chunks), torch.float64), exact) < 2**-48


@pytest.mark.parametrize("chunks", CHUNKS)
def test_in_floats_it_is_as_near_to_the_truth_as_the_plain_loss(chunks: int) -> None:
    # A unit in the last place is $2^{-23}$. Both ways round a few times for each sum; eight units cover both.
    exact = results(plain, torch.float64)
    assert apart(results(plain, torch.float32), exact) < 2**-20
    assert apart(results(in_chunks(chunks), torch.float32), exact) < 2**-20


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_chunk_gives_the_plain_loss_bit_for_bit(dtype: torch.dtype) -> None:
    assert torch.equal(results(in_chunks(1), dtype)["loss"], results(plain, dtype)["loss"])


@pytest.mark.parametrize("chunks", [1, 4])
def test_targets_of_minus_100_take_no_part(chunks: int) -> None:
    # The first chunk of four holds nothing else.
    exact = results(plain, torch.float64, ignore=6)
    assert apart(results(in_chunks(chunks), torch.float64, ignore=6), exact) < 2**-48


def test_a_loss_that_is_divided_divides_its_gradients() -> None:
    exact = results(plain, torch.float64, scale=1 / 3)
    assert apart(results(in_chunks(4), torch.float64, scale=1 / 3), exact) < 2**-48


@pytest.mark.parametrize("context", [torch.autocast, autocast])
def test_autocast_leaves_the_dtype_of_the_matrix(context: Any) -> None:
    head, x_BTC, targets_BT = task()
    with context("cpu", torch.bfloat16):
        low = chunked_loss(x_BTC.bfloat16(), head.score.weight, targets_BT, 3)
    assert low.dtype == torch.float32
    low.backward()
    assert x_BTC.grad is not None
    assert x_BTC.grad.dtype == torch.float32
    exact = chunked_loss(x_BTC.bfloat16(), head.score.weight, targets_BT, 3)
    assert low.item() == exact.item()


def many_positions(dtype: torch.dtype, scale: float, chunks: int) -> tuple[dict[str, Tensor], ...]:
    """The loss and the gradients over 9,216 positions: in chunks, as `F.cross_entropy`, and in FP64."""
    torch.manual_seed(0)
    x, weight = torch.randn(9216, 16).to(dtype), (3 * torch.randn(50, 16)).to(dtype)
    targets = torch.randint(50, (9216,))
    found = []
    for kind in ("chunked", "plain", "exact"):
        use = torch.float64 if kind == "exact" else dtype
        inputs = [value.to(use, copy=True).requires_grad_() for value in (x, weight)]
        if kind == "chunked":
            error = chunked_loss(inputs[0], inputs[1], targets, chunks)
        else:
            logits = inputs[0] @ inputs[1].t()
            # As under a policy, whose rule for losses widens what the function gets.
            error = F.cross_entropy(logits if kind == "exact" else logits.float(), targets)
        (error * scale).backward()
        gradients = {
            name: value.grad.double() / scale
            for name, value in zip(("x", "weight"), inputs, strict=True)
            if value.grad is not None
        }
        found.append({"loss": error.detach(), **gradients})
    return tuple(found)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_in_16_bits_all_but_the_logits_is_computed_in_fp32(dtype: torch.dtype) -> None:
    """A sum of the losses in FP16 is infinite, and in BF16 the mean would have 8 bits."""
    # The gradient of the matrix overflows FP16 at a scale of 2^16, as it does with the plain loss.
    scale = 2.0**8 if dtype == torch.float16 else 1.0
    for chunks in (1, 4):
        chunked, plain, exact = many_positions(dtype, scale, chunks)
        assert chunked["loss"].dtype == torch.float32
        assert chunked["loss"].item() == pytest.approx(plain["loss"].item(), rel=2**-21)
        for name in ("x", "weight"):
            errors = [
                ((found[name] - exact[name]).norm() / exact[name].norm()).item() for found in (chunked, plain)
            ]
            # One rounding to 16 bits instead of two, and the same rounded logits.
            assert errors[0] <= 1.05 * errors[1], (name, errors)


def test_the_loss_scale_multiplies_before_the_gradients_are_rounded() -> None:
    """A gradient that FP16 would round to zero is multiplied first. So are the smallest of a long batch."""
    for scale, lost in ((1.0, True), (2.0**16, False)):
        x = torch.zeros(9216, 2, dtype=torch.float16, requires_grad=True)
        weight = torch.full((3, 2), 2.0**-12, dtype=torch.float16)
        weight[1] *= 2
        (chunked_loss(x, weight, torch.zeros(9216, dtype=torch.long), 4) * scale).backward()
        assert x.grad is not None
        assert (x.grad == 0).all().item() == lost
        if not lost:
            # The mean of the weights, one of them twice as large, less the weight of the target.
            expected = (4 / 3 - 1) * 2.0**-12 / 9216 * scale
            assert torch.allclose(x.grad.float(), torch.full((9216, 2), expected), rtol=2**-10)


def trains_in_fp16_as_the_plain_loss() -> None:
    """Under one policy and one scale: the same first loss, and no gradient further from the truth."""
    rank = dist.get_rank()
    policy = Policy(param_dtype=torch.float16, output_dtype=torch.float32)
    gradients: dict[str, dict[str, Tensor]] = {}
    for kind in ("exact", "plain", "chunked"):
        torch.manual_seed(7)
        model: torch.nn.Module = ChunkedGPT(CONFIG, chunks=1) if kind == "chunked" else GPT(CONFIG)
        sharded = shard(
            model.double() if kind == "exact" else model, policy=None if kind == "exact" else policy
        )
        tokens, targets = data(rank, 0)
        error = sharded(tokens, targets) if kind == "chunked" else loss(sharded(tokens), targets)
        (error * 2.0**16).backward()
        gradients[kind] = {name: value / 2.0**16 for name, value in whole_gradients(sharded).items()}
        gradients[kind]["loss"] = error.detach()
    assert gradients["chunked"].pop("loss").item() == gradients["plain"].pop("loss").item()
    exact = gradients["exact"]
    for name in gradients["plain"]:
        off = [
            (gradients[kind][name] - exact[name]).norm() / exact[name].norm() for kind in ("chunked", "plain")
        ]
        assert off[0].item() < 2 * off[1].item() + 2**-13, (name, off)


@pytest.mark.full
def test_under_a_policy_it_is_as_near_as_the_plain_loss() -> None:
    ranks.run(2, trains_in_fp16_as_the_plain_loss)


# --- what it keeps ---


def test_a_second_backward_pass_is_refused() -> None:
    head, x_BTC, targets_BT = task()
    value = ChunkedHead(head, 2)(x_BTC, targets_BT)
    value.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="keeps its gradients for one backward pass; compute the loss"):
        value.backward()


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize("chunks", rows([1, 3, 4, 18], now=[4]))
@pytest.mark.parametrize("mode", ["train", "frozen", "without gradients"])
def test_the_peak_follows_a_formula(chunks: int, mode: str) -> None:
    head, x_BTC, targets_BT = task()
    positions = BATCH * LENGTH
    rows = math.ceil(positions / chunks)
    if mode == "frozen":
        head.score.weight.requires_grad_(False)
    with torch.set_grad_enabled(mode != "without gradients"):
        x_BTC = head.norm(x_BTC)
        with Meter() as meter:
            before = meter.now()
            value = chunked_loss(x_BTC, head.score.weight, targets_BT, chunks)
            kept = meter.now() - before
    gradients = {
        "train": positions * WIDTH + VOCABULARY * WIDTH,
        "frozen": positions * WIDTH,
        "without gradients": 0,
    }[mode]
    # Two tensors of a chunk's logits, the gradients, one number a position for its share and one for its
    # validity, and the sum.
    logits = 2 * rows * VOCABULARY
    assert meter.peak - before == 4 * (logits + gradients + 2 * positions + 1)
    assert kept == 4 * (gradients + value.numel())


# --- the model ---


def test_the_parameters_keep_their_names_and_their_first_values() -> None:
    torch.manual_seed(3)
    plain_model = GPT(CONFIG)
    torch.manual_seed(3)
    model = ChunkedGPT(CONFIG, chunks=4)
    assert_equal(model.state_dict(), plain_model.state_dict())
    plain_model.load_state_dict(model.state_dict())
    tokens_BT = torch.randint(30, (2, 8))
    assert torch.equal(model(tokens_BT), plain_model(tokens_BT))
    with torch.no_grad():
        assert model(tokens_BT, tokens_BT).item() == pytest.approx(
            F.cross_entropy(plain_model(tokens_BT).flatten(0, 1), tokens_BT.flatten()).item()
        )


def test_no_chunk_is_refused() -> None:
    with pytest.raises(ValueError, match="chunks is 0, but it must be at least 1"):
        ChunkedGPT(CONFIG, chunks=0)


def data(rank: int, step: int) -> Batch:
    generator = torch.Generator().manual_seed(100 * step + rank)
    tokens = torch.randint(0, 30, (3, 9), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def sharded_equals_reference() -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    plain = ChunkedGPT(CONFIG, chunks=5)
    torch.manual_seed(7)
    sharded = shard(ChunkedGPT(CONFIG, chunks=5))
    optimizers = [optimizer_for("adamw", model.parameters()) for model in (plain, sharded)]
    for step in range(3):
        errors = [partial(plain, *data(other, step)) for other in range(world_size)]
        losses = reference_step(plain, [errors])
        error = sharded(*data(rank, step))
        error.backward()
        assert error.item() == losses[rank]
        assert_equal(whole_gradients(sharded), plain_gradients(plain))
        for each in optimizers:
            each.step()
            each.zero_grad()
    assert_equal(dict(sharded.state_dict()), dict(plain.state_dict()))


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize("world_size", [2, 3])
def test_sharded_it_equals_the_unsharded_model_with_the_same_chunks(world_size: int) -> None:
    ranks.run(world_size, sharded_equals_reference, timeout=120)
