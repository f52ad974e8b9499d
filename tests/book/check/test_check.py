"""Each fault of a script is found with its line, and a right script is told nothing."""

from __future__ import annotations

from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

import ranks
from book.check.scripts import CLEAN, FAULTS, line_of, right, script, wrong
from shardbook.check.checked_run import Diagnosis, check
from shardbook.check.race_recorder import Recorder
from shardbook.check.watch_memory import Row
from shardbook.check.watches import BetweenRanks, Finding, Place, joined
from tiers import rows

Page = dict[str, Any]
# What `make test` tries.
NOW = [
    "torch's clipping",
    "losses that are not divided",
    "the same data on every rank",
    "a write that is lost",
]
MORE = ["torch's reentrant checkpoint", "a warm-up, an evaluation and an average of the weights"]
CLEAN_NOW = ["stage 3", "checkpoints", "accumulation in stage 1", "a scaler whose steps overflow"]


def pages(folder: str, names: list[str], options: dict[str, Any]) -> dict[str, Page | None]:
    """Check some files of a folder on this rank. Rank 0 gets the pages, and what was written to stderr."""
    found: dict[str, Page | None] = {}
    for name in names:
        # A rank that does something else is waited for in vain.
        with redirect_stderr(StringIO()) as written, patch.object(BetweenRanks, "limit", 2.0):
            made = check(Path(folder, name), **options)
        said = written.getvalue()
        found[name] = made and {**made.data(), "page": made.page(), "code": made.code, "said": said}
    return found


def checked(texts: dict[str, str], folder: Path, **options: Any) -> dict[str, Page]:
    """The pages of some scripts, all run on the same two ranks."""
    for name, text in texts.items():
        (folder / name).write_text(text)
    found: dict[str, Page] = ranks.run(2, pages, str(folder), [*texts], options, timeout=240)[0]
    return found


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Page]:
    """The pages of all scripts that the chosen tests ask for, on two ranks."""
    names = {
        item.callspec.params["name"]
        for item in request.session.items
        if item.path == Path(__file__) and hasattr(item, "callspec")
    }
    texts = {f"{name}.py": CLEAN[name] for name in CLEAN if name in names}
    for name, (text, *_) in FAULTS.items():
        if name in names:
            texts[f"{name}.right.py"], texts[f"{name}.wrong.py"] = right(text), wrong(text)
    return checked(texts, tmp_path_factory.mktemp("scripts"))


@pytest.mark.cases(now=3, ci=12)
@pytest.mark.parametrize("name", rows(FAULTS, now=NOW))
def test_a_fault_is_found_with_its_line(found: dict[str, Page], name: str) -> None:
    text, weight, kind, part = FAULTS[name]
    page = found[f"{name}.wrong.py"]
    (one,) = [each for each in page["findings"] if each["kind"] == kind]
    assert one["weight"] == weight
    place = f"{name}.wrong.py:{line_of(wrong(text), part)}" if part else None
    assert place is None or one["where"].endswith(place), one["where"]
    assert (one["where"] is None) is (part is None)
    assert f"{weight}: {one['what']}" in page["page"]
    assert page["code"] == (weight == "error")


@pytest.mark.cases(now=3, ci=12)
@pytest.mark.parametrize("name", rows(FAULTS, now=NOW))
def test_nothing_is_found_without_it(found: dict[str, Page], name: str) -> None:
    page = found[f"{name}.right.py"]
    assert page["findings"] == []
    assert page["steps"] == 3


@pytest.mark.cases(ci=11)
@pytest.mark.parametrize("name", rows(CLEAN, now=CLEAN_NOW))
def test_a_right_program_is_told_nothing(found: dict[str, Page], name: str) -> None:
    """And each unit has sent what the formula says, where there is one."""
    page = found[f"{name}.py"]
    assert page["findings"] == []
    assert page["page"].startswith("3 steps on 2 ranks: nothing found")
    units = [row for row in page["sent"] if row["unit"] != "no unit"]
    assert units
    others = {row["kind"] for row in units if row["planned"] not in (None, row["counted"])}
    kept = {row["kind"]: (row["counted"], row["planned"]) for row in page["stored"]}
    counted, planned = kept["parameters"]
    assert planned == (None if name == "two networks" else counted)
    # SGD without momentum stores nothing, and AdamW two numbers for each parameter.
    adam = "AdamW" in CLEAN[name]
    assert (kept["optimizer's state"][0] > 0) == (adam or "momentum" in CLEAN[name])
    # A reentrant checkpoint around several units gathers more often, and so does a block of `whole`.
    assert others == ({"gather"} if name in MORE else set())


TRAIN = """
model = shard(build(), units=Block)
torch.manual_seed(rank)
optimizer = torch.optim.AdamW(model.parameters())
"""


def one(text: str, folder: Path, **options: Any) -> Page:
    """The page of one script."""
    return checked({"train.py": script(text)}, folder, **options)["train.py"]


@pytest.mark.full
def test_ranks_that_leave_the_order_are_a_finding_with_a_line(tmp_path: Path) -> None:
    # PyTorch warns of the error that it has passed on.
    text = f"import warnings\nwarnings.simplefilter('ignore')\n{TRAIN}\nfor step in range(9):\n"
    text += "    x, y = batch()\n    if rank or step < 1:\n        model(x)\n"
    text += "    F.cross_entropy(model(x), y).backward()\n    optimizer.step()\n"
    page = one(text, tmp_path)
    (found,) = page["findings"]
    assert (found["weight"], found["kind"], found["ranks"]) == ("error", "order", [0, 1])
    assert "rank 0" in found["what"]
    assert "rank 1" in found["what"]
    assert str(tmp_path / "train.py") in found["where"]


