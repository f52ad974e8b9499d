"""A folder in which each checkpoint is whole or not there, and a damaged one is refused with the reason."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import resource
import shutil
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
import torch
import torch.distributed as dist
from torch import nn

import ranks
from book.toys import assert_equal
from shardbook import Disagreement, shard
from shardbook.state import checkpoints, sharded, together
from shardbook.state.checkpoints import Checkpoints


def job(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = shard(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), units=nn.Linear)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        model(torch.ones(2, 8)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def save_three(folder: Path) -> list[str]:
    model, optimizer = job(1)
    checkpoints = Checkpoints(folder, keep=2)
    for step in (1, 2, 30):
        train(model, optimizer, 1)
        checkpoints.save(step, model, optimizer)
    return names(folder)


def load(folder: Path) -> int | str | None:
    try:
        return Checkpoints(folder).load(*job(2))
    except (ValueError, OSError) as error:
        return str(error)


@pytest.mark.full
def test_the_newest_are_kept_and_the_newest_is_loaded(tmp_path: Path) -> None:
    found = ranks.run(2, save_three, tmp_path / "run")
    assert found == [["step-00000002", "step-00000030"]] * 2
    assert ranks.run(3, load, tmp_path / "run") == [30] * 3


def tuned(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model of which only biases are trained."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith("bias"))
    shard(model, units=nn.Linear)
    return model, torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=0.1)


def save_what_is_trained(folder: Path) -> Any:
    model, optimizer = tuned(1)
    train(model, optimizer, 2)
    Checkpoints(folder, frozen=False).save(2, model, optimizer)
    return model.state_dict()


def load_what_is_trained(folder: Path) -> Any:
    """The values of a model that loads it; and what one says that needs more, and one that trains less."""
    model, optimizer = tuned(2)
    before = model.state_dict()
    assert Checkpoints(folder, frozen=False).load(model, optimizer) == 2
    said = []
    for frozen in (True, False):
        other, rule = tuned(3)
        if not frozen:
            other[0].bias.requires_grad_(False)
        with pytest.raises(ValueError, match=r"weight|bias") as refused:
            Checkpoints(folder, frozen=frozen).load(other, rule)
        said.append(str(refused.value))
    return before, model.state_dict(), said


@pytest.mark.full
def test_what_is_frozen_is_left_out_and_stays_as_it_is(tmp_path: Path) -> None:
    saved = ranks.run(2, save_what_is_trained, tmp_path / "run")[0]
    for before, after, (whole, other) in ranks.run(3, load_what_is_trained, tmp_path / "run"):
        for name, value in after.items():
            assert torch.equal(value, (saved if name.endswith("bias") else before)[name])
        assert "the checkpoint has no model.0.weight" in whole
        assert "holds values of 0.bias, which is not trained now" in other


def save_in_the_background(folder: Path) -> list[list[str]]:
    """Train on while a thread writes, in the order that is hardest: it writes when training has gone on."""
    model, optimizer = job(1)
    train(model, optimizer, 1)
    checkpoints = Checkpoints(folder, background=True)
    assert checkpoints.background is not None
    start, found = checkpoints.background.start, []

    def later(work: Any) -> None:
        train(model, optimizer, 2)
        start(work)

    checkpoints.background.start = later  # type: ignore[method-assign]
    checkpoints.save(1, model, optimizer)
    checkpoints.wait()
    found.append(names(folder))
    values = values_after(folder)
    twin, other = job(1)
    train(twin, other, 1)
    assert_equal(values, twin.state_dict())
    return found


def values_after(folder: Path) -> dict[str, Any]:
    model, optimizer = job(2)
    Checkpoints(folder).load(model, optimizer)
    return model.state_dict()


def test_what_is_saved_in_the_background_is_what_was_there_then(tmp_path: Path) -> None:
    assert ranks.run(2, save_in_the_background, tmp_path / "run") == [[["step-00000001"]]] * 2


def fail_in_the_background(folder: Path) -> tuple[str, list[str]]:
    model, optimizer = job(1)
    checkpoints = Checkpoints(folder, background=True)
    if dist.get_rank() == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
    checkpoints.save(1, model, optimizer)
    with pytest.raises(OSError, match=r"rank 1: .*File too large") as caught:
        checkpoints.save(2, model, optimizer)
    dist.barrier()
    return str(caught.value), names(folder)


def test_what_goes_wrong_in_the_background_is_told_by_the_next_call(tmp_path: Path) -> None:
    found = ranks.run(2, fail_in_the_background, tmp_path / "run")
    assert found[0] == found[1]
    assert found[0][1] == []


def save_on_the_first_rank_alone(folder: Path) -> str:
    # PyTorch warns that the hooks after a forward pass that raised have raised the same.
    warnings.simplefilter("ignore")
    model, optimizer = job(1)
    train(model, optimizer, 2)
    try:
        if dist.get_rank() == 0:
            Checkpoints(folder).save(2, model, optimizer)
        train(model, optimizer, 1)
    except Disagreement as error:
        return str(error)
    return ""


@pytest.mark.full
def test_a_save_that_one_rank_makes_alone_is_refused_on_every_rank(tmp_path: Path) -> None:
    found = ranks.run(2, save_on_the_first_rank_alone, tmp_path / "run")
    assert found[0] == found[1]
    assert "rank 0" in found[0]
    assert "save" in found[0]


def save_in_ways_of_their_own(folder: Path) -> list[str]:
    """What is said where rank 0 saves with one argument more than the other."""
    said = []
    for more in ("background", "frozen", "step", "schedule"):
        own = more if dist.get_rank() == 0 else ""
        model, optimizer = job(1)
        schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
        train(model, optimizer, 1)
        saves = Checkpoints(folder, background=own == "background", frozen=own != "frozen")
        others = {"schedule": schedule} if own == "schedule" else {}
        with pytest.raises(Disagreement) as refused:
            saves.save(2 if own == "step" else 1, model, optimizer, **others)
        said.append(str(refused.value))
    return said


def test_ranks_that_save_in_different_ways_are_refused_instead_of_waiting(tmp_path: Path) -> None:
    found = ranks.run(2, save_in_ways_of_their_own, tmp_path / "run")
    assert found[0] == found[1]
    ways = (" in the background", " without frozen parameters", "step 2", ", schedule")
    for way, said in zip(ways, found[0], strict=True):
        assert said.count("save step") == 2
        assert said.count(way) == 1
    assert not (tmp_path / "run").exists()


def test_where_nothing_was_saved_a_run_begins(tmp_path: Path) -> None:
    assert ranks.run(2, load, tmp_path / "nothing") == [None, None]


def on_a_disk_of_each_rank(folder: Path) -> list[Any]:
    """What is said, and what is left, where each rank has a folder of its own."""
    model, optimizer = job(1)
    checkpoints = Checkpoints(folder / "shared")
    checkpoints.save(1, model, optimizer)
    own = Checkpoints(folder / str(dist.get_rank()))
    said = []
    with pytest.raises(OSError, match="is another folder") as refused:
        own.save(2, model, optimizer)
    said.append(str(refused.value))
    if dist.get_rank() == 0:
        shutil.copytree(folder / "shared", own.folder, dirs_exist_ok=True)
    dist.barrier()
    with pytest.raises(OSError, match="is another folder") as refused:
        own.load(model, optimizer)
    said.append(str(refused.value))
    assert checkpoints.load(model, optimizer) == 1
    return [said, names(folder / "shared"), names(own.folder) if own.folder.exists() else []]


def test_a_disk_of_each_rank_is_refused_before_anything_is_written_or_removed(tmp_path: Path) -> None:
    for rank, (said, shared, own) in enumerate(ranks.run(2, on_a_disk_of_each_rank, tmp_path)):
        for each in said:
            assert "is another folder on rank 1 than on rank 0; choose a folder on a disk that all" in each
        assert shared == ["step-00000001"]
        assert own == (["step-00000001"] if rank == 0 else [])


def shorten(folder: Path) -> None:
    file = next(folder.glob("__1_*.distcp"))
    file.write_bytes(file.read_bytes()[:-5])


def flip(folder: Path) -> None:
    """Change a bit of the elements that lie last in a file."""
    listed = json.loads((folder / "whole.json").read_text())["files"]["__0_0.distcp"]["elements"]
    start, size, _ = max(listed.values())
    file = folder / "__0_0.distcp"
    data = bytearray(file.read_bytes())
    data[start + size - 1] ^= 1
    file.write_bytes(data)


def flip_the_index(folder: Path) -> None:
    file = folder / ".metadata"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def rewrite(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Change the list of a checkpoint, as a version that knows its checksum would do it."""

    def act(folder: Path) -> None:
        file = folder / "whole.json"
        said = json.loads(file.read_text())
        del said["sum"]
        change(said)
        file.write_bytes(together.sealed(said))

    return act


