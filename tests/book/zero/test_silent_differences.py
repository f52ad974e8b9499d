"""Programs that would differ from plain PyTorch without a word: each is right, or refused by name."""

from __future__ import annotations

import gc
from collections import UserDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

import ranks
from book.toys import assert_equal
from shardbook import Disagreement, Policy, load_from_rank0, shard, whole

STAGES = range(4)
INPUT = torch.linspace(-1, 1, 20).view(5, 4)


class Block(nn.Module):
    """A layer whose forward pass is given from outside."""

    def __init__(self, act: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.linear, self.act = nn.Linear(4, 4), act

    def forward(self, x: Tensor) -> Any:
        return self.act(self, x)


def two(act: Callable[[Any, Tensor], Any]) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Block(act), Block(act))


def train(model: nn.Module, loss_of: Callable[[Any, Tensor], Tensor]) -> dict[str, Any]:
    """Every rank reads the same, so a plain model has the same gradients."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(3):
        loss_of(model, model(INPUT)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return dict(model.state_dict())


def squared(model: Any, y: Tensor) -> Tensor:
    return y.square().mean()


def alike(act: Callable[[Any, Tensor], Any], loss_of: Any = squared, stages: Any = STAGES) -> None:
    expected = train(two(act), loss_of)
    for stage in stages:
        assert_equal(train(shard(two(act), stage=stage, units=Block), loss_of), expected)


@contextmanager
def refused(words: str, kind: type[Exception] = RuntimeError) -> Iterator[Any]:
    with pytest.raises(kind, match=words) as caught:
        yield caught


# --- Memory of a unit ---


class Square(torch.autograd.Function):
    """It keeps the weight, or a view of it, on its context instead of saving it."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, kept: Any) -> Tensor:  # type: ignore[override]
        ctx.weight = kept(weight)
        return weight.square().mean()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        # The property is a view, too.
        weight = ctx.weight.T.T if ctx.weight.shape == (4, 4) else ctx.weight.view(4, 4)
        return gradient * 2 * weight / weight.numel(), None


def penalty_of(kept: Any, last: bool = False) -> Callable[[Any, Tensor], Tensor]:
    """The penalty is the first that a block computes, or the last."""

    def act(block: Any, x: Tensor) -> Tensor:
        y = torch.tanh(block.linear(x)) if last else None
        block.penalty = Square.apply(block.linear.weight, kept)
        return torch.tanh(block.linear(x)) if y is None else y

    return act


def penalised(model: Any, y: Tensor) -> Tensor:
    return squared(model, y) + sum(block.penalty for block in model)


def under_a_pair_that_does_nothing(block: Any, x: Tensor) -> Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        block.penalty = block.linear.weight.square().mean()
    return torch.tanh(block.linear(x))


def returns_a_closure(block: Any, x: Tensor) -> Tensor:
    weight = block.linear.weight
    block.later = lambda value: value @ weight
    return torch.tanh(block.linear(x))


def lends(block: Any, x: Tensor) -> Tensor:
    block.linear.weight.detach().numpy()
    return torch.tanh(block.linear(x))


