"""Work that is shared gives what one process would give, and nobody is left behind."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import select
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from press.project import edit
from sidelit import workers
from sidelit.errors import SidelitError

ROOT = Path(__file__).parent.parent.parent


def alone(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own: this one may have more than one thread."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_results_come_in_the_order_of_the_items_from_several_processes() -> None:
    done = alone("""
        import json, os
        from sidelit import workers
        found = list(workers.shared(lambda number: (number * number, os.getpid()), range(50), 3))
        left = workers.multiprocessing.active_children()
        squares, processes = zip(*found)
        print(json.dumps([squares, len(set(processes) - {os.getpid()}), len(left)]))
        """)
    squares, processes, left = json.loads(done.stdout)
    assert squares == [number * number for number in range(50)]
    assert 1 <= processes <= 3
    assert left == 0


def test_the_first_item_that_fails_tells_why() -> None:
    done = alone("""
        from sidelit import workers
        from sidelit.errors import SidelitError
        def work(number):
            if number in (20, 30):
                raise SidelitError("this is odd", path="a.py", line=number, hint="mend it")
            return number
        got = []
        try:
            for each in workers.shared(work, range(40), 2):
                got.append(each)
        except SidelitError as error:
            print(error, len(got), len(workers.multiprocessing.active_children()))
        """)
    assert done.stdout == "a.py:20: this is odd; mend it 20 0\n", done.stderr


def test_a_process_that_was_ended_from_outside_is_told_in_one_sentence() -> None:
    done = alone("""
        import os, signal
        from sidelit import workers
        from sidelit.errors import SidelitError
        try:
            list(workers.shared(lambda number: os.kill(os.getpid(), signal.SIGKILL), range(40), 2))
        except SidelitError as error:
            print(error)
        """)
    assert "was ended from outside" in done.stdout, done.stderr


@pytest.mark.parametrize(("items", "jobs"), [(range(15), 4), (range(100), 1)])
def test_few_items_and_one_job_are_done_by_this_process(items: range, jobs: int) -> None:
    assert set(workers.shared(lambda number: os.getpid(), items, jobs)) == {os.getpid()}


def test_where_no_fork_is_safe_this_process_does_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_may_fork", lambda: False)
    assert set(workers.shared(lambda number: os.getpid(), range(100), 4)) == {os.getpid()}

    def fails(number: int) -> int:
        raise SidelitError("no")

    with pytest.raises(SidelitError, match="no"):
        list(workers.shared(fails, range(100), 4))


def many(folder: Path, count: int = 40) -> Path:
    """Sources enough to share, one of them with a formula and a link that are wrong."""
    folder.mkdir()
    for number in range(count):
        words = "$\\\\oops$ and [a link](nowhere.py)" if number % 17 == 3 else f"$x + {number}$"
        opening = f'"""# Page {number}\n\n> Of many.\n"""\n\n\n'
        text = f'{opening}def run_{number}() -> int:\n    """Says {words}."""\n    return 1\n'
        (folder / f"page_{number:03}.py").write_text(text, encoding="utf-8")
    return folder


def printed(sources: Path, out: Path, jobs: int) -> tuple[dict[str, bytes], str]:
    """Print files with the command, and read all of them again; and what it said about them."""
    done = subprocess.run(
        [sys.executable, "-m", "sidelit", "print", sources.name, "--out", str(out), "--jobs", str(jobs)],
        cwd=sources.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    files = {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    return files, done.stderr


@pytest.mark.full
def test_pages_made_by_several_processes_are_those_that_one_makes(tmp_path: Path) -> None:
    sources = many(tmp_path / "many")
    alone, shared = (printed(sources, tmp_path / str(jobs), jobs) for jobs in (1, 3))
    assert len(alone[0]) > 40
    # What several places share is one line.
    more = map(int, re.findall(r"and (\d+) more place", alone[1]))
    assert alone[1].count("warning:") + sum(more) == 6
    assert shared == alone
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "3", "many"]


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize(
    "arguments", [["build", "--jobs", "2"], ["print", "src/sample", "--out", "printed", "--jobs", "2"]]
)
def test_a_command_shares_its_work(sample: Path, arguments: list[str]) -> None:
    """Nothing that the press loads starts a thread: with one a process may not fork, and works alone."""
    names = [f"more_{number}.py" for number in range(24)]
    for name in names:
        (sample / "src/sample" / name).write_text(f'"""# {name}\n\n> One, $x$."""\n', encoding="utf-8")
    listed = "".join(f'"{name}", ' for name in names)
    edit(sample / "site/sidelit.toml", "chapters = [", f"chapters = [{listed}")
    program = """
        import os, sys
        forks = []
        sys.addaudithook(lambda event, given: forks.append(event) if event == "os.fork" else None)
        from sidelit.cli import options
        code = options.main(sys.argv[1:])
        print(code, len(forks))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
        cwd=sample,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "HOME": str(sample)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    code, forks = map(int, done.stdout.splitlines()[-1].split())
    assert code == 0
    assert forks >= 2


@pytest.mark.nightly
def test_ctrl_c_ends_all_processes_and_leaves_nothing(tmp_path: Path) -> None:
    sources = many(tmp_path / "many", 400)
    process = subprocess.Popen(
        [sys.executable, "-m", "sidelit", "print", "many", "--out", "out", "--jobs", "2"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    # The first page is written: both processes are at work.
    while not any(tmp_path.glob(".out.sidelit-*/page_*.html")):
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "Stopped.\n")
    assert [path.name for path in tmp_path.iterdir()] == [sources.name]
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


@pytest.mark.skipif(
    sys.platform != "linux", reason="other systems do not tell a process that its parent ended"
)
def test_a_process_ends_with_the_one_that_was_killed() -> None:
    program = """
        import os, signal
        from sidelit import workers
        def work(number):
            # The first answer lets the first process go on, which is killed; this one never answers again.
            while number:
                pass
        for _ in workers.shared(work, range(40), 2):
            os.kill(os.getpid(), signal.SIGKILL)
        """
    told, held = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        pass_fds=(held,),
        start_new_session=True,
    )
    os.close(held)
    assert process.wait(timeout=60) == -signal.SIGKILL
    ended = select.select([told], [], [], 30)[0]
    os.close(told)
    if not ended:
        os.killpg(process.pid, signal.SIGKILL)
    assert ended


@pytest.mark.parametrize("may_fork", [True, False])
def test_what_runs_beside_a_block_has_a_process_of_its_own_where_it_may(
    monkeypatch: pytest.MonkeyPatch, may_fork: bool
) -> None:
    monkeypatch.setattr(workers, "_may_fork", lambda: may_fork)
    told, news = multiprocessing.Pipe(duplex=False)
    with workers.beside(lambda: news.send(os.getpid())):
        assert told.poll(60)
        number = told.recv()
    assert (number != os.getpid()) == may_fork
    # What still ran would be found among the children of this process.
    assert number not in [child.pid for child in multiprocessing.active_children()]
