"""The state around a recomputation: random numbers and autocast, repeated inside and put back after."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import ranks
from shardbook.checkpointing.checkpointing import checkpoint
from shardbook.checkpointing.segment import AmbientAutocast, capture_autocast, device_types
from shardbook.foundations.rng import RNGState, capture


class Boom(Exception):
    pass


# Random numbers


def draws() -> Tensor:
    """A few numbers by several of the CPU's algorithms."""
    return torch.cat([torch.rand(3), torch.randn(17), nn.functional.dropout(torch.ones(20))])


@given(before=st.integers(0, 5), between=st.integers(0, 5), inside=st.integers(1, 5), fails=st.booleans())
def test_inside_the_numbers_repeat_and_after_it_they_go_on(
    before: int, between: int, inside: int, fails: bool
) -> None:
    torch.manual_seed(0)
    for _ in range(before):
        draws()
    state = capture()
    first = [draws() for _ in range(inside)]
    for _ in range(between):
        draws()
    surrounding = torch.get_rng_state()
    try:
        with state.restored():
            again = [draws() for _ in range(inside)]
            if fails:
                raise Boom
    except Boom:
        pass
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert torch.equal(torch.get_rng_state(), surrounding)


def test_without_any_generator_nothing_is_restored() -> None:
    torch.manual_seed(0)
    first = draws()
    with RNGState().restored():
        assert not torch.equal(draws(), first)


def test_a_state_is_restored_as_often_as_wanted_also_inside_of_itself() -> None:
    state = capture()
    first = draws()
    with state.restored():
        assert torch.equal(draws(), first)
        with state.restored():
            assert torch.equal(draws(), first)
    with state.restored():
        assert torch.equal(draws(), first)


class Chips:
    """The module of a type of device of which this machine has none: one generator a device."""

    def __init__(self) -> None:
        self.initialised = True
        self.generators = [random.Random(number) for number in range(3)]
        self.read: list[torch.device] = []

    def is_initialized(self) -> bool:
        return self.initialised

    def get_rng_state(self, device: torch.device) -> Any:
        self.read.append(device)
        return self.generators[device.index].getstate()

    def set_rng_state(self, state: Any, device: torch.device) -> None:
        self.generators[device.index].setstate(state)

    def draw(self, number: int) -> float:
        return self.generators[number].random()


@pytest.fixture
def chips(monkeypatch: pytest.MonkeyPatch) -> Chips:
    """Three devices that look like CUDA's. Their tensors have no memory, their generators work."""
    found = Chips()
    monkeypatch.setattr(torch, "get_device_module", lambda device=None: found)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_: torch.device("cuda"))
    return found


