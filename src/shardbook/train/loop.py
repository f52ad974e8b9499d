r"""# Training a sharded model

> One command starts the ranks, trains, and compares what it counted with what was predicted.

```sh
torchrun --standalone --nproc-per-node 2 -m shardbook.train --steps 200
```

Each of the two processes is a rank. Both build the same [GPT](gpt.py), shard it with
[one call](model.py#shard), and read [different windows](corpus.py#Reader) of the text.
Nothing in the training loop shows that the model is sharded. At the end rank 0 prints a
table: the loss, the speed, and the bytes that were sent and stored. Beside each figure
in bytes stands [its forecast](forecast.py). The peak has one only in stage 3 without
the three options of the next paragraph.

Three options turn on the other techniques: `--precision bf16` or `fp16` [computes in 16
bits](policy.py), `--checkpoint non-reentrant` [recomputes
activations](checkpointing.py), and `--offload` [stores parameters, gradients and
optimizer state on the host](offload.py).

Without `torchrun` the same program trains on one rank. World size 1 is no special case
in this book: the same lines run, and the collectives send nothing.
"""

# sidelit: hide
from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
import torch.distributed as dist
from torch import nn

from shardbook.checkpointing.checkpointing import checkpoint_module
from shardbook.command import Mistake, complain
from shardbook.foundations.collectives import ledger
from shardbook.models import corpus, gpt
from shardbook.parameters.policy import Policy
from shardbook.planning.forecast import Setup
from shardbook.planning.measure import Meter
from shardbook.planning.report import Counted, Progress, report
from shardbook.precision.sharded_scaler import ShardedGradScaler
from shardbook.train.options import parse
from shardbook.train.ranks import start
from shardbook.zero.model import shard

__all__ = ["main", "train"]
# sidelit: show


def main(arguments: Sequence[str] | None = None) -> int:
    """Train as the command line says.

    :param arguments: the options, `sys.argv` if left out
    :returns: the exit code, 1 after a mistake of the user
    """
    try:
        options = parse(arguments)
        with start(options) as device:
            train(options, device)
    # A mistake in the options is told in one sentence. Any other error is ours, and
    # keeps its traceback.
    except Mistake as mistake:
        return complain("shardbook.train", mistake)
    return 0


def train(options: argparse.Namespace, device: torch.device) -> None:
    """Train on this rank together with all others; the process group is already there."""
    config = options.config
    # The same seed on every rank gives the same model on every rank. `shard` would copy
    # rank 0's values anyway.
    torch.manual_seed(options.seed)
    with mistakes():
        training, unseen = readers(options, device)
        # Here the model has shapes and no memory. It [gets its values](construct.py)
        # unit by unit, so no rank ever holds all of it, unless the stage wants that.
        with torch.device("meta"):
            model = gpt.GPT(config)
        if options.checkpoint != "none":
            reentrant = options.checkpoint == "reentrant"
            checkpoint_module(model, units=gpt.Block, use_reentrant=reentrant)
        policy = policy_of(options)
        shard(model, stage=options.stage, policy=policy, device=device)
    optimizer = make_optimizer(options, model)
    scaler = ShardedGradScaler(enabled=options.precision == "fp16")
    counted = Counted()
    with (
        ledger() as book,
        Progress(options.steps, enabled=dist.get_rank() == 0) as progress,
    ):
        for number in range(options.steps):
            # The last step runs under the meter. It takes longer than the others, and
            # its time is left out.
            meter = Meter() if number + 1 == options.steps else None
            started = time.perf_counter()
            with meter or nullcontext():
                loss = step(
                    number, options.accumulate, model, optimizer, scaler, training
                )
            counted.losses.append(loss)
            counted.seconds.append(time.perf_counter() - started)
            progress.show(number, loss)
    assert meter is not None
    counted.sent = dict(book.sent)
    counted.peak = meter.peak
    counted.steady = meter.now()
    counted.unseen = evaluate(model, unseen)
    setup = Setup(
        config=config,
        world_size=dist.get_world_size(),
        batch=options.batch,
        accumulate=options.accumulate,
        optimizer=options.optimizer,
        text=len(training.text) + len(unseen.text),
        stage=options.stage,
        policy=policy,
        checkpointed=options.checkpoint != "none",
    )
    report(setup, counted, options)


