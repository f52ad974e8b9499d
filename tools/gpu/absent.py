"""What the ranks are told of one that differs from them, comes late, or dies.

The jobs of `nccl.py` in which ranks do not all do the same. On NCCL a rank that waits does not block its
thread: a disagreement is raised at the next exchange or before the optimizer steps, and a rank that died in
the middle of an exchange is named when the time of `standstill_after` is over.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from tools.gpu.kit import Kit
from tools.gpu.together import Found, Jobs, Notes, Over, Together, agreed, take_device
from torch import Tensor, nn
from torch.distributed.distributed_c10d import _get_default_store

from book.programs import Training
from book.toys import batch, chain, error
from shardbook import Disagreement, shard, standstill_after
from shardbook.foundations.collectives import ledger, world
from shardbook.zero.scheduler import scheduler_of

STANDSTILL = 1.0  # seconds; the default is a minute
WORDS = re.compile("has shape|is about to gather")  # what a disagreement says


def loss_there(model: nn.Module, rank: int, number: int) -> Tensor:
    """The loss of a micro-batch on the device of the model."""
    device = next(model.parameters()).device
    tokens, targets = batch(rank, number)
    return error(model, (tokens.to(device), targets.to(device)))


def models(device: torch.device) -> dict[str, Any]:
    """One rank has a wider layer. What it is refused with, and the exchanges until then."""
    rank, size = world()
    model: Any = chain()
    if rank == size - 1:
        model[1][2] = nn.Linear(13, 9)
    with ledger() as book:
        said = refused(lambda: shard(model.to(device)))
    # The group still works.
    loss_there(shard(chain().to(device)), rank, 0).backward()
    return {"said": said, "exchanges": len(book.calls)}


def order(device: torch.device) -> None:
    """One rank leaves out a unit. What every rank is refused with, before its optimizer can step."""
    Training.device = device
    training = Training(3)
    for _ in range(3):
        training.step()
    rank, size = world()
    if rank == size - 1:
        training.model.route = [0, 1, 3]

    def step() -> None:
        training.loss().backward()
        # The device waits now, and another thread finds out.
        monitor = scheduler_of(training.model).order.monitor
        assert monitor is not None
        monitor.join(15)
        training.optimizer.step()

    raise Over({"said": refused(step)})


def refused(act: Callable[[], Any]) -> str:
    """The sentence of the disagreement with which a call is refused."""
    try:
        act()
    except Disagreement as error:
        return str(error)
    return "no disagreement was raised"


def tell_of_a_difference(name: str, kit: Kit, ranks: Together, found: Found) -> None:
    """Whether all ranks have raised the same sentence, before anything was sent."""
    said = [value["said"] for value in found.values.values()]
    begun = sum(value.get("exchanges", 0) for value in found.values.values())
    truth = agreed(found.values, ranks.count) and WORDS.search(said[0]) is not None and not begun
    kit.holds(name, truth, found.why or ("" if truth else " | ".join(said)[:300]), ranks=ranks.count)


# --- Ranks that are late, or die ---


class Log(logging.Handler):
    """What the library logs on this rank, until a sentence comes that is looked for."""

    def __init__(self, pattern: str, act: Callable[[str], None]) -> None:
        super().__init__()
        self.pattern, self.act, self.found = re.compile(pattern, re.DOTALL), act, threading.Event()
        logging.getLogger("shardbook").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        said = record.getMessage()
        if self.pattern.search(said) and not self.found.is_set():
            self.found.set()
            self.act(said)


@contextmanager
def reports() -> Iterator[None]:
    """A block in which a rank reports soon that it waits."""
    standstill_after(STANDSTILL)
    try:
        yield
    finally:
        standstill_after(60)


def late(device: torch.device) -> dict[str, Any]:
    """One rank comes late to a step. What each says about it, and when."""
    rank, size = world()
    Training.device = device
    store: Any = _get_default_store()
    heard: dict[str, Any] = {"said": "", "at": 0.0}
    # The thread of the log has a connection of its own: the rank itself waits for a key meanwhile.
    own = store.clone()

    def hear(said: str) -> None:
        heard.update(said=short(said), at=time.time())
        own.set(f"heard/{rank}", "")

    with reports():
        training = Training(3)
    for _ in range(3):
        training.step()
    log = Log(rf"for rank {size - 1} to .*in next_batch" if rank < size - 1 else "in next_batch", hear)
    begun = time.time()
    if rank == size - 1:
        next_batch([f"heard/{other}" for other in range(size)])
    training.loss().backward()
    log.found.wait(15)
    training.update()
    logging.getLogger("shardbook").removeHandler(log)
    return {**heard, "begun": begun}


def next_batch(keys: list[str]) -> None:
    """A data loader that hangs until the other ranks have complained."""
    _get_default_store().wait(keys, timedelta(seconds=15))


def tell_of_a_late_rank(name: str, kit: Kit, ranks: Together, found: Found) -> None:
    """Whether all ranks have named it after the stated time."""
    said = [value["said"] for value in found.values.values()]
    begun = max((value["begun"] for value in found.values.values()), default=0.0)
    seconds = [round(value["at"] - begun, 2) for value in found.values.values()]
    heard = len(found.values) == ranks.count and all(said)
    truth = heard and min(seconds) >= STANDSTILL * 0.9 and max(seconds) <= STANDSTILL + 4
    why = found.why or ("" if truth else " | ".join(said)[:300])
    kit.holds(name, truth, why, stated=STANDSTILL, seconds=seconds)


# The steps before the death, and whether NCCL's own watchdog is off, which would end the process.
DEATHS = {
    "a dead rank is named in the first step": (0, False),
    "a dead rank is named in an exchange": (3, True),
    "a dead rank, if NCCL's watchdog is on": (3, False),
}


def applies(kit: Kit, name: str) -> bool:
    """Whether a case makes sense on this device.

    Only NCCL has a watchdog. On the late device a thread that waits for the device gets the error of gloo.
    """
    return kit.device == "cuda" or name not in [*DEATHS][1 if kit.device == "late" else 2 :]


def one_dies(_job: str, kind: str, steps: int) -> None:
    """One rank is killed before a step. What the others say, and when."""
    rank, size = world()
    Training.device = take_device(kind)

    def end(said: str) -> None:
        named = f"rank {size - 1} has died" in said
        Notes.current.value({"said": short(said), "named": named, "at": time.time()})
        # A thread may be in an exchange that never ends.
        os._exit(0)

    standstill_after(STANDSTILL)
    training = Training(3)
    for _ in range(steps):
        training.step()
    # What was exchanged until now has arrived on every rank.
    torch.get_device_module(kind).synchronize()
    store = _get_default_store()
    store.set(f"ready/{rank}", "")
    store.wait([f"ready/{other}" for other in range(size)])
    if rank == size - 1:
        Notes.current.value({"at": time.time()})
        os.kill(os.getpid(), signal.SIGKILL)
    log = Log(f"rank {size - 1} has died", end)
    try:
        training.step()
        training.losses[-1].item()
    except Disagreement as error:
        end(str(error))
    except RuntimeError as error:
        # NCCL may refuse another exchange before the library says why the last one does not end.
        log.found.wait(STANDSTILL + 3)
        end(str(error))


def short(said: str) -> str:
    """The beginning and the end of a sentence."""
    return said if len(said) <= 300 else f"{said[:150]} … {said[-150:]}"


def tell_of_a_death(kit: Kit, ranks: Together, name: str) -> None:
    """Whether all others name the rank that died, and after how many seconds."""
    steps, unwatched = DEATHS[name]
    environ = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"} if unwatched else {}
    jobs = Jobs(ranks, one_dies, seconds=15, environ=environ)
    found = jobs.run(["dies"], kit.device, steps, limit=12)["dies"]
    last = ranks.count - 1
    others = [value for number, value in found.values.items() if number < last]
    killed = found.values.get(last, {"at": 0.0})["at"]
    seconds = [round(value["at"] - killed, 2) for value in others]
    named = sum(value["named"] for value in others)
    why = others[0]["said"] if others else found.why
    if "watchdog" in name:
        kit.shows(name, why, named=named, of=last, seconds=seconds)
    else:
        kit.holds(name, named == last and max(seconds) <= STANDSTILL + 4, why, seconds=seconds)