def memory_is_read_only_while_the_unit_is_whole() -> None:
    for kept in (lambda weight: weight, lambda weight: weight.view(16), lambda weight: weight.detach()):
        alike(penalty_of(kept), penalised)
        # The penalty alone: no hook of a result announces the unit.
        alike(penalty_of(kept), lambda model, y: sum(block.penalty for block in model))
    alike(
        penalty_of(lambda weight: weight.view(16), last=True),
        lambda model, y: sum(block.penalty for block in model),
    )
    alike(under_a_pair_that_does_nothing, penalised)
    losses: list[Tensor] = []

    def listed(block: Any, x: Tensor) -> Tensor:
        losses.append(Square.apply(block.linear.weight, lambda weight: weight))
        return torch.tanh(block.linear(x))

    def taken(model: Any, y: Tensor) -> Tensor:
        total = squared(model, y) + torch.stack(losses).sum()
        losses.clear()
        return total

    alike(listed, taken)

    def taken_alone(model: Any, y: Tensor) -> Tensor:
        total = torch.stack(losses).sum()
        losses.clear()
        return total

    # Nothing but the weight on the context announces the unit.
    alike(listed, taken_alone)

    def leaves_a_mean(block: Any, x: Tensor) -> Tensor:
        y = block.linear(x)
        losses.append(y.mean())
        return torch.tanh(y)

    # Nor does anything but what a part of the root has saved in a call inside that of the root.
    expected = train(two(leaves_a_mean), taken_alone)
    for stage in STAGES:
        assert_equal(train(shard(two(leaves_a_mean), stage=stage, units=()), taken_alone), expected)

    def closed(model: Any, y: Tensor) -> Tensor:
        return squared(model, y) + sum(block.later(INPUT).sum() for block in model)

    alike(returns_a_closure, closed, stages=(0, 1, 2))
    with refused(r"0\.linear\.weight of unit 0 was kept in its forward pass and read after it"):
        train(shard(two(returns_a_closure), units=Block), closed)
    alike(lends, stages=(0, 1, 2))
    model = shard(two(lends), units=Block)
    for _ in range(2):
        with refused(r"0 has lent the memory of its weights to another library, as weight\.numpy"):
            model(INPUT)
    seen: list[Any] = []
    other = shard(two(lambda block, x: seen.append(block.linear.weight) or block.linear(x)), units=Block)
    other(INPUT)
    assert "freed" in repr(seen[0])
    with refused("read after it, when its memory is freed"):
        seen[0].data.sum()
    with refused("read after it, when its memory is freed"):
        assert 1.0 in seen[0]
    del other
    # An error refers to the frames in which it was raised, and they to the error.
    gc.collect()
    with refused("a parameter was read after its model was dropped"):
        seen[0].sum()


# --- The parameters themselves ---


class Scaled(nn.Parameter):
    """A class of a program, as that of 8-bit weights."""


def reads_the_parameter(block: Any, x: Tensor) -> Tensor:
    weight = block.linear.weight
    assert type(weight) is Scaled if isinstance(block.linear.weight, Scaled) else True
    weight.calls = getattr(weight, "calls", 0) + 1
    return torch.tanh(block.linear(x)) * weight.scale


def with_attributes(kind: type[nn.Parameter]) -> Callable[[], nn.Sequential]:
    def built() -> nn.Sequential:
        model = two(reads_the_parameter)
        for number, block in enumerate(model):
            values = block.linear.weight.detach().clone()  # type: ignore[union-attr, operator]
            block.linear.weight = kind(values)  # type: ignore[union-attr]
            block.linear.weight.scale = 2.0 + number  # type: ignore[union-attr]
        return model

    return built


def a_parameter_keeps_its_attributes_and_its_class() -> None:
    for kind in (nn.Parameter, Scaled):
        built = with_attributes(kind)
        expected = train(built(), squared)
        for stage in STAGES:
            model = shard(built(), stage=stage, units=Block)
            assert_equal(train(model, squared), expected)
            weight = model[1].linear.weight  # type: ignore[union-attr]
            assert weight.calls == 3
            assert isinstance(weight, kind)


def writes(block: Any, x: Tensor) -> Tensor:
    block.linear.weight.data.mul_(0.5)
    return torch.tanh(block.linear(x))


def a_write_through_data_lasts_or_is_refused() -> None:
    alike(writes, stages=(0,))
    alike(lambda block, x: torch.tanh(block.linear(x)) * block.linear.weight.data.sum())
    for stage in (1, 2, 3):
        with refused("has written to its own parameters, and such a write does not last"):
            train(shard(two(writes), stage=stage, units=Block), squared)
        # In a block around no forward pass, before the first one.
        model = shard(two(writes), stage=stage, units=Block)
        with refused("such a write does not last"), whole(model):
            model[1].linear.weight.data.mul_(0.5)  # type: ignore[operator, union-attr]


def hooks_of_before_see_the_whole_weight() -> None:
    def build() -> nn.Sequential:
        model = two(lambda block, x: torch.tanh(block.linear(x)))
        model[0].register_forward_pre_hook(lambda block, args: args[0] * block.linear.weight.sum())
        return model

    expected = train(build(), squared)
    for stage in STAGES:
        assert_equal(train(shard(build(), stage=stage, units=Block), squared), expected)


