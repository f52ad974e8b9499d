"""Compare Checkpoints and safetensors folders with torch.save and torch.load of the same bytes.

One GPT with AdamW's state is saved and loaded in four ways, in turns, in one job for each number of ranks:

checkpoints       Checkpoints.save and Checkpoints.load: all ranks, parameters, optimizer state, checksums
torch_all         rank 0 alone: torch.save of the same model and optimizer state; torch.load, load_state_dict
folder            save_safetensors and load_safetensors: all ranks, parameters only
torch_model       rank 0 alone: torch.save of the parameters; torch.load, load_state_dict

Each save ends when the disk has the bytes: all four call fsync on each file and on the folder. Each load ends
when the values are in the model and in the optimizer. The files are read from the page cache, unless --cold
drops them from it. The clock runs on rank 0 from a barrier before to a barrier after.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from benchmarks.__main__ import Figures, positive, processor, spread, table
from benchmarks.contender import config_of
from benchmarks.launch import ROOT, Size

from shardbook import Checkpoints, load_safetensors, save_safetensors, shard
from shardbook.models.gpt import GPT, Block, parameters
from shardbook.planning.report import write

MB = 1e6
PAIRS = {"checkpoints": "torch_all", "folder": "torch_model"}
Seconds = dict[str, list[float]]


def main(arguments: list[str] | None = None) -> int:
    """Run all jobs, print the tables, write the figures."""
    options = parse(arguments)
    if "RANK" in os.environ:
        return rank_main(options)
    if options.json is not None and not options.json.parent.is_dir():
        sys.exit(f"--json {options.json}: there is no folder {options.json.parent}; make it first")
    print(describe(options), flush=True)
    figures: Figures = {}
    for count in options.ranks:
        figures |= compare(job(count, options), count)
    print(absolute(figures, options.ranks), relative(figures), sep="\n\n")
    figures |= {"cpu": processor(), "torch": torch.__version__, "python": platform.python_version()}
    if options.json is not None:
        write(options.json, json.dumps(figures, indent=1) + "\n")
    return 0


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    about, *more = (__doc__ or "").split("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.saving",
        description=" ".join(about.split()),
        epilog="\n\n".join(more),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    size, add = Size(), parser.add_argument
    add("--rounds", type=positive, default=10, metavar="N", help="each saves and loads in every way (10)")
    add("--ranks", type=positive, nargs="+", default=[1, 2, 4], metavar="N", help="the jobs (1 2 4)")
    for name in ("layers", "width", "heads", "context", "vocabulary"):
        default = getattr(size, name)
        add(f"--{name}", type=positive, default=default, metavar="N", help=f"of the model ({default})")
    add("--folder", type=Path, default=Path(tempfile.gettempdir()), help="where the files are written")
    add("--cold", action="store_true", help="drop each file from the page cache before it is read")
    add("--json", type=Path, metavar="FILE", help="also write the figures to this file, as one flat object")
    return parser.parse_args(arguments)


def size_of(options: argparse.Namespace) -> Size:
    """The model, as the other benchmarks describe it."""
    return Size(**{name: getattr(options, name) for name in asdict(Size()) if hasattr(options, name)})


def job(count: int, options: argparse.Namespace) -> Seconds:
    """Run one number of ranks in fresh processes, and read what rank 0 prints."""
    print(f"{count} ranks, {options.rounds} rounds", file=sys.stderr, flush=True)
    line = ["--rounds", str(options.rounds), "--folder", str(options.folder)]
    for name in ("layers", "width", "heads", "context", "vocabulary"):
        line += [f"--{name}", str(getattr(options, name))]
    line += ["--cold"] if options.cold else []
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    done = subprocess.run(
        [sys.executable, *torchrun, "-m", "benchmarks.saving", *line],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"the job of {count} ranks failed; the message stands above")
    seconds: Seconds = json.loads(done.stdout.splitlines()[-1])
    return seconds


def rank_main(options: argparse.Namespace) -> int:
    """What runs in each rank of a job."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    folder = [tempfile.mkdtemp(prefix="saving-", dir=options.folder) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    try:
        seconds = measure(Path(str(folder[0])), size_of(options), options.rounds, cold=options.cold)
    finally:
        if dist.get_rank() == 0:
            shutil.rmtree(str(folder[0]))
    if dist.get_rank() == 0:
        print(json.dumps(seconds))
    dist.destroy_process_group()
    return 0