class Holder(nn.Module):
    """Parameters on one device, a buffer on another, and a method that is bound to the module."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(on(1))
        self.register_buffer("table", on(2))

    def method(self) -> None:
        pass


def on(number: int) -> Tensor:
    with FakeTensorMode():
        return torch.empty(2, device=f"cuda:{number}")


SHOWN: list[tuple[Callable[[], Any], set[int]]] = [
    (lambda: torch.ones(2), set()),
    (lambda: (1, "text", None, print), set()),
    (lambda: on(1), {1}),
    (lambda: (on(0), {"mask": [on(2), 3]}), {0, 2}),
    (lambda: {"a": on(1), "b": on(1)}, {1}),
    (lambda: torch.device("cuda:2"), {2}),
    (lambda: torch.device("cpu"), set()),
    (lambda: torch.device("meta"), set()),
    (lambda: Holder(), {1, 2}),
    (lambda: Holder().method, {1, 2}),
    (lambda: partial(print, on(0), more={"a": on(2)}), {0, 2}),
    (lambda: partial(partial(print, [Holder()]), torch.device("cuda:0")), {0, 1, 2}),
    (lambda: partial(Holder().method), {1, 2}),
]


@pytest.mark.parametrize(("arguments", "shown"), SHOWN)
def test_what_the_arguments_show_is_repeated_and_nothing_else(
    chips: Chips, arguments: Callable[[], Any], shown: set[int]
) -> None:
    state = capture(arguments())
    assert {device.index for device in chips.read} == shown
    assert len(chips.read) == len(shown)
    first = [chips.draw(number) for number in range(3)]
    following = [chips.generators[number].getstate() for number in range(3)]
    with state.restored():
        assert {number for number in range(3) if chips.draw(number) == first[number]} == shown
    for number in shown:
        assert chips.generators[number].getstate() == following[number]


def test_a_machine_with_nothing_but_a_cpu_looks_into_no_module(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sealed(nn.Module):
        def parameters(self, recurse: bool = True) -> Any:
            raise Boom

    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_: None)
    assert list(capture(Sealed()).states) == [torch.default_generator]
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_: torch.device("cuda"))
    with pytest.raises(Boom):
        capture(Sealed())


def test_a_device_without_a_number_is_the_one_that_is_current_now(
    chips: Chips, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_the_current_device = on(1)
    monkeypatch.setattr(torch, "empty", lambda *_, device: on_the_current_device)
    assert list(capture(torch.device("cuda")).states)[1:] == [torch.device("cuda:1")]


def test_a_device_that_was_not_initialised_stays_so(chips: Chips) -> None:
    chips.initialised = False
    state = capture(on(0), torch.device("cuda"), Holder())
    with state.restored():
        pass
    assert list(state.states) == [torch.default_generator]
    assert chips.read == []


def test_the_only_generator_of_a_device_takes_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    class Apple:
        generator = torch.Generator()
        get_rng_state = staticmethod(generator.get_state)
        set_rng_state = staticmethod(generator.set_state)

    monkeypatch.setattr(torch, "get_device_module", lambda device=None: Apple)
    state = capture(torch.device("mps:0"))
    first = torch.rand(3, generator=Apple.generator)
    with state.restored():
        assert torch.equal(torch.rand(3, generator=Apple.generator), first)


def test_recomputations_on_two_devices_at_once_do_not_disturb_each_other(chips: Chips) -> None:
    """Autograd has a thread for each device. Here is one order in which two of them may run."""

    def second_draws(capture_for: Callable[[int], RNGState]) -> tuple[list[float], list[float]]:
        states, drawn = [], []
        for number in (0, 1):
            states.append(capture_for(number))
            drawn.append([chips.draw(number), chips.draw(number)])
        one, two = ExitStack(), ExitStack()
        one.enter_context(states[0].restored())
        two.enter_context(states[1].restored())
        again = [chips.draw(0), chips.draw(1)]
        one.close()
        again.append(chips.draw(1))
        two.close()
        return again, [drawn[0][0], *drawn[1]]

    again, first = second_draws(lambda number: capture(on(number)))
    assert again == first
    # With the states of all devices, the end of the first recomputation rewinds the second's generator.
    again, first = second_draws(lambda _: capture(on(0), on(1), on(2)))
    assert again != first


def test_a_generator_among_the_arguments_is_repeated_and_one_elsewhere_is_not() -> None:
    shown, hidden = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    state = capture({"generator": shown}, [shown])

    def draw() -> list[float]:
        return [torch.rand(1, generator=generator).item() for generator in (shown, hidden)]

    first, following = draw(), shown.get_state()
    with state.restored():
        again = draw()
    assert again[0] == first[0]
    assert again[1] != first[1]
    assert torch.equal(shown.get_state(), following)


def test_the_state_of_the_cpu_is_5056_bytes() -> None:
    assert [state.nbytes for state in capture().states.values()] == [5056]


def test_a_simulated_run_captures_and_restores() -> None:
    with FakeTensorMode():
        with capture(torch.empty(2, device="cuda:0")).restored():
            assert torch.rand(2).shape == (2,)
        assert not torch.cuda.is_initialized()


def masks_repeat(kind: str) -> bool:
    x = torch.ones(1000, device=kind)
    module = torch.get_device_module(kind)
    state = capture(x)
    first, following = nn.functional.dropout(x), module.get_rng_state()
    with state.restored():
        again = nn.functional.dropout(x)
    return torch.equal(again, first) and torch.equal(module.get_rng_state(), following)


def test_on_a_device_masks_repeat(accelerator: str) -> None:
    backend = {"cuda": "nccl", "late": "cpu:gloo,late:late"}[accelerator]
    assert ranks.run(1, masks_repeat, accelerator, backend=backend) == [True]


# Autocast


def settings() -> tuple[Any, ...]:
    """What a computation on the CPU is like now."""
    return (
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.is_autocast_cache_enabled(),
    )


AMBIENTS = st.tuples(st.booleans(), st.sampled_from([torch.bfloat16, torch.float16]), st.booleans())


def autocast(enabled: bool, dtype: torch.dtype, cache_enabled: bool) -> torch.autocast:
    return torch.autocast("cpu", dtype, enabled, cache_enabled)


@given(forward=AMBIENTS, backward=AMBIENTS, fails=st.booleans())
def test_inside_autocast_is_as_it_was_and_after_it_as_before(
    forward: tuple[Any, ...], backward: tuple[Any, ...], fails: bool
) -> None:
    with autocast(*forward):
        captured = capture_autocast()
    outside = settings()
    with autocast(*backward):
        try:
            with captured.restored():
                assert settings() == forward
                if fails:
                    raise Boom
        except Boom:
            pass
        assert settings() == backward
    assert settings() == outside


@pytest.mark.parametrize("fails", [False, True])
def test_the_settings_of_our_own_autocast_are_captured_as_well(fails: bool) -> None:
    from shardbook.precision.autocast import autocast as own
    from shardbook.precision.autocast import current

    def product() -> torch.dtype:
        return torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype

    plain = capture_autocast()
    with own("cpu", torch.bfloat16):
        captured, inside = capture_autocast(), current()
        with plain.restored():
            assert product() == torch.float32
        assert product() == torch.bfloat16
    try:
        with captured.restored():
            assert (product(), current()) == (torch.bfloat16, inside)
            if fails:
                raise Boom
    except Boom:
        pass
    assert (product(), current()) == (torch.float32, {})


def test_other_types_of_devices_are_captured_when_asked_for() -> None:
    with torch.autocast("xpu", torch.float16):
        captured = capture_autocast(["xpu", "meta"])
    expected = {"cpu": (False, torch.bfloat16), "xpu": (True, torch.float16)}
    # PyTorch may be built for a device that this machine does not have.
    if (built_for := torch.accelerator.current_accelerator()) is not None:
        expected[built_for.type] = (False, torch.get_autocast_dtype(built_for.type))
    assert captured.settings == expected
    assert not torch.is_autocast_enabled("xpu")
    with captured.restored():
        assert torch.is_autocast_enabled("xpu")
        assert torch.get_autocast_dtype("xpu") == torch.float16
    assert not torch.is_autocast_enabled("xpu")


def test_the_accelerator_of_this_machine_is_captured_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_: torch.device("cuda"))
    assert list(capture_autocast().settings) == ["cpu", "cuda"]


def test_the_types_of_devices_are_those_of_the_tensors() -> None:
    assert device_types([torch.ones(1), {"x": on(1)}], 3, None) == {"cpu", "cuda"}


def test_a_weight_is_cast_anew_in_the_dtype_that_is_restored() -> None:
    """torch finds a cast by the weight alone, and takes the one of another dtype."""
    linear, x = nn.Linear(4, 4), torch.ones(2, 4)
    with torch.autocast("cpu", torch.float16):
        captured = capture_autocast()
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(x).dtype == torch.bfloat16
        with torch.autocast("cpu", torch.float16), pytest.raises(RuntimeError, match="same dtype"):
            linear(x)
        with captured.restored():
            assert linear(x).dtype == torch.float16
        assert linear(x).dtype == torch.bfloat16


def test_casts_of_a_recomputation_do_not_outlive_it() -> None:
    linear, x = nn.Linear(4, 4), torch.ones(2, 4)
    casts: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        casts.append(tensor)
        return tensor

    with torch.autocast("cpu", torch.bfloat16):
        captured = capture_autocast()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            with captured.restored():
                linear(linear(x))
            recomputed = {tensor.data_ptr() for tensor in casts if tensor.shape == (4, 4)}
            assert len(recomputed) == 1
            casts_before = len(casts)
            linear(linear(x))
        assert recomputed.isdisjoint(
            tensor.data_ptr() for tensor in casts[casts_before:] if tensor.shape == (4, 4)
        )


def test_whether_casts_are_kept_decides_the_last_bits_of_a_gradient() -> None:
    def gradient(ambient: AmbientAutocast) -> Tensor:
        torch.manual_seed(0)
        linear, x = nn.Linear(64, 64), torch.randn(8, 64)
        with ambient.restored():
            y = linear(linear(x))
        y.float().square().sum().backward()
        assert linear.weight.grad is not None
        return linear.weight.grad

    found = []
    for keep in (True, False):
        with autocast(True, torch.bfloat16, keep):
            found.append(gradient(capture_autocast()))
    assert not torch.equal(*found)
    torch.testing.assert_close(*found, rtol=0.02, atol=0.05)


Run = Callable[..., Any]


def block_inside(linear: nn.Module, x: Tensor) -> Tensor:
    """Leaves autocast for a while. The end of that block must not drop the casts."""
    h = linear(x)
    with torch.autocast("cpu", enabled=False):
        h = h.float() * 2
    out: Tensor = linear(h)
    return out


def two_blocks(linear: nn.Module, x: Tensor) -> Tensor:
    """Enters autocast twice. Unless something surrounds both, the end of each block drops the casts."""
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            x = linear(x)
    return x


def gradients_under(run: Run, function: Run, around: bool, around_backward: bool) -> list[Tensor]:
    torch.manual_seed(0)
    linear, x = nn.Linear(64, 64), torch.randn(8, 64, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16) if around else nullcontext():
        loss = run(partial(function, linear), x).float().square().sum()
    with torch.autocast("cpu", torch.float16) if around_backward else nullcontext():
        loss.backward()
        assert depth() == around_backward
    assert x.grad is not None
    assert linear.weight.grad is not None
    return [x.grad, linear.weight.grad]


def depth() -> int:
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


@pytest.mark.parametrize("then", range(4))
@pytest.mark.parametrize("now", range(4))
def test_inside_as_many_blocks_are_open_as_were_then_and_afterwards_as_before(then: int, now: int) -> None:
    def blocks(number: int) -> ExitStack:
        stack = ExitStack()
        for _ in range(number):
            stack.enter_context(torch.autocast("cpu", enabled=False))
        return stack

    with blocks(then):
        captured = capture_autocast()
        assert depth() == then
    with blocks(now):
        with captured.restored():
            assert depth() == then
        assert depth() == now
    assert depth() == 0


@pytest.mark.parametrize("around_backward", [False, True])
@pytest.mark.parametrize("around", [False, True])
@pytest.mark.parametrize("function", [block_inside, two_blocks])
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_blocks_inside_of_a_function_drop_casts_in_the_second_run_where_they_did_in_the_first(
    use_reentrant: bool, function: Run, around: bool, around_backward: bool
) -> None:
    run = partial(checkpoint, use_reentrant=use_reentrant)
    found = gradients_under(run, function, around, around_backward)
    plain = gradients_under(lambda f, x: f(x), function, around, around_backward)
    assert all(torch.equal(a, b) for a, b in zip(found, plain, strict=True))


def test_torch_runs_a_second_time_within_a_block_of_its_own() -> None:
    """So it keeps casts that the forward pass has dropped."""
    torchs = partial(torch.utils.checkpoint.checkpoint, use_reentrant=True)
    plain = gradients_under(lambda f, x: f(x), two_blocks, False, False)
    found = gradients_under(torchs, two_blocks, False, False)
    assert not torch.equal(found[1], plain[1])
