r"""# What a fine-tuning run prints

> The losses, and the bytes that were counted beside those that the plan has predicted.

The last step runs under [the meter](measure.py), and so does the loading before the
first one. Each rank has a forecast of its own. The table shows the largest figures of any
rank, since a run needs memory for the rank that stores the most. The file of `--json`
has them all:

| name | is | for each |
|---|---|---|
| `losses` | the loss, its mean over ranks | step |
| `unseen` | the loss on the unseen text | rank |
| `loading`, `loading_forecast` | the most that was held while the model was built and loaded | rank |
| `steady`, `steady_forecast` | what is stored between steps | rank |
| `sent` | the bytes that were sent in all steps | rank |
"""

# sidelit: hide
from __future__ import annotations

import argparse
import json
import statistics
from typing import Any

import torch.distributed as dist

from shardbook.finetune_neox.finetune_plan import Forecast, described
from shardbook.finetune_neox.pretrained import Pretrained
from shardbook.planning.report import Counted, write

__all__ = ["compare"]
# sidelit: show


def compare(
    options: argparse.Namespace,
    beginning: Pretrained,
    expected: Forecast,
    loaded: int,
    counted: Counted,
) -> None:
    """Print what was counted beside what was expected, and write it if a file was named."""
    own = {
        "losses": counted.losses,
        "unseen": counted.unseen,
        "loading": loaded,
        "loading_forecast": expected.loading,
        "steady": counted.steady,
        "steady_forecast": expected.between,
        "sent": sum(counted.sent.values()),
    }
    ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, own)
    if dist.get_rank() != 0:
        return
    figures = {
        "ranks": len(ranks),
        "stage": options.stage,
        "losses": [
            statistics.fmean(step)
            for step in zip(*(r["losses"] for r in ranks), strict=True)
        ],
        **{name: [each[name] for each in ranks] for name in own if name != "losses"},
    }
    print(table(described(beginning), figures))
    if options.json is not None:
        write(options.json, json.dumps(figures, indent=1) + "\n")


def table(model: str, figures: dict[str, Any]) -> str:
    """The figures as text. Of those that differ by rank it shows the largest."""
    most = {
        name: max(value) for name, value in figures.items() if isinstance(value, list)
    }
    unseen = statistics.fmean(figures["unseen"])
    losses, steps = figures["losses"], len(figures["losses"])
    rows = [
        ("", "counted", "by formula"),
        ("loss, first step", f"{losses[0]:.3f}", ""),
        ("loss, last step", f"{losses[-1]:.3f}", ""),
        ("loss, unseen text", f"{unseen:.3f}", ""),
        (
            "bytes while it was loaded",
            f"{most['loading']:,}",
            f"{most['loading_forecast']:,}",
        ),
        ("bytes between steps", f"{most['steady']:,}", f"{most['steady_forecast']:,}"),
        ("bytes sent in a step", f"{most['sent'] / steps:,.0f}", ""),
    ]
    heading = (
        f"{model}, {figures['ranks']} ranks, stage {figures['stage']}, {steps} steps"
    )
    lines = [f"{name:<30}{left:>18}{right:>18}".rstrip() for name, left, right in rows]
    return "\n".join(["", heading, *lines])
