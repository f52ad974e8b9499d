r"""# Fine-tuning a GPT-NeoX

> One command loads a pretrained language model into shards, trains a part of its
> parameters, and writes the result.

```sh
torchrun --standalone --nproc-per-node 2 -m shardbook.finetune_neox \
    --model pythia-1b --text notes.txt --train biases --out pythia-1b-notes
```

The model is one of the `transformers` library, without any change for sharding. The
table shows where each step of this program is described:

| step | where |
|---|---|
| build the model without its weights | [opening a pretrained model](pretrained.py) |
| choose what is trained | [by a pattern](tuned_folder.py#module/training-a-subset-of-the) |
| or add adapters | [LoRA](tuned_folder.py#module/lora-through-peft) |
| choose the units | [blocks, embedding and output layer](pretrained.py#module/choosing-the-units-of-a) |
| shard it, and read the weights | [loading into shards](tuned_folder.py#module/loading-a-model-into-shards) |
| train | [the steps of the training program](loop.py) |
| write the result | [a copy of the folder with new values](tuned_folder.py) |

No rank ever holds the whole model. At the end [a
report](#module/the-report-of-fine-tuning) shows the bytes that a rank stored while
loading and between steps, next to those of [the
plan](#module/planning-the-memory-of-fine).

Text, learning-rate schedule, evaluation, checkpoints, `SIGTERM` and tracking work as in
[the training program](train.py), with the same options. A checkpoint does not contain
the frozen parameters, because a resumed run reads them from the folder of the
pretrained model again. So if you train the biases of a model of 20.6 billion
parameters, a checkpoint has 36 MB instead of 82 GB. It names the model by a hash of the
folder's files, and a run that goes on with another model is refused.

Without `--model` the command trains a small random GPT-NeoX on a book, in seconds.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from shardbook.command import Failure, Mistake, complain, stoppable
from shardbook.finetune_neox.finetune_options import parse
from shardbook.finetune_neox.pretrained import (
    Pretrained,
    begin_with,
    blocks_of,
    units_of,
)
from shardbook.finetune_neox.tuned_folder import (
    add_adapters,
    freeze_the_rest,
    keep_16_bits,
    refuse_links,
    shard_and_load,
    write_result,
)
from shardbook.foundations.layout import Layout
from shardbook.planning.forecast import Meter, kinds_of, pieces
from shardbook.planning.planner import Built, built, is_sliced
from shardbook.planning.report import Counted, as_json, beside, write, write_figures
from shardbook.state.tensor_file import PIECE
from shardbook.train.loop import say, show_sample, show_skipped, take_steps
from shardbook.train.plan import (
    mistakes,
    policy_of,
    refuse_too_large,
    rooms,
    run_with,
    sample_of,
    text_bytes,
)
from shardbook.train.ranks import number, start
from shardbook.train.saving import Saves
from shardbook.train.text import prepare, readers, stored
from shardbook.train.tracking import refuse_missing_tracker

__all__ = [
    "Forecast",
    "compare",
    "finetune",
    "forecast_of",
    "main",
    "plan_figures",
    "plan_table",
]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program with the options of the command line.

    :param arguments: the options; by default `sys.argv`
    :returns: [the exit code](command.py): 1 also for a plan that does not fit, and 143
        if [`SIGTERM`](saving.py) has ended the run
    """
    try:
        options = parse(arguments)
        with stoppable():
            # Each rank checks the folder and the pattern before the ranks meet.
            beginning, adapters = begin(options)
            if options.plan:
                return show_plan(options, beginning)
            held = beginning.model.parameters()
            refuse_too_large(options, sum(each.nbytes for each in held))
            refuse_missing_tracker(options)
            prepare(options)
            # Each rank reads its part of the weights, maybe from a disk of its machine.
            options.content["the hash of the files of --model"] = (
                beginning.state_dict()["model"]
            )
            with start(options) as device:
                return finetune(options, beginning, adapters, device)
    except Mistake as mistake:
        return complain("shardbook.finetune_neox", mistake)


