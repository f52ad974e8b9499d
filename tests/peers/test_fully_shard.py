"""What PyTorch's own tests of `fully_shard` assert of a model holds here, or is refused in one sentence.

Only what `tests/book` does not cover stands here. The behaviour is PyTorch's; the code is not.
"""

from __future__ import annotations

import re
import warnings
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import ranks
from book.reference import assert_same_values
from book.zero.test_scheduler import WIDTH, Model, Run, Unit, assert_clean, data, train
from tiers import rows

Program = Callable[[Run, int], list[Tensor]]
PROGRAMS: dict[str, tuple[Callable[[], nn.Module], Any, Program]] = {}


def program(build: Callable[[], nn.Module], units: Any) -> Callable[[Program], Program]:
    """Enter a program under its own name."""

    def enter(function: Program) -> Program:
        PROGRAMS[function.__name__] = (build, units, function)
        return function

    return enter


def plainly(run: Run, step: int, *arguments: Any, grad: bool = False) -> list[Tensor]:
    x = data(step, grad=grad)
    loss = run.model(x, *arguments).square().sum()
    run.undo(loss)
    return [loss, *([x.grad] if grad else [])]


# --- Which parameters a model has, and how it is made of modules ---


def in_two_places() -> nn.Module:
    first, second = Unit(), Unit()
    return nn.Sequential(first, second, first, nn.Tanh(), second)


PROGRAMS["one_module_in_two_places"] = (in_two_places, None, plainly)


class Frozen(Model):
    """Some units are frozen as a whole, some in part, and some are used several times."""

    def __init__(self) -> None:
        super().__init__()
        self.units[0].requires_grad_(False)
        self.units[2].requires_grad_(False)
        self.units[3].linear.weight.requires_grad_(False)  # type: ignore[union-attr]


@program(Frozen, Unit)
def frozen_units_used_several_times(run: Run, step: int) -> list[Tensor]:
    return plainly(run, step, (0, 1, 2, 2, 0, 1, 3, 2, 3), grad=bool(step % 2))


@program(lambda: Model().requires_grad_(False), Unit)
def the_gradient_of_an_input_of_a_frozen_model(run: Run, step: int) -> list[Tensor]:
    x = data(step, grad=True)
    run.model(x).square().sum().backward()
    assert x.grad is not None
    return [x.grad]


class Strided(nn.Module):
    """Parameters that are not stored row by row; none is an operand of a matrix product."""

    def __init__(self) -> None:
        super().__init__()
        self.turned = nn.Parameter(torch.randn(WIDTH, 3).t())
        self.every_other = nn.Parameter(torch.randn(3, 2 * WIDTH)[:, ::2])
        self.channels_last = nn.Parameter(torch.randn(1, 3, 1, WIDTH).to(memory_format=torch.channels_last))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x * self.turned + self.every_other) * self.channels_last[0, :, 0]


PROGRAMS["parameters_with_strides"] = (
    lambda: nn.Sequential(Strided(), Unit(), Strided()),
    None,
    plainly,
)


class Containers(nn.Module):
    """Parameters in lists and dictionaries of parameters, units in dictionaries of modules."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList([torch.randn(WIDTH), nn.Parameter(torch.randn(3, WIDTH))])
        self.shifts = nn.ParameterDict({"a": torch.randn(WIDTH), "b": torch.randn(1)})
        self.units = nn.ModuleDict({"a": Unit(), "b": Unit()})

    def forward(self, x: Tensor) -> Tensor:
        for name, unit in self.units.items():
            x = unit(x) + self.shifts[name]
        for scale in self.scales:
            x = x * scale
        return x


PROGRAMS["containers_of_parameters"] = (
    lambda: nn.Sequential(Containers(), Unit(), Containers()),
    (Containers, Unit),
    plainly,
)
PROGRAMS["containers_of_parameters_in_the_root"] = (Containers, Unit, plainly)


# --- What goes into a unit and what comes out ---


class Named(NamedTuple):
    hidden: Tensor
    label: str
    nothing: None = None


class Gives(Unit):
    """Results of every kind beside the tensor."""

    def forward(self, x: Any, *, scale: int | None, flag: bool = True) -> Any:  # type: ignore[override]
        hidden = x["named"].hidden if isinstance(x, dict) else x
        y = super().forward(hidden) * (scale or 1)
        kinds = OrderedDict(
            named=Named(y, "a"), number=3, empty=[], none=None, mask=y > 0, more=(y * 2, {"x": {y.sum()}})
        )
        return kinds if flag else y


class PassesKinds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.units = nn.ModuleList(Gives() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        first = self.units[0](x, scale=None)
        assert type(first) is OrderedDict
        assert type(first["named"]) is Named
        assert first["named"].label == "a"
        assert (first["number"], first["empty"], first["none"]) == (3, [], None)
        second = self.units[1](first, scale=first["number"])
        third: Tensor = self.units[2](x=second, scale=2, flag=False)
        (total,) = second["more"][1]["x"]
        return third * first["mask"] + second["more"][0] + total


PROGRAMS["results_that_are_no_tensors"] = (PassesKinds, Gives, plainly)


class Two(Unit):
    """Two results, each of its own part of the parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return super().forward(x), torch.tanh(self.other(x))


