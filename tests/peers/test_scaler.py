"""What a program may expect of a gradient scaler: PyTorch's and the library's, asked the same questions."""

from __future__ import annotations

import math
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ranks
from shardbook.precision.loss_scaling import SMALLEST, GradScaler

MAKERS: dict[str, Callable[..., Any]] = {"torch": torch.amp.GradScaler, "shardbook": GradScaler}
both = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def trained(scaler: Any, optimizer: torch.optim.Optimizer, gradient: float) -> Any:
    """One step, in which each parameter's gradient is this number."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    scaler.scale(torch.stack([(p * gradient).sum() for p in parameters]).sum()).backward()
    result = scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return result


def sgd(**options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.5, **options)


# --- how it is made and asked ---


@both
def test_the_first_argument_is_the_device(make: Callable[..., Any]) -> None:
    for scaler in (make("cpu"), make(device="cpu"), make("cpu", 8.0, 3.0, 0.25, 7)):
        assert scaler.is_enabled()
    assert (scaler.get_scale(), scaler.get_growth_factor()) == (8.0, 3.0)
    assert (scaler.get_backoff_factor(), scaler.get_growth_interval()) == (0.25, 7)


@both
def test_a_scaler_for_cuda_is_not_enabled_where_there_is_none(
    make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.warns(UserWarning, match="not available"):
        scaler = make("cuda")
    assert not scaler.is_enabled()
    # Nothing is to be scaled, so nobody has to be warned.
    assert not make("cuda", enabled=False).is_enabled()


def test_a_number_is_no_device() -> None:
    """PyTorch takes it for one, and starts from another scale than the program says."""
    with pytest.raises(TypeError, match=r"is the device, as in PyTorch; write init_scale=1024.0$"):
        GradScaler(1024.0)  # type: ignore[arg-type]
    assert torch.amp.GradScaler(1024.0).get_scale() == 2.0**16  # type: ignore[arg-type]


@both
def test_the_numbers_can_be_set(make: Callable[..., Any]) -> None:
    scaler, optimizer = make("cpu", init_scale=8.0), sgd()
    scaler.set_growth_factor(4.0)
    scaler.set_backoff_factor(0.25)
    scaler.set_growth_interval(2)
    seen = []
    for gradient in (1.0, 1.0, 1.0, math.inf, 1.0, 1.0):
        trained(scaler, optimizer, gradient)
        seen.append(scaler.get_scale())
    assert seen == [8.0, 32.0, 32.0, 8.0, 8.0, 32.0]


def test_numbers_that_make_no_sense_are_refused() -> None:
    scaler = GradScaler()
    for call in (scaler.set_growth_factor, scaler.set_backoff_factor):
        with pytest.raises(ValueError, match="makes no sense"):
            call(1.0)
    with pytest.raises(ValueError, match="growth_interval=0 makes no sense"):
        scaler.set_growth_interval(0)


@both
def test_without_scaling_everything_passes(make: Callable[..., Any]) -> None:
    # Even numbers that would be refused.
    scaler, optimizer = make("cpu", growth_factor=1.0, enabled=False), sgd()
    loss = torch.ones(())
    assert scaler.scale(loss) is loss
    calls: list[str] = []

    def closure() -> float:
        calls.append("closure")
        return 3.0

    assert scaler.step(optimizer, closure=closure) == 3.0
    scaler.unscale_(optimizer)
    scaler.update()
    assert (calls, scaler.get_scale(), scaler.state_dict()) == (["closure"], 1.0, {})
    scaler.load_state_dict({})


@both
def test_a_scaler_can_be_pickled_between_steps(make: Callable[..., Any]) -> None:
    scaler, optimizer = make("cpu", init_scale=8.0, growth_interval=2), sgd()
    trained(scaler, optimizer, 1.0)
    again = pickle.loads(pickle.dumps(scaler))
    trained(again, optimizer, 1.0)
    assert again.get_scale() == 16.0


@both
def test_a_new_scale_is_a_number_or_a_tensor(make: Callable[..., Any]) -> None:
    for value in (4.0, torch.tensor(4.0)):
        scaler = make("cpu")
        scaler.scale(torch.ones(()))
        scaler.update(value)
        assert scaler.get_scale() == 4.0


@both
def test_the_keys_of_the_state(make: Callable[..., Any]) -> None:
    expected = {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"}
    assert set(make("cpu").state_dict()) == expected


def test_a_scaled_loss_has_torchs_dtype() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        for shape in ((), (2,)):
            losses = [make("cpu", 2.0).scale(torch.ones(shape, dtype=dtype)) for make in MAKERS.values()]
            assert losses[0].dtype == losses[1].dtype, (dtype, shape)
            assert torch.equal(*losses)


def test_it_has_all_that_torchs_scaler_has() -> None:
    public = {name for name in dir(torch.amp.GradScaler) if not name.startswith("_")}
    assert len(public) == 14
    assert public <= set(dir(GradScaler))


# --- misuse ---


@both
def test_misuse_is_refused(make: Callable[..., Any]) -> None:
    def scaled() -> tuple[Any, torch.optim.Optimizer]:
        scaler, optimizer = make("cpu"), sgd()
        (parameter,) = optimizer.param_groups[0]["params"]
        scaler.scale(parameter.sum()).backward()
        return scaler, optimizer

    wrong = (RuntimeError, AssertionError)
    for method in ("unscale_", "step"):
        with pytest.raises(wrong):  # before any loss
            getattr(make("cpu"), method)(sgd())
        scaler, optimizer = scaled()
        getattr(scaler, method)(optimizer)
        with pytest.raises(wrong):  # twice
            getattr(scaler, method)(optimizer)
    scaler, optimizer = scaled()
    scaler.step(optimizer)
    with pytest.raises(wrong):  # in the wrong order
        scaler.unscale_(optimizer)
    scaler, optimizer = scaled()
    with pytest.raises(wrong):  # before a step
        scaler.update()
    with pytest.raises(wrong, match=r"[Cc]losure"):
        scaler.step(optimizer, closure=lambda: 1.0)
    scaler.step(optimizer)
    scaler.update()


# --- optimizers that are told ---


class Asking(torch.optim.Optimizer):
    """It skips by itself, and divides by what it is given."""

    _step_supports_amp_scaling = True

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        found_inf: Tensor = vars(self)["found_inf"]
        self.seen = found_inf.item(), vars(self)["grad_scale"]
        for parameter in self.param_groups[0]["params"]:
            parameter.add_(parameter.grad, alpha=0.0 if found_inf else -0.5).nan_to_num_(nan=1.0)


@both
def test_an_optimizer_that_asks_gets_the_flag_and_its_own_grad_scale(make: Callable[..., Any]) -> None:
    for gradient, flag in ((1.0, 0.0), (math.nan, 1.0)):
        for own in (None, torch.tensor(4.0)):
            scaler = make("cpu", init_scale=8.0)
            optimizer = Asking([nn.Parameter(torch.ones(3))])
            (parameter,) = optimizer.param_groups[0]["params"]
            if own is not None:
                optimizer.grad_scale = own  # type: ignore[attr-defined]
            scaler.scale((parameter * gradient).sum()).backward()
            # PyTorch's step leaves the division to such an optimizer, unless it was done before.
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            assert optimizer.seen == (flag, own)
            assert not {"found_inf", "grad_scale"} & set(vars(optimizer))
            assert parameter[0].item() == (1.0 if flag else 0.5)


class Old(torch.optim.SGD):
    """It takes the scaler itself, which PyTorch warns of since 2022."""

    _step_supports_amp_scaling = True

    def step(self, closure: Any = None, grad_scaler: Any = None) -> Any:
        return super().step()


def test_an_optimizer_that_wants_the_scaler_itself_is_refused() -> None:
    scaler, optimizer = GradScaler(), Old([nn.Parameter(torch.ones(3))], lr=0.5)
    with pytest.raises(TypeError, match=r"^the step of this Old takes grad_scaler=, which PyTorch has"):
        trained(scaler, optimizer, 1.0)


def test_a_fused_optimizer_steps_as_torchs_scaler_lets_it() -> None:
    for kind in (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD):
        values = []
        for make in MAKERS.values():
            parameter = nn.Parameter(torch.ones(3))
            optimizer, scaler = kind([parameter], lr=0.1, fused=True), make("cpu")
            for gradient in (1.0, math.inf, 3.0):
                trained(scaler, optimizer, gradient)
            values.append(parameter.detach())
        assert torch.equal(*values), kind


# --- a NaN that stays ---


def falling(make: Callable[..., Any], steps: int) -> list[float]:
    scaler, optimizer, seen = make("cpu"), sgd(), []
    for _ in range(steps):
        trained(scaler, optimizer, math.nan)
        seen.append(scaler.get_scale())
    return seen


def test_a_nan_that_stays_is_warned_of_once() -> None:
    """The scales are PyTorch's, except that they end at the smallest normal number instead of at zero."""
    with pytest.warns(
        UserWarning, match=r"^the loss scale has fallen to 3.55e-15, since step after"
    ) as caught:
        ours = falling(GradScaler, 200)
    assert len(caught) == 1
    theirs = falling(torch.amp.GradScaler, 200)
    assert theirs[-1] == 0.0
    assert ours == [max(scale, SMALLEST) for scale in theirs]


def test_a_scale_that_was_meant_to_be_small_is_not_warned_of() -> None:
    scaler, optimizer = GradScaler(init_scale=2.0**-4), sgd()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(130):
            trained(scaler, optimizer, 1.0)
    assert scaler.get_scale() == 2.0**-4


def sharded_scaler_is_asked_the_same() -> list[str]:
    from shardbook import ShardedGradScaler, shard

    assert ShardedGradScaler("cpu", 8.0).get_scale() == 8.0
    model = shard(nn.Linear(2, 2))
    scaler, optimizer = ShardedGradScaler(), torch.optim.SGD(model.parameters(), lr=0.5)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(130):
            loss: Tensor = model(torch.full((1, 2), math.nan)).sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return [str(each.message) for each in caught]


@pytest.mark.full
def test_the_sharded_scaler_warns_on_every_rank_once() -> None:
    for said in ranks.run(2, sharded_scaler_is_asked_the_same):
        assert len(said) == 1
        assert said[0].startswith("the loss scale has fallen to 3.55e-15, since step after step was skipped")
