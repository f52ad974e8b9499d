"""Does every program of the tests train on this device as PyTorch alone does?

The programs of `book.programs` train a small model in many ways: in each stage, accumulated, in 16 bits,
offloaded, streamed, scaled, interrupted. Each one runs with the book and then with the plain counterparts of
`book.plainly`, on the same device. One rank exchanges nothing. Two ranks share the device, and gloo carries
their exchanges.

Kernels may add in another order where a weight lies at another address, so a bound is what holds everywhere,
and the figures say how many programs have the same bits. With an optimizer that is not fused the bits are
promised for programs in FP32 with one exchange in a step.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from tools.gpu.kit import Kit

from book import plainly, programs
from book.programs import ALONE, MODES, RUNS, Model, Training
from shardbook.state.checkpoints import Checkpoints

PROGRAMS: dict[str, plainly.Program] = {
    **RUNS,
    **{f"{stage}-crossed": partial(programs.crossed, stage) for stage in (1, 2, 3)},
}
# These need two ranks for their mesh.
MESHES = ("repeated", "failed_on_a_mesh")
ONCE = ("plain", "kept", "built", "stepped", "evaluated", "checkpointed", "rerouted", "unequal", "failed")
UNFUSED, STRICT = "unfused", "deterministic"
# A program takes about a second. One that takes so long hangs.
LIMIT = 45
# After so many failures in a row of programs the others would most likely fail, too.
MOST = 4

Rows = dict[str, list[str]]  # the names of rows, each with its cases: a program, and how it is run
Found = dict[str, tuple[bool, float]]


def run(kit: Kit) -> None:
    """What other parts build on comes first."""
    two, one = cases(2, kit.quick), cases(1, kit.quick)
    for ranks, rows in (two[0], one[0]):
        train(kit, ranks, rows)
    for name, part in (("saved and loaded", saving), ("the training program", program)):
        if kit.time_for(2.0 if kit.quick else 15.0, name):
            kit.attempt(name, partial(part, kit))
    for ranks, rows in (*two[1:], *one[1:]):
        train(kit, ranks, rows)


def cases(ranks: int, quick: bool) -> list[tuple[int, Rows]]:
    """What a number of ranks runs, in the order of its worth."""

    def without_stages(names: list[str]) -> list[str]:
        # Each program is rehearsed once, and by another number of ranks than the next one.
        names = names[2 - ranks :: 2] if quick else names
        return [name for name in names if ranks > 1 or name not in MESHES]

    def stage(number: int) -> Rows:
        names = without_stages([mode.__name__ for mode in MODES])
        return {f"stage {number}{suffix}": [f"{number}-{name}" for name in names]}

    suffix = f", {ranks} rank{'s' * (ranks > 1)}"
    alone = {f"no stage{suffix}": without_stages([mode.__name__ for mode in ALONE])}
    once = [f"3-{name} {UNFUSED}" for name in ONCE] + [f"{number}-plain {UNFUSED}" for number in (0, 1, 2)]
    strict = [f"{name} {STRICT}" for name in ("3-plain", "3-offloaded", "0-rerouted")]
    more = {f"bit for bit{suffix}": once, f"deterministic algorithms{suffix}": strict}
    if quick:
        few = {name: names[:1] for name, names in more.items()}
        return [(ranks, {**stage(3 * (ranks - 1)), **alone, **few})]
    first = {**stage(3), **alone, **more}
    if ranks == 1:
        return [(1, first), (1, {**stage(0), **stage(2), **stage(1)})]
    crossed = {"a mesh of 2 x 2, 4 ranks": [name for name in PROGRAMS if name.endswith("crossed")]}
    return [(2, first), (2, {**stage(0), **stage(2), **stage(1)}), (4, crossed)]


# --- every program ---


def train(kit: Kit, ranks: int, rows: Rows) -> None:
    """Run the cases of some rows, and write the rows."""
    found: Found = {}
    failed: dict[str, str] = {}
    left = [case for names in rows.values() for case in names]
    while left and len(failed) < MOST and kit.left > 12:
        done, story = together(kit, ranks, left)
        found |= done
        left = [case for case in left if case not in done]
        if not story:
            break
        # The ranks run one case after the other, so this one has ended them.
        failed[left.pop(0) if left else f"the end of {ranks} ranks"] = story
    for name, names in rows.items():
        tell(kit, name, ranks, {case: found[case] for case in names if case in found}, failed, names)
        failed = {case: why for case, why in failed.items() if case not in names}
    for case, why in failed.items():
        kit.holds(case, False, why=why)


def together(kit: Kit, ranks: int, left: list[str]) -> tuple[Found, str]:
    """Let ranks run cases, as many as there is time for; what came of them, and why they ended early."""
    story = ""
    with tempfile.TemporaryDirectory(prefix="training-") as folder:
        try:
            kit.ranks(ranks, each, left, kit.device, folder, kit.left - 10, timeout=max(5.0, kit.left - 2))
        # What the ranks said, or that one of them could not start.
        except Exception as error:
            print(error, file=sys.stderr, flush=True)
            story = cause(str(error))
        told = [
            dict(map(json.loads, file.read_text("utf-8").splitlines())) for file in Path(folder).iterdir()
        ]
    whole = [case for case in left if len(told) == ranks and all(case in one for one in told)]
    return {
        case: (all(one[case][0] for one in told), max(one[case][1] for one in told)) for case in whole
    }, story


def cause(story: str) -> str:
    """The error of the rank that failed first, or the last line of its story."""
    first = story.split("\n--- rank ")[:2][-1]
    lines = [line.strip() for line in first.splitlines() if line.strip()]
    errors = [line for line in first.splitlines() if re.match(r"[\w.]+: \S", line)]
    last = [*lines[-1:], *errors[-1:]][-1][:300]
    return f"{last}, perhaps after {LIMIT} s without an end" if "exit code 1" in last else last


def tell(kit: Kit, name: str, ranks: int, found: Found, failed: dict[str, str], names: list[str]) -> None:
    """A row for all cases, and one for each that differs or has failed."""
    wrong, suffix = 0, f", {ranks} rank{'s' * (ranks > 1)}"
    figures: dict[str, Any]
    for case in names:
        ran, _, how = case.partition(" ")
        same_bits, far = found.get(case, (True, 0.0))
        if case in failed:
            kit.holds(f"{case}{suffix}", False, why=failed[case])
        elif far > plainly.bound(ran) or (how and not same_bits):
            figures = {"largest_difference": far, "bound": 0.0 if how else plainly.bound(ran)}
            kit.holds(f"{case}{suffix}", False, **figures)
        else:
            continue
        wrong += 1
    untried = [case for case in names if case not in found and case not in failed]
    if untried:
        why = "no time was left, or too much had failed: raise --minutes, or run this part alone with --part"
        kit.not_tried(f"{name}: {len(untried)} of {len(names)}", f"{why} ({' '.join(untried)[:200]})")
    if found:
        other = [case for case, (same_bits, _) in found.items() if not same_bits]
        figures = {"programs": len(found), "same_bits": len(found) - len(other)}
        for kind, limit in (("fp32", plainly.FP32), ("16_bits", plainly.LOW)):
            all_far = [far for case, (_, far) in found.items() if plainly.bound(case.split()[0]) == limit]
            figures |= {f"largest_difference_{kind}": max(all_far)} if all_far else {}
        kit.holds(name, not wrong, why=f"other bits: {' '.join(other)}" if other else "", **figures)


def each(left: list[str], device: str, folder: str, seconds: float) -> None:
    """In a rank: run one case after the other, and write what comes of each."""
    until, place = time.monotonic() + seconds, prepare(device)
    file = Path(folder, str(dist.get_rank()))
    for case in left:
        # The clocks of two ranks are read at different moments, so one rank decides.
        if not plainly.everywhere(time.monotonic() < until)[0]:
            return
        faulthandler.dump_traceback_later(LIMIT, exit=True)
        name, _, how = case.partition(" ")
        with in_the_manner_of(how):
            same_bits, far = plainly.compared(PROGRAMS[name], place)
        faulthandler.cancel_dump_traceback_later()
        with file.open("a", encoding="utf-8") as stream:
            # There is no infinity in JSON.
            stream.write(json.dumps([case, [same_bits, min(far, 1e30)]]) + "\n")


def prepare(device: str) -> str:
    """Make a device ready for products in full FP32; the place for tensors."""
    if device == "cuda":
        torch.cuda.set_device(0)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    return "cpu" if device == "cpu" else f"{device}:0"


@contextmanager
def in_the_manner_of(how: str) -> Iterator[None]:
    """A block for one case: as it is, with an optimizer that is not fused, or with deterministic algorithms.

    Then fresh memory also holds NaN, so what reads it before it is written comes out wrong.
    """
    if not how:
        yield
        return
    torch.use_deterministic_algorithms(how == STRICT)
    with patch.object(torch.optim, "AdamW", partial(unfused, torch.optim.AdamW)):
        yield
    torch.use_deterministic_algorithms(False)


def unfused(make: Any, *args: Any, **options: Any) -> Any:
    """An optimizer that computes one operation after the other."""
    return make(*args, **{**options, "fused": False, "foreach": False})


# --- a run that is saved and goes on, and the training program ---


def saving(kit: Kit) -> None:
    """A run that is saved goes on in another stage, and a plain model loads its state."""
    if importlib.util.find_spec("msgspec") is None:
        kit.not_tried("a saved run", "msgspec is missing, without which no checkpoint is read")
        return
    for before, after in [(3, 0)] if kit.quick else [(3, 0), (0, 3), (3, 3)]:
        with tempfile.TemporaryDirectory(prefix="training-") as folder:
            found = kit.ranks(2, goes_on, kit.device, folder, before, after, timeout=min(60.0, kit.left))
        far = max(far for _, far, _ in found)
        kit.holds(
            f"saved in stage {before}, goes on in {after}, 2 ranks",
            far <= plainly.FP32 and all(loads for _, _, loads in found),
            same_bits=all(same_bits for same_bits, _, _ in found),
            largest_difference=far,
            plain_model_loads=all(loads for _, _, loads in found),
        )


def goes_on(device: str, folder: str, before: int, after: int) -> tuple[bool, float, bool]:
    """In a rank: save a run, and go on with it and with a run that has loaded it.

    :returns: whether both have the same bits, how far they are apart, and whether a plain model loads
    """
    Training.device = torch.device(prepare(device))
    first = Training(before)
    train_for(first, 2)
    Checkpoints(folder).save(2, first.model, first.optimizer)
    numbers = first.generator.get_state()
    train_for(first, 2)
    other = Training(after)
    train_for(other, 1)
    assert Checkpoints(folder).load(other.model, other.optimizer) == 2
    other.generator.set_state(numbers)
    train_for(other, 2)
    pairs = [(torch.stack(other.losses[-2:]).cpu(), torch.stack(first.losses[-2:]).cpu())]
    state, expected = other.model.state_dict(), first.model.state_dict()
    pairs += [(state[name].cpu(), value.cpu()) for name, value in expected.items()]
    plain = Model(torch.float32).to(Training.device)
    plain.load_state_dict(expected)
    tokens = torch.arange(12).view(2, 6).to(Training.device)
    with torch.no_grad():
        loads = plainly.distance(plain(tokens).cpu(), first.model(tokens).cpu()) <= plainly.FP32
    return all(torch.equal(*pair) for pair in pairs), max(plainly.distance(*pair) for pair in pairs), loads


def train_for(training: Training, steps: int) -> None:
    for _ in range(steps):
        training.step()


def program(kit: Kit) -> None:
    """`python -m shardbook.train` learns, and counts the bytes of the formulas."""
    if kit.device == "late":
        kit.not_tried("the training program", "it knows no device of the tests: run it on CUDA or a CPU")
        return
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    options = "--steps 8 --layers 2 --width 32 --heads 2 --context 32 --batch 4 --lr 3e-3"
    for ranks in (1,) if kit.quick else (1, 2):
        with tempfile.TemporaryDirectory(prefix="training-") as folder:
            file = Path(folder, "figures.json")
            command = [
                sys.executable,
                *(launch if ranks > 1 else []),
                "-m",
                "shardbook.train",
                *options.split(),
            ]
            # Two ranks share the device.
            command += ["--device", kit.device, "--json", str(file)] + ["--backend", "gloo"] * (ranks > 1)
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=max(5.0, kit.left), check=False
            )
            if done.returncode:
                raise RuntimeError(done.stderr.strip() or f"exit code {done.returncode}")
            figures = json.loads(file.read_text("utf-8"))
        kit.holds(
            f"the training program, {ranks} rank{'s' * (ranks > 1)}",
            figures["loss_last"] < figures["loss_first"]
            and all(figures[key] == figures[f"{key}_forecast"] for key in ("sent", "steady")),
            **{key: max(figures[key]) for key in ("sent", "steady", "peak")},
            **{f"{key}_forecast": max(figures[f"{key}_forecast"]) for key in ("sent", "steady", "peak")},
        )
