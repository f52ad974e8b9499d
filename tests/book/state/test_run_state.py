"""A run that is saved, and goes on as if nothing had happened."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import ranks
from shardbook import Policy, ShardedGradScaler, no_sync, optimizer_state_dict, shard
from shardbook.state import run_state
from shardbook.state.run_state import load_run, save_run
from tiers import rows


class Noisy(nn.Module):
    """Draws random numbers, keeps running means, and has a weight with two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(6, 9), nn.BatchNorm1d(9), nn.Linear(9, 6)
        self.tied = nn.Linear(6, 9, bias=False)
        self.tied.weight = self.first.weight
        self.drop = nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x))
        x = self.second(self.drop(x))
        y: Tensor = self.tied(x).float()
        return y * random.random()


class Extra(Noisy):
    """Has more in its state than tensors."""

    def get_extra_state(self) -> dict[str, int]:
        return {"seen": 3}

    def set_extra_state(self, state: dict[str, int]) -> None:
        pass


def models_that_do_not_fit(folder: Path) -> list[str]:
    said = []
    with pytest.raises(ValueError, match="extra state") as caught:
        save_run(folder, shard(Extra(), units=nn.Linear))
    said.append(str(caught.value))
    save_run(folder, shard(Noisy(), units=nn.Linear))
    smaller = Noisy()
    del smaller.norm
    sharded = shard(smaller, units=nn.Linear)
    before = sharded.state_dict()
    with pytest.raises(ValueError, match="the model lacks") as caught:
        load_run(folder, sharded)
    said.append(str(caught.value))
    assert all(value.equal(before[name]) for name, value in sharded.state_dict().items())
    return said


def other_optimizers(folder: Path) -> dict[str, str]:
    """What an optimizer of each kind says to the state of AdamW."""
    model = shard(Noisy(), units=nn.Linear)
    save_run(folder, model, torch.optim.AdamW(model.parameters()))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    said = {}
    for kind in (torch.optim.SGD, torch.optim.Adagrad, torch.optim.RMSprop, torch.optim.Adam):
        other = shard(Noisy(), units=nn.Linear)
        other.load_state_dict(before)
        try:
            load_run(folder, other, kind(other.parameters()))
            said[kind.__name__] = ""
        except ValueError as error:
            said[kind.__name__] = str(error)
    return said


@pytest.mark.full
def test_the_state_of_another_optimizer_is_refused_unless_its_settings_are_the_same(tmp_path: Path) -> None:
    one, other = ranks.run(2, other_optimizers, tmp_path / "saved")
    assert one == other
    assert one.pop("Adam") == ""
    assert one["SGD"] == (
        f"{tmp_path}/saved holds the state of AdamW with betas, but this SGD has momentum; "
        "go on with the optimizer that was saved"
    )
    assert all("holds the state of AdamW with betas, but this" in said for said in one.values())


def test_what_a_checkpoint_cannot_hold_or_the_model_lacks_is_refused_by_name(tmp_path: Path) -> None:
    for extra, more in ranks.run(2, models_that_do_not_fit, tmp_path / "saved"):
        assert extra.startswith("the model has extra state, which a checkpoint has no place for")
        assert re.search(r"saved holds norm\.\w+, which the model lacks", more)


