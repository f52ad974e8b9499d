r"""# The report of fine-tuning

> The report shows the losses, and the counted bytes next to the planned ones.

[The meter](measure.py) measures the loading and the last step. Each rank has its own
forecast. The table shows the largest numbers of all ranks, because every rank needs
enough memory. With `--json` all numbers are written to a file:

| name | meaning | one entry for each |
|---|---|---|
| `losses` | the mean loss of all ranks | step |
| `unseen` | the loss on the unseen text | rank |
| `loading`, `loading_forecast` | the most bytes that were stored while building and loading | rank |
| `steady`, `steady_forecast` | the bytes that are stored between steps | rank |
| `sent` | the bytes that were sent in all steps | rank |
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import torch.distributed as dist

from shardbook.finetune_neox.finetune_plan import Forecast, described
from shardbook.finetune_neox.pretrained import Pretrained
from shardbook.planning.report import Counted, as_json, beside, write

__all__ = ["compare"]


def compare(
    options: argparse.Namespace,
    beginning: Pretrained,
    expected: Forecast,
    loaded: int,
    counted: Counted,
) -> None:
    """Print the counted bytes next to the planned ones, and write them if `--json` names a file."""
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
        with beside("--json"):
            write(options.json, as_json(figures))


def table(model: str, figures: dict[str, Any]) -> str:
    """Format the figures. If a figure differs between ranks, the largest is shown."""
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
