"""Do several ranks exchange over NCCL as the library says: values, bytes, order, and what it tells of a rank.

The ranks have a card each. Where there is one card, two share it: `together.py` says how. If NCCL connects
no two ranks here, a row says why, and gloo carries the exchanges of the card's tensors instead. On the CPU
and on the late device the same functions run as a rehearsal.

On NCCL a rank that waits does not block its thread, so the library promises other things than on gloo:
a disagreement is raised at the next exchange or before the optimizer steps, and a rank that died in the
middle of an exchange is named when the time of `standstill_after` is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from tools.gpu import absent
from tools.gpu.kit import Kit
from tools.gpu.together import Found, Jobs, Together, agreed, take_device, together
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from book.reference import STAGES, all_losses, compared_bytes, fill_gradients, padded_bytes
from book.toys import chain, optimizer_for, plain_gradients, whole_gradients
from shardbook import shard
from shardbook.foundations.collectives import (
    all_gather,
    all_reduce,
    all_reduce_max,
    broadcast,
    ledger,
    reduce_scatter_mean,
    world,
)

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.uint8, torch.int32, torch.int64)
NUMELS = (1, 7, 4096, 250_001)
CLOSE = 1e-5  # NCCL adds in an order of its own


def run(kit: Kit) -> None:
    """The jobs of ranks that all stay alive, then those in which one dies, then those of a mesh."""
    ranks = together(kit)
    if ranks.why:
        kit.not_tried("two ranks over NCCL", f"{ranks.why}; the rows below are of {ranks.backend}")
    else:
        kit.shows("what carries the exchanges", backend=ranks.backend, ranks=ranks.count, cards=kit.cards)
    jobs, found = Jobs(ranks, steady, seconds=25), dict[str, Found]()
    if kit.time_for(15, "what ranks exchange"):
        kit.attempt("what ranks exchange", lambda: found.update(jobs.run([*STEADY], kit.device)))
    for name, (_, tell) in STEADY.items():
        if name not in found:
            kit.not_tried(name, "no time was left for it, or what came before has failed")
        elif not found[name].values:
            kit.holds(name, False, found[name].why)
        else:
            kit.attempt(name, partial(tell, name, kit, ranks, found[name]))
    for name in absent.DEATHS:
        if absent.applies(kit, name) and kit.time_for(12, name):
            kit.attempt(name, partial(absent.tell_of_a_death, kit, ranks, name))
    name = "two dimensions of a mesh, four ranks"
    if kit.time_for(25, name):
        kit.attempt(name, partial(tell_of_a_mesh, kit, ranks, name))


def steady(name: str, kind: str) -> Any:
    """One of the jobs in which all ranks stay alive."""
    job, _ = STEADY[name]
    return job(take_device(kind))


# --- Values ---


def values(rank: int, numel: int, dtype: torch.dtype) -> Tensor:
    """What a rank brings along: any rank can compute every other rank's values."""
    generator = torch.Generator().manual_seed(1000 + rank)
    found = torch.rand(numel, generator=generator, dtype=torch.float64) * 200
    return (found if dtype is torch.uint8 else found - 100).to(dtype)


def collectives(device: torch.device) -> dict[str, list[str]]:
    """The cases of each collective that come out wrong."""
    rank, size = world()
    wrong: dict[str, list[str]] = {name: [] for name in ("all-gather", "broadcast", "reduce-scatter")}
    wrong |= {name: [] for name in ("all-reduce", "largest of all ranks", "several under way")}

    def compare(name: str, case: str, value: Tensor, expected: Tensor, close: float = 0) -> None:
        value = value.cpu()
        same = value.dtype == expected.dtype and value.shape == expected.shape
        limit = close * expected.abs().max().item() if close else 0
        if not same or not ((value - expected).abs() <= limit).all():
            wrong[name].append(case)

    for dtype in DTYPES:
        for numel in NUMELS:
            case = f"{dtype}, {numel}".removeprefix("torch.")
            mine = values(rank, numel, dtype).to(device)
            full = torch.zeros(size * numel, dtype=dtype, device=device)
            all_gather(full, mine).wait()
            everyone = [values(other, numel, dtype) for other in range(size)]
            compare("all-gather", case, full, torch.cat(everyone))
            for source in (0, size - 1):
                sent = mine.clone()
                broadcast(sent, source=source)
                compare("broadcast", case, sent, everyone[source])
            if dtype.is_floating_point:
                vector = values(rank, size * numel, dtype).to(device)
                piece = reduce_scatter_mean(vector).wait()
                mean = ordered_mean(size, size * numel, dtype)[rank * numel :][:numel]
                # 16-bit values are added in rank order everywhere; two values have no order.
                close = 0.0 if dtype.itemsize < 4 or size == 2 else CLOSE
                compare("reduce-scatter", case, piece, mean, close)
    for dtype in (torch.float32, torch.int64):
        whole = (torch.arange(1000, device=device) * (rank + 1)).to(dtype)
        all_reduce(whole)
        total = (torch.arange(1000) * sum(range(1, size + 1))).to(dtype)
        compare("all-reduce", str(dtype), whole, total)
    flags = torch.tensor([rank, size - rank, 0], dtype=torch.int32, device=device)
    all_reduce_max(flags).wait()
    compare("largest of all ranks", "int32", flags, torch.tensor([size - 1, size, 0], dtype=torch.int32))
    for number, (full, expected) in enumerate(under_way(device)):
        compare("several under way", str(number), full, expected)
    return wrong