class Run:
    def __init__(self, stage: int, seed: int, policy: Policy | None = None) -> None:
        torch.manual_seed(seed)
        self.model = shard(Noisy(), units=nn.Linear, stage=stage, policy=policy)
        decayed = [p for name, p in self.model.named_parameters() if "bias" not in name]
        others = [p for name, p in self.model.named_parameters() if "bias" in name]
        self.optimizer = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=1e-2
        )
        self.schedule = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [2, 5], gamma=0.5)
        self.scaler = ShardedGradScaler("cpu", init_scale=8.0, growth_interval=2)
        # Each rank has random numbers of its own.
        torch.manual_seed(seed + dist.get_rank())
        random.seed(seed + dist.get_rank())

    def train(self, steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            loss = self.model(torch.randn(4, 6)).square().mean()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad()
            self.schedule.step()
            losses.append(loss.item())
        return losses

    def save(self, folder: Path) -> None:
        save_run(folder, self.model, self.optimizer, schedule=self.schedule, scaler=self.scaler)

    def load(self, folder: Path) -> None:
        load_run(folder, self.model, self.optimizer, schedule=self.schedule, scaler=self.scaler)


FORMATS = [None, Policy(param_dtype=torch.bfloat16, output_dtype=torch.float32)]


def goes_on(folder: Path, stage: int, policy: Policy | None) -> tuple[bool, bool]:
    first = Run(stage, 1, policy)
    first.train(3)
    first.save(folder)
    expected = first.train(4)
    second = Run(stage, 2, policy)
    second.train(1)
    second.load(folder)
    again = second.train(4)
    one, other = first.model.state_dict(), second.model.state_dict()
    return again == expected, all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize("stage", rows([0, 1, 2, 3], now=[1, 3]))
@pytest.mark.parametrize("policy", FORMATS, ids=["fp32", "bf16"])
def test_a_run_goes_on_bit_for_bit(tmp_path: Path, stage: int, policy: Policy | None) -> None:
    assert ranks.run(3, goes_on, tmp_path / "saved", stage, policy) == [(True, True)] * 3


class Old(torch.optim.Optimizer):
    """Elementwise, and counts its steps in a number that is no tensor; keeps two gradients in a list."""

    def __init__(self, params: Any, keep: bool = False) -> None:
        super().__init__(params, {"lr": torch.tensor(0.1), "keep": keep})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    state = self.state[p]
                    state["count"] = state.get("count", 0) + 1
                    state["last"] = [p.grad.clone(), *state.get("last", [])][:2] if group["keep"] else None
                    pull = sum(state["last"]) if group["keep"] else p.grad
                    p.sub_(pull, alpha=group["lr"].item() / state["count"])


def optimizers(name: str, model: nn.Module) -> torch.optim.Optimizer:
    parameters = list(model.parameters())
    if name == "tensor lr":
        return torch.optim.AdamW(parameters, lr=torch.tensor(1e-2))
    if name == "Adafactor":
        return torch.optim.Adafactor(parameters, lr=1e-2)
    if name == "LBFGS":
        return torch.optim.LBFGS(parameters, lr=0.1, max_iter=2, history_size=2)
    return Old(parameters, keep="keeps" in name)


def resumes(folder: Path, name: str, stage: int) -> list[bool]:
    def start(seed: int) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
        torch.manual_seed(seed)
        model = shard(nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 6)), stage=stage)
        optimizer = optimizers(name, model)
        return model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def train(model: nn.Module, optimizer: torch.optim.Optimizer, schedule: Any, steps: int) -> list[float]:
        losses = []

        def closure() -> Tensor:
            model.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            losses.append(loss.item())
            return loss

        for step in range(steps):
            x = torch.linspace(0, 1, 12).view(2, 6) + step + dist.get_rank()
            if name == "LBFGS":
                optimizer.step(closure)
            else:
                closure()
                optimizer.step()
            schedule.step()
        return losses

    first = start(1)
    train(*first, 3)
    save_run(folder, *first[:2], schedule=first[2])
    expected = train(*first, 3)
    second = start(2)
    load_run(folder, *second[:2], schedule=second[2])
    again = train(*second, 3)
    one, other = first[0].state_dict(), second[0].state_dict()
    states = [each[1].state_dict() for each in (first, second)]
    return [again == expected, *(torch.equal(one[key], other[key]) for key in one), equal(*states)]


@pytest.mark.cases(now=1, ci=1)
@pytest.mark.parametrize(
    ("name", "stage"),
    [("tensor lr", 3), ("Adafactor", 0), ("LBFGS", 0), ("counts", 3), ("counts and keeps", 0)],
)
def test_each_optimizer_that_trains_is_saved_whole(tmp_path: Path, name: str, stage: int) -> None:
    assert ranks.run(2, resumes, tmp_path / "saved", name, stage) == [[True] * 6] * 2


def list_in_slices(folder: Path) -> list[str]:
    model = shard(nn.Linear(6, 9), stage=3)
    optimizer = Old(model.parameters(), keep=True)
    model(torch.ones(2, 6)).sum().backward()
    optimizer.step()
    said = []
    for save in (lambda: save_run(folder, model, optimizer), lambda: optimizer_state_dict(model, optimizer)):
        with pytest.raises(ValueError, match="last of weight is tensors in a list") as caught:
            save()
        said.append(str(caught.value))
    return said


def test_tensors_in_a_list_of_a_slice_are_refused_by_name(tmp_path: Path) -> None:
    for save, gather in ranks.run(2, list_in_slices, tmp_path / "saved"):
        assert save == f"rank 0: {gather}"
        assert save.endswith("train with stage=0, or save without the optimizer")


