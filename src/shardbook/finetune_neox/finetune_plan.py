r"""# Planning the memory of fine-tuning

> `--plan` computes the bytes of one rank while the model is loaded, between steps and
> in a step.

```sh
python -m shardbook.finetune_neox --model FOLDER --plan --ranks 8 --memory 80
```

The plan needs only the shapes of the model and the heads of its files. For the GPT-NeoX
of 20.6 billion parameters it reads less than a megabyte.

- While the model is loaded, a rank stores its shards, the buffers, and 1 MB for reading.
  During [the construction](construction.py) it may store more. The plan computes the
  larger number exactly.
- Between steps, a rank stores shards, buffers, AdamW's moments of the trained
  parameters, step counters and text. This number is exact, too.
- In a step, a rank also stores gradients of the trained parameters and three vectors of
  gradients that are being exchanged. In stage 3 the root and the two largest units are
  whole. These tensors do not all exist at the same moment, so their sum is an upper
  bound.

The plan does not include the activations, because they depend on the model's own
forward pass. [Checkpoints](checkpointing.py) of the blocks make the activations small,
so use `--checkpoint non-reentrant` if memory is short. The tensors that a compiler keeps
with `--compile` are not included either.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from shardbook.finetune_neox.model_units import blocks_of, units_of
from shardbook.finetune_neox.pretrained import Pretrained
from shardbook.foundations.layout import Layout
from shardbook.planning.construction import Built, built, is_sliced
from shardbook.planning.forecast import pieces
from shardbook.planning.policy_bytes import kinds_of
from shardbook.state.tensor_file import PIECE
from shardbook.train.assemble import policy_of
from shardbook.train.plan import rooms

__all__ = ["Forecast", "forecast_of", "plan_figures", "plan_table"]


@dataclass(frozen=True, slots=True)
class Forecast:
    """The bytes of one rank.

    :param loading: the most that is stored while the model is built and loaded
    :param steady: the bytes between steps, by term
    :param extra: the bytes that a step adds at most, without activations, by term
    :param sent: the bytes that are sent in one step, at most
    """

    loading: int
    steady: dict[str, int]
    extra: dict[str, int]
    sent: int

    @property
    def between(self) -> int:
        """The bytes that are stored between two steps."""
        return sum(self.steady.values())

    @property
    def most(self) -> int:
        """The largest number of bytes, without activations."""
        return max(self.loading, self.between + sum(self.extra.values()))


def forecast_of(
    start: Pretrained,
    options: argparse.Namespace,
    ranks: int,
    *,
    rank: int = 0,
    text: int = 0,
) -> Forecast:
    """Compute the bytes of a run.

    :param start: the pretrained model, without memory, with its frozen parameters chosen
    :param ranks: the number of ranks
    :param rank: the rank to compute
    :param text: the bytes of text on a rank
    """
    model, stage, policy = start.model, options.stage, policy_of(options)
    units = units_of(model, blocks_of(model, options.units))
    made = built(model, units, ranks, stage=stage, policy=policy)
    vectors = [layout for unit in made.vectors.values() for layout in unit]
    trained = [layout for layout in vectors if layout.trainable]
    numel = [sum(pieces(each, rank)) if stage else each.numel for each in trained]
    adamw = options.optimizer == "adamw"
    kinds = [kinds_of(each, stage, policy) for each in trained]
    steady = {
        "parameters": made.parameters,
        "buffers": made.buffers,
        "moments": 8 * sum(numel) * adamw,
        "step counters": 4 * sum(len(each.slots) for each in trained) * adamw,
        "loss scale": 8 * (options.precision == "fp16"),
        "text": text,
    }
    waits = 4 * sum(each.shard_numel if stage else each.padded for each in trained)
    return Forecast(
        loading=max(
            made.peak, made.parameters + made.buffers + room(start, made, stage)
        ),
        steady={name: value for name, value in steady.items() if value},
        extra={
            "gradients": sum(each.gradients + each.gradients_on_host for each in kinds)
            + waits * (options.accumulate > 1 and stage < 2),
            "in flight": in_flight(made, options),
        },
        sent=options.accumulate * sum(sent_of(each, options) for each in vectors)
        + numbers_sent(options, ranks),
    )


def room(start: Pretrained, made: Built, stage: int) -> int:
    """The memory for reading a rank's elements of one tensor."""
    largest = 0
    for layout in (each for unit in made.vectors.values() for each in unit):
        most = layout.shard_numel if is_sliced(layout, stage) else layout.padded
        for slot in layout.slots:
            for stored in (start.stored[n] for n in slot.names if n in start.stored):
                size = start.places[stored].dtype.itemsize
                largest = max(largest, size * min(slot.numel, most))
    return min(PIECE, largest)


