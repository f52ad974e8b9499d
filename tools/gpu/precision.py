"""Does autocast compute as PyTorch's does, and does training in 16 bits end where that in FP32 ends?

Autocast is compared operation by operation with the calls of the tests, which run without a GPU and so
compare only dtypes for CUDA. Here each call runs under both, and results and gradients have to be equal bit
for bit. Where PyTorch's own result is another one when it runs again, a bound takes the place of the bits.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from itertools import chain
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from benchmarks import parity
from tools.gpu.kit import Kit
from torch import Tensor, nn

from shardbook.precision.autocast import (
    COMPOSED,
    COMPOSED_FP32,
    DECOMPOSITIONS,
    RULES,
    SYNONYMS,
    Casting,
    Rule,
    autocast,
)
from shardbook.precision.formats import BF16, E4M3FN, E5M2, FP16, Format
from shardbook.precision.loss_scaling import GradScaler, ShardedGradScaler

LOW = {"bfloat16": torch.bfloat16, "float16": torch.float16}
# The rows of operations that differ, for each dtype.
MOST = 10
NO_TIME = "no time was left: raise --minutes, or run this part alone with --part"
# PyTorch casts inside of these functions of C++, operation by operation. The library casts the inputs of the
# whole function, so it rounds fewer values to 16 bits on the way.
WHOLE = COMPOSED_FP32 | {"cross_entropy"}


def run(kit: Kit) -> None:
    """Autocast first, which nothing else compares on a GPU."""
    for name, seconds, part in (
        ("autocast", 20.0, casts),
        ("training in 16 bits", 15.0, trainings),
        ("formats", 8.0, patterns),
        ("loss scaling", 5.0, scalers),
    ):
        if kit.time_for(1.0 if kit.quick else seconds, name):
            kit.attempt(name, partial(part, kit))


# --- autocast, operation by operation ---


def casts(kit: Kit) -> None:
    """Each operation that has a rule, and four models, in BF16 and in FP16."""
    if importlib.util.find_spec("pytest") is None:
        kit.not_tried("autocast", "pytest is missing, which the table of the tests imports")
        return
    # The training still needs its time.
    (found,) = kit.ranks(1, compared, kit.device, max(10.0, 0.5 * kit.left))
    for low, (operations, rules, models) in found.items():
        tell(kit, low, "operations", operations, rules=rules)
        tell(kit, low, "models", models)


def tell(kit: Kit, low: str, kind: str, verdicts: Verdicts, **figures: Any) -> None:
    """A row for all of them, and one for each that differs."""
    name = f"autocast {low}: {len(verdicts)} {kind}"
    if all({*told} == {LATE} for told in verdicts.values()):
        kit.not_tried(name, NO_TIME)
        return
    wrong = {each: [one for one in told if one not in DEFAULT_SEVERITIES] for each, told in verdicts.items()}
    wrong = {each: told for each, told in wrong.items() if told}
    right = {each: {*told} for each, told in verdicts.items() if each not in wrong}
    named = {
        "equal within a bound": [each for each, told in right.items() if CLOSE in told],
        "without a result": [each for each, told in right.items() if not {EQUAL, CLOSE} & told],
    }
    close, skipped = map(len, named.values())
    kit.holds(
        name,
        not wrong and skipped < len(verdicts),
        why="; ".join(f"{what}: {', '.join(names)}" for what, names in named.items() if names)[:400],
        equal=len(right) - close - skipped,
        close=close,
        skipped=skipped,
        runs=sum(map(len, verdicts.values())),
        **figures,
    )
    for each, told in [*wrong.items()][:MOST]:
        kit.holds(f"autocast {low}: {each}"[:44], False, why=told[0], runs=len(told))
    if len(wrong) > MOST:
        kit.holds(f"autocast {low}: more that differ", False, operations=len(wrong) - MOST)


EQUAL, CLOSE, REFUSED, LATE = "equal", "close", "both refuse", "no time was left"
DEFAULT_SEVERITIES = {EQUAL, CLOSE, REFUSED, LATE}
Verdicts = dict[str, list[str]]


def compared(device: str, seconds: float) -> dict[str, tuple[Verdicts, str, Verdicts]]:
    """On a rank: for each dtype, the verdict on each call of each operation, how many rules these calls have
    used, and the verdict on each model.
    """
    use(device)
    # So that a convolution adds in the same order each time.
    torch.backends.cudnn.deterministic = True
    from book.precision import test_autocast as tests

    until = time.monotonic() + seconds
    found = {}
    for low in LOW:
        used: set[str] = set()
        with patch.object(Casting, "apply", noting(used)):
            operations = each_operation(tests, device, LOW[low], until)
        # Some operations are called only by others, in C++.
        rules = f"{len(used)} of {len(RULES[device].table)}"
        found[low] = operations, rules, each_model(tests, device, LOW[low], until)
    return found


def each_operation(tests: Any, device: str, low: torch.dtype, until: float) -> Verdicts:
    """Every call of the tests that has a rule on this device, in FP32, in 16 bits and in FP64."""
    table, found = RULES[device].table, {}
    for name, calls in cases(tests, device).items():
        # PyTorch refuses this loss in FP64, too.
        wide = [torch.float64] * (table.get(name) is not Rule.REFUSE)
        found[name] = told = list[str]()
        for call in calls:
            function = getattr(call[0], "__name__", "")
            loose = name in DECOMPOSITIONS if device == "cpu" else function in WHOLE
            moved = torch.utils._pytree.tree_map_only(Tensor, lambda each: each.to(device), call)
            for dtype in (torch.float32, low, *wide):
                give = partial(tests.outcome, call=moved, dtype=dtype, low=low)
                told.append(verdict(give, device, low, until, loose, able=name in COMPOSED))
                if told[-1].startswith(BROKEN):
                    return found
    return found


def cases(tests: Any, device: str) -> dict[str, list[tuple[Any, ...]]]:
    """The calls of the tests for a type of device. Those that CUDA alone can run stand here."""
    if device == "cpu":
        found: dict[str, list[tuple[Any, ...]]] = tests.CASES
        return found
    r, table = tests.r, RULES[device].table
    cell = r(2, 3), r(2, 4)
    image, kernel = r(1, 2, 6, 6), r(3, 2, 3, 3)
    more: dict[str, list[tuple[Any, ...]]] = {
        "convolution": [(torch.convolution, image, kernel, r(3), [1, 1], [0, 0], [1, 1], False, [0, 0], 1)],
        "cudnn_convolution": [
            (torch.cudnn_convolution, image, kernel, [0, 0], [1, 1], [1, 1], 1, False, True, True)
        ],
        "cudnn_convolution_transpose": [
            (
                torch.cudnn_convolution_transpose,
                *(r(1, 3, 4, 4), kernel, [0, 0], [0, 0], [1, 1], [1, 1], 1, False, True, True),
            )
        ],
        "gru_cell": [(torch.gru_cell, *cell, r(12, 3), r(12, 4), r(12), r(12))],
        "lstm_cell": [(torch.lstm_cell, cell[0], [cell[1], r(2, 4)], r(16, 3), r(16, 4), r(16), r(16))],
        "rnn_relu_cell": [(torch.rnn_relu_cell, *cell, r(4, 3), r(4, 4))],
        "upsampling": [
            (partial(F.interpolate, scale_factor=2, mode=mode, antialias=smooth), r(1, 1, *(4,) * size))
            for mode, size, smooth in (
                ("linear", 1, False),
                ("trilinear", 3, False),
                ("nearest", 3, False),
                ("nearest-exact", 1, False),
                ("nearest-exact", 2, False),
                ("bilinear", 2, True),
                ("bicubic", 2, True),
            )
        ],
    }
    shared = {name: calls for name, calls in tests.CASES.items() if name in table}
    every = [*chain(shared.items(), tests.ON_CUDA.items(), more.items())]
    return {name: [call for other, calls in every if other == name for call in calls] for name, _ in every}


def each_model(tests: Any, device: str, low: torch.dtype, until: float) -> Verdicts:
    """Two steps of the models of the tests: outputs, losses and gradients."""
    found = {}
    for name, (build, x, y, loss) in {**tests.MODELS}.items():

        def give(context: Any, name: str = name) -> Any:
            try:
                return tests.trained(context, name)
            except RuntimeError as error:
                # A processor may have no LSTM in 16 bits.
                return type(error)

        def there(build: Callable[[], nn.Module] = build) -> nn.Module:
            return build().to(device)

        moved = there, x.to(device), y.to(device), loss
        with patch.dict(tests.MODELS, {name: moved}):
            found[name] = [verdict(give, device, low, until)]
    return found


def verdict(
    give: Callable[[Any], Any],
    device: str,
    low: torch.dtype,
    until: float,
    loose: bool = False,
    able: bool = False,
) -> str:
    """What a call gives under both contexts.

    :param loose: whether a bound is enough
    :param able: whether the library may compute what PyTorch refuses
    """
    if time.monotonic() > until:
        return LATE
    try:
        theirs, ours = (give(make(device, low)) for make in (torch.autocast, autocast))
        if torch.AcceleratorError in (theirs, ours):
            return BROKEN
        if not isinstance(theirs, list) or not isinstance(ours, list):
            refused = ours is theirs or (able and not isinstance(theirs, list))
            return REFUSED if refused else f"{said(ours)} instead of {said(theirs)}"
        told = difference(ours, theirs)
        # Some kernels add in another order each time.
        if told and (loose or any(difference(give(torch.autocast(device, low)), theirs) for _ in range(3))):
            bound = 4 * torch.finfo(low).eps
            return difference(ours, theirs, bound) or CLOSE
        return told or EQUAL
    except torch.AcceleratorError as error:
        return f"{BROKEN}: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


# After that no call works any more.
BROKEN = "the device has failed"


def difference(ours: Any, theirs: Any, bound: float = 0.0) -> str:
    """How two lists of tensors differ; empty if they do not. NaN equals itself."""
    try:
        torch.testing.assert_close(ours, theirs, rtol=bound, atol=bound, equal_nan=True)
    except AssertionError as error:
        return " ".join(str(error).split())[:200]
    return ""


def said(found: Any) -> str:
    """A result or an error in a word or two."""
    return "a result" if isinstance(found, list) else str(getattr(found, "__name__", found))


def noting(used: set[str]) -> Callable[..., Any]:
    """`Casting.apply`, which also notes for which operations it was called."""
    original = Casting.apply

    def apply(self: Casting, rule: Rule, device_type: str, name: str, inputs: Any) -> Any:
        used.add(SYNONYMS.get(name, name))
        return original(self, rule, device_type, name, inputs)

    return apply


def use(device: str) -> None:
    """Compute on the first GPU, if it is to be one."""
    if device == "cuda":
        torch.cuda.set_device(0)


# --- 200 steps in FP32, BF16 and FP16 ---


def trainings(kit: Kit) -> None:
    """The modes of the benchmark on one rank, and the modes that scale with PyTorch's scaler as well."""
    # As many sequences as on the two ranks of the benchmark.
    steps, words = (5 if kit.quick else 200), ["--ranks", "1", "--batch", "8"]
    words += ["--steps", str(steps), *(["--layers", "1", "--width", "16"] if kit.quick else [])]
    # The last two cases need a few seconds.
    (found,) = kit.ranks(1, trained, kit.device, words, max(10.0, kit.left - 10.0))
    curves = {name: parity.Curve(**run) for name, (run, _) in found.items()}
    for name, mode in parity.MODES.items():
        row = f"{steps} steps, {name}"
        if name not in curves:
            kit.not_tried(row, NO_TIME)
            continue
        curve, seconds = curves[name], round(found[name][1], 2)
        figures = {"unseen": round(curve.unseen, 4), "skipped": curve.skipped, "seconds": seconds}
        apart = parity.distance({key: [curves[key]] for key in ("fp32", name)}, name)
        if name == "fp32" or not mode.in_band:
            kit.shows(row, **figures, from_fp32=round(apart, 5))
        else:
            kit.holds(row, apart <= parity.BAND, **figures, from_fp32=round(apart, 5), scale=curve.scale)
        if other := curves.get(f"{name}{BY_TORCH}"):
            kit.holds(
                f"PyTorch's scaler, {name}",
                (curve.scale, curve.skipped) == (other.scale, other.skipped),
                scales=[curve.scale, other.scale],
                skipped=[curve.skipped, other.skipped],
                equal_losses=sum(map(float.__eq__, curve.train, other.train)),
            )


