"""Say what a step of AdamW takes on the host: one tensor after the other, in lists, and fused.

With offload the optimizer runs on the host while the device waits. The best of some steps counts, since other
work on the machine only makes a step longer.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import torch
from benchmarks.__main__ import positive
from torch import nn

WAYS = {
    "one tensor after the other": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}


def seconds(parameters: int, tensors: int, steps: int, **options: bool) -> float:
    """The time of the fastest of some steps, after one that makes the state."""
    held = [nn.Parameter(torch.randn(parameters // tensors)) for _ in range(tensors)]
    for parameter in held:
        parameter.grad = torch.randn_like(parameter)
    optimizer = torch.optim.AdamW(held, **options)
    optimizer.step()
    best = float("inf")
    for _ in range(steps):
        begin = time.perf_counter()
        optimizer.step()
        best = min(best, time.perf_counter() - begin)
    return best


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure each way, and print a line for it."""
    parser = argparse.ArgumentParser(prog="benchmarks.host_adam", description=__doc__)
    parser.add_argument("--parameters", type=positive, default=20_000_000)
    parser.add_argument("--tensors", type=positive, default=10)
    parser.add_argument("--steps", type=positive, default=20)
    parser.add_argument("--threads", type=positive, default=torch.get_num_threads())
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    print(f"{options.parameters:,} parameters in FP32, {options.threads} threads")
    for name, way in WAYS.items():
        taken = seconds(options.parameters, options.tensors, options.steps, **way)
        print(f"{name:28}{taken * 1e3:10.1f} ms")


if __name__ == "__main__":
    main()
