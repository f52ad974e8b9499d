"""Loss scaling, step by step beside PyTorch's own scaler."""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from shardbook.precision.loss_scaling import SMALLEST, GradScaler

VALUES = [0.0, 1.0, -3.0, 1e-8, 1e30, 3e38, math.inf, -math.inf, math.nan]


def torchs(**settings: Any) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", **settings)


def trainer(seed: int = 0, *, fused: bool = False) -> torch.optim.Optimizer:
    """An optimizer of three parameters, one of them without elements, and one BF16."""
    generator = torch.Generator().manual_seed(seed)
    parameters = [nn.Parameter(torch.randn(size, generator=generator)) for size in (3, 0)]
    parameters.append(nn.Parameter(torch.randn(2, generator=generator).bfloat16()))
    if fused:
        return torch.optim.AdamW(parameters, lr=0.1, fused=True)
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def parameters_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def loss_of(optimizer: torch.optim.Optimizer, value: float) -> Tensor:
    """A loss in which each parameter has this gradient at one element, and smaller ones elsewhere."""
    terms = [(p.float() * torch.linspace(0.5, 1.5, len(p))).sum() for p in parameters_of(optimizer)]
    first = parameters_of(optimizer)[0]
    return torch.stack(terms).sum() + first[0] * value


def numbers(tensors: list[Tensor]) -> list[list[float]]:
    return [tensor.detach().double().tolist() for tensor in tensors]


def assert_same(found: Any, expected: Any) -> None:
    """Equal, and NaN is equal to itself."""
    assert repr(found) == repr(expected)


# Equal to PyTorch


def trained(scaler: Any, steps: list[Any], optimizers: int, *, fused: bool) -> list[Any]:
    """Everything that can be observed of a training, step by step."""
    every = [trainer(seed, fused=fused) for seed in range(optimizers)]
    seen: list[Any] = []
    for micro_batches, clip in steps:
        for values in micro_batches:
            losses = [loss_of(one, value) for one, value in zip(every, values, strict=False)]
            for loss in scaler.scale(losses):
                loss.backward()
        for optimizer in every:
            if clip:
                scaler.unscale_(optimizer)
                gradients = [p.grad for p in parameters_of(optimizer) if p.grad is not None]
                seen.append(numbers(gradients))
                torch.nn.utils.clip_grad_norm_(parameters_of(optimizer), 1.0)
            seen.append(scaler.step(optimizer))
            seen.append(numbers(parameters_of(optimizer)))
            seen.append(repr(optimizer.state_dict()["state"]))
            optimizer.zero_grad()
        scaler.update()
        seen.append(scaler.state_dict())
    return seen


@st.composite
def trainings(draw: st.DrawFn, numbers: st.SearchStrategy[float]) -> tuple[list[Any], int]:
    optimizers = draw(st.integers(1, 3))
    of_all = st.lists(numbers, min_size=optimizers, max_size=optimizers)
    step = st.tuples(st.lists(of_all, min_size=1, max_size=3), st.booleans())
    return draw(st.lists(step, min_size=1, max_size=8)), optimizers


SETTINGS = st.fixed_dictionaries(
    {
        "init_scale": st.sampled_from([2.0**16, 2.0**127, 1.0, 3.7, 1e5]),
        "growth_factor": st.one_of(st.just(2.0), st.floats(1.01, 1e3)),
        "backoff_factor": st.one_of(st.just(0.5), st.floats(0.01, 0.99)),
        "growth_interval": st.integers(1, 4),
    }
)


@pytest.mark.full
@settings(max_examples=50)
@given(trainings(st.sampled_from(VALUES)), SETTINGS)
def test_each_step_is_torchs_bit_for_bit(training: tuple[list[Any], int], options: dict[str, Any]) -> None:
    steps, optimizers = training
    found = trained(GradScaler(**options), steps, optimizers, fused=False)
    assert_same(found, [by_key(each) for each in trained(torchs(**options), steps, optimizers, fused=False)])


