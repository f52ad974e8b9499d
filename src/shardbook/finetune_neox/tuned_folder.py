r"""# The parameters of a fine-tuned model

> Fine-tuning chooses which parameters are trained, loads the model into shards, and
> writes the result.

Fine-tuning reads the folder of a pretrained model, and writes another folder.
[LoRA](#module/lora-through-peft) or [a pattern](#module/training-a-subset-of-the)
decides which parameters are trained. Then each rank [reads its own
elements](#module/loading-a-model-into-shards) from the files. This chapter begins with
the last step, which writes the result.

If you train 0.015% of a model, only a few bytes of its files change. So the ranks copy
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

LoRA matrices are not in the original files. So they are written into a separate file,
in [peft's](tuned_folder.py#module/lora-through-peft) format. A run that began with a
random model writes [the whole model](model_folder.py).

:notation $r$: `rank`, the number of columns of `B`
:notation $\alpha$: a factor, here $2r$
:notation $W$: the matrix of a layer, with $m$ rows and $n$ columns
:notation $m$: the number of rows of $W$
:notation $n$: the number of columns of $W$
:notation $A$: the matrix that the input meets first
:notation $B$: the matrix that gives the result its length
:notation $x$: the input of the layer
:notation $y$: its output
:notation $N_d$: `world_size`, the number of ranks that share the model
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
from dataclasses import replace
from fnmatch import fnmatchcase
from glob import escape
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from shardbook.checkpointing.checkpointing import checkpoint_module
from shardbook.command import Mistake
from shardbook.finetune_neox.pretrained import Pretrained, blocks_of, names_of, units_of
from shardbook.foundations.collectives import world
from shardbook.foundations.torch_private import own_buffers, own_parameters
from shardbook.state.folder_names import INDEX
from shardbook.state.model_folder import load_safetensors, save_safetensors
from shardbook.state.optimizer_entries import MODEL, Stretch, stretches
from shardbook.state.tensor_file import Named, Place, fill, laid_out, new_room, pour
from shardbook.state.together import flush_folder, on_each, on_first
from shardbook.train.plan import policy_of
from shardbook.zero.construct import Init
from shardbook.zero.model import shard
from shardbook.zero.parameter_sites import sites_of
from shardbook.zero.policy import Policy

__all__ = [
    "adapter_name",
    "add_adapters",
    "describe",
    "draw",
    "first_values",
    "freeze_the_rest",
    "keep_16_bits",
    "refuse_links",
    "shard_and_load",
    "write_result",
]


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


# sidelit: core


# ## LoRA through peft
#
# > LoRA trains two narrow matrices for each chosen layer, and freezes the layer itself.
#
# [LoRA](bib:hu2022lora) adds the product of two narrow matrices to a matrix $W$ of $m
# \times n$ elements, and trains only the narrow ones:
#
# $$y = W x + \frac{\alpha}{r}\, B A x$$
#
# `A` has $r$ rows and `B` has $r$ columns. With $m = n = 6144$ and $r = 8$ they have 98,304
# elements together, while $W$ has 37,748,736. `A` is initialized with random numbers and
# `B` with zeros, so the first forward pass gives the same output as the original model.
#
# The library `peft` inserts the matrices into the model, and later opens the result. They
# are ordinary parameters, so the unit of a block gathers them with the rest of the block.


def add_adapters(start: Pretrained, options: argparse.Namespace) -> Any:
    """Insert LoRA matrices into a model without memory.

    :returns: the configuration with which `peft` can open the result
    :raises Mistake: if `peft` is not installed, or does not know which layers to take
    """
    peft = library()
    targets = options.lora_targets
    config = peft.LoraConfig(
        r=options.lora_rank,
        lora_alpha=2 * options.lora_rank,
        target_modules=None if targets is None else targets.split(","),
        task_type="CAUSAL_LM",
    )
    if start.folder is not None:
        config.base_model_name_or_path = str(start.folder.resolve())
    try:
        with torch.device("meta"):
            peft.inject_adapter_in_model(config, start.model)
    except ValueError as error:
        raise Mistake(
            f"--train lora does not fit this {type(start.model).__name__}: {error}; name layers "
            "with --lora-targets"
        ) from error
    # `peft` has moved each chosen layer one level down, to the name `base_layer`.
    before = start.stored
    start.stored = {
        name: before[plain]
        for name in start.model.state_dict()
        if (plain := name.replace(".base_layer", "")) in before
    }
    return config


def draw(name: str, module: nn.Module) -> bool:
    """Draw the initial values of a LoRA matrix.

    :param name: the name of the module
    :param module: the module with the matrix
    :returns: whether the module is a LoRA matrix
    """
    if ".lora_B." in name:
        module.weight.detach().zero_()  # type: ignore[operator]
    elif ".lora_A." in name:
        nn.init.kaiming_uniform_(module.weight, a=math.sqrt(5))  # type: ignore[arg-type]
    else:
        return False
    return True


def adapter_name(name: str) -> str:
    """The name of a LoRA matrix in a folder of `peft`.

    >>> adapter_name("gpt_neox.layers.0.attention.dense.lora_A.default.weight")
    'base_model.model.gpt_neox.layers.0.attention.dense.lora_A.weight'
    """
    return "base_model.model." + name.replace(".default.", ".")


def describe(config: Any, folder: Path) -> None:
    """Write the configuration for `peft` into a folder."""
    told = config.to_dict()
    told["inference_mode"] = True
    text = json.dumps(told, indent=2, sort_keys=True, default=plain)
    (folder / "adapter_config.json").write_text(text + "\n", "utf-8")


def plain(value: Any) -> Any:
    """Convert a value that JSON does not know."""
    return sorted(value) if isinstance(value, set) else str(value)


# sidelit: depth A library that is not installed.


def library() -> Any:
    """Import the library peft.

    :raises Mistake: if it is not installed
    """
    try:
        return import_module("peft")
    except ModuleNotFoundError as error:
        raise Mistake(
            "--train lora needs the library peft: pip install peft, or train biases or a pattern"
        ) from error


# sidelit: core


# ## Training a subset of the parameters
#
# > A pattern chooses the trained parameters by name. All others are frozen, and need
# > neither gradients nor optimizer state.
#
# If you fine-tune all 20.6 billion parameters of a GPT-NeoX, gradients and optimizer state
# take 247 GB, in addition to the parameters. The biases are only 3 million numbers,
# 0.015% of the model, so their gradients and optimizer state take 36 MB. For BERT,
# training the biases alone [competes with training everything](bib:benzaken2022bitfit) if
# the amount of data is small or moderate.
#
# Frozen parameters are still sharded and gathered, because modules compute with them. But
# they have no gradients, so their gradients are not exchanged either. [Frozen
# parameters](flat.py) have a flat vector of their own, separate from the trained
# parameters. So no byte of gradient or optimizer state is spent on them.
#
# | `--train` | trained parameters |
# |---|---|
# | `biases` | every parameter whose name ends in `bias` |
# | `all` | every parameter |
# | `lora` | small matrices [that peft adds](tuned_folder.py#module/lora-through-peft) |
# | any other word | every parameter whose name contains a match of this regular expression |
#
# Trained parameters are stored in FP32, even if the folder has another dtype. In 16 bits
# most optimizer steps would be [too small to change a weight](rounding.py). A frozen
# parameter does not change, so it may stay in 16 bits. If the run computes in the folder's
# 16-bit format, frozen parameters are stored in this format, with half the bytes.


PATTERNS = {"biases": r"(^|\.)bias$", "all": "", "lora": r"\.lora_"}


def freeze_the_rest(model: nn.Module, pattern: str) -> int:
    """Freeze all parameters that a pattern does not choose.

    A tied parameter is chosen if one of its names is.

    :param pattern: a word of the table above, or a regular expression
    :returns: how many numbers are trained
    :raises Mistake: if no parameter is chosen
    """
    wanted = re.compile(PATTERNS.get(pattern, pattern))
    total = 0
    for names, parameter in names_of(model).items():
        chosen = any(wanted.search(name) for name in names)
        parameter.requires_grad_(chosen)
        total += parameter.numel() * chosen
    if not total:
        example = next(iter(names_of(model)))[0]
        raise Mistake(
            f"--train {pattern} chooses no parameter of this {type(model).__name__}; its "
            f"names look like {example}"
        )
    return total


def keep_16_bits(start: Pretrained, policy: Policy) -> None:
    """Store frozen parameters in the folder's dtype, if modules compute in this dtype."""
    computed = policy.param_dtype
    if computed is None or computed is torch.float32:
        return
    for site in sites_of(start.model):
        stored = start.stored.get(site.name)
        if stored is None or site.parameter.requires_grad:
            continue
        same = start.places[stored].dtype is computed
        # Norms compute in FP32. They are small, so they stay in FP32.
        if same and not isinstance(site.module, policy.fp32_modules):
            site.parameter.data = site.parameter.data.to(computed)


