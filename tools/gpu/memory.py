"""Is the peak of a training step the one that the training program plans?

For ten configurations `python -m shardbook.train --plan` is made, and a step of that program is taken. CUDA's
allocator tells the most bytes that were allocated in it. For stage 3 in FP32 the program forecasts the peak.
For all others it has an upper bound only, and the row says so.

cuBLAS allocates its workspaces with the same allocator, and no plan knows them. So they are measured before,
shown in a row of their own, and left out of every peak. Three figures tell why a peak and a plan differ:

- `stored` compares what is allocated between the steps with the plan.
- `counted` compares the library's own meter with the plan. It counts storages, in such a step on this device.
- `requested` is the peak without the bytes with which the allocator rounds a size up. What it has beyond
  `counted` are temporaries inside of operations.
"""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tools.gpu.kit import Kit
from tools.gpu.together import take_device, together

from shardbook.planning.forecast import Meter, forecast
from shardbook.train.loop import step
from shardbook.train.options import parse
from shardbook.train.plan import assemble, plan
from shardbook.train.text import prepare, readers

CLOSE = 0.02
# The model of one rank, that of two ranks on one card, and that of a rehearsal.
ALONE = "--layers 12 --width 1536 --heads 12 --context 1024 --batch 4"
SHARED = "--layers 8 --width 1024 --heads 8 --context 512 --batch 4"
SMALL = "--layers 3 --width 64 --heads 2 --context 64 --batch 2"


@dataclass(frozen=True, slots=True)
class Case:
    """A configuration of the training program."""

    ranks: int
    stage: int
    precision: str = "fp32"
    checkpoint: bool = False
    offload: bool = False

    @property
    def name(self) -> str:
        techniques = ["checkpoint"] * self.checkpoint + ["offload"] * self.offload
        shared = f"{self.ranks} rank{'s' * (self.ranks > 1)}"
        return ", ".join([shared, f"stage {self.stage}", self.precision, *techniques])

    def words(self, model: str, device: str) -> list[str]:
        """The command line."""
        kept = "non-reentrant" if self.checkpoint else "none"
        words = (
            f"{model} --stage {self.stage} --precision {self.precision} --checkpoint {kept} --device {device}"
        )
        return [*words.split(), *["--offload"] * self.offload]


CASES = [
    Case(1, 3),
    Case(1, 3, "bf16"),
    Case(1, 3, "bf16", checkpoint=True),
    Case(1, 0),
    Case(1, 3, checkpoint=True),
    Case(1, 2, "bf16"),
    Case(1, 3, "bf16", offload=True),
    Case(2, 3),
    Case(2, 1, "bf16"),
    Case(2, 2, "bf16", checkpoint=True, offload=True),
]


def run(kit: Kit) -> None:
    """One process takes the steps of all cases of one rank, and two take the others."""
    # The two ranks need time as well, also to try what connects them.
    for ranks, least, share in ((1, 20.0, 0.55), (2, 15.0, 0.45)):
        cases = [case for case in CASES if case.ranks == ranks]
        name = "the cases of one rank" if ranks == 1 else "the cases of two ranks"
        if kit.time_for(1.0 if kit.quick else least, name):
            kit.attempt(name, partial(compare, kit, ranks, cases, share * kit.left))


def compare(kit: Kit, ranks: int, cases: list[Case], seconds: float) -> None:
    """Take the steps of some cases, and write a row for each."""
    model = SMALL if kit.device == "cpu" or kit.quick else ALONE if ranks == 1 else SHARED
    commands = [case.words(model, kit.device) for case in cases]
    if ranks == 1:
        found = kit.ranks(1, steps, commands, seconds)
        base, peaks = found[0]
        reserved = {"reserved_at_most": max(one.get("reserved", 0) for one in peaks)} if base else {}
        kit.shows("workspaces of cuBLAS, in no peak below", bytes=base, **reserved, model=model)
    else:
        two = replace(together(kit), count=ranks)
        found = two.call(steps, commands, seconds, timeout=kit.left)
        kit.shows("what two ranks exchange with", two.why, backend=two.backend, model=model)
    for number, (case, words) in enumerate(zip(cases, commands, strict=True)):
        taken = [peaks[number] for _, peaks in found if number < len(peaks)]
        if taken:
            errors = [one for one in taken if "error" in one]
            tell(kit, case, planned(words, ranks), *errors[:1] or [max(taken, key=lambda one: one["peak"])])
        else:
            # No time was left for it on the ranks.
            kit.time_for(float("inf"), case.name)


