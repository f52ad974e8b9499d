"""Odd answers: right ones in an odd form, wrong ones that look right, and ranks that do not return."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from shardbook import labs
from shardbook.labs.lessons import (
    break_it,
    checkpointing_lab,
    fifty_lines_yourself,
    formats_lab,
    kill_and_resume,
    messages,
    predict_the_bytes,
    prefetch,
    where_memory_goes,
)
from shardbook.labs.lessons import collectives_by_hand as collectives
from shardbook.labs.lessons import evaluate_on_rank_0 as last_lab
from shardbook.labs.notebook import Check

# As the functions of a cell: a rank cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

RIGHT = ""


def verdict(check: Check, *given: Any) -> str:
    """What the check says against an answer; nothing if it is right."""
    try:
        check(*given)
    except labs.NotYet as error:
        return str(error)
    return RIGHT


# --- answers in this process ---


def adamw(kind: Callable[[int], Any]) -> Callable[[int], Any]:
    return lambda parameters: kind(16 * parameters)


def needs_a_kernel(parameters: int) -> Any:
    """PyTorch has no such operation, and says so with the error of a blank."""
    return nn.Module()(parameters)


def says_what_is_missing(parameters: int) -> Any:
    raise NotImplementedError("only for AdamW")


def blank(*given: Any) -> Any:
    raise NotImplementedError()


def leaves(parameters: int) -> Any:
    sys.exit(0)


def flatten(tensors: list[Tensor], count: int) -> Tensor:
    vector = torch.cat([each.flatten() for each in tensors])
    return F.pad(vector, (0, -len(vector) % count))


def flatten_and_empty(tensors: list[Tensor], count: int) -> Tensor:
    vector = flatten(tensors, count)
    tensors[0].zero_()
    return vector


def cut(vector: Tensor, rank: int, count: int) -> Tensor:
    return vector.chunk(count)[rank].clone()


def cut_and_clear(vector: Tensor, rank: int, count: int) -> Tensor:
    part = cut(vector, rank, count)
    vector.zero_()
    return part


def exposed(gather: tuple[float, float], computed: list[tuple[float, float]]) -> float:
    begin, end = gather
    return (end - begin) - sum(max(0, min(end, b) - max(begin, a)) for a, b in computed)


def exposed_and_emptied(gather: tuple[float, float], computed: list[tuple[float, float]]) -> float:
    found = exposed(gather, computed)
    computed.clear()
    return found


def depth(gathers: list[float], computes: list[float]) -> Any:
    answers = {(1, 1, 1, 1): 1, (1, 1, 3, 1): 2, (1, 1, 1, 3): 3, (2,): 0}
    found = answers.get(tuple(gathers))
    return found if found is None else np.int64(found)


def leaks(vectors: dict[str, Tensor]) -> list[str]:
    return [name for name, each in vectors.items() if each.untyped_storage().nbytes()]


def leaks_and_frees(vectors: dict[str, Tensor]) -> list[str]:
    found = leaks(vectors)
    for each in vectors.values():
        each.untyped_storage().resize_(0)
    return found


def in_segments(chain: nn.Sequential, segments: int, x: Tensor) -> Tensor:
    size = len(chain) // segments
    for at in range(segments - 1):
        x = checkpoint(chain[at * size : (at + 1) * size], x, use_reentrant=False)
    y: Tensor = chain[(segments - 1) * size :](x)
    return y


def in_segments_of_zeros(chain: nn.Sequential, segments: int, x: Tensor) -> Tensor:
    x.zero_()
    return in_segments(chain, segments, x)


def next_scale(kind: Callable[[float], Any]) -> Callable[..., Any]:
    def given(scale: float, calm: int, overflow: bool, interval: int) -> Any:
        if overflow:
            return kind(scale / 2), 0
        return (kind(scale * 2), 0) if calm + 1 == interval else (kind(scale), calm + 1)

    return given


def settings(**changed: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"stage": 3, "batch": 8, "checkpointing": True, "offload": True} | changed


def difference(one: dict[int, float], other: dict[int, float]) -> Any:
    steps = sorted({*one} & {*other})
    return next((np.int64(step) for step in steps if one[step] != other[step]), None)


LOCAL: dict[str, tuple[Check, tuple[Any, ...], str]] = {
    "an integer of numpy": (where_memory_goes.bytes_of_adamw, (adamw(np.int64),), RIGHT),
    "a float of numpy": (where_memory_goes.bytes_of_adamw, (adamw(np.float32),), RIGHT),
    "an array without dimensions": (where_memory_goes.bytes_of_adamw, (adamw(np.array),), RIGHT),
    "a tensor without dimensions": (where_memory_goes.bytes_of_adamw, (adamw(torch.tensor),), RIGHT),
    "a fraction": (where_memory_goes.bytes_of_adamw, (adamw(Fraction),), RIGHT),
    "a decimal": (where_memory_goes.bytes_of_adamw, (adamw(Decimal),), RIGHT),
    "a wrong fraction": (where_memory_goes.bytes_of_adamw, (lambda p: Fraction(20 * p),), "twice"),
    "a vector of one number": (
        where_memory_goes.bytes_of_adamw,
        (lambda p: torch.tensor([16 * p]),),
        "is no number.\nWhat should bytes_of_adamw return",
    ),
    "a text": (where_memory_goes.bytes_of_adamw, (adamw(str),), "'16000', which is no number"),
    "true": (where_memory_goes.bytes_of_adamw, (adamw(bool),), "True, which is no number"),
    "not a number": (where_memory_goes.bytes_of_adamw, (lambda p: float("nan"),), "nan, which is no number"),
    "nothing": (where_memory_goes.bytes_of_adamw, (lambda p: [][p:] or None,), "end with `return`"),
    "no function": (where_memory_goes.bytes_of_adamw, (16_000,), "cannot be checked: TypeError"),
    "too few arguments": (where_memory_goes.bytes_of_adamw, (lambda: 16,), "cannot be checked: TypeError"),
    "the blank": (where_memory_goes.bytes_of_adamw, (blank,), "is still blank"),
    "PyTorch's own error": (
        where_memory_goes.bytes_of_adamw,
        (needs_a_kernel,),
        "raises NotImplementedError: Module [Module] is missing",
    ),
    "an error of the reader's": (
        where_memory_goes.bytes_of_adamw,
        (says_what_is_missing,),
        "raises NotImplementedError: only for AdamW",
    ),
    "an exit": (where_memory_goes.bytes_of_adamw, (leaves,), "raises SystemExit: 0"),
    "fractions on ranks": (
        where_memory_goes.bytes_on_a_rank,
        (lambda p, n, s: p * sum(b / Fraction(n if s >= at else 1) for at, b in ((3, 2), (2, 2), (1, 12))),),
        RIGHT,
    ),
    "a part of a vector": (fifty_lines_yourself.flatten_and_cut, (flatten, cut), RIGHT),
    "a changed tensor": (
        fifty_lines_yourself.flatten_and_cut,
        (flatten_and_empty, cut),
        "flatten has changed an argument",
    ),
    "a changed vector": (
        fifty_lines_yourself.flatten_and_cut,
        (flatten, cut_and_clear),
        "cut has changed an argument",
    ),
    "a vector in 16 bits": (
        fifty_lines_yourself.flatten_and_cut,
        (lambda tensors, count: flatten(tensors, count).half(), cut),
        "flatten returned values in torch.float16, but they should be in torch.float32",
    ),
    "a part in 64 bits": (
        fifty_lines_yourself.flatten_and_cut,
        (flatten, lambda *given: cut(*given).double()),
        "cut returned values in torch.float64",
    ),
    "a part of a copy": (
        fifty_lines_yourself.flatten_and_cut,
        (flatten, lambda vector, rank, count: vector.clone().chunk(count)[rank]),
        "view of a longer vector",
    ),
    "a span in numpy": (prefetch.exposed, (lambda *given: np.float64(exposed(*given)),), RIGHT),
    "an emptied list": (prefetch.exposed, (exposed_and_emptied,), "exposed has changed an argument"),
    "a depth in numpy": (prefetch.smallest_depth, (depth,), RIGHT),
    "freed vectors": (break_it.leaks, (leaks_and_frees,), "leaks has changed an argument"),
    "leaks in a tuple": (
        break_it.leaks,
        (lambda vectors: tuple(leaks(vectors)),),
        "must return a list of names.\nWhat should leaks return",
    ),
    "no segments": (
        checkpointing_lab.in_segments,
        (lambda chain, segments, x: chain(x),),
        "As many as without checkpoints",
    ),
    "a zeroed input": (
        checkpointing_lab.in_segments,
        (in_segments_of_zeros,),
        "in_segments has changed an argument",
    ),
    "segments in 64 bits": (
        checkpointing_lab.in_segments,
        (lambda *given: in_segments(*given).double(),),
        "in_segments returned values in torch.float64",
    ),
    "a scale in a tensor": (formats_lab.next_scale, (next_scale(torch.tensor),), RIGHT),
    "a scale in a text": (formats_lab.next_scale, (next_scale(str),), "'512.0', which is no number"),
    "settings in numpy": (
        predict_the_bytes.for_24_gb,
        (settings(stage=np.int64(3), batch=np.int64(8), offload=np.True_),),
        RIGHT,
    ),
    "a batch with a fraction": (predict_the_bytes.for_24_gb, (settings(batch=8.5),), "a whole number"),
    "a switch in words": (
        predict_the_bytes.for_24_gb,
        (settings(offload="no"),),
        "offload is either True or False, and not 'no'",
    ),
    "a step in numpy": (kill_and_resume.first_difference, (difference,), RIGHT),
}


@pytest.mark.parametrize("name", LOCAL)
def test_an_odd_answer_is_judged_by_what_it_is(name: str) -> None:
    check, given, wanted = LOCAL[name]
    said = verdict(check, *given)
    assert (wanted in said) if wanted else (said == RIGHT), said


# --- answers on ranks ---


def passed(tensor: Tensor) -> Tensor:
    """A right answer."""
    rank, count = dist.get_rank(), dist.get_world_size()
    received = torch.empty_like(tensor)
    handle = dist.isend(tensor.contiguous(), (rank + 1) % count)
    dist.recv(received, (rank - 1) % count)
    handle.wait()
    return received


def prints_much(tensor: Tensor) -> Tensor:
    for number in range(20_000):
        print("line", number)
    return passed(tensor)


def prints_for_ever(tensor: Tensor) -> Tensor:
    while True:
        print("again")


def loops(tensor: Tensor) -> Tensor:
    while True:
        pass


def one_loops(tensor: Tensor) -> Tensor:
    other = tensor
    while tensor[0] == 11:
        other = other + 1
    return passed(tensor)


def asks_for_ever(tensor: Tensor) -> Tensor:
    while dist.get_rank() >= 0:
        pass
    return tensor


def stops(tensor: Tensor) -> Tensor:
    if dist.get_rank() == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    return passed(tensor)


def returns_early(tensor: Tensor) -> Tensor:
    return tensor.clone() if dist.get_rank() == 0 else passed(tensor)


def exits_early(tensor: Tensor) -> Tensor:
    if dist.get_rank() == 0:
        os._exit(0)
    return passed(tensor)


def waits_by_handles(tensor: Tensor) -> Tensor:
    received = torch.empty_like(tensor)
    dist.irecv(received, (dist.get_rank() - 1) % dist.get_world_size()).wait()
    return received


def unfinished_on_ranks(tensor: Tensor) -> Tensor:
    return nn.Module()(tensor)  # type: ignore[no-any-return]


def gathered(piece: Tensor) -> Tensor:
    rank, count = dist.get_rank(), dist.get_world_size()
    pieces = [piece] * count
    for hop in range(1, count):
        piece = passed(piece)
        pieces[(rank - hop) % count] = piece
    return torch.cat(pieces)


def gathered_and_zeroed(piece: Tensor) -> Tensor:
    whole = gathered(piece)
    piece.zero_()
    return whole


def reduced_in_place(vector: Tensor) -> Tensor:
    rank, count = dist.get_rank(), dist.get_world_size()
    pieces = vector.chunk(count)
    for hop in range(1, count):
        pieces[(rank - hop - 1) % count].add_(passed(pieces[(rank - hop) % count]))
    return pieces[rank].clone()


def evaluated(model: Any, inputs: Tensor, targets: Tensor) -> Tensor:
    from shardbook.models.gpt import loss

    mine = slice(labs.rank(), None, dist.get_world_size())
    with torch.no_grad():
        mean = loss(model(inputs[mine]), targets[mine])
    both = torch.stack([mean * targets[mine].numel(), torch.full_like(mean, targets[mine].numel())])
    dist.all_reduce(both)
    return both[0] / both[1]


def evaluated_and_cleared(model: Any, inputs: Tensor, targets: Tensor) -> Tensor:
    found = evaluated(model, inputs, targets)
    targets.zero_()
    return found


ON_RANKS: dict[str, tuple[Check, Any, str]] = {
    "much output": (collectives.pass_on, prints_much, RIGHT),
    "output without end": (collectives.pass_on, prints_for_ever, "still running after 2 s on ranks 0, 1, 2"),
    "a loop": (collectives.pass_on, loops, "where no communication was waiting"),
    "a loop on one rank": (collectives.pass_on, one_loops, "still running after 2 s on rank 1, where"),
    "a loop over PyTorch": (collectives.pass_on, asks_for_ever, "still running after 2 s"),
    "a stopped rank": (collectives.pass_on, stops, "still running after 2 s on rank 0, where"),
    "an early return": (
        collectives.pass_on,
        returns_early,
        "returned on rank 0, and after 2 s it still waits on ranks 1, 2",
    ),
    "an early exit": (collectives.pass_on, exits_early, "ended with exit code 0 before it returned"),
    "a deadlock of handles": (collectives.pass_on, waits_by_handles, "pass_on is a deadlock: after 2 s"),
    "the blank": (collectives.pass_on, blank, "pass_on is still blank"),
    "PyTorch's own error": (collectives.pass_on, unfinished_on_ranks, "NotImplementedError: Module [Module]"),
    "another dtype": (collectives.pass_on, lambda t: passed(t).double(), "values in torch.float64"),
    "another shape": (
        collectives.pass_on,
        lambda t: passed(t)[:3],
        "a tensor of shape (3,), and not of (5,)",
    ),
    "all pieces": (collectives.all_gather, gathered, RIGHT),
    "a zeroed piece": (collectives.all_gather, gathered_and_zeroed, "all_gather has changed an argument"),
    "pieces in 64 bits": (
        collectives.all_gather,
        lambda piece: gathered(piece).double(),
        "values in torch.float64",
    ),
    "a changed vector": (
        collectives.reduce_scatter,
        reduced_in_place,
        "reduce_scatter has changed an argument",
    ),
    "a mean in a tensor": (last_lab.evaluate, evaluated, RIGHT),
    "cleared targets": (last_lab.evaluate, evaluated_and_cleared, "evaluate has changed an argument"),
}


@pytest.mark.cases(now=4, ci=4)
@pytest.mark.parametrize("name", ON_RANKS)
def test_an_odd_answer_on_ranks_is_judged_by_what_it_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "SECONDS", 20.0 if name == "much output" else 2.0)
    check, given, wanted = ON_RANKS[name]
    said = verdict(check, given)
    assert (wanted in said) if wanted else (said == RIGHT), said


def test_output_is_shown_up_to_a_limit_and_then_counted(capsys: pytest.CaptureFixture[str]) -> None:
    def talks() -> None:
        print("\n".join(["x" * 1023] * 1030))

    labs.ranks(1, talks)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1025
    assert lines[-1] == "rank 0 | … and 6 more lines."