def ordered_mean(size: int, numel: int, dtype: torch.dtype) -> Tensor:
    """Add in rank order, at least in FP32; divide; only then round."""
    total = torch.zeros(numel)
    for rank in range(size):
        total = total + values(rank, numel, dtype).float()
    return (total / size).to(dtype)


def under_way(device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Exchanges that are all started before the first of them is waited for, in the other order."""
    rank, size = world()
    fulls = [torch.zeros(size * 50_000, device=device) for _ in range(4)]
    pieces = [torch.full((50_000,), 10.0 * i + rank, device=device) for i in range(4)]
    gathers = [all_gather(full, piece) for full, piece in zip(fulls, pieces, strict=True)]
    vectors = [torch.full((size * 50_000,), float(i + rank), device=device) for i in range(4)]
    reduces = [reduce_scatter_mean(vector) for vector in vectors]
    for i in reversed(range(4)):
        yield reduces[i].wait(), torch.full((50_000,), i + (size - 1) / 2)
    for i in reversed(range(4)):
        gathers[i].wait()
        yield fulls[i], torch.arange(float(size)).repeat_interleave(50_000) + 10.0 * i


def tell_of_collectives(_: str, kit: Kit, ranks: Together, found: Found) -> None:
    """A row for each collective."""
    for name in next(iter(found.values.values())):
        wrong = sorted({case for value in found.values.values() for case in value[name]})
        told = len(found.values) == ranks.count
        why = found.why or "; ".join(wrong[:4])
        dtypes = {"dtypes": len(DTYPES)} if name in ("all-gather", "broadcast") else {}
        kit.holds(f"values: {name}", told and not wrong, why, ranks=ranks.count, **dtypes)


# --- Two groups ---


def turns(device: torch.device) -> float:
    """Exchanges of two groups, none of which the host waits for; the largest error."""
    rank, size = world()
    row, column = (dist.new_group([*range(size)]) for _ in range(2))
    worst = torch.zeros((), device=device)
    for number in range(20):
        full = torch.zeros(size * 100_000, device=device)
        gathering = all_gather(full, torch.full((100_000,), float(rank + number), device=device), group=row)
        reducing = reduce_scatter_mean(
            torch.full((size * 100_000,), float(rank), device=device), group=column
        )
        gathering.wait()
        mean = reducing.wait()
        expected = torch.arange(size, device=device, dtype=full.dtype).repeat_interleave(100_000) + number
        worst = torch.maximum(worst, (full - expected).abs().max() + (mean - (size - 1) / 2).abs().max())
    return worst.item()


def tell_of_turns(name: str, kit: Kit, ranks: Together, found: Found) -> None:
    """Whether the exchanges have ended, with the right values."""
    truth = agreed(found.values, ranks.count) and found.values[0] == 0
    kit.holds(name, truth, found.why, exchanges=40)


# --- Bytes and order ---


def counted(device: torch.device) -> list[dict[str, Any]]:
    """For each stage what the second step sends, what the formulas say, and the order of the exchanges."""
    found = []
    rank, size = world()
    for stage in STAGES:
        model = shard(chain().to(device), stage=stage)
        optimizer = optimizer_for("sgd", model.parameters())
        for step in range(2):
            with ledger() as book:
                absent.loss_there(model, rank, step).backward()
                optimizer.step()
                optimizer.zero_grad()
        vector = padded_bytes(model) * (size - 1) // size
        formula = {"reduce-scatter": vector, "all-gather": (2 if stage == 3 else 1) * vector}
        formula["all-reduce"] = compared_bytes(model)
        order = [[call.collective, call.payload] for call in book.calls]
        found.append({"sent": book.sent, "formula": formula, "order": order})
    return found


def tell_of_bytes(name: str, kit: Kit, ranks: Together, found: Found) -> None:
    """Whether the bytes are those of the formulas, and the order is that of ranks on the host."""
    told = len(found.values) == ranks.count
    stages = [stage for value in found.values.values() for stage in value]
    right = told and all(stage["sent"] == stage["formula"] for stage in stages)
    sent = [sum(stage["sent"].values()) for stage in found.values.get(0, [])]
    kit.holds(name, right, found.why, sent_by_rank_0=sent)
    orders = [[stage["order"] for stage in value] for value in found.values.values()]
    if kit.device != "cpu":
        host = kit.ranks(ranks.count, counted, torch.device("cpu"), backend="gloo", timeout=30)
        orders.append([stage["order"] for stage in host[0]])
    same = told and all(order == orders[0] for order in orders)
    exchanges = [len(stage) for stage in orders[0]] if orders else []
    kit.holds("order of a step, as on a CPU", same, found.why, exchanges=exchanges)


# --- Training ---


def training(device: torch.device, stages: Sequence[int] = STAGES, rows: int = 1) -> list[float]:
    """For each stage the largest difference of a gradient from the reference in rank order.

    It is relative to the largest gradient of its tensor.
    """
    rank, size = world()
    mesh = init_device_mesh(device.type, (rows, size // rows)) if rows > 1 else None
    found = []
    for stage in stages:
        plain, sharded = chain().to(device), shard(chain(seed=rank).to(device), stage=stage, mesh=mesh)
        optimizers = [optimizer_for("sgd", model.parameters()) for model in (plain, sharded)]
        worst = 0.0
        for step in range(3):
            fill_gradients(plain, [all_losses(plain, [step], absent.loss_there)], rows=rows)
            absent.loss_there(sharded, rank, step).backward()
            means = whole_gradients(sharded)
            for name, value in plain_gradients(plain).items():
                value = value.cpu()
                worst = max(worst, ((means[name].cpu() - value).abs().max() / value.abs().max()).item())
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        found.append(worst)
    return found


def tell_of_training(name: str, kit: Kit, ranks: Together, found: Found) -> None:
    """Whether each gradient is close to that of the reference."""
    worst = [max(of_ranks) for of_ranks in zip(*found.values.values(), strict=True)]
    truth = len(found.values) == ranks.count and max(worst) <= CLOSE
    same = max(worst) == 0
    kit.holds(name, truth, found.why, worst_of_stages=worst, bits_equal=same)


def tell_of_a_mesh(kit: Kit, ranks: Together, name: str) -> None:
    """Four ranks in a square; where there are fewer cards, they share one."""
    jobs = Jobs(Together(kit, 4, ranks.backend, ranks.environ), on_a_mesh, seconds=30)
    found = jobs.run(["mesh"], kit.device)["mesh"]
    worst = [max(of_ranks) for of_ranks in zip(*found.values.values(), strict=True)]
    truth = len(found.values) == 4 and max(worst) <= CLOSE
    kit.holds(name, truth, found.why, backend=ranks.backend, worst_of_stages_0_and_3=worst)


def on_a_mesh(_: str, kind: str) -> list[float]:
    return training(take_device(kind), stages=(0, 3), rows=2)


Tell = Callable[[str, Kit, Together, Found], None]
# The jobs in which all ranks stay alive. The last one leaves an exchange without its partner.
STEADY: dict[str, tuple[Callable[[torch.device], Any], Tell]] = {
    "values of the collectives": (collectives, tell_of_collectives),
    "two groups take turns": (turns, tell_of_turns),
    "bytes of a step, stages 0 to 3": (counted, tell_of_bytes),
    "training as the reference in rank order": (training, tell_of_training),
    "other models: one error, nothing sent": (absent.models, absent.tell_of_a_difference),
    "a late rank is named": (absent.late, absent.tell_of_a_late_rank),
    "another order: one error on all ranks": (absent.order, absent.tell_of_a_difference),
}
