"""What a policy keeps: PyTorch's results bit for bit, and what PyTorch refuses or gets wrong, right."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint as torch_checkpoint
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from shardbook.checkpointing import selective
from shardbook.checkpointing.budget import SavedBytes, flops_of
from shardbook.checkpointing.saved_tensors import checkpoint_saved
from shardbook.checkpointing.selective import Keep, contexts
from shardbook.foundations.torch_private import since
from shardbook.models.gpt import Block, Config

aten = torch.ops.aten
ATTENTION = aten._scaled_dot_product_flash_attention_for_cpu.default
Function = Callable[[Tensor], Tensor]


def ours(function: Function, x: Tensor, policy: Any, **options: Any) -> Tensor:
    result: Tensor = checkpoint_saved(function, x, context_fn=partial(contexts, policy), **options)
    return result


def under_torch(function: Function, x: Tensor, policy: Any) -> Tensor:
    """Our blocks inside of PyTorch's checkpoint."""
    result: Tensor = torch_checkpoint(function, x, use_reentrant=False, context_fn=partial(contexts, policy))
    return result


def theirs(function: Function, x: Tensor, policy: Any) -> Tensor:
    blocks = partial(create_selective_checkpoint_contexts, policy)
    result: Tensor = torch_checkpoint(function, x, use_reentrant=False, context_fn=blocks)
    return result


