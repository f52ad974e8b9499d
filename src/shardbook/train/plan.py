r"""# Planning the memory of a run

> `--plan` computes the bytes that a rank will store and send, and compares them with
> the free memory.

```sh
python -m shardbook.train --plan --ranks 8 --layers 24 --width 1024 --heads 16 --context 1024
```

The other options are those of the run. [The forecast](forecast.py) computes exactly the
bytes that are stored between steps and the bytes that are sent. [The
planner](planner.py) computes an upper bound for the bytes that a step adds. A run may
stay below this bound, because gradients, gathered units and activations reach their
largest sizes at different moments. For two cases without a bound in the planner, this
chapter adds one:

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
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from shardbook.command import OwnMistake
from shardbook.models import corpus
from shardbook.planning.forecast import Setup, forecast
from shardbook.planning.planner import activations, layouts_of, own_bytes
from shardbook.planning.policy_bytes import total
from shardbook.train.assemble import setup_of
from shardbook.train.machines import refuse_unfit_shape
from shardbook.train.ranks import choose_device, number

__all__ = ["Plan", "plan", "plan_figures", "refuse_too_large", "table"]


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

    A GPU answers for itself when [the model is made](assemble.py#mistakes). A host may
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
