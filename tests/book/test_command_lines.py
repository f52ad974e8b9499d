"""Every command, with every option of its own parser: an odd value is refused in a sentence."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import shardbook
from shardbook.command import Parser
from warm import start

# Where the work of a command begins. All that it refuses is refused before that.
COMMANDS = {
    "memory": [],
    "planning.overlap": [],
    "precision.formats": [],
    "precision.rounding": ["gradients"],
    "sketch": ["dist.init_process_group"],
    "parallel.__main__": ["dist.init_process_group"],
    "check.check_command": ["on_new_ranks"],
    "train.loop": ["start", "show_plan"],
    "finetune_neox.finetune": ["start", "show_plan"],
}
NUMBERS = [
    "0",
    "-1",
    "1",
    "2",
    "7",
    "1.5",
    "1e3",
    "1e6",
    "1e38",
    "1e-300",
    "1e309",
    "nan",
    "inf",
    "-inf",
    "0x10",
    "1_0",
    "١",
    "2x8",
    "1x1",
    "2x999999999999",
]
NUMBERS += [str(10**23), str(-(10**23)), str(2**63 - 1), "9" * 5000, "1e999999999", "0." + "0" * 400 + "1"]
TEXTS = [
    "",
    " ",
    "none",
    "true",
    "--",
    "-x",
    "@x",
    "%s",
    "%(prog)s",
    "é\u202e",
    "\udcff",
    "\ud800",
    "\n\n\n",
    "\x1b[2J",
]
PATHS = [
    *("a\0b", "a" * 300, "a/" * 3000, "x/" + "a" * 300, ".", "/", "/proc/x", "/proc/self/mem", "/dev/null"),
    *(
        "loop",
        "loop/x",
        "binary",
        "binary/x",
        "text.txt",
        "empty",
        "empty/x",
        "deep.toml",
        "deep.yaml",
        "x.toml",
    ),
]


class Began(Exception):
    """The work would begin now."""


class Found(Exception):
    """The parser of a command."""


def main_of(command: str) -> Callable[[list[str]], int]:
    main: Callable[[list[str]], int] = import_module(f"shardbook.{command}").main
    return main


def parser_of(command: str) -> argparse.ArgumentParser:
    def found(parser: argparse.ArgumentParser, *_: Any) -> None:
        raise Found(parser)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Parser, "parse_args", found)
        with pytest.raises(Found) as caught:
            main_of(command)(["x"])
    parser: argparse.ArgumentParser = caught.value.args[0]
    return parser


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with files of every kind, in which the commands run, outside of any job."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "binary").write_bytes(b"\x00\xff" * 999)
    (tmp_path / "text.txt").write_text("some text " * 99)
    (tmp_path / "script.py").write_text("pass\n")
    (tmp_path / "deep.toml").write_text("a = " + "[" * 2000 + "]" * 2000)
    (tmp_path / "deep.yaml").write_text("{a: " * 2000 + "1" + "}" * 2000)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def chained(several: list[list[str]]) -> list[str]:
    return [*chain.from_iterable(several)]


def lines(parser: argparse.ArgumentParser) -> st.SearchStrategy[list[str]]:
    """Command lines of a few options, in which all values are as odd as those above."""
    plain = st.text(max_size=8) | st.integers().map(str) | st.floats().map(str)
    odd = st.sampled_from(NUMBERS) | st.sampled_from(TEXTS) | st.sampled_from(PATHS) | plain
    parts: list[st.SearchStrategy[list[str]]] = []
    last: list[st.SearchStrategy[str]] = []
    for action in parser._actions:
        values = odd | st.sampled_from([str(one) for one in action.choices]) if action.choices else odd
        if not action.option_strings:
            last.append(values if action.dest != "script" else values | st.just("script.py"))
        elif action.dest != "help":
            name = st.sampled_from(action.option_strings)
            alone, joined = name.map(lambda one: [one]), st.tuples(name, values).map("=".join)
            parts.append(alone if action.nargs == 0 else joined.map(lambda one: [one]))
            if action.nargs != 0:
                parts.append(st.tuples(name, values).map(list))
    options = st.lists(st.one_of(*parts), max_size=3).map(chained) if parts else st.just([])
    return st.tuples(options, *last).map(lambda line: [*line[0], *line[1:]])


def ended(command: str, line: list[str]) -> int:
    """The exit code; 0 if the work would begin."""
    with pytest.MonkeyPatch.context() as patch:
        for name in COMMANDS[command]:
            patch.setattr(f"shardbook.{command}.{name}", begin)
        try:
            return main_of(command)(line)
        except Began:
            return 0
        except SystemExit as end:
            # `-h` is among the values.
            return int(end.code or 0)


def begin(*args: Any, **kwargs: Any) -> Any:
    raise Began


def test_every_command_is_here() -> None:
    root = Path(shardbook.__file__).parent
    found = {
        ".".join(path.relative_to(root).with_suffix("").parts)
        for path in root.rglob("*.py")
        if re.search(r'^if __name__ == "__main__":$', path.read_text("utf-8"), re.MULTILINE)
    }
    elsewhere = {"check.check_command", "train.loop", "finetune_neox.finetune"}
    assert found == {*COMMANDS} - elsewhere | {f"{name.partition('.')[0]}.__main__" for name in elsewhere}


@pytest.mark.cases(now=4, ci=4)
@pytest.mark.parametrize("command", COMMANDS)
def test_an_odd_value_is_refused_in_a_sentence_before_work_begins(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if command.startswith("finetune"):
        pytest.importorskip("transformers")

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(lines(parser_of(command)))
    def holds(line: list[str]) -> None:
        code = ended(command, line)
        told = capsys.readouterr().err
        assert code in (0, 2)
        assert told.count("\n") == (code != 0), told
        assert len(told) < 1200

    holds()


@pytest.mark.parametrize(
    ("command", "line", "sentence"),
    [
        (
            "train",
            ["--layers", "1000000"],
            "--layers is 1000000, but it must be a whole number",
        ),
        ("train", ["--config", "deep.yaml"], "deep.yaml: this is no YAML: it cannot be read"),
        (
            "train",
            ["--profile", "loop"],
            "--profile is 'loop', which is no path: Too many levels",
        ),
        ("finetune_neox", ["--train="], "--train is empty; write a text, or leave it out"),
        ("sketch", [], "no ranks were started; write torchrun --standalone"),
        ("planning.overlap", ["--bandwidth", "1e-300"], "--bandwidth is 1e-300, but it must be a number"),
    ],
)
def test_the_command_itself_ends_with_2_and_one_line(command: str, line: list[str], sentence: str) -> None:
    run = start("-m", f"shardbook.{command}", *line)
    assert (run.returncode, run.stdout) == (2, "")
    assert sentence in run.stderr
    assert run.stderr.count("\n") == 1
