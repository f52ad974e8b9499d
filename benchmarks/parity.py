"""Compare training in 16 bits with training in FP32, by the loss.

Every mode trains the same small GPT with the same lines on the text that ships with the library, from the
same first values and on the same batches. So what differs at the end is what the format has changed. The
modes with FP16 scale their losses, except one, for comparison. Nothing is promised of it: this small model
loses few gradients, and ends as near without the scaling.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from benchmarks.__main__ import positive
from benchmarks.launch import on_ranks

from shardbook import Policy, shard
from shardbook.foundations.collectives import all_reduce
from shardbook.models import corpus, gpt
from shardbook.planning.report import write
from shardbook.precision.autocast import autocast
from shardbook.precision.loss_scaling import ShardedGradScaler

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
# How far a mode may end from FP32. Over three seeds of 200 steps the largest distance was 0.26%, that of
# autocast in FP16. FP32 itself differs by 0.88% between the seeds.
BAND = 0.005


@dataclass(frozen=True)
class Mode:
    """One way to train.

    :param param_dtype: the dtype in which a policy lets the units compute
    :param cast: the dtype in which autocast lets operations compute
    :param scaled: whether the loss is scaled
    :param in_band: whether the mode has to end within the band
    """

    param_dtype: torch.dtype | None = None
    cast: torch.dtype | None = None
    scaled: bool = False
    in_band: bool = True

    @property
    def policy(self) -> Policy:
        """The formats of the model. The loss is computed in FP32 in every mode."""
        return Policy(param_dtype=self.param_dtype, output_dtype=self.param_dtype and FP32)

    def context(self, device: str) -> AbstractContextManager[Any]:
        """What surrounds the forward pass on a type of device."""
        return nullcontext() if self.cast is None else autocast(device, self.cast)


MODES = {
    "fp32": Mode(),
    "bf16 policy": Mode(param_dtype=BF16),
    "bf16 autocast": Mode(cast=BF16),
    "fp16 policy, scaled": Mode(param_dtype=FP16, scaled=True),
    "fp16 autocast, scaled": Mode(cast=FP16, scaled=True),
    "fp16 policy, not scaled": Mode(param_dtype=FP16, in_band=False),
}


@dataclass(frozen=True)
class Curve:
    """What one run showed, as means over the ranks.

    :param train: the loss of each step
    :param unseen: the loss on the text that the model was not trained on
    :param skipped: the steps that an overflow cost
    :param scale: the loss scale at the end
    """

    train: list[float]
    unseen: float
    skipped: int
    scale: float

    @property
    def last(self) -> float:
        """The mean of the last tenth of the steps. The loss of a single batch varies too much."""
        tenth = max(1, len(self.train) // 10)
        return statistics.fmean(self.train[-tenth:])


Curves = dict[str, list[Curve]]


def main(arguments: list[str] | None = None) -> int:
    """Train in all modes, print the table, write the curves; fail if a mode ends outside of the band."""
    options = parse(arguments)
    if options.json is not None and not options.json.parent.is_dir():
        sys.exit(f"--json {options.json}: there is no folder {options.json.parent}; make it first")
    curves: Curves = on_ranks(options.ranks, train_all, options)
    print(table(curves))
    outside = [name for name in curves if MODES[name].in_band and distance(curves, name) > BAND]
    if options.json is not None:
        write(options.json, json.dumps(figures(options, curves), indent=1) + "\n")
    if outside:
        sys.exit(f"further than {BAND:.1%} from fp32: {', '.join(outside)}")
    return 0


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.parity",
        description=" ".join((__doc__ or "").split()),
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    for name, default, meaning in [
        ("steps", 200, "steps of a run"),
        ("seeds", 3, "runs of each mode"),
        ("ranks", 2, "ranks, one thread each"),
        ("stage", 3, "what is split over the ranks"),
        ("batch", 4, "sequences for one rank"),
        ("layers", 2, "blocks of the model"),
        ("width", 64, "width of the model"),
        ("heads", 4, "attention heads in a block"),
        ("context", 64, "positions of a sequence"),
    ]:
        add(f"--{name}", type=positive, default=default, metavar="N", help=meaning)
    add("--lr", type=float, default=2e-3, metavar="X", help="learning rate of AdamW")
    add("--json", type=Path, metavar="FILE", help="also write the curves to this file")
    return parser.parse_args(arguments)


def train_all(options: argparse.Namespace) -> Curves:
    """Train in all modes, each with every seed."""
    curves = {}
    for name, mode in MODES.items():
        curves[name] = [train(mode, seed, options) for seed in range(options.seeds)]
        if dist.get_rank() == 0:
            print(f"trained in {name}", file=sys.stderr, flush=True)
    return curves


def train(
    mode: Mode,
    seed: int,
    options: argparse.Namespace,
    device: str = "cpu",
    make_scaler: Callable[..., Any] = ShardedGradScaler,
) -> Curve:
    """Train one model; its first values are the same on every type of device."""
    config = config_of(options)
    torch.manual_seed(seed)
    model = shard(gpt.GPT(config).to(device), stage=options.stage, policy=mode.policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    scaler = make_scaler(device, enabled=mode.scaled, growth_interval=100)
    training, unseen = (
        corpus.Reader(
            part,
            context=config.context,
            batch=options.batch,
            rank=dist.get_rank(),
            world_size=options.ranks,
            seed=seed,
            device=torch.device(device),
        )
        for part in corpus.split(corpus.read())
    )
    losses, skipped = [], 0
    for number in range(options.steps):
        inputs, targets = training[number]
        with mode.context(device):
            logits = model(inputs)
        loss = gpt.loss(logits.float(), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        before = scaler.get_scale()
        scaler.update()
        skipped += scaler.get_scale() < before
        optimizer.zero_grad()
        losses.append(mean_over_ranks(loss.item()))
    with torch.no_grad():
        rest = []
        for inputs, targets in map(unseen.__getitem__, range(unseen.batches)):
            with mode.context(device):
                logits = model(inputs)
            rest.append(gpt.loss(logits.float(), targets).item())
    return Curve(losses, mean_over_ranks(statistics.fmean(rest)), skipped, scaler.get_scale())


def config_of(options: argparse.Namespace) -> gpt.Config:
    """The shape of the model."""
    return gpt.Config(
        layers=options.layers, width=options.width, heads=options.heads, context=options.context
    )


def mean_over_ranks(value: float) -> float:
    """The mean of one number."""
    number = torch.tensor(value, dtype=torch.float64)
    all_reduce(number)
    return number.item() / dist.get_world_size()


def distance(curves: Curves, name: str) -> float:
    """How far from FP32 a mode ends, at most, relative to FP32: on both texts and over all seeds."""
    return max(
        abs(value(run) / value(exact) - 1)
        for run, exact in zip(curves[name], curves["fp32"], strict=True)
        for value in (lambda run: run.last, lambda run: run.unseen)
    )


def mean_of(runs: Sequence[Curve]) -> list[float]:
    """The losses in training, step by step, as means over the runs."""
    return [statistics.fmean(step) for step in zip(*(run.train for run in runs), strict=True)]


def distances(mean: Sequence[float], base: Sequence[float], window: int) -> Iterator[float]:
    """How far apart two curves are, relative, each as the mean over this many steps up to the present one."""
    for end in range(window, len(mean) + 1):
        part = slice(end - window, end)
        yield statistics.fmean(mean[part]) / statistics.fmean(base[part]) - 1


def table(curves: Curves) -> str:
    """The modes as text. The last tenth of the steps stands for the loss in training."""
    lines = [
        f"{'mode':<24} {'loss':>7} {'unseen':>7} {'from fp32':>10} {'skipped':>8} {'last scale':>11}",
    ]
    for name, runs in curves.items():
        loss, unseen, skipped = (
            statistics.fmean(values)
            for values in zip(*((run.last, run.unseen, run.skipped) for run in runs), strict=True)
        )
        scale = f"{runs[-1].scale:g}" if MODES[name].scaled else "-"
        lines.append(
            f"{name:<24} {loss:>7.4f} {unseen:>7.4f} {distance(curves, name):>10.2%}"
            f" {skipped:>8.1f} {scale:>11}"
        )
    seeds = [run.unseen for run in curves["fp32"]]
    spread = max(seeds) / min(seeds) - 1
    lines.append(
        f"\nband {BAND:.1%}; between the seeds fp32 itself differs by {spread:.2%} on the held-out text"
    )
    return "\n".join(lines)


def figures(options: argparse.Namespace, curves: Curves) -> dict[str, Any]:
    """The curves and what they were measured with."""
    config = config_of(options)
    return {
        "steps": options.steps,
        "ranks": options.ranks,
        "stage": options.stage,
        "batch": options.batch,
        "lr": options.lr,
        "model": {**asdict(config), "parameters": gpt.parameters(config)},
        "band": BAND,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "modes": {
            name: {
                "from_fp32": round(distance(curves, name), 6),
                "in_band": MODES[name].in_band,
                "runs": [{**asdict(run), "train": [round(loss, 4) for loss in run.train]} for run in runs],
            }
            for name, runs in curves.items()
        },
    }


if __name__ == "__main__":
    sys.exit(main())