def measure(folder: Path, size: Size, rounds: int, *, cold: bool) -> Seconds:
    """The seconds of each save and each load, round by round; all ranks call it."""
    ways = {**ours(folder, size), **(theirs(folder, size) if dist.get_rank() == 0 else {})}
    names = [*PAIRS, *PAIRS.values()]
    seconds: Seconds = {f"{act}_{name}": [] for name in names for act in ("save", "load")}
    # The first round is not counted: files and memory are new.
    for number in range(rounds + 1):
        for name in names if number % 2 else names[::-1]:
            for place, act in enumerate(("save", "load")):
                remove(folder / name, act)
                if cold and act == "load" and dist.get_rank() == 0:
                    drop(folder / name)
                dist.barrier()
                start = time.perf_counter()
                if name in ways:
                    ways[name][place]()
                dist.barrier()
                if number:
                    seconds[f"{act}_{name}"].append(time.perf_counter() - start)
    return seconds


def remove(path: Path, act: str) -> None:
    """Make room for what is saved next."""
    if act == "save" and dist.get_rank() == 0:
        shutil.rmtree(path, ignore_errors=True)


def drop(path: Path) -> None:
    """Drop files from the page cache."""
    for file in path.rglob("*"):
        if file.is_file():
            number = os.open(file, os.O_RDONLY)
            os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(number)


Ways = dict[str, tuple[Callable[[], Any], Callable[[], Any]]]


def ours(folder: Path, size: Size) -> Ways:
    """Our two ways."""
    model = shard(GPT(config_of(size)), units=Block)
    optimizer = stepped(model)
    path = folder / "folder"

    # The folder is removed between rounds, which one object would refuse.
    def checkpoints() -> Checkpoints:
        return Checkpoints(folder / "checkpoints", keep=1)

    return {
        "checkpoints": (
            lambda: checkpoints().save(1, model, optimizer),
            lambda: checkpoints().load(model, optimizer),
        ),
        "folder": (lambda: save_safetensors(model, path), lambda: load_safetensors(model, path)),
    }


def theirs(folder: Path, size: Size) -> Ways:
    """PyTorch's two ways, on one rank."""
    model = GPT(config_of(size))
    optimizer = stepped(model)
    both, alone = folder / "torch_all" / "state.pt", folder / "torch_model" / "state.pt"

    def load_all() -> None:
        state = torch.load(both, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    return {
        "torch_all": (
            lambda: save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, both),
            load_all,
        ),
        "torch_model": (
            lambda: save(model.state_dict(), alone),
            lambda: model.load_state_dict(torch.load(alone, weights_only=True)),
        ),
    }


def stepped(model: torch.nn.Module) -> torch.optim.Optimizer:
    """An optimizer with state, of gradients that nobody has computed."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def save(state: Any, path: Path) -> None:
    """torch.save, until the disk has it."""
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    number = os.open(path.parent, os.O_RDONLY)
    os.fsync(number)
    os.close(number)


def compare(seconds: Seconds, count: int) -> Figures:
    """Ours over PyTorch's on one rank, and the medians by themselves."""
    figures: Figures = {}
    for act in ("save", "load"):
        for mine, other in PAIRS.items():
            key = f"{act}_{mine}_ratio_n{count}"
            figures |= spread(key, seconds[f"{act}_{mine}"], seconds[f"{act}_{other}"], float)
    medians = {f"{key}_seconds_n{count}": statistics.median(each) for key, each in seconds.items()}
    return {**figures, **medians}


def describe(options: argparse.Namespace) -> str:
    """The machine, the versions and the task."""
    count = parameters(config_of(size_of(options)))
    return (
        f"{processor()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {platform.system()} "
        f"{platform.release()}; Python {platform.python_version()}, torch {torch.__version__}\n"
        f"{count:,} parameters: {12 * count / MB:.0f} MB with AdamW's state, {4 * count / MB:.0f} without; "
        f"files in {options.folder}, read from {'the disk' if options.cold else 'the page cache'}; "
        "one thread a rank"
    )


def absolute(figures: Figures, ranks: list[int]) -> str:
    """Medians of each way, by the number of ranks."""
    names = [f"{act}_{name}" for act in ("save", "load") for name in [*PAIRS, *PAIRS.values()]]
    title = "seconds, medians"
    width = max(len(name) for name in [*names, title])
    lines = [f"{title:<{width}}" + "".join(f"{f'{count} ranks':>10}" for count in ranks)]
    for name in names:
        row = [figures[f"{name}_seconds_n{count}"] for count in ranks]
        lines.append(f"{name:<{width}}" + "".join(f"{value:>10.3f}" for value in row))
    return "\n".join(lines)


def relative(figures: Figures) -> str:
    """The ratios with their spread."""
    return table("one over the other", [key for key in figures if "_ratio" in key], figures)


if __name__ == "__main__":
    sys.exit(main())