class UsesOne(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.units = nn.ModuleList(Two() for _ in range(3))

    def forward(self, x: Tensor, which: tuple[int, ...]) -> Tensor:
        for unit, index in zip(self.units, which, strict=True):
            x = unit(x)[index]
        return x


@program(UsesOne, Two)
def each_rank_uses_another_result(run: Run, step: int) -> list[Tensor]:
    rank = dist.get_rank()
    return plainly(run, step, ((0, 0, 0), (rank, 1, 0), (1, rank, 1 - rank), (1, 1, rank))[step])


class Square(torch.autograd.Function):
    """Keeps a weight for its backward pass, which is asked only for what is needed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x * weight * weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        back = gradient * weight * weight if ctx.needs_input_grad[0] else None
        return back, (2 * gradient * x * weight).sum(0)


class Squares(Unit):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = super().forward(Square.apply(x, self.weight))
        return y


PROGRAMS["functions_with_a_backward_of_their_own"] = (
    lambda: nn.Sequential(*[Squares() for _ in range(3)]),
    None,
    plainly,
)


# --- How a step is put together ---


@program(Model, Unit)
def several_micro_batches_on_their_way(run: Run, step: int) -> list[Tensor]:
    """As a stage of a pipeline: one forward and one backward in turn, some passes ahead, one exchange."""
    losses = [run.model(data(step, number)).square().sum() for number in range(2)]
    done = []

    def undo() -> None:
        done.append(losses.pop(0))
        done[-1].backward()
        if len(done) < 3:
            losses.append(run.model(data(step, len(done) + 1)).square().sum())

    run.backward(undo, undo, undo, undo)
    return done


@program(Model, Unit)
def only_the_backward_pass_decides_about_the_exchange(run: Run, step: int) -> list[Tensor]:
    """A forward pass inside of `no_sync` whose backward pass is outside, and the other way round."""
    from shardbook import no_sync

    outside = run.model(data(step)).square().sum()
    if not run.sharded:
        inside = run.model(data(step, 1)).square().sum()
        run.backward(outside.backward, inside.backward)
        return [outside, inside]
    with no_sync(run.model):
        inside = run.model(data(step, 1)).square().sum()
        outside.backward()
    inside.backward()
    return [outside, inside]


@program(Model, Unit)
def gradients_that_the_program_changes(run: Run, step: int) -> list[Tensor]:
    """In place, by others, to nothing: the next backward pass adds to what it finds."""
    plainly(run, step)
    for number, parameter in enumerate(run.model.parameters()):
        assert parameter.grad is not None
        if number % 4 == 0:
            parameter.grad.mul_(0.5)
        elif number % 4 == 1:
            parameter.grad = parameter.grad * 0.25
        elif number % 4 == 2:
            parameter.grad = None
    loss = run.model(data(step, 1)).sum()
    run.undo(loss)
    with torch.no_grad():
        torch._foreach_mul_([parameter.grad for parameter in run.model.parameters()], 0.5)
    return [loss]


@program(Model, Unit)
def zeroed_gradients_of_idle_units(run: Run, step: int) -> list[Tensor]:
    """A gradient that is zero, and not `None`, lets momentum and decay move an idle unit."""
    if step == 0:
        run.optimizer = torch.optim.SGD(run.model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    run.optimizer.zero_grad(set_to_none=step == 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = plainly(run, step, ((0, 1, 2, 3), (1, 3), (3, 0), (2, 0))[step])
    run.optimizer.step()
    run.optimizer.zero_grad(set_to_none=False)
    return result


@program(Model, Unit)
def other_optimizers(run: Run, step: int) -> list[Tensor]:
    """Groups made by name after sharding, a schedule, and the loops over lists and in one kernel."""
    kind = ({"foreach": True}, {"fused": True}, {"amsgrad": True}, {"maximize": True})[step]
    named = dict(run.model.named_parameters())
    groups = [
        {"params": [p for name, p in named.items() if ends is name.endswith("bias")], "lr": lr}
        for ends, lr in ((True, 0.1), (False, 0.01))
    ]
    run.optimizer = torch.optim.AdamW(groups, **kind)
    schedule = torch.optim.lr_scheduler.ExponentialLR(run.optimizer, 0.5)
    result = plainly(run, step)
    run.step()
    schedule.step()
    return [*result, *plainly(run, step + 1)]


@program(Model, Unit)
def detect_anomaly(run: Run, step: int) -> list[Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.detect_anomaly():
            return plainly(run, step)


def with_hooks() -> nn.Module:
    """Hooks of every kind from before sharding, which read the unit's weights and change what passes."""
    model = Model()
    for unit in model.units:
        unit.register_forward_pre_hook(lambda unit, args: (args[0] * unit.linear.bias,))
        unit.register_forward_hook(lambda unit, _, output: output @ unit.linear.weight)
        unit.register_full_backward_pre_hook(lambda _, gradients: (gradients[0] * 0.5,))
        unit.register_full_backward_hook(lambda _, inputs, __: (inputs[0] * 2,))
    return model


PROGRAMS["hooks_from_before"] = (with_hooks, Unit, partial(plainly, grad=True))


@program(Model, Unit)
def saving_in_the_middle(run: Run, step: int) -> list[Tensor]:
    """Between a forward pass and its backward pass, and between two micro-batches that wait."""
    one, other = run.model(data(step)).square().sum(), run.model(data(step, 1)).sum()
    saved = [run.model.state_dict()]

    def undo(loss: Tensor) -> None:
        loss.backward()
        saved.append(run.model.state_dict())

    run.backward(partial(undo, one), partial(undo, other))
    return [one, other, *(value for state in saved for value in state.values())]


def run_programs(stage: int) -> None:
    for name, (build, units, steps) in PROGRAMS.items():
        try:
            train(build, units, steps, stage, 1)
        except Exception as error:
            raise AssertionError(f"{name}: {error}") from error


@pytest.mark.nightly
@pytest.mark.parametrize("stage", rows([0, 1, 2, 3], now=[3]))
def test_every_program_trains_as_a_plain_model(stage: int) -> None:
    ranks.run(2, run_programs, stage)


# --- What is registered where ---


def shown_parameters() -> None:
    """Whole in the pass of their own unit and slices outside of it, under the same names and in one order."""
    from shardbook import shard

    plain, model = Model(), shard(Model(), units=Unit)
    names = [name for name, _ in plain.named_parameters()]
    shapes = [parameter.shape for parameter in plain.parameters()]
    own = [id(parameter) for parameter in model.parameters()]
    seen = []

    def look(unit: nn.Module, *_: Any) -> None:
        assert [name for name, _ in model.named_parameters()] == names
        for parameter in unit.parameters():
            assert isinstance(parameter, nn.Parameter)
            assert parameter.is_leaf
            assert parameter.requires_grad
        seen.append([parameter.shape for parameter in unit.parameters()])

    def outside() -> None:
        assert [name for name, _ in model.named_parameters()] == names
        assert [id(parameter) for parameter in model.parameters()] == own
        assert all(parameter.dim() == 1 for parameter in model.parameters())

    for unit in model.units:  # type: ignore[union-attr]
        unit.linear.register_forward_pre_hook(lambda *_, unit=unit: look(unit))
        unit.linear.register_full_backward_hook(lambda *_, unit=unit: look(unit))
    for step in range(2):
        outside()
        loss = model(data(step, grad=True)).sum()
        outside()
        loss.backward()
        outside()
    assert seen == [shapes[1:3]] * 2 * 2 * 4


@pytest.mark.full
def test_a_units_parameters_are_whole_in_its_own_passes_only() -> None:
    ranks.run(2, shown_parameters)


# --- Saving and loading ---


def other_ways_to_save_and_load() -> None:
    from shardbook import shard

    for stage in range(4):
        torch.manual_seed(0)
        plain = Model()
        model: Any = shard(Model(), units=Unit, stage=stage)
        model.load_state_dict({name: value.double() for name, value in plain.state_dict().items()})
        assert_same_values(model, plain)

        part = {name: value + 1 for name, value in plain.state_dict().items() if "units.1" not in name}
        found = model.load_state_dict({**part, "other": torch.ones(1)}, strict=False)
        assert found == plain.load_state_dict({**part, "other": torch.ones(1)}, strict=False)
        assert_same_values(model, plain)
        with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "units.1.linear.weight"'):
            model.load_state_dict(part)
        assert_same_values(model, plain)

        unit = {name: value * 2 for name, value in model.units[2].state_dict().items()}
        assert list(unit) == ["linear.weight", "linear.bias"]
        for each in (plain, model):
            each.units[2].load_state_dict(unit)
        assert_same_values(model, plain)
        assert_same_values(model.units, plain.units)

        # Inside of a plain model, which has a parameter of its own.
        outer = [nn.ModuleDict({"inner": each, "more": nn.Linear(1, 1)}) for each in (plain, model)]
        outer[1].load_state_dict({name: value - 1 for name, value in outer[0].state_dict().items()})
        outer[0].load_state_dict(outer[1].state_dict())
        assert_same_values(outer[1], outer[0])

        kept = model.state_dict(keep_vars=True)
        assert {name: value.shape for name, value in kept.items()} == {
            name: value.shape for name, value in plain.state_dict().items()
        }
        assert_clean(model)


@pytest.mark.full
def test_saving_and_loading_in_part_with_a_prefix_and_in_another_dtype() -> None:
    ranks.run(2, other_ways_to_save_and_load)


# --- What is refused ---


class InAList(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.scales = nn.ParameterList([torch.randn(WIDTH)])

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks[1](self.blocks[0](x)) * self.scales[0]


def said_by(attempt: Callable[[], Any]) -> str:
    from shardbook import Disagreement

    with pytest.raises((RuntimeError, Disagreement)) as caught:
        attempt()
    return str(caught.value)


def misuse() -> dict[Any, str]:
    from shardbook import shard

    said = {}
    for stage in (0, 1, 3):
        for kind in (nn.ModuleList, nn.ParameterList):
            model = shard(InAList(), units=kind, stage=stage)
            said[stage, kind.__name__] = said_by(lambda model=model: model(data(0)).sum().backward())
        model = shard(Model(), units=Unit, stage=stage)
        handle = next(model.parameters()).register_post_accumulate_grad_hook(print)
        said[stage, "hook"] = said_by(lambda model=model: model(data(0)).sum().backward())
        handle.remove()

        def load(model: nn.Module = model) -> None:
            loss = model(data(0)).sum()
            model.load_state_dict(Model().state_dict())
            loss.backward()

        said[stage, "load"] = said_by(load)
        # Nothing is left of what was refused.
        model.zero_grad()
        model(data(0)).sum().backward()
        blocks = InAList()
        shard(blocks.blocks[0], stage=stage)
        said[stage, "bottom up"] = said_by(partial(shard, blocks, stage=stage))
    return said


@pytest.mark.full
def test_a_container_as_a_unit_a_hook_a_late_load_and_sharding_bottom_up_are_refused() -> None:
    for said in ranks.run(2, misuse):
        for (stage, what), sentence in said.items():
            expected = {
                "ModuleList": r"^blocks\.\d\.\w+ ",
                "ParameterList": r"^scales\.0 ",
                "hook": "^the gradient hook on scale in unit the root would never be called; remove it$",
                "load": "parameters were changed between this unit's forward pass and its backward pass",
                "bottom up": r"^rank 0: blocks\.0\.weight is sharded already; shard a model only once$",
            }[what]
            assert re.search(expected, sentence), (stage, what, sentence)
            if what.endswith("List"):
                assert "outside of" in sentence
                assert 'inside of "with whole(model):"' in sentence, (stage, what, sentence)


# --- Dtypes ---


class Sees(nn.Module):
    """Notes the dtypes of what it is called with and of its own parameter and buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.register_buffer("shift", torch.ones(WIDTH))
        self.seen: list[torch.dtype] = []

    def forward(self, x: Tensor, *others: Tensor | None, **more: Tensor) -> Tensor:
        tensors = (x, *others, *more.values(), self.weight, self.shift)
        self.seen = [tensor.dtype for tensor in tensors if tensor is not None]
        return x * self.weight


class Outside(nn.Module):
    """Its second unit gets a tensor that the model has made itself, in another dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Sees(), Sees()

    def forward(self, x: Tensor, *others: Tensor | None, **more: Tensor) -> Tensor:
        y: Tensor = self.second(self.first(x, *others, **more).float())
        return y


def inputs_of_every_dtype() -> None:
    """Floating-point inputs are cast where the model gets them, and all others, and buffers, are not."""
    from shardbook import Policy, shard

    full, half = torch.float32, torch.bfloat16
    for stage in (0, 2, 3):
        model: Any = shard(Outside(), units=Sees, stage=stage, policy=Policy(param_dtype=half))
        x = data(0, grad=True)
        counts, mask, wave = torch.ones(1, dtype=torch.int64), torch.ones(1) > 0, torch.ones(1) * 1j
        double = torch.ones(2, dtype=torch.float64, requires_grad=True)
        y = model(x, double, None, counts, mask=mask, wave=wave)
        assert model.first.seen == [half, half, torch.int64, torch.bool, torch.complex64, half, full]
        assert model.second.seen == [full, half, full]
        y.sum().backward()
        assert x.grad is not None
        assert x.grad.dtype == full
        for parameter in model.parameters():
            assert parameter.dtype == parameter.grad.dtype == full


def test_inputs_are_cast_once_and_only_those_in_floating_point() -> None:
    ranks.run(2, inputs_of_every_dtype)