BY_TORCH = ", PyTorch's scaler"


def trained(device: str, words: list[str], seconds: float) -> dict[str, tuple[dict[str, Any], float]]:
    """On a rank: train in each mode, as long as there is time."""
    use(device)
    options, until = parity.parse(words), time.monotonic() + seconds
    found: dict[str, tuple[dict[str, Any], float]] = {}
    for name, mode in parity.MODES.items():
        for suffix, maker in (("", ShardedGradScaler), (BY_TORCH, torch.amp.GradScaler)):
            begun = time.monotonic()
            longest = max((seconds for _, seconds in found.values()), default=0.0)
            if begun + longest < until and (mode.scaled or not suffix):
                run = asdict(parity.train(mode, 0, options, device, maker))
                found[name + suffix] = run, time.monotonic() - begun
    return found


# --- formats ---


STORED: dict[Format, tuple[torch.dtype, torch.dtype]] = {
    BF16: (torch.bfloat16, torch.int16),
    FP16: (torch.float16, torch.int16),
    E4M3FN: (torch.float8_e4m3fn, torch.uint8),
    E5M2: (torch.float8_e5m2, torch.uint8),
}


def patterns(kit: Kit) -> None:
    """Every pattern of 8 and 16 bits, and FP32 numbers that are rounded."""
    (found,) = kit.ranks(1, decoded_and_rounded, kit.device, 500 if kit.quick else 8000)
    for name, (wrong, numbers, example) in found["decode"].items():
        kit.holds(f"decode {name}", not wrong, why=example, patterns=numbers, different=wrong)
    for name, (wrong, numbers, example) in found["round"].items():
        kit.holds(f"round FP32 to {name}", not wrong, why=example, numbers=numbers, different=wrong)