def tell(kit: Kit, case: Case, expected: Planned, found: dict[str, Any]) -> None:
    """A row: whether the peak is close to the plan, and if not, what may be the reason."""
    if "error" in found:
        kit.holds(case.name, False, why=found["error"])
        return

    def percent(value: float, of: float) -> float:
        return round(100 * (value / of - 1), 2)

    figures = {
        "planned": expected.peak,
        "peak": found["peak"],
        "percent": percent(found["peak"], expected.peak),
    }
    figures["stored_percent"] = percent(found["stored"], expected.stored)
    for name in ("counted", "requested"):
        if name in found:
            figures[f"{name}_percent"] = percent(found[name], expected.peak)
    over = found["peak"] / expected.peak - 1
    if expected.exact:
        kit.holds(case.name, abs(over) <= CLOSE, **figures)
    else:
        bound = "the plan is an upper bound: the program does not forecast this peak"
        kit.holds(case.name, over <= CLOSE, why=bound, **figures)


@dataclass(frozen=True, slots=True)
class Planned:
    """What the program plans for the device of the rank that stores the most, in bytes."""

    peak: int
    stored: int
    exact: bool


def planned(words: list[str], ranks: int) -> Planned:
    """The forecast of the peak, or where there is none the upper bound of the plan."""
    # With a size of the memory the plan is for a machine that need not be this one.
    made, setup = plan(parse([*words, "--plan", "--ranks", str(ranks), "--memory", "80"]))
    rank, elsewhere = forecast(setup, 0), made.host > 0
    stored = sum(rank.steady.values()) - rank.host * elsewhere
    if rank.peak is None:
        return Planned(made.most - made.host, stored, exact=False)
    return Planned(max(forecast(setup, each).peak or 0 for each in range(ranks)), stored, exact=True)


# --- on a rank ---


def steps(commands: list[list[str]], seconds: float) -> tuple[int, list[dict[str, Any]]]:
    """Take the steps of each command until the time is up; the bytes of workspaces, and what each showed."""
    started, found = time.monotonic(), list[dict[str, Any]]()
    place = take_device(parse(commands[0]).device)
    base = workspaces(place)
    for words in commands:
        if found and not all_have_time(started + seconds - time.monotonic(), place):
            break
        found.append(attempt(partial(watched, words, place, base)))
        release(place)
    return base, found


def all_have_time(left: float, place: torch.device) -> bool:
    """Whether this rank and all others have time left."""
    least = torch.tensor(left, device=place)
    if dist.get_world_size() > 1:
        dist.all_reduce(least, dist.ReduceOp.MIN)
    return least.item() > 0


def attempt(function: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a function returns, or its error in one line."""
    try:
        return function()
    except Exception as error:
        traceback.print_exc()
        # The error's own traceback refers to the tensors of the case, and so it is not kept.
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}


def workspaces(place: torch.device) -> int:
    """Let the libraries of CUDA allocate what they keep, and return its bytes."""
    for dtype in (torch.float32, torch.bfloat16):
        rows = torch.ones(256, 256, dtype=dtype, device=place, requires_grad=True)
        F.linear(F.layer_norm(rows, (256,)), rows, rows[0]).square().mean().backward()
    del rows
    release(place)
    return torch.cuda.memory_allocated() if place.type == "cuda" else 0


def release(place: torch.device) -> None:
    """Free what nothing refers to any more."""
    gc.collect()
    if place.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def watched(words: list[str], place: torch.device, base: int) -> dict[str, Any]:
    """Take three steps: the first makes the optimizer's state, and the others are watched."""
    options = parse(words)
    prepare(options)
    training, _unseen = readers(options, place)
    run = assemble(options, training, place)
    step(run)
    release(place)
    found = allocations(partial(step, run), base) if place.type == "cuda" else {}
    with OnOneDevice(place) as meter:
        step(run)
    # A CPU's allocator tells nothing.
    return {"peak": meter.peak, "stored": meter.settled(), "counted": meter.peak, **found}


def allocations(function: Callable[[], object], base: int) -> dict[str, int]:
    """What CUDA's allocator counts while a function runs."""
    torch.cuda.reset_peak_memory_stats()
    function()
    torch.cuda.synchronize()
    told = torch.cuda.memory_stats()
    return {
        "peak": told["allocated_bytes.all.peak"] - base,
        "requested": told["requested_bytes.all.peak"] - base,
        "reserved": told["reserved_bytes.all.peak"],
        "stored": told["allocated_bytes.all.current"] - base,
    }


class OnOneDevice(Meter):
    """The library's meter, without the storages on other devices."""

    def __init__(self, place: torch.device) -> None:
        super().__init__()
        self.place = place

    def now(self) -> int:
        return sum(each.nbytes() for each in self.storages.values() if each.device == self.place)
