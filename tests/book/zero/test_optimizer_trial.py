"""An optimizer's own rule is tried, whole and in slices. All rules here were written for these tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

import ranks
from shardbook.zero.optimizer_trial import Kind, options_of, refuse_unless_elementwise

Closure = Callable[[], Tensor] | None


class Rule(Optimizer):
    """An optimizer that is a rule for one tensor: `change` gives the update."""

    def __init__(self, parameters: Iterable[Any], lr: float = 0.01, **options: Any) -> None:
        super().__init__(parameters, {"lr": lr, "beta": 0.9, **options})

    @torch.no_grad()
    def step(self, closure: Closure = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    update = self.change(parameter, parameter.grad, self.state[parameter], group)
                    parameter.sub_(group["lr"] * update)

    def change(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        raise NotImplementedError

    def moments(self, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> tuple[Tensor, Tensor]:
        first = state.setdefault("first", torch.zeros_like(g)).lerp_(g, 1 - group["beta"])
        second = state.setdefault("second", torch.zeros_like(g)).lerp_(g * g, 0.01)
        return first, second.sqrt() + 1e-8


class Lion(Rule):
    def change(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        first = state.setdefault("first", torch.zeros_like(g))
        update = first.lerp(g, 0.1).sign()
        first.lerp_(g, 0.01)
        return update + 0.1 * p


class Nesterov(Rule):
    """With the difference to the gradient before, as Adan has."""

    def change(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        change = g - state.get("before", g)
        state["before"] = g.clone()
        first, root = self.moments(g + 0.9 * change, state, group)
        return first / root


class ScheduleFree(Rule):
    def change(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        z = state.setdefault("z", p.clone())
        group["k"] = group.get("k", 0) + 1
        z.sub_(0.01 * g)
        return (p - z) / group["k"]


class WithArguments(Rule):
    """Its constructor cannot be called with what the groups hold."""

    def __init__(self, parameters: Iterable[Any], rate: float, *, name: str, factors: list[float]) -> None:
        self.parameters = list(parameters)
        super().__init__(self.parameters, lr=rate)
        self.name, self.factors, self.steps = name, factors, 0
        self.scheduled = lambda: self.factors[self.steps % len(self.factors)]
        self.source = torch.Generator().manual_seed(3)

    def change(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        self.steps += 1
        assert p is self.parameters[0] or len(self.parameters) > 1
        return g * self.factors[0]


class MakesItsState(Rule):
    """As Adagrad, with one entry more that says how far it is."""

    def __init__(self, parameters: Iterable[Any]) -> None:
        super().__init__(parameters)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter] = {"sum": torch.zeros_like(parameter), "step": torch.tensor(0.0)}

    def change(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        state["step"] += 1
        return g / state["sum"].addcmul_(g, g).sqrt()


class AdamP(Rule):
    """Takes out of the update of a matrix what is parallel to the weight."""

    def change(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        first, root = self.moments(g, state, group)
        update = first / root
        along = p / (p.norm() + 1e-8)
        return update - along * (along * update).sum() if p.dim() > 1 else update


class SGDP(AdamP):
    def moments(self, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> tuple[Tensor, Tensor]:
        return super().moments(g, state, group)[0], torch.ones(())


class Cautious(Rule):
    """Leaves out elements whose update points against the gradient, and scales the others up."""

    def change(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        first, root = self.moments(g, state, group)
        mask = (first * g > 0).to(g.dtype)
        return first / root * mask / mask.mean().clamp_(min=1e-3)


class Mars(Rule):
    """Corrects the gradient by the one before, and clips the result by its norm."""

    def change(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        corrected = g + 0.5 * (g - state.get("before", g))
        state["before"] = g.clone()
        norm = corrected.norm()
        first, root = self.moments(corrected / norm if norm > 1 else corrected, state, group)
        return first / root


class ClippedByRMS(Rule):
    """Slows down where the gradient has grown, by one number for the whole tensor."""

    def change(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        first, root = self.moments(g, state, group)
        rms = (g / root).square().mean().sqrt()
        return first / root / rms.clamp(min=1.0)


class Trusting(Rule):
    """The norm of the weight over the norm of the update, as LAMB and LARS."""

    def change(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        first, root = self.moments(g, state, group)
        return first / root * p.norm() / (first / root).norm()


class Centralized(Rule):
    def change(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        return g - g.mean(tuple(range(1, g.dim())), keepdim=True) if g.dim() > 1 else g


class DecaysMatrices(Rule):
    def change(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        return g + 0.1 * p if p.dim() > 1 else g


class Noisy(Rule):
    def change(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        return g + 0.1 * torch.randn_like(g)


class LargestFirst(Rule):
    """An empty slice has no largest element."""

    def change(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        return g.clamp(max=1e9 + g.abs().max().item() * 0)


class Blocks(Rule):
    """Rounds a large state by blocks of 256, as optimizers with 8 bits do."""

    def change(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        first, _ = self.moments(g, state, group)
        if first.numel() >= 4096 and first.numel() % 256 == 0:
            blocks = first.view(-1, 256)
            largest = blocks.abs().amax(1, keepdim=True)
            blocks.copy_((blocks / largest * 127).round() / 127 * largest)
        return first


class Clips(Optimizer):
    """Clips by the norm over all parameters, with a step of SGD."""

    def __init__(self, parameters: Iterable[Any], lr: float = 0.01) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Closure = None) -> None:  # type: ignore[override]
        all_of_them = [p for group in self.param_groups for p in group["params"]]
        norm = torch.stack([p.grad.norm() for p in all_of_them]).norm()
        for p in all_of_them:
            p -= 0.01 * p.grad / norm.clamp(min=1.0)


class Estimates(Optimizer):
    """Finds its learning rate by inner products over all parameters, as D-Adaptation and Prodigy."""

    def __init__(self, parameters: Iterable[Any], lr: float = 1.0) -> None:
        super().__init__(parameters, {"lr": lr, "d": 1e-6, "above": 0.0})

    @torch.no_grad()
    def step(self, closure: Closure = None) -> None:  # type: ignore[override]
        (group, *_) = self.param_groups
        below = 0.0
        for p in (each for g in self.param_groups for each in g["params"]):
            state = self.state[p]
            start = state.setdefault("start", p.clone())
            total = state.setdefault("total", torch.zeros_like(p))
            group["above"] += group["d"] * (p.grad * (start - p)).sum().item()
            below += total.add_(p.grad, alpha=group["d"]).abs().sum().item()
            p -= group["lr"] * group["d"] * p.grad.sign()
        group["d"] = max(group["d"], group["above"] / below if below else 0.0)


class Sharp(Optimizer):
    """Goes up the gradient by a step of fixed length, and takes the gradient there (SAM)."""

    def __init__(self, parameters: Iterable[Any], base: type[Optimizer], **options: Any) -> None:
        super().__init__(parameters, {"rho": 0.05})
        self.base = base(self.param_groups, **options)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def step(self, closure: Closure = None) -> None:  # type: ignore[override]
        assert closure is not None
        parameters = [p for group in self.param_groups for p in group["params"]]
        norm = torch.stack([p.grad.norm() for p in parameters]).norm()
        before = [p.clone() for p in parameters]
        for p in parameters:
            p += self.param_groups[0]["rho"] * p.grad / norm
        with torch.enable_grad():
            closure()
        for p, old in zip(parameters, before, strict=True):
            p.copy_(old)
        self.base.step()


class Ahead(Optimizer):
    """Lets another optimizer walk, and follows it every third step (Lookahead)."""

    def __init__(self, base: Optimizer) -> None:
        self.base, self.taken = base, 0
        super().__init__(base.param_groups, {})
        self.param_groups = base.param_groups

    @torch.no_grad()
    def step(self, closure: Closure = None) -> None:  # type: ignore[override]
        self.base.step()
        self.taken += 1
        for p in (p for group in self.param_groups for p in group["params"]):
            slow = self.state[p].setdefault("slow", p.clone())
            if self.taken % 3 == 0:
                p.copy_(slow.lerp_(p, 0.5))


class Late(Rule):
    """Begins to use a norm in its tenth step."""

    def change(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        state["step"] = state.get("step", 0) + 1
        return g / g.norm() if state["step"] >= 10 else g


class WhenItGrows(Rule):
    """Looks at a norm only if it is far above the one before."""

    def change(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        norm = g.norm()
        grown = norm > 5 * state.get("norm", norm)
        state["norm"] = norm
        return g / norm if grown else g


class QuantizesLarge(Rule):
    """Rounds the gradient of a large parameter, as optimizers of 8 bits do."""

    def change(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        if p.numel() <= 65_536:
            return g
        most = g.abs().amax()
        return (g / most * 127).round() * most / 127


SHAPES = {"matrix": (4, 5), "vector": (7,), "number": (), "kernel": (2, 3, 1, 2)}


def parameters_of(*names: str, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(SHAPES[name], dtype=dtype)) for name in names or SHAPES]


def said_of(optimizer: Optimizer, *, closure: bool = False) -> str:
    """What the trial says; nothing if it lets the optimizer pass."""
    kinds = {
        id(p): Kind(p.dim(), p.dtype, p.device, p.numel())
        for group in optimizer.param_groups
        for p in group["params"]
    }
    try:
        refuse_unless_elementwise(optimizer, kinds, closure=closure)
    except TypeError as error:
        return str(error)
    return ""


T = torch.optim
OPTIONS: list[dict[str, Any]] = [
    {},
    {"foreach": True},
    {"foreach": False},
    {"fused": True},
    {"maximize": True, "weight_decay": 0.1},
    {"amsgrad": True},
    {"nesterov": True, "momentum": 0.9},
    {"lr": torch.tensor(0.01)},
]
ELEMENTWISE = [
    T.SGD,
    T.Adam,
    T.AdamW,
    T.NAdam,
    T.RAdam,
    T.Adamax,
    T.Adadelta,
    T.Adagrad,
    T.ASGD,
    T.RMSprop,
    T.Rprop,
]


def test_a_rule_is_tried_at_the_sizes_that_occur() -> None:
    matrices = [nn.Parameter(torch.ones(shape)) for shape in ((2, 3), (300, 300), (4, 4))]
    assert "would train the slices" in said_of(QuantizesLarge(matrices))
    assert not said_of(QuantizesLarge([matrices[0], matrices[2]]))
    # One large parameter in the second of two groups that are alike.
    groups = [{"params": matrices[:1]}, {"params": matrices[1:]}]
    assert "would train the slices" in said_of(QuantizesLarge(groups))
    assert not said_of(T.AdamW(matrices))


@pytest.mark.cases(now=5, ci=5)
@pytest.mark.parametrize("kind", ELEMENTWISE, ids=lambda kind: kind.__name__)
def test_an_elementwise_optimizer_of_torch_passes_with_all_its_options(kind: Any) -> None:
    tried = 0
    for options in OPTIONS:
        try:
            optimizer = kind(parameters_of("matrix", "vector"), **options)
        except (TypeError, RuntimeError):
            continue  # It has no such option.
        assert said_of(optimizer) == "", options
        tried += 1
    assert tried >= 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_dtype_and_all_shapes_are_those_of_the_parameters(dtype: torch.dtype) -> None:
    for kind in (T.AdamW, T.SGD):
        assert said_of(kind(parameters_of(dtype=dtype), lr=0.1)) == ""


@pytest.mark.parametrize("kind", [Lion, Nesterov, ScheduleFree, MakesItsState])
def test_an_elementwise_rule_of_ones_own_passes(kind: Any) -> None:
    assert said_of(kind(parameters_of())) == ""


def test_a_copy_needs_no_constructor_and_leaves_the_original_alone() -> None:
    parameters = parameters_of("matrix", "vector")
    optimizer = WithArguments(parameters, 0.1, name="mine", factors=[2.0, 3.0])
    before, random = [p.clone() for p in parameters], torch.get_rng_state()
    assert said_of(optimizer) == ""
    assert optimizer.steps == 0
    assert not optimizer.state
    assert all(map(torch.equal, parameters, before))
    assert all(p.grad is None for p in parameters)
    assert torch.equal(torch.get_rng_state(), random)


def test_random_numbers_are_set_back() -> None:
    random = torch.get_rng_state()
    assert said_of(Noisy(parameters_of("matrix"))).startswith("Noisy would train the slices")
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.parametrize(
    "kind",
    [
        *[AdamP, SGDP, Cautious, Mars, ClippedByRMS, Trusting, Centralized, DecaysMatrices],
        *[LargestFirst, Blocks, Clips, Estimates, Late, WhenItGrows, T.Adafactor],
    ],
)
def test_a_rule_that_needs_more_than_one_element_is_refused(kind: Any) -> None:
    assert said_of(kind(parameters_of("matrix", "vector"))).startswith(
        f"{kind.__name__} would train the slices"
    )


def test_muon_and_lbfgs_are_refused() -> None:
    assert said_of(T.Muon(parameters_of("matrix"))).startswith("Muon would train the slices")
    assert said_of(T.LBFGS(parameters_of()), closure=True).startswith("LBFGS would train the slices")


def test_only_the_shapes_that_there_are_count() -> None:
    assert said_of(AdamP(parameters_of("vector"))) == ""
    assert said_of(AdamP(parameters_of("vector", "kernel"))) != ""


def test_each_group_with_options_of_its_own_is_tried() -> None:
    class Sometimes(Trusting):
        def change(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
            return super().change(p, g, state, group) if group["trust"] else g

    for trust in (False, True):
        groups = [{"params": parameters_of("matrix"), "trust": False}]
        groups.append({"params": parameters_of("matrix"), "trust": trust})
        assert (said_of(Sometimes(groups)) != "") == trust


def test_wrapped_optimizers_are_tried_together() -> None:
    for base, refused in ((T.AdamW, False), (Trusting, True)):
        optimizer = Ahead(base(parameters_of("matrix", "vector")))
        assert (said_of(optimizer) != "") == refused
        assert optimizer.taken == 0
        assert not optimizer.base.state
    # The one that is wrapped may have attributes of its own.
    named = WithArguments(parameters_of("matrix", "vector"), 0.1, name="mine", factors=[2.0])
    assert said_of(Ahead(named)) == ""
    assert named.steps == 0
    sharp = Sharp(parameters_of("matrix"), T.SGD, lr=0.1)
    assert said_of(sharp, closure=True).startswith("Sharp would train the slices")


def test_an_optimizer_that_needs_a_closure_and_gets_none_cannot_be_tried() -> None:
    said = said_of(T.LBFGS(parameters_of("matrix")))
    assert said.startswith("LBFGS could not be tried on small parameters")
    assert "missing 1 required positional argument: 'closure'" in said
    said = said_of(T.SparseAdam(parameters_of("matrix")))
    assert "SparseAdam does not support dense gradients" in said


def test_a_rate_of_zero_hides_nothing() -> None:
    assert said_of(Trusting(parameters_of("matrix"), lr=0.0)) != ""
    assert said_of(Trusting(parameters_of("matrix"), lr=torch.tensor(0.0))) != ""  # type: ignore[arg-type]


def test_a_very_small_rate_hides_nothing() -> None:
    assert said_of(Trusting(parameters_of("matrix"), lr=1e-14)) != ""


def test_a_scheduler_and_hooks_do_not_count_the_trial() -> None:
    calls = []
    optimizer = T.AdamW(parameters_of("matrix"))
    scheduler = T.lr_scheduler.LambdaLR(optimizer, lambda step: float(step > 0))
    optimizer.register_step_pre_hook(lambda *_: calls.append("own"))
    handle = register_optimizer_step_pre_hook(lambda *_: calls.append("all"))
    try:
        assert said_of(optimizer) == ""
        assert said_of(Ahead(optimizer)) == ""
        assert not calls
        optimizer.step()
        scheduler.step()
        assert calls == ["all", "own"]
    finally:
        handle.remove()


def test_a_scaler_that_has_found_an_overflow_does_not_hide_the_rule() -> None:
    class Scaled(Trusting):
        _step_supports_amp_scaling = True

        def step(self, closure: Closure = None) -> None:  # type: ignore[override]
            if not getattr(self, "found_inf", 0):
                super().step()

    optimizer = Scaled(parameters_of("matrix"))
    vars(optimizer).update(found_inf=torch.ones(()), grad_scale=None)
    assert said_of(optimizer) != ""


def test_what_changes_in_every_step_needs_no_other_trial() -> None:
    group = {"params": [], "lr": 0.1, "betas": (0.9, 0.95), "weight_decay": 0.1, "foreach": None}
    same = [{**group, "lr": 0.2}, {**group, "betas": (0.8, 0.9)}, {**group, "initial_lr": 1}]
    other = [{**group, "weight_decay": 0.0}, {**group, "foreach": True}, {**group, "trust": 1}]
    assert all(options_of(each) == options_of(group) for each in same)
    assert all(options_of(each) != options_of(group) for each in other)


def sharded_rules() -> None:
    from shardbook import shard, step_in_backward

    def linears(stage: int = 3) -> nn.Module:
        torch.manual_seed(0)
        return shard(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), stage=stage)

    def closure() -> Tensor:
        raise AssertionError("a trial must not call the program's closure")

    refused: list[Callable[[Iterable[Any]], Optimizer]] = [
        Trusting,
        Clips,
        T.Adafactor,
        lambda parameters: Sharp(parameters, T.SGD, lr=0.1),
    ]
    for make in refused:
        model = linears()
        optimizer = make(model.parameters())
        model(torch.ones(2, 3)).sum().backward()
        with pytest.raises(TypeError, match=r"stage=0$"):
            optimizer.step(closure)
    # A group that is added later is looked at, too.
    model = linears()
    first, second = model
    optimizer = Lion([first.weight, first.bias])
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    optimizer.add_param_group({"params": [second.weight, second.bias]})
    optimizer.step()
    # In stage 0 parameters keep their shapes, and every rule is that of one process.
    model = linears(stage=0)
    for make in (Trusting, Clips, T.Adafactor):
        optimizer = make(model.parameters())
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    # Units that step in the backward pass are no exception.
    model = linears()
    step_in_backward(model, Trusting)
    with pytest.raises(TypeError, match=r"^Trusting would train"):
        model(torch.ones(2, 3)).sum().backward()


@pytest.mark.full
def test_an_optimizer_is_tried_before_its_first_step_on_every_rank() -> None:
    ranks.run(2, sharded_rules)


def tried_once(steps: int) -> list[int]:
    import shardbook.zero.optimizer_guard
    from shardbook import shard

    counts = []
    before = shardbook.zero.optimizer_guard.refuse_unless_elementwise

    def counted(*args: Any, **options: Any) -> None:
        counts.append(1)
        before(*args, **options)

    shardbook.zero.optimizer_guard.refuse_unless_elementwise = counted
    model = shard(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)))
    optimizer = T.AdamW(model[0].parameters(), lr=0.0)
    scheduler = T.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 3))
    found = []
    for step in range(steps):
        model(torch.ones(2, 3) * dist.get_rank()).sum().backward()
        optimizer.step()
        scheduler.step()
        if step == 2:
            optimizer.add_param_group({"params": list(model[1].parameters())})
            scheduler.base_lrs.append(0.0)
            scheduler.lr_lambdas.append(scheduler.lr_lambdas[0])
        found.append(len(counts))
    return found


def test_it_is_tried_again_only_for_another_group() -> None:
    assert ranks.run(2, tried_once, 5) == [[1, 1, 1, 2, 2]] * 2
