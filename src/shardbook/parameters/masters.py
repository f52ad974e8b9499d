r"""# Master weights

> The optimizer trains FP32 parameters, and modules compute with 16-bit copies of them.

One step of an optimizer changes a weight very little. BF16 keeps 8 significant bits, so
a change of less than a 512th of the weight is rounded away, and the weight never
changes. FP32 keeps such changes. But the matrix products of a forward pass do not need
so many digits, and in 16 bits they move half the bytes.

So with a policy each parameter exists twice. The *master weights* are the parameters
that the optimizer trains and that are saved. They are stored in `shard`, in the dtype
that the model had when it was sharded. Modules compute with `full`, which has the dtype
[`param_dtype`](policy.py#Policy). Without a policy `full` has the masters' dtype, and
in stages 0 to 2 even the same memory.

With a policy, `full` is made from the masters before each use. In stage 0 each rank
casts the whole vector, and nothing is exchanged. In the other stages each rank casts
its own part, and the ranks exchange the cast parts. In BF16 a gather then sends
$2\,P_u\,(N_d-1)/N_d$ bytes instead of $4\,P_u\,(N_d-1)/N_d$.

The table shows the bytes that a unit stores for its parameters, if the masters are in
FP32 and the modules compute in BF16:

| stage | masters | between uses | while it computes |
|---|---|---|---|
| 0 | $4\,P_u$ | $2\,P_u$ | $2\,P_u$ |
| 1, 2 | $4\,S_u$ | $2\,P_u$ | $2\,P_u$ |
| 3 | $4\,S_u$ | 0 | $2\,P_u$ |

In stage 0 a policy costs memory. In stages 1 and 2 it saves memory if there are three
ranks or more. In stage 3 it halves the memory that a unit takes beside its masters
while it computes.

Gradients have the dtype of the computation. They are exchanged in [the dtype of the
exchange](policy.py#Policy.sends_in) and afterwards cast to the masters' dtype. The mean
is formed in FP32, then rounded to the dtype of the exchange, and then cast. If the
means of several exchanges are added up, they are added in the masters' dtype.

**Without masters.** Two other ways keep small changes in BF16. *Stochastic rounding*
rounds a change up or down at random, so that the mean is right: below 1 two BF16 numbers
are 0.0039 apart, and a change of 0.001 is then made in one step of four. *Kahan
summation* stores what the last rounding has lost in a second BF16 number, and adds it in
the next step. Both need 4 bytes or less for a weight, where masters with a 16-bit copy
need 6. This library has neither, because an ordinary optimizer would not use them.

:figure: copies_and_dtypes
:notation $N_d$: `world_size`, the number of ranks that share the unit
:notation $P_u$: `padded`, the length of a unit's flat vector with its padding
:notation $S_u$: `shard_numel`, the length of one rank's part of it
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from shardbook.foundations.layout import Layout, shares_storage
from shardbook.parameters.flat import Flat
from shardbook.parameters.offload import move_in, move_out, put_away
from shardbook.parameters.parameter_sites import Site
from shardbook.parameters.policy import Policy
from shardbook.parameters.whole_form import match

__all__ = ["FlatWithMasters", "dtypes_of"]


class FlatWithMasters(Flat):
    """A flat vector that may be stored in another dtype or place than it is computed
    with.

    :param offload: whether the masters are stored in the host's memory
    """

    def __init__(
        self, layout: Layout, parameters: dict[str, nn.Parameter], *, offload: bool
    ) -> None:
        super().__init__(layout, parameters)
        self.offloaded = offload
        self.narrowed = layout.computes_in != layout.dtype
        # `full` and its parameters as they usually are, while `full` has the masters'
        # dtype.
        self.usual: tuple[Tensor, tuple[nn.Parameter, ...]] | None = None

    @property
    def converts(self) -> bool:
        """Whether modules compute with a copy of the masters."""
        return self.narrowed or self.offloaded

    def take(self, place: slice, *, apart: bool) -> None:
        """Move the masters out of `full`, and lay the parameters over a new `full`.

        Before this call `full` holds the values of the model. It is dropped before the
        new `full` is allocated. So in stage 3 a unit is cut with no more memory than
        without a policy. In the other stages the memory of either the masters or the
        copy is added.

        :param place: the part of `full` that this rank keeps
        :param apart: whether that part needs memory of its own
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
        """This rank's part in the dtype of the exchange between the ranks.

        The part is cast straight into its place in `full`. So the 16-bit part takes no
        memory of its own, and it exists as long as `full` does.
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
        """The mean gradient, moved to the host if the masters are stored there."""
        return move_out(mean) if self.offloaded else mean

    # sidelit: depth Blocks of `full_precision`, which compute with the masters themselves.

    @property
    def precise(self) -> bool:
        """Whether `full` has the masters' dtype now, although it usually has another one."""
        return self.usual is not None

    def switch(self, precise: bool) -> bool:
        """Give `full` the masters' dtype, or its usual one again.

        :returns: whether anything has changed
        """
        if not self.narrowed or precise is self.precise:
            return False
        if self.usual is not None:
            (self.full, self.whole), self.usual = self.usual, None
            return True
        # The hooks that collect gradients belong to the usual parameters. So these are
        # kept, together with the vector under them.
        self.usual = self.full, self.whole
        if self.sliced or self.offloaded:
            self.full = torch.empty(
                self.layout.padded, dtype=self.layout.dtype, device=self.device
            )
        else:
            # A rank that keeps the whole vector has all of the masters already.
            self.full = self.shard
        # No gradient is computed with these parameters, so they need no hooks.
        self.whole = self.parameters_in(self.full, trainable=False)
        match(self.whole, self.parameters)
        return True


def dtypes_of(
    policy: Policy, sites: Sequence[Site]
) -> Callable[[nn.Parameter], torch.dtype]:
    """The function that gives the dtype in which modules compute with a parameter.

    A tied parameter is an attribute of several modules, but has one whole copy. That
    copy is in FP32 only if [the rule](norms.py) names all of these modules.

    :param policy: the policy of the model
    :param sites: the sites of a unit's parameters
    """
    others = {
        site.parameter
        for site in sites
        if not isinstance(site.module, policy.fp32_modules)
    }
    return lambda parameter: policy.computes_in(
        parameter.dtype, in_fp32=parameter not in others
    )
