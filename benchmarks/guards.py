"""Say what each guard of the book costs in a step of the benchmark's GPT.

A guard is code that changes no number of a right program: it notices what would go wrong. Two ranks train in
stage 3, and every function of a guard is timed by itself, without the guards that it calls. The clock itself
takes time, which is measured first and subtracted.

The labels of a profiler's trace are measured beside the guards, while no profiler runs: what one label takes,
on and off by turns, and how many a step has.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import pkgutil
import statistics
import time
import timeit
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from benchmarks.__main__ import describe, positive
from benchmarks.contender import CORE, Training
from benchmarks.launch import Size, on_ranks

import shardbook
from shardbook.foundations.hook_context import label, observers

# What a guard notices, and its functions in the modules of the book.
GUARDS: dict[str, list[str]] = {
    "a tensor saved for the backward pass lies in freed weights": [
        *("zero.demand.set_pair", "zero.demand.take_away", "zero.demand.take_interrupted_away"),
        *("zero.demand.Pair.pack", "zero.demand.Pair.unpack"),
    ],
    "a module keeps a view of weights that are freed": ["zero.demand.refuse_views"],
    "a slice is read as if it were the parameter": [
        *(
            "zero.access.Guarded.__torch_function__",
            "zero.access.unguard",
            "zero.access.guard_stepped",
            "zero.access.guard_again",
        ),
    ],
    "a parameter belongs to no unit": [
        "zero.refusals.refuse_unowned_in",
        "zero.refusals.refuse_unowned_of",
        "zero.refusals.refuse_replaced_in",
    ],
    "an optimizer's step does not fit, or comes at a wrong time": ["zero.optimizer_guard.before_step"],
    "an optimizer's rule needs the whole": ["zero.optimizer_trial.refuse_unless_elementwise"],
    "no rank has used a parameter (the exchange included)": [
        *(
            "zero.unused.Usage.at_the_end",
            "zero.unused.Usage.send",
            "zero.unused.Usage.wait",
            "zero.unused.Usage.settle",
        ),
    ],
    "requires_grad has changed": [
        "zero.whole_parameter.changed_since_sharding",
        "zero.whole_parameter.carry_over",
    ],
    "a pass did not end": ["zero.optimizer_guard.only_failed", "zero.optimizer_guard.refuse_interrupted"],
    "a parameter was replaced, converted or moved": [
        "zero.whole_parameter.refuse_replaced",
    ],
    "a whole parameter was written to": [
        "zero.whole_parameter.WritesInUse.note",
        "zero.whole_parameter.refuse_writes",
    ],
    "a backward pass meets other weights than its forward pass": [
        "zero.optimizer_guard.Computed.refuse_others"
    ],
    "two threads call units": ["zero.refusals.refuse_threads"],
    "another wrapper or a transformation calls the model": [
        *("zero.refusals.refuse_call_by_wrapper", "zero.refusals.refuse_transforms"),
    ],
    "the ranks are about to do different things": [
        "foundations.exchange_order.Order.before",
        "foundations.exchange_order.Order.begin",
    ],
}


class Clock:
    """The seconds of each guard, without those of the guards that it calls."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(GUARDS, 0.0)
        self.calls = dict.fromkeys(GUARDS, 0)
        # For each call under way, the seconds of the guards that it has called.
        self.within: list[float] = []

    def around(self, guard: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function under the clock."""

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self.within.append(0.0)
            started = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                took = time.perf_counter() - started
                self.seconds[guard] += took - self.within.pop()
                self.calls[guard] += 1
                if self.within:
                    self.within[-1] += took

        return timed


def install(clock: Clock) -> None:
    """Put every guard under the clock, in each module that has its name."""
    modules = [importlib.import_module(found.name) for found in modules_of_the_book()]
    for guard, functions in GUARDS.items():
        for path in functions:
            folder, file, *owners, name = path.split(".")
            module = importlib.import_module(f"shardbook.{folder}.{file}")
            owner = functools.reduce(getattr, owners, module)
            found = vars(owner)[name]
            if isinstance(found, classmethod):
                setattr(owner, name, classmethod(clock.around(guard, found.__func__)))
                continue
            timed = clock.around(guard, found)
            for place in [owner, *modules]:
                if vars(place).get(name) is found:
                    setattr(place, name, timed)


def modules_of_the_book() -> Iterable[pkgutil.ModuleInfo]:
    """All modules but those that run a program when they are imported."""
    found = pkgutil.walk_packages(shardbook.__path__, "shardbook.")
    return (module for module in found if not module.name.endswith("__main__"))


def clock_alone() -> float:
    """The seconds that the clock adds to a call."""
    clock = Clock()
    timed = clock.around(next(iter(GUARDS)), lambda: None)
    for _ in range(100_000):
        timed()
    return sum(clock.seconds.values()) / 100_000


def costs_on_rank(size: Size) -> dict[str, Any]:
    """Train on this rank, and return what the guards cost it."""
    clock, each = Clock(), clock_alone()
    install(clock)
    training = Training(CORE["shardbook"], size)
    first = Step(clock, training)
    for _ in range(size.warm_up):
        training.step()
    steps = [Step(clock, training) for _ in range(size.steps)]
    labels = costs_of_labels(training, size.steps)
    return {
        "step": statistics.median(step.took for step in steps),
        "trial": first.seconds["an optimizer's rule needs the whole"],
        "guards": {guard: costs(guard, steps, each) for guard in GUARDS},
        "labels": labels,
    }


class Step:
    """The seconds of a step, and those and the calls of each guard in it."""

    def __init__(self, clock: Clock, training: Training) -> None:
        self.seconds = clock.seconds = dict.fromkeys(GUARDS, 0.0)
        self.calls = clock.calls = dict.fromkeys(GUARDS, 0)
        started = time.perf_counter()
        training.step()
        self.took = time.perf_counter() - started


def costs(guard: str, steps: list[Step], each: float) -> tuple[float, float]:
    """A guard's calls and seconds in a step: medians. The clock itself takes `each` seconds a call."""
    seconds = statistics.median(step.seconds[guard] - each * step.calls[guard] for step in steps)
    return statistics.median(step.calls[guard] for step in steps), max(seconds, 0.0)


class Counted:
    """An observer that counts the labels."""

    def __init__(self, entered: list[str]) -> None:
        self.entered = entered

    def begins(self, act: str, about: Any) -> None:
        self.entered.append(act)

    def ends(self, act: str, about: Any) -> None:
        """Count nothing more."""


def costs_of_labels(training: Training, steps: int) -> dict[str, Any]:
    """The labels of a step; the seconds of one, and of a step, on and off by turns: quartiles."""
    entered: list[str] = []
    observers.append(Counted(entered))
    training.step()
    observers.pop()
    one: dict[bool, list[float]] = {True: [], False: []}
    step: dict[bool, list[float]] = {True: [], False: []}
    # Quartiles need two of each.
    for number in range(2 * max(steps, 2)):
        on = number % 2 == 0
        shardbook.profiler_labels(on)
        one[on].append(timeit.timeit(one_label, number=ROUND) / ROUND)
        started = time.perf_counter()
        training.step()
        step[on].append(time.perf_counter() - started)
    shardbook.profiler_labels(True)
    found = {
        f"{what}, {'on' if on else 'off'}": statistics.quantiles(values, n=4, method="inclusive")
        for what, taken in (("one", one), ("step", step))
        for on, values in taken.items()
    }
    return {"count": len(entered), **found}


def one_label() -> None:
    with label("gather", "blocks.0"):
        pass


ROUND = 10_000


def measure(size: Size) -> dict[str, Any]:
    """Run two ranks, and take what rank 0 has measured."""
    found: dict[str, Any] = on_ranks(2, costs_on_rank, size)
    return found


def table(found: dict[str, Any]) -> str:
    """The cost of each guard, and of all together."""
    width = max(map(len, GUARDS))
    lines = [f"{'what a guard notices':<{width}}{'calls':>8}{'ms a step':>11}{'of a step':>11}"]
    total = 0.0
    for guard, (calls, seconds) in found["guards"].items():
        total += seconds
        share = 100 * seconds / found["step"]
        lines.append(f"{guard:<{width}}{calls:>8.0f}{1000 * seconds:>11.3f}{share:>10.3f} %")
    share = 100 * total / found["step"]
    lines.append(f"{'all of them':<{width}}{'':>8}{1000 * total:>11.3f}{share:>10.3f} %")
    lines += ["", f"a step takes {found['step']:.3f} s"]
    lines += [f"before the first one the optimizer's rule is tried, in {1000 * found['trial']:.1f} ms"]
    lines += ["", *table_of_labels(found["labels"])]
    return "\n".join(lines)


def table_of_labels(found: dict[str, Any]) -> list[str]:
    """What a label takes, and a step, each with the two quartiles around the median."""
    lines = [f"a step has {found['count']} labels; quartiles and median, on and off by turns"]
    for what, scale, unit in (("one", 1e6, "µs a label"), ("step", 1e3, "ms a step")):
        for state in ("on", "off"):
            low, middle, high = (scale * value for value in found[f"{what}, {state}"])
            lines.append(f"labels {state:<4}{middle:>10.2f} {unit} ({low:.2f} to {high:.2f})")
    return lines


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.guards", description=__doc__)
    parser.add_argument("--steps", type=positive, default=20, metavar="N", help="timed steps")
    options = parser.parse_args(arguments)
    size = replace(Size(), steps=options.steps)
    print(describe(size), flush=True)
    print(table(measure(size)))


if __name__ == "__main__":
    main()