def begin(options: argparse.Namespace) -> tuple[Pretrained, Any]:
    """Build the model without memory, and choose the trained parameters.

    :returns: also `peft`'s configuration of LoRA matrices, or `None`
    :raises Mistake: if there is no such model, the pattern chooses no parameter, or the
        folder of the model cannot be copied
    """
    beginning = begin_with(options)
    blocks_of(beginning.model, options.units)
    adapters = add_adapters(beginning, options) if options.train == "lora" else None
    freeze_the_rest(beginning.model, options.train)
    if options.checkpoint == "reentrant":
        refuse_reentrant(beginning.model)
    keep_16_bits(beginning, policy_of(options))
    if options.out is not None and adapters is None:
        refuse_links(beginning)
    return beginning, adapters


def finetune(
    options: argparse.Namespace,
    beginning: Pretrained,
    adapters: Any,
    device: torch.device,
) -> int:
    """Fine-tune on this rank, together with all others. The process group exists already.

    :returns: the exit code of the program
    """
    with mistakes():
        training, unseen = readers(options, device)
        held = stored(training.text, unseen.text)
        expected = forecast_of(
            beginning,
            options,
            dist.get_world_size(),
            rank=dist.get_rank(),
            text=held,
        )
        try:
            loaded, others = measured_loading(beginning, options, device)
        except OSError as error:
            raise Mistake(f"--model {options.model}: {error}") from error
    run = run_with(beginning.model, options, training, {"start": beginning})
    # If the model has dropout, each rank draws its own masks.
    torch.manual_seed(options.seed + 1 + dist.get_rank())
    counted = Counted()
    saves = Saves(options, run, frozen=False)
    code = take_steps(options, run, saves, unseen, counted)
    if code:
        return code
    if options.out is not None:
        keep(options, beginning, adapters)
    if code is None:
        # Tensors of other libraries existed before and are not counted.
        counted.steady -= others - held
        compare(options, beginning, expected, loaded, counted)
        show_skipped(run)
        show_sample(options, run, device)
    return 0


def measured_loading(
    beginning: Pretrained, options: argparse.Namespace, device: torch.device
) -> tuple[int, int]:
    """Shard and load the model, and measure the largest number of bytes that this rank stored for it.

    :returns: also the bytes that existed before
    """
    with Meter() as meter:
        before = meter.now()
        shard_and_load(beginning, options, device)
    return meter.peak - before, before


def keep(options: argparse.Namespace, beginning: Pretrained, adapters: Any) -> None:
    """Write the result.

    :raises Failure: if the folder cannot be written
    """
    out: Path = options.out
    try:
        write_result(beginning, beginning.model, out, adapters=adapters)
    except OSError as error:
        raise Failure(f"--out {out}: {error}") from error
    say(f"written to {out}")


# sidelit: depth A variant of checkpointing that would lose gradients; the plan printed in place of a run.


def refuse_reentrant(model: Any) -> None:
    """Refuse checkpoints that give no gradient to a block whose input has none.

    :raises Mistake: if the embedding is frozen
    """
    if not any(
        each.requires_grad for each in model.get_input_embeddings().parameters()
    ):
        raise Mistake(
            "--checkpoint reentrant needs inputs with gradients, and the embedding is "
            "frozen; use --checkpoint non-reentrant"
        )


def show_plan(options: argparse.Namespace, beginning: Pretrained) -> int:
    """Print the plan on rank 0, and write it to a file if `--json` names one."""
    ranks = options.ranks or number("WORLD_SIZE", least=1, default="1")
    text = text_bytes(options)
    made = max(
        (
            forecast_of(beginning, options, ranks, rank=rank, text=text)
            for rank in sample_of(ranks)
        ),
        key=lambda one: one.most,
    )
    figures = plan_figures(options, made, ranks)
    if os.environ.get("RANK", "0") == "0":
        print(plan_table(beginning, options, made, ranks))
        if options.json is not None:
            write_figures(options.json, figures)
    return 1 if figures["fits"] is False else 0


# sidelit: core