# ## Loading a model into shards
#
# > The model is sharded before it has its weights, and then each rank reads only its own
# > elements from the files.
#
# The 20.6 billion parameters of the GPT-NeoX take 41 GB in 16 bits. On 8 ranks, each rank
# keeps 5 GB of them. A program that reads the model first and shards it afterwards would
# need 41 GB on every rank. So this program shards first:
#
# | step | memory on each rank |
# |---|---|
# | the model is [built without memory](pretrained.py) | none |
# | `shard` allocates and cuts [one unit after the other](construct.py) | its shards, and one unit |
# | each rank reads its elements from the files | its shards, and 1 MB |
#
# A rank knows [which elements of which
# tensor](optimizer_entries.py#module/what-a-rank-stores-in) it has, and [the head of a
# file](tensor_file.py) says where their bytes are. So the rank reads them directly.
# Each of $N_d$ ranks reads $1/N_d$ of the files, and nothing is sent.
#
# While a unit is cut, its parameters are zeros, because they will be overwritten. Buffers,
# such as the angles of rotary embeddings, get their values from the library as usual. [A
# formula](planner.py#module/the-peak-of-a-construction) gives the bytes that a rank stores meanwhile.


def shard_and_load(
    start: Pretrained, options: argparse.Namespace, device: torch.device
) -> nn.Module:
    """Shard the model of a run, and read its weights.

    :param start: the pretrained model without memory; the same model is returned
    :raises ValueError: on every rank, if a tied weight has two values in the files
    :raises OSError: on every rank, if a file cannot be read
    """
    model = start.model
    blocks = blocks_of(model, options.units)
    if options.checkpoint != "none":
        reentrant = options.checkpoint == "reentrant"
        checkpoint_module(model, units=type(blocks[0]), use_reentrant=reentrant)
    # With the same seed all ranks draw the same numbers, so `synchronize` can be off.
    torch.manual_seed(options.seed)
    shard(
        model,
        stage=options.stage,
        units=units_of(model, blocks),
        policy=policy_of(options),
        device=device,
        init=first_values(start),
        synchronize=False,
    )
    load_start(start, model)
    # A model of the library returns an object. The training loop needs its logits.
    model.register_forward_hook(lambda _model, _inputs, result: result.logits)
    if options.compile != "none":
        for block in blocks:
            block.compile(backend=options.compile)
    return model


