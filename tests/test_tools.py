"""The small programs behind `make`: each obstacle is one line that says what to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import chromium
import environment

ROOT = Path(__file__).parent.parent


def program(folder: Path, name: str, body: str) -> Path:
    """A shell script on a path of its own."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n", "utf-8")
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine whose PATH is one empty folder and for which Playwright has downloaded nothing."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv(chromium.VARIABLE, raising=False)
    monkeypatch.setattr(chromium, "playwrights_own", list)
    return folder


def test_a_browser_on_the_path_is_taken(bare: Path) -> None:
    there = program(bare, "google-chrome", "exit 0")
    assert chromium.ensure() == str(there)


def test_a_named_browser_comes_first(bare: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program(bare, "chromium", "exit 0")
    mine = program(tmp_path / "mine", "browser", "exit 0")
    monkeypatch.setenv(chromium.VARIABLE, str(mine))
    assert chromium.ensure() == str(mine)


def test_a_stub_that_does_not_start_is_passed_over(bare: Path) -> None:
    program(bare, "chromium-browser", "exit 1")
    real = program(bare, "google-chrome-stable", "exit 0")
    assert chromium.find() == str(real)


@pytest.mark.parametrize("has", ["chromium-headless-shell", "chromium"])
def test_debians_packages_are_tried_by_root(bare: Path, monkeypatch: pytest.MonkeyPatch, has: str) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    program(bare, "apt-get", "exit 0")
    tried: list[tuple[str, ...]] = []

    def attempt(*command: str) -> None:
        tried.append(command)
        if command[-1] == has:
            program(bare, has, "exit 0")

    monkeypatch.setattr(chromium, "attempt", attempt)
    assert chromium.ensure() == str(bare / has)
    assert [command[:2] for command in tried[:2]] == [("apt-get", "update"), ("apt-get", "install")]
    packages = ["chromium-headless-shell", "chromium"]
    assert [command[-1] for command in tried[1:]] == packages[: packages.index(has) + 1]


def test_others_get_playwrights_download(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    program(bare, "apt-get", "exit 0")
    tried: list[tuple[str, ...]] = []
    monkeypatch.setattr(chromium, "attempt", lambda *command: tried.append(command))
    with pytest.raises(SystemExit, match="no Chromium is here and none could be installed"):
        chromium.ensure()
    assert [command[1:] for command in tried] == [("-m", "playwright", "install", "chromium")]


def test_a_named_browser_that_does_not_start_is_an_error(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(chromium.VARIABLE, "/nowhere/chromium")
    with pytest.raises(SystemExit, match="SHARDBOOK_CHROMIUM=/nowhere/chromium does not start"):
        chromium.ensure()


def test_an_old_python_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 8, 10))
    with pytest.raises(SystemExit, match=r"Python 3\.8 is too old; name 3\.10 or newer"):
        environment.main(["unused", "site"])


def test_a_python_without_venv_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    with pytest.raises(SystemExit, match="apt-get install python3-venv"):
        environment.main(["unused", "site"])


def test_the_pins_and_pips_arguments_reach_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[Any]] = []
    monkeypatch.setattr(environment, "works", lambda python: False)
    monkeypatch.setattr(subprocess, "check_call", commands.append)
    environment.main(["somewhere", "site", "--extra-index-url", "https://index.example"])
    assert commands[0] == [sys.executable, "-m", "venv", "--clear", "somewhere"]
    assert commands[1][0] == "somewhere/bin/python"
    assert commands[1][-2:] == ["--editable", ".[site]"]
    assert "constraints.txt" in commands[1]
    assert commands[1][-4:-2] == ["--extra-index-url", "https://index.example"]


def test_what_would_bring_another_torch_comes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[Any]] = []
    monkeypatch.setattr(environment, "works", lambda python: True)
    monkeypatch.setattr(subprocess, "check_call", commands.append)
    environment.main(["somewhere", "dev", "--quiet"])
    assert [command[-1] for command in commands] == [".[dev]", "labml-nn"]
    assert commands[1][-3:-1] == ["--quiet", "--no-deps"]
    assert "constraints.txt" in commands[1]
    pinned = (ROOT / "constraints.txt").read_text("utf-8")
    assert all(f"\n{name}==" in pinned for names in environment.ALONE.values() for name in names)


def test_another_torch_changes_one_pin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[Any]] = []
    monkeypatch.setattr(environment, "works", lambda python: True)
    monkeypatch.setattr(subprocess, "check_call", commands.append)
    environment.main([str(tmp_path), "dev", "--torch", "2.11.0", "--quiet"])
    pins = commands[0][commands[0].index("-c") + 1]
    assert pins == commands[1][commands[1].index("-c") + 1] == str(tmp_path / "constraints.txt")
    before, after = (Path(path).read_text("utf-8").splitlines() for path in (ROOT / "constraints.txt", pins))
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert changed == [("torch==2.13.0", "torch==2.11.0")]


def test_make_names_the_environment_of_another_torch() -> None:
    command = ["make", "--dry-run", "test", "TORCH=2.11.0"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "tools/environment.py .venv-torch-2.11.0 dev --torch 2.11.0" in said
    assert ".venv-torch-2.11.0/bin/python -m pytest" in said


def test_a_folder_that_is_no_environment_does_not_work(tmp_path: Path) -> None:
    assert not environment.works(str(tmp_path / "bin" / "python"))
    assert environment.works(sys.executable)


def test_an_environment_with_torch_is_refused() -> None:
    """The tests' own environment holds torch, so the guard of `make site` must refuse it."""
    guard = [sys.executable, str(ROOT / "tools" / "without_torch.py")]
    done = subprocess.run(guard, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "holds torch" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_make_lists_its_targets() -> None:
    command = ["make", "--no-print-directory"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    targets = [line.split()[1] for line in listed.splitlines()]
    assert targets == [
        "help",
        "site",
        "pack",
        "book",
        "slides",
        "serve",
        "labs",
        "test",
        "test-all",
        "gpu",
        "mutants",
        "soak",
        "lint",
        "bench",
        "bench-press",
        "record",
        "clean",
    ]