def saved(folder: Path, stage: int) -> tuple[dict[str, Any], dict[str, Any]]:
    run = Run(stage, 1)
    run.train(3)
    run.save(folder)
    return run.model.state_dict(), optimizer_state_dict(run.model, run.optimizer)


def loaded(folder: Path, stage: int) -> tuple[dict[str, Any], dict[str, Any]]:
    run = Run(stage, 2)
    run.load(folder)
    return run.model.state_dict(), optimizer_state_dict(run.model, run.optimizer)


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


@pytest.mark.full
def test_another_number_of_ranks_in_another_stage_has_the_same_parameters_and_state(tmp_path: Path) -> None:
    before, state = ranks.run(3, saved, tmp_path / "saved", 3)[0]
    for count, stage in ((1, 0), (2, 3), (4, 2)):
        for after, state_after in ranks.run(count, loaded, tmp_path / "saved", stage):
            assert equal(before, after)
            assert equal(state, state_after)


def between_micro_batches(folder: Path) -> None:
    run = Run(3, 1)
    with no_sync(run.model):
        run.model(torch.randn(4, 6)).sum().backward()
    with pytest.raises(RuntimeError, match="wait for their exchange and are no part of a checkpoint"):
        run.save(folder)


def test_gradients_that_wait_are_not_lost_in_silence(tmp_path: Path) -> None:
    ranks.run(2, between_micro_batches, tmp_path / "saved")


def test_the_checkpoint_of_a_stranger_runs_nothing(tmp_path: Path) -> None:
    import pickle

    from shardbook.state.file_formats import Damaged, index_of

    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "ran",))

    (tmp_path / ".metadata").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(Damaged, match=r"is no index of a checkpoint: it names pathlib"):
        index_of(tmp_path)
    assert not (tmp_path / "ran").exists()
    with pytest.raises(Damaged, match=r"is no checkpoint: it has no file \.metadata"):
        index_of(tmp_path / "elsewhere")


TEXTS = {
    "[" * 10**5: "maximum recursion depth exceeded",
    "[]": r"Expected `object`, got `array`$",
    '{"ranks": 0, "optimizer": null, "others": {}}': r"Expected `int` >= 1 - at `\$\.ranks`$",
    '{"ranks": 1, "optimizer": {"tuple": 3}, "others": {}}': "TypeError",
    '{"ranks": 1, "optimizer": [{"dict": [["params", 3]]}], "others": {}}': "Expected `array`, got `int`",
    '{"ranks": 1, "optimizer": null, "others": {"x": {"set": 3}}}': "KeyError 'dict'",
}


def texts(folder: Path) -> list[str]:
    """What is said of a run whose text is another, and without the library that reads."""
    run, said = Run(3, 1), []
    for number, text in enumerate(TEXTS):
        with patch.object(run_state.json, "dumps", lambda _, text=text: text):
            save_run(folder / str(number), run.model, run.optimizer)
        with pytest.raises(ValueError, match="says nothing of its run that can be understood: ") as refused:
            load_run(folder / str(number), run.model, run.optimizer)
        said.append(str(refused.value))
    other = torch.optim.lr_scheduler.LinearLR(run.optimizer)
    save_run(folder / "other", run.model, run.optimizer, scaler=other)
    with pytest.raises(ValueError, match=r"holds a state that scaler does not take: KeyError 'growth"):
        load_run(folder / "other", run.model, run.optimizer, scaler=run.scaler)
    assert "msgspec" in sys.modules
    with patch.dict(sys.modules, {"msgspec": None}):
        sys.modules.pop("shardbook.state.schema")
        with pytest.raises(ValueError, match="is needed") as refused:
            load_run(folder / "0", run.model, run.optimizer)
    return [*said, str(refused.value)]


def test_a_text_that_cannot_be_so_and_a_missing_library_are_told_in_a_sentence(tmp_path: Path) -> None:
    (found,) = ranks.run(1, texts, tmp_path)
    for said, expected in zip(found, TEXTS.values(), strict=False):
        assert re.search(expected, said), said
        assert "\n" not in said
    assert found[-1] == "to read a checkpoint, the library msgspec is needed: pip install msgspec"


@pytest.mark.nightly
def test_a_program_that_only_trains_needs_no_library_that_reads() -> None:
    line = "import sys, shardbook, shardbook.train.loop; sys.exit('msgspec' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", line], check=False).returncode == 0