class Ops(TorchDispatchMode):
    """Counts the operations that really run."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: Counter[Any] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ran[func] += 1
        return func(*args, **(kwargs or {}))


def results(run: Function, module: nn.Module | None = None, shape: tuple[int, ...] = (3, 4)) -> list[Tensor]:
    """Output, gradients, and the random numbers that are drawn next."""
    torch.manual_seed(5)
    x = torch.randn(shape, requires_grad=True)
    parameters = [] if module is None else list(module.parameters())
    y = run(x)
    grads = torch.autograd.grad(y.square().sum(), [x, *parameters])
    return [y.detach(), *grads, torch.rand(3)]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def transformer() -> nn.Module:
    torch.manual_seed(0)
    config = Config(width=16, heads=2, context=8)
    return nn.Sequential(Block(config), nn.Dropout(0.3), Block(config), nn.Dropout(0.3))


POLICIES: list[list[Any]] = [
    [],
    [aten.addmm.default],
    [ATTENTION],
    [aten.addmm.default, ATTENTION],
    [aten.gelu.default, aten.native_layer_norm.default],
    [aten.mul.Tensor],
]


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_outputs_and_gradients_are_torchs_bit_for_bit(policy: list[Any]) -> None:
    module = transformer()
    found = {
        run: results(partial(run, module, policy=policy), module, (2, 8, 16))
        for run in (ours, under_torch, theirs)
    }
    plain = results(module, module, (2, 8, 16))
    assert same(found[ours], plain)
    assert same(found[under_torch], plain)
    assert same(found[theirs], plain)


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_the_same_operations_run_again_as_with_torch(policy: list[Any]) -> None:
    module, x = transformer(), torch.randn(2, 8, 16, requires_grad=True)
    ran = []
    for run in (under_torch, theirs):
        y = run(module, x, policy)
        with Ops() as ops:
            torch.autograd.grad(y.sum(), [x, *module.parameters()])
        # The two differ in how they look away from autograd, which is a detach.
        ran.append({op: count for op, count in ops.ran.items() if op is not aten.detach.default})
    assert ran[0] == ran[1]


def test_what_is_kept_is_not_computed_again() -> None:
    block, x = Block(Config(width=16, heads=2, context=8)), torch.randn(2, 8, 16, requires_grad=True)
    backward = flops_of(block(x).sum().backward)
    forward, attention = (
        flops_of(block, x),
        flops_of(F.scaled_dot_product_attention, *[torch.zeros(2, 2, 8, 8)] * 3),
    )
    last = 2 * 16 * 64 * 16
    for policy, expected in (
        ([], forward - last),
        ([ATTENTION], forward - last - attention),
        ([aten.addmm], attention),
        ([aten.addmm, ATTENTION], 0),
    ):
        y = ours(block, x, policy)
        assert flops_of(y.sum().backward) - backward == expected


def test_the_bytes_that_are_kept_are_those_of_the_results() -> None:
    block, x = Block(Config(width=16, heads=2, context=8)), torch.randn(2, 8, 16, requires_grad=True)
    stream = x.nbytes
    for policy, expected in (
        ([], 0),
        # Queries, keys and values; what merges the heads; and the two layers after it.
        ([aten.addmm], (3 + 1 + 4 + 1) * stream),
        # One number for each head comes on top, for the backward pass.
        ([ATTENTION], stream + 4 * 2 * 2 * 8),
        ([aten.view], 0),
    ):
        blocks = contexts(policy)
        with SavedBytes(block.parameters()) as saved:
            y = checkpoint_saved(block, x, context_fn=lambda blocks=blocks: blocks)
        assert blocks[0].bytes == expected
        assert saved.bytes == stream
        assert y.requires_grad


def test_a_policy_sees_the_operation_with_its_arguments_and_no_view() -> None:
    seen: list[Any] = []

    def policy(op: Any, *args: Any, **kwargs: Any) -> Keep:
        seen.append((op, [arg.shape for arg in args if isinstance(arg, Tensor)]))
        return Keep.SAVE if op is aten.mm.default and args[1].shape[1] == 7 else Keep.RECOMPUTE

    a, b = torch.randn(4, 7), torch.randn(7, 2)
    x = torch.randn(3, 4, requires_grad=True)
    y = ours(lambda x: (x @ a).t().t().sin() @ b, x, policy)
    assert [op for op, _ in seen] == [aten.mm.default, aten.sin.default, aten.mm.default]
    assert seen[2][1] == [(3, 7), (7, 2)]
    with Ops() as ops:
        y.sum().backward()
    # Two products belong to the gradients of `x`. The first of the function is not repeated.
    assert ops.ran[aten.mm.default] == 2
    assert len(seen) == 3


def test_all_overloads_can_be_named_at_once() -> None:
    module, x = transformer(), torch.randn(2, 8, 16, requires_grad=True)
    for policy in ([aten.addmm], {aten.addmm.default}, (aten.addmm.default,)):
        y = ours(module, x, policy)
        with Ops() as ops:
            y.sum().backward()
        assert ops.ran[aten.addmm.default] == 0


def test_one_name_covers_the_attention_of_every_device() -> None:
    found = {op.default.name() for op in selective.ATTENTION}
    every = {name for name in torch._C._dispatch_get_all_op_names() if "." not in name}
    kernels = {
        name
        for name in every
        if "_scaled_dot_product_" in name or name.endswith("_attention_forward")
        if not name.endswith("_backward")
    }
    # It is made of other operations, which a policy sees one by one.
    assert found == kernels - {"aten::_scaled_dot_product_attention_math"}
    q = torch.randn(1, 2, 4, 8, requires_grad=True)
    forward, again = contexts(selective.ATTENTION)
    attend = partial(F.scaled_dot_product_attention, key=q.detach(), value=q.detach())
    y = checkpoint_saved(lambda q: attend(q).sin(), q, context_fn=lambda: (forward, again))
    # The result, and one number for each row.
    assert forward.bytes == q.nbytes + 2 * 4 * 4
    with Ops() as ops:
        y.sum().backward()
    assert ops.ran[ATTENTION] == 0


def test_an_attention_without_a_kernel_is_told() -> None:
    q = torch.randn(1, 2, 4, 8, requires_grad=True)
    attend = partial(F.scaled_dot_product_attention, key=q.detach(), value=q.detach(), dropout_p=0.5)
    for policy in (selective.ATTENTION, [aten.addmm, *selective.ATTENTION]):
        with pytest.warns(UserWarning, match="this attention ran without one, so nothing of it is kept"):
            ours(lambda q: attend(q).sin(), q, policy)
    # Whoever lists other operations, or has a softmax of another kind, is told nothing.
    ours(lambda q: attend(q).sin(), q, [aten.bmm])
    ours(lambda q: q.softmax(-1).sin(), q, selective.ATTENTION)


def drops(x: Tensor) -> Tensor:
    """Two masks; `rand_like` is an operation of its own, so that each can be kept."""
    x = x * torch.rand_like(x).round()
    x = x.sin() * torch.rand_like(x).round()
    return x.cos()


def number(which: int, op: Any) -> Callable[..., Keep]:
    """Keep one call of an operation, counted from 0."""
    count = -1

    def policy(found: Any, *args: Any, **kwargs: Any) -> Keep:
        nonlocal count
        count += found is op
        return Keep.SAVE if found is op and count == which else Keep.RECOMPUTE

    return policy


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("run", [ours, under_torch])
def test_one_mask_is_kept_and_the_other_is_drawn_again(run: Any, which: int) -> None:
    plain = results(drops, shape=(8, 8))
    policy = number(which, aten.rand_like.default)
    assert same(results(lambda x: run(drops, x, policy), shape=(8, 8)), plain)


@pytest.mark.skipif(not since("2.13"), reason="PyTorch draws the same mask before 2.13")
def test_torch_draws_another_mask_after_a_kept_one() -> None:
    """Which is why the generators' state is kept with a mask."""
    count = 0

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> bool:
        nonlocal count
        count += op is aten.rand_like.default
        return op is aten.rand_like.default and count == 1

    plain = results(drops, shape=(8, 8))
    found = results(lambda x: theirs(drops, x, policy), shape=(8, 8))
    assert torch.equal(found[0], plain[0])
    assert not torch.equal(found[1], plain[1])


