"""Checkpoints of FSDP2 and of plain PyTorch, into a sharded model and back."""

from __future__ import annotations

import pickle
import re
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard

import ranks
from shardbook import (
    Checkpoints,
    load_torch_checkpoint,
    optimizer_state_dict,
    shard,
)
from tiers import rows

WHOLE = StateDictOptions(full_state_dict=True)


def built(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(7, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """Two groups, in another order than the parameters."""
    weights = [p for name, p in model.named_parameters() if "weight" in name]
    biases = [p for name, p in model.named_parameters() if "bias" in name]
    groups = [{"params": biases, "weight_decay": 0.0}, {"params": weights, "lr": 0.05}]
    return torch.optim.AdamW(groups, lr=0.1, betas=(0.8, 0.9))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for number in range(steps):
        torch.manual_seed(number)
        model(torch.randn(4, 7)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def ours(seed: int, stage: int, steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    plain = built(seed)
    optimizer = optimizer_of(shard(plain, units=nn.Linear, stage=stage))
    train(plain, optimizer, steps)
    return plain, optimizer


def theirs(seed: int, steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = built(seed)
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    optimizer = optimizer_of(model)
    train(model, optimizer, steps)
    return model, optimizer


def whole_of_theirs(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    return get_model_state_dict(model, options=WHOLE), get_optimizer_state_dict(
        model, optimizer, options=WHOLE
    )


def whole_of_ours(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    """The same, with the optimizer's state by the names of parameters."""
    state = optimizer_state_dict(model, optimizer)
    names = [name for name, _ in model.named_parameters()]
    order = [
        *(name for name in names if "bias" in name),
        *(name for name in names if "weight" in name),
    ]
    return dict(model.state_dict()), {
        "state": {order[number]: entries for number, entries in state["state"].items()},
        "param_groups": [
            group | {"params": [order[number] for number in group["params"]]}
            for group in state["param_groups"]
        ],
    }


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def fsdp2_writes(folder: Path, keys: tuple[str | None, str]) -> Any:
    model, optimizer = theirs(1, 3)
    state = get_model_state_dict(model)
    saved = state if keys[0] is None else {keys[0]: state}
    dcp.save(saved | {keys[1]: get_optimizer_state_dict(model, optimizer)}, checkpoint_id=folder)
    return whole_of_theirs(model, optimizer)


def ours_reads(path: Path, stage: int, keys: tuple[str | None, str], options: Any = None) -> Any:
    model, optimizer = ours(2, stage, 1)
    model(torch.ones(2, 7))
    load_torch_checkpoint(model, path, optimizer, model_key=keys[0], optimizer_key=keys[1], **(options or {}))
    return whole_of_ours(model, optimizer)


KEYS = [("model", "optim"), ("app.net", "app.opt"), (None, "optimizer")]


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize(("model_key", "optimizer_key"), rows(KEYS, now=[("app.net", "app.opt")]))
def test_what_fsdp2_has_saved_goes_on_here(tmp_path: Path, model_key: str | None, optimizer_key: str) -> None:
    keys = model_key, optimizer_key
    expected = ranks.run(2, fsdp2_writes, tmp_path / "saved", keys)[0]
    for count, stage in ((3, 3), (1, 0)):
        for found in ranks.run(count, ours_reads, tmp_path / "saved", stage, keys):
            assert equal(found, expected)


def ours_writes(folder: Path) -> Any:
    model, optimizer = ours(1, 3, 3)
    Checkpoints(folder).save(3, model, optimizer)
    return whole_of_ours(model, optimizer)


def fsdp2_reads(folder: Path) -> Any:
    model, optimizer = theirs(2, 1)
    state = {
        "model": get_model_state_dict(model),
        "optim": get_optimizer_state_dict(model, optimizer),
    }
    dcp.load(state, checkpoint_id=folder / "step-00000003")
    set_model_state_dict(model, state["model"])
    set_optimizer_state_dict(model, optimizer, state["optim"])
    return whole_of_theirs(model, optimizer)


@pytest.mark.full
def test_what_is_saved_here_goes_on_in_fsdp2(tmp_path: Path) -> None:
    expected = ranks.run(3, ours_writes, tmp_path)[0]
    for found in ranks.run(2, fsdp2_reads, tmp_path):
        assert equal(found, expected)


def plain(folder: Path) -> Any:
    """Files of plain PyTorch: both with numbers for parameters, and the model alone."""
    model = built(1)
    optimizer = optimizer_of(model)
    train(model, optimizer, 3)
    saved = {"net": model.state_dict(), "opt": optimizer.state_dict(), "epoch": 3}
    torch.save(saved, folder / "both.pt")
    torch.save(model.state_dict(), folder / "alone.pt")
    torch.save(model.state_dict(), folder / "old.pt", _use_new_zipfile_serialization=False)
    return dict(model.state_dict()), optimizer.state_dict()


def numbers_of_ours(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    return dict(model.state_dict()), optimizer_state_dict(model, optimizer)


def ours_reads_files(folder: Path, stage: int) -> Any:
    model, optimizer = ours(2, stage, 1)
    found = []
    for file in ("alone.pt", "old.pt"):
        load_torch_checkpoint(model, folder / file)
        found.append(dict(model.state_dict()))
        train(model, optimizer, 1)
    load_torch_checkpoint(model, folder / "both.pt", optimizer, model_key="net", optimizer_key="opt")
    return found, numbers_of_ours(model, optimizer)


@pytest.mark.cases(ci=1)
@pytest.mark.parametrize("stage", rows([0, 1, 2, 3], now=[3]))
def test_files_of_plain_pytorch_go_on_here(tmp_path: Path, stage: int) -> None:
    expected = plain(tmp_path)
    for alone, both in ranks.run(2, ours_reads_files, tmp_path, stage):
        assert equal(alone, [expected[0]] * 2)
        assert equal(both, expected)


def converted(folder: Path, halved: bool) -> Any:
    """A folder and a file in half the format, under other names."""
    if halved:
        model = built(1).bfloat16()
        state = {f"base.{name}": value for name, value in model.state_dict().items()}
        torch.save(state | {"base.more": torch.ones(1)}, folder / "half.pt")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it saves in one process
            dcp.save({"model": state | {"base.more": torch.ones(1)}}, checkpoint_id=folder / "half")
        return dict(model.state_dict())
    found = []
    for name in ("half", "half.pt"):
        model, _ = ours(2, 3, 1)
        load_torch_checkpoint(model, folder / name, cast=True, ignore=["*.more"], rename="base.{}".format)
        found.append(dict(model.state_dict()))
    return found


@pytest.mark.full
def test_names_and_dtypes_change_where_the_caller_says_so(tmp_path: Path) -> None:
    half = converted(tmp_path, True)
    for found in ranks.run(2, converted, tmp_path, False):
        for state in found:
            assert state.keys() == half.keys()
            for name, value in state.items():
                assert value.dtype in (torch.float32, torch.int64)
                assert torch.equal(value, half[name].to(value.dtype))


def refusal(folder: Path, what: str) -> str:
    model, optimizer = ours(2, 3, 1)
    options: dict[str, Any] = {}
    if what == "no optimizer":
        options = {"optimizer": optimizer, "optimizer_key": "other"}
    if what == "no optimizer here":
        options = {"optimizer": optimizer}
    before = dict(model.state_dict())
    try:
        load_torch_checkpoint(model, folder / NAMES.get(what, "saved"), **options)
    except (ValueError, OSError) as error:
        dist.barrier()
        assert equal(dict(model.state_dict()), before)
        return str(error)
    return ""


NAMES = {
    "no optimizer here": "alone.pt",
    "other names": "other.pt",
    "no model": "nothing.pt",
    "a list": "list.pt",
    "nothing": "nowhere",
    "a part": "part.pt",
}
SAID = [
    ("no optimizer", r"saved holds no state of an optimizer under that key; say with optimizer_key"),
    ("no optimizer here", r"alone\.pt holds no state of an optimizer under that key"),
    ("other names", r"other\.pt is not of this model: it lacks 0\.weight, and the model has no 9\.weight$"),
    ("no model", r"has no state_dict of a model under 'model'; it has net, opt, epoch: say with model_key"),
    ("a list", r"list\.pt holds a list, no state_dict$"),
    ("nothing", r"No such file or directory"),
    ("a part", r"^0\.weight in .* is one rank's part; save with full_state_dict=True"),
]


def part(folder: Path) -> None:
    model, _ = theirs(1, 0)
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), folder / "part.pt")


@pytest.mark.nightly
def test_what_does_not_fit_is_refused_on_every_rank(tmp_path: Path) -> None:
    ranks.run(2, fsdp2_writes, tmp_path / "saved", ("model", "optim"))
    ranks.run(2, part, tmp_path)
    plain(tmp_path)
    (tmp_path / "both.pt").rename(tmp_path / "nothing.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    state = built(1).state_dict()
    state["9.weight"] = state.pop("0.weight")
    torch.save(state, tmp_path / "other.pt")
    for what, said in SAID:
        found = ranks.run(2, refusal, tmp_path, what)
        assert re.search(said, found[0].removeprefix("rank 0: ")), (what, found[0])
        assert len({sentence.removeprefix("rank 0: ") for sentence in found}) == 1


# --- files that say what cannot be so ---


def with_settings(folder: Path, **changes: Any) -> None:
    """A folder of PyTorch, in which settings of the optimizer are others."""
    model = built(1)
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, 1)
    state = get_optimizer_state_dict(model, optimizer)
    state["param_groups"][0].update(changes)
    dcp.save({"model": model.state_dict(), "optim": state}, checkpoint_id=folder, no_dist=True)


def tensor(name: str, **changes: Any) -> Callable[[Metadata], None]:
    def act(index: Metadata) -> None:
        index.state_dict_metadata[name] = replace(index.state_dict_metadata[name], **changes)

    return act


def places(**changes: Any) -> Callable[[Metadata], None]:
    def act(index: Metadata) -> None:
        for key, where in index.storage_data.items():
            index.storage_data[key] = replace(where, **changes)

    return act


def large(*size: int) -> dict[str, Any]:
    whole = ChunkStorageMetadata(torch.Size([0] * len(size)), torch.Size(size))
    return {"size": torch.Size(size), "chunks": [whole]}


WEIGHT, STEP = "model.0.weight", "optim.state.0.weight.step"
INDEX = r"\.metadata is no index of a checkpoint: "
# What is done to an index, or put into its place.
INDEXES: dict[str, tuple[Any, str]] = {
    "a size of 2^50": (
        tensor(STEP, size=torch.Size([2**50])),
        "does not say where optim.state.0.weight.step is",
    ),
    "a box of 2^40": (
        tensor(WEIGHT, **large(2**40, 7)),
        "model.0.weight is larger than its part of __0_0.distcp",
    ),
    "a negative size": (tensor(WEIGHT, size=(-5, 7)), INDEX + "Expected `int` >= 0"),
    "a size that is a text": (tensor(WEIGHT, size="57"), INDEX + "Expected `array`, got `str`"),
    "NaN": (tensor(WEIGHT, size=(float("nan"), 7)), INDEX + "Expected `int`, got `float`"),
    "no boxes": (tensor(WEIGHT, chunks=[]), "does not say where all of model.0.weight is"),
    "no dtype": (tensor(WEIGHT, properties=None), INDEX + "Expected `object`, got `null`"),
    "no places": (lambda index: index.storage_data.clear(), "does not say where model.0.weight is"),
    "a place before the file": (places(offset=-1), INDEX + "Expected `int` >= 0"),
    "a place after the file": (places(offset=2**60), "lies outside of __0_0.distcp"),
    "another folder": (places(relative_path="../saved/__0_0.distcp"), "which is no file in it"),
    "no name": (lambda index: index.state_dict_metadata.update({3: 4}), INDEX + "Expected `str`, got `int`"),
    "2^50 bytes": (b"\x80\x04\x8e" + (2**50).to_bytes(8, "little"), INDEX + "MemoryError"),
    "a place of 10^13": (b"Np9999999999999\n.", INDEX + "MemoryError"),
    "a frame of 2^60": (b"\x80\x04\x95" + (2**60).to_bytes(8, "little"), INDEX + "MemoryError"),
    "an attribute of nothing": (b"\x80\x04N}b.", INDEX),
    "a list": (pickle.dumps([1]), INDEX + "it holds a list"),
    "nothing": (b"", INDEX + "EOFError Ran out of input"),
}
SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "a text": ({"lr": "0.1"}, "lr of the optimizer is a str in the checkpoint and a number here"),
    "nothing": ({"lr": None}, "lr of the optimizer is a NoneType in the checkpoint and a number here"),
    "NaN": ({"lr": float("nan")}, "lr of the optimizer is nan in the checkpoint; a learning rate"),
    "below 0": ({"lr": -1.0}, "lr of the optimizer is -1.0 in the checkpoint; a learning rate"),
    "two texts": (
        {"betas": ("a", "b")},
        r"betas of the optimizer is a \(str, str\) in the checkpoint and a \(number, ",
    ),
    "no names": ({"params": "x"}, "has no groups of an optimizer: Expected `array`, got `str`"),
}


def file_with(model: Any = None, state: Any = None, groups: Any = None, **entry: Any) -> dict[str, Any]:
    """What a file of plain PyTorch holds, with some of it replaced."""
    plain = built(1)
    optimizer = torch.optim.AdamW(plain.parameters())
    train(plain, optimizer, 1)
    found = optimizer.state_dict()
    found["state"][0].update(entry)
    changes = {"state": state, "param_groups": groups}
    found.update({key: value for key, value in changes.items() if value is not None})
    return {"model": {**plain.state_dict(), **(model or {})}, "optim": found}


FILES: dict[str, tuple[dict[Any, Any], str]] = {
    "a sparse weight": ({"model": {"0.weight": torch.eye(5, 7).to_sparse()}}, "0.weight is no plain tensor"),
    "a weight without memory": (
        {"model": {"0.weight": torch.empty(5, 7, device="meta")}},
        "is no plain tensor",
    ),
    "a weight that is a text": ({"model": {"0.weight": "x"}}, "0.weight is a text"),
    "a number as name": ({"model": {3: torch.ones(1)}}, "holds no state_dict: Expected `str`, got `int`"),
    "a list of state": (
        {"state": [1]},
        "no state of an optimizer under 'optim': Expected `object`, got `array`",
    ),
    "groups without parameters": ({"groups": [{"lr": 0.1}]}, "Object missing required field `params`"),
    "a group of a text": (
        {"groups": [{"params": list(range(6)), "lr": "x"}]},
        "lr of the optimizer is a str",
    ),
    "a missing setting": (
        {"groups": [{"params": list(range(6)), "lr": 0.1}]},
        "is a NoneType in the checkpoint",
    ),
    "a moment that is a text": ({"exp_avg": "x"}, "exp_avg is a text"),
    "a moment without memory": ({"exp_avg": torch.empty(5, 7, device="meta")}, "exp_avg is no plain tensor"),
    "no step": ({"state": {0: {"exp_avg": torch.ones(5, 7)}}}, "does not fit the AdamW: KeyError 'step'"),
}


def refuse_each(folder: Path) -> dict[str, str]:
    """The sentence for each of the files."""
    warnings.simplefilter("ignore")  # that sparse tensors are checked or not
    model = shard(built(2), units=nn.Linear)
    optimizer = torch.optim.AdamW(model.parameters())
    before, said = dict(model.state_dict()), {}

    def attempt(name: str, path: Path) -> None:
        try:
            load_torch_checkpoint(model, path, optimizer)
        except ValueError as error:
            said[name] = str(error)

    with_settings(folder / "saved")
    for name, (change, _) in INDEXES.items():
        copy = shutil.copytree(folder / "saved", folder / name)
        if callable(change):
            index = pickle.loads((copy / ".metadata").read_bytes())
            change(index)
            change = pickle.dumps(index)
        (copy / ".metadata").write_bytes(change)
        attempt(f"index: {name}", copy)
    assert equal(dict(model.state_dict()), before)
    for name, (settings, _) in SETTINGS.items():
        with_settings(folder / f"setting of {name}", **settings)
        attempt(f"setting: {name}", folder / f"setting of {name}")
    for name, (changes, _) in FILES.items():
        torch.save(file_with(**changes), folder / f"{name}.pt")
        attempt(f"file: {name}", folder / f"{name}.pt")
    return said


def test_what_cannot_be_so_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (said,) = ranks.run(1, refuse_each, tmp_path)
    for kind, cases in {"index": INDEXES, "setting": SETTINGS, "file": FILES}.items():
        for name, (_, expected) in cases.items():
            sentence = said[f"{kind}: {name}"]
            assert re.search(expected, sentence), (name, sentence)
            assert "\n" not in sentence
