"""The loss in chunks: the numbers of the plain loss, the memory of the formula, and the same when sharded."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

import ranks
from book.toys import Batch, assert_equal, optimizer_for, plain_gradients, reference_step, whole_gradients
from shardbook.chunked import ChunkedGPT, ChunkedHead, chunked_loss
from shardbook.gpt import GPT, Config, Head, loss
from shardbook.measure import Meter
from shardbook.model import shard

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


def test_autocast_leaves_the_dtype_of_the_matrix() -> None:
    head, x_BTC, targets_BT = task()
    with torch.autocast("cpu", torch.bfloat16):
        low = chunked_loss(x_BTC.bfloat16(), head.score.weight, targets_BT, 3)
    assert low.dtype == torch.float32
    low.backward()
    assert x_BTC.grad is not None
    assert x_BTC.grad.dtype == torch.float32


# --- what it keeps ---


def test_a_second_backward_pass_is_refused() -> None:
    head, x_BTC, targets_BT = task()
    value = ChunkedHead(head, 2)(x_BTC, targets_BT)
    value.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="keeps its gradients for one backward pass; compute the loss"):
        value.backward()


@pytest.mark.parametrize("chunks", [1, 3, 4, 18])
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


@pytest.mark.parametrize("world_size", [2, 3])
def test_sharded_it_equals_the_unsharded_model_with_the_same_chunks(world_size: int) -> None:
    ranks.run(world_size, sharded_equals_reference, timeout=120)
