r"""# Training a sharded model

> One command starts the ranks, trains a GPT, and compares the counted bytes with the
> forecast.

```sh
torchrun --standalone --nproc-per-node 2 -m shardbook.train --steps 200
```

Each of the two processes is a rank. Both build the same [GPT](gpt.py), shard it with
[one call](model.py#shard), and read [different windows](corpus.py#Reader) of the text.
The training loop is the same as for a plain model. At the end rank 0 prints a table:
the loss, the speed, and the bytes that were sent and stored. Next to each number of
bytes the table shows [its forecast](forecast.py). The peak has a forecast only in
stage 3 without the three options of the next paragraph.

Three options turn on the other techniques: `--precision bf16` or `fp16` [computes in 16
bits](policy.py), `--checkpoint non-reentrant` [recomputes
activations](checkpointing.py), and `--offload` [stores parameters, gradients and
optimizer state on the host](offload.py).

A low loss in training does not show that the model is good. So [the last
section](#module/the-loss-on-unseen-text) computes the loss on held-out text. Other
chapters describe the further features of the program: options [in a
file](options.py#module/options-in-a-configuration-file), [your own text](text.py), [a
learning-rate schedule](plan.py#module/the-learning-rate-schedule), [clipping](clip.py),
[checks for NaN and infinity](not_finite.py), [resuming from a checkpoint](saving.py),
[tracking](tracking.py), [a trace of one step](tracking.py#module/a-trace-of-one-step)
and [a snapshot of the memory at its peak](tracking.py#module/a-snapshot-of-the-memory).
With `--plan` the program only computes [whether the run fits into memory](plan.py).

Without `torchrun` the same program trains on one rank. World size 1 is not a special
case in this book: the same lines run, and the collectives send nothing.
"""

from __future__ import annotations

import argparse
import functools
import math
import operator
import os
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from unicodedata import category

import torch
import torch.distributed as dist
from torch import nn

from shardbook.command import Mistake, complain, stoppable
from shardbook.foundations.collectives import all_reduce, ledger
from shardbook.foundations.hook_context import label
from shardbook.models import corpus, gpt
from shardbook.models.corpus import Reader
from shardbook.planning.forecast import Meter
from shardbook.planning.report import (
    Counted,
    Progress,
    beside,
    report,
    write_figures,
)
from shardbook.train.options import parse
from shardbook.train.plan import (
    Run,
    assemble,
    make_optimizer,
    mistakes,
    plan,
    plan_figures,
    refuse_too_large,
    setup_of,
    table,
)
from shardbook.train.ranks import start
from shardbook.train.saving import LEFT, Saves
from shardbook.train.text import load, prepare, readers, stored
from shardbook.train.tracking import (
    MemorySnapshot,
    labml_shows,
    refuse_missing_tracker,
    traced,
    tracking,
)
from shardbook.training.clip import clip_grad_norm_, dtype_of_all, limit

