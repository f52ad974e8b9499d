"""The options of PyTorch's checkpoint, and the blocks that set them, mean here what they mean there."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import checkpoint as theirs
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from book.checkpointing.test_saved_tensors import Count
from shardbook import CheckpointError, checkpoint, checkpoint_module, checkpoint_sequential
from shardbook.checkpointing.determinism import debug_in_force, early_stop_in_force
from shardbook.checkpointing.selective import Keep, contexts
from shardbook.foundations.torch_private import group_in_force

torch_checkpoint = partial(theirs.checkpoint, use_reentrant=False)
Run = Callable[..., Any]


def chain() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))


def ways(net: nn.Sequential) -> dict[str, Run]:
    """Each way to checkpoint a chain; it takes an input and options."""
    return {
        "checkpoint": lambda x, **options: checkpoint(net, x, **options),
        "checkpoint_module": lambda x, **options: checkpoint_module(nn.Sequential(net), **options)(x),
        "checkpoint_sequential": lambda x, **options: checkpoint_sequential(net, 1, x, last=True, **options),
    }


class Entered(contextlib.AbstractContextManager[None]):
    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def __enter__(self) -> None:
        self.log.append(f"{self.name} begins")

    def __exit__(self, *error: Any) -> None:
        self.log.append(f"{self.name} ends")


@pytest.mark.parametrize("way", ways(chain()))
def test_context_fn_surrounds_both_runs_and_is_no_argument_of_the_function(way: str) -> None:
    log: list[str] = []
    x = torch.ones(2, 4, requires_grad=True)
    y = ways(chain())[way](x, context_fn=lambda: (Entered("first", log), Entered("second", log)))
    assert log == ["first begins", "first ends"]
    y.sum().backward()
    assert log == ["first begins", "first ends", "second begins", "second ends"]


def saves_products(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
    return CheckpointPolicy.MUST_SAVE if op is torch.ops.aten.addmm.default else False


# From 2.14 on PyTorch warns where its selective checkpoint is around hooks for saved tensors, as those of the
# checkpoint inside are.
@pytest.mark.filterwarnings("ignore:A saved_tensors_hooks context:FutureWarning")
@pytest.mark.parametrize("way", ways(chain()))
@pytest.mark.parametrize("policy", [saves_products, [torch.ops.aten.addmm.default]])
def test_torchs_selective_checkpoints_work_as_they_are(way: str, policy: Any) -> None:
    give = partial(create_selective_checkpoint_contexts, policy)
    x = torch.ones(2, 4, requires_grad=True)
    net, found, ran = chain(), [], []
    for run in (ways(net)[way], partial(torch_checkpoint, net)):
        y = run(x, context_fn=give)
        with Count() as count:
            found.append(torch.autograd.grad(y.sum(), x)[0])
        ran.append(count.ran["aten.addmm.default"])
    assert ran == [0, 0]
    assert torch.equal(*found)


def flips() -> Run:
    """A function that does something else the second time."""
    calls = iter([torch.tanh, torch.zeros_like])
    return lambda x: (next(calls)(x) * x.exp()).sin()


@pytest.mark.parametrize("level", ["default", "none"])
def test_debug_lists_the_operations_of_both_runs(level: str) -> None:
    x = torch.ones(3, requires_grad=True)
    for debug, block in (
        (True, None),
        (False, True),
        (True, True),
    ):
        around = contextlib.nullcontext() if block is None else theirs.set_checkpoint_debug_enabled(block)
        with around:
            y = checkpoint(flips(), x, debug=debug, determinism_check=level)
        with pytest.raises(theirs.CheckpointError) as raised:
            y.sum().backward()
        message = str(raised.value)
        assert "Operations of the forward pass: 4." in message
        assert "torch.tanh gave (3,)" in message
        assert "Operations of the recomputation: " in message
        assert "torch.zeros_like gave (3,)" in message
    # The block can also say no, and a level of its own stays.
    with theirs.set_checkpoint_debug_enabled(False):
        y = checkpoint(flips(), x, debug=True, determinism_check="default")
    with pytest.raises(CheckpointError) as raised:
        y.sum().backward()
    assert "Operations of" not in str(raised.value)


def test_debug_compares_no_more_than_without() -> None:
    """A batch norm saves running statistics, which the first run moves; `debug` does not compare them."""
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    checkpoint(net, torch.ones(3, 4), debug=True).sum().backward()
    assert net[0].weight.grad is not None


def test_an_error_is_caught_as_torchs() -> None:
    assert issubclass(CheckpointError, theirs.CheckpointError)


def runs_to_the_end(run: Run, around: Any, early_stop: bool) -> bool:
    x, net, ran = torch.ones(2, 4, requires_grad=True), chain(), Counter[str]()
    with around:
        y = run(net, x, early_stop=early_stop)
    with Count() as count:
        y.sum().backward()
    ran.update(count.ran)
    return ran["aten.addmm.default"] == 2


@pytest.mark.parametrize("block", [None, False, True])
@pytest.mark.parametrize("early_stop", [False, True])
def test_the_block_of_early_stop_comes_before_the_option(block: bool | None, early_stop: bool) -> None:
    found = []
    for run in (checkpoint, torch_checkpoint):
        around = contextlib.nullcontext() if block is None else theirs.set_checkpoint_early_stop(block)
        found.append(runs_to_the_end(run, around, early_stop))
    assert found == [not (early_stop if block is None else block)] * 2


def test_the_private_names_give_what_the_blocks_set() -> None:
    for option in (False, True):
        assert early_stop_in_force(option) is debug_in_force(option) is option
        for block in (False, True):
            with theirs.set_checkpoint_early_stop(block), theirs.set_checkpoint_debug_enabled(block):
                assert early_stop_in_force(option) is debug_in_force(option) is block
    assert group_in_force() is None
    with theirs.GraphExecGroup() as group:
        assert group_in_force() is group


def in_two_parts(run: Run, around: Any) -> tuple[int, list[Tensor]]:
    net, runs = chain(), list[int]()

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        runs.append(1)
        middle = net[1](net[0](x))
        return net[2](middle), middle

    x = torch.ones(2, 4, requires_grad=True)
    y, middle = run(function, x)
    with around:
        (passed,) = torch.autograd.grad(y.sum(), middle)
        found = torch.autograd.grad(middle, [x, net[0].weight], passed)
    return len(runs) - 1, list(found)


def test_a_group_shares_one_recomputation() -> None:
    for run in (checkpoint, torch_checkpoint):
        once, grouped = in_two_parts(run, theirs.GraphExecGroup())
        twice, expected = in_two_parts(run, contextlib.nullcontext())
        assert (once, twice) == (1, 2), run
        for one, other in zip(grouped, expected, strict=True):
            assert torch.equal(one, other)


def test_what_a_group_left_is_not_handed_to_a_later_backward_pass() -> None:
    net = chain()
    x = torch.ones(2, 4, requires_grad=True)
    y, middle = checkpoint(lambda x: (net[2](h := net[1](net[0](x))), h), x, determinism_check="none")
    with theirs.GraphExecGroup():
        torch.autograd.grad(y.sum(), middle)
    with torch.no_grad():
        x.mul_(1.0)
    with pytest.raises(CheckpointError, match="changed in place"):
        torch.autograd.grad(middle.sum(), x)


def test_no_option_reaches_the_function_and_none_reads_as_left_out() -> None:
    def function(x: Tensor, **given: Any) -> Tensor:
        assert not given, given
        return x.sin()

    x = torch.ones(3, requires_grad=True)
    options: dict[str, Any] = {
        "use_reentrant": None,
        "preserve_rng_state": False,
        "context_fn": theirs.noop_context_fn,
        "determinism_check": "none",
        "debug": False,
        "early_stop": False,
    }
    y = checkpoint(function, x, **options)
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], x.cos())
    # As in torch, a keyword with the name of an option is the option.
    with pytest.raises(TypeError):
        checkpoint(lambda x, context_fn: x, x, context_fn=theirs.noop_context_fn)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"use_reentrant": True, "context_fn": lambda: contexts([])}, "leave out use_reentrant=True"),
        ({"use_reentrant": True, "debug": True}, "debug=True needs the tensors one by one"),
        ({"policy": [], "context_fn": lambda: contexts([])}, "policy and context_fn both say what surrounds"),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, Any], said: str) -> None:
    for run in ways(chain()).values():
        with pytest.raises(ValueError, match=said):
            run(torch.ones(2, 4, requires_grad=True), **options)


def test_an_unknown_option_of_a_chain_is_refused_by_name() -> None:
    for segments in (1, 2):
        with pytest.raises(TypeError, match="unexpected keyword argument 'early'"):
            checkpoint_sequential(chain(), segments, torch.ones(2, 4), early=True)


# What a policy may answer.


ANSWERS = [
    (True, Keep.SAVE),
    (False, Keep.RECOMPUTE),
    (CheckpointPolicy.MUST_SAVE, Keep.SAVE),
    (CheckpointPolicy.PREFER_SAVE, Keep.PREFER),
    (CheckpointPolicy.MUST_RECOMPUTE, Keep.RECOMPUTE),
    (CheckpointPolicy.PREFER_RECOMPUTE, Keep.RECOMPUTE),
]


@pytest.mark.parametrize(("answer", "keep"), ANSWERS)
def test_a_policy_may_answer_as_in_torch(answer: Any, keep: Keep) -> None:
    x, net = torch.ones(2, 4, requires_grad=True), chain()
    ran = []
    for one in (answer, keep):
        y = checkpoint(net, x, policy=lambda *_, one=one: one)
        with Count() as count:
            torch.autograd.grad(y.sum(), x)
        ran.append(count.ran)
    assert ran[0] == ran[1]


@pytest.mark.parametrize("answer", [None, 1, "save", getattr(CheckpointPolicy, "MUST_CPU_OFFLOAD", 4)])
def test_a_bad_answer_is_named_wherever_it_is_given(answer: Any) -> None:
    x = torch.ones(2, 2, requires_grad=True)
    for function in (lambda x: x @ x, lambda x: x + 1, lambda x: x**2, lambda x: torch.mm(x, x)):
        with pytest.raises(RuntimeError, match=r"the policy has answered .* which is not a Keep"):
            checkpoint(function, x, policy=lambda *_: answer)


def test_a_policy_that_fails_is_named_inside_operators_too() -> None:
    x = torch.ones(2, 2, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"for aten.mm.default the policy has failed: .*argument"):
        checkpoint(lambda x: x @ x, x, policy=lambda op: op)


def test_a_policy_that_wants_torchs_context_is_refused_at_once() -> None:
    x = torch.ones(2, 2, requires_grad=True)
    with pytest.raises(TypeError, match="the first parameter of this one is a context, as in PyTorch"):
        checkpoint(torch.sin, x, policy=saves_products)
