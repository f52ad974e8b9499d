"""How long does a training step take, and how much memory, beside PyTorch's own ways to train a model?

The ways take turns, round by round and in another order each time, and each begins anew. So what disturbs one
of them disturbs the others as well. Each figure is the ratio of two ways, with its quartiles over the rounds.
After the same steps on the same batch both must have the same loss, or the row differs.

How each way is made, and what differs beside the sharding, is told in `ways.py`.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from statistics import median, quantiles
from typing import Any

import torch
import torch.distributed as dist
from tools.gpu.kit import Kit
from tools.gpu.memory import all_have_time, attempt, release, workspaces
from tools.gpu.together import take_device, together
from tools.gpu.ways import BF16, WAYS
from torch import Tensor

from shardbook.models import gpt

# By how much the losses of two ways may differ.
CLOSE = 0.02


@dataclass(frozen=True, slots=True)
class Size:
    """A model and a batch, and whether the model computes in BF16."""

    layers: int
    width: int
    heads: int
    context: int
    vocabulary: int
    batch: int = 1
    low: bool = True

    @property
    def config(self) -> gpt.Config:
        return gpt.Config(self.layers, self.width, self.heads, self.context, self.vocabulary)

    @property
    def parameters(self) -> int:
        return gpt.parameters(self.config)

    @property
    def tokens(self) -> int:
        return self.batch * self.context

    @property
    def flops(self) -> float:
        """The operations of the matrix products of a step; causal attention counts half."""
        weights = 12 * self.layers * self.width**2 + self.vocabulary * self.width
        return 6.0 * self.tokens * (weights + self.layers * self.context * self.width)

    @property
    def need(self) -> float:
        """The bytes that the way with most memory takes, at most."""
        saved = 40 * self.layers * self.width + 18 * self.vocabulary
        return 24.0 * self.parameters + self.tokens * saved


# The largest that fits is taken.
LADDER = [
    Size(24, 2048, 16, 2048, 50304),
    Size(24, 1024, 16, 1024, 50304),
    Size(12, 768, 12, 1024, 50304),
    Size(6, 512, 8, 512, 8192),
]
# Two ranks on one card exchange through the host's memory, so the model is small.
SHARED = Size(12, 768, 12, 1024, 4096, batch=8)
# So little to compute that the time is that of Python.
HOST_BOUND = Size(64, 128, 4, 64, 256, low=False)
SMALL = Size(3, 64, 2, 32, 512, batch=2)


def largest(memory: int, ladder: list[Size]) -> Size:
    """The first size of the ladder that fits into memory, with the largest batch that does."""
    sizes = [replace(size, batch=batch) for size in ladder for batch in (8, 4, 2, 1)]
    return next((size for size in sizes if size.need < 0.8 * memory), sizes[-1])


@dataclass(frozen=True, slots=True)
class Comparison:
    """Ways that take turns; each is compared with the first one.

    :param rounds: how often each way begins anew
    :param steps: the steps before the clock starts, and those under it
    :param least: the seconds that a GPU needs for it
    :param most: the seconds after which no other round begins
    """

    title: str
    ways: tuple[str, ...]
    size: Size
    ranks: int = 1
    rounds: int = 3
    steps: tuple[int, int] = (2, 5)
    least: float = 20
    most: float = 45


def run(kit: Kit) -> None:
    """In the order of their worth; compiling takes longest, and so is last."""
    products: list[dict[str, float]] = []

    def multiply() -> None:
        products.extend(kit.ranks(1, product, kit.device, kit.quick, timeout=60))

    if not kit.attempt("matrix product", multiply):
        return
    (found,) = products
    tflops = found["flops"] / 1e12
    kit.shows("matrix product in BF16, the best of thirty", size=int(found["size"]), tflops=brief(tflops))
    for comparison in comparisons(kit, int(found["memory"])):
        if kit.time_for(2.0 if kit.quick else comparison.least, comparison.title):
            kit.attempt(comparison.title, partial(compare, kit, comparison, found["flops"]))
    if kit.device != "cuda":
        kit.not_tried("compiled", "only on a GPU")
    elif why := no_compiler():
        kit.not_tried("compiled", why)


def comparisons(kit: Kit, memory: int) -> list[Comparison]:
    """What is compared here."""
    rehearsal = kit.quick or kit.device != "cuda"
    big = SMALL if rehearsal else largest(memory, LADDER)
    middle = SMALL if rehearsal else largest(memory, LADDER[1:])
    # Several cards hold a rank each, so both can have the large model.
    two = SMALL if rehearsal else big if kit.cards > 1 else SHARED
    many = Size(8, 16, 2, 8, 256, low=False) if rehearsal else HOST_BOUND
    fsdp: tuple[str, ...] = ("FSDP2", "FSDP2 tuned")
    peers = (*fsdp, "DDP", "plain")
    if find_spec("megatron_fsdp") is None:
        kit.not_tried("Megatron-FSDP", "megatron_fsdp is not installed")
    elif kit.device == "cuda":
        peers = (*peers, "Megatron-FSDP")
    one, several = f"{big.parameters / 1e6:,.0f} M, 1 rank", f"{kit.several} ranks"
    found = [
        Comparison(one, ("ours", *peers, "ours, norms in BF16"), big),
        Comparison(f"{many.layers} small layers", ("ours", *fsdp, "plain"), many, steps=(3, 10), most=20),
        Comparison(several, ("ours", *fsdp, "DDP"), two, ranks=kit.several, steps=(2, 3), least=30, most=30),
        Comparison("checkpoint", ("ours", "torch's", "none"), big, most=25),
        Comparison("offload", ("ours", "FSDP2"), middle, rounds=2, steps=(2, 3), most=30),
    ]
    if kit.device == "cuda" and not no_compiler():
        ways = ("ours", "FSDP2", "ours, not compiled")
        found.append(Comparison("compiled", ways, big, rounds=2, steps=(3, 5), least=60, most=90))
    return [replace(each, rounds=2, steps=(1, 2)) for each in found] if rehearsal else found


def no_compiler() -> str:
    """What `torch.compile` misses here."""
    if find_spec("triton") is None:
        return "Triton is not installed"
    return "" if any(map(shutil.which, ("cc", "gcc", "clang"))) else "Triton needs a C compiler"


def compare(kit: Kit, comparison: Comparison, flops: float) -> None:
    """Let the ways take turns, and write a row for the first and one for each other."""
    # Several ranks need time to try what connects them.
    seconds = min(comparison.most, (0.8 if comparison.ranks == 1 else 0.5) * kit.left)
    limit = min(kit.left, 2 * seconds + 20)
    carried = {}
    if comparison.ranks == 1:
        ranks = kit.ranks(1, take_turns, comparison, kit.device, seconds, timeout=limit)
    else:
        several = together(kit)
        ranks = several.call(take_turns, comparison, kit.device, seconds, timeout=limit)
        carried = {"backend": several.backend, **({"not_nccl": several.why} if several.why else {})}
    found = {
        way: [slowest(turns) for turns in zip(*(rank[way] for rank in ranks), strict=True)]
        for way in comparison.ways
    }
    first, *others = comparison.ways
    title, mine = comparison.title, found[first]
    if failed := error_of(mine):
        if title == "compiled" and error_of(found["FSDP2"]):
            # Then it is the compiler that does not work here.
            kit.not_tried(title, failed)
        else:
            kit.holds(f"{title}: {first}", False, why=failed)
        return
    size, took = comparison.size, median(one["seconds"] for one in mine)
    rate = size.tokens * comparison.ranks / took
    figures: dict[str, Any] = {"ms": brief(1000 * took), "tokens_per_s": brief(rate)}
    if size.low:
        # Of each card, which the ranks may share.
        sharing = 1 if kit.cards > 1 else comparison.ranks
        figures["utilisation"] = brief(size.flops * sharing / took / flops)
    if "peak" in mine[0]:
        figures["peak_gb"] = brief(max(one["peak"] for one in mine) / 1e9)
    model = f"{size.layers} x {size.width}, {size.batch} x {size.context} tokens"
    kit.shows(f"{title}: {first}", rounds=len(mine), **figures, model=model, **carried)
    for other in others:
        tell(kit, f"{title}: {first} / {other}", mine, found[other])


def brief(value: float) -> float:
    """A figure in four digits."""
    return float(f"{value:.4g}")


def slowest(turns: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    """One turn of all ranks: the seconds of the slowest one, and the bytes of the one that needs most."""
    for one in turns:
        if "error" in one:
            return one
    return {**turns[0], **{name: max(one[name] for one in turns) for name in turns[0] if name != "loss"}}


def error_of(turns: list[dict[str, Any]]) -> str:
    """Why a way did not get through its turns."""
    return next((one["error"] for one in turns if "error" in one), "" if turns else "it had no turn")


def tell(kit: Kit, name: str, mine: list[dict[str, Any]], other: list[dict[str, Any]]) -> None:
    """The ratio of two ways: three quartiles for the time of a step, and one number for the memory."""
    if failed := error_of(other):
        kit.not_tried(name, failed)
        return
    pairs = [*zip(mine, other, strict=True)]
    ratios = [one["seconds"] / another["seconds"] for one, another in pairs]
    spread = quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    figures: dict[str, Any] = {"step_ratio": [*map(brief, spread)]}
    figures["ms"] = brief(1000 * median(one["seconds"] for one in other))
    if "peak" in mine[0]:
        figures["peak_ratio"] = brief(max(one["peak"] for one in mine) / max(one["peak"] for one in other))
    apart = [abs(one["loss"] / another["loss"] - 1) for one, another in pairs]
    # A loss that is not a number is not close to any.
    if all(each <= CLOSE for each in apart):
        kit.shows(name, **figures)
    else:
        percent = " and ".join(f"{100 * each:.1f} %" for each in apart)
        kit.holds(name, False, why=f"after the same steps the losses are {percent} apart", **figures)


# --- on a rank ---


def product(device: str, quick: bool) -> dict[str, float]:
    """The speed of a large matrix product in BF16, and the memory of the card."""
    place = take_device(device)
    size = 512 if quick or device != "cuda" else 8192
    left, right = (torch.randn(size, size, dtype=BF16, device=place) for _ in range(2))
    seconds = []
    for _ in range(33):
        started = now(place)
        left @ right
        seconds.append(now(place) - started)
    memory = torch.cuda.get_device_properties(place).total_memory if device == "cuda" else 0
    return {"size": size, "flops": 2 * size**3 / min(seconds[3:]), "memory": memory}


def now(place: torch.device) -> float:
    """The time, when the device has done its work."""
    if place.type == "cuda":
        torch.cuda.synchronize(place)
    return time.perf_counter()


def take_turns(comparison: Comparison, device: str, seconds: float) -> dict[str, list[dict[str, Any]]]:
    """What each way shows in each round, as far as the time goes. A way that fails has no other turn."""
    place, end = take_device(device), time.monotonic() + seconds
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in comparison.ways}
    # They would be a part of the first way's memory.
    workspaces(place)
    for number in range(comparison.rounds):
        began = time.monotonic()
        first = number % len(comparison.ways)
        for way in (*comparison.ways[first:], *comparison.ways[:first]):
            if number == 0 or not error_of(found[way]):
                found[way].append(attempt(partial(turn, comparison, way, place)))
                release(place)
        took = time.monotonic() - began
        if not all_have_time(end - time.monotonic() - took, place):
            break
    return found


def turn(comparison: Comparison, way: str, place: torch.device) -> dict[str, Any]:
    """Make a model parallel in some way, and train it for some steps."""
    size, (warm_up, timed), cuda = comparison.size, comparison.steps, place.type == "cuda"
    before = torch.cuda.memory_allocated() if cuda else 0
    torch.manual_seed(0)
    with place:
        model = gpt.GPT(size.config)
    make, casts = WAYS.get(f"{comparison.title}: {way}") or WAYS[way]
    parallel, optimizer = make(model, BF16 if size.low else None)
    generator = torch.Generator().manual_seed(1 + dist.get_rank())
    text = torch.randint(size.vocabulary, (size.batch, size.context + 1), generator=generator).to(place)
    inputs, targets = text[:, :-1].contiguous(), text[:, 1:].contiguous()

    def step() -> Tensor:
        with torch.autocast(place.type, BF16, enabled=casts and size.low):
            loss = gpt.loss(parallel(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    for _ in range(warm_up):
        step()
    # No rank starts before the others are ready.
    all_have_time(1.0, place)
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    started = now(place)
    for _ in range(timed):
        loss = step()
    found = {"seconds": (now(place) - started) / timed, "loss": loss.item()}
    return {**found, **({"peak": torch.cuda.max_memory_allocated() - before} if cuda else {})}
