"""Programs that run their units in unusual ways, and programs that fail on the way: each equals a plain
model, averaged in rank order, bit for bit, or is refused in one sentence.
"""

from __future__ import annotations

import gc
import itertools
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.checkpoint import checkpoint

import ranks
from book.live import LiveStorages
from book.reference import assert_all_sharded, assert_same_values, without_gradient
from book.zero.test_hooks import InARow
from shardbook import Prefetch
from tiers import rows

WIDTH = 6
# Small units that are gathered in one exchange.
TOGETHER = Prefetch(1, together=2**20)
# Stage, and how many units are gathered ahead. Only stage 3 gathers in the backward pass, too.
WAYS = [(0, 1), (1, 1), (2, 1), (3, 0), (3, 1), (3, 3), (1, TOGETHER), (2, TOGETHER), (3, TOGETHER)]
Program = Callable[["Run", int], list[Tensor]]
PROGRAMS: dict[str, tuple[Callable[[], nn.Module], Any, Program]] = {}


class Run:
    """A model that is trained on this rank: a plain one, averaged by hand, or a sharded one."""

    def __init__(self, model: nn.Module, sharded: bool) -> None:
        self.model, self.sharded = model, sharded
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def backward(self, *passes: Callable[[], None]) -> None:
        """Some backward passes whose gradients are added up and then averaged once."""
        from shardbook import no_sync

        if self.sharded:
            for number, one in enumerate(passes, 1):
                with nullcontext() if number == len(passes) else no_sync(self.model):
                    one()
            return
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        before = [parameter.grad for parameter in trained]
        for parameter in trained:
            parameter.grad = None
        for one in passes:
            one()
        mine = [p.grad for p in trained]
        for parameter, old, mean in zip(trained, before, mean_in_rank_order(mine), strict=True):
            parameter.grad = old if mean is None else mean if old is None else old + mean

    def undo(self, *losses: Tensor, **options: Any) -> None:
        """One backward pass of some losses together."""
        self.backward(sum(losses, start=losses[0].new_zeros(())).backward if not options else
                      partial(losses[0].backward, **options))  # fmt: skip

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()


def mean_in_rank_order(mine: list[Tensor | None]) -> list[Tensor | None]:
    """`None` for what no rank has used; a rank that has not used it counts as zero."""
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    means: list[Tensor | None] = []
    for parts in zip(*everyone, strict=True):
        found = [part for part in parts if part is not None]
        filled = [torch.zeros_like(found[0]) if part is None else part for part in parts] if found else []
        means.append(sum(filled[1:], start=filled[0]) / len(parts) if filled else None)
    return means


def data(step: int, number: int = 0, *, grad: bool = False) -> Tensor:
    """No two ranks, steps and numbers read the same."""
    generator = torch.Generator().manual_seed(1000 * step + 10 * number + dist.get_rank())
    return torch.randn(3, WIDTH, generator=generator).requires_grad_(grad)


def assert_clean(model: nn.Module) -> None:
    """Between two steps nothing is whole, on its way, or waiting."""
    from shardbook.zero.scheduler import Scheduler, scheduler_of
    from shardbook.zero.unit import State

    scheduler = scheduler_of(model)
    assert Scheduler.in_flight is None
    assert not scheduler.passes
    assert not scheduler.late
    assert not scheduler.kept
    for unit in scheduler.units:
        assert unit.state is State.SHARDED, unit.name
        for flat in unit.flats:
            assert flat.grad_full is flat.sending is flat.reducing is None, unit.name


def train(
    build: Callable[[], nn.Module],
    units: Any,
    program: Program,
    stage: int,
    prefetch: int | Prefetch,
    steps: int = 4,
) -> None:
    """Run a program on a plain and on a sharded model and compare results and parameters after each step."""
    from shardbook import shard

    torch.manual_seed(0)
    plain = Run(build(), sharded=False)
    torch.manual_seed(0)
    sharded = Run(shard(build(), units=units, stage=stage, prefetch=prefetch), sharded=True)
    for step in range(steps):
        expected, found = program(plain, step), program(sharded, step)
        for one, other in zip(expected, found, strict=True):
            assert torch.equal(one, other), f"step {step}: a result differs"
        assert without_gradient(sharded.model) == without_gradient(plain.model), f"step {step}"
        assert_clean(sharded.model)
        plain.step()
        sharded.step()
        assert_same_values(sharded.model, plain.model)


# Models


class Unit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x))


class Model(nn.Module):
    """Runs its units in any order; the root has parameters that are used at the start and at the end."""

    def __init__(self, count: int = 4) -> None:
        super().__init__()
        self.units = nn.ModuleList(Unit() for _ in range(count))
        self.scale = nn.Parameter(torch.randn(WIDTH))
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, order: Any = (0, 1, 2, 3)) -> Tensor:
        x = x * self.scale
        for index in order:
            x = self.units[index](x)
        y: Tensor = self.head(x)
        return y


class Bare(nn.Module):
    """No parameter outside of the units."""

    def __init__(self) -> None:
        super().__init__()
        self.units = nn.ModuleList(Unit() for _ in range(4))

    forward = nn.Sequential.forward

    def __iter__(self) -> Iterator[nn.Module]:
        return iter(self.units)


class Nested(nn.Module):
    """A unit in a unit in a unit, each used twice or around itself."""

    def __init__(self, depth: int = 2) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.inner = Nested(depth - 1) if depth else None

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.before(x))
        if self.inner is not None:
            x = self.inner(self.inner(x))
        y: Tensor = self.after(x) + self.before(x)
        return y


