r"""# LoRA through peft

> LoRA trains two narrow matrices for each chosen layer, and freezes the layer itself.

[LoRA](bib:hu2022lora) adds the product of two narrow matrices to a matrix $W$ of $m
\times n$ elements, and trains only the narrow ones:

$$y = W x + \frac{\alpha}{r}\, B A x$$

`A` has $r$ rows and `B` has $r$ columns. With $m = n = 6144$ and $r = 8$ they have 98,304
elements together, while $W$ has 37,748,736. `A` is initialized with random numbers and
`B` with zeros, so the first forward pass gives the same output as the original model.

The library `peft` inserts the matrices into the model, and later opens the result. They
are ordinary parameters, so the unit of a block gathers them with the rest of the block.

:notation $r$: `rank`, the number of columns of `B`
:notation $\alpha$: a factor, here $2r$
:notation $W$: the matrix of a layer, with $m$ rows and $n$ columns
:notation $m$: the number of rows of $W$
:notation $n$: the number of columns of $W$
:notation $A$: the matrix that the input meets first
:notation $B$: the matrix that gives the result its length
:notation $x$: the input of the layer
:notation $y$: its output
"""

from __future__ import annotations

import argparse
import json
import math
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from shardbook.command import Mistake
from shardbook.finetune_neox.pretrained import Pretrained

__all__ = ["adapter_name", "add_adapters", "describe", "draw"]


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