def test_an_error_of_the_script_is_told_with_what_was_found_before(tmp_path: Path) -> None:
    text = f"{TRAIN}\nx, y = batch()\nmodel.eval()\nF.cross_entropy(model(x), y).backward()\n"
    page = one(f"{text}optimizer.step()\nraise KeyError('missing')\n", tmp_path)
    assert [found["kind"] for found in page["findings"]] == ["raised", "evaluating"]
    last = len(script(text).splitlines()) + 2
    assert page["findings"][0]["where"].endswith(f"train.py:{last}")
    head = f'Traceback (most recent call last):\n  File "{tmp_path / "train.py"}", line {last}, in <module>\n'
    assert page["said"].startswith(head)
    assert page["said"].endswith("KeyError: 'missing'\n")


def test_a_script_may_end_by_itself(tmp_path: Path) -> None:
    """After fewer steps, also by `sys.exit`; an exit code is an error."""
    texts = {}
    for code in (0, 3):
        text = f"{TRAIN}\nx, y = batch()\nF.cross_entropy(model(x), y).backward()\noptimizer.step()\n"
        texts[f"{code}.py"] = script(f"{text}raise SystemExit({code})\n")
    good, bad = checked(texts, tmp_path).values()
    assert good["page"].startswith("1 step on 2 ranks: nothing found")
    assert [found["what"] for found in bad["findings"]] == ["SystemExit: 3"]


def test_a_program_that_catches_every_exception_is_ended_all_the_same(tmp_path: Path) -> None:
    text = f"{TRAIN}\nfor step in range(9):\n    try:\n        x, y = batch()\n"
    text += "        F.cross_entropy(model(x), y).backward()\n        optimizer.step()\n"
    text += "    except Exception:\n        raise SystemExit('caught')\n"
    page = one(text, tmp_path, steps=2)
    assert (page["steps"], page["findings"]) == (2, [])


def test_arguments_and_modules_of_the_script_are_its_own(tmp_path: Path) -> None:
    """A fault in a module beside the script has the line of that module."""
    (tmp_path / "beside_the_script.py").write_text(
        "def count(model):\n    return sum(p.numel() for p in model.parameters())\n"
    )
    text = f"import sys\nfrom beside_the_script import count\n{TRAIN}\nassert sys.argv[1:] == ['a', '--b']\n"
    text += "count(model)\nLOOP\n"
    page = one(text, tmp_path, arguments=["a", "--b"])
    (found,) = page["findings"]
    assert found["where"].endswith("beside_the_script.py:2")


RACE = """
side = torch.get_device_module("cpu").Stream("cpu")
for step in range(9):
    x, y = batch()
    loss = F.cross_entropy(model(x), y)
    side.wait_stream(torch.get_device_module("cpu").current_stream("cpu"))  ## pass
    with torch.get_device_module("cpu").stream(side):
        total = loss.detach() * 2
    torch.get_device_module("cpu").current_stream("cpu").wait_stream(side)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.full
def test_a_race_of_the_program_is_found_with_its_line(tmp_path: Path) -> None:
    text = script(TRAIN + RACE)
    found = checked({"right.py": right(text), "wrong.py": wrong(text)}, tmp_path, races=True)
    assert found["right.py"]["findings"] == []
    races = found["wrong.py"]["findings"]
    assert {race["kind"] for race in races} == {"race"}
    line = line_of(wrong(text), "total =")
    assert {race["where"] for race in races} == {f"{tmp_path / 'wrong.py'}:{line}"}


def silent(limit: float) -> list[Any]:
    """Rank 1 ends without a note, and rank 0 compares."""
    between = BetweenRanks()
    between.limit = limit
    if between.rank:
        between.ended("over")
        return []
    return [between.compare("a question", "mine"), between.ended("mine")]


def test_nobody_waits_for_a_rank_that_is_silent_or_has_ended() -> None:
    """The limit is longer than the test may take."""
    first, _ = ranks.run(2, silent, 10_000.0)
    assert first == [["mine", None], ["mine", "over"]]
    assert ranks.run(2, absent)[0] == ["mine", None]


def absent() -> list[Any] | None:
    """Rank 1 writes nothing at all."""
    between = BetweenRanks()
    between.limit = 0.0
    return None if between.rank else between.compare("a question", "mine")


def test_findings_of_all_ranks_are_joined() -> None:
    here, there = Place("train.py", 1), Place("train.py", 2)
    note = Finding("note", "tied", "a and b are one", "")
    mine = [note, Finding("error", "slice", "of a", "", here)]
    other = [
        Finding("error", "slice", "of b", "", here),
        Finding("warning", "slice", "of b", "", there),
        note,
    ]
    assert [(each.what, of) for each, of in joined([mine, other])] == [
        ("of a", [0, 1]),
        ("of b", [1]),
        ("a and b are one", [0, 1]),
    ]


def test_a_page_of_many_units_shows_those_that_differ() -> None:
    page = Diagnosis(3, 2, [], [Row(f"blocks.{n}", "gather", 8 + (n == 90), 8) for n in range(100)]).page()
    lines = page.splitlines()
    assert len(lines) < 30
    assert lines[3].split() == ["blocks.90", "gather", "9", "8"]
    assert lines[-1].split() == ["76", "more", "608", "608"]


def test_a_build_for_a_device_that_is_not_there_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch asks the modelled device whether it is there: an optimizer does so in each step."""
    monkeypatch.setattr(torch._C, "_accelerator_getAccelerator", lambda: torch.device("cuda"))
    with Recorder():
        assert torch.accelerator.current_accelerator(check_available=True) is None
