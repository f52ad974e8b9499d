r"""# Fine-tuning a GPT-NeoX

> One command loads a pretrained language model into shards, trains a part of its
> parameters, and writes the result.

```sh
torchrun --standalone --nproc-per-node 2 -m shardbook.finetune_neox \
    --model pythia-1b --text notes.txt --train biases --out pythia-1b-notes
```

The model is one of the `transformers` library, without any change for sharding. Each
step of this program has its own chapter:

| step | chapter |
|---|---|
| build the model without its weights | [opening a pretrained model](pretrained.py) |
| choose the trained parameters | [by a pattern](trained_parameters.py), or [LoRA](adapters.py) |
| choose the units | [blocks, embedding and output layer](model_units.py) |
| shard the model, and read the weights | [loading into shards](sharded_loading.py) |
| train | [the steps of the training program](train.py) |
| write the result | [a copy of the folder with new values](tuned_folder.py) |

No rank ever holds the whole model. At the end a table shows the bytes that a rank stored
while loading and between steps, next to those of [the plan](finetune_plan.py).

Text, learning-rate schedule, evaluation, checkpoints, `SIGTERM` and tracking work as in
[the training program](train.py), with the same options. A checkpoint does not contain
the frozen parameters, because a resumed run reads them from the folder of the
pretrained model again. So if you train the biases of a model of 20.6 billion
parameters, a checkpoint has 36 MB instead of 82 GB.

Without `--model` the command trains a small random GPT-NeoX on a book, in seconds.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from shardbook.command import Failure, Mistake, complain, stoppable
from shardbook.finetune_neox.adapters import add_adapters
from shardbook.finetune_neox.finetune_options import parse
from shardbook.finetune_neox.finetune_plan import (
    forecast_of,
    plan_figures,
    plan_table,
)
from shardbook.finetune_neox.finetune_report import compare
from shardbook.finetune_neox.model_units import blocks_of
from shardbook.finetune_neox.pretrained import Pretrained, begin_with
from shardbook.finetune_neox.sharded_loading import shard_and_load
from shardbook.finetune_neox.trained_parameters import freeze_the_rest, keep_16_bits
from shardbook.finetune_neox.tuned_folder import refuse_links, write_result
from shardbook.planning.measure import Meter
from shardbook.planning.report import Counted, write_figures
from shardbook.train.assemble import mistakes, policy_of, run_with
from shardbook.train.loop import say, show_sample, show_skipped, take_steps
from shardbook.train.plan import refuse_too_large, sample_of, text_bytes
from shardbook.train.ranks import number, start
from shardbook.train.saving import Saves
from shardbook.train.text import prepare, readers, stored
from shardbook.train.tracking import refuse_missing_tracker

__all__ = ["finetune", "main"]


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


# sidelit: depth A variant of checkpointing that would lose gradients, and what is printed instead of a run.


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
