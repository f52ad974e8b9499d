r"""# Training a subset of the parameters

> A pattern chooses the trained parameters by name. All others are frozen, and need
> neither gradients nor optimizer state.

If you fine-tune all 20.6 billion parameters of a GPT-NeoX, gradients and optimizer state
take 247 GB, in addition to the parameters. The biases are only 3 million numbers,
0.015 % of the model, so their gradients and optimizer state take 36 MB. For BERT,
training the biases alone [competes with training everything](bib:benzaken2022bitfit) if
the amount of data is small or moderate.

Frozen parameters are still sharded and gathered, because modules compute with them. But
they have no gradients, so their gradients are not exchanged either. [Frozen
parameters](freezing.py) have a flat vector of their own, separate from the trained
parameters. So no byte of gradient or optimizer state is spent on them.

| `--train` | trained parameters |
|---|---|
| `biases` | every parameter whose name ends in `bias` |
| `all` | every parameter |
| `lora` | small matrices [that peft adds](adapters.py) |
| any other word | every parameter whose name contains a match of this regular expression |

Trained parameters are stored in FP32, even if the folder has another dtype. In 16 bits
most optimizer steps would be [too small to change a weight](rounding.py). A frozen
parameter does not change, so it may stay in 16 bits. If the run computes in the folder's
16-bit format, frozen parameters are stored in this format, with half the bytes.
"""

from __future__ import annotations

import re

import torch
from torch import nn

from shardbook.command import Mistake
from shardbook.finetune_neox.pretrained import Pretrained, names_of
from shardbook.parameters.parameter_sites import sites_of
from shardbook.parameters.policy import Policy

__all__ = ["freeze_the_rest", "keep_16_bits"]

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
