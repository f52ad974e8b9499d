"""A chain in segments: PyTorch's results bit for bit, and the bytes and FLOPs that the chapter promises."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
import torch.utils.checkpoint
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from book.toys import assert_all_equal
from shardbook.checkpointing.budget import FlopCounter, SavedBytes, flops_of
from shardbook.checkpointing.checkpointing import Span, checkpoint_sequential, lengths, run
from shardbook.models.gpt import GPT, Config, loss

Run = Callable[[nn.Sequential, Tensor], Tensor]


def chain(layers: int = 7) -> nn.Sequential:
    """Layers of several kinds, some of which draw random numbers."""
    torch.manual_seed(3)
    kinds = [lambda: nn.Linear(6, 6), nn.Tanh, lambda: nn.Dropout(0.5), nn.GELU]
    return nn.Sequential(*[kinds[index % 4]() for index in range(layers)])


def gradients(model: nn.Sequential, forward: Run) -> list[Tensor]:
    """The output, every gradient, and the random numbers that are drawn next."""
    torch.manual_seed(7)
    x = torch.randn(5, 6, requires_grad=True)
    model.zero_grad()
    y = forward(model, x)
    y.square().sum().backward()
    assert x.grad is not None
    return [y.detach(), x.grad, *[p.grad.clone() for p in model.parameters()], torch.rand(4)]  # type: ignore[union-attr]


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("segments", range(1, 8))
def test_results_and_gradients_are_torchs_bit_for_bit(segments: int, use_reentrant: bool) -> None:
    model = chain()
    plain = gradients(model, lambda m, x: m(x))
    oracle = gradients(
        model,
        lambda m, x: torch.utils.checkpoint.checkpoint_sequential(
            m, segments, x, use_reentrant=use_reentrant
        ),
    )
    assert_all_equal(oracle, plain)
    for last in (False, True):
        for balanced in (False, True):

            def ours(m: nn.Sequential, x: Tensor, last: bool = last, balanced: bool = balanced) -> Tensor:
                found: Tensor = checkpoint_sequential(
                    m, segments, x, last=last, balanced=balanced, use_reentrant=use_reentrant
                )
                return found

            assert_all_equal(gradients(model, ours), oracle)


@pytest.mark.parametrize("segments", [1, 2, 3, 6])
def test_a_gpt_keeps_what_torch_keeps(segments: int) -> None:
    """The default cuts as PyTorch does: the same bytes, besides the same gradients."""
    config = Config(layers=4, width=16, heads=2, context=8, vocabulary=32)
    tokens = torch.randint(0, 32, (2, 8))
    found = []
    for forward in (
        lambda m: checkpoint_sequential(m, segments, tokens),
        lambda m: torch.utils.checkpoint.checkpoint_sequential(m, segments, tokens, use_reentrant=False),
    ):
        torch.manual_seed(0)
        model = GPT(config)
        with SavedBytes(model.parameters()) as saved:
            logits = forward(model)
        kept = saved.bytes
        loss(logits, tokens).backward()
        found.append((kept, [p.grad for p in model.parameters()]))
    (ours, our_grads), (theirs, their_grads) = found
    assert ours == theirs
    assert all(torch.equal(a, b) for a, b in zip(our_grads, their_grads, strict=True))  # type: ignore[arg-type]


@pytest.mark.parametrize("segments", [0, -1, 8, 2.0, True, "2"])
def test_a_number_of_segments_that_cannot_be_is_refused(segments: Any) -> None:
    sentence = rf"segments is {segments!r}, but a chain of 7 layers can be cut into 1 to 7 segments"
    with pytest.raises(ValueError, match=sentence):
        checkpoint_sequential(chain(), segments, torch.zeros(1, 6))


def test_a_layer_that_stands_twice_in_the_chain_runs_twice() -> None:
    shared = nn.Linear(6, 6)
    model = nn.Sequential(shared, nn.Tanh(), shared, nn.GELU())
    x = torch.randn(2, 6)
    assert torch.equal(checkpoint_sequential(model, 2, x), model(x))
    # This is why the chain is not read through `children()`.
    theirs = torch.utils.checkpoint.checkpoint_sequential(model, 2, x, use_reentrant=False)
    assert not torch.equal(theirs, model(x))


def test_functions_need_not_be_modules_and_may_come_from_a_generator() -> None:
    x = torch.randn(3, requires_grad=True)
    functions = [torch.sin, torch.exp, torch.tanh]
    y = checkpoint_sequential((function for function in functions), 3, x, last=True)
    assert torch.equal(y, torch.tanh(torch.exp(torch.sin(x))))
    (found,) = torch.autograd.grad(y.sum(), x)
    (expected,) = torch.autograd.grad(torch.tanh(torch.exp(torch.sin(x))).sum(), x)
    assert torch.equal(found, expected)


def test_a_tuple_goes_from_function_to_function_as_one_value() -> None:
    a, b = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    swap = [lambda pair: (pair[1].sin(), pair[0] * pair[1]) for _ in range(4)]

    def check(forward: Callable[..., Any]) -> tuple[Tensor, ...]:
        one, other = forward(swap, 2, (a, b))
        return (one, other, *torch.autograd.grad((one * other).sum(), (a, b)))

    theirs = check(lambda *args: torch.utils.checkpoint.checkpoint_sequential(*args, use_reentrant=False))
    assert_all_equal(list(check(checkpoint_sequential)), list(theirs))


def test_the_hooks_of_the_modules_run_and_options_reach_the_checkpoint() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))
    calls: list[int] = []
    model[0].register_forward_hook(lambda *_: calls.append(1))
    # Early stopping leaves the first segment before its only layer has returned.
    for early_stop, expected in ((True, 1), (False, 3)):
        checkpoint_sequential(model, 2, torch.randn(1, 2), early_stop=early_stop).sum().backward()
        assert len(calls) == expected
    with pytest.raises((TypeError, ValueError), match="colour"):
        checkpoint_sequential(model, 2, torch.randn(1, 2), colour="red")


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))))
def test_the_lengths_cover_the_chain(case: tuple[int, int]) -> None:
    layers, segments = case
    theirs, even = lengths(layers, segments), lengths(layers, segments, balanced=True)
    for found in (theirs, even):
        assert len(found) == segments
        assert sum(found) == layers
        assert min(found) >= 1
    assert theirs[:-1] == [layers // segments] * (segments - 1)
    # The longest is as short as it can be, and the last is the shortest.
    assert max(even) == -(-layers // segments)
    assert even[-1] == min(even) == layers // segments


def squares(layers: int) -> list[nn.Module]:
    """The chapter's experiment: each layer saves one tensor, the one that it returns."""
    return [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(layers)]


