r"""# LoRA through peft

> Two narrow matrices beside each chosen layer are trained, and the layer itself stays as it was.

[LoRA](bib:hu2022lora) adds to a matrix $W$ of $m \times n$ elements the product of two
narrow ones, and trains only those:

$$y = W x + \frac{\alpha}{r}\, B A x$$

`A` has $r$ rows and `B` has $r$ columns. With $m = n = 6144$ and $r = 8$ they have 98,304
elements, where $W$ has 37,748,736. `A` starts from random numbers and `B` from zeros, so
that the first forward pass is that of the model as it was.

The library `peft` puts the matrices into the model, and opens the result. They are
parameters like others. So their unit gathers them with the rest of the block.

:notation $r$: `rank`, the columns of `B`
:notation $\alpha$: a factor, here $2r$
"""

# sidelit: hide
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
# sidelit: show


def add_adapters(start: Pretrained, options: argparse.Namespace) -> Any:
    """Put LoRA matrices into a model without memory.

    :returns: what `peft` has to know to open the result
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
    # The layer itself has moved one level down.
    before = start.stored
    start.stored = {
        name: before[plain]
        for name in start.model.state_dict()
        if (plain := name.replace(".base_layer", "")) in before
    }
    return config


def draw(name: str, module: nn.Module) -> bool:
    """Give a LoRA matrix the values that it starts from.

    :param name: of the module that holds the matrix
    :returns: whether it is one
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
    """Write what `peft` has to know into a folder."""
    told = config.to_dict()
    told["inference_mode"] = True
    text = json.dumps(told, indent=2, sort_keys=True, default=plain)
    (folder / "adapter_config.json").write_text(text + "\n", "utf-8")


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    return sorted(value) if isinstance(value, set) else str(value)


# sidelit: depth A library that is not installed.


def library() -> Any:
    """The library peft.

    :raises Mistake: if it is not installed
    """
    try:
        return import_module("peft")
    except ModuleNotFoundError as error:
        raise Mistake(
            "--train lora needs the library peft: pip install peft, or train biases or a pattern"
        ) from error