def in_flight(made: Built, options: argparse.Namespace) -> int:
    """The bytes of whole units in the middle of a step, and of gradients that are being exchanged."""
    whole = {
        name: sum(layout.padded * layout.computes_in.itemsize for layout in layouts)
        for name, layouts in made.vectors.items()
    }
    root = whole.pop("", 0)
    units = root + sum(sorted(whole.values())[-2:]) if options.stage == 3 else 0
    policy = policy_of(options)
    largest = max(
        layout.padded * policy.collects_in(layout.computes_in).itemsize
        for layouts in made.vectors.values()
        for layout in layouts
        if layout.trainable
    )
    return units + 3 * largest


def sent_of(layout: Layout, options: argparse.Namespace) -> int:
    """The bytes that are sent for a vector in a micro-batch, at most."""
    policy = policy_of(options)
    if layout.trainable:
        return kinds_of(layout, options.stage, policy).sent
    # A frozen vector has no gradient. In stage 3 it is gathered; lower stages keep it
    # whole.
    others = layout.padded - layout.shard_numel
    return 2 * others * layout.computes_in.itemsize if options.stage == 3 else 0


def numbers_sent(options: argparse.Namespace, ranks: int) -> int:
    """The bytes that a rank sends for [the gradient's norm](not_finite.py) in a step, at most."""
    looked_at = options.not_finite != "continue" or options.clip is not None
    return 8 * (ranks - 1) if looked_at else 0


def plan_table(
    start: Pretrained, options: argparse.Namespace, made: Forecast, ranks: int
) -> str:
    """Format the plan as a table."""
    place, _ = rooms(options, ranks)
    rows = [
        ("while it is loaded", made.loading, "at most"),
        *((name, value, "between steps") for name, value in made.steady.items()),
        *((name, value, "in a step, at most") for name, value in made.extra.items()),
        ("together", made.between + sum(made.extra.values()), "without activations"),
        *([("room", place, "what one rank may take")] if place is not None else []),
        ("sent in a step", made.sent, "at most"),
    ]
    heading = (
        f"{described(start)}, {ranks} rank{'s' * (ranks > 1)}, stage {options.stage}"
    )
    lines = [f"{name:<26}{value:>20,}  {note}".rstrip() for name, value, note in rows]
    return "\n".join(
        [f"{heading}: the bytes of one rank", *lines, verdict(made, place)]
    )


def described(start: Pretrained) -> str:
    """Describe the model and the number of trained parameters."""
    sizes = [(each.numel(), each.requires_grad) for each in start.model.parameters()]
    trained = sum(numel for numel, learns in sizes if learns)
    return (
        f"{type(start.model).__name__}, {sum(numel for numel, _ in sizes):,} parameters, "
        f"{trained:,} of them trained"
    )


def verdict(made: Forecast, place: int | None) -> str:
    """The last line: whether the run fits, and otherwise what to change."""
    if place is None:
        return "Whether it fits is not known here: say with --memory how much there is."
    if made.most > place:
        return "It does not fit: take more ranks, --offload, or train fewer parameters."
    left = place - made.between - sum(made.extra.values())
    return f"It fits, if the activations take no more than {left:,} bytes."


def plan_figures(
    options: argparse.Namespace, made: Forecast, ranks: int
) -> dict[str, Any]:
    """The plan as a dictionary, for `--json`."""
    place, _ = rooms(options, ranks)
    return {
        "ranks": ranks,
        "stage": options.stage,
        "loading": made.loading,
        "steady": made.between,
        "steady_terms": made.steady,
        "extra_terms": made.extra,
        "sent": made.sent,
        "room": place,
        "fits": None if place is None else made.most <= place,
    }