def decoded_and_rounded(device: str, numbers: int) -> dict[str, dict[str, Any]]:
    """On a rank: what the device stores, beside what the chapter computes with whole numbers."""
    use(device)
    found: dict[str, dict[str, Any]] = {"decode": {}, "round": {}}
    for form, (dtype, whole) in STORED.items():
        every = torch.arange(1 << form.bits, device=device).to(whole)
        # FP32 holds all of these numbers.
        there = every.view(dtype).float().cpu()
        right = torch.tensor([form.decode(pattern) for pattern in range(1 << form.bits)]).float()
        different = (bits(there) != bits(right)) & ~(there.isnan() & right.isnan())
        found["decode"][form.name] = judged(different, range(len(right)), there, right)

        values = inputs(form, numbers)
        there = (values.to(device).to(dtype).view(whole).cpu().long()) % (1 << form.bits)
        right = torch.tensor([form.encode(value) for value in values.tolist()])
        found["round"][form.name] = judged(there != right, values.tolist(), there, right)
    return found


def inputs(form: Format, numbers: int) -> Tensor:
    """FP32 numbers of all sizes, some near 1, and the middles between neighbours with what lies beside them.

    There is no NaN, which has many patterns.
    """
    generator = torch.Generator().manual_seed(0)
    size = (numbers,)
    patterns = torch.randint(-(1 << 31), 1 << 31, size, generator=generator).to(torch.int32)
    anywhere, near = patterns.view(torch.float32), torch.randn(size, generator=generator)
    at = torch.randint(form.largest_pattern, size, generator=generator).tolist()
    # FP32 holds the middles as well.
    middles = torch.tensor([(form.decode(each) + form.decode(each + 1)) / 2 for each in at])
    ends = torch.tensor([0.0, float("inf")])
    beside = [middles.nextafter(end) for end in ends]
    values = torch.cat([anywhere, near, middles, -middles, *beside])
    return values[~values.isnan()]


