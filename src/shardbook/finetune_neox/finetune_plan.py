r"""# What a fine-tuning run takes

> The bytes of one rank while the model is loaded, between steps and in a step, before anything starts.

```sh
python -m shardbook.finetune_neox --model FOLDER --plan --ranks 8 --memory 80
```

The shapes of the model and the heads of its files are all that this needs. For the
GPT-NeoX of 20.6 billion parameters it reads less than a megabyte.

- While the model is loaded, a rank holds [the peak of the
  construction](construction.py), or its shards, the buffers and the 1 MB through which
  it reads. This is exact.
- Between steps it holds shards, buffers, AdamW's moments of what is trained, step
  counters and text. This is exact, too.
- In a step come the gradients of what is trained, three vectors of gradients on their
  way, and in stage 3 the root and the two largest units whole. Not all of them are there
  at the same moment, so their sum is a bound.

What the compiler keeps, with `--compile`, is left out. So is what a model saves for its
backward pass, since that depends on the model's own forward pass.
[Checkpoints](checkpointing.py) of the blocks make it small, so take `--checkpoint
non-reentrant` where memory is short.
"""

# sidelit: hide
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
# sidelit: show


@dataclass(frozen=True, slots=True)
class Forecast:
    """The bytes of one rank.

    :param loading: the most while the model is built and loaded
    :param steady: between steps, by its terms
    :param extra: what a step adds at most, without activations, by its terms
    :param sent: in one step, at most
    """

    loading: int
    steady: dict[str, int]
    extra: dict[str, int]
    sent: int

    @property
    def between(self) -> int:
        """What is stored between two steps."""
        return sum(self.steady.values())

    @property
    def most(self) -> int:
        """The most that is known of."""
        return max(self.loading, self.between + sum(self.extra.values()))


def forecast_of(
    start: Pretrained,
    options: argparse.Namespace,
    ranks: int,
    *,
    rank: int = 0,
    text: int = 0,
) -> Forecast:
    """The bytes of a run.

    :param start: with a model that has no memory, and whose frozen parameters are known
    :param text: the bytes of text that a rank holds
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
    """The memory through which a rank reads its elements of one tensor."""
    largest = 0
    for layout in (each for unit in made.vectors.values() for each in unit):
        most = layout.shard_numel if is_sliced(layout, stage) else layout.padded
        for slot in layout.slots:
            for stored in (start.stored[n] for n in slot.names if n in start.stored):
                size = start.places[stored].dtype.itemsize
                largest = max(largest, size * min(slot.numel, most))
    return min(PIECE, largest)


def in_flight(made: Built, options: argparse.Namespace) -> int:
    """The units that are whole in the middle of a step, and gradients on their way."""
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
    """What is sent of a vector for a micro-batch, at most."""
    policy = policy_of(options)
    if layout.trainable:
        return kinds_of(layout, options.stage, policy).sent
    # A frozen one is gathered, and has no gradient. Stages below 3 keep it whole.
    others = layout.padded - layout.shard_numel
    return 2 * others * layout.computes_in.itemsize if options.stage == 3 else 0


def numbers_sent(options: argparse.Namespace, ranks: int) -> int:
    """What the ranks send of [the gradient's norm](not_finite.py) in a step, at most."""
    looked_at = options.not_finite != "continue" or options.clip is not None
    return 8 * (ranks - 1) if looked_at else 0


def plan_table(
    start: Pretrained, options: argparse.Namespace, made: Forecast, ranks: int
) -> str:
    """The plan for a person to read."""
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
    """The model, and how much of it is trained."""
    sizes = [(each.numel(), each.requires_grad) for each in start.model.parameters()]
    trained = sum(numel for numel, learns in sizes if learns)
    return (
        f"{type(start.model).__name__}, {sum(numel for numel, _ in sizes):,} parameters, "
        f"{trained:,} of them trained"
    )


def verdict(made: Forecast, place: int | None) -> str:
    """The last line."""
    if place is None:
        return "Whether it fits is not known here: say with --memory how much there is."
    if made.most > place:
        return "It does not fit: take more ranks, --offload, or train fewer parameters."
    left = place - made.between - sum(made.extra.values())
    return f"It fits, if the activations take no more than {left:,} bytes."


def plan_figures(
    options: argparse.Namespace, made: Forecast, ranks: int
) -> dict[str, Any]:
    """The plan under flat names, for `--json`."""
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
