"""The command as a user starts it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import warm
from book.check.scripts import CLEAN, FAULTS, line_of, right, script, wrong
from tiers import rows

CHECK = ["-m", "shardbook.check"]


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize("program", rows(["warm", "cold"], now=["warm"]))
def test_the_command_starts_ranks_and_prints_one_page(tmp_path: Path, program: str) -> None:
    """With a fault the exit code is 1, and no rank's end is reported."""
    text, *_, part = FAULTS["torch's clipping"]
    (tmp_path / "train.py").write_text(wrong(text))
    command = [*CHECK, "--steps", "2", "--json", "page.json", "train.py"]
    ended = warm.start(*command, program=sys.executable if program == "cold" else None, cwd=tmp_path)
    assert ended.returncode == 1, ended.stderr
    assert ended.stderr == ""
    lines = ended.stdout.splitlines()
    assert lines[0] == "2 steps on 2 ranks: 1 error, 0 warnings, 0 notes"
    assert lines[3] == f"  train.py:{line_of(wrong(text), part)}"
    page = json.loads((tmp_path / "page.json").read_text())
    assert (page["steps"], page["ranks"], page["findings"][0]["kind"]) == (2, 2, "local-norm")
    assert page["sent"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.json", "train.py"]


@pytest.mark.nightly
def test_under_torchrun_each_rank_runs_the_script_in_its_place(tmp_path: Path) -> None:
    """Also on three ranks. A rank that fails alone does not keep the others waiting."""
    (tmp_path / "train.py").write_text(CLEAN["stage 3"])
    ended = warm.start(*warm.TORCHRUN, "3", *CHECK, "train.py", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("3 steps on 3 ranks: nothing found\n")
    text = right(FAULTS["torch's clipping"][0]).replace(
        "clip_grad", "assert rank == 0, 'alone'\n    clip_grad"
    )
    (tmp_path / "train.py").write_text(text)
    ended = warm.start(*CHECK, "train.py", cwd=tmp_path)
    assert ended.returncode == 1
    assert "AssertionError: alone" in ended.stdout
    assert f"train.py:{line_of(text, 'alone')} (rank 1)" in ended.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["missing.py"], "there is no file missing.py; name a Python script"),
        (
            ["--steps", "0", "here.py"],
            "--steps is 0, but it must be a whole number from 1 to 1,000,000; see --help",
        ),
        (
            ["--ranks", "0", "here.py"],
            "--ranks is 0, but it must be a whole number from 1 to 64; see --help",
        ),
        (["wrong.py"], "wrong.py:2: this is no Python: '(' was never closed"),
        (["binary.py"], "binary.py: this is no Python: source code string cannot contain null bytes"),
        (
            ["--json", "no/page.json", "here.py"],
            "--json is no/page.json, but there is no folder no; make it first; see --help",
        ),
        (["--wrong", "here.py"], "unrecognized arguments: --wrong; see --help"),
        ([], "the following arguments are required: script, ...; see --help"),
    ],
)
def test_a_mistake_is_told_in_one_sentence(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    (tmp_path / "here.py").write_text("")
    (tmp_path / "wrong.py").write_text("a = 1\nprint(a\n")
    (tmp_path / "binary.py").write_bytes(b"\x7fELF\0\0")
    ended = warm.start(*CHECK, *arguments, cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == f"python -m shardbook.check: {sentence}\n"


@pytest.mark.full
def test_a_script_that_shards_nothing_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "here.py").write_text(script("model = build()\n"))
    ended = warm.start(*CHECK, "here.py", cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "never called shardbook.shard" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
