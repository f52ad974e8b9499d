"""Wherever a user's path can lead, a pickle that runs a program is refused by name, and is not run."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import warnings
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

import ranks
from shardbook import Checkpoints, load_safetensors, load_torch_checkpoint, shard
from shardbook.state.together import sealed
from warm import start

pytestmark = pytest.mark.full


class Evil:
    """Makes a folder when it is unpickled."""

    def __init__(self, ran: Path) -> None:
        self.ran = ran

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.ran),)


def saved(thing: Any, **how: Any) -> bytes:
    file = io.BytesIO()
    torch.save(thing, file, **how)
    return file.getvalue()


def model_and_optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(4, 4))
    return model, torch.optim.AdamW(model.parameters())


def foreign(folder: Path, name: str, evil: bytes) -> None:
    """A folder as PyTorch writes it, in which one entry leads to another pickle."""
    model, optimizer = model_and_optimizer()
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    (group,) = optimizer.state_dict()["param_groups"]
    names = [name for name, _ in model.named_parameters()]
    state = dict(zip(names, optimizer.state_dict()["state"].values(), strict=True))
    optim = {"state": state, "param_groups": [group | {"params": names}]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it saves in one process
        dcp.save({"model": model.state_dict(), "optim": optim}, checkpoint_id=folder)
    (folder / "evil.distcp").write_bytes(evil)
    index = pickle.loads((folder / ".metadata").read_bytes())
    for place, where in index.storage_data.items():
        if place.fqn == name:
            where = replace(where, relative_path="evil.distcp", offset=0, length=len(evil))
            index.storage_data[place] = where
    (folder / ".metadata").write_bytes(pickle.dumps(index))


def own(folder: Path, evil: bytes) -> None:
    """A checkpoint of ours with another index, and a list of files that says that it is right."""
    model, optimizer = model_and_optimizer()
    Checkpoints(folder).save(1, shard(model), optimizer)
    step = folder / "step-00000001"
    spoil(step, evil)


def spoil(step: Path, evil: bytes) -> None:
    (step / ".metadata").write_bytes(evil)
    said = json.loads((step / "whole.json").read_text())
    said["files"][".metadata"] = {"size": len(evil), "sum": zlib.crc32(evil)}
    del said["sum"]
    (step / "whole.json").write_bytes(sealed(said))


def attempts(folder: Path) -> list[str]:
    evil = Evil(folder / "ran")
    files = {
        "new.pt": saved({"model": {"0.weight": evil}}),
        "old.pt": saved({"model": {"0.weight": evil}}, _use_new_zipfile_serialization=False),
        "bare.pt": pickle.dumps(evil, 2),
        "optimizer.pt": saved({"model": model_and_optimizer()[0].state_dict(), "optim": evil}),
        "model.safetensors": pickle.dumps(evil, 2),
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)
    foreign(folder / "index", "", b"")
    (folder / "index" / ".metadata").write_bytes(pickle.dumps(evil, 2))
    foreign(folder / "tensor", "model.0.weight", saved(evil))
    foreign(folder / "moment", "optim.state.0.weight.exp_avg", saved(evil))
    foreign(folder / "setting", "optim.param_groups.0.lr", saved(evil))
    own(folder / "own", pickle.dumps(evil, 2))
    (folder / "listed").mkdir()
    own(folder / "listed", b"")
    (folder / "listed" / "step-00000001" / "whole.json").write_bytes(pickle.dumps(evil, 2))
    said = []
    for name in CASES:
        model, optimizer = model_and_optimizer()
        shard(model)
        try:
            if name in ("own", "listed"):
                Checkpoints(folder / name).load(model, optimizer)
            elif name == "model.safetensors":
                load_safetensors(model, folder / name)
            else:
                load_torch_checkpoint(model, folder / name, optimizer)
            said.append("")
        except ValueError as error:
            said.append(str(error))
    assert not evil.ran.exists()
    # What was tried is what it seems to be.
    pickle.loads(pickle.dumps(evil, 2))
    assert evil.ran.exists()
    return said


NAMED = r"is not loaded, because it holds more than tensors and data: it names posix\.mkdir$"
CASES = {
    "new.pt": NAMED,
    "old.pt": NAMED,
    "bare.pt": r"bare\.pt is not loaded, because it holds more than tensors and data: ",
    "optimizer.pt": NAMED,
    "model.safetensors": r"model\.safetensors is no safetensors file: ",
    "index": r"\.metadata is no index of a checkpoint: it names posix\.mkdir$",
    "tensor": r"a part of a file is no tensor: it names posix\.mkdir",
    "moment": r"a part of a file is no tensor: it names posix\.mkdir",
    "setting": r"evil\.distcp " + NAMED,
    "own": r"\.metadata is no index of a checkpoint: it names posix\.mkdir$",
    "listed": r"is damaged: whole\.json is not what was written: ",
}


def test_no_file_runs_a_program(tmp_path: Path) -> None:
    (found,) = ranks.run(1, attempts, tmp_path)
    for (name, expected), said in zip(CASES.items(), found, strict=True):
        assert re.search(expected, said), (name, said)


LINE = "-m shardbook.train --steps 2 --layers 1 --width 8 --heads 1 --context 8 --device cpu --sample 0"


def test_no_path_of_the_command_runs_a_program(tmp_path: Path) -> None:
    evil = Evil(tmp_path / "ran")
    folder = tmp_path / "run"
    assert start(*LINE.split(), "--checkpoints", str(folder)).returncode == 0
    spoil(folder / "step-00000002", pickle.dumps(evil, 2))
    (tmp_path / "options.yaml").write_text(f"steps: !!python/object/apply:os.mkdir ['{evil.ran}']\n")
    (tmp_path / "options.toml").write_bytes(pickle.dumps(evil, 2))
    for options, expected in (
        (["--checkpoints", str(folder), "--steps", "4"], r"it names posix\.mkdir$"),
        (["--config", str(tmp_path / "options.yaml")], r"options\.yaml"),
        (["--config", str(tmp_path / "options.toml")], r"options\.toml"),
        (["--tokenizer", str(tmp_path / "options.toml"), "--data", __file__], r"options\.toml"),
    ):
        run = start(*LINE.split(), *options)
        assert run.returncode == 2, run.stdout
        assert re.search(expected, run.stderr), run.stderr
        assert run.stderr.count("\n") == 1
        assert not evil.ran.exists()