class Recursive(nn.Module):
    """A unit that calls itself."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, depth: int = 3) -> Tensor:
        x = torch.tanh(self.linear(x))
        return x if not depth else self(x, depth - 1) + self.linear(x)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.units = nn.ModuleList(Unit() for _ in range(3))
        self.units[2].linear.weight = self.units[0].linear.weight

    def forward(self, x: Tensor) -> Tensor:
        for unit in self.units:
            x = unit(x)
        return x


class Encoder(Unit):
    def forward(self, x: Tensor) -> dict[str, Any]:  # type: ignore[override]
        return {"hidden": super().forward(x), "name": "memory", "more": [x.sum(), (x * self.linear.bias,)]}


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, *, memory: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        return torch.tanh(self.query(x) + self.key(memory["hidden"]) + memory["more"][1][0]), memory


class EncoderDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(Encoder() for _ in range(2))
        self.decoders = nn.ModuleList(Decoder() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        memory = self.encoders[1](self.encoders[0](x)["hidden"])
        for decoder in self.decoders:
            x, memory = decoder(x, memory=memory)
        return x


@dataclass
class Box:
    hidden: Tensor
    more: Any = None


class Boxes(Unit):
    def forward(self, box: Box) -> Box:  # type: ignore[override]
        return Box(super().forward(box.hidden), more=Box(box.hidden, [self.linear.bias * 2]))


class InBoxes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Boxes(), Boxes()

    def forward(self, x: Tensor) -> Tensor:
        box = self.second(self.first(Box(x)))
        y: Tensor = box.hidden + box.more.more[0] + box.more.hidden
        return y


class Appends(Unit):
    """Puts its result into the caller's list."""

    def forward(self, values: list[Tensor]) -> list[Tensor]:  # type: ignore[override]
        values.append(super().forward(values[-1]))
        return values