# ## Planning the memory of fine-tuning
#
# > `--plan` computes the bytes of one rank while the model is loaded, between steps and
# > in a step.
#
# ```sh
# python -m shardbook.finetune_neox --model FOLDER --plan --ranks 8 --memory 80
# ```
#
# The plan needs only the shapes of the model and the heads of its files. For the GPT-NeoX
# of 20.6 billion parameters it reads less than a megabyte.
#
# - While the model is loaded, a rank stores its shards, the buffers, and 1 MB for
#   reading. During [the construction](planner.py#module/the-peak-of-a-construction) it
#   may store more. The plan computes the larger number exactly.
# - Between steps, a rank stores shards, buffers, AdamW's moments of the trained
#   parameters, step counters and text. This number is exact, too.
# - In a step, a rank also stores gradients of the trained parameters and three vectors of
#   gradients that are being exchanged. In stage 3 the root and the two largest units are
#   whole. These tensors do not all exist at the same moment, so their sum is an upper
#   bound.
#
# The plan does not include the activations, because they depend on the model's own
# forward pass. [Checkpoints](checkpointing.py) of the blocks make the activations small,
# so use `--checkpoint non-reentrant` if memory is short. The tensors that a compiler keeps
# with `--compile` are not included either.


@dataclass(frozen=True, slots=True)
class Forecast:
    """The bytes of one rank.

    :param loading: the most that is stored while the model is built and loaded
    :param steady: the bytes between steps, by term
    :param extra: the bytes that a step adds at most, without activations, by term
    :param sent: the bytes that are sent in one step, at most
    """

    loading: int
    steady: dict[str, int]
    extra: dict[str, int]
    sent: int

    @property
    def between(self) -> int:
        """The bytes that are stored between two steps."""
        return sum(self.steady.values())

    @property
    def most(self) -> int:
        """The largest number of bytes, without activations."""
        return max(self.loading, self.between + sum(self.extra.values()))


def forecast_of(
    start: Pretrained,
    options: argparse.Namespace,
    ranks: int,
    *,
    rank: int = 0,
    text: int = 0,
) -> Forecast:
    """Compute the bytes of a run.

    :param start: the pretrained model, without memory, with its frozen parameters chosen
    :param ranks: the number of ranks
    :param rank: the rank to compute
    :param text: the bytes of text on a rank
    """
    model, stage, policy = start.model, options.stage, policy_of(options)
    units = units_of(model, blocks_of(model, options.units))
    made = built(model, units, ranks, stage=stage, policy=policy)
    vectors = [layout for unit in made.vectors.values() for layout in unit]
    trained = [layout for layout in vectors if layout.trainable]
    numel = [sum(pieces(each, rank)) if stage else each.numel for each in trained]
    adamw = options.optimizer == "adamw"
    kinds = [kinds_of(each, stage, policy) for each in trained]
    steady = {
        "parameters": made.parameters,
        "buffers": made.buffers,
        "moments": 8 * sum(numel) * adamw,
        "step counters": 4 * sum(len(each.slots) for each in trained) * adamw,
        "loss scale": 8 * (options.precision == "fp16"),
        "text": text,
    }
    waits = 4 * sum(each.shard_numel if stage else each.padded for each in trained)
    return Forecast(
        loading=max(
            made.peak, made.parameters + made.buffers + room(start, made, stage)
        ),
        steady={name: value for name, value in steady.items() if value},
        extra={
            "gradients": sum(each.gradients + each.gradients_on_host for each in kinds)
            + waits * (options.accumulate > 1 and stage < 2),
            "in flight": in_flight(made, options),
        },
        sent=options.accumulate * sum(sent_of(each, options) for each in vectors)
        + numbers_sent(options, ranks),
    )


def room(start: Pretrained, made: Built, stage: int) -> int:
    """The memory for reading a rank's elements of one tensor."""
    largest = 0
    for layout in (each for unit in made.vectors.values() for each in unit):
        most = layout.shard_numel if is_sliced(layout, stage) else layout.padded
        for slot in layout.slots:
            for name in (start.stored[n] for n in slot.names if n in start.stored):
                size = start.places[name].dtype.itemsize
                largest = max(largest, size * min(slot.numel, most))
    return min(PIECE, largest)


