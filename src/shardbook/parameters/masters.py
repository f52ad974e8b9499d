r"""# Master weights

> The optimizer trains parameters in full precision, and modules compute with copies in 16 bits.

One step of an optimizer changes a weight very little. BF16 keeps 8 significant bits, so
a change of less than a 512th of the weight is rounded away, and the weight never moves.
FP32 keeps such changes. But the matrix products of a forward pass do not need those
digits, and in 16 bits they move half the bytes.

So a parameter has two forms. The *master weights* are what the optimizer trains and
what is saved: `shard`, in the dtype that the model had. What modules compute with is
`full`, in [`param_dtype`](policy.py#Policy). Without a policy the two have the same
format, and in stages 0 to 2 even the same memory. With one, `full` is made from the
masters before each use. In stage 0 each rank casts the whole vector, and nothing is
exchanged. In the other stages each rank casts its own part, and the ranks exchange the
cast parts. In BF16 a gather then sends $2\,P_u\,(N_d-1)/N_d$ bytes instead of
$4\,P_u\,(N_d-1)/N_d$.

What a unit stores for its parameters, in bytes, with FP32 masters and BF16 in use:

| stage | masters | between uses | while it computes |
|---|---|---|---|
| 0 | $4\,P_u$ | $2\,P_u$ | $2\,P_u$ |
| 1, 2 | $4\,S_u$ | $2\,P_u$ | $2\,P_u$ |
| 3 | $4\,S_u$ | 0 | $2\,P_u$ |

In stage 0 a policy costs memory. In stages 1 and 2 it saves some from three ranks on,
and in stage 3 it halves what a unit takes beside its masters while it computes.

The gradients come back in the format of the computation, are exchanged in [that of the
exchange](policy.py#Policy.sends_in), and are cast to the masters' dtype after it. The
mean itself is formed in FP32 and rounded to the format of the exchange before that
cast. What is added up over several exchanges is added up in FP32.

:notation $N_d$: `world_size`, the number of ranks that share the unit
:notation $P_u$: `padded`, the length of a unit's flat vector with its padding
:notation $S_u$: `shard_numel`, the length of one rank's part of it
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from shardbook.foundations.layout import Layout, shares_storage
from shardbook.parameters.flat import Flat
from shardbook.parameters.offload import move_in, move_out, put_away
from shardbook.parameters.parameter_sites import Site
from shardbook.parameters.policy import Policy

__all__ = ["FlatWithMasters", "dtypes_of"]
# sidelit: show


class FlatWithMasters(Flat):
    """A flat vector that may be stored in one form and computed with in another.

    :param offload: whether it is stored in the host's memory
    """

    def __init__(
        self, layout: Layout, parameters: dict[str, nn.Parameter], *, offload: bool
    ) -> None:
        super().__init__(layout, parameters)
        self.offloaded = offload
        self.narrowed = layout.computes_in != layout.dtype
        # What `full` and its parameters are otherwise, while `full` has the masters' format.
        self.usual: tuple[Tensor, tuple[nn.Parameter, ...]] | None = None

    @property
    def converts(self) -> bool:
        """Whether modules compute with a copy of what is stored."""
        return self.narrowed or self.offloaded

    def take(self, place: slice, *, apart: bool) -> None:
        """Put the masters apart, and lay the parameters over a vector of the other
        form.

        Until then `full` holds the values as the model had them. It is dropped before
        the other vector is made. So in stage 3 a unit is cut with no more memory than
        without a policy. In the other stages one of the two forms comes on top.
        """
        if not self.converts:
            super().take(place, apart=apart)
            return
        masters = self.full[place]
        if self.offloaded:
            masters = put_away(masters)
        elif self.sliced:
            masters = masters.clone()
        del self.full
        self.full = torch.empty(
            self.layout.padded, dtype=self.layout.computes_in, device=self.device
        )
        super().take(place, apart=False)
        self.shard = masters

    def piece(self) -> Tensor:
        """This rank's part in the form in which it is exchanged.

        It is cast straight into its place in `full`. So the 16-bit part takes no memory
        of its own, and it lives as long as `full` is in use.
        """
        if not self.converts or shares_storage(self.full, self.shard):
            return self.shard
        place = self.full[self.place_of_shard]
        if self.offloaded:
            move_in(self.shard, place)
        else:
            place.copy_(self.shard)
        return place

    def brought_home(self, mean: Tensor) -> Tensor:
        """A mean gradient, where the masters are."""
        return move_out(mean) if self.offloaded else mean

    # sidelit: depth Blocks of `full_precision`, which compute with the masters themselves.

    @property
    def precise(self) -> bool:
        """Whether `full` has the masters' format now, and otherwise another one."""
        return self.usual is not None

    def switch(self, precise: bool) -> bool:
        """Let `full` have the masters' format, or its usual one again.

        :returns: whether anything has changed
        """
        if not self.narrowed or precise is self.precise:
            return False
        if self.usual is not None:
            (self.full, self.whole), self.usual = self.usual, None
            return True
        # The hooks that collect gradients belong to the usual parameters. So these are
        # kept, with the vector that they are views of.
        self.usual = self.full, self.whole
        if self.sliced or self.offloaded:
            self.full = torch.empty(
                self.layout.padded, dtype=self.layout.dtype, device=self.device
            )
        else:
            # A rank that keeps everything has the masters whole already.
            self.full = self.shard
        # No gradient is computed with these, so nobody has to collect one.
        self.whole = self.parameters_in(self.full, trainable=False)
        return True


def dtypes_of(
    policy: Policy, sites: Sequence[Site]
) -> Callable[[nn.Parameter], torch.dtype]:
    """The function that gives the dtype in which a parameter is computed with.

    A tied parameter stands in several modules and has one whole form. It is computed
    with in FP32 only if [the rule](norms.py) says so for all of them.

    :param sites: where the parameters of a unit stand
    """
    others = {
        site.parameter
        for site in sites
        if not isinstance(site.module, policy.fp32_modules)
    }
    return lambda parameter: policy.computes_in(
        parameter.dtype, in_fp32=parameter not in others
    )