def bits(values: Tensor) -> Tensor:
    """So that minus zero is not zero."""
    return values.view(torch.int32)


def judged(different: Tensor, given: Iterable[Any], there: Tensor, right: Tensor) -> tuple[int, int, str]:
    """How many of how many differ, and the first of them."""
    wrong = different.nonzero().flatten().tolist()
    first = f"{[*given][wrong[0]]!r} gives {there[wrong[0]]} instead of {right[wrong[0]]}" if wrong else ""
    return len(wrong), different.numel(), first


# --- the scaler ---

# What each step's gradients are; the scale grows after three steps in a row without an overflow.
STEPS = [1.0, 2.0, float("inf"), 1.0, float("nan"), 3.0, 1.0, 2.0, 1e38, 1.0, 1.0, 1.0]
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": partial(torch.optim.SGD, lr=0.5),
    "AdamW": partial(torch.optim.AdamW, lr=0.1),
    "fused AdamW": partial(torch.optim.AdamW, lr=0.1, fused=True),
}


def scalers(kit: Kit) -> None:
    """Overflows among ordinary steps."""
    (found,) = kit.ranks(1, scaled, kit.device)
    for name, (ours, theirs) in found.items():
        kit.holds(
            f"scaler with {name}, {len(STEPS)} steps",
            ours == theirs,
            why="" if ours == theirs else f"{ours} instead of {theirs}"[:300],
            scales=ours["scales"],
        )


def scaled(device: str) -> dict[str, list[dict[str, Any]]]:
    """On a rank: scales, parameters and state under both scalers."""
    use(device)
    found: dict[str, list[dict[str, Any]]] = {}
    for name, make in OPTIMIZERS.items():
        for maker in (GradScaler, torch.amp.GradScaler):
            scaler: Any = maker(device, init_scale=8.0, growth_interval=3)
            parameters = [nn.Parameter(torch.ones(size, device=device)) for size in (3, 5)]
            optimizer, scales = make(parameters), []
            for gradient in STEPS:
                scaler.scale(sum((each * gradient).sum() for each in parameters)).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                scales.append(scaler.get_scale())
            values = [each.detach().cpu().view(torch.int32).tolist() for each in parameters]
            made = {"scales": scales, "values": values, "state": scaler.state_dict()}
            found.setdefault(name, []).append(made)
    return found
