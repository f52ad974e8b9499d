"""Optimizers that need whole matrices train those that are not cut, to the bits of data parallelism."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import init_device_mesh

import ranks
from book.zero.test_optimizer_trial import Rule
from shardbook import (
    Checkpoints,
    Policy,
    ShardedGradScaler,
    clip_grad_norm_,
    load_optimizer_state_dict,
    optimizer_state_dict,
    shard,
)
from shardbook.planning.forecast import layouts_with
from shardbook.planning.planner import own_bytes
from shardbook.zero.scheduler import scheduler_of


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(12)
        self.wide = nn.Linear(12, 40)
        self.narrow = nn.Linear(40, 12)
        self.square = nn.Linear(12, 12, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.square(x + self.narrow(torch.tanh(self.wide(self.norm(x)))))  # type: ignore[no-any-return]


def model(device: str = "cpu") -> nn.Sequential:
    torch.manual_seed(3)
    with torch.device(device):
        return nn.Sequential(nn.Linear(5, 12), Block(), Block(), nn.Linear(12, 3))


def is_hidden(name: str, parameter: Tensor) -> bool:
    """Whether this is a matrix of a block."""
    return parameter.dim() > 1 and name[0] in "12"


class Normalized(Rule):
    """Each update is divided by the norm of its rows and columns, as LAMB and Adafactor do in turn."""

    def change(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        first = state.setdefault("first", torch.zeros_like(g)).lerp_(g, 0.1)
        rows = first / (first.norm(dim=-1, keepdim=True) + 1e-3)
        return rows * (p.norm() / (rows.norm() + 1e-3))


class Preconditioned(Rule):
    """The update is multiplied from both sides, as in Shampoo; the state has other shapes than the matrix."""

    def change(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        if not state:
            state.update(steps=0, sides=[torch.zeros(size, size, device=g.device) for size in g.shape])
        state["steps"] += 1
        left, right = state["sides"]
        left.add_(g @ g.T)
        right.add_(g.T @ g)
        return left.add(torch.eye(len(left))).inverse() @ g @ right.add(torch.eye(len(right))).inverse()


class Together(torch.optim.SGD):
    """The gradients of all parameters are divided by one norm: a rank has only those of its own matrices."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        each = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack([gradient.norm() for gradient in each]).norm() if each else torch.ones(())
        for gradient in each:
            gradient.div_(norm)
        super().step()


Make = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
MAKES: dict[str, Make] = {
    "muon": partial(torch.optim.Muon, lr=0.05),
    "adafactor": partial(torch.optim.Adafactor, lr=0.05),
    "normalized": Normalized,
    "preconditioned": Preconditioned,
}


class Run:
    """A model with two optimizers: one of the matrices of its blocks, AdamW of all else."""

    def __init__(self, make: Make, stage: int, place: str = "cpu", **options: Any) -> None:
        self.model = shard(
            model(place), stage=stage, units=Block, uncut=is_hidden, init=filled, device="cpu", **options
        )
        named = dict(self.model.named_parameters())
        hidden = [each for name, each in named.items() if name[0] in "12" and "norm" not in name]
        # The dimensions are still there, so that groups can be made by them.
        matrices = [each for each in hidden if each.dim() > 1]
        assert len(matrices) == 6
        others = [each for each in named.values() if not any(each is one for one in matrices)]
        self.optimizers = [make(matrices), torch.optim.AdamW(others, lr=0.01)]

    def train(self, steps: int) -> None:
        generator = torch.Generator().manual_seed(dist.get_rank())
        for _ in range(steps):
            self.model(torch.randn(4, 5, generator=generator)).float().square().mean().backward()
            clip_grad_norm_(self.model, 0.5)
            for optimizer in self.optimizers:
                optimizer.step()
                optimizer.zero_grad()

    def train_scaled(self, steps: int) -> float:
        """Train with a scaler, which all ranks have to ask, also those without any matrix."""
        scaler = ShardedGradScaler("cpu", init_scale=2.0**10, growth_interval=2)
        for step in range(steps):
            loss = self.model(torch.full((4, 5), 1e30 if step == 1 else 1.0)).float().square().mean()
            scaler.scale(loss).backward()
            for optimizer in self.optimizers:
                scaler.step(optimizer)
            scaler.update()
            for optimizer in self.optimizers:
                optimizer.zero_grad()
        return scaler.get_scale()

    def values(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self.model.state_dict().items()}