__all__ = [
    "evaluate",
    "main",
    "make_optimizer",
    "mean_over_ranks",
    "sample",
    "step",
    "train",
]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program with the options of the command line.

    :param arguments: the options; by default `sys.argv`
    :returns: [the exit code](command.py): 1 also for a plan that does not fit, and 143
        if [`SIGTERM`](saving.py) has ended the run
    """
    try:
        options = parse(arguments)
        if options.plan:
            return show_plan(options)
        refuse_too_large(options, 4 * gpt.parameters(options.config))
        refuse_missing_tracker(options)
        with stoppable():
            prepare(options)
            with start(options) as device:
                return train(options, device)
    # A mistake in the options is printed as one sentence. Any other error is a bug of
    # this program, so its traceback is printed.
    except Mistake as mistake:
        return complain("shardbook.train", mistake)


def train(options: argparse.Namespace, device: torch.device) -> int:
    """Train on this rank, together with all others. The process group exists already.

    :returns: the exit code of the program
    """
    with mistakes():
        training, unseen = readers(options, device)
        run = assemble(options, training, device)
    counted = Counted()
    # `Saves` loads the newest checkpoint if there is one.
    saves = Saves(options, run)
    code = take_steps(options, run, saves, unseen, counted)
    if code is None:
        held = stored(training.text, unseen.text)
        report(setup_of(options, dist.get_world_size(), held), counted, options)
        show_skipped(run)
        show_sample(options, run, device)
    return code or 0


def take_steps(
    options: argparse.Namespace,
    run: Run,
    saves: Saves,
    unseen: Reader,
    counted: Counted,
) -> int | None:
    """Take the remaining steps, with evaluations, tracking and checkpoints in between.

    :param unseen: the text for evaluations
    :param counted: collects the counts for the report
    :returns: the exit code if there is nothing to report: 0 if no step was left, 143
        after `SIGTERM`; `None` after the last step
    """
    steps = range(run.number, options.steps)
    if not steps:
        saves.release()
        say(f"all {run.number} steps were taken before; more --steps would go on")
        return 0
    with (
        tracking(options, run.number) as track,
        progress_of(options, run) as progress,
        saves,
    ):
        if run.number:
            progress.say(f"going on after step {run.number}{saves.options.changes}")
        for number in steps:
            taken, figures = watched_step(options, run, steps, counted)
            if taken.fault is not None:
                progress.say(f"step {number + 1} is skipped, because {taken.fault}")
            if evaluation_is_due(options, number):
                counted.unseen = evaluate(run.model, unseen, options.evaluate_batches)
                figures["unseen"] = mean_over_ranks(counted.unseen, unseen.device)
                progress.say(
                    f"step {number + 1}  held-out text {figures['unseen']:.3f}"
                )
            track(number, figures)
            progress.show(number, figures["loss"])
            # Between steps no exchange is running, and `run` holds everything that the
            # next step depends on.
            if saves.after_step():
                progress.say(
                    f"saved after step {run.number}, as SIGTERM wants this job to end"
                )
                return LEFT
    return None


def step(run: Run) -> Taken:
    """Take one optimizer step from one or several micro-batches, and return what is known of it.

    With [a scaler for one process](loss_scaling.py) these lines would train a plain
    model, too. With 4 micro-batches, `backward` runs four times and adds up four
    gradients. So each loss is divided by 4, and the sum is the mean. The division by
    the number of ranks is not needed, because each backward pass averages over the
    ranks.

    The ranks exchange gradients after each micro-batch, and the forecast counts these
    bytes. [Under `no_sync`](accumulate.py) they would exchange once per step, but each
    rank would store full gradients until then.
    """
    losses: list[float] = []
    rate = run.schedule.apply(run.optimizer, run.number)
    for micro in range(run.accumulate):
        inputs_BT, targets_BT = next(run.batches)
        with label("forward", f"micro-batch {micro}"):
            loss = gpt.loss(run.model(inputs_BT), targets_BT) / run.accumulate
        # In FP32 and BF16 the scaler is turned off. Then `scale` returns the loss
        # itself, and the scaler's `step` is that of the optimizer.
        with label("backward", f"micro-batch {micro}"):
            run.scaler.scale(loss).backward()
        losses.append(loss.item())
    norm, fault = looked_at(run, losses)
    with label("step", "optimizer"):
        if fault is None:
            run.scaler.step(run.optimizer)
        run.scaler.update()
    # `zero_grad` sets the gradients to `None`, which frees their memory until the next
    # backward pass.
    run.optimizer.zero_grad()
    run.number += 1
    scale = run.scaler.get_scale() if run.scaler.is_enabled() else None
    return Taken(total(losses), rate, norm, scale, fault)


def looked_at(run: Run, losses: list[float]) -> tuple[float | None, str | None]:
    """Check whether [the gradient is finite](not_finite.py), and clip its norm if the run has a limit.

    :param losses: the losses of this rank's micro-batches
    :returns: the norm before clipping, or `None` if it was not computed; and the reason
        if the step is skipped
    :raises Mistake: if the run stops at a step whose loss or gradients are not finite
    """
    if run.clip is None and not run.not_finite.looks:
        return None, None
    # The limit applies to the gradient itself, so the loss scale is divided out first.
    run.scaler.unscale_(run.optimizer)
    if not run.not_finite.looks:
        return clip_grad_norm_(run.model, run.clip or math.inf).item(), None
    norm, fault = run.not_finite.look(run.model, losses, run.scaler.get_scale)
    if fault is not None:
        run.not_finite.act(run.number + 1, fault)
    elif run.clip is not None:
        limit(run.model, norm, run.clip)
    return norm.to(dtype_of_all(run.model)).item(), fault


def total(losses: list[float]) -> float:
    """Add up numbers in their order. Since Python 3.12 the built-in `sum` rounds differently."""
    return functools.reduce(operator.add, losses, 0.0)


@dataclass(frozen=True, slots=True)
class Taken:
    """The figures of a finished step. A figure that the run does not have is `None`."""

    loss: float
    learning_rate: float
    norm: float | None
    loss_scale: float | None
    fault: str | None = None

    def figures(self) -> dict[str, float]:
        """The figures that are not `None`, [by name](tracking.py)."""
        pairs = [
            ("loss", self.loss),
            ("learning_rate", self.learning_rate),
            ("norm", self.norm),
            ("loss_scale", self.loss_scale),
            ("skipped", None if self.fault is None else 1),
        ]
        return {name: value for name, value in pairs if value is not None}


def watched_step(
    options: argparse.Namespace, run: Run, steps: range, counted: Counted
) -> tuple[Taken, dict[str, float]]:
    """Take a step, and count the bytes it sends, its time, and in the last step the bytes it stores.

    :returns: the finished step, and all its figures [by name](tracking.py)
    """
    number = run.number
    # The last step runs under the meter. It takes longer than the others, and its time
    # is left out.
    meter = make_meter(options, run) if number + 1 == options.steps else None
    with traced(options.profile, number, steps), ledger() as book:
        started = time.perf_counter()
        with meter or nullcontext():
            taken = step(run)
        seconds = time.perf_counter() - started
    counted.add(taken.loss, seconds, book.sent)
    if meter is not None:
        counted.peak, counted.steady = meter.peak, meter.now()
    if isinstance(meter, MemorySnapshot):
        with beside("--memory-snapshot", everywhere=True):
            meter.save(options.memory_snapshot)
    return taken, taken.figures() | {"sent": book.total, "seconds": seconds}


def evaluation_is_due(options: argparse.Namespace, number: int) -> bool:
    """Whether to evaluate after this step. The last step is always followed by an evaluation."""
    every: int = options.evaluate_every or options.steps
    last: int = options.steps
    return (number + 1) % every == 0 or number + 1 == last


# sidelit: depth What is printed or written instead of a run, beside it and after it.


def progress_of(options: argparse.Namespace, run: Run) -> Progress:
    """Rank 0's line of progress, unless labml shows its own."""
    shows = dist.get_rank() == 0 and not labml_shows(options)
    return Progress(options.steps, first=run.number, enabled=shows)


