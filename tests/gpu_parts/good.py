"""A part that says one thing of each kind."""

from tools.gpu.kit import Kit


def run(kit: Kit) -> None:
    kit.holds("a promise", True, difference=0.0)
    kit.shows("a figure", seconds=0.25, spread=[0.2, 0.3], what="two numbers")
    kit.time_for(10_000, "what takes hours")
    kit.attempt("a case that raises", lambda: [][0])
    kit.holds("the sum over two ranks", kit.ranks(2, total, 2) == [4, 4])


def total(value: int) -> int:
    import torch
    import torch.distributed as dist

    number = torch.tensor(value)
    dist.all_reduce(number)
    return int(number)