def test_kept_masks_need_no_state_of_the_generators() -> None:
    """If all of them are kept, the state need not be captured, and the program draws as it would anyway."""
    plain = results(drops, shape=(8, 8))
    run = partial(ours, policy=[aten.rand_like], preserve_rng_state=False)
    assert same(results(lambda x: run(drops, x), shape=(8, 8)), plain)
    # And without a policy the gradient is another one.
    run = partial(ours, policy=[], preserve_rng_state=False)
    assert not same(results(lambda x: run(drops, x), shape=(8, 8))[:2], plain[:2])


def test_a_mask_that_is_written_in_place_can_be_kept() -> None:
    """On a CPU dropout fills fresh memory in place, and scales it in place after that."""
    module = nn.Sequential(nn.Dropout(0.5), nn.Tanh(), nn.Dropout(0.5), nn.Tanh())
    plain = results(module, shape=(8, 8))
    for preserve in (True, False):
        run = partial(ours, policy=[aten.bernoulli_], preserve_rng_state=preserve)
        with Ops() as ops:
            assert same(results(lambda x, run=run: run(module, x), shape=(8, 8)), plain)
        assert ops.ran[aten.bernoulli_.float] == 2
    one = number(0, aten.bernoulli_.float)
    assert same(results(lambda x: ours(module, x, one), shape=(8, 8)), plain)


def test_a_generator_of_ones_own_goes_on_from_where_it_was() -> None:
    generator = torch.Generator()

    def noisy(x: Tensor) -> Tensor:
        for _ in range(2):
            x = x.sin() * torch.rand(x.shape, generator=generator)
        return x.cos()

    def run(x: Tensor, policy: Any) -> Tensor:
        generator.manual_seed(1)
        result: Tensor = checkpoint_saved(
            lambda x, _: noisy(x), x, generator, context_fn=partial(contexts, policy)
        )
        return result

    def seeded(x: Tensor) -> Tensor:
        generator.manual_seed(1)
        return noisy(x)

    plain = results(seeded)
    for which in (0, 1):
        policy = number(which, aten.rand.generator)
        assert same(results(lambda x, policy=policy: run(x, policy)), plain)