def make_meter(options: argparse.Namespace, run: Run) -> Meter:
    """The meter of the last step. With `--memory-snapshot` the meter also records its peak."""
    if options.memory_snapshot is None:
        return Meter()
    texts = [run.batches.reader.text]
    return MemorySnapshot(run.model, run.optimizer, texts)


def show_plan(options: argparse.Namespace) -> int:
    """Print the plan on rank 0, and write it to a file if `--json` names one."""
    made, setup = plan(options)
    if os.environ.get("RANK", "0") == "0":
        print(table(options, made, setup))
        if options.json is not None:
            write_figures(options.json, plan_figures(options, made, setup))
    return 1 if made.fits is False else 0


def say(sentence: str) -> None:
    """Print a sentence on rank 0."""
    if dist.get_rank() == 0:
        print(sentence)


def show_skipped(run: Run) -> None:
    """Print how many steps [were not finite](not_finite.py), if any were."""
    if run.not_finite.skipped:
        say(f"{run.not_finite.skipped} of {run.number} steps were skipped")


def show_sample(options: argparse.Namespace, run: Run, device: torch.device) -> None:
    """Print the continued prompt. All ranks compute the text, and rank 0 prints it."""
    if options.sample:
        written = sample(options, run.model, device)
        if dist.get_rank() == 0:
            print(f"\n{written}")


