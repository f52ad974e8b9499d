r"""# Forecasting a training step

> The bytes that a rank sends and stores in a step, predicted from shapes before anything runs.

A formula is only as good as its comparison with a count. This chapter predicts three
figures for each rank, and [the training script](loop.py) prints them beside the counted
ones.

- **Bytes sent** in a step. In stage 3 each unit crosses the network three times in each
  micro-batch. It is gathered for the forward pass, gathered for the backward pass, and
  then its gradients are reduced. In the other stages it crosses twice. Each time a rank
  sends $(N_d-1)/N_d$ of the padded vector, at 4 bytes an element. The comparison of
  [which parameters were used](unused.py) takes $n$ more numbers, one for each parameter
  tensor. The norm of the gradient, [checked](not_finite.py) once in a step, takes 8
  bytes for each other rank.
- **Steady bytes**, stored between two steps. AdamW keeps two moments, so in stage 3
  there are 12 bytes for each parameter of the shard. The rest is small: padding,
  AdamW's step counters, and the text.
- **Peak bytes**, the most that is stored at any moment of a step. This figure includes
  activations and the units in flight.

$$\text{sent}_3 = 4\,\Bigl(3 \sum_u P_u + 2n\Bigr)\,\frac{N_d-1}{N_d} \qquad
\text{sent}_{0,1,2} = 4\,\Bigl(2 \sum_u P_u + 2n\Bigr)\,\frac{N_d-1}{N_d}$$

The first two figures are exact for any FP32 model without frozen parameters, if each
unit runs once in a forward pass and each micro-batch exchanges its gradients. [A
policy](policy_bytes.py) changes the bytes of an element, and both remain exact.

The peak is known for stage 3 only, without a policy and without checkpoints. For [this
GPT](gpt.py) on a CPU it is exact: the tests compare it with a count, byte for byte,
over many shapes. On a GPU it is an estimate, because attention saves other tensors for
its backward pass. None of the three figures contains the temporaries inside one
operation, the buffers of the communication backend, or the bytes with which an
allocator rounds a size up.

:notation $N_d$: `world_size`, the number of ranks
:notation $P_u$: `padded`, the elements of unit $u$ with its padding
:notation $n$: `numbers`, one for each parameter tensor, in stage 0 two more, as a multiple of $2N_d$
:notation $S_u$: `shard_numel`, a rank's part of them, $P_u / N_d$
:notation $\Psi_r$: the number of parameters in a rank's slices
:notation $d$: `config.width`, the number of values that stand for one position
:notation $h$: `config.heads`, the number of attention heads in a block
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from shardbook.foundations.layout import Layout
from shardbook.foundations.ledger import all_reduce_bytes
from shardbook.models.gpt import GPT, Config
from shardbook.parameters.policy import Policy
from shardbook.planning.policy_bytes import AS_IT_IS, layouts_with, total

__all__ = ["Forecast", "Setup", "forecast"]

FLOAT, INTEGER = 4, 8


@dataclass(frozen=True, slots=True)
class Setup:
    """The settings on which the figures depend.

    :param config: the model's shape
    :param world_size: the number of ranks
    :param batch: the number of windows in one micro-batch on one rank
    :param accumulate: the number of micro-batches in one step
    :param optimizer: `"adamw"`, or `"sgd"` without momentum, which stores nothing
    :param text: the bytes of text that each rank holds
    :param stage: the stage of ZeRO
    :param copies: the number of copies of the model; the ranks of [a row](groups.py)
        share one
    :param policy: the dtypes in which the model computes and its gradients are sent,
        and whether the model is stored on the host
    :param checkpointed: whether the blocks recompute their activations
    :param clipped: whether the gradient's norm is limited before each step
    :param compiled: whether the blocks are compiled
    :param watched: whether the gradients are [checked](not_finite.py) before each step
    """

    config: Config
    world_size: int
    batch: int
    accumulate: int = 1
    optimizer: str = "adamw"
    text: int = 0
    stage: int = 3
    copies: int = 1
    policy: Policy = AS_IT_IS
    checkpointed: bool = False
    clipped: bool = False
    compiled: bool = False
    watched: bool = False

    @property
    def sharing(self) -> int:
        """The number of ranks that share one copy of the model."""
        return self.world_size // self.copies

    @property
    def scaled(self) -> bool:
        """Whether the loss is scaled: in FP16 only, since BF16 has the range of FP32."""
        return self.policy.param_dtype is torch.float16

    @property
    def norm_from(self) -> int:
        """The number of other ranks that send a number for the gradient's norm.

        To clip, the ranks of one copy exchange their norms. In stage 0 they need not,
        since each rank has the whole gradient. A watched run also compares [the losses
        of all ranks](not_finite.py).
        """
        if self.watched:
            return self.world_size - 1
        return self.sharing - 1 if self.clipped and self.stage > 0 else 0


@dataclass(frozen=True, slots=True)
class Forecast:
    """The figures of one rank, in bytes.

    `steady` has one entry for each term, and `moments` one for each moment that may be
    the peak. If the moments are not known, the peak is `None`. `host` is the part of
    the steady bytes that is on the host. `moved` are the bytes that are copied between
    host and device in a step.
    """

    sent: int
    steady: dict[str, int]
    moments: dict[str, int]
    host: int = 0
    moved: int = 0

    @property
    def peak(self) -> int | None:
        return max(self.moments.values(), default=None)

    @property
    def peak_moment(self) -> str:
        """The moment of a step in which the rank stores the most."""
        return max(self.moments, key=self.moments.__getitem__, default="")


def forecast(setup: Setup, rank: int) -> Forecast:
    """Predict the figures of one rank. Ranks differ in their part of the padding."""
    # A model on the meta device has shapes and no values, so it costs nothing at any
    # size.
    with torch.device("meta"):
        model = GPT(setup.config)
    policy = setup.policy
    units = [
        layouts_with(policy, layer, setup.sharing, setup.copies) for layer in model
    ]
    layouts = [layout for unit in units for layout in unit]
    kinds = total(layouts, setup.stage, policy, setup.copies)
    steady = steady_terms(setup, layouts, rank % setup.sharing)
    plain = policy.param_dtype is None and not policy.offload
    changed = setup.checkpointed or setup.compiled
    known = setup.stage == 3 and plain and not changed and setup.copies == 1
    extra = extra_moments(setup, layouts, rank) if known else {}
    moments = {name: sum(steady.values()) + more for name, more in extra.items()}
    # The optimizer's state is on the same device as the masters.
    state = sum(steady.get(name, 0) for name in ("moments", "step counters"))
    # The ranks compare one flag before each step of the optimizer.
    flag = all_reduce_bytes(rank, setup.world_size, FLOAT, FLOAT) if setup.scaled else 0
    # For the norm each rank gets a number of 8 bytes from each of some other ranks.
    norms = 8 * setup.norm_from
    return Forecast(
        sent=setup.accumulate * kinds.sent + flag + norms,
        steady=steady,
        moments=moments,
        host=kinds.masters_on_host + state if policy.offload else 0,
        moved=setup.accumulate * kinds.moved,
    )


def steady_terms(setup: Setup, layouts: list[Layout], rank: int) -> dict[str, int]:
    r"""The bytes that a rank stores between steps.

    With $\Psi_r$ parameters in this rank's slices, and $n$ parameter tensors in the
    model, they are in stage 3

    $$4 \sum_u S_u + 8\,\Psi_r + 4n + \text{text}$$

    The shards include their padding. The moments do not, since an optimizer sees only
    the slices. Below stage 3 the vectors stay whole, with $P_u$ instead of $S_u$. In
    stage 0 the moments are whole, too. The bytes of a policy are in [another
    table](policy_bytes.py).
    """
    kinds = total(layouts, setup.stage, setup.policy)
    terms = {"parameters": kinds.parameters + kinds.masters_on_host}
    if setup.optimizer == "adamw":
        trained = sum(
            sum(pieces(layout, rank)) if setup.stage else layout.numel
            for layout in layouts
        )
        terms["moments"] = 2 * FLOAT * trained
        # AdamW counts the steps of each tensor, even of one that is empty on this rank,
        # unless [another rank has all of it](access.py#hide_absent).
        counted = [n for layout in layouts for n in counts(layout, rank, setup.stage)]
        terms["step counters"] = FLOAT * sum(counted)
    if setup.scaled:
        # The factor, and the steps since it last changed.
        terms["loss scale"] = FLOAT + FLOAT
    return {**terms, "text": setup.text}


def extra_moments(setup: Setup, layouts: list[Layout], rank: int) -> dict[str, int]:
    r"""The bytes beyond the steady ones, at each moment that may be the peak.

    For each token a block saves $16d + 4 + h$ numbers for its backward pass: $5d$ for
    the inputs of its two norms, of its attention's two products and of the expansion,
    $3d$ for the queries, keys and values, $8d$ around the GELU, and the statistics of
    the norms and of the softmax.
    """
    config, last = setup.config, len(layouts) - 1
    d, vocabulary = config.width, config.vocabulary
    tokens = setup.batch * config.context
    saved = 16 * d + 4 + config.heads
    # The tokens and their targets, the positions, the loss, and the gradient with which
    # the backward pass starts.
    inputs = INTEGER * (2 * tokens + config.context) + 2 * FLOAT
    flight = [units_in_flight(setup, layouts, k, rank) for k in range(last + 1)]
    # When the loss is computed, no unit is gathered. Three tensors of the logits' size
    # exist at once: the log-probabilities, their gradient, and the logits' gradient.
    logits = tokens * vocabulary
    numbers = {
        "loss": waiting_gradients(setup, layouts)
        + tokens * (config.layers * saved + 2 * d + 2)
        + 3 * logits
    }
    # While the gradient of the head's matrix is computed, the larger of two tensors
    # exists: the logits' gradient, or the vector that collects the unit's gradients.
    # This is the first gradient of the head to be stored, so the gather of the unit
    # before it has not [begun](hooks.py#Hooks.look_ahead).
    collected = layouts[last].padded
    numbers["backward of the head"] = (
        flight[last]
        - layouts[last - 1].padded
        + tokens * (config.layers * saved + 2 * d + 2)
        + vocabulary * d
        + max(tokens * d + logits - collected, 0)
    )
    for k in range(1, last):
        # The incoming gradient, and the larger of two others: the one inside the GELU,
        # four times as wide, or that of the second matrix's weights. The gradient of
        # its bias has been stored, and the unit before is being gathered.
        inside = tokens * d + max(4 * tokens * d, 4 * d * d)
        numbers[f"backward of block {k - 1}"] = flight[k] + tokens * k * saved + inside
        # When this block has ended and is freed, the exchange of the layer after it is
        # completed, and the mean takes memory of its own.
        numbers[f"end of block {k - 1}"] = (
            flight[k]
            - layouts[k].padded
            + layouts[k + 1].shard_numel
            + tokens * ((k - 1) * saved + d)
        )
    # The positions are freed by now. Each was as large as two floats.
    numbers["backward of the embedding"] = (
        flight[0] + tokens * d + vocabulary * d - 2 * config.context
    )
    # The optimizer needs all gradients and, for one tensor at a time, two temporaries.
    largest = max(piece for layout in layouts for piece in pieces(layout, rank))
    moments = {name: FLOAT * number + inputs for name, number in numbers.items()}
    moments["optimizer step"] = FLOAT * (
        sum(layout.shard_numel for layout in layouts) + 2 * largest
    )
    return moments


def units_in_flight(setup: Setup, layouts: list[Layout], k: int, rank: int = 0) -> int:
    """The elements that the units hold beyond their shards, in the middle of unit `k`'s
    backward pass.

    Unit `k` is unsharded, and the unit before it is being gathered. One vector collects
    the gradients of unit `k`. The vector of the unit after it is being exchanged, which
    takes memory for [the received pieces](exchange.py). The later units have their
    shard of the gradients.
    """
    full = [layout.padded for layout in layouts]
    gathered = sum(full[max(0, k - 1) : k + 1])
    received = setup.world_size - (rank in (0, setup.world_size - 1))
    exchanged = sum(
        layout.padded + received * layout.shard_numel
        for layout in layouts[k + 1 : k + 2]
    )
    finished = sum(layout.shard_numel for layout in layouts[k + 2 :])
    return (
        gathered
        + full[k]
        + exchanged
        + finished
        + waiting_gradients(setup, layouts[: k + 2])
    )


def waiting_gradients(setup: Setup, layouts: list[Layout]) -> int:
    """The elements of gradients that the earlier micro-batches have left."""
    return sum(layout.shard_numel for layout in layouts) if setup.accumulate > 1 else 0


def counts(layout: Layout, rank: int, stage: int) -> Iterator[bool]:
    """Whether a rank's optimizer counts the steps of each parameter of a vector."""
    for slot, size in zip(layout.slots, pieces(layout, rank), strict=True):
        yield not (stage and layout.uncut and size < slot.numel)


def pieces(layout: Layout, rank: int) -> list[int]:
    """The sizes of a rank's slices of a vector."""
    return [
        stop - start
        for start, stop in (layout.piece(slot, rank) for slot in layout.slots)
    ]
