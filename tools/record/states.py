"""One small unit through one step of stage 3: each change of its state, what caused it, and its tensors."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tools.record.frame import ranks
from torch import Tensor, nn

import shardbook
from shardbook import shard
from shardbook.foundations.collectives import ledger, world
from shardbook.foundations.hook_context import observers
from shardbook.zero.hooks import Hooks
from shardbook.zero.scheduler import scheduler_of
from shardbook.zero.unit import State, Unit

NAME = "middle"
RATE = 0.5
BOOK = Path(shardbook.__file__).parent


def record() -> Any:
    """The events of both ranks, in order, with the numbers in the unit's tensors after each."""
    first, *others = ranks(2, on_a_rank)
    return {**first, "ranks": [one["ranks"] for one in (first, *others)]}


class Chain(nn.Sequential):
    """Three layers, of which the middle one is followed: a matrix of 8 rows and 3 columns.

    All numbers are small and whole, so each can be computed in one's head.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(1, 3, bias=False)
        self.middle = nn.Linear(3, 8, bias=False)
        self.last = nn.Linear(8, 1, bias=False)
        with torch.no_grad():
            self.first.weight.copy_(torch.tensor([[1.0], [2.0], [3.0]]))
            self.middle.weight.copy_(torch.arange(1.0, 25.0).view(8, 3))
            self.last.weight.copy_(torch.arange(1.0, 9.0).view(1, 8))


def on_a_rank() -> Any:
    """Two steps: in the first one the order of the units is learned, the second one is followed."""
    rank, _ = world()
    # Rank 0 reads 1 and rank 1 reads 3, so the middle layer reads 1 2 3, or 3 6 9.
    inputs = torch.tensor([[[1.0], [3.0]][rank]])
    model = shard(Chain(), stage=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    model(inputs).sum().backward()
    optimizer.zero_grad()
    (unit,) = (unit for unit in scheduler_of(model).units if unit.name == NAME)
    followed = Followed(unit)
    with ledger() as book, followed:
        followed.note("begin")
        loss = model(inputs).sum()
        loss.backward()
        followed.note("step")
        optimizer.step()
        followed.note("stepped")
        optimizer.zero_grad()
        followed.note("end")
    (flat,) = unit.flats
    slot = flat.layout.slots[0]
    return {
        "unit": NAME,
        "shape": list(slot.shape),
        "numel": flat.layout.numel,
        "padded": flat.layout.padded,
        "shard_numel": flat.layout.shard_numel,
        "learning_rate": RATE,
        "ranks": {
            "inputs": inputs.flatten().tolist(),
            "place": [flat.place_of_shard.start, flat.place_of_shard.stop],
            "sent": book.sent,
            "events": followed.events,
        },
    }


class Followed:
    """Writes down each change of a unit's state and each act on it, with the functions that led there."""

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self.events: list[dict[str, Any]] = []
        self.last: dict[str, Any] = {}
        # The same order as in a step: `flat.whole` holds the parameter that gets the gradient.
        (self.flat,) = unit.flats
        self.flat.after_gradient(0, lambda _: self.note("gradient"))

    def __enter__(self) -> Followed:
        observers.append(self)
        follow_state(self)
        return self

    def __exit__(self, *error: Any) -> None:
        observers.remove(self)
        del Unit.state

    def begins(self, act: str, about: Any) -> None:
        """A unit is about to act."""

    def ends(self, act: str, about: Any) -> None:
        """A unit has acted. Its state changes just after a gather, a wait and a free."""
        if about == self.unit.name and act in ("reduce", "wait for the mean of"):
            self.note(act)

    def note(self, kind: str, **more: Any) -> None:
        """Write down an event: of the tensors, those that have changed."""
        tensors = self.tensors()
        changed = {name: numbers for name, numbers in tensors.items() if self.last.get(name, "") != numbers}
        self.last = tensors
        self.events.append(
            {"kind": kind, "by": [*callers()], "hook_of": hook_of(), "tensors": changed, **more}
        )

    def tensors(self) -> dict[str, list[float | None] | None]:
        """The numbers in the unit's vectors; `None` where there is no memory, and for each number that is on
        its way.
        """
        flat, (parameter,) = self.flat, self.flat.parameters
        full = numbers(flat.full)
        if full is not None and self.unit.state is State.GATHERING:
            own = range(*flat.place_of_shard.indices(len(full)))
            full = [number if place in own else None for place, number in enumerate(full)]
        return {
            "full": full,
            "shard": numbers(flat.shard),
            "grad_full": numbers(flat.grad_full),
            "sending": numbers(flat.sending),
            "mean": numbers(parameter.grad),
        }


def follow_state(followed: Followed) -> None:
    """Let `Unit.state` tell of each change. The other units change their state as before."""
    states: dict[Unit, State] = {}

    def get(unit: Unit) -> State:
        return states.get(unit) or vars(unit)["state"]

    def change(unit: Unit, state: State) -> None:
        before, states[unit] = get(unit), state
        if unit is followed.unit:
            followed.note("state", before=before.name, after=state.name)

    Unit.state = property(get, change)  # type: ignore[assignment, misc]


def callers() -> Iterator[str]:
    """The methods of the book that are running, the innermost first, each with its file."""
    for info in inspect.stack(0)[1:]:
        path, code = Path(info.filename), info.frame.f_code
        owner = info.frame.f_locals.get("self")
        if not path.is_relative_to(BOOK) or owner is None or path.name == "labels.py":
            continue
        # A method that is inherited has the name of the class that defines it.
        for kind in type(owner).__mro__:
            method = inspect.unwrap(vars(kind).get(code.co_name, print))
            if getattr(method, "__code__", None) is code:
                yield f"{path.relative_to(BOOK.parent).as_posix()}#{kind.__name__}.{code.co_name}"


def hook_of() -> str | None:
    """The name of the unit whose hook is running, if one is."""
    for info in inspect.stack(0):
        if isinstance(driver := info.frame.f_locals.get("self"), Hooks):
            return driver.unit.name
    return None


def numbers(tensor: Tensor | None) -> list[float | None] | None:
    """The numbers of a vector that has memory."""
    if tensor is None or not tensor.untyped_storage().nbytes():
        return None
    return tensor.detach().tolist()
