r"""# The learning-rate schedule

> The learning rate rises during the warm-up, and then stays or falls along a cosine.

With a peak of 0.001 and a warm-up of 200 steps, the first step has the learning rate
0.000005, the 100th has 0.0005, and the 200th has 0.001. The warm-up helps because
AdamW divides by averages of the gradients. At the beginning these averages rest on a
few steps, and a full step may be far too long.

Towards the end of a run, smaller steps find a lower loss. With `--schedule cosine` the
rate falls slowly at first, fast in the middle, and slowly again:

$$\eta_t = \eta \cdot \frac{t + 1}{W} \quad (t < W), \qquad
\eta_t = \eta \Bigl( f + (1 - f)\,\frac{1 + \cos \pi x}{2} \Bigr), \quad
x = \frac{t - W}{T - 1 - W}$$

The rate depends only on the step's number and the options. So a schedule has no state:
a run that is resumed at step 700 has the rate of step 700.

:notation $\eta$: `peak`, the learning rate after the warm-up
:notation $t$: `number`, the step, counted from 0
:notation $W$: `warmup`, the number of steps in which the rate grows
:notation $T$: `steps`, the number of steps in the run
:notation $f$: `end`, the part of $\eta$ that the last step has
:notation $x$: how far the run is after the warm-up, from 0 to 1
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

__all__ = ["Schedule"]


@dataclass(frozen=True, slots=True)
class Schedule:
    """The learning rate of every step.

    >>> schedule = Schedule(peak=1.0, steps=7, warmup=2, shape="cosine", end=0.1)
    >>> [round(schedule.at(number), 3) for number in range(7)]
    [0.5, 1.0, 1.0, 0.868, 0.55, 0.232, 0.1]

    :param shape: `"cosine"`, or `"constant"`, which stays at the peak
    """

    peak: float
    steps: int
    warmup: int = 0
    shape: str = "constant"
    end: float = 0.1

    def at(self, number: int) -> float:
        """The learning rate of the step with this number."""
        if number < self.warmup:
            # Not `number`: the first step would have the rate 0, and train nothing.
            return self.peak * (number + 1) / self.warmup
        if self.shape == "constant":
            return self.peak
        done = (number - self.warmup) / max(1, self.steps - 1 - self.warmup)
        fallen = self.end + (1 - self.end) * (1 + math.cos(math.pi * min(done, 1))) / 2
        return self.peak * fallen

    def apply(self, optimizer: torch.optim.Optimizer, number: int) -> float:
        """Set the optimizer's learning rate for a step."""
        rate = self.at(number)
        for group in optimizer.param_groups:
            group["lr"] = rate
        return rate