def by_key(seen: Any) -> Any:
    """The states hold the same keys; they may stand in another order."""
    if not isinstance(seen, dict):
        return seen
    return {key: seen[key] for key in GradScaler().state_dict()}


@pytest.mark.full
@settings(max_examples=30)
@given(trainings(st.sampled_from([1.0, 1e30, 3e38, math.inf, math.nan])), st.integers(1, 3))
def test_a_fused_optimizer_skips_on_the_device(training: tuple[list[Any], int], interval: int) -> None:
    """PyTorch's fused step divides by the scale, which is exact for powers of two only."""
    steps, optimizers = training
    found = trained(GradScaler(growth_interval=interval), steps, optimizers, fused=True)
    expected = trained(torchs(growth_interval=interval), steps, optimizers, fused=True)
    assert_same(found, [by_key(each) for each in expected])


def test_a_fused_optimizer_is_left_as_it_was() -> None:
    """What is left of a raised flag would skip the steps of whoever uses the optimizer without a scaler."""
    scaler, optimizer = GradScaler(), trainer(fused=True)
    scaler.scale(loss_of(optimizer, math.inf)).backward()
    before = set(vars(optimizer))
    scaler.step(optimizer)
    assert set(vars(optimizer)) == before


# What makes up most programs stands more than once, so that more examples get further.
CALLS = [*("backward", "step", "update") * 3, "scale", "unscale", "set", "zero_grad", "save"]


@pytest.mark.full
@settings(max_examples=200)
@given(st.lists(st.tuples(st.sampled_from(CALLS), st.integers(0, 1)), min_size=4, max_size=20))
def test_whatever_torch_refuses_is_refused(calls: list[tuple[str, int]]) -> None:
    """In any order of calls, on two optimizers; what is refused changes nothing."""

    def traced(scaler: Any) -> list[Any]:
        every = [trainer(0), trainer(1)]
        seen: list[Any] = []
        for call, index in calls:
            try:
                result: Any = act(scaler, every[index], call)
            except (RuntimeError, AssertionError):
                result = "refused"
            state = by_key(scaler.state_dict())
            seen.append((call, result, state, numbers(parameters_of(every[index]))))
        return seen

    assert_same(traced(GradScaler(growth_interval=2)), traced(torchs(growth_interval=2)))


def act(scaler: Any, optimizer: torch.optim.Optimizer, call: str) -> Any:
    match call:
        case "scale":
            return scaler.scale(torch.ones(())).item()
        case "backward":
            return scaler.scale(loss_of(optimizer, 1.0)).backward()
        case "unscale":
            return scaler.unscale_(optimizer)
        case "step":
            return scaler.step(optimizer)
        case "update":
            return scaler.update()
        case "set":
            return scaler.update(8.0)
        case "zero_grad":
            return optimizer.zero_grad()
        case _:
            return scaler.load_state_dict(scaler.state_dict())