def kept(layers: list[nn.Module], segments: int, **options: Any) -> int:
    x = torch.zeros(4, 8)
    with SavedBytes(nn.ModuleList(layers).parameters()) as saved:
        y = checkpoint_sequential(layers, segments, x, **options)
    assert y.requires_grad
    return saved.bytes // x.nbytes


@pytest.mark.cases(now=3, ci=3)
@pytest.mark.parametrize("layers", [1, 5, 15, 16])
def test_the_tensors_that_a_chain_keeps_are_counted_exactly(layers: int) -> None:
    for segments in range(1, layers + 1):
        for balanced in (False, True):
            *_, end = lengths(layers, segments, balanced=balanced)
            # An input for each segment, and the outputs of the layers of the last one.
            assert kept(squares(layers), segments, balanced=balanced) == segments + end
            assert kept(squares(layers), segments, balanced=balanced, last=True) == segments


def test_a_balanced_cut_keeps_less_where_the_segments_do_not_divide_the_chain() -> None:
    # As many as in one segment, which is the chain without checkpoints.
    assert kept(squares(15), 8) == kept(squares(15), 1) == 16
    assert kept(squares(15), 8, balanced=True) == 9


@pytest.mark.cases(now=1, ci=1)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("balanced", [False, True])
def test_the_recomputation_is_the_forward_pass_of_the_checkpointed_segments(
    last: bool, balanced: bool
) -> None:
    layers = squares(11)
    x = torch.randn(4, 8, requires_grad=True)
    each = flops_of(layers[0], x)
    with FlopCounter() as counter:
        run(layers, [], x)
        checkpoint_sequential(layers, 1, x).sum().backward()
    plain = counter.get_total_flops()
    assert plain == 3 * 11 * each
    for segments in range(1, 12):
        *_, end = lengths(11, segments, balanced=balanced)
        with FlopCounter() as counter:
            checkpoint_sequential(layers, segments, x, last=last, balanced=balanced).sum().backward()
        recomputed = 11 if last else 11 - end
        assert counter.get_total_flops() - plain == recomputed * each


class Keep(torch.autograd.Function):
    """An operation that saves what it reads and returns, and writes down how much there is of that."""

    alive: ClassVar[weakref.WeakSet[torch.UntypedStorage]] = weakref.WeakSet()
    seen: ClassVar[list[int]] = []

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x + 1
        Keep.alive.add(y.untyped_storage())
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        _, y = ctx.saved_tensors
        Keep.seen.append(len(Keep.alive))
        return grad + 0 * y


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("layers", [1, 4, 9, 16])
def test_the_peak_of_the_backward_pass_follows_the_formula(layers: int, last: bool) -> None:
    r"""$k + n/k$ tensors, counted by weak references while the backward pass runs.

    A checkpoint of the last segment changes nothing of it.
    """
    peaks = {}
    for segments in (k for k in range(1, layers + 1) if layers % k == 0):
        x = torch.zeros(3, requires_grad=True)
        Keep.alive.clear()
        Keep.alive.add(x.untyped_storage())
        Keep.seen.clear()
        checkpoint_sequential([Keep.apply] * layers, segments, x, last=last).sum().backward()
        assert len(Keep.seen) == layers
        peaks[segments] = max(Keep.seen)
    assert peaks == {k: k + layers // k for k in peaks}
    if layers > 1:
        assert min(peaks, key=peaks.__getitem__) ** 2 == layers


def test_segments_can_be_chosen_by_hand() -> None:
    model = chain()
    plan = [Span(0, 3, recompute=True), Span(3, 4, recompute=False), Span(4, 7, recompute=True)]
    ours = gradients(model, lambda m, x: run(m, plan, x))
    assert_all_equal(ours, gradients(model, lambda m, x: m(x)))
