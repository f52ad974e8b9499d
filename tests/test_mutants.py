"""`make mutants` on a project of one module, and the data that it reads on this one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mutants import file_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
PROGRAM = ROOT / "tools" / "mutants.py"

# One line that ranks alone run, one that the program would be the same without, and one that no test proves.
TINY = """
seen = []

def larger(a: int | None, *, b: int) -> bool:
    assert a is not None
    seen.append(a)
    seen.clear()
    return a > b
"""
TEST = """
import multiprocessing
from shardbook.tiny import larger

def rank():
    assert [larger(2, b=1), larger(1, b=1), larger(1, b=2)] == [True, False, False]

def test_in_a_process_of_a_server():
    process = multiprocessing.get_context("forkserver").Process(target=rank)
    process.start()
    process.join()
    assert process.exitcode == 0
"""
TABLE = """
everywhere = []

[lines]
"a > b" = ["tests/test_tiny.py"]

[tests]
tiny = ["tests/test_other.py"]

[[equivalent]]
module = "tiny"
was = "seen.append(a)"
becomes = ["pass"]
reason = "The list is cleared by the next line, and nobody reads it."
"""
ANOTHER = TABLE.partition("[[")[2].replace("append(a)", "clear()")


def project(folder: Path) -> Path:
    """A project with this one's shape."""
    files = {
        "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["tests"]\n',
        "src/shardbook/__init__.py": "",
        "src/shardbook/tiny.py": TINY,
        "tests/test_tiny.py": TEST,
        "tests/test_other.py": "def test_nothing(): pass",
        "tests/mutants.toml": TABLE,
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    (folder / "tools").mkdir()
    shutil.copy(PROGRAM, folder / "tools")
    return folder


def mutants(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command there."""
    command = [sys.executable, "tools/mutants.py", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.nightly
def test_a_mutant_lives_in_the_ranks_and_what_survives_is_an_error(tmp_path: Path) -> None:
    folder = project(tmp_path)
    done = mutants(folder, "tiny", "--all")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "tiny.py:8 killed by tests/test_tiny.py::test_in_a_process_of_a_server" in done.stdout
    assert "tiny.py:7 SURVIVED\n  - seen.clear()\n  + pass\n" in done.stdout
    # The annotation and the assertion have no mutants, and without its star the list is no program.
    assert "tiny 3 1 2 1 1 50.0%" in " ".join(done.stdout.split())
    assert done.stderr == "50.0% of the mutants are killed, fewer than 95%\n"
    assert (folder / "src/shardbook/tiny.py").read_text("utf-8") == TINY

    with (folder / "tests/mutants.toml").open("a", encoding="utf-8") as table:
        table.write(f"[[{ANOTHER}")
    done = mutants(folder, "--again")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all 1 1 0 0 0 -" in " ".join(done.stdout.split())


@pytest.mark.full
def test_a_test_that_fails_without_a_mutant_proves_nothing(tmp_path: Path) -> None:
    folder = project(tmp_path)
    (folder / "tests/test_other.py").write_text("def test_wrong(): assert False", "utf-8")
    done = mutants(folder, "tiny")
    assert done.returncode == 1
    assert done.stderr == "tests/test_other.py::test_wrong fails without a mutant, too; mend it first\n"


DIES = """
import os
from shardbook.tiny import larger

def test_it():
    if [larger(2, b=1), larger(1, b=1), larger(1, b=2)] != [True, False, False]:
        os._exit(7)
"""


@pytest.mark.full
def test_a_mutant_that_ends_the_process_of_the_tests_is_killed(tmp_path: Path) -> None:
    folder = project(tmp_path)
    (folder / "tests/test_tiny.py").write_text(DIES, "utf-8")
    done = mutants(folder, "tiny", "--all")
    assert "tiny.py:8 killed by the end of the process of the tests" in done.stdout, done.stdout + done.stderr


@pytest.mark.full
def test_a_module_without_tests_is_refused(tmp_path: Path) -> None:
    done = mutants(project(tmp_path), "huge")
    assert done.returncode == 2
    assert done.stderr.endswith("error: no such module in tests/mutants.toml: huge\n")


def test_what_the_data_names_is_there() -> None:
    table = tomllib.loads((ROOT / "tests" / "mutants.toml").read_text("utf-8"))
    for tests in [*table["tests"].values(), *table["lines"].values(), table["everywhere"]]:
        missing = [test for test in tests if not (ROOT / test.partition("::")[0]).is_file()]
        assert not missing
    for entry in table["equivalent"]:
        assert entry["reason"].endswith(".")
        lines = {line.strip() for line in source(entry["module"]).splitlines()}
        assert lines.issuperset(entry["was"].splitlines()), entry
        assert entry["becomes"]


def source(module: str) -> str:
    return file_of(ROOT / "src" / "shardbook", module).read_text("utf-8")
