"""The page "From other libraries to here and back": its lines run, and nothing is lost on the way."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

import ranks
from shardbook import load_torch_checkpoint, optimizer_state_dict, shard
from shardbook.models.gpt import GPT, Block, Config

PAGE = Path(__file__).parents[3] / "site/pages/moving.md"
CONFIG = Config(layers=2, width=16, heads=2, context=8)


def blocks() -> dict[str, list[str]]:
    """The Python of the page, by heading."""
    sections = PAGE.read_text("utf-8").split("\n## ")[1:]
    return {
        section.partition("\n")[0]: re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
        for section in sections
    }


def batches(first: int) -> list[tuple[Tensor, Tensor]]:
    """Two batches of this rank."""
    torch.manual_seed(10 * first + dist.get_rank())
    return [tuple(torch.randint(0, 256, (2, 2, 8))) for _ in range(2)]  # type: ignore[misc]


def run(code: str, names: dict[str, Any], first: int = 0) -> None:
    # The values that a model begins with must not be those that are loaded.
    torch.manual_seed(first)
    exec(compile(code, str(PAGE), "exec"), names | {}, names)


def whole_of_theirs(names: dict[str, Any]) -> list[Any]:
    options = StateDictOptions(full_state_dict=True)
    return list(get_state_dict(names["model"], names["optimizer"], options=options))


def whole_of_ours(names: dict[str, Any]) -> list[Any]:
    """The same, with the optimizer's state by the names of parameters."""
    model = names["model"]
    state = optimizer_state_dict(model, names["optimizer"])
    order = [name for name, _ in model.named_parameters()]
    entries = {order[number]: each for number, each in state["state"].items()}
    groups = [group | {"params": [order[n] for n in group["params"]]} for group in state["param_groups"]]
    return [dict(model.state_dict()), {"state": entries, "param_groups": groups}]


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def there_and_back(folder: Path) -> list[bool]:
    os.chdir(folder)
    page = blocks()
    before, save, after = page["FSDP2: the loop"]
    keep, back = page["FSDP2: the way back"]
    names: dict[str, Any] = {"config": CONFIG, "batches": batches(1)}
    run(before, names, 1)
    run(save, names)
    saved = whole_of_theirs(names)
    # Only read, then train as the page does.
    names["batches"] = []
    run(after, names, 2)
    found = [equal(whole_of_ours(names), saved)]
    names["batches"] = batches(3)
    run(after, names, 2)
    trained = whole_of_ours(names)
    found.append(not equal(trained, saved))
    run(keep, names)
    run(back, names, 4)
    found.append(equal(whole_of_theirs(names), trained))
    return found


@pytest.mark.nightly
def test_a_checkpoint_goes_from_fsdp2_to_here_and_back_bit_for_bit(tmp_path: Path) -> None:
    assert ranks.run(2, there_and_back, tmp_path) == [[True, True, True]] * 2


def from_deepspeed(folder: Path) -> list[bool]:
    os.chdir(folder)
    page = blocks()
    torch.manual_seed(1)
    expected = dict(GPT(CONFIG).state_dict())
    names: dict[str, Any] = {"config": CONFIG, "batches": []}
    run(page["DeepSpeed: the loop"][0], names, 2)
    found = [equal(dict(names["model"].state_dict()), expected)]
    model = shard(GPT(CONFIG), units=Block)
    load_torch_checkpoint(model, folder / "fp32/pytorch_model.bin")
    found.append(equal(dict(model.state_dict()), expected))
    run(page["DeepSpeed: the way back"][0], names)
    plain = GPT(CONFIG)
    safetensors.torch.load_model(plain, folder / "tuned/model.safetensors")
    found.append(equal(dict(plain.state_dict()), expected))
    return found


@pytest.mark.full
def test_files_in_the_layout_of_zero_to_fp32_are_read(tmp_path: Path) -> None:
    torch.manual_seed(1)
    state = GPT(CONFIG).state_dict()
    (tmp_path / "fp32").mkdir()
    torch.save(state, tmp_path / "fp32/pytorch_model.bin")
    safetensors.torch.save_file(state, tmp_path / "fp32/model.safetensors", metadata={"format": "pt"})
    assert ranks.run(2, from_deepspeed, tmp_path) == [[True, True, True]] * 2


def test_every_block_of_the_page_is_run_or_says_that_it_is_not_python() -> None:
    assert {heading: len(found) for heading, found in blocks().items() if found} == {
        "FSDP2: the loop": 3,
        "FSDP2: the way back": 2,
        "DeepSpeed: the loop": 1,
        "DeepSpeed: the way back": 1,
        # tests/book/zero/test_wrappers_recipes.py runs these.
        "Accelerate and the Trainer": 2,
    }