def test_writing_over_a_saved_result_is_refused_where_it_happens() -> None:
    w = torch.randn(4, 4)
    x = torch.randn(3, 4, requires_grad=True)
    sentence = r"aten.relu_.default writes over the result of aten.mm.default, which the policy saves"
    with pytest.raises(RuntimeError, match=sentence):
        ours(lambda x: (x @ w).relu_().sin(), x, [aten.mm])
    with pytest.raises(RuntimeError, match=r"aten.mul_.Tensor writes over"):
        ours(lambda x: (x @ w).view(-1)[1:].mul_(2).sin(), x, [aten.mm])


def test_a_preferred_result_that_is_written_over_is_computed_again() -> None:
    w = torch.randn(4, 4)

    def function(x: Tensor) -> Tensor:
        y = (x.sin() @ w).relu_()
        return (y.cos() @ w).tanh()

    def policy(op: Any, *args: Any, **kwargs: Any) -> Keep:
        return Keep.PREFER

    with Ops() as ops:
        assert same(results(partial(ours, function, policy=policy)), results(function))
    # Twice forward, twice backward; and of the recomputation only the one that was written over.
    assert ops.ran[aten.mm.default] == 2 + 2 + 1 + 4


def test_a_result_that_is_changed_after_the_function_is_refused() -> None:
    w = torch.randn(4, 4)
    x = torch.randn(3, 4, requires_grad=True)

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x @ w
        return y, y.sin()

    for run in (ours, under_torch):
        y, z = run(function, x, [aten.mm])  # type: ignore[misc, arg-type]
        with torch.no_grad():
            y.mul_(2)
        with pytest.raises(
            RuntimeError, match=r"the result of aten.mm.default, which the policy keeps, was changed"
        ):
            z.sum().backward()


def test_an_operation_that_writes_and_gives_cannot_be_saved() -> None:
    mean, var = torch.zeros(4), torch.ones(4)

    def function(x: Tensor) -> Tensor:
        found: Tensor = aten._native_batch_norm_legit.default(x, None, None, mean, var, True, 0.1, 1e-5)[0]
        return found.sin()

    x = torch.randn(3, 4, requires_grad=True)
    with pytest.raises(RuntimeError, match="writes over an argument and gives a new tensor, too"):
        ours(function, x, [aten._native_batch_norm_legit])
    plain = results(function)
    assert same(results(partial(ours, function, policy=lambda *_, **__: Keep.PREFER)), plain)


def test_a_kept_batch_norm_moves_its_running_mean_once() -> None:
    norm = nn.BatchNorm1d(4)
    x = torch.randn(3, 4, requires_grad=True)
    moved = {}
    for policy in ([], [aten.native_batch_norm]):
        norm.reset_running_stats()
        ours(lambda x: norm(x.sin()), x, policy, early_stop=False).sum().backward()
        moved[len(policy)] = int(norm.num_batches_tracked), norm.running_mean
    plain = nn.BatchNorm1d(4)
    plain(x.sin())
    assert torch.equal(moved[1][1], plain.running_mean)  # type: ignore[arg-type]


def test_a_graph_that_is_kept_can_be_gone_through_again() -> None:
    w = torch.randn(4, 4, requires_grad=True)
    x = torch.randn(3, 4, requires_grad=True)

    def function(x: Tensor) -> Tensor:
        return ((x @ w).sin() @ w).exp() * torch.rand(())

    torch.manual_seed(0)
    y = ours(function, x, [aten.mm, aten.rand])
    first = torch.autograd.grad(y.sum(), (x, w), retain_graph=True)
    second = torch.autograd.grad(y.sum(), (x, w))
    assert same(list(first), list(second))


