r"""# Options and ranks

> What the command line may say, and how a process learns which rank it is.

`torchrun` starts one process for each rank and tells it by environment variables who it is: `RANK` of
`WORLD_SIZE`, and where the others can be met. This chapter reads the options and these variables before
anything else happens. What is wrong [is said in one sentence](command.py).
"""

# sidelit: hide
from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from shardbook.command import Mistake, OwnMistake, Parser
from shardbook.gpt import Config

__all__ = ["parse", "start"]
# sidelit: show

LAUNCH = "torchrun --standalone --nproc-per-node 2 -m shardbook.train"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options, checked, with the model's shape as `options.config`.

    :raises Mistake: an option is unknown, or its value makes no sense
    """
    options = parser().parse_args(arguments)
    for name in ("batch", "accumulate"):
        if getattr(options, name) < 1:
            raise Mistake(
                f"--{name} is {getattr(options, name)}, but it must be at least 1"
            )
    if options.steps < 2:
        raise Mistake(
            f"--steps is {options.steps}, but it must be at least 2: the first makes the optimizer's state, "
            "and the last is measured"
        )
    if not 0 < options.lr < float("inf"):
        raise Mistake(f"--lr is {options.lr}, but it must be a positive number")
    if not 0 <= options.seed < 2**63:
        raise Mistake(f"--seed is {options.seed}, but it must be from 0 to 2**63 - 1")
    # Rank 0 writes the file, and the folder need not exist on other machines.
    if options.json is not None and os.environ.get("RANK", "0") == "0":
        if options.json.is_dir():
            raise Mistake(f"--json {options.json} is a folder; name a file")
        if not options.json.parent.is_dir():
            raise Mistake(
                f"--json {options.json}: there is no folder {options.json.parent}; make it first"
            )
    try:
        options.config = Config(
            layers=options.layers,
            width=options.width,
            heads=options.heads,
            context=options.context,
        )
    except ValueError as refusal:
        raise Mistake(str(refusal)) from refusal
    return options


def parser() -> argparse.ArgumentParser:
    """Every option with its default."""
    result = Parser(
        prog="shardbook.train",
        description="Train a small GPT on the bytes of a book, its parameters, gradients and optimizer state "
        "sharded over all ranks as the stage of ZeRO says, and compare what was sent and stored with the "
        "formulas.",
        epilog=f"Start it with: {LAUNCH} --steps 200",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = result.add_argument
    add("--steps", type=int, default=200, help="steps of the optimizer, at least 2")
    add("--layers", type=int, default=4, help="blocks of the GPT")
    add(
        "--width",
        type=int,
        default=128,
        help="values for each position, a multiple of --heads",
    )
    add("--heads", type=int, default=4, help="attention heads in a block")
    add("--context", type=int, default=128, help="bytes that the model sees at once")
    add(
        "--batch",
        type=int,
        default=8,
        help="windows of text for one rank in one micro-batch",
    )
    add(
        "--accumulate",
        type=int,
        default=1,
        help="micro-batches whose gradients add up to one step",
    )
    add(
        "--lr",
        type=float,
        default=1e-3,
        help="learning rate; sgd wants a larger one, such as 0.5",
    )
    add(
        "--optimizer",
        choices=["adamw", "sgd"],
        default="adamw",
        help="sgd is plain, without momentum",
    )
    add(
        "--stage",
        type=int,
        choices=[0, 1, 2, 3],
        default=3,
        help="what is split over the ranks: 0 nothing, 1 the optimizer's state, 2 the gradients too, "
        "3 the parameters too",
    )
    add(
        "--precision",
        choices=["fp32", "bf16", "fp16"],
        default="fp32",
        help="the format that modules compute with; the optimizer's stays fp32, and fp16 scales the loss",
    )
    add(
        "--checkpoint",
        choices=["none", "reentrant", "non-reentrant"],
        default="none",
        help="how the blocks' activations are computed again in the backward pass",
    )
    add(
        "--offload",
        action="store_true",
        help="keep parameters, gradients and the optimizer's state in the host's memory",
    )
    add(
        "--seed",
        type=int,
        default=0,
        help="decides the first weights and the order of the text",
    )
    add(
        "--device",
        choices=["auto", "cpu", "cuda"],
        default="auto",
        help="auto: a GPU for each rank, else the CPU",
    )
    add(
        "--backend",
        choices=["auto", "gloo", "nccl"],
        default="auto",
        help="gloo lets ranks share one GPU",
    )
    add(
        "--json",
        type=Path,
        metavar="FILE",
        default=None,
        help="also write the table's figures to this file",
    )
    return result


@contextmanager
def start(options: argparse.Namespace) -> Iterator[torch.device]:
    """Join the process group, and leave it at the end.

    :returns: the device of this rank
    :raises Mistake: the environment names no possible rank, or there is no such device
    """
    launched = "RANK" in os.environ or "WORLD_SIZE" in os.environ
    rank, world_size = environment() if launched else (0, 1)
    device, backend = choose_device(options)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # A process that was started alone meets nobody, so its meeting place is in its own memory.
    store = None if launched else dist.HashStore()  # type: ignore[attr-defined]
    # If one rank fails, the others should not wait for it as long as the backend would by default.
    dist.init_process_group(
        backend,
        rank=rank,
        world_size=world_size,
        store=store,
        timeout=timedelta(minutes=5),
    )
    try:
        yield device
    finally:
        dist.destroy_process_group()


def environment() -> tuple[int, int]:
    """This process's rank and the world size, as `torchrun` has set them."""
    world_size = number("WORLD_SIZE", least=1)
    rank = number("RANK", least=0)
    if rank >= world_size:
        raise OwnMistake(
            f"RANK is {rank}, but WORLD_SIZE is {world_size}, so the last rank is {world_size - 1}"
        )
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if name not in os.environ:
            raise OwnMistake(
                f"{name} is not set, so the ranks cannot meet; start them with {LAUNCH}"
            )
    return rank, world_size


def number(name: str, *, least: int, default: str | None = None) -> int:
    """A whole number from the environment."""
    value = os.environ.get(name, default)
    if value is None:
        raise OwnMistake(f"{name} is not set; start the ranks with {LAUNCH}")
    if not value.isdecimal() or int(value) < least:
        raise OwnMistake(
            f"{name} is {value!r}, but it must be a whole number of at least {least}; "
            f"start the ranks with {LAUNCH}"
        )
    return int(value)


def choose_device(options: argparse.Namespace) -> tuple[torch.device, str]:
    """The device of this rank and the backend that connects such devices."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    here = number("LOCAL_WORLD_SIZE", least=1, default="1")
    kind = options.device
    if kind == "auto":
        kind = "cuda" if gpus >= here else "cpu"
    backend = options.backend
    if backend == "auto":
        backend = "nccl" if kind == "cuda" else "gloo"
    if kind == "cpu":
        if backend == "nccl":
            raise Mistake(
                "--backend nccl connects GPUs only; use --backend gloo on the CPU"
            )
        return torch.device("cpu"), backend
    if gpus == 0:
        raise OwnMistake(
            "--device cuda: torch sees no CUDA device here; use --device cpu"
        )
    if backend == "nccl" and gpus < here:
        raise OwnMistake(
            f"{here} ranks were started on this machine, but it has {gpus} GPUs and nccl wants one for each; "
            "start fewer ranks, or let them share with --backend gloo"
        )
    return torch.device(
        "cuda", number("LOCAL_RANK", least=0, default="0") % gpus
    ), backend