def in_flight(made: Built, options: argparse.Namespace) -> int:
    """The bytes of whole units in the middle of a step, and of gradients that are being exchanged."""
    whole = {
        name: sum(layout.padded * layout.computes_in.itemsize for layout in layouts)
        for name, layouts in made.vectors.items()
    }
    root = whole.pop("", 0)
    units = root + sum(sorted(whole.values())[-2:]) if options.stage == 3 else 0
    policy = policy_of(options)
    largest = max(
        layout.padded * policy.collects_in(layout.computes_in).itemsize
        for layouts in made.vectors.values()
        for layout in layouts
        if layout.trainable
    )
    return units + 3 * largest


def sent_of(layout: Layout, options: argparse.Namespace) -> int:
    """The bytes that are sent for a vector in a micro-batch, at most."""
    policy = policy_of(options)
    if layout.trainable:
        return kinds_of(layout, options.stage, policy).sent
    # A frozen vector has no gradient. In stage 3 it is gathered; lower stages keep it
    # whole.
    others = layout.padded - layout.shard_numel
    return 2 * others * layout.computes_in.itemsize if options.stage == 3 else 0


def numbers_sent(options: argparse.Namespace, ranks: int) -> int:
    """The bytes that a rank sends for [the gradient's norm](not_finite.py) in a step, at most."""
    looked_at = options.not_finite != "continue" or options.clip is not None
    return 8 * (ranks - 1) if looked_at else 0


def plan_table(
    start: Pretrained, options: argparse.Namespace, made: Forecast, ranks: int
) -> str:
    """Format the plan as a table."""
    place, _ = rooms(options, ranks)
    rows = [
        ("while it is loaded", made.loading, "at most"),
        *((name, value, "between steps") for name, value in made.steady.items()),
        *((name, value, "in a step, at most") for name, value in made.extra.items()),
        ("together", made.between + sum(made.extra.values()), "without activations"),
        *([("room", place, "what one rank may take")] if place is not None else []),
        ("sent in a step", made.sent, "at most"),
    ]
    heading = (
        f"{described(start)}, {ranks} rank{'s' * (ranks > 1)}, stage {options.stage}"
    )
    lines = [f"{name:<26}{value:>20,}  {note}".rstrip() for name, value, note in rows]
    return "\n".join(
        [f"{heading}: the bytes of one rank", *lines, verdict(made, place)]
    )


def described(start: Pretrained) -> str:
    """Describe the model and the number of trained parameters."""
    sizes = [(each.numel(), each.requires_grad) for each in start.model.parameters()]
    trained = sum(numel for numel, learns in sizes if learns)
    return (
        f"{type(start.model).__name__}, {sum(numel for numel, _ in sizes):,} parameters, "
        f"{trained:,} of them trained"
    )


def verdict(made: Forecast, place: int | None) -> str:
    """The last line: whether the run fits, and otherwise what to change."""
    if place is None:
        return "Whether it fits is not known here: say with --memory how much there is."
    if made.most > place:
        return "It does not fit: take more ranks, --offload, or train fewer parameters."
    left = place - made.between - sum(made.extra.values())
    return f"It fits, if the activations take no more than {left:,} bytes."


def plan_figures(
    options: argparse.Namespace, made: Forecast, ranks: int
) -> dict[str, Any]:
    """The plan as a dictionary, for `--json`."""
    place, _ = rooms(options, ranks)
    return {
        "ranks": ranks,
        "stage": options.stage,
        "loading": made.loading,
        "steady": made.between,
        "steady_terms": made.steady,
        "extra_terms": made.extra,
        "sent": made.sent,
        "room": place,
        "fits": None if place is None else made.most <= place,
    }


# ## The report of fine-tuning
#
# > The report shows the losses, and the counted bytes next to the planned ones.
#
# [The meter](forecast.py#module/counting-the-stored-bytes) measures the loading and the
# last step. Each rank has its own forecast. The table shows the largest numbers of all
# ranks, because every rank needs enough memory. With `--json` all numbers are written
# to a file:
#
# | name | meaning | one entry for each |
# |---|---|---|
# | `losses` | the mean loss of all ranks | step |
# | `unseen` | the loss on the held-out text | rank |
# | `loading`, `loading_forecast` | the most bytes that were stored while building and loading | rank |
# | `steady`, `steady_forecast` | the bytes that are stored between steps | rank |
# | `sent` | the bytes that were sent in all steps | rank |


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
        ("loss, held-out text", f"{unseen:.3f}", ""),
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