def test_what_is_kept_holds_nothing_of_the_second_run() -> None:
    w = torch.randn(4, 4)
    x = torch.randn(3, 4, requires_grad=True)
    made: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def function(x: Tensor) -> Tensor:
        y = x.sin()
        made.add(y.untyped_storage())
        # The product saves `y` for the gradient of `v`, and its own result is kept.
        return ((y @ v) * 2).exp()

    v = w.clone().requires_grad_()
    gc.collect()
    z = ours(function, x, [aten.mm]).sum()
    assert not made
    gc.disable()
    try:
        z.backward(retain_graph=True)
        assert not made
    finally:
        gc.enable()


@pytest.mark.parametrize("early_stop", [False, True])
@pytest.mark.parametrize("which", range(4))
def test_a_function_that_asks_for_gradients_counts_its_calls_once(which: int, early_stop: bool) -> None:
    """Its recomputation in the middle of the forward pass makes calls of its own."""
    w = torch.linspace(-1, 1, 12).view(3, 4)

    def function(x: Tensor) -> Tensor:
        a = torch.tanh(x * w)
        (g,) = torch.autograd.grad((a * torch.tanh(a)).sum(), x, create_graph=True)
        b = torch.tanh(g * 2)
        return (b * torch.tanh(b * w + 3 * g)).sin()

    for policy in (number(which, aten.tanh.default), lambda *_, **__: Keep.PREFER):
        run = partial(ours, function, policy=policy, early_stop=early_stop)
        assert same(results(run), results(function))


@pytest.mark.parametrize("early_stop", [False, True])
def test_a_recomputation_within_the_forward_pass_writes_over_nothing(early_stop: bool) -> None:
    """Without early stop it reaches a write that the forward pass has still to do."""
    w = torch.linspace(-1, 1, 16).view(4, 4)

    def function(x: Tensor) -> Tensor:
        y = x.sin() @ w
        (g,) = torch.autograd.grad((y * 3).sum(), x, create_graph=True)
        return (y.mul_(2) * g).sin()

    run = partial(ours, function, policy=lambda *_, **__: Keep.PREFER, early_stop=early_stop)
    assert same(results(run), results(function))


def test_second_derivatives_are_those_of_the_plain_function() -> None:
    w = torch.randn(4, 4, dtype=torch.float64)
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(
        lambda x: ours(lambda x: (x @ w).tanh() @ w, x, [aten.mm, aten.tanh]), (x,)
    )


def test_a_checkpoint_inside_and_one_around() -> None:
    module = transformer()
    plain = results(module, module, (2, 8, 16))
    inner = lambda x: ours(module[2], ours(module[:2], x, [aten.addmm]), [ATTENTION])  # noqa: E731
    outer = lambda x: module[3](inner(x))  # noqa: E731
    assert same(results(lambda x: checkpoint_saved(outer, x), module, (2, 8, 16)), plain)
    assert same(results(partial(ours, outer, policy=[aten.addmm, aten.mul]), module, (2, 8, 16)), plain)


@pytest.mark.parametrize("policy", [[aten.mm], [aten.mm, aten.sin], lambda *_, **__: Keep.SAVE])
def test_nothing_is_left_once_the_graph_is_gone(policy: Any) -> None:
    w = torch.randn(4, 4, requires_grad=True)
    alive: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if isinstance(result, Tensor):
                alive.add(result.untyped_storage())
            return result

    gc.collect()
    gc.disable()
    try:
        for backward in (False, True):
            x = torch.randn(3, 4, requires_grad=True)
            with Watch():
                y = ours(lambda x: ((x @ w).sin() @ w).exp(), x, policy)
            assert len(alive) >= 3
            if backward:
                y.sum().backward()
            w.grad = None
            del x, y
            assert not [storage for storage in alive if storage is not w.untyped_storage()]
    finally:
        gc.enable()