def filled(module: nn.Module) -> None:
    """The same values for every module of a shape, on the meta device or not."""
    generator = torch.Generator().manual_seed(11)
    for parameter in module.parameters(recurse=False):
        parameter.data.normal_(std=0.3, generator=generator)


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def whole_matrices(name: str, ways: list[tuple[int, dict[str, Any]]]) -> list[bool]:
    make = MAKES[name]
    found = []
    for stage, options in ways:
        options = dict(options)
        rows = options.pop("rows", 0)
        if rows:
            options["mesh"] = init_device_mesh("cpu", (rows, dist.get_world_size() // rows))
        expected = Run(make, 0, **options)
        run = Run(make, stage, **options)
        started = expected.values()
        for each in (expected, run):
            each.train(4)
        assert not equal(run.values(), started)
        if rows:
            # Means that are taken along the rows and then over them have other last bits.
            torch.testing.assert_close(run.values(), expected.values(), rtol=1e-4, atol=1e-5)
        found.append(rows > 0 or equal(run.values(), expected.values()))
    return found


LOW = {"policy": Policy(param_dtype=torch.bfloat16, output_dtype=torch.float32)}
HOST = {"policy": Policy(offload=True)}


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize("name", MAKES)
def test_whole_matrices_train_to_the_bits_of_stage_0(name: str) -> None:
    ways: list[tuple[int, dict[str, Any]]] = [
        (1, {}),
        (2, LOW),
        (3, {}),
        (3, LOW),
        (3, HOST),
        (3, {"place": "meta"}),
    ]
    for found in ranks.run(2, whole_matrices, name, ways):
        assert found == [True] * len(ways)


@pytest.mark.nightly
def test_more_ranks_than_matrices_and_a_mesh() -> None:
    """Some of the ranks have none of a block's matrices."""
    ways: list[tuple[int, dict[str, Any]]] = [(3, {}), (1, {}), (3, {"rows": 2}), (2, {"rows": 2})]
    for found in ranks.run(4, whole_matrices, "normalized", ways):
        assert found == [True] * len(ways)


def scaled() -> bool:
    runs = Run(MAKES["muon"], 0), Run(MAKES["muon"], 3)
    scales = [run.train_scaled(4) for run in runs]
    return scales[0] == scales[1] and equal(runs[0].values(), runs[1].values())


@pytest.mark.nightly
def test_a_scaler_asks_ranks_without_a_matrix() -> None:
    assert ranks.run(4, scaled) == [True] * 4


def shapes() -> list[tuple[int, ...]]:
    run = Run(MAKES["muon"], 3)
    run.train(1)
    found = [tuple(each.shape) for name, each in run.model.named_parameters() if is_hidden(name, each)]
    for name, each in run.model.named_parameters():
        assert each.dim() == (2 if name.endswith(("e.weight", "w.weight")) else 1), name
    return found


@pytest.mark.nightly
def test_a_matrix_is_on_one_rank_alone() -> None:
    found = ranks.run(3, shapes)
    for places in zip(*found, strict=True):
        held = [shape for shape in places if shape[0]]
        assert len(held) == 1
        assert {shape[1] for shape in places} == {held[0][1]}


@pytest.mark.nightly
@pytest.mark.parametrize("name", MAKES)
def test_state_of_whole_matrices_is_saved_and_goes_on(name: str, tmp_path: Path) -> None:
    """State has any shape here: lists, numbers, a matrix for each side."""
    for found in ranks.run(3, gone_on, name, tmp_path):
        assert found == [True] * 4


def gone_on(name: str, folder: Path) -> list[bool]:
    """Whether runs that begin in the middle end as one that was not interrupted."""
    run, *others = (Run(MAKES[name], stage) for stage in (3, 1, 0, 3, 0))
    run.train(2)
    states = [optimizer_state_dict(run.model, optimizer) for optimizer in run.optimizers]
    for number, optimizer in enumerate(run.optimizers):
        Checkpoints(folder / f"{number}").save(2, run.model, optimizer)
    for each in others[:2]:
        each.model.load_state_dict(run.model.state_dict())
        for optimizer, state in zip(each.optimizers, states, strict=True):
            load_optimizer_state_dict(each.model, optimizer, state)
    for each in others[2:]:
        for number, optimizer in enumerate(each.optimizers):
            assert Checkpoints(folder / f"{number}").load(each.model, optimizer) == 2
    for each in (run, *others):
        each.train(2)
    return [equal(each.values(), run.values()) for each in others]


def test_the_plan_counts_whole_matrices() -> None:
    for found, promised in ranks.run(3, counted):
        assert found == promised


def counted() -> tuple[list[int], list[int]]:
    run = Run(MAKES["muon"], 3)
    units = [unit for unit in scheduler_of(run.model).units if unit.name in "12"]
    block = Block()
    names = [name for name, each in block.named_parameters() if each.dim() > 1]
    layouts = layouts_with(Policy(), block, 3, uncut=names)
    # AdamW has two numbers for each element, and a count for each parameter that is not on another rank.
    here = [(flat, each) for flat in units[0].flats for each in flat.parameters]
    counts = sum(not flat.layout.uncut or each.numel() > 0 for flat, each in here)
    mine = torch.tensor([8.0 * sum(each.numel() for _, each in here) + 4 * counts])
    dist.all_reduce(mine, dist.ReduceOp.MAX)
    assert own_bytes(list(layouts), 3, "adamw").state == mine.item()
    kept = sum(flat.shard.nbytes for flat in units[0].flats)
    return [kept, units[0].nbytes], [
        own_bytes(list(layouts), 3, "sgd").parameters,
        sum(each.padded * 4 for each in layouts),
    ]


def refusals() -> list[str]:
    said = []

    def refused(kind: type[Exception], act: Callable[[], Any]) -> None:
        with pytest.raises(kind) as caught:
            act()
        said.append(str(caught.value))

    refused(TypeError, lambda: shard(model(), uncut="matrices"))  # type: ignore[arg-type]
    refused(ValueError, lambda: shard(model(), uncut=lambda name, parameter: False))
    refused(ValueError, lambda: shard(model(), uncut=lambda name, p: name == f"{3 * dist.get_rank()}.weight"))
    cut = shard(model(), units=Block, uncut=lambda name, parameter: name == "1.wide.weight")
    named = dict(cut.named_parameters())
    cut(torch.ones(2, 5)).sum().backward()
    refused(TypeError, Normalized([named["1.wide.weight"], named["1.wide.bias"]]).step)
    refused(TypeError, Together([named["1.wide.weight"]]).step)
    lamb = type("Lamb", (Normalized,), {})
    lamb([named["1.wide.weight"]]).step()
    refused(TypeError, lamb([named["1.wide.weight"], named["2.wide.weight"]]).step)
    return said


def test_what_cannot_be_whole_is_refused_by_name() -> None:
    for said in ranks.run(2, refusals):
        for sentence, start in zip(
            said,
            (
                "uncut='matrices' selects no parameters; pass a function",
                "rank 0: uncut= selects no parameter; let it return True",
                "rank 1 shards with ",
                "Normalized would train the slices of a parameter otherwise",
                "Together would train the slices of a parameter otherwise",
                "Lamb depends on a parameter's shape, and 2.wide.weight is cut; name what it trains",
            ),
            strict=True,
        ):
            assert sentence.startswith(start), sentence


class Scaled(Rule):
    """Two parameters of one shape are divided by their common norm."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        shapes: dict[Any, list[nn.Parameter]] = {}
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None:
                shapes.setdefault(parameter.shape, []).append(parameter)
        for alike in shapes.values():
            norm = torch.stack([each.grad.norm() for each in alike]).norm()  # type: ignore[union-attr]
            for each in alike:
                each.sub_(each.grad / norm, alpha=0.1)  # type: ignore[operator]


class Counting(Rule):
    """Counts the steps of a group of which it has seen a gradient."""

    def change(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        group["seen"] = group.get("seen", 0) + 1
        return g


class Unknown(Rule):
    """Its state can be neither sent nor stored."""

    def change(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        state["rule"] = lambda: 0
        return g


class Numbers(nn.Module):
    """Two parameters without dimensions, at both ends of a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.tensor(2.0))
        self.weight = nn.Parameter(torch.ones(40))
        self.last = nn.Parameter(torch.tensor(3.0))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.first * self.last * self.weight.sum()


def told(act: Callable[[], Any]) -> str:
    try:
        act()
    except (ValueError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def traps(folder: Path) -> dict[str, str]:
    found = {}
    for uncut in (None, lambda name, parameter: True):
        model = shard(Numbers(), stage=3, uncut=uncut)
        model(torch.ones(())).backward()
        found[f"common norm of numbers {uncut is None}"] = told(Scaled([model.first, model.last]).step)
    run = Run(MAKES["muon"], 3)
    run.train(1)
    raw = [run.optimizers[0].state_dict()]
    dist.broadcast_object_list(raw, src=0)
    other = Run(MAKES["muon"], 3)
    other.optimizers[0].load_state_dict(raw[0])
    other.model(torch.ones(4, 5)).square().mean().backward()
    found[f"another rank's state {dist.get_rank()}"] = told(other.optimizers[0].step)

    run = Run(MAKES["normalized"], 3)
    named = dict(run.model.named_parameters())
    groups = [
        {"params": [each for each in named.values() if each.dim() > 1], "weight_decay": 0.1},
        {"params": [each for each in named.values() if each.dim() < 2], "weight_decay": 0.0},
    ]
    run.model(torch.ones(4, 5)).square().mean().backward()
    found["groups by dim"] = told(torch.optim.AdamW(groups).step)
    large = [each for each in named.values() if each.numel() > 100]
    small = [each for each in named.values() if each.numel() <= 100]
    optimizer = torch.optim.AdamW([{"params": large}, {"params": small}])
    optimizer.step()
    found["groups by size"] = told(lambda: optimizer_state_dict(run.model, optimizer))
    found["groups by size, stored"] = told(lambda: Checkpoints(folder / "a").save(1, run.model, optimizer))
    hidden = [each for name, each in named.items() if is_hidden(name, each)]
    counting = Counting([{"params": [each]} for each in hidden])
    counting.step()
    found["options"] = told(lambda: optimizer_state_dict(run.model, counting))
    unknown = Unknown(hidden[:1])
    unknown.step()
    found["state"] = told(lambda: optimizer_state_dict(run.model, unknown))
    found["state, stored"] = told(lambda: Checkpoints(folder / "b").save(1, run.model, unknown))
    return found


@pytest.mark.nightly
def test_what_would_differ_without_a_word_is_refused(tmp_path: Path) -> None:
    found = ranks.run(2, traps, tmp_path)
    for each in found:
        for name, start in {
            "common norm of numbers True": "TypeError: Scaled would train",
            "common norm of numbers False": "TypeError: Scaled would train",
            "groups by dim": "ValueError: 0.weight is in one group with vectors",
            "groups by size": "Disagreement: ranks hold different optimizer state",
            "groups by size, stored": "Disagreement: rank 1 has other parameter groups",
            "options": "Disagreement: ranks hold different optimizer state",
            "state": "ValueError: the optimizer's state of 1.wide.weight cannot be sent",
            "state, stored": "ValueError: ",
        }.items():
            assert each[name].startswith(start), (name, each[name])
    assert found[1]["another rank's state 1"].startswith("ValueError: momentum_buffer of ")


def closed(name: str) -> list[bool]:
    """Steps with a closure, whose backward pass brings gradients in the middle of a step."""
    found = []
    for stage in (1, 3):
        runs = Run(MAKES[name], 0), Run(MAKES[name], stage)
        for run in runs:
            optimizer = run.optimizers[0]

            def closure(run: Run = run) -> Tensor:
                run.model.zero_grad()
                loss: Tensor = run.model(torch.ones(4, 5) * (1 + dist.get_rank())).square().mean()
                loss.backward()
                return loss

            for _ in range(3):
                optimizer.step(closure)
        found.append(equal(runs[0].values(), runs[1].values()))
    return found


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize("name", ["adafactor", "muon"])
def test_a_step_with_a_closure_trains_whole_matrices(name: str) -> None:
    assert ranks.run(2, closed, name) == [[True, True]] * 2


class Around(torch.optim.SGD):
    """An optimizer whose step is that of another one, as look-ahead wrappers do."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        torch.optim.Muon(self.param_groups[0]["params"]).step()


def kept_gradients() -> tuple[list[bool], list[bool]]:
    run = Run(MAKES["muon"], 3)
    hidden = [each for name, each in run.model.named_parameters() if is_hidden(name, each)]
    run.model(torch.ones(4, 5)).square().mean().backward()
    before = [each.grad is not None for each in hidden]
    Around(hidden).step()
    return before, [each.grad is not None for each in hidden]


@pytest.mark.nightly
def test_gradients_are_there_after_a_step_in_a_step() -> None:
    assert ranks.run(2, kept_gradients) == [([True] * 6, [True] * 6)] * 2


class Ready(Rule):
    """Makes its state before the first step."""

    def __init__(self, parameters: Iterable[Any], lr: float = 0.01, **options: Any) -> None:
        super().__init__(parameters, lr, **options)
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["first"] = torch.zeros_like(parameter)

    def change(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        first: Tensor = state["first"].lerp_(g, 0.1)
        return first


MAKES["ready"] = Ready