# sidelit: core


# ## The loss on held-out text
#
# > An evaluation computes the loss on text that the model was not trained on, and the
# > model continues a prompt.
#
# A model that has learned its text by heart has a low loss on this text and a high loss
# on any other. So the loss in training does not tell you how good the model is. A run
# holds back [the end of the text](text.py), and computes the loss on it: after the last
# step, and with `--evaluate-every 100` after every 100 steps. At the end the model
# continues `--prompt`, because a few written lines show more than a number.
#
# Both need forward passes. In a sharded model a forward pass gathers the units, and a
# gather needs all ranks. So all ranks evaluate, each on its own share of the text. All
# ranks continue the prompt, too, with the same result, and rank 0 prints it.


@torch.no_grad()
def evaluate(
    model: nn.Module, unseen: corpus.Reader, batches: int | None = None
) -> float:
    """Compute the mean loss on this rank's share of the held-out text.

    All ranks have to run the model equally often. If one rank had a batch more, its
    gather would find no partner, and [training would stop with an
    error](exchange_order.py). The reader gives each rank the same number of batches.

    :param batches: how many batches to read at most; `None` means all
    """
    numbers = range(min(unseen.batches, batches or unseen.batches))
    losses = [
        gpt.loss(model(inputs), targets).item()
        for inputs, targets in map(unseen.__getitem__, numbers)
    ]
    return sum(losses) / len(losses)


def mean_over_ranks(value: float, device: torch.device | None) -> float:
    """The mean of one number from each rank."""
    total = torch.tensor([value], dtype=torch.float64, device=device)
    all_reduce(total)
    return total.item() / dist.get_world_size()


@torch.no_grad()
def sample(options: argparse.Namespace, model: nn.Module, device: torch.device) -> str:
    """Continue the prompt, one token after the other.

    Each token is drawn with the probability that the model gives it. All ranks have the
    same logits and the same seed, so they draw the same tokens.
    """
    tokens = encode(options)
    generator = torch.Generator().manual_seed(options.seed)
    for _ in range(options.sample):
        seen_1T = torch.tensor([tokens[-options.context :]], device=device)
        logits_V = model(seen_1T)[0, -1].float().cpu()
        drawn = torch.multinomial(logits_V.softmax(dim=0), 1, generator=generator)
        tokens.append(int(drawn))
    return decode(options, tokens)


def encode(options: argparse.Namespace) -> list[int]:
    """The prompt as tokens."""
    if options.tokenizer is None:
        return list(options.prompt.encode())
    ids: list[int] = load(options.tokenizer).encode(options.prompt).ids
    return ids


def decode(options: argparse.Namespace, tokens: list[int]) -> str:
    """Convert tokens to text. Bytes that are not valid UTF-8 become �."""
    if options.tokenizer is None:
        return printable(bytes(tokens).decode(errors="replace"))
    text: str = load(options.tokenizer).decode(tokens)
    return printable(text)


def printable(text: str) -> str:
    r"""Replace control characters, so that a terminal can show the text.

    A model that has learned little writes control characters, and a terminal would
    execute them, for example clear the screen.

    >>> printable("a\x1b[2Jb\n")
    'a�[2Jb\n'
    """
    return "".join(
        "�" if category(letter) == "Cc" and letter not in "\n\t" else letter
        for letter in text
    )
