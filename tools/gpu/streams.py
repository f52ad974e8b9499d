"""Are streams ordered where they must be, and does each wait of the library order something?

Three pieces of evidence, all from small models of `tests/book/programs.py`:

- PyTorch's CUDA sanitizer watches a training step, and reports no two accesses that nothing orders.
- Work on one side is made late, on all streams but the compute stream, on the compute stream, or on one
  rank before each exchange. The numbers stay the same to the bit.
- With one wait of the library left out the numbers differ, or the program fails, or the sanitizer reports
  it. Each wait of `tests/book/waits.py` is left out in turn. What then happens may end a process.

On the late device the schedules of the device take the place of the lateness. A CPU has no streams.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from tools.gpu.kit import BACKENDS, Kit
from tools.gpu.lateness import late, sanitizer, told, without
from tools.gpu.together import Found, Jobs, Together, take_device, together
from torch import Tensor

from book.programs import RUNS, Training
from book.waits import waits_in_the_book
from device.outcomes import outcome_of

# Nothing is late, and the sanitizer watches: tensors, or the storages under them.
WATCHED, STORAGES = "watched", "storages"
ALONE, PAIR = "alone", "pair"
PARALLEL = 3  # processes of one rank that share the device
# Without the wait a program comes out wrong, found on the late device: one rank or two, the program, and
# which side is late. Where two waits read the same, each tries all.
SHOWS = {
    "collectives.py _in_turn(start, tensor, group).wait()": "pair apart first",
    "collectives.py _in_turn(partial(dist.all_reduce, tensor), tensor, group).wait()": (
        "pair 0-evaluated first"
    ),
    "collectives.py work.wait()": "pair 0-evaluated first",
    "collectives.py gathering.wait()": "pair 3-repeated first",
    "collectives.py reducing.wait()": "pair 3-repeated first",
    "collectives.py row.wait()": "pair 0-evaluated first",
    "streams.py now.wait_stream(known[-1])": "alone 3-scattered side, alone 3-scattered compute",
    "streams.py other.wait_stream(now)": "alone 3-scattered side, alone 3-scattered compute",
    "streams.py done.synchronize()": "alone 3-offloaded_low side",
    "offload.py stream.wait_stream(current_stream(device))": "alone resting compute",
    "offload.py self.done.wait(current_stream(self.device))": "alone resting side",
    "offload.py self.done.synchronize()": "alone streamed_low side",
    "offload.py self.done.wait(road(device, 'to the device'))": "alone resting side",
    "offload.py crossing.arrive()": "alone streamed_low side",
    "loss_scaling.py largest.wait()": "pair 3-scaled last",
    "residual.py piece.back(self.device, ACTIVATIONS).wait()": "alone resting side",
    "residual.py all_gather(full, piece, group=self.group).wait()": "pair parted first",
    "streaming.py crossing.arrive()": "alone streamed_low side",
    "streaming.py to_device(buffer, self.streamer.device, 'buffers').wait()": "alone streamed side",
    "streaming.py to_host(copies[name], 'buffers').arrive()": "alone streamed side",
    "clip.py gathering.wait()": "pair 3-scaled first, pair 3-scaled last",
    "optimizer_state.py gathering.wait()": "pair 3-saved first, pair 3-saved last",
    "whole.py unit.wait()": "alone 3-gathered side",
    "hooks.py self.unit.wait()": "alone 3-checkpointed side",
    "unit.py self.gather_stream.wait_stream(compute_stream(self.home))": (
        "alone 0-low compute, alone 0-offloaded_low compute, alone 3-checkpointed compute"
    ),
    "unit.py compute_stream(self.home).wait_stream(self.gather_stream)": (
        "alone 0-low side, alone 3-checkpointed side"
    ),
    "unit.py flat.gathering.wait()": "pair 3-unequal first",
    "unit.py all_gather(flat.sending, piece, group=self.groups.shards).wait()": "pair 0-evaluated first",
    "state_dict.py unit.wait()": "alone 3-checkpointed side",
    "unit.py self.finish_fetch()": "alone 3-checkpointed side",
    "unit.py self.wait()": "pair 3-rerouted first",
    "unit.py self.reduce_stream.wait_stream(compute_stream(self.home))": (
        "pair 3-unequal compute, pair 0-accumulated compute"
    ),
    "unit.py compute_stream(self.home).wait_stream(self.reduce_stream)": "alone 0-low side",
    "unused.py self.pending.wait()": "pair 3-unequal first, pair 3-unequal last",
    "unused.py self.wait()": (
        "pair 3-unequal first, pair 3-unequal last, pair 0-unequal first, pair 0-unequal last"
    ),
}
# What the sanitizer watches, on one rank and on two.
RACES = ["3-plain", "3-offloaded", "3-offloaded_low", "3-checkpointed", "3-scattered", "streamed", "resting"]
RACES += ["0-low", "2-accumulated"]
RACES_OF_TWO = ["3-unequal", "0-evaluated", "3-narrow"]


def run(kit: Kit) -> None:
    """First what must hold, then what each wait is good for."""
    if kit.device == "cpu":
        kit.attempt("the programs", partial(rehearse, kit))
        kit.not_tried("races, late streams, waits", "a CPU has no streams: run this where there is a GPU")
        return
    one = Together(kit, PARALLEL if kit.device == "cuda" else 2, BACKENDS[kit.device][1])
    if kit.device == "cuda" and kit.time_for(10, "no race on one rank"):
        kit.attempt("no race on one rank", partial(tell_of_races, kit, one))
    book = Waits(kit)
    if kit.time_for(20, "waits of one rank"):
        kit.attempt("waits of one rank", partial(book.try_on, ALONE, one, 0.45 * kit.left))
    two = together(kit)
    if two.why:
        kit.not_tried("waits for an exchange", f"gloo waits on the host; NCCL does not go: {two.why}")
    elif kit.time_for(20, "waits of two ranks"):
        kit.attempt("waits of two ranks", partial(book.try_on, PAIR, two, 0.75 * kit.left))
    if kit.device == "cuda" and kit.time_for(12, "no race between two ranks"):
        kit.attempt("no race between two ranks", partial(tell_of_races_of_two, kit, two))
    if kit.device == "cuda" and kit.time_for(8, "what the sanitizer says of the waits"):
        kit.attempt("what the sanitizer says of the waits", partial(book.watch, one))
    book.tell()


def rehearse(kit: Kit) -> None:
    """Run some programs once."""
    names = RACES_OF_TWO if kit.quick else [*RACES, *RACES_OF_TWO]
    found = Jobs(Together(kit, 2, "gloo"), once, seconds=60).run(names)
    truth = all(len(found[name].values) == 2 for name in names)
    why = next((one.why for one in found.values() if one.why), "")
    kit.holds("the programs run on a CPU", truth, why, programs=len(names))


def once(name: str) -> int:
    return len(outcome_of(program(name), "cpu"))


# --- What must hold ---


def tell_of_races(kit: Kit, ranks: Together) -> None:
    """A row for each program that the sanitizer has watched."""
    shares = dealt(ranks.count, [key(name, WATCHED) for name in RACES])
    found = Jobs(ranks, job, seconds=15, alone=True).share(shares, kit.device, limit=0.3 * kit.left)
    for name in RACES:
        one = found.get(key(name, WATCHED))
        if one is None:
            kit.not_tried(f"no race in {name}", "no time was left")
            continue
        races = [said for value in one.values.values() for said in value]
        kit.holds(f"no race in {name}", bool(one.values) and not races, one.why or "; ".join(races[:2]))


def tell_of_races_of_two(kit: Kit, ranks: Together) -> None:
    """Exchanges count as kernels of the stream that starts them."""
    keys = [key(name, WATCHED) for name in RACES_OF_TWO]
    found = Jobs(ranks, job, seconds=15).run(keys, kit.device, limit=0.5 * kit.left)
    races = [said for one in found.values() for value in one.values.values() for said in value]
    why = next((one.why for one in found.values() if one.why), "") or "; ".join(races[:2])
    whole = all(len(one.values) == ranks.count for one in found.values())
    kit.holds("no race between two ranks", whole and not races, why, programs=[*found], backend=ranks.backend)


class Waits:
    """What has been found of each wait, and of the programs with all waits."""

    def __init__(self, kit: Kit) -> None:
        self.kit = kit
        self.all = [*waits_in_the_book()]
        if kit.quick:
            self.all = self.all[:: 4 if kit.device == "late" else 2]
        # How the absence of a wait shows, and why that of another does not.
        self.shown: dict[str, str] = {}
        self.hidden = {
            wait: "it was not reached" if candidates(wait) else "no program of these shows it"
            for wait in self.all
        }
        self.intact: dict[str, Found] = {}

    def try_on(self, who: str, ranks: Together, seconds: float) -> None:
        """Leave out the waits that show on one rank, or on two."""
        end = time.monotonic() + seconds
        tries = {wait: [each[1:] for each in candidates(wait) if each[0] == who] for wait in self.all}
        environ = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}
        jobs = Jobs(ranks, job, seconds=15, alone=who == ALONE, environ=environ)
        while any(tries.values()) and (left := end - time.monotonic()) > 5:
            chosen = {wait: each.pop(0) for wait, each in tries.items() if each and wait not in self.shown}
            if not chosen:
                break
            # Programs in a row, so that a process finds out once how each comes out; first with all waits.
            needed = {key(*each) for each in chosen.values()} - self.intact.keys()
            keys = sorted([*needed, *(key(each[0], each[1], wait) for wait, each in chosen.items())])
            given = dealt(ranks.count, keys) if who == ALONE else [keys] * ranks.count
            found = jobs.share(given, self.kit.device, limit=left)
            self.intact |= {each: found[each] for each in needed if each in found}
            for wait, each in chosen.items():
                self.judge(wait, key(*each), found.get(key(each[0], each[1], wait)))

    def judge(self, wait: str, intact: str, found: Found | None) -> None:
        """Take over what has become of a program without a wait."""
        before = self.intact.get(intact)
        if found is None or before is None:
            self.hidden[wait] = "no time was left"
        elif before.why or {*before.values.values()} != {"same"}:
            self.hidden[wait] = f"{intact.partition('|')[0]} fails with all waits"
        elif "differs" in found.values.values():
            self.shown[wait] = "numbers"
        elif found.why:
            self.shown[wait] = "errors"
        else:
            self.hidden[wait] = "the numbers were right"

    def watch(self, ranks: Together) -> None:
        """Let the sanitizer look for the waits of one rank, for those first that have not shown."""
        waits = sorted(self.all, key=lambda wait: wait in self.shown)
        chosen = {wait: each[1] for wait in waits for each in candidates(wait)[:1] if each[0] == ALONE}
        keys = [key(name, STORAGES) for name in dict.fromkeys(chosen.values())]
        keys += [key(name, STORAGES, wait) for wait, name in chosen.items()]
        shares = dealt(ranks.count, keys)
        found = Jobs(ranks, job, seconds=15, alone=True).share(
            shares, self.kit.device, limit=0.8 * self.kit.left
        )
        races = {each: [*one.values.values()] for each, one in found.items()}
        reported = [
            wait
            for wait, name in chosen.items()
            if races.get(key(name, STORAGES)) == [[]] and any(races.get(key(name, STORAGES, wait), []))
        ]
        for wait in reported:
            self.shown.setdefault(wait, "reported")
        self.kit.shows("waits that the sanitizer misses", reported=len(reported), of=len(chosen))

    def tell(self) -> None:
        """The rows about lateness and about waits."""
        wrong = [each for each, one in self.intact.items() if {*one.values.values()} != {"same"} or one.why]
        if self.intact:
            why = "; ".join(f"{each}: {self.intact[each].why or 'other numbers'}" for each in wrong[:3])
            programs = {each.partition("|")[0] for each in self.intact}
            name = "same numbers, whichever side is late"
            self.kit.holds(name, not wrong, why, programs=len(programs), runs=len(self.intact))
        ways: dict[str, Any] = {
            way: [*self.shown.values()].count(way) for way in ("numbers", "errors", "reported")
        }
        self.kit.shows("waits whose absence shows", shown=len(self.shown), of=len(self.all), **ways)
        hidden = defaultdict(list)
        for wait in self.all:
            if wait not in self.shown:
                hidden[self.hidden[wait]].append(wait)
        if hidden:
            told = "; ".join(f"{why}: {', '.join(waits)}" for why, waits in hidden.items())
            self.kit.not_tried("waits whose absence does not show", told[:1500])


def candidates(wait: str) -> list[list[str]]:
    """One rank or two, the program and the late side, for each try."""
    place, _, call = wait.partition(" ")
    said = SHOWS.get(f"{place.partition(':')[0]} {call}", "")
    return [each.split() for each in said.split(", ") if each]


def key(name: str, order: str, wait: str = "") -> str:
    """A job: a program, what is late in it, and the wait that is left out."""
    return f"{name}|{order}|{wait}"


def dealt(count: int, keys: Sequence[str]) -> list[list[str]]:
    """The jobs of each of some processes. Those of one program stay together."""
    programs = defaultdict(list)
    for each in keys:
        programs[each.partition("|")[0]].append(each)
    shares: list[list[str]] = [[] for _ in range(count)]
    for jobs in sorted(programs.values(), key=len, reverse=True):
        min(shares, key=len).extend(jobs)
    return shares


# --- on a rank ---

waits_of_the_book = cache(waits_in_the_book)


def job(each: str, kind: str) -> Any:
    """Run a program with something late and a wait left out: whether it comes out as usual, or the races."""
    name, order, wait = each.split("|")
    lines = waits_of_the_book()[wait] if wait else set[str]()
    if order in (WATCHED, STORAGES):
        found = sanitizer(by_storage=order == STORAGES)
        with without(lines, kind):
            outcome_of(program(name), str(take_device(kind)))
        races = [*dict.fromkeys(map(told, found))]
        found.clear()
        return races[:2]
    device = str(take_device(kind))
    expected = usual(name, device)
    with late(order, kind), without(lines, kind):
        values = outcome_of(program(name), device)
    same = len(values) == len(expected) and all(map(torch.equal, values, expected))
    return "same" if same else "differs"


@cache
def usual(name: str, device: str) -> list[Tensor]:
    """What a program comes to if nothing is late. It also loads the kernels, which takes time only once."""
    return outcome_of(program(name), device)


def program(name: str) -> Callable[[], None]:
    return apart if name == "apart" else RUNS[name]


def apart() -> None:
    """Each rank makes a model with values of its own, and all take over those of the first."""
    seed = torch.manual_seed
    with patch.object(torch, "manual_seed", lambda number: seed(number + dist.get_rank())):
        training = Training(3)
    for _ in range(2):
        training.step()
