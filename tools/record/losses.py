"""The losses of a small GPT in FP32 and in all 16-bit formats, as `python -m benchmarks.parity` trains it."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.parity import BAND, MODES, Curves, config_of, distance, distances, mean_of, parse, train_all
from tools.record.frame import ranks

from shardbook.models import gpt

# The loss of a single batch varies more than the formats do.
WINDOW = 20


def record() -> Any:
    """The mean loss of each step over the seeds, and how far each format is from FP32."""
    options = parse([])
    curves = ranks(options.ranks, train_all, options)[0]
    return {
        "steps": options.steps,
        "ranks": options.ranks,
        "stage": options.stage,
        "seeds": options.seeds,
        "parameters": gpt.parameters(config_of(options)),
        "band": BAND,
        "window": WINDOW,
        "fp32": [round(loss, 4) for loss in mean_of(curves["fp32"])],
        "modes": {name: mode(curves, name) for name in curves},
    }


def mode(curves: Curves, name: str) -> dict[str, Any]:
    """One format: its means at the end, and its distance from FP32 over the run and at the end."""
    runs = curves[name]
    apart = distances(mean_of(runs), mean_of(curves["fp32"]), WINDOW)
    return {
        "last": round(statistics.fmean(run.last for run in runs), 4),
        "unseen": round(statistics.fmean(run.unseen for run in runs), 4),
        "from_fp32": round(distance(curves, name), 6),
        "in_band": MODES[name].in_band,
        "skipped": round(statistics.fmean(run.skipped for run in runs), 2),
        "apart": [round(each, 5) for each in apart],
    }


def exact(data: Any) -> Any:
    """All but the losses: another processor adds in another order, and 200 steps enlarge that."""
    ends = {name: found["from_fp32"] <= BAND for name, found in data["modes"].items() if found["in_band"]}
    rest = {key: data[key] for key in ("steps", "ranks", "stage", "seeds", "parameters", "band", "window")}
    return {**rest, "ends in the band": ends}