def a_node_in_use_is_refused() -> None:
    calls: list[Any] = []
    for stage in STAGES:
        model = two(lambda block, x: block.linear(x))
        weight = model[0].linear.weight  # type: ignore[union-attr]
        node = weight.view_as(weight).grad_fn.next_functions[0][0]  # type: ignore[operator, union-attr]
        node.register_hook(calls.append)
        with refused(r"the node that accumulates the gradient of 0\.linear\.weight is in use", Disagreement):
            shard(model, stage=stage, units=Block)
        # Without the node there is no hook.
        del node
        shard(model, stage=stage, units=Block)(INPUT).sum().backward()
        assert not calls


# --- One memory under two tensors ---


def tied(how: str) -> nn.Module:
    model = nn.Module()
    model.one, model.other = nn.Linear(4, 4), nn.Linear(4, 4)
    one, other = model.one, model.other
    if how == "data":
        other.weight.data = one.weight.data
    elif how == "parameter":
        other.weight = nn.Parameter(one.weight)
    elif how == "slice":
        other.bias = nn.Parameter(one.weight[1])
    elif how == "column":
        other.bias = nn.Parameter(one.weight[:, 1])
    elif how == "buffer":
        model.register_buffer("kept", one.weight.data, persistent=False)
    elif how == "attribute":
        model.kept = {"deep": [one.weight.detach()]}
    return model


def apart(how: str) -> nn.Module:
    if how == "recurrent":
        return nn.LSTM(4, 4)
    if how == "normed":
        return torch.nn.utils.spectral_norm(nn.Linear(4, 4))
    model = tied("")
    flat = torch.randn(4, 8)
    if how == "columns":
        model.one.weight = nn.Parameter(flat[:, :4])
        model.other.weight = nn.Parameter(flat[:, 4:])
    if how == "one vector":
        model.one.weight = nn.Parameter(flat.view(-1)[:16].view(4, 4))
        model.other.weight = nn.Parameter(flat.view(-1)[16:].view(4, 4))
    if how == "tied":
        model.other.weight = model.one.weight
    if how == "itself":
        model.again = [model.one.weight]
    return model


def tensors_in_one_memory_are_refused() -> None:
    for how, name in (
        ("data", "other.weight"),
        ("parameter", "other.weight"),
        ("slice", "other.bias"),
        ("column", "other.bias"),
    ):
        with refused(f"{name} and one.weight are two parameters in one memory; give both", Disagreement):
            shard(tied(how))
    for how in ("buffer", "attribute"):
        for device in (None, "meta"):
            with torch.device(device or "cpu"):
                model = tied(how)
            with refused("kept lies in the memory of the parameter one.weight", Disagreement):
                shard(model)
    for how in ("recurrent", "normed", "columns", "one vector", "tied", "itself"):
        shard(apart(how))


# --- Ranks that do not do the same ---


def ranks_that_load_other_values_are_refused() -> None:
    mine = dist.get_rank() == 0
    source = two(lambda block, x: block.linear(x)).state_dict()
    source = {name: value + 1 for name, value in source.items()}
    other = {**source, "1.linear.bias": source["1.linear.bias"] + dist.get_rank()}
    for stage in STAGES:
        model = shard(two(lambda block, x: torch.tanh(block.linear(x))), stage=stage, units=Block)
        for given, name in ((source if mine else {}, "0.linear.weight"), (other, "1.linear.bias")):
            words = f"rank 1 was given other values of {name} than rank 0; give every rank the same"
            with refused(words, Disagreement):
                model.load_state_dict(given, strict=False)
        load_from_rank0(model, source if mine else None)
        assert_equal(dict(model.state_dict()), source)
        some = {name: value for name, value in source.items() if name != "0.linear.bias"}
        with refused('Missing key.*"0.linear.bias"'):
            load_from_rank0(model, some if mine else {"unread": 1})
        load_from_rank0(model, some if mine else None, strict=False)
        model.load_state_dict(source)
        train(model, squared)


def a_buffer_is_loaded_from_rank_0() -> None:
    rank = dist.get_rank()
    model = shard(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    model(INPUT * (rank + 1))
    state = dict(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).state_dict())
    load_from_rank0(model, state if rank == 0 else None)
    state = {name: value for name, value in state.items() if "weight" not in name and name != "0.bias"}
    found = model.state_dict()
    assert_equal({name: found[name] for name in state}, state)


