r"""# The bytes of a policy

> A policy's dtypes decide how many bytes a rank stores, gathers and sends for each number.

[A policy](policy.py) sets the dtypes in which numbers are stored, used by modules,
collected as gradients, and sent. A unit with parameters of several kinds has a flat
vector for each kind, so this chapter counts vector by vector. [The planner](planner.py)
and [the forecast](forecast.py) add the vectors up.

Let a number have $m$ bytes as a master, $b$ in the modules, $c$ as a collected gradient
and $s$ when it is sent. One vector then takes:

| stage | masters | `full` between uses | gradients, at most | sent for a micro-batch |
|---|---|---|---|---|
| 0 | $m\,P_u$ | $b\,P_u$ | $\max(c, m)\,P_u$ | $2s\,(P_u - S_u)$ |
| 1 | $m\,S_u$ | $b\,P_u$ | $\max(c\,P_u, m\,S_u)$ | $(s + b)(P_u - S_u)$ |
| 2 | $m\,S_u$ | $b\,P_u$ | $m\,S_u$ | the same |
| 3 | $m\,S_u$ | 0 | $m\,S_u$ | $(s + 2b)(P_u - S_u)$ |

If modules compute with the masters themselves, the two columns after the stage are one:
$m\,P_u$ in stages 0 to 2, $m\,S_u$ in stage 3.

With [offload](offload.py) the masters and the mean gradients are on the host. Each rank
moves only its own part: in $b$ bytes a number before each gather, or in stage 0 before
each forward pass, and in $s$ bytes after each exchange.

If there are $R$ [copies of the model](groups.py), the mean is then taken over them,
too, and $2s\,S_u\,(R-1)/R$ more bytes are sent.

These figures hold on every backend. Even on NCCL 16-bit gradients are sent in 16 bits,
by [an all-to-all](exchange.py), and added in FP32.

:notation $P_u$: `padded`, the elements of one flat vector of unit $u$ with its padding
:notation $S_u$: `shard_numel`, a rank's part of them
:notation $m$: `masters`, the bytes of a number as it is stored
:notation $b$: `computed`, the bytes of a number as modules compute with it
:notation $c$: `collected`, the bytes of a number in the vector that collects gradients
:notation $s$: `sent`, the bytes of a number as it travels in the exchange of gradients
:notation $R$: `copies`, the number of copies of the model
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, fields

from torch import nn

from shardbook.foundations.layout import Layout, plan
from shardbook.parameters.masters import dtypes_of
from shardbook.parameters.parameter_sites import sites_of
from shardbook.parameters.policy import Policy

__all__ = ["AS_IT_IS", "Kinds", "kinds_of", "layouts_with", "total"]

AS_IT_IS = Policy()


@dataclass(frozen=True, slots=True)
class Kinds:
    """The bytes of trainable vectors on one rank.

    :param parameters: on the device, between steps
    :param masters_on_host: parameters on the host
    :param gradients: on the device, at the end of a backward pass
    :param gradients_on_host: at the same moment, on the host
    :param sent: handed to the network for one micro-batch
    :param moved: copied between host and device, for one micro-batch
    """

    parameters: int = 0
    masters_on_host: int = 0
    gradients: int = 0
    gradients_on_host: int = 0
    sent: int = 0
    moved: int = 0

    def __add__(self, other: Kinds) -> Kinds:
        names = [field.name for field in fields(self)]
        return Kinds(*(getattr(self, name) + getattr(other, name) for name in names))


def kinds_of(layout: Layout, stage: int, policy: Policy, copies: int = 1) -> Kinds:
    """The bytes of one trainable vector on one rank.

    >>> import torch
    >>> (layout,) = plan([("weight", nn.Parameter(torch.ones(64, 64)))], world_size=4)
    >>> kinds_of(layout, 3, Policy()).sent, kinds_of(layout, 3, Policy()).parameters
    (36864, 4096)

    :param layout: its length, and the dtypes in which it is stored and computed with
    :param policy: the dtype in which its gradients are sent, and where it is stored
    :param copies: the number of copies of the model
    """
    masters, computed = layout.dtype.itemsize, layout.computes_in.itemsize
    collected = policy.collects_in(layout.computes_in).itemsize
    sent = policy.sends_in(layout.computes_in).itemsize
    whole, part = layout.padded, layout.shard_numel
    kept = part if stage else whole
    own, mean = masters * kept, masters * kept
    # Stages 0 and 1 keep the collected gradients until the backward pass ends.
    vectors = collected * whole if stage < 2 else 0
    copied = layout.computes_in != layout.dtype or policy.offload
    if not copied:
        full, own = (0, own) if stage == 3 else (masters * whole, 0)
    else:
        full = 0 if stage == 3 else computed * whole
    gathers = (0, 1, 1, 2)[stage]
    reduced = 2 if stage == 0 else 1
    # In stage 0 the masters come from the host without a gather, once for each forward
    # pass.
    entered = max(gathers, 1)
    return Kinds(
        parameters=full if policy.offload else full + own,
        masters_on_host=own if policy.offload else 0,
        gradients=vectors if policy.offload else max(vectors, mean),
        gradients_on_host=mean if policy.offload else 0,
        sent=(reduced * sent + gathers * computed) * (whole - part)
        # The mean is then taken [over the copies](groups.py#Groups.mean).
        + 2 * sent * (copies - 1) * part // copies,
        moved=(entered * computed + sent) * kept if policy.offload else 0,
    )


def total(
    layouts: Iterable[Layout], stage: int, policy: Policy, copies: int = 1
) -> Kinds:
    """The bytes of all vectors of a model.

    They include [the comparison](unused.py) of the parameters that were used, an
    all-reduce of 4 bytes for each parameter tensor.

    :param layouts: of its trainable vectors
    :param copies: the number of copies of the model
    """
    layouts = list(layouts)
    numbers = sum(len(layout.slots) for layout in layouts) + 2 * (stage == 0)
    size = copies * max((layout.world_size for layout in layouts), default=1)
    compared = 4 * (numbers + -numbers % (2 * size))
    return sum(
        (kinds_of(layout, stage, policy, copies) for layout in layouts),
        Kinds(sent=2 * (size - 1) * compared // size),
    )


def layouts_with(
    policy: Policy,
    unit: nn.Module,
    world_size: int,
    copies: int = 1,
    uncut: Container[str] = (),
) -> tuple[Layout, ...]:
    """The layouts of a unit's vectors, as sharding under the policy would cut them.

    :param unit: not sharded; it may be on the meta device
    :param world_size: the number of ranks that share one copy of the model
    :param copies: the number of copies
    :param uncut: the names in the unit of parameters that belong whole to one rank
    :returns: one layout for each kind of parameter
    """
    dtypes = dtypes_of(policy, sites_of(unit))
    return plan(unit.named_parameters(), world_size, copies, dtypes, uncut)