def first_values(start: Pretrained) -> Init:
    """Make the function that initializes a module after its memory was allocated."""
    names = {module: name for name, module in start.model.named_modules()}
    from_library: Any = start.model._init_weights

    def give(module: nn.Module) -> None:
        if draw(names[module], module):
            return
        held = [each for each in own_parameters(module).values() if each is not None]
        if start.folder is None or own_buffers(module) or not held:
            from_library(module)
            return
        for parameter in held:
            parameter.zero_()

    return give


def load_start(start: Pretrained, model: nn.Module) -> None:
    """Read this rank's elements of all tensors in the folder. Collective.

    Tensors that the model does not use, such as a mask of an older version, are
    ignored.
    """
    if start.folder is None:
        return
    used = set(start.stored.values())
    load_safetensors(
        model,
        start.folder,
        cast=True,
        ignore=[escape(name) for name in start.places if name not in used],
        rename=start.stored.get,
    )
    on_each(lambda: refuse_two_values(start, model))


# sidelit: depth A tied weight with two values.


@torch.no_grad()
def refuse_two_values(start: Pretrained, model: nn.Module) -> None:
    """Refuse a folder that holds a tied weight under two names with different values.

    :raises ValueError: naming both
    """
    for own in stretches(model):
        names = [name.removeprefix(f"{MODEL}.") for name in own.names]
        here = [name for name in names if name in start.stored]
        for name in here if len(here) > 1 else ():
            place = start.places[start.stored[name]]
            again = torch.empty_like(own.values)
            with place.file.open("rb") as file:
                fill(again, file, place, own.start, new_room())
            if not torch.equal(own.values, again):
                raise ValueError(
                    f"{here[0]} and {here[-1]} are one parameter by config.json, and have "
                    "different values in the files; set tie_word_embeddings to false there"
                )