@pytest.mark.parametrize("there", [GradScaler, torchs])
@pytest.mark.parametrize("here", [GradScaler, torchs])
def test_a_state_goes_on_in_the_other_scaler(here: Callable[..., Any], there: Callable[..., Any]) -> None:
    optimizer, options = trainer(), {"growth_interval": 3, "growth_factor": 3.0, "backoff_factor": 0.25}
    scaler = here(init_scale=8.0, **options)
    assert set(scaler.state_dict()) == set(GradScaler().state_dict())

    def step(scaler: Any, value: float) -> None:
        scaler.scale(loss_of(optimizer, value)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    for value in (math.inf, 1.0, 1.0):
        step(scaler, value)
    other = there()
    other.load_state_dict(scaler.state_dict())
    assert by_key(other.state_dict()) == {
        "scale": 2.0,
        "_growth_tracker": 2,
        "growth_factor": 3.0,
        "backoff_factor": 0.25,
        "growth_interval": 3,
    }
    step(other, 1.0)
    assert other.get_scale() == 6.0


# What is scaled


Pair = namedtuple("Pair", "first second")


def test_losses_are_scaled_wherever_they_stand() -> None:
    scaler, one = GradScaler(init_scale=4.0), torch.ones(2)
    found = scaler.scale({"a": [one, (one, Pair(one, {"b": one}))], "c": iter([one, one])})
    four = 4 * one
    assert repr(found) == repr({"a": [four, (four, Pair(four, {"b": four}))], "c": [four, four]})


@pytest.mark.parametrize("nothing", [3.0, "loss", [torch.ones(1), None]])
def test_what_is_no_loss_is_refused(nothing: Any) -> None:
    with pytest.raises(ValueError, match="cannot be scaled; pass a tensor, or lists, tuples or dict"):
        GradScaler().scale(nothing)


def test_the_gradient_of_a_half_precision_loss_is_infinite_at_the_first_scale() -> None:
    for dtype, finite in ((torch.float16, False), (torch.float32, True)):
        loss = torch.ones((), dtype=dtype, requires_grad=True)
        GradScaler().scale(loss).backward()
        assert loss.grad is not None
        assert loss.grad.isfinite().item() == finite


def test_a_loss_of_the_scale_before_is_refused_by_autograd() -> None:
    """Its gradients would be divided by another number."""
    scaler, optimizer = GradScaler(), trainer()
    early = scaler.scale(loss_of(optimizer, 1.0))
    scaler.scale(loss_of(optimizer, 1.0)).backward()
    scaler.step(optimizer)
    scaler.update()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        early.backward()


# What is checked


def sparse_training(scaler: Any, rows: list[list[int]], value: float) -> list[Any]:
    torch.manual_seed(0)
    table = nn.Embedding(5, 2, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.5)
    for row in rows:
        scaler.scale((table(torch.tensor(row)) * value).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert table.weight.grad is not None
    return [table.weight.grad.to_dense().tolist(), table.weight.tolist(), by_key(scaler.state_dict())]


@pytest.mark.parametrize("rows", [[[0, 1]], [[2, 2, 4]], [[1, 3], [3, 0]]])
@pytest.mark.parametrize("value", [1.0, 1e30, math.inf, math.nan])
def test_sparse_gradients(rows: list[list[int]], value: float) -> None:
    assert_same(sparse_training(GradScaler(), rows, value), sparse_training(torchs(), rows, value))


def test_values_of_one_sparse_element_are_added_before_the_check() -> None:
    """Each of the two is finite at this scale, and their sum is not. PyTorch adds them after the check."""
    value = 0.75 * torch.finfo(torch.float32).max / 2.0**16
    *_, ours = sparse_training(GradScaler(), [[2, 2]], value)
    *_, torch_state = sparse_training(torchs(), [[2, 2]], value)
    assert (ours["scale"], torch_state["scale"]) == (2.0**15, 2.0**16)


def test_half_precision_gradients_are_refused() -> None:
    parameter = nn.Parameter(torch.ones(2, dtype=torch.float16))
    optimizer = torch.optim.SGD([parameter])
    for make in (GradScaler, torchs):
        scaler: Any = make(init_scale=2.0)
        scaler.scale(parameter.sum()).backward()
        for call in (scaler.unscale_, scaler.step):
            with pytest.raises(ValueError, match=r"FP16") as caught:
                call(optimizer)
            if make is GradScaler:
                assert str(caught.value) == (
                    "a gradient of this SGD is FP16 and would underflow when it is unscaled; "
                    "keep the parameters in FP32, and compute in FP16 under autocast or by a policy"
                )


def test_the_host_asks_once_for_each_optimizer_and_a_fused_one_not_at_all() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Asked(TorchDispatchMode):
        times = 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.times += function is torch.ops.aten._local_scalar_dense.default
            return function(*args, **(kwargs or {}))

    for fused, expected in ((False, 2), (True, 0)):
        scaler, optimizers = GradScaler(), [trainer(0, fused=fused), trainer(1, fused=fused)]
        losses = [loss_of(optimizer, 1.0) for optimizer in optimizers]
        with Asked() as asked:
            for loss in scaler.scale(losses):
                loss.backward()
            scaler.unscale_(optimizers[0])
            before = asked.times
            for optimizer in optimizers:
                optimizer.step = without_questions(optimizer, asked)  # type: ignore[method-assign]
                scaler.step(optimizer)
            scaler.update()
        assert (before, asked.times) == (0, expected)


def without_questions(optimizer: torch.optim.Optimizer, asked: Any) -> Callable[[], None]:
    """The optimizer's own step, whose questions are not counted."""
    step = optimizer.step

    def quiet() -> None:
        before = asked.times
        step()
        asked.times = before

    return quiet


def test_gradients_of_many_dtypes_are_checked_together() -> None:
    """A flag is lost if a list of gradients starts a new one."""
    for damaged in range(4):
        dtypes = (torch.float32, torch.bfloat16, torch.float64, torch.float32)
        parameters = [nn.Parameter(torch.ones(2, dtype=dtype)) for dtype in dtypes]
        optimizer, scaler = torch.optim.SGD(parameters, lr=1.0), GradScaler(init_scale=2.0)
        losses = [p.sum() * (math.nan if i == damaged else 1.0) for i, p in enumerate(parameters)]
        for loss in scaler.scale(losses):
            loss.backward()
        scaler.step(optimizer)
        assert all(torch.equal(p, torch.ones_like(p)) for p in parameters)


# Where it ends


def test_the_scale_stays_finite_and_above_zero() -> None:
    """PyTorch's own scale falls to zero at the lower end, and stays there."""
    for value, start, limit in ((1.0, 2.0**126, 2.0**127), (math.inf, 4 * SMALLEST, SMALLEST)):
        optimizer, scaler = trainer(), GradScaler(init_scale=start, growth_interval=1)
        for _ in range(5):
            # The gradient is zero, except where it is damaged. So it stays finite at any scale.
            scaler.scale(parameters_of(optimizer)[0].sum() * (0.0 if value == 1.0 else value)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        assert scaler.get_scale() == limit
        assert math.isfinite(1 / scaler.factor.reciprocal().item())


def test_a_loaded_count_beyond_the_interval_is_due() -> None:
    """PyTorch asks whether the two are equal, and would never grow again."""
    scaler, optimizer = GradScaler(init_scale=2.0), trainer()
    scaler.load_state_dict({**scaler.state_dict(), "_growth_tracker": 10, "growth_interval": 5})
    scaler.scale(loss_of(optimizer, 1.0)).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 4.0


# What goes wrong otherwise


def test_a_scale_that_changes_within_a_sum_spoils_it() -> None:
    """Two micro-batches of gradient 1: their sum is 2, and no number divides 8 + 4 into it rightly."""
    parameter = nn.Parameter(torch.zeros(1))
    for second in (8.0, 4.0):
        parameter.grad = None
        for factor in (8.0, second):
            GradScaler(init_scale=factor).scale(parameter.sum()).backward()
        assert parameter.grad is not None
        assert (parameter.grad / second == 2.0) == (second == 8.0)


def test_clipping_needs_true_gradients() -> None:
    """A norm of 5 is clipped to 1. Scaled, it would be clipped to 1 and then divided."""
    found = []
    for unscale in (True, False):
        parameter = nn.Parameter(torch.zeros(2))
        optimizer, scaler = torch.optim.SGD([parameter], lr=1.0), GradScaler()
        scaler.scale((parameter * torch.tensor([3.0, 4.0])).sum()).backward()
        if unscale:
            scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_([parameter], 1.0)
        scaler.step(optimizer)
        found.append(parameter.norm().item())
    assert found == pytest.approx([1.0, 2.0**-16])


# Switched off


def test_a_scaler_that_is_not_enabled_passes_everything_through() -> None:
    scaler, optimizer = GradScaler(enabled=False), trainer()
    loss = loss_of(optimizer, math.inf)
    assert scaler.scale(loss) is loss
    loss.backward()
    scaler.unscale_(optimizer)
    scaler.unscale_(optimizer)
    assert scaler.step(optimizer, lambda: 3.0) == 3.0
    assert not parameters_of(optimizer)[0].isfinite().all()
    scaler.update()
    scaler.load_state_dict({})
    assert (scaler.get_scale(), scaler.state_dict()) == (1.0, {})


# What is said


def test_refusals_say_what_to_do() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))])
    scaler = GradScaler()
    for call in (lambda: scaler.unscale_(optimizer), lambda: scaler.step(optimizer), scaler.update):
        with pytest.raises(RuntimeError, match=r"was called and no loss was scaled; call scaler.scale\(loss"):
            call()
    with pytest.raises(RuntimeError, match=r"this state is empty, .* not enabled; start with a new one"):
        scaler.load_state_dict({})
    loss = scaler.scale(parameters_of(optimizer)[0].sum())
    with pytest.raises(RuntimeError, match=r"no optimizer has stepped since the last update\(\); call step"):
        scaler.update()
    with pytest.raises(RuntimeError, match="no parameter of this SGD has a gradient; run a backward pass"):
        scaler.step(optimizer)
    scaler.update(2.0**16)
    loss = scaler.scale(parameters_of(optimizer)[0].sum())
    loss.backward()
    for closure in ({"closure": float}, {}):
        with pytest.raises(RuntimeError, match=r"this SGD gets a closure, .* compute them before step"):
            scaler.step(optimizer, *([] if closure else [float]), **closure)
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match=r"of this SGD are unscaled already; call update\(\) before"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match=r"this SGD has stepped already; call update\(\) first"):
        scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="this SGD has stepped; call unscale_ before step"):
        scaler.unscale_(optimizer)