def write_in_format_1(folder: Path) -> None:
    """Write the list as it was before it had a checksum."""
    file = folder / "whole.json"
    said = json.loads(file.read_text())
    del said["sum"]
    file.write_text(json.dumps({**said, "format": 1}))


def nest(folder: Path) -> None:
    """A list that is deeper than a program can follow."""
    (folder / "whole.json").write_text(
        '{"format": 1, "files": {}, "more": ' + "[" * 10**5 + "]" * 10**5 + "}"
    )


def lose(folder: Path) -> None:
    next(folder.glob("__1_*.distcp")).unlink()


def spoil_the_list(folder: Path) -> None:
    (folder / "whole.json").write_text("{")


def lose_two(folder: Path) -> None:
    lose(folder)
    lose(folder.with_name("step-00000002"))


BEFORE = "; the newest that is whole is step-00000002; remove step-00000030 to go on from there$"
LIST = r"is damaged: whole\.json is not what was written: "


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two checkpoints."""
    folder = tmp_path_factory.mktemp("saved") / "run"
    ranks.run(2, save_three, folder)
    return folder


@pytest.mark.cases(now=1, ci=3)
@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (
            shorten,
            r"step-00000030 is damaged: __1_0\.distcp has \d+ bytes of \d+" + BEFORE,
        ),
        (
            flip,
            r"is damaged: rank \d: __0_0\.distcp is not what was written" + BEFORE,
        ),
        (
            flip_the_index,
            r"is damaged: \.metadata is not what was written" + BEFORE,
        ),
        (
            rewrite(lambda said: said["files"]["__1_0.distcp"].update(elements={})),
            r"the list of its files lacks a part of __1_0\.distcp" + BEFORE,
        ),
        (
            lose,
            r"is damaged: __1_0\.distcp is missing" + BEFORE,
        ),
        (lose_two, r"__1_0\.distcp is missing; none of the older ones is whole$"),
        (spoil_the_list, LIST + "Input data was truncated" + BEFORE),
        (
            lambda folder: (folder / "whole.json").unlink(),
            "whole.json cannot be read: No such file .*" + BEFORE,
        ),
        (rewrite(lambda said: said.update(format=0)), LIST + r"Expected `int` >= 1 .*" + BEFORE),
        (rewrite(lambda said: said.update(step=-1)), LIST + r"Expected `int` >= 0 .*" + BEFORE),
        (rewrite(lambda said: said.update(step="30")), LIST + r"Expected `int`, got `str` .*" + BEFORE),
        (rewrite(lambda said: said.update(step=30.0)), LIST + r"Expected `int`, got `float` .*" + BEFORE),
        (rewrite(lambda said: said.update(step=31)), r"whole\.json is of step 31" + BEFORE),
        (rewrite(lambda said: said.update(files=[])), LIST + r"Expected `object`, got `array` .*" + BEFORE),
        (nest, LIST + "maximum recursion depth exceeded.*" + BEFORE),
        (
            rewrite(lambda said: said.update(format=99)),
            r"has format 99, and this version reads up to 2; install",
        ),
    ],
)
def test_what_is_damaged_is_refused_on_every_rank(saved: Path, tmp_path: Path, spoil: Any, said: str) -> None:
    shutil.copytree(saved, tmp_path / "run")
    spoil(tmp_path / "run" / "step-00000030")
    found = ranks.run(2, load, tmp_path / "run")
    assert found[0] == found[1]
    assert re.search(said, found[0]), found[0]
    assert "\n" not in found[0]


STEPS = ["step-00000030", "step-00000002", "step-00000001"]


def save_three_and_keep_them(folder: Path) -> None:
    model, optimizer = job(1)
    for step in (1, 2, 30):
        train(model, optimizer, 1)
        Checkpoints(folder, keep=3).save(step, model, optimizer)


def damages(file: Path, draw: random.Random) -> list[bytes]:
    """The content of a file with a flipped bit, with wrong bytes, and cut off."""
    data, found = file.read_bytes(), []
    for _ in range(8):
        changed = bytearray(data)
        changed[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        found.append(bytes(changed))
    start = draw.randrange(len(data))
    found.append(data[:start] + draw.randbytes(32) + data[start + 32 :])
    found.append(data[:start] + bytes(512) + data[start + 512 :])
    return [*found, data[:start], b""]


def load_what_a_disk_has_damaged(folder: Path, seed: int) -> list[tuple[str, str]]:
    """What is said of each damage in each file, where it is neither harmless nor told as it should be."""
    draw, wrong = random.Random(seed), []
    expected = values_after(folder)
    for older, step in enumerate(STEPS[:2]):
        if older and dist.get_rank() == 0:
            shutil.rmtree(folder / STEPS[0])
            shutil.copytree(folder / STEPS[1], folder / STEPS[0])
            lose(folder / STEPS[0])
        broken = " and ".join(STEPS[: older + 1])
        too = f"; {STEPS[1]} is damaged, too" if older else ""
        offers = [
            f"{too}; the newest that is whole is {STEPS[older + 1]}; remove {broken} to go on from there"
        ]
        if older:
            offers.append(f"; the newest that is whole is {STEPS[1]}; remove {STEPS[0]} to go on from there")
        for file in sorted((folder / step).iterdir()):
            data = file.read_bytes()
            for damaged in damages(file, draw):
                dist.barrier()
                if dist.get_rank() == 0:
                    file.write_bytes(damaged)
                dist.barrier()
                model, optimizer = job(2)
                try:
                    assert Checkpoints(folder).load(model, optimizer) == 30
                    assert_equal(model.state_dict(), expected)
                except Exception as error:
                    said = str(error)
                    head = f"{folder / STEPS[0]} is damaged: "
                    if not (said.startswith(head) and said.endswith(tuple(offers)) and "\n" not in said):
                        wrong.append((file.name, f"{type(error).__name__}: {said}"))
            dist.barrier()
            file.write_bytes(data)
    return wrong


@pytest.mark.nightly
@pytest.mark.parametrize("change", [None, write_in_format_1], ids=["now", "format 1"])
def test_each_damage_is_harmless_or_told_with_the_newest_checkpoint_that_is_whole(
    tmp_path: Path, change: Callable[[Path], None] | None
) -> None:
    ranks.run(2, save_three_and_keep_them, tmp_path)
    for step in STEPS if change else ():
        change(tmp_path / step)
    assert ranks.run(2, load_what_a_disk_has_damaged, tmp_path, 7) == [[], []]


def test_checkpoints_sort_by_number_and_other_folders_are_none(tmp_path: Path) -> None:
    for name in ("step-99999999", "step-100000000", "step-00000009", "step-000000010", "step-00000011-old"):
        (tmp_path / name).mkdir()
    found = Checkpoints(tmp_path).all()
    assert [path.name for path in found] == ["step-100000000", "step-99999999", "step-00000009"]


@pytest.mark.parametrize("step", [-1, 1.0, "3", True])
def test_a_step_that_is_no_number_is_not_saved(tmp_path: Path, step: Any) -> None:
    with pytest.raises(ValueError, match="is no number of steps; pass 0 or more"):
        Checkpoints(tmp_path).save(step, nn.Linear(1, 1))


def die_while_writing(folder: Path, victim: int) -> None:
    def die(*_: Any, **__: Any) -> None:
        if dist.get_rank() == victim:
            os.kill(os.getpid(), signal.SIGKILL)

    sharded.Writer.write_data = die  # type: ignore[method-assign]
    model, optimizer = job(1)
    Checkpoints(folder).save(31, model, optimizer)


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_killed_while_it_writes_leaves_the_checkpoint_before(tmp_path: Path, victim: int) -> None:
    ranks.run(2, save_three, tmp_path / "run")
    with pytest.raises(ranks.RanksFailed, match=f"rank {victim}: died"):
        ranks.run(2, die_while_writing, tmp_path / "run", victim)
    assert ranks.run(2, load, tmp_path / "run") == [30, 30]
    assert ranks.run(2, save_three, tmp_path / "run")[0] == ["step-00000002", "step-00000030"]


def save_on_a_full_disk(folder: Path) -> tuple[str, list[str]]:
    model, optimizer = job(1)
    if dist.get_rank() == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
    try:
        Checkpoints(folder).save(1, model, optimizer)
    except OSError as error:
        dist.barrier()
        return str(error), names(folder)
    return "", []


def test_a_disk_that_is_full_is_told_on_every_rank_and_nothing_stays_behind(tmp_path: Path) -> None:
    found = ranks.run(2, save_on_a_full_disk, tmp_path / "run")
    assert found[0] == found[1]
    assert re.search(r"rank 1: .*File too large", found[0][0])
    assert found[0][1] == []


# Each phase of a save: what fails there, the rank on which it does, and with which error.
FAULTS: list[tuple[Any, str, int, int]] = [
    (Path, "mkdir", 0, errno.EROFS),
    (together.Archives, "write", 1, errno.ENOSPC),
    (os, "fsync", 0, errno.ENOSPC),
    (os, "fsync", 1, errno.EIO),
    (sharded.Writer, "finish", 0, errno.ENOSPC),
    (checkpoints, "checksums", 0, errno.EIO),
    (checkpoints, "write_list", 0, errno.ENOSPC),
    (Path, "rename", 0, errno.EROFS),
]


def save_and_wait(place: Checkpoints, step: int, *what: Any) -> None:
    place.save(step, *what)
    place.wait()


def save_with_faults(folder: Path) -> list[str]:
    model, optimizer = job(1)
    train(model, optimizer, 1)
    found = []
    for background in (False, True):
        each = Checkpoints(folder, background=background)
        save_and_wait(each, 1, model, optimizer)
        for where, name, victim, number in FAULTS:
            if dist.get_rank() != victim:
                fault = getattr(where, name)
            else:
                fault = Mock(side_effect=OSError(number, os.strerror(number)))
            with patch.object(where, name, fault), pytest.raises(OSError, match="could not be") as caught:
                save_and_wait(each, 2, model, optimizer)
            found.append(str(caught.value))
            dist.barrier()
            assert names(folder) == ["step-00000001"], name
            dist.barrier()
        assert Checkpoints(folder).load(*job(2)) == 1
        save_and_wait(each, 2, model, optimizer)
        assert names(folder) == ["step-00000001", "step-00000002"]
        dist.barrier()
        if dist.get_rank() == 0:
            shutil.rmtree(folder)
        dist.barrier()
    return found


@pytest.mark.full
def test_a_fault_in_any_phase_of_a_save_is_told_on_every_rank_and_leaves_the_checkpoint_before(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    found = ranks.run(2, save_with_faults, folder)
    assert found[0] == found[1]
    assert found[0][: len(FAULTS)] == found[0][len(FAULTS) :]
    for said, (_, name, victim, number) in zip(found[0], FAULTS, strict=False):
        assert said.startswith(f"step 2 could not be saved into {folder}: ")
        assert os.strerror(number) in said, name
        assert f"rank {victim}: " in said or name in ("mkdir", "checksums", "write_list", "rename")
        assert "\n" not in said


def load_what_cannot_be_read(folder: Path) -> str:
    broken = Mock(side_effect=OSError(errno.EIO, os.strerror(errno.EIO)))
    plain = sharded.take
    with patch.object(sharded, "take", broken if dist.get_rank() == 1 else plain):
        return str(load(folder))


@pytest.mark.full
def test_a_file_that_one_rank_cannot_read_is_told_on_every_rank(tmp_path: Path) -> None:
    ranks.run(2, save_three, tmp_path / "run")
    found = ranks.run(2, load_what_cannot_be_read, tmp_path / "run")
    assert found == ["rank 1: [Errno 5] Input/output error"] * 2


def save_in_a_file(folder: Path) -> str:
    try:
        Checkpoints(folder).save(1, *job(1))
    except OSError as error:
        return str(error)
    return ""


def test_a_folder_that_cannot_be_made_is_told_on_every_rank(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = ranks.run(2, save_in_a_file, tmp_path / "file" / "run")
    assert found[0] == found[1]
    assert "Not a directory" in found[0]
