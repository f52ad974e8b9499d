r"""# Which parameters are trained

> A pattern chooses parameters by name; all others are frozen, and cost neither gradients nor optimizer state.

To fine-tune all of a GPT-NeoX of 20.6 billion parameters takes 247 GB for gradients and
the optimizer's state, beside the parameters themselves. Its biases are 3 million numbers,
0.015 % of it. For BERT, to train the biases alone [competes with training
all](bib:benzaken2022bitfit) if there is little or a moderate amount of data. What is
frozen is still sharded and gathered, since modules compute with it. But it has no
gradient, and no exchange brings one. [A frozen vector](freezing.py) lies apart from the
trained ones, so the saving is exact.

| `--train` | trains |
|---|---|
| `biases` | every parameter whose name ends in `bias` |
| `all` | every parameter |
| `lora` | small matrices [that peft adds](adapters.py) |
| anything else | every parameter in whose name the regular expression is found |

The trained parameters are FP32, whatever the folder has. In 16 bits most steps of an
optimizer would be [too small to change a weight](rounding.py). A frozen one does not
change, so it can stay as it was: if the run computes in the 16-bit format that the folder
has, it is stored in that format, in half the bytes.
"""

# sidelit: hide
from __future__ import annotations

import re

import torch
from torch import nn

from shardbook.command import Mistake
from shardbook.finetune_neox.pretrained import Pretrained, names_of
from shardbook.parameters.parameter_sites import sites_of
from shardbook.parameters.policy import Policy

__all__ = ["freeze_the_rest", "keep_16_bits"]
# sidelit: show

PATTERNS = {"biases": r"(^|\.)bias$", "all": "", "lora": r"\.lora_"}


def freeze_the_rest(model: nn.Module, pattern: str) -> int:
    """Let the parameters train that a pattern chooses, and freeze all others.

    A tied parameter is chosen by any of its names.

    :param pattern: a word of the table above, or a regular expression
    :returns: how many numbers are trained
    :raises Mistake: if nothing is chosen
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
    """Let frozen parameters have the folder's dtype, if modules compute in it anyway."""
    computed = policy.param_dtype
    if computed is None or computed is torch.float32:
        return
    for site in sites_of(start.model):
        stored = start.stored.get(site.name)
        if stored is None or site.parameter.requires_grad:
            continue
        same = start.places[stored].dtype is computed
        # Norms compute in FP32, and are small.
        if same and not isinstance(site.module, policy.fp32_modules):
            site.parameter.data = site.parameter.data.to(computed)