def a_unit_that_one_rank_leaves_out_is_named() -> None:
    for stage in (1, 2):
        model = shard(two(lambda block, x: torch.tanh(block.linear(x))), stage=stage, units=Block)
        model[1].register_forward_hook(
            lambda module, given, result: given[0] * 2 if dist.get_rank() == 1 else result
        )
        with refused(r"rank 1.*every rank has to run the same units in the same order", Disagreement):
            train(model, squared)


def threads_are_refused() -> None:
    class Pool(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.blocks = nn.Linear(4, 4), two(lambda block, x: block.linear(x))

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            with ThreadPoolExecutor(2) as pool:
                return sum(pool.map(lambda block: block(x), self.blocks))  # type: ignore[return-value]

    for stage in STAGES:
        with refused("while another thread is in a forward pass of the same model"):
            shard(Pool(), stage=stage, units=Block)(INPUT)
        # One thread after the other may call it.
        model = shard(two(lambda block, x: block.linear(x)), stage=stage, units=Block)
        for _ in range(2):
            with ThreadPoolExecutor(1) as pool:
                pool.submit(model, INPUT).result().sum().backward()
        while_another_is_inside(model)


def while_another_is_inside(model: nn.Module) -> None:
    """Whichever of the two threads came first, and whichever has the larger number."""
    inside, leave = Event(), Event()

    def stay(*_: object) -> None:
        inside.set()
        leave.wait()

    handle = model[0].register_forward_pre_hook(stay)  # type: ignore[index]
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(model, INPUT)
        inside.wait()
        with refused("while another thread is in a forward pass of the same model"):
            model[1](INPUT)  # type: ignore[index]
        leave.set()
        running.result().sum().backward()
    handle.remove()


def a_backward_pass_inside_a_forward_pass_has_a_thread_of_its_own() -> None:
    """As on a GPU, where autograd runs it in the device's thread. A recomputation there is let through."""

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = two(lambda block, x: torch.tanh(block.linear(x)))

        def forward(self, x: Tensor) -> Tensor:
            inner = x.detach().requires_grad_()
            energy = checkpoint(self.blocks[0], inner, use_reentrant=False).sum()
            with ThreadPoolExecutor(1) as pool:
                pool.submit(energy.backward).result()
            assert inner.grad is not None
            y: Tensor = self.blocks(x + inner.grad)
            return y

    plain = train(Inner(), squared)
    for stage in STAGES:
        assert_equal(train(shard(Inner(), stage=stage, units=Block), squared), plain)


# --- Formats of what comes in and goes out ---


class Answer:
    def __init__(self, y: Tensor) -> None:
        self.y, self.name, self.cache = y, "answer", SimpleNamespace()


def what_comes_in_and_goes_out_is_cast_in_any_object() -> None:
    policy = Policy(param_dtype=torch.bfloat16, output_dtype=torch.float32)
    kinds: dict[str, tuple[Any, Any]] = {
        "object": (lambda y: Answer(y), lambda result: result.y),
        "namespace": (lambda y: SimpleNamespace(y=[y]), lambda result: result.y[0]),
        "user dictionary": (lambda y: {"a": UserDict(y=y)}, lambda result: result["a"]["y"]),
    }
    for stage in (0, 3):
        for wrap, unwrap in kinds.values():
            model = shard(
                two(lambda block, x: block.linear(x["x"] if isinstance(x, UserDict) else x)),
                stage=stage,
                units=Block,
                policy=policy,
            )
            model[1].act = lambda block, x, wrap=wrap: wrap(block.linear(x))
            given = UserDict(x=INPUT)
            found = unwrap(model(given))
            assert found.dtype is torch.float32
            found.sum().backward()
            # What the caller holds is not changed.
            assert given["x"] is INPUT


CASES = [
    memory_is_read_only_while_the_unit_is_whole,
    a_parameter_keeps_its_attributes_and_its_class,
    a_write_through_data_lasts_or_is_refused,
    hooks_of_before_see_the_whole_weight,
    a_node_in_use_is_refused,
    tensors_in_one_memory_are_refused,
    ranks_that_load_other_values_are_refused,
    a_buffer_is_loaded_from_rank_0,
    threads_are_refused,
    a_backward_pass_inside_a_forward_pass_has_a_thread_of_its_own,
    what_comes_in_and_goes_out_is_cast_in_any_object,
    # The last one, because the ranks have disagreed for good then.
    a_unit_that_one_rank_leaves_out_is_named,
]


@pytest.mark.cases(now=1, ci=1)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_no_program_differs_without_a_word(case: Callable[[], None]) -> None:
    ranks.run(2, case)


# --- Averages of weights ---


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.block = nn.Linear(4, 4), Block(lambda block, x: torch.tanh(block.linear(x)))

    def forward(self, x: Tensor) -> Any:
        return self.block(self.first(x))


def by_lerp(teacher: nn.Module, student: nn.Module) -> None:
    for average, new in zip(teacher.parameters(), student.parameters(), strict=True):
        average.lerp_(new, 0.1)


def by_data(teacher: nn.Module, student: nn.Module) -> None:
    for average, new in zip(teacher.parameters(), student.parameters(), strict=True):
        average.data.mul_(0.9).add_(new.data * 0.1)


def by_lists(teacher: nn.Module, student: nn.Module) -> None:
    torch._foreach_lerp_(list(teacher.parameters()), list(student.parameters()), 0.1)


class Pair(nn.Module):
    """A student, and a teacher that is its moving average, updated in the forward pass or between steps."""

    def __init__(self, update: Callable[[nn.Module, nn.Module], None], inside: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.student, self.teacher = Tower(), Tower()
        self.teacher.load_state_dict(self.student.state_dict())
        self.update, self.inside = torch.no_grad()(update), inside

    def forward(self, x: Tensor) -> Tensor:
        if self.inside:
            self.update(self.teacher, self.student)
        with torch.no_grad():
            aim = self.teacher(x + 0.1)
        return (self.student(x) - aim - 1).square().mean()


def distilled(model: Pair) -> dict[str, Any]:
    model.teacher.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.student.parameters(), lr=0.1)
    for _ in range(3):
        model(INPUT).backward()
        optimizer.step()
        optimizer.zero_grad()
        if not model.inside:
            model.update(model.teacher, model.student)
    return dict(model.state_dict())


def one_recipe_holds_at_every_stage() -> None:
    for update in (by_lerp, by_data, by_lists):
        for inside in (False, True):
            expected = distilled(Pair(update, inside))
            for stage in STAGES:
                model = shard(Pair(update, inside), stage=stage, units=(Tower, Block))
                assert_equal(distilled(model), expected)


def averaged(model: nn.Module, average: Any, x: Tensor = INPUT) -> dict[str, Any]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(3):
        squared(model, model(x)).backward()
        optimizer.step()
        optimizer.zero_grad()
        average.update_parameters(model)
    return {**model.state_dict(), **{f"average.{k}": v for k, v in average.module.state_dict().items()}}


def the_average_of_pytorch_is_sharded_like_the_model() -> list[str]:
    multi = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    said = []
    for how in ({}, {"multi_avg_fn": multi}):
        torch.manual_seed(0)
        plain = Tower()
        begin = plain.state_dict(keep_vars=False)
        begin = {key: value.clone() for key, value in begin.items()}
        expected = averaged(plain, AveragedModel(plain, **how))
        for stage in STAGES:
            model = Tower()
            model.load_state_dict(begin)
            average = AveragedModel(model, **how)
            shard(average.module, stage=stage, units=Block)
            shard(model, stage=stage, units=Block)
            assert_equal(averaged(model, average), expected)
    for stage in STAGES[1:]:
        torch.manual_seed(0)
        model = Tower()
        before = AveragedModel(model)
        shard(model, stage=stage, units=Block)
        with refused("is only a slice here, and copy_ would mix it") as caught:
            averaged(model, before)
        said.append(str(caught.value))
        model = Pair(by_lerp, inside=False)
        model.teacher.requires_grad_(False)
        frozen_first = shard(model, stage=stage, units=(Tower, Block))
        if stage < 3:
            with refused("is only a slice here, and lerp_ would mix it") as caught:
                distilled(frozen_first)
            said.append(str(caught.value))
    with refused("make copies before sharding", TypeError):
        AveragedModel(model)
    return said


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize(
    "check",
    [one_recipe_holds_at_every_stage, the_average_of_pytorch_is_sharded_like_the_model],
)
def test_averages_of_weights(check: Any) -> None:
    one, other = ranks.run(2, check)
    assert one == other
