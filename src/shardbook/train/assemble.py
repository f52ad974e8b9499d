r"""# The parts of a run

> A run consists of a model, an optimizer, a scaler, a reader of text and a schedule,
> made from the options.

A [step](loop.py#step) reads and changes seven objects. If [the state of all seven is
saved](saving.py) and restored later, the next step is the same as without the break:

| part of the run | what it remembers |
|---|---|
| `model` | the parameters |
| `optimizer` | its moments and step counters |
| `scaler` | the loss scale |
| `batches` | [the position](position.py) in the text |
| `schedule` | nothing, because [the rate](schedule.py) follows from the step's number |
| `number` | how many steps were done |
| `not_finite` | how many steps [were skipped](not_finite.py) |

The GPT draws no random numbers while it trains. For a model with dropout, the states of
the rank's random number generators are saved, too.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import nn

from shardbook.checkpointing.checkpointing import checkpoint_module
from shardbook.command import Mistake, OwnMistake
from shardbook.models import corpus, gpt
from shardbook.parameters.policy import Policy
from shardbook.planning.forecast import Setup
from shardbook.precision.sharded_scaler import ShardedGradScaler
from shardbook.state.run_state import Stateful
from shardbook.train.machines import mesh_of
from shardbook.train.not_finite import NotFinite
from shardbook.train.position import Batches
from shardbook.train.schedule import Schedule
from shardbook.zero.model import shard

__all__ = ["Run", "assemble", "make_optimizer", "mistakes", "policy_of", "setup_of"]


@dataclass(slots=True)
class Run:
    """Everything that the next step of a run depends on.

    :param accumulate: the number of micro-batches in a step
    :param clip: the largest norm of the gradient; `None` for no limit
    :param number: how many steps were done
    :param not_finite: what happens to a step that [is not finite](not_finite.py)
    :param others: other objects to save with the run, by name
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: ShardedGradScaler
    batches: Batches
    schedule: Schedule
    accumulate: int = 1
    clip: float | None = None
    number: int = 0
    not_finite: NotFinite = field(default_factory=NotFinite)
    others: dict[str, Stateful] = field(default_factory=dict)


def assemble(
    options: argparse.Namespace, training: corpus.Reader, device: torch.device
) -> Run:
    """Make a run from the options, before its first step."""
    return run_with(sharded_model(options, device), options, training)


def run_with(
    model: nn.Module,
    options: argparse.Namespace,
    training: corpus.Reader,
    others: dict[str, Stateful] | None = None,
) -> Run:
    """Make a run of a sharded model, before its first step.

    :param others: other objects to save with the run, by name
    """
    return Run(
        model,
        make_optimizer(options, model),
        ShardedGradScaler(enabled=options.precision == "fp16"),
        Batches(training),
        Schedule(
            options.lr,
            options.steps,
            options.warmup,
            options.schedule,
            options.lr_end,
        ),
        options.accumulate,
        options.clip,
        not_finite=NotFinite(options.not_finite),
        others=others or {},
    )


def sharded_model(options: argparse.Namespace, device: torch.device) -> gpt.GPT:
    """Make the GPT, and apply the chosen techniques to it from outside."""
    # With the same seed, every rank draws the same initial values. (`shard` would copy
    # rank 0's values anyway.)
    torch.manual_seed(options.seed)
    # On the meta device the model has shapes but no memory. `shard` [draws its
    # values](construct.py) unit by unit, so in stage 3 no rank ever holds the whole
    # model.
    with torch.device("meta"):
        model = gpt.GPT(options.config)
    if options.checkpoint != "none":
        reentrant = options.checkpoint == "reentrant"
        checkpoint_module(model, units=gpt.Block, use_reentrant=reentrant)
    policy, mesh = policy_of(options), mesh_of(options, device)
    shard(model, stage=options.stage, mesh=mesh, policy=policy, device=device)
    if options.compile != "none":
        # This compiles what a block computes, but not the hooks that gather the block.
        for block in model.blocks:
            block.compile(backend=options.compile)
    return model


def policy_of(options: argparse.Namespace) -> Policy:
    """The formats of a run. The model returns FP32, because the loss is computed outside of it."""
    if options.precision == "fp32":
        return Policy(offload=options.offload)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[options.precision]
    return Policy(
        param_dtype=dtype, output_dtype=torch.float32, offload=options.offload
    )


def make_optimizer(
    options: argparse.Namespace, model: nn.Module
) -> torch.optim.Optimizer:
    """Make an ordinary optimizer over the model's parameters, without the frozen ones.

    In stages 1 to 3, each parameter is a 1-D slice of a shard by now, and many slices
    are empty. An elementwise optimizer computes the same numbers for a slice as for the
    whole parameter. `foreach=False` updates one slice after the other, so only one
    slice needs temporaries at a time.
    """
    trained = [each for each in model.parameters() if each.requires_grad]
    if options.optimizer == "sgd":
        return torch.optim.SGD(trained, lr=options.lr, foreach=False)
    return torch.optim.AdamW(trained, lr=options.lr, foreach=False)


def setup_of(options: argparse.Namespace, world_size: int, text: int) -> Setup:
    """Describe a run for [the forecast](forecast.py).

    :param text: the bytes of text on a rank
    """
    return Setup(
        config=options.config,
        world_size=world_size,
        batch=options.batch,
        accumulate=options.accumulate,
        optimizer=options.optimizer,
        text=text,
        stage=options.stage,
        copies=1 if options.mesh is None else options.mesh.copies,
        policy=policy_of(options),
        checkpointed=options.checkpoint != "none",
        clipped=options.clip is not None,
        compiled=options.compile != "none",
        watched=options.not_finite != "continue",
    )


# sidelit: depth Models that the library refuses, or for which there is no memory.


@contextmanager
def mistakes() -> Iterator[None]:
    """A block in which a `ValueError` of the library, or a lack of memory, becomes a message."""
    try:
        yield
    except ValueError as refusal:
        raise Mistake(str(refusal)) from refusal
    except torch.OutOfMemoryError as refusal:
        raise OwnMistake(
            "there is too little memory for the model; --plan says how much it takes"
        ) from refusal