def step(
    number: int,
    accumulate: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: ShardedGradScaler,
    training: corpus.Reader,
) -> float:
    """One step of the optimizer, from one or several micro-batches; returns the mean loss of this rank.

    With [a scaler for one process](loss_scaling.py) these lines would train an
    unsharded model, too. Gradients add up over micro-batches, so each loss is divided
    by their number. Over ranks the gradients are averaged already, after each
    micro-batch, and the forecast counts that. [Under `no_sync`](accumulate.py) they
    would be sent once and be whole meanwhile.
    """
    total = 0.0
    for micro in range(accumulate):
        inputs_BT, targets_BT = training[number * accumulate + micro]
        loss = gpt.loss(model(inputs_BT), targets_BT) / accumulate
        # In FP32 and BF16 the scaler is turned off. Then these are `loss.backward()`
        # and `optimizer.step()`.
        scaler.scale(loss).backward()
        total += loss.item()
    scaler.step(optimizer)
    scaler.update()
    # `zero_grad` sets the gradients to `None`, and their memory is free until the next
    # backward pass.
    optimizer.zero_grad()
    return total


@torch.no_grad()
def evaluate(model: nn.Module, unseen: corpus.Reader) -> float:
    """The mean loss of this rank's share of the text that the model was not trained on.

    An evaluation gathers the units, too, and a gather needs all ranks. So every rank
    has to run the model equally often, or [training stops](exchange_order.py) with a
    sentence that says so. The reader gives each rank the same number of batches.
    """
    losses = [
        gpt.loss(model(inputs), targets).item()
        for inputs, targets in map(unseen.__getitem__, range(unseen.batches))
    ]
    return sum(losses) / len(losses)


def policy_of(options: argparse.Namespace) -> Policy:
    """The formats of a run. The model returns FP32, since the loss is computed outside of it."""
    if options.precision == "fp32":
        return Policy(offload=options.offload)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[options.precision]
    return Policy(
        param_dtype=dtype, output_dtype=torch.float32, offload=options.offload
    )


def make_optimizer(
    options: argparse.Namespace, model: nn.Module
) -> torch.optim.Optimizer:
    """An ordinary optimizer over the model's own parameters.

    Unless the stage is 0, each parameter is a 1-D slice of a shard by now, often an
    empty one. To an elementwise optimizer that makes no difference. `foreach=False`
    treats one slice after the other and so needs temporaries for a single one.
    """
    if options.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), lr=options.lr, foreach=False)
    return torch.optim.AdamW(model.parameters(), lr=options.lr, foreach=False)


def readers(
    options: argparse.Namespace, device: torch.device
) -> tuple[corpus.Reader, corpus.Reader]:
    """This rank's share of the training text and of the unseen text."""
    ranks = {"rank": dist.get_rank(), "world_size": dist.get_world_size()}
    context = options.config.context
    training, unseen = (part.to(device) for part in corpus.split(corpus.read()))
    # The unseen text is short. With many ranks there may be less than a whole batch of
    # it for each.
    share = min(
        options.batch, max(1, (len(unseen) - 1) // context // ranks["world_size"])
    )
    return (
        corpus.Reader(
            training, context=context, batch=options.batch, seed=options.seed, **ranks
        ),
        corpus.Reader(unseen, context=context, batch=share, seed=options.seed, **ranks),
    )


# sidelit: depth Models that the library refuses.


@contextmanager
def mistakes() -> Iterator[None]:
    """The library's own refusals, turned into sentences for the command line."""
    try:
        yield
    except ValueError as refusal:
        raise Mistake(str(refusal)) from refusal
