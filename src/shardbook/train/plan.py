r"""# Planning and assembling a run

> The options decide the parts of a run, and how many bytes a rank will store and send.

A run that needs too much memory fails, perhaps after hours in a queue. With `--plan`
the program computes the bytes that a rank will store and send, and compares them with
the free memory:

```sh
python -m shardbook.train --plan --ranks 8 --layers 24 --width 1024 --heads 16 --context 1024
```

The other options are those of the run. Without `--plan` they make [the parts of the
run](#module/the-parts-of-a-run), such as its model and its optimizer. Two parts have a
section each, [the learning-rate schedule](#module/the-learning-rate-schedule) and [the
position in the text](#module/the-position-of-a-run).

[The forecast](forecast.py) computes exactly the bytes that are stored between steps and
the bytes that are sent. [The planner](planner.py) computes an upper bound for the bytes
that a step adds. A run may stay below this bound, because gradients, gathered units and
activations reach their largest sizes at different moments. For two cases without a
bound in the planner, the plan adds one:

- In 16 bits, activations are smaller than in FP32. The plan counts them as FP32.
- With several micro-batches, the mean gradient of the earlier ones is stored while a
  backward pass collects the next gradients. In stages 0 and 1 both exist when the
  backward pass ends.

The sum is compared with the free memory. On a GPU this is the free memory of the GPU.
On a CPU it is the available memory of the system, divided by the ranks on this machine.
With `--memory 80` you plan for another machine, with 80 GB for each rank. With
`--offload` on a GPU, the part on the host is compared with the host's memory.

The program returns 0 if the run fits, and 1 if it does not. If [the options are
wrong](command.py), it returns 2. So a script can start a job
only if it fits:

```sh
python -m shardbook.train --config run.toml --plan --ranks 8 --memory 80 && sbatch run.sh
```

The plan does not include Python and PyTorch themselves (about 220 MB for each process),
temporaries inside one operation, buffers of the communication backend, and the
fragmentation of an allocator. On a GPU and with `--compile`, other tensors are saved for
the backward pass than on a CPU, so the activations are an estimate there.

:notation $\eta$: `peak`, the learning rate after the warm-up
:notation $t$: `number`, the step, counted from 0
:notation $W$: `warmup`, the number of steps in which the rate grows
:notation $T$: `steps`, the number of steps in the run
:notation $f$: `end`, the part of $\eta$ that the last step has
:notation $x$: how far the run is after the warm-up, from 0 to 1
:notation $B$: `batch_size`, the number of windows that one rank reads at a time
:notation $N_d$: `world_size`, the number of ranks that read the text
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from shardbook.checkpointing.checkpointing import checkpoint_module
from shardbook.command import Mistake, OwnMistake
from shardbook.models import corpus, gpt
from shardbook.models.corpus import Reader
from shardbook.planning.forecast import Setup, forecast, total
from shardbook.planning.planner import activations, layouts_of, own_bytes
from shardbook.precision.loss_scaling import ShardedGradScaler
from shardbook.state.run_state import Stateful
from shardbook.train.not_finite import NotFinite
from shardbook.train.ranks import choose_device, mesh_of, number, refuse_unfit_shape
from shardbook.train.text import fingerprint
from shardbook.zero.model import shard
from shardbook.zero.policy import Policy

__all__ = [
    "Batches",
    "Plan",
    "Run",
    "Schedule",
    "assemble",
    "make_optimizer",
    "mistakes",
    "plan",
    "plan_figures",
    "policy_of",
    "refuse_too_large",
    "setup_of",
    "table",
]


@dataclass(frozen=True, slots=True)
class Plan:
    """The bytes of the rank that stores or sends the most.

    :param steady: the bytes that are stored between steps, by term
    :param extra: the bytes that a step adds at most, by kind
    :param sent: the bytes that are sent in one step
    :param host: the stored bytes that are on the host; 0 if the host is the device
    :param room: the free memory for a rank; `None` if unknown
    :param host_room: the free memory on the host for a rank; `None` if unknown or if
        the host is the device
    """

    steady: dict[str, int]
    extra: dict[str, int]
    sent: int
    host: int
    room: int | None
    host_room: int | None

    @property
    def most(self) -> int:
        """The largest number of bytes that a step can store."""
        return sum(self.steady.values()) + sum(self.extra.values())

    @property
    def fits(self) -> bool | None:
        """Whether the run fits; `None` if the free memory is unknown."""
        pairs = [(self.most - self.host, self.room), (self.host, self.host_room)]
        known = [need <= room for need, room in pairs if room is not None]
        return all(known) if known else None


def plan(options: argparse.Namespace) -> tuple[Plan, Setup]:
    """Make the plan of a run without starting it, and return its setup, too."""
    alone = "1" if options.mesh is None else str(options.mesh.size)
    ranks = options.ranks or number("WORLD_SIZE", least=1, default=alone)
    refuse_unfit_shape(options, ranks)
    setup = setup_of(options, ranks, text_bytes(options))
    # Ranks differ in their padding, and in the bytes that gloo sends for a small tensor.
    forecasts = [forecast(setup, rank) for rank in sample_of(ranks)]
    layouts = layouts_of(setup.config, setup.sharing, setup.policy, setup.copies)
    own = own_bytes(
        layouts,
        setup.stage,
        setup.optimizer,
        activations(setup.config, setup.batch, setup.checkpointed),
        setup.policy,
        setup.copies,
    )
    kinds = total(layouts, setup.stage, setup.policy)
    # In stages 0 and 1 the mean gradient of earlier micro-batches is stored as well.
    # From stage 2 on it takes the place of the gradients that the planner counts.
    waits = setup.accumulate > 1 and setup.stage < 2
    mean = 4 * sum(each.shard_numel if setup.stage else each.padded for each in layouts)
    gradients = kinds.gradients + kinds.gradients_on_host
    most = max(forecasts, key=lambda one: sum(one.steady.values()))
    room, host_room = rooms(options, ranks)
    on_host = setup.policy.offload and device_kind(options) != "cpu"
    made = Plan(
        steady=most.steady,
        extra={
            "gradients": gradients + mean * waits,
            "in flight": own.in_flight or 0,
            "activations": own.activations or 0,
        },
        sent=max(one.sent for one in forecasts),
        host=(most.host + kinds.gradients_on_host + mean * waits) * on_host,
        room=room,
        host_room=host_room,
    )
    return made, setup


def sample_of(ranks: int) -> list[int]:
    """The ranks that a plan computes: all, or if they are many, the first 32 and the last."""
    return [*range(min(ranks, 32)), *([ranks - 1] if ranks > 32 else [])]


def text_bytes(options: argparse.Namespace) -> int:
    """The bytes of text on a rank: the whole book, or nothing if files are mapped."""
    mapped = options.data is not None or options.tokenizer is not None
    return 0 if mapped else len(corpus.read())


def rooms(options: argparse.Namespace, ranks: int) -> tuple[int | None, int | None]:
    """The free memory for one rank on its device, and on the host if the device is a GPU."""
    if options.memory is not None:
        # The plan is for another machine, and the memory of its host is unknown.
        return round(options.memory * 1e9), None
    here = number("LOCAL_WORLD_SIZE", least=1, default=str(ranks))
    host = available()
    share = None if host is None else host // here
    if device_kind(options) == "cpu":
        return share, None
    free, _ = torch.cuda.mem_get_info()
    # If there are more ranks than GPUs, several ranks share one.
    return free // -(-here // torch.cuda.device_count()), share


def device_kind(options: argparse.Namespace) -> str:
    """The kind of device. For another machine it is a GPU, unless `--device` says otherwise."""
    if options.memory is not None:
        return "cpu" if options.device == "cpu" else "cuda"
    return choose_device(options)[0].type


def available() -> int | None:
    """The available memory of this system as Linux counts it; `None` on other systems."""
    file = Path("/proc/meminfo")
    if not file.exists():
        return None
    lines = dict(line.split(":") for line in file.read_text().splitlines())
    free = int(lines["MemAvailable"].split()[0]) * 1024
    return min([free, *limits()])


def table(options: argparse.Namespace, made: Plan, setup: Setup) -> str:
    """Format the plan as a table."""
    rows = [
        *((name, value, "between steps") for name, value in made.steady.items()),
        *((name, value, "in a step, at most") for name, value in made.extra.items()),
        ("together, at most", made.most, ""),
    ]
    if made.host:
        rows.append(("of it on the host", made.host, ""))
    if made.room is not None:
        rows.append(("room", made.room, "what one rank may take"))
    if made.host_room is not None:
        rows.append(("room on the host", made.host_room, "what one rank may take"))
    rows += [
        ("sent in a step", made.sent, ""),
        (f"sent in {options.steps:,} steps", made.sent * options.steps, ""),
    ]
    config = setup.config
    heading = (
        f"GPT of {config.layers} x {config.width}, {setup.world_size} "
        f"rank{'s' * (setup.world_size > 1)}, stage {setup.stage}: the bytes of one rank"
    )
    lines = [f"{name:<26}{value:>20,}  {note}".rstrip() for name, value, note in rows]
    return "\n".join([heading, *lines, verdict(made)])


def verdict(made: Plan) -> str:
    """The last line: whether the run fits, and otherwise what to change."""
    if made.fits is None:
        return "Whether it fits is not known here: say with --memory how much there is."
    if made.fits:
        return "It fits."
    return (
        "It does not fit: take more ranks, a higher stage, --checkpoint non-reentrant, "
        "--offload or a smaller --batch."
    )


# sidelit: depth Models without memory, limits that a container sets, and the figures as a file.


def refuse_too_large(options: argparse.Namespace, nbytes: int) -> None:
    """Refuse a model whose parameters alone need more memory than a rank has on this host.

    A GPU answers for itself when [the model is made](plan.py#mistakes). A host may
    promise memory that it does not have, and then end the process.

    :param nbytes: the bytes of all parameters
    :raises OwnMistake: naming both numbers
    """
    alone = "1" if options.mesh is None else str(options.mesh.size)
    ranks = number("WORLD_SIZE", least=1, default=alone)
    sharing = ranks if options.mesh is None else options.mesh.ranks
    need = nbytes // sharing if options.stage == 3 else nbytes
    room = available()
    if room is None or not (options.offload or choose_device(options)[0].type == "cpu"):
        return
    room //= number("LOCAL_WORLD_SIZE", least=1, default=str(ranks))
    if need > room:
        raise OwnMistake(
            f"the parameters alone take {need / 1e9:,.1f} GB on a rank, and this machine has "
            f"{room / 1e9:,.1f} GB for it; make the model smaller, or take more ranks and --stage 3"
        )


def limits() -> list[int]:
    """The free memory of a container, by both versions of Linux's control groups."""
    found = []
    for most, used in CONTROL_GROUPS:
        if most.exists() and used.exists():
            limit = most.read_text().strip()
            if limit != "max":
                found.append(max(0, int(limit) - int(used.read_text())))
    return found


ROOT = Path("/sys/fs/cgroup")
CONTROL_GROUPS = [
    (ROOT / "memory.max", ROOT / "memory.current"),
    (ROOT / "memory/memory.limit_in_bytes", ROOT / "memory/memory.usage_in_bytes"),
]


def plan_figures(
    options: argparse.Namespace, made: Plan, setup: Setup
) -> dict[str, Any]:
    """The plan as a dictionary, for `--json`."""
    return {
        "ranks": setup.world_size,
        "stage": setup.stage,
        "steady": sum(made.steady.values()),
        "steady_terms": made.steady,
        "extra_terms": made.extra,
        "step": made.most,
        "host": made.host,
        "sent": made.sent,
        "steps": options.steps,
        "room": made.room,
        "host_room": made.host_room,
        "fits": made.fits,
    }


# sidelit: core


# ## The parts of a run
#
# > A run consists of a model, an optimizer, a scaler, a reader of text and a schedule,
# > made from the options.
#
# A [step](loop.py#step) reads and changes seven objects. If [the state of all seven is
# saved](saving.py) and restored later, the next step is the same as without the break:
#
# | part of the run | what it remembers |
# |---|---|
# | `model` | the parameters |
# | `optimizer` | its moments and step counters |
# | `scaler` | the loss scale |
# | `batches` | [the position](plan.py#module/the-position-of-a-run) in the text |
# | `schedule` | nothing: [the rate](#module/the-learning-rate-schedule) follows from the step's number |
# | `number` | how many steps were done |
# | `not_finite` | how many steps [were skipped](not_finite.py) |
#
# The GPT draws no random numbers while it trains. For a model with dropout, the states of
# the rank's random number generators are saved, too.


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


# sidelit: core


# ## The learning-rate schedule
#
# > The learning rate rises during the warm-up, and then stays or falls along a cosine.
#
# With a peak of 0.001 and a warm-up of 200 steps, the first step has the learning rate
# 0.000005, the 100th has 0.0005, and the 200th has 0.001. The warm-up helps because
# AdamW divides by averages of the gradients. At the beginning these averages rest on a
# few steps, and a full step may be far too long.
#
# Towards the end of a run, smaller steps find a lower loss. With `--schedule cosine` the
# rate falls slowly at first, fast in the middle, and slowly again:
#
# $$\eta_t = \eta \cdot \frac{t + 1}{W} \quad (t < W), \qquad
# \eta_t = \eta \Bigl( f + (1 - f)\,\frac{1 + \cos \pi x}{2} \Bigr), \quad
# x = \frac{t - W}{T - 1 - W}$$
#
# The rate depends only on the step's number and the options. So a schedule has no state:
# a run that is resumed at step 700 has the rate of step 700.


@dataclass(frozen=True, slots=True)
class Schedule:
    """The learning rate of every step.

    >>> schedule = Schedule(peak=1.0, steps=7, warmup=2, shape="cosine", end=0.1)
    >>> [round(schedule.at(number), 3) for number in range(7)]
    [0.5, 1.0, 1.0, 0.868, 0.55, 0.232, 0.1]

    :param shape: `"cosine"`, or `"constant"`, which stays at the peak
    """

    peak: float
    steps: int
    warmup: int = 0
    shape: str = "constant"
    end: float = 0.1

    def at(self, number: int) -> float:
        """The learning rate of the step with this number."""
        if number < self.warmup:
            # Not `number`: the first step would have the rate 0, and train nothing.
            return self.peak * (number + 1) / self.warmup
        if self.shape == "constant":
            return self.peak
        done = (number - self.warmup) / max(1, self.steps - 1 - self.warmup)
        fallen = self.end + (1 - self.end) * (1 + math.cos(math.pi * min(done, 1))) / 2
        return self.peak * fallen

    def apply(self, optimizer: torch.optim.Optimizer, number: int) -> float:
        """Set the optimizer's learning rate for a step."""
        rate = self.at(number)
        for group in optimizer.param_groups:
            group["lr"] = rate
        return rate


# ## The position of a run in its text
#
# > An epoch and a window say which windows were read, and do not depend on the number of
# > ranks.
#
# [The reader](corpus.py#Reader) numbers its batches. The windows of a batch are divided
# among all ranks, so batch 12 of 2 ranks and batch 12 of 4 ranks are different windows.
# Suppose a run is saved on 2 ranks and resumed on 4. Then it needs a position that does
# not depend on their number: an *epoch*, which counts how often the text was read to its
# end, and a *window*, which counts the windows that were read since.
#
# | | 2 ranks, 3 windows each | goes on with 4 ranks |
# |---|---|---|
# | read in 5 steps | windows 0 to 29 | |
# | position | epoch 0, window 30 | epoch 0, window 30 |
# | the next step reads | windows 30 to 35 | windows 30 to 41 |
#
# No window is read twice, and none is left out. If a step has the same number of windows
# as before, the run reads exactly the windows that it would have read without the break.
#
# ```python
# saved = batches.state_dict()
# batches.load_state_dict(saved)
# ```


class Batches:
    """This rank's batches, one after the other, without end.

    :param reader: the source of the batches
    """

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.epoch = 0
        self.window = 0
        self.text = fingerprint(reader.text)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self

    def __next__(self) -> tuple[Tensor, Tensor]:
        # All ranks together read $N_d B$ windows. If fewer are left at the end of the
        # text, they are skipped, because every rank needs a whole batch.
        share = self.reader.batch_size * self.reader.world_size
        if self.window + share > self.reader.windows:
            self.epoch, self.window = self.epoch + 1, 0
        batch = self.reader.at(self.epoch, self.window)
        self.window += share
        return batch

    def state_dict(self) -> dict[str, Any]:
        """The position, with the text and the order to which it belongs. It is the same on every rank."""
        return {
            "epoch": self.epoch,
            "window": self.window,
            "context": self.reader.context,
            "seed": self.reader.seed,
            "text": self.text,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a position, even one that was saved with another number of ranks.

        :raises ValueError: if the position belongs to another text, or to another order
            of the windows
        """
        own = self.state_dict()
        for name in ("text", "context", "seed"):
            if state[name] != own[name]:
                raise ValueError(
                    f"the position was saved with {name} {state[name]}, but this run "
                    f"has {name} {own[name]}, so it would read other windows"
                )
        self.epoch, self.window = state["epoch"], state["window"]
