r"""# Writing the fine-tuned model

> The result is a copy of the pretrained model's folder, in which each rank overwrites
> the elements that it has trained.

If you train 0.015 % of a model, only a few bytes of its files change. So the ranks copy
the files, and overwrite the trained elements [at their places](tensor_file.py):

| step | who |
|---|---|
| create a folder under a hidden name | rank 0 |
| copy the files | all ranks, each some of the files |
| overwrite the trained elements | all ranks, each its own elements |
| give the folder its name | rank 0 |

Nothing is gathered, and all other bytes stay the same. Weights in a 16-bit format are
not rounded again. Names and tensors that the library no longer uses stay, too.
Trained numbers are cast to the dtype of the file. `from_pretrained` opens the result in
the same way as the original.

Only what describes the model is copied besides the weights: its configuration, its
tokenizer and its licence. Code is not copied, because the run has not used it.

LoRA matrices are not in the original files. So they are written into a separate file, in
[peft's](adapters.py) format. A run that began with a random model writes [the whole
model](model_folder.py).
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import nn

from shardbook.command import Mistake
from shardbook.finetune_neox.adapters import adapter_name, describe
from shardbook.finetune_neox.pretrained import Pretrained
from shardbook.foundations.collectives import world
from shardbook.state.file_list import flush_folder
from shardbook.state.folder_names import INDEX
from shardbook.state.model_folder import save_safetensors
from shardbook.state.stored import MODEL, Stretch, stretches
from shardbook.state.tensor_file import Named, Place, laid_out, new_room, pour
from shardbook.state.together import on_each, on_first

__all__ = ["refuse_links", "write_result"]


@torch.no_grad()
def write_result(
    start: Pretrained,
    model: nn.Module,
    folder: Path,
    *,
    adapters: Any = None,
    shard_bytes: int = 5 * 10**9,
) -> None:
    """Write the result of a run. Collective.

    :param start: the model with which the run began
    :param folder: the folder of the result; an existing folder is replaced
    :param adapters: `peft`'s configuration if LoRA matrices were trained
    :param shard_bytes: how many bytes a file may hold, for a model without a folder
    :raises OSError: on every rank, if one of them cannot write; no files are left
    """
    draft = folder.with_name(f".{folder.name}.partial")
    on_first(lambda: make_room(draft))
    try:
        if adapters is not None:
            write_adapters(model, draft, adapters)
        elif start.folder is not None:
            write_copy(start, model, draft)
        else:
            on_first(draft.rmdir)
            save_safetensors(
                model, draft, shard_bytes=shard_bytes, also=start.config.save_pretrained
            )
        on_first(lambda: publish(draft, folder))
    except BaseException:
        if world(None)[0] == 0:
            shutil.rmtree(draft, ignore_errors=True)
        raise


def write_copy(start: Pretrained, model: nn.Module, draft: Path) -> None:
    """Copy the folder of the pretrained model, and overwrite the trained elements."""
    assert start.folder is not None
    rank, ranks = world(None)
    files = files_to_copy(start)
    on_each(lambda: copy(files[rank::ranks], draft))
    places = [
        (each, replace(place, file=draft / place.file.name))
        for each in stretches(model, frozen=False)
        for name in each.names
        if (stored := start.stored.get(name.removeprefix(f"{MODEL}."))) is not None
        for place in (start.places[stored],)
    ]
    on_each(lambda: overwrite(places))


def write_adapters(model: nn.Module, draft: Path, config: Any) -> None:
    """Write the LoRA matrices into a separate file."""
    trained = {
        adapter_name(each.name.removeprefix(f"{MODEL}.")): each
        for each in stretches(model, frozen=False)
    }
    tensors = [
        Named(name, each.values.dtype, each.shape) for name, each in trained.items()
    ]
    file = draft / "adapter_model.safetensors"
    head, places, size = laid_out(file, tensors, {"format": "pt"})

    def begin() -> None:
        with file.open("wb") as opened:
            opened.write(head)
            opened.truncate(size)
        describe(config, draft)

    on_first(begin)
    on_each(lambda: overwrite([(each, places[name]) for name, each in trained.items()]))


def overwrite(places: list[tuple[Stretch, Place]]) -> None:
    """Write this rank's elements to their places, and wait until they are on the disk."""
    room = new_room()
    for file in sorted({place.file for _, place in places}):
        with file.open("r+b") as opened:
            for each, place in places:
                if place.file == file:
                    pour(each.own.values, opened, place, each.own.start, room)
            opened.flush()
            os.fsync(opened.fileno())


def files_to_copy(start: Pretrained) -> list[Path]:
    """The files that hold the weights, and those that describe the model."""
    assert start.folder is not None
    weights = {place.file for place in start.places.values()}
    described = {
        each
        for each in start.folder.iterdir()
        if each.is_file() and any(fnmatchcase(each.name, form) for form in DESCRIBED)
    }
    return sorted(weights | described)


DESCRIBED = (
    *("config.json", "generation_config.json", INDEX),
    *("tokenizer*.json", "special_tokens_map.json", "added_tokens.json", "tekken.json"),
    *("vocab*.json", "vocab.txt", "merges.txt", "*.model", "*.spm", "*.tiktoken"),
    *("chat_template.json", "chat_template.jinja"),
    *(
        "LICEN[CS]E",
        "LICEN[CS]E.txt",
        "LICEN[CS]E.md",
        "COPYING",
        "NOTICE",
        "NOTICE.txt",
        "NOTICE.md",
    ),
)


def copy(files: list[Path], draft: Path) -> None:
    """Copy files, and wait until they are on the disk."""
    for file in files:
        # `copyfile` does not copy permissions, so the copy can be written even if the
        # original is read-only.
        shutil.copyfile(file, draft / file.name)
        with (draft / file.name).open("rb") as opened:
            os.fsync(opened.fileno())


# sidelit: depth Links, a folder that is there already, and what a run that was killed has left.


def refuse_links(start: Pretrained) -> None:
    """Refuse a folder of which a file is a link to another place.

    The copy would publish what the link points to. In the cache of the Hugging Face Hub,
    the files of a model are links into the folder of all its versions.

    :raises Mistake: naming the file
    """
    if start.folder is None:
        return
    home = start.folder.resolve()
    if home.parent.name == "snapshots":
        home = home.parents[1]
    for file in files_to_copy(start):
        if not file.resolve().is_relative_to(home):
            raise Mistake(
                f"--model {start.folder}: {file.name} is a link out of this folder, and --out "
                "would copy what it points to; put the file itself there"
            )


def make_room(draft: Path) -> None:
    """Create an empty folder, and remove what a killed run left at its place."""
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)


def publish(draft: Path, folder: Path) -> None:
    """Name the result. An existing folder of this name is removed only now."""
    before = folder.with_name(f".{folder.name}.before")
    shutil.rmtree(before, ignore_errors=True)
    if folder.exists():
        folder.rename(before)
    flush_folder(draft)
    draft.rename(folder)
    flush_folder(folder.parent)
    shutil.rmtree(before, ignore_errors=True)
