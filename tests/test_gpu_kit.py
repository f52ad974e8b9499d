"""The kit for GPUs: its frame, and a rehearsal of its parts on the CPU and on the late device."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tools.gpu import __main__ as kit
from tools.gpu import table

import warm

ROOT = Path(__file__).parent.parent


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts of `tests/gpu_parts` in the place of the kit's own."""
    monkeypatch.setattr(kit, "PACKAGE", "gpu_parts")
    monkeypatch.setattr(kit, "PARTS", {"good": 1.0, "dies": 1.0, "hangs": 1.0})


def start(tmp_path: Path, *words: str) -> tuple[int, dict[str, Any], str]:
    """Run the kit in this process: its exit code, and what the two files hold."""
    file = tmp_path / "found.json"
    code = kit.main(["--device", "cpu", "--json", str(file), *words])
    return code, json.loads(file.read_text("utf-8")), file.with_suffix(".txt").read_text("utf-8")


def ended(pid: int) -> bool:
    """Whether a process runs no more, even if nobody has asked yet how it ended."""
    told = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return told.stdout.strip()[:1] in ("", "Z")


def rows_of(found: dict[str, Any], part: str) -> dict[str, dict[str, Any]]:
    (rows,) = (each["rows"] for each in found["parts"] if each["name"] == part)
    return {row["name"]: row for row in rows}


@pytest.mark.full
@pytest.mark.usefixtures("parts")
def test_each_kind_of_row_is_written(tmp_path: Path) -> None:
    code, found, text = start(tmp_path, "--part", "good")
    assert code == 1  # a case has raised
    rows = rows_of(found, "good")
    assert {name: row["status"] for name, row in rows.items()} == {
        "a promise": "holds",
        "a figure": "shows",
        "what takes hours": "not tried",
        "a case that raises": "differs",
        "the sum over two ranks": "holds",
    }
    assert rows["a case that raises"]["why"] == "IndexError: list index out of range"
    assert found["versions"]["torch"] == torch.__version__
    assert found["command"].startswith('make gpu ARGS="--device cpu')
    assert "2 hold, 1 differ, 1 not tried, 1 figures" in text
    assert re.search(r"^  a figure +seconds 0.25, spread 0.2 to 0.3, what two numbers$", text, re.MULTILINE)


@pytest.mark.nightly
@pytest.mark.usefixtures("parts")
def test_a_part_that_dies_or_hangs_ends_alone(tmp_path: Path) -> None:
    """What it has found is kept, the next part runs, and nothing is left running."""
    code, found, _ = start(tmp_path, "--part", "hangs", "--part", "dies", "--minutes", "0.02")
    assert code == 1
    hanging, dead = rows_of(found, "hangs"), rows_of(found, "dies")
    assert hanging["hangs"]["why"] == "it was ended at its time limit"
    assert ended(hanging["its process"]["figures"]["pid"])
    assert dead["before the end"]["status"] == "holds"
    assert dead["dies"]["why"].startswith(f"its process ended with -{signal.SIGKILL.value}")


@pytest.mark.full
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_says_so_in_one_sentence() -> None:
    done = subprocess.run(
        ["make", "--no-print-directory", "gpu", f"PYTHON={sys.executable}", "ARGS="],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == (
        f"PyTorch {torch.__version__} finds no CUDA device here; "
        '`make gpu ARGS="--device cpu --quick"` rehearses the kit without one'
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--minutes", "0"], "'0' is no number of minutes above 0"),
        (
            ["--device", "late", "--part", "speed"],
            "speed does not run on the late device; it runs training, nccl",
        ),
        (["--part", "sped"], "invalid choice: 'sped'"),
    ],
)
def test_mistakes_are_told(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        kit.main(words)
    assert said in f"{caught.value} {capsys.readouterr().err}"


def test_the_page_prints_what_was_recorded() -> None:
    assert table.main(["--check"]) == 0
    page = table.PAGE.read_text("utf-8")
    for name in kit.PARTS:
        assert f"| `{name}` |" in page
    row = {"name": "stage 3, 2 ranks", "status": "holds", "figures": {"programs": 20}}
    found = {
        "card": {"name": "A card", "count": 1, "bytes": 80 << 30},
        "machine": "Linux x86_64, 16 cores",
        "versions": {"torch": "2.11.0"},
        "command": "make gpu",
        "commit": "0123456789abcdef",
        "date": "2026-11-27",
        "missing": ["megatron_fsdp"],
        "parts": [{"name": "training", "rows": [row]}],
    }
    printed = table.printed(page, [found])
    assert table.NOT_YET not in printed
    assert "1 x A card, 80 GiB; Linux x86_64, 16 cores\n" in printed
    assert table.printed(printed, []) == table.printed(page, [])


def rehearsed(device: str, tmp_path: Path, *words: str) -> dict[str, Any]:
    """What the real kit finds on a device that every machine has."""
    file = tmp_path / "found.json"
    done = subprocess.run(
        [
            "make",
            "gpu",
            f"PYTHON={warm.python()}",
            f"ARGS=--device {device} --quick --json {file} {' '.join(words)}",
        ],
        cwd=ROOT,
        env=warm.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    found: dict[str, Any] = json.loads(file.read_text("utf-8"))
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return found


@pytest.mark.full
@pytest.mark.timeout(600)
def test_the_parts_run_on_the_cpu(tmp_path: Path) -> None:
    found = rehearsed("cpu", tmp_path, "--minutes 9")
    assert [part["name"] for part in found["parts"]] == [*kit.PARTS]
    for part in found["parts"]:
        assert {row["status"] for row in part["rows"]} & {"holds", "shows"}, part


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("late_device")
def test_training_and_waits_run_on_the_late_device(tmp_path: Path) -> None:
    found = rehearsed("late", tmp_path, "--minutes 9")
    assert [part["name"] for part in found["parts"]] == [*kit.OF_LATE]
    for part in found["parts"]:
        assert any(row["status"] == "holds" for row in part["rows"]), part