def test_a_second_run_that_does_something_else_is_refused() -> None:
    w, runs = torch.randn(4, 4), 0

    def function(x: Tensor, extra: int) -> Tensor:
        nonlocal runs
        runs += 1
        y = x
        for _ in range(extra if runs % 2 == 0 else 0):
            y = y + torch.ones(2, 4) @ w[:, :1]
        return (y[:2] @ w).sin() @ w

    x = torch.randn(2, 4, requires_grad=True)
    for early_stop in (True, False):
        y = ours(partial(function, extra=1), x, [aten.mm], early_stop=early_stop, determinism_check="none")
        with pytest.raises(
            RuntimeError, match=r"call 0 of aten.mm.default in the recomputation has no equal"
        ):
            y.sum().backward()
    runs = 0
    policy = number(0, aten.mm.default)

    def longer(x: Tensor) -> Tensor:
        nonlocal runs
        runs += 1
        y = x @ w
        if runs == 2:
            x.detach() @ w
        return y.sin()

    y = ours(longer, x, policy, determinism_check="none")
    with pytest.raises(RuntimeError, match=r"call 1 of aten.mm.default in the recomputation has no equal"):
        y.sum().backward()


@pytest.mark.parametrize("policy", [["mm"], [torch.mm], [torch.matmul, aten.mm], [None]])
def test_only_operations_can_be_listed(policy: Any) -> None:
    with pytest.raises(TypeError, match=r"is not an ATen operation; name it as torch.ops.aten.mm"):
        contexts(policy)


@pytest.mark.parametrize("policy", [aten.mm, aten.mm.default])
def test_one_operation_is_not_a_list(policy: Any) -> None:
    with pytest.raises(TypeError, match=r"is one operation; give a list of them"):
        contexts(policy)


def test_an_answer_that_is_no_keep_is_refused() -> None:
    x = torch.randn(2, requires_grad=True)
    with pytest.raises(
        RuntimeError, match=r"for aten.sin.default the policy has answered 'save', which is not a Keep"
    ):
        ours(torch.sin, x, lambda *_, **__: "save")


W = torch.linspace(-1, 1, 16).view(4, 4)
STEPS: dict[str, Callable[[Tensor], Tensor]] = {
    "mm": lambda x: x @ W,
    "sin": torch.sin,
    "gelu": F.gelu,
    "exp": lambda x: x.tanh().exp(),
    "dropout": lambda x: F.dropout(x, 0.5),
    "noise": lambda x: x * torch.rand_like(x),
    "relu_": lambda x: (x + 0.1).relu_(),
    "mul_": lambda x: (x * 1).mul_(torch.rand_like(x)),
    "view": lambda x: x.reshape(-1).view(3, 4).t().contiguous().t(),
    "into a view": lambda x: torch.zeros(4, 4).index_put_((torch.arange(3),), x)[:3],
    "chunk": lambda x: torch.cat([part.cos() for part in x.chunk(2, dim=1)], dim=1),
    "norm": lambda x: F.layer_norm(x, (4,)),
}


@pytest.mark.full
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=6),
    st.integers(0, 2**32),
    st.sampled_from([0.3, 0.7, 1.0]),
    st.booleans(),
)
def test_any_policy_on_any_program_gives_the_plain_gradients(
    names: list[str], seed: int, share: float, early_stop: bool
) -> None:
    """Each call of each operation is kept or not by chance, in the middle of random numbers and writes."""

    def program(x: Tensor) -> Tensor:
        for name in names:
            x = STEPS[name](x)
        return x.sin()

    generator = torch.Generator().manual_seed(seed)

    def policy(op: Any, *args: Any, **kwargs: Any) -> Keep:
        return Keep.PREFER if torch.rand((), generator=generator) < share else Keep.RECOMPUTE

    found = results(partial(ours, program, policy=policy, early_stop=early_stop))
    assert same(found, results(program))