class InLists(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.units = nn.ModuleList(Appends() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        values = [x]
        for unit in self.units:
            values = unit(values)
        return torch.stack(values).sum(0)


class Passes(Unit):
    """Returns its input as it is, or not."""

    def forward(self, x: Tensor, use: bool = True) -> Tensor:
        return super().forward(x) if use else x


class Identities(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.units = nn.ModuleList(Passes() for _ in range(3))

    def forward(self, x: Tensor, use: Any = (True, False, True)) -> Tensor:
        for unit, used in zip(self.units, use, strict=True):
            x = unit(x, used)
        return x


class Lends(nn.Module):
    """Returns its parameters, or views of them."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH)

    def forward(self, how: str) -> Any:
        w = self.weight
        return {"whole": w, "turned": w.t(), "row": w[0], "twice": (w, w), "detached": w.detach()}[how]


class Borrows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lends, self.unit = Lends(), Unit()

    def forward(self, x: Tensor) -> Tensor:
        y = self.unit(x) @ self.lends("whole") @ self.lends("turned") + self.lends("row")
        one, other = self.lends("twice")
        z: Tensor = y @ one @ other + x @ self.lends("detached")
        return z


class InPlace(nn.Module):
    """Writes into its input and into its output."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x += 1
        y: Tensor = self.linear(x.mul_(2) * 1)
        return y.tanh_()


class WritesInPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.units = nn.ModuleList(InPlace() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for unit in self.units:
            x = unit(x * 1) * 1
            x += 1
        return x


class Ignores(nn.Module):
    """Has a result that nobody uses, and calls a unit whose result nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.units = nn.ModuleList(Unit() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.units[0](x)
        self.units[1](x)
        with torch.no_grad():
            kept = self.units[2](x)
        y: Tensor = self.units[2](x) * kept
        return y


class Branches(nn.Module):
    """Many units with one input."""

    def __init__(self) -> None:
        super().__init__()
        self.units = nn.ModuleList(Unit() for _ in range(5))
        self.first = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return torch.stack([unit(x) for unit in self.units]).prod(0)


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.units = nn.ModuleList(Unit() for _ in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.units[0](x)
        return self.units[1](x), self.units[2](x)


class Library(nn.Module):
    """Units of PyTorch that look at their own parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.2))
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.recurrent = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        torch.manual_seed(dist.get_rank())
        x = self.first(x)[None]
        x, _ = self.attention(x, x, x)
        y: Tensor = self.recurrent(x)[0][0]
        return y


# Programs


def program(build: Callable[[], nn.Module], units: Any, *arguments: Any) -> Callable[[Program], Program]:
    """Enter a program under its own name."""

    def enter(function: Program) -> Program:
        PROGRAMS[function.__name__] = (build, units, partial(function, *arguments))
        return function

    return enter


def plainly(run: Run, step: int, *arguments: Any, grad: bool = False) -> list[Tensor]:
    loss = run.model(data(step, grad=grad), *arguments).square().sum()
    run.undo(loss)
    return [loss]


for name, build, units in [
    ("chain", Model, Unit),
    ("without_a_root", Bare, Unit),
    ("nested", Nested, (Nested, nn.Linear)),
    ("recursion", Recursive, ()),
    ("a_recursive_unit", lambda: nn.Sequential(Recursive(), Recursive()), Recursive),
    ("tied_across_units", Tied, Unit),
    ("encoder_and_decoder", EncoderDecoder, (Encoder, Decoder)),
    ("dataclasses", InBoxes, Boxes),
    ("lists", InLists, Appends),
    ("inputs_as_outputs", Identities, Passes),
    ("parameters_as_outputs", Borrows, (Lends, Unit)),
    ("in_place", WritesInPlace, InPlace),
    ("unused_results", Ignores, Unit),
    ("branches", Branches, Unit),
    ("modules_of_pytorch", Library, (nn.Sequential, nn.MultiheadAttention, nn.GRU)),
]:
    PROGRAMS[name] = (build, units, plainly)
PROGRAMS["an_input_with_a_gradient"] = (Model, Unit, partial(plainly, grad=True))


@program(Model, Unit)
def another_order_each_time(run: Run, step: int) -> list[Tensor]:
    orders = [(3, 2, 1, 0), (0, 0, 2, 1, 2), (1,), (2, 0, 3)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return plainly(run, step, orders[step])


@program(Bare, Unit)
def units_called_by_themselves(run: Run, step: int) -> list[Tensor]:
    x = data(step)
    for index in (2, 0, 2, 3):
        x = run.units[index](x)
    run.undo(x.square().sum())
    return [x]


@program(Model, (Unit, nn.Linear))
def units_called_beside_the_model(run: Run, step: int) -> list[Tensor]:
    x = run.units[0](data(step))
    y = run.units[3](run.model(x))
    run.undo(y.square().sum(), run.head(run.units[2](x)).sum())
    return [y]


@program(Model, Unit)
def two_forwards_one_backward(run: Run, step: int) -> list[Tensor]:
    one, other = run.model(data(step)), run.model(data(step, 1))
    run.undo(one.square().sum(), other.sum())
    return [one, other]


@program(Model, Unit)
def backward_in_the_order_of_forward(run: Run, step: int) -> list[Tensor]:
    losses = [run.model(data(step, number)).square().sum() for number in range(3)]
    for loss in losses if step % 2 else losses[::-1]:
        run.undo(loss)
    return losses


@program(Model, Unit)
def forwards_and_backwards_in_turn(run: Run, step: int) -> list[Tensor]:
    one, other = run.model(data(step)).sum(), run.model(data(step, 1)).square().sum()
    run.undo(one)
    third = run.model(data(step, 2)).square().sum()
    run.undo(other)
    run.undo(third)
    return [one, other, third]


@program(Model, Unit)
def a_graph_used_three_times(run: Run, step: int) -> list[Tensor]:
    loss = run.model(data(step, grad=bool(step % 2))).square().sum()
    for last in (False, False, True):
        run.backward(partial(loss.backward, retain_graph=not last))
    return [loss]


@program(Heads, Unit)
def two_losses_over_one_trunk(run: Run, step: int) -> list[Tensor]:
    one, other = run.model(data(step))
    run.backward(partial(one.sum().backward, retain_graph=True))
    run.undo(other.square().sum())
    return [one, other]


@program(Model, Unit)
def several_roots(run: Run, step: int) -> list[Tensor]:
    y, z = run.model(data(step)), run.model(data(step, 1)).sum()
    run.backward(partial(torch.autograd.backward, [y, z], [torch.ones_like(y), None]))
    return [y, z]


@program(Model, Unit)
def the_gradient_of_an_input(run: Run, step: int) -> list[Tensor]:
    x = data(step, grad=True)
    loss = run.model(x).square().sum()
    (gradient,) = torch.autograd.grad(loss, x, retain_graph=True)
    if step % 2:
        loss = run.model(data(step, 1)).sum()
    run.undo(loss)
    return [gradient, loss]


@program(Bare, Unit)
def backward_from_the_middle(run: Run, step: int) -> list[Tensor]:
    x = run.units[1](run.units[0](data(step, grad=True)))
    y = run.units[3](run.units[2](x)).sum()
    run.backward(partial(x.sum().backward, retain_graph=True))
    run.undo(y)
    return [x, y]


@program(Bare, Unit)
def a_graph_in_two_halves(run: Run, step: int) -> list[Tensor]:
    x = run.units[1](run.units[0](data(step)))
    cut = x.detach().requires_grad_()
    y = run.units[3](run.units[2](cut)).sum()
    run.undo(y)
    assert cut.grad is not None
    run.backward(partial(x.backward, cut.grad))
    return [y, cut.grad]


@program(Model, Unit)
def evaluation_with_gradients_in_between(run: Run, step: int) -> list[Tensor]:
    before = run.model(data(step, 5))
    loss = run.model(data(step)).square().sum()
    with torch.no_grad():
        between = run.model(data(step, 6), (0, 2))
    after = run.model(data(step, 7))
    run.undo(loss)
    with torch.inference_mode():
        last = run.model(data(step, 8), (0, 2)).clone()
    return [before, loss, between, after, last]


@program(Model, Unit)
def hooks_of_others(run: Run, step: int) -> list[Tensor]:
    seen: list[Tensor] = []

    def double(module: nn.Module, args: Any, output: Tensor) -> None:
        output.register_hook(lambda gradient: (seen.append(gradient.clone()), gradient * 2)[1])

    handles: list[Any] = []
    for unit in run.units:
        handles.append(unit.register_forward_hook(double))
        handles.append(unit.register_full_backward_hook(lambda _, *gradients: seen.append(gradients[1][0])))
    result = plainly(run, step, grad=True)
    for handle in handles:
        handle.remove()
    return [*result, *seen]


@program(Model, Unit)
def saved_tensors_elsewhere(run: Run, step: int) -> list[Tensor]:
    with torch.autograd.graph.save_on_cpu():
        loss = run.model(data(step)).square().sum()
    run.undo(loss)
    return [loss]


@program(Model, Unit)
def micro_batches_that_use_other_units(run: Run, step: int) -> list[Tensor]:
    run.undo(run.model(data(step)).sum())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one = run.model(data(step, 1), (0, 1)).sum()
        other = run.model(data(step, 2), (2, 3, 2)).square().sum()
    run.backward(one.backward, other.backward)
    return [one, other]


@program(Model, Unit)
def zero_grad_between_micro_batches(run: Run, step: int) -> list[Tensor]:
    from shardbook import no_sync

    given_up = run.model(data(step)).sum()
    if run.sharded:
        with no_sync(run.model):
            given_up.backward()
        run.model.zero_grad(set_to_none=bool(step % 2))
    one, other = run.model(data(step, 1)).sum(), run.model(data(step, 2)).sum()
    run.backward(one.backward, other.backward)
    return [one, other]


@program(Model, Unit)
def threads(run: Run, step: int) -> list[Tensor]:
    """Forward in one thread, backward in another."""
    with ThreadPoolExecutor(1) as forward, ThreadPoolExecutor(1) as backward:
        loss = forward.submit(lambda: run.model(data(step, grad=True)).square().sum()).result()
        backward.submit(run.undo, loss).result()
    return [loss]


def run_programs(stage: int, prefetch: int | Prefetch) -> None:
    for name, (build, units, program) in PROGRAMS.items():
        try:
            train(build, units, program, stage, prefetch)
        except Exception as error:
            raise AssertionError(f"{name}: {error}") from error


@pytest.mark.nightly
@pytest.mark.parametrize(("stage", "prefetch"), rows(WAYS, now=[(3, 1)]))
def test_every_program_trains_as_a_plain_model(stage: int, prefetch: int | Prefetch) -> None:
    ranks.run(2, run_programs, stage, prefetch, timeout=400)


@pytest.mark.nightly
def test_three_ranks_too() -> None:
    ranks.run(3, run_programs, 3, 1, timeout=400)


# Checkpointing


class Checkpoints(nn.Module):
    """Units that are computed again in the backward pass, alone, in groups, or in groups of groups."""

    def __init__(self, how: str, reentrant: bool) -> None:
        super().__init__()
        self.how = how
        self.again = partial(checkpoint, use_reentrant=reentrant)
        self.units = nn.ModuleList(Inside(reentrant) if how == "inside" else Unit() for _ in range(4))
        self.scale = nn.Parameter(torch.randn(WIDTH))

    def part(self, start: int, stop: int, x: Tensor) -> Tensor:
        for unit in self.units[start:stop]:
            x = unit(x)
        return x

    def nest(self, x: Tensor) -> Tensor:
        x = self.units[0](x)
        x = self.again(partial(self.part, 1, 3), x)
        y: Tensor = self.units[3](x)
        return y

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "each":
            for unit in self.units:
                x = self.again(unit, x)
        elif self.how == "pairs":
            x = self.again(partial(self.part, 0, 2), x)
            x = self.again(partial(self.part, 2, 4), x)
        elif self.how == "all":
            x = self.again(partial(self.part, 0, 4), x)
        elif self.how == "nested":
            x = self.again(self.nest, x)
        elif self.how == "some":
            x = self.units[0](x)
            x = self.again(partial(self.part, 1, 3), x)
            x = self.units[3](x)
        else:
            x = self.part(0, 4, x)
        return x * self.scale


class Inside(nn.Module):
    """A unit that computes a part of itself again."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def body(self, x: Tensor) -> Tensor:
        return torch.tanh(self.second(torch.tanh(self.first(x))))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = checkpoint(self.body, x, use_reentrant=self.reentrant) + self.first(x)
        return y


def checkpointed(run: Run, step: int) -> list[Tensor]:
    one = run.model(data(step, grad=True)).square().sum()
    if step == 0:
        run.undo(one)
        return [one]
    other = run.model(data(step, 1, grad=True)).square().sum()
    if step == 1:
        run.undo(one)
        run.undo(other)
    else:
        run.backward(one.backward, other.backward)
    return [one, other]


def run_checkpoints(stage: int, prefetch: int | Prefetch, reentrant: bool) -> None:
    # Of nested reentrant checkpoints the inner one warns of what the outer one hides from it.
    warnings.filterwarnings("ignore", "None of the inputs have requires_grad")
    for how in ("each", "pairs", "all", "nested", "some", "inside"):
        build = partial(Checkpoints, how, reentrant)
        try:
            train(build, (Unit, Inside), checkpointed, stage, prefetch, steps=3)
        except Exception as error:
            raise AssertionError(f"{how}: {error}") from error


@pytest.mark.nightly
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize(("stage", "prefetch"), rows([WAYS[0], WAYS[2], *WAYS[3:]], now=[(3, 3)]))
def test_what_is_computed_again_gives_the_same(stage: int, prefetch: int | Prefetch, reentrant: bool) -> None:
    ranks.run(2, run_checkpoints, stage, prefetch, reentrant, timeout=300)


# Failures


class Failure(Exception):
    pass


def fail(*_: Any) -> None:
    raise Failure


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def fail_in_forward(
    place: Callable[[Any], Any], stop: Callable[..., None], run: Run, step: int
) -> list[Tensor]:
    if step % 2:
        handle = place(run).register_forward_pre_hook(stop)
        with pytest.raises(KeyboardInterrupt if stop is interrupt else Failure):
            run.model(data(step, 4, grad=True))
        handle.remove()
    return plainly(run, step)


def fail_after_a_unit(run: Run, step: int) -> list[Tensor]:
    if step % 2:
        handle = run.units[1].register_forward_hook(fail)
        with pytest.raises(Failure):
            run.model(data(step, 4))
        handle.remove()
    return plainly(run, step)


def fail_in_backward(stop: Callable[..., None], run: Run, step: int) -> list[Tensor]:
    results: list[Tensor] = []
    if step % 2:
        handle = run.units[1].register_forward_hook(
            lambda _, args, output: output.register_hook(stop) and None
        )
        loss = run.model(data(step, 4)).square().sum()
        handle.remove()
        with pytest.raises(KeyboardInterrupt if stop is interrupt else Failure):
            loss.backward()
        if run.sharded:
            with pytest.raises(RuntimeError, match=r"did not end|not been averaged"):
                run.optimizer.step()
        run.optimizer.zero_grad()
        with torch.no_grad():
            results = [run.units[0](data(step, 5)), run.model(data(step, 6))]
    return [*results, *plainly(run, step)]


def fail_in_a_recomputation(run: Run, step: int) -> list[Tensor]:
    if step % 2:
        loss = run.model(data(step, 4, grad=True)).square().sum()
        handle = run.units[1].linear.register_forward_pre_hook(fail)
        with pytest.raises(Failure):
            loss.backward()
        handle.remove()
        run.optimizer.zero_grad()
    return plainly(run, step, grad=True)


def fail_between_micro_batches(run: Run, step: int) -> list[Tensor]:
    """What was collected before the failed forward pass still counts."""
    one = run.model(data(step)).sum()
    if run.sharded:
        from shardbook import no_sync

        with no_sync(run.model):
            one.backward()
    handle = run.units[1].linear.register_forward_pre_hook(fail)
    with pytest.raises(Failure):
        run.model(data(step, 4))
    handle.remove()
    other = run.model(data(step, 1)).square().sum()
    run.backward(*[other.backward] if run.sharded else [one.backward, other.backward])
    return [one, other]


def interrupt_what_is_called_by_itself(run: Run, step: int) -> list[Tensor]:
    """A KeyboardInterrupt passes by the hooks that follow a forward pass."""
    results = []
    if step % 2:
        handle = run.units[1].linear.register_forward_pre_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            run.model(data(step, 4)) if step == 1 else run.units[1](data(step, 4))
        handle.remove()
        with torch.no_grad():
            for parameter in run.optimizer.param_groups[0]["params"]:
                parameter.mul_(0.5)
            results.append(run.units[1](run.units[0](data(step, 5))))
            # It had been gathered ahead, with the parameters of before.
            results.append(run.units[2](data(step, 6)))
    return [*results, *plainly(run, step)]


FAILURES: dict[str, tuple[Callable[[], nn.Module], Program]] = {
    "first unit": (Model, partial(fail_in_forward, lambda run: run.units[0].linear, fail)),
    "last unit": (Model, partial(fail_in_forward, lambda run: run.units[3].linear, fail)),
    "before a unit": (Model, partial(fail_in_forward, lambda run: run.units[2], fail)),
    "root": (Model, partial(fail_in_forward, lambda run: run.head, fail)),
    "interrupt": (Model, partial(fail_in_forward, lambda run: run.units[2].linear, interrupt)),
    "interrupt by itself": (Model, interrupt_what_is_called_by_itself),
    "after a unit": (Model, fail_after_a_unit),
    "backward": (Model, partial(fail_in_backward, fail)),
    "interrupted backward": (Model, partial(fail_in_backward, interrupt)),
    "micro-batches": (Model, fail_between_micro_batches),
    **{
        f"recomputed, {how}, {reentrant}": (partial(Checkpoints, how, reentrant), fail_in_a_recomputation)
        for how in ("each", "pairs", "some")
        for reentrant in (False, True)
    },
}


def run_failures(stage: int, prefetch: int | Prefetch) -> None:
    for name, (build, program) in FAILURES.items():
        try:
            train(build, Unit, program, stage, prefetch)
        except Exception as error:
            raise AssertionError(f"{name}: {error}") from error


@pytest.mark.nightly
@pytest.mark.parametrize(("stage", "prefetch"), rows(WAYS, now=[(3, 1)]))
def test_after_a_failure_the_next_step_is_right(stage: int, prefetch: int | Prefetch) -> None:
    ranks.run(2, run_failures, stage, prefetch, timeout=300)


# What is refused, what is warned of, and what is given back


def refusals(stage: int) -> None:
    from shardbook import shard

    model = shard(Model(), units=Unit, stage=stage)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(data(0)).sum().backward()
    parameters = list(model.parameters())

    def weights_change(change: Callable[[], Any]) -> None:
        loss = model(data(0)).square().sum()
        change()
        with pytest.raises(RuntimeError, match="between this unit's forward pass and its backward pass"):
            loss.backward()
        optimizer.zero_grad()
        model(data(0)).sum().backward()
        assert_clean(model)

    weights_change(optimizer.step)
    weights_change(torch.no_grad()(lambda: torch._foreach_mul_(parameters, 0.5)))
    with pytest.raises(ValueError, match="sharded already"):
        shard(nn.Sequential(Unit(), model.units[0]), stage=stage)  # type: ignore[index]
    if stage == 0:
        # Elsewhere a rank's slice may not even have a shape to compute with.
        for outside in (lambda: model.forward(data(0)), lambda: model(data(0)) * model.scale):  # type: ignore[operator]
            with pytest.raises(RuntimeError, match="outside"):
                outside().sum().backward()
            optimizer.zero_grad()
            model(data(0)).sum().backward()
            assert_clean(model)


@pytest.mark.cases(now=1, ci=1)
@pytest.mark.parametrize("stage", range(4))
def test_what_would_be_silently_wrong_is_refused(stage: int) -> None:
    ranks.run(2, refusals, stage)


def one_warning(stage: int, prefetch: int | Prefetch) -> None:
    from shardbook import shard

    model = shard(Model(), units=Unit, stage=stage, prefetch=prefetch)

    def run(order: Any = (0, 1, 2, 3)) -> None:
        model(data(0), order).sum().backward()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            run()
            with torch.no_grad():
                model(data(0), (2, 3))
            model.units[2](data(0)).sum().backward()  # type: ignore[index,operator]
            handle = model.units[1].register_forward_pre_hook(fail)  # type: ignore[index,union-attr]
            with pytest.raises(Failure):
                run()
            handle.remove()
        assert not caught, caught[0].message
        for order in [(0, 2, 1, 3), (1,), (3, 2, 1, 0), (0, 0, 0)]:
            run(order)
    if not prefetch:
        assert not caught
        return
    (only,) = caught
    assert "after units.0 units.1 was expected, but units.2 ran" in str(only.message)
    assert only.filename == __file__


class Twice(nn.Module):
    """A model that calls itself in the middle of its forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, again: bool = True) -> Tensor:
        x = torch.tanh(self.first(x))
        y: Tensor = self.last(self(x, again=False) if again else x)
        return y


def the_same_order_with_a_call_inside() -> None:
    """It is followed: while the first layer computes in a later pass, the next is on its way."""
    from shardbook import shard
    from shardbook.zero.scheduler import scheduler_of
    from shardbook.zero.unit import State

    model: Any = shard(Twice(), units=nn.Linear)
    (last,) = (unit for unit in scheduler_of(model).units if unit.name == "last")
    states: list[State] = []
    model.first.register_forward_hook(lambda *_: states.append(last.state))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            model(data(0)).sum().backward()
    # Of the two uses of the first layer in a pass, the last layer follows the second.
    assert states[0::2] == [State.SHARDED] * 3
    assert states[1::2] == [State.SHARDED, State.GATHERING, State.GATHERING]


def test_the_end_of_a_call_inside_is_not_taken_for_the_end_of_the_pass() -> None:
    ranks.run(2, the_same_order_with_a_call_inside)


@pytest.mark.cases(now=1, ci=1)
@pytest.mark.parametrize(("stage", "prefetch"), [(1, 1), (3, 1), (3, 3), (3, 0)])
def test_a_changed_order_is_told_once_and_by_name(stage: int, prefetch: int | Prefetch) -> None:
    ranks.run(2, one_warning, stage, prefetch)


class KeepsItsLoss(Model):
    loss: Tensor

    def forward(self, x: Tensor) -> None:  # type: ignore[override]
        self.loss = super().forward(x).sum()


def gathered_ahead() -> None:
    from shardbook import shard
    from shardbook.zero.scheduler import scheduler_of
    from shardbook.zero.unit import State

    for build in (Model, KeepsItsLoss):
        for depth, limit in itertools.product((0, 1, 2, 9), (0, 200, 400, None)):
            model = shard(build(), units=Unit, prefetch=Prefetch(depth, limit))
            scheduler, most = scheduler_of(model), [0, 0]

            def look(*_: Any, scheduler: Any = scheduler, most: list[int] = most) -> None:
                ahead = [unit.nbytes for unit in scheduler.units if unit.state is State.GATHERING]
                most[:] = max(most[0], len(ahead)), max(most[1], sum(ahead))

            for unit in model.units:  # type: ignore[union-attr]
                unit.linear.register_forward_pre_hook(look)
                unit.linear.register_full_backward_hook(look)
            for step in range(3):
                y = model(data(step, grad=True))
                if y is not None:
                    y.sum().backward()
            assert most[0] <= depth, (most, depth, limit)
            assert limit is None or most[1] <= limit, (most, depth, limit)
            if limit is None:
                assert most[0] == min(depth, 3), (most, depth)


def a_limit_of_exactly_one_unit() -> None:
    """A unit that just fits is gathered ahead; with a byte less it is not."""
    from shardbook import shard
    from shardbook.zero.scheduler import scheduler_of
    from shardbook.zero.unit import State

    drivers = scheduler_of(shard(Model(), units=Unit)).units
    (size,) = {unit.nbytes for unit in drivers if unit.name != "the root"}
    for limit, expected in ((size - 1, 0), (size, 1), (2 * size - 1, 1), (2 * size, 2)):
        model = shard(Model(), units=Unit, prefetch=Prefetch(9, limit))
        units, most = list(scheduler_of(model).units), [0]

        def look(*_: Any, units: list[Any] = units, most: list[int] = most) -> None:
            most[0] = max(most[0], sum(unit.state is State.GATHERING for unit in units))

        for unit in model.units:  # type: ignore[union-attr]
            unit.linear.register_forward_pre_hook(look)
        for step in range(2):
            model(data(step, grad=True)).sum().backward()
        assert most[0] == expected, (limit, most)


class Halves(nn.Module):
    """A unit of two layers, of which each use takes one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: Tensor, which: int) -> Tensor:
        y: Tensor = self.layers[which](x)
        return y


class Between(nn.Module):
    """A unit runs between the two uses of another."""

    def __init__(self) -> None:
        super().__init__()
        self.halves, self.between, self.last = Halves(), Unit(), Unit()

    def forward(self, x: Tensor) -> Tensor:
        self.first = self.halves(x, 0)
        y: Tensor = self.last(self.halves(self.between(self.first), 1))
        return y


def a_unit_between_two_uses_of_another() -> None:
    from shardbook import shard
    from shardbook.zero.scheduler import scheduler_of
    from shardbook.zero.unit import State

    model: Any = shard(Between(), units=(Halves, Unit))
    (halves,) = (unit for unit in scheduler_of(model).units if unit.name == "halves")
    states: list[State] = []
    for step in range(2):
        y = model(data(step))
        model.first.register_hook(lambda _: states.append(halves.state))
        y.sum().backward()
    assert states[-1] is State.GATHERING


def test_in_the_backward_pass_a_unit_is_gathered_ahead_for_each_of_its_uses() -> None:
    ranks.run(2, a_unit_between_two_uses_of_another)


def before_and_at_the_end_of_a_unit() -> None:
    """What is next in the backward pass, while the unit before it computes and when that has ended."""
    from shardbook import shard
    from shardbook.zero.scheduler import scheduler_of
    from shardbook.zero.unit import State

    for trains in (True, False):
        model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(3)])
        model[1].requires_grad_(trains)
        shard(model, units=nn.Linear)
        (next_,) = (unit for unit in scheduler_of(model).units if unit.name == "0")
        states: list[State] = []

        def look(_: Tensor, unit: Any = next_, states: list[State] = states) -> None:
            states.append(unit.state)

        # The hook that ends the middle layer is called after the first of these and before the second.
        model[0].register_forward_hook(lambda _, args, y, look=look: y.register_hook(look) and None)
        model[1].register_forward_pre_hook(lambda _, args, look=look: args[0].register_hook(look) and None)
        model(data(0)).sum().backward()
        assert states == [State.GATHERING if trains else State.SHARDED, State.GATHERING]


def test_the_next_unit_is_gathered_with_the_first_gradient_of_a_unit_or_at_its_end() -> None:
    ranks.run(2, before_and_at_the_end_of_a_unit)


def test_a_limit_of_exactly_one_unit_lets_one_unit_be_gathered_ahead() -> None:
    ranks.run(2, a_limit_of_exactly_one_unit)


@pytest.mark.nightly
def test_no_more_is_gathered_ahead_than_allowed_and_no_less_than_can_be() -> None:
    ranks.run(2, gathered_ahead)


def whole_in_backward() -> None:
    from shardbook import shard
    from shardbook.zero.scheduler import scheduler_of
    from shardbook.zero.unit import State

    model = shard(Branches(), units=Unit, prefetch=0)
    scheduler, most = scheduler_of(model), [0]

    def look(*_: Any) -> None:
        whole = [unit for unit in scheduler.units if unit.state is not State.SHARDED]
        most[0] = max(most[0], len(whole))

    for unit in model.units:  # type: ignore[union-attr]
        unit.linear.register_forward_hook(lambda _, args, output: output.register_hook(look) and None)
    for step in range(2):
        model(data(step)).sum().backward()
    assert most[0] == 2, f"{most[0]} units were whole at once: the root and {most[0] - 1} branches"


def test_branches_are_freed_one_by_one_in_the_backward_pass() -> None:
    ranks.run(2, whole_in_backward)


def at_the_end_of_a_backward_pass() -> None:
    """Also of one inside another: nothing is in flight, not even what was gathered in vain."""
    from shardbook import shard
    from shardbook.zero.scheduler import Scheduler, scheduler_of

    for stage in (1, 3):
        model: Any = shard(Ignores(), units=Unit, stage=stage)
        scheduler, inner = scheduler_of(model), model(data(1)).sum()

        def run_another(
            _: Tensor, scheduler: Any = scheduler, inner: Tensor = inner, stage: int = stage
        ) -> None:
            inner.backward()
            assert Scheduler.in_flight is None
            # What stage 1 exchanges at the end waits for the end of the outer one.
            assert bool(scheduler.late) is (stage == 1)

        handle = model.units[0].register_forward_hook(
            lambda *passed, act=run_another: passed[-1].register_hook(act) and None
        )
        outer = model(data(0)).sum()
        handle.remove()
        outer.backward()
        assert_clean(model)


def test_at_the_end_of_a_backward_pass_nothing_is_in_flight() -> None:
    ranks.run(2, at_the_end_of_a_backward_pass)


def two_exchanges_of_a_layer_in_one_pass() -> None:
    """A second pass through one graph exchanges each use, the second before the copies have a mean."""
    from shardbook import shard

    for stage in (2, 3):
        models = [InARow(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)) for _ in range(2)]
        models[1].load_state_dict(models[0].state_dict())
        shard(models[1], units=nn.Linear, stage=stage, mesh=init_device_mesh("cpu", (2, 1)))
        for model in models:
            loss = model(torch.ones(3, WIDTH, requires_grad=True)).sum()
            loss.backward(retain_graph=True)
            loss.backward()
        for one, other in zip(*(model.parameters() for model in models), strict=True):
            torch.testing.assert_close(one.grad.flatten(), other.grad)


def test_the_exchange_of_a_first_use_ends_before_that_of_the_second_begins() -> None:
    ranks.run(2, two_exchanges_of_a_layer_in_one_pass)


class Calls(nn.Module):
    """A unit that uses its own parameter before and after another unit."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.linear = nn.Parameter(torch.randn(WIDTH)), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x * self.scale) * self.scale
        return y


class Retries(nn.Linear):
    """Calls itself once more after a call of itself was interrupted."""

    def forward(self, x: Tensor, call: int = 0) -> Tensor:
        if call == 1:
            raise KeyboardInterrupt
        if call == 0:
            with suppress(KeyboardInterrupt):
                self(x, 1)
            x = self(x, 2)
        return super().forward(x)


def calls_inside_of_a_unit_by_itself() -> None:
    from shardbook import shard

    for build in (Calls, partial(Retries, WIDTH, WIDTH)):
        torch.manual_seed(0)
        plain = build()
        model: Any = nn.Sequential(build(), nn.Linear(WIDTH, WIDTH))
        model[0].load_state_dict(plain.state_dict())
        shard(model, units=(Calls, nn.Linear))
        assert torch.equal(model[0](data(0)), plain(data(0)))


def test_a_unit_called_by_itself_stays_whole_while_it_calls_another_or_itself() -> None:
    ranks.run(1, calls_inside_of_a_unit_by_itself)


class Counted:
    """Counts how often it is searched for tensors."""

    __slots__ = ("held",)
    searched = 0

    def __getattr__(self, name: str) -> Any:
        Counted.searched += name == "held"
        raise AttributeError(name)


def searches_of_an_attribute() -> int:
    from shardbook import shard

    model: Any = shard(Calls(), units=nn.Linear)
    model.linear.note = Counted()
    model(data(0))
    return Counted.searched


def test_a_unit_inside_of_another_is_searched_for_views_once() -> None:
    assert ranks.run(1, searches_of_an_attribute) == [1]


def single_layers_in_a_chain() -> None:
    from shardbook import Zero3Layer

    width, layers = 64, 8
    model = nn.Sequential(*[Zero3Layer(nn.Linear(width, width)) for _ in range(layers)])
    unit = (width * width + width) * 4
    stored: list[int] = []
    with LiveStorages() as live:
        for parameter in model.parameters():
            live.note(parameter)
        x = torch.ones(1, width, requires_grad=True) * 1
        y = model(x)
        x.register_hook(lambda _: stored.append(live.bytes()))
        y.sum().backward()
    assert stored[0] <= layers * unit + 4 * unit
    assert_all_sharded(model)


def test_a_chain_of_single_layers_keeps_one_exchange_in_flight() -> None:
    ranks.run(2, single_layers_in_a_chain)


def everything_goes(stage: int) -> None:
    from shardbook import no_sync, shard
    from shardbook.zero.scheduler import scheduler_of

    def leave(how: str) -> weakref.ref[Any]:
        model = shard(Model(), units=Unit, stage=stage)
        optimizer = torch.optim.AdamW(model.parameters())
        for step in range(2):
            model(data(step)).sum().backward()
            optimizer.step()
        if how == "graph":
            model(data(0)).sum()
        elif how == "no_sync":
            with no_sync(model):
                model(data(0)).sum().backward()
        elif how == "failure":
            loss = model(data(0))
            loss.register_hook(fail)
            with pytest.raises(Failure):
                loss.sum().backward()
        else:
            model.state_dict()
        return weakref.ref(next(iter(scheduler_of(model).units)))

    gc.collect()
    gc.freeze()
    with LiveStorages() as live:
        for how in ("graph", "no_sync", "failure", "state"):
            unit = leave(how)
            gc.collect()
            assert unit() is None, how
            assert live.settled() == 0, (how, live.bytes())


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize("stage", rows(range(4), now=[3]))
def test_of_a_model_that_nobody_uses_nothing_is_left(stage: int) -> None:
    ranks.run(2, everything_goes, stage)


def the_steady_state_comes_back(stage: int) -> None:
    from shardbook import shard
    from shardbook.zero import scheduler

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler, "MOST", 64)
        model = shard(Model(), units=Unit, stage=stage)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    chain: Any = scheduler.scheduler_of(model)
    with LiveStorages() as live:
        for parameter in model.parameters():
            live.note(parameter)

        def between() -> int:
            optimizer.zero_grad()
            return live.bytes()

        model(data(0)).sum().backward()
        steady = between()
        # More passes than are remembered: with a limit that is never reached nothing would be tested.
        for _ in range(70):
            model(data(0))
        assert between() == steady
        assert len(chain.ended) == 64, len(chain.ended)
        handle = model.units[2].linear.register_forward_pre_hook(fail)  # type: ignore[index,union-attr]
        with pytest.raises(Failure):
            model(data(0))
        handle.remove()
        assert between() == steady
        model(data(0)).sum().backward()
        assert not chain.ended


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize("stage", rows([1, 2, 3], now=[3]))
def test_what_was_stored_before_is_stored_after(stage: int) -> None:
    ranks.run(2, the_steady_state_comes_back, stage)


# The state machine

OPERATIONS = ("gather", "wait", "show", "hide", "free", "reduce", "advance", "expire", "backward")


def every_sequence(stage: int, length: int) -> None:
    """A unit's methods in every order, against a model of what they do."""
    from shardbook import shard
    from shardbook.zero.scheduler import scheduler_of

    values = nn.Linear(3, 3)
    expected = [parameter.detach().clone() for parameter in values.parameters()]
    for operations in itertools.product(OPERATIONS, repeat=length):
        module = nn.Linear(3, 3)
        module.load_state_dict(values.state_dict())
        shard(module, stage=stage, synchronize=False)
        (unit,) = scheduler_of(module).units
        (flat,) = unit.flats
        settled: list[Any] = []
        unit.after_reduce.append(settled.append)
        state, shown, collected, sent, mean, exchanges = "SHARDED", False, 0, None, 0, 0
        for operation in operations:
            legal = {"show": state == "WHOLE", "reduce": sent is None}.get(operation, True)
            try:
                if operation == "hide":
                    unit.show(False)
                elif operation != "backward":
                    for flat in unit.trainable:
                        flat.pending = True
                    getattr(unit, operation)()
                elif state == "WHOLE":
                    # Without the layer's hooks, which would exchange and free by themselves.
                    for index, whole in enumerate(flat.whole):
                        whole.grad = torch.ones_like(whole)
                        flat.collect(index, whole)
            except RuntimeError:
                assert not legal, operations
                continue
            assert legal, operations
            if operation == "gather" and state == "SHARDED":
                state = "GATHERING"
            elif operation == "wait":
                state = "WHOLE"
            elif operation == "free":
                state, shown = "SHARDED", False
            elif operation in ("show", "hide"):
                shown = operation == "show"
            elif operation == "backward" and state == "WHOLE":
                collected += 1
            elif operation == "reduce":
                sent, collected = collected, 0
            elif operation == "advance" and sent is not None:
                mean, sent, exchanges = mean + sent, None, exchanges + 1
            assert (unit.state.name, unit.shown, len(settled)) == (state, shown, exchanges), operations
            if state == "WHOLE":
                assert all(map(torch.equal, flat.whole, expected)), operations
        while unit.advance():
            pass
        unit.free()
        flat.decide(range(len(flat.parameters)))
        for parameter in flat.parameters:
            gradient = torch.zeros(()) if parameter.grad is None else parameter.grad
            assert (gradient == mean + (sent or 0)).all(), operations


@pytest.mark.cases(now=1, ci=1)
@pytest.mark.parametrize("stage", rows(range(4), now=[2, 3]))
def test_no_sequence_of_calls_corrupts_a_unit(stage: int) -> None:
    ranks.run(1, every_sequence, stage, 3, timeout=300)


# Ranks that disagree


def disagree(stage: int, culprit: int, how: str, before: int) -> list[str]:
    from shardbook import no_sync, shard

    warnings.simplefilter("ignore")
    model = shard(Model(), units=Unit, stage=stage)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    differs = dist.get_rank() == culprit

    def step(order: Any = (0, 1, 2, 3), quiet: bool = False) -> None:
        with no_sync(model) if quiet else nullcontext():
            model(data(0), order).sum().backward()
        if not quiet:
            optimizer.step()
            optimizer.zero_grad()

    for _ in range(before):
        step()
    orders = {"skips": (0, 1, 3), "adds": (0, 1, 2, 3, 0), "turns": (0, 2, 1, 3)}
    said = []
    try:
        if differs and how == "evaluates":
            with torch.no_grad():
                model(data(0))
        elif differs and how == "fails":
            handle = model.units[2].linear.register_forward_pre_hook(fail)  # type: ignore[index,union-attr]
            with pytest.raises(Failure):
                step()
            handle.remove()
        elif differs and how == "accumulates":
            step(quiet=True)
        step(orders.get(how, (0, 1, 2, 3)) if differs else (0, 1, 2, 3))
    except ValueError as error:
        said.append(str(error))
    # What follows is refused: another pass, and a step of the optimizer with what is there already.
    for more in (step, optimizer.step):
        with pytest.raises((ValueError, RuntimeError)) as refused:
            more()
        said.append(str(refused.value))
    return said


@pytest.mark.cases(now=0, ci=2)
@pytest.mark.parametrize("how", ["skips", "turns", "fails", "evaluates", "accumulates"])
@pytest.mark.parametrize("before", rows([0, 2], now=[2]))
def test_ranks_that_disagree_all_say_so_and_none_steps(how: str, before: int) -> None:
    said = ranks.run(3, disagree, 3, 1, how, before)
    sentence = said[1][0]
    assert "rank 1" in sentence
    assert "units." in sentence or "the root" in sentence
    assert "weight" in sentence or "scale" in sentence
    assert all(of_one_rank == [sentence] * 3 for of_one_rank in said), said
