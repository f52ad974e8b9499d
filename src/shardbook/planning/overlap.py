r"""# When a gather hides

> A gather costs no time if the computation beside it takes as long. Whether it does
> depends on the tokens of a rank and on two speeds, and not on the size of the layer.

Stage 3 gathers a unit while the unit before it computes. Take a unit of 100 million
parameters in BF16 on 8 GPUs of one machine. Each rank receives seven eighths of 200 MB.
At 450 GB/s that takes 0.39 ms. In the forward pass a matrix does one multiplication and
one addition for each parameter and token. With 4,096 tokens on a rank, these are
$8.2 \cdot 10^{11}$ operations: at 400 TFLOP/s, 2.05 ms. So the gather is over long
before the computation, and takes no time of its own.

Now let a wire of 50 GB/s connect the GPUs. The gather takes 3.5 ms, and 1.45 ms of them
are waited for, in every unit.

In general a unit of $\Psi_u$ parameters and $b$ bytes each is gathered in $t_g$, and
computes in $t_c$:

$$
t_g = \frac{b\,\Psi_u}{W} \cdot \frac{N_d - 1}{N_d}
\qquad
t_c = \frac{2\,\Psi_u\,n}{F}
$$

The size of the unit stands in both, so it cancels. The gather hides if a rank has enough
tokens:

$$ n \ge \frac{b\,F}{2\,W} \cdot \frac{N_d - 1}{N_d} $$

The backward pass computes twice as much, and it also exchanges twice as much: a gather
and a reduce-scatter. So the same number of tokens is enough. Where
[checkpoints](checkpointing.py) compute the forward pass again, the backward pass takes
1.5 times as long and hides more.

**How large should a unit be?** The formula does not say, because the size cancels. What
limits it from below is latency: each of the $N_d - 1$ steps of a ring takes some time
$\alpha$ whatever it carries. A step carries $b\,\Psi_u/N_d$ bytes. If its latency shall
be a tenth of its time at most, then

$$ b\,\Psi_u \ge 9\,\alpha\,N_d\,W $$

From above, memory limits it: [two units are
whole](scheduler.py#module/prefetching-the-next-unit) at a time. For a transformer, one
block lies between these two limits on most machines.

The formulas leave out everything else: attention's own operations, which add to $t_c$;
kernels that wait for memory; and an exchange that takes cores from the computation. So
they say what is possible, and [a trace](tracking.py#module/a-trace-of-one-step) shows what happened.

```sh
python -m shardbook.planning.overlap --flops 400e12 --bandwidth 50e9 --ranks 8 --tokens 4096
```

:notation $\Psi_u$: `numel`, the number of parameters of the unit
:notation $N_d$: `ranks`, the number of ranks that share it
:notation $b$: `nbytes`, the bytes of one parameter as it travels
:notation $n$: `tokens`, the number of tokens that one rank computes with
:notation $F$: `flops`, the operations that a rank really does in a second
:notation $W$: `bandwidth`, the bytes that a rank receives in a second
:notation $\alpha$: `latency`, the time of a message that carries nothing, in seconds
:notation $t_g$: the seconds that a gather takes
:notation $t_c$: the seconds that the computation takes
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass

from shardbook.command import Mistake, Parser, complain, real, whole

__all__ = ["Wire", "main"]


@dataclass(frozen=True)
class Wire:
    """A rank's speeds and the ranks that it shares units with.

    The speeds are those that are reached. A GPU does less than its data sheet says, 40 to
    50% in good programs, and of a network card each rank has the part that the other
    ranks of its machine leave to it.
    """

    flops: float
    bandwidth: float
    ranks: int
    nbytes: int = 2
    latency: float = 10e-6

    def gather_seconds(self, numel: float) -> float:
        """The time of an all-gather, without latency.

        >>> f"{1e3 * Wire(400e12, 450e9, ranks=8).gather_seconds(100e6):.2f} ms"
        '0.39 ms'
        """
        return self.nbytes * numel / self.bandwidth * (self.ranks - 1) / self.ranks

    def compute_seconds(self, numel: float, tokens: int) -> float:
        """The time of a forward pass of matrix products.

        >>> f"{1e3 * Wire(400e12, 450e9, ranks=8).compute_seconds(100e6, 4096):.2f} ms"
        '2.05 ms'
        """
        return 2 * numel * tokens / self.flops

    def enough_tokens(self) -> int:
        """The least number of tokens on a rank with which gathers hide.

        >>> Wire(400e12, 450e9, ranks=8).enough_tokens()
        778
        >>> Wire(400e12, 50e9, ranks=8).enough_tokens()
        7000
        """
        share = (self.ranks - 1) / self.ranks
        tokens = self.nbytes * self.flops / (2 * self.bandwidth) * share
        # A rounding error must not add a token.
        return max(1, math.ceil(round(tokens, 6)))

    def waited(self, tokens: int) -> float:
        """How much longer a forward pass takes than its computation, if the next gather always starts early.

        >>> f"{Wire(400e12, 50e9, ranks=8).waited(tokens=4096):.0%}"
        '71%'
        """
        ratio = self.gather_seconds(1) / self.compute_seconds(1, tokens)
        return max(0.0, ratio - 1)

    def unit_bytes(self) -> float:
        """The least size of a unit of whose gather at most a tenth is latency.

        >>> f"{Wire(400e12, 450e9, ranks=8).unit_bytes() / 1e6:.0f} MB"
        '324 MB'
        """
        return 9 * self.latency * self.ranks * self.bandwidth


def main(arguments: list[str] | None = None) -> int:
    """Say, for one machine, how many tokens hide a gather."""
    try:
        given = parse(arguments)
    except Mistake as mistake:
        return complain("shardbook.planning.overlap", mistake)
    wire = Wire(given.flops, given.bandwidth, given.ranks, given.bytes, given.latency)
    print(f"A gather hides behind {wire.enough_tokens():,} tokens on a rank or more.")
    factor = 1 + wire.waited(given.tokens)
    print(
        f"With {given.tokens:,} tokens a pass takes {factor:.2f} times its computation."
    )
    print(
        f"Of units of {wire.unit_bytes() / 1e6:,.0f} MB or more, latency is a tenth of the gather at most."
    )
    return 0


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = Parser(
        prog="python -m shardbook.planning.overlap",
        description="Say how many tokens on a rank hide the gathers of stage 3.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add, speed = parser.add_argument, real(1, 1e30)
    add(
        "--flops",
        type=speed,
        default=400e12,
        help="operations a second that a rank really does",
    )
    add(
        "--bandwidth",
        type=speed,
        default=450e9,
        help="bytes a second that a rank receives",
    )
    add("--ranks", type=whole(1, 10**6), default=8, help="ranks that share a unit")
    add(
        "--tokens",
        type=whole(1, 10**12),
        default=4096,
        help="tokens that one rank computes with",
    )
    add(
        "--bytes",
        type=whole(1, 1000),
        default=2,
        help="bytes of one parameter as it travels",
    )
    add(
        "--latency",
        type=real(1e-12, 1e3),
        default=10e-6,
        help="seconds of a message that carries nothing",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
