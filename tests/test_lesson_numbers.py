"""The tables that are typed into lessons: their numbers are those of the programs that the lessons name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from shardbook import memory
from shardbook.train.__main__ import main as train

ROOT = Path(__file__).parent.parent
LESSONS = ROOT / "site" / "lessons"


def table(lesson: str, head: str) -> dict[str, list[str]]:
    """The rows below a head, by their first cell."""
    text = (LESSONS / f"{lesson}.md").read_text("utf-8")
    assert text.count(f"{head}\n") == 1
    rows = text.partition(f"{head}\n")[2].partition("\n\n")[0].splitlines()[1:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return {first: rest for first, *rest in cells}


def recorded(name: str) -> Any:
    return json.loads((ROOT / "site" / "recorded" / f"{name}.json").read_text("utf-8"))["data"]


def test_the_bytes_of_the_sketch_are_those_of_its_recording() -> None:
    typed = table("fifty_lines", "| bytes on a rank | plain | sharded |")
    assert typed.pop("largest difference of a parameter") == ["", "0.0"]
    counted = recorded("sketch")["ranks"]["2"]
    assert typed == {
        kind: [f"{counted[way][kind]:,}" for way in ("plain", "sharded")] for kind in counted["plain"]
    }


MODELS = {
    "163 million, 8 ranks": "--layers 12 --width 768 --heads 12 --vocabulary 50257 --batch 8 --ranks 8",
    "7.67 billion, 64 ranks": "--layers 36 --width 4096 --heads 32 --vocabulary 50257 --batch 1 --ranks 64",
}


def planned(options: str, folder: Path) -> dict[str, Any]:
    """What the planner says of a model with sequences of 1,024 tokens."""
    file = folder / "plan.json"
    assert memory.main([*options.split(), "--context", "1024", "--json", str(file)]) == 0
    found: dict[str, Any] = json.loads(file.read_text())
    return found


@pytest.mark.parametrize("model", MODELS)
def test_which_of_the_two_first_is_what_the_planner_says(tmp_path: Path, model: str) -> None:
    head = "| GB in a step, at most | 163 million, 8 ranks | 7.67 billion, 64 ranks |"
    typed = {row: cells[list(MODELS).index(model)] for row, cells in table("where_memory_goes", head).items()}
    plain = planned(MODELS[model], tmp_path)["own"]
    cheap = planned(f"{MODELS[model]} --checkpointing", tmp_path)["own"]
    gigabytes = {
        "model states, whole": plain[0]["steady"] + plain[0]["gradients"],
        "activations of the batch": plain[0]["activations"],
        "stage 0": plain[0]["step"],
        "stage 0, each block checkpointed": cheap[0]["step"],
        "stage 3": plain[3]["step"],
        "stage 3, each block checkpointed": cheap[3]["step"],
    }
    assert typed == {row: f"{nbytes / 1e9:.1f}" for row, nbytes in gigabytes.items()}


PLAN = "--plan --layers 24 --width 2048 --heads 16 --context 1024 --batch 8 --ranks 8 --memory 40"
RUNS = {
    "stage 0": "--stage 0",
    "stage 3": "--stage 3",
    "+ checkpoints": "--stage 3 --checkpoint non-reentrant",
    "+ BF16": "--stage 3 --checkpoint non-reentrant --precision bf16",
}


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize("run", RUNS)
def test_a_run_that_does_not_fit_is_what_the_plan_says(capsys: pytest.CaptureFixture[str], run: str) -> None:
    typed = table("all_of_it", "| run | steady | in a step | activations | sum |")[run]
    # A plan that does not fit is an error of the command.
    assert train([*PLAN.split(), *RUNS[run].split()]) == (float(typed[-1]) > 40)
    rows = re.findall(r"^([a-z ,]+?) +([\d,]+)(?:  (.*))?$", capsys.readouterr().out, re.MULTILINE)
    nbytes = {name: (int(count.replace(",", "")), when) for name, count, when in rows}
    steady = sum(count for count, when in nbytes.values() if when == "between steps")
    activations = nbytes["activations"][0]
    moving = nbytes["gradients"][0] + nbytes["in flight"][0]
    together = nbytes["together, at most"][0]
    assert steady + moving + activations == together
    assert typed == [f"{count / 1e9:.1f}" for count in (steady, moving, activations, together)]


def test_the_runs_of_the_last_lesson_store_and_send_what_the_formulas_say() -> None:
    typed = table("all_of_it", "| run | steady | peak | sent | loss |")
    count = 1_668_352
    moments_and_masters = 12 * count
    for row, cells in typed.items():
        share = 1 if row == "stage 0" else 2
        # Beside these there are the text and 404 bytes of AdamW's counters.
        assert float(cells[0]) == pytest.approx((moments_and_masters / share + 148_201) / 1e6, abs=0.006)
    assert float(typed["stage 0"][2]) == pytest.approx(4 * count / 1e6, abs=0.005)
    assert float(typed["stage 3"][2]) == pytest.approx(6 * count / 1e6, abs=0.005)
    in_fp32 = 4_352
    assert float(typed["+ BF16"][2]) == pytest.approx((6 * in_fp32 + 3 * (count - in_fp32)) / 1e6, abs=0.005)
