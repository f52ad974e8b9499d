"""How large the gradients of a small GPT are, beside the range of FP16, and the loss scale of a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import torch
from tools.record.bytes_in_a_step import CONFIG, run_of
from tools.record.frame import ranks
from torch import Tensor

from shardbook.precision.formats import BF16, FP16
from shardbook.precision.loss_scaling import ShardedGradScaler
from shardbook.precision.rounding import census, gradients
from shardbook.train.loop import step

# The table of the chapter on rounding is printed for these numbers.
STEPS, BATCH = 20, 8
SCALES = (1, 2**16)
# A scale that is far too large at first, and that is doubled again soon.
FIRST_SCALE, INTERVAL, SCALED_STEPS = 2.0**30, 15, 120


def record() -> Any:
    """The exponents of both kinds of gradients, what each format does to them, and the run of the scaler."""
    torch.set_num_threads(1)
    return {
        "before": {"steps": STEPS, "batch": BATCH},
        "formats": {
            form.name: {
                "largest": form.largest,
                "smallest_normal": form.smallest_normal,
                "smallest": form.smallest_subnormal,
            }
            for form in (FP16, BF16)
        },
        "gradients": {kind: counted(tensors) for kind, tensors in gradients(STEPS, BATCH).items()},
        "loss_scale": {
            "model": asdict(CONFIG),
            "init_scale": FIRST_SCALE,
            "growth_interval": INTERVAL,
            "steps": ranks(2, scaled)[0],
        },
    }


def exact(data: Any) -> Any:
    """All but what the last digits decide: another processor may add in another order, and then another sum
    cancels to zero.
    """
    counts = {kind: found["count"] + found["zeros"] for kind, found in data["gradients"].items()}
    return {**data, "gradients": counts, "loss_scale": {**data["loss_scale"], "steps": None}}


def counted(tensors: list[Tensor]) -> Any:
    """How many elements have each exponent, and what becomes of them in 16 bits.

    The exponent of a number is that of the power of two at or below its size.
    """
    numbers = torch.cat([tensor.flatten() for tensor in tensors])
    there = numbers[numbers != 0]
    exponents = torch.frexp(there).exponent - 1
    first = int(exponents.min())
    return {
        "count": there.numel(),
        "zeros": numbers.numel() - there.numel(),
        "first_exponent": first,
        "numbers": torch.bincount(exponents - first).tolist(),
        "census": {
            f"{form.name} times {scale}": asdict(census(tensors, form, scale)) for form, scale in pairs()
        },
    }


def pairs() -> Iterable[tuple[Any, int]]:
    """The rows of the chapter's table."""
    return [*((FP16, scale) for scale in SCALES), (BF16, 1)]


def scaled() -> Any:
    """On a rank: train in FP16, and note each step's loss scale, and whether the step was taken."""
    run = run_of(f"--stage 3 --steps {SCALED_STEPS} --precision fp16")
    run.scaler = ShardedGradScaler(init_scale=FIRST_SCALE, growth_interval=INTERVAL)
    scales, skipped, losses = [run.scaler.get_scale()], [], []
    for number in range(SCALED_STEPS):
        losses.append(step(run).loss)
        scales.append(run.scaler.get_scale())
        # The scale falls after an overflow, and only then.
        if scales[-1] < scales[-2]:
            skipped.append(number)
    return {"scale": scales[:-1], "skipped": skipped, "first_loss": losses[0], "last_loss": losses[-1]}