@pytest.mark.parametrize(
    "options",
    [
        {"init_scale": 0.0},
        {"init_scale": math.inf},
        {"init_scale": math.nan},
        {"growth_factor": 1.0},
        {"growth_factor": math.inf},
        {"backoff_factor": 1.0},
        {"backoff_factor": 0.0},
        {"growth_interval": 0},
    ],
)
def test_numbers_without_sense_are_refused(options: dict[str, float]) -> None:
    [(name, value)] = options.items()
    with pytest.raises(ValueError, match=f"^{name}={value} makes no sense; use a finite positive scale"):
        GradScaler(**options)  # type: ignore[arg-type]


def test_a_scale_without_sense_is_not_set() -> None:
    scaler = GradScaler()
    scaler.scale(torch.ones(()))
    with pytest.raises(ValueError, match=r"^new_scale=-1\.0 makes no sense"):
        scaler.update(-1.0)
    assert scaler.get_scale() == 2.0**16


def test_a_failed_step_may_be_repeated() -> None:
    """As in PyTorch, the gradients are not divided a second time."""
    scaler, optimizer = GradScaler(), trainer()
    scaler.scale(loss_of(optimizer, 1.0)).backward()

    def fail() -> None:
        raise KeyError

    own, optimizer.step = optimizer.step, fail  # type: ignore[method-assign, assignment]
    with pytest.raises(KeyError):
        scaler.step(optimizer)
    gradients = [p.grad.clone() for p in parameters_of(optimizer)]  # type: ignore[union-attr]
    optimizer.step = own  # type: ignore[method-assign]
    scaler.step(optimizer)
    assert all(torch.equal(p.grad, g) for p, g in zip(parameters_of(optimizer), gradients, strict=True))
