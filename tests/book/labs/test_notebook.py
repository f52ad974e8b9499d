"""A lab in a real Jupyter kernel: cells, ranks, errors, an interrupt, and what is left at the end."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

import shardbook

SRC = Path(shardbook.__file__).parents[1]
LIMIT = 300


@dataclass
class Shown:
    """What a cell shows."""

    output: str = ""
    errors: str = ""
    plots: list[str] = field(default_factory=list)
    error: str = ""
    result: str = ""
    trace: list[str] = field(default_factory=list)

    @property
    def lines(self) -> list[str]:
        """What is left in each line that has something: bars are written over."""
        lines = (line.rstrip("\r").rpartition("\r")[2] for line in self.output.split("\n"))
        return [line for line in lines if line.strip()]


@dataclass
class Notebook:
    manager: KernelManager
    client: BlockingKernelClient
    mark: str

    def run(self, code: str, watch: Callable[[str], Any] = bool) -> Shown:
        """Run a cell, and call `watch` with each piece of its output."""
        shown = Shown()

        def take(message: dict[str, Any]) -> None:
            content = message["content"]
            if message["msg_type"] == "stream":
                shown.output += content["text"]
                shown.errors += content["text"] if content["name"] == "stderr" else ""
                watch(shown.output)
            elif message["msg_type"] == "display_data":
                shown.plots.append(content["data"].get("image/svg+xml", ""))
            elif message["msg_type"] == "execute_result":
                shown.result = content["data"]["text/plain"]
            elif message["msg_type"] == "error":
                shown.error, shown.trace = content["ename"], content["traceback"]

        self.client.execute_interactive(code, output_hook=take, timeout=LIMIT)
        return shown

    def processes(self) -> list[psutil.Process]:
        """The kernel and all that it has started, directly or not."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("MARK_OF_THIS_RUN") == self.mark:
                    found.append(process)
            except psutil.Error:
                continue
        return found


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A kernel that Jupyter has started for a Japanese notebook."""
    mark = uuid.uuid4().hex
    environment = {
        **os.environ,
        "PYTHONPATH": str(SRC),
        "JPY_SESSION_NAME": "/home/reader/notebooks/ja/01.ipynb",
        "IPYTHONDIR": str(tmp_path_factory.mktemp("ipython")),
        "MARK_OF_THIS_RUN": mark,
    }
    environment.pop("SHARDBOOK_LANG", None)
    environment.pop("MPLBACKEND", None)
    manager = KernelManager()
    manager.start_kernel(env=environment, cwd=str(tmp_path_factory.mktemp("work")))
    client = manager.blocking_client()
    client.start_channels()
    client.wait_for_ready(timeout=LIMIT)
    made = Notebook(manager, client, mark)
    first = "from shardbook import labs\nimport os, torch\nimport torch.distributed as dist\nlabs.begin()"
    assert made.run(first).error == ""
    yield made
    client.stop_channels()
    # After a test has ended it, there is nothing to end.
    manager.shutdown_kernel(now=True)
    assert psutil.wait_procs(made.processes(), timeout=60)[1] == []


@pytest.fixture
def notebook(kernel: Notebook) -> Notebook:
    """The kernel, which speaks English: each test may run alone."""
    kernel.run("os.environ['SHARDBOOK_LANG'] = 'en'")
    return kernel


@pytest.mark.full
def test_the_language_is_that_of_the_notebooks_folder(notebook: Notebook) -> None:
    notebook.run("del os.environ['SHARDBOOK_LANG']")
    shown = notebook.run("print(labs.language(), labs.tell('no GPU'))")
    assert shown.output == "ja GPUなし\n"


def test_the_first_cell_says_what_it_found(notebook: Notebook) -> None:
    shown = notebook.run("labs.begin()")
    assert shown.error == ""
    assert shown.lines[0].startswith("Python 3.")
    assert "PyTorch 2." in shown.lines[0]
    assert shown.lines[1].startswith("A lab starts 2 to 4 ranks")
    assert shown.lines[2] == "The random seed is 0, here and in every rank."
    assert "matplotlib is missing" not in shown.output


@pytest.mark.nightly
def test_functions_of_a_cell_run_on_ranks_after_a_backward_pass(notebook: Notebook) -> None:
    notebook.run(
        "class Pair:\n"
        "    def __init__(self, total): self.total = total\n"
        "def add(x):\n"
        "    value = torch.tensor(x + labs.rank())\n"
        "    dist.all_reduce(value)\n"
        "    print('the sum is', value.item())\n"
        "    return Pair(value.item())\n"
        "w = torch.randn(64, 64, requires_grad=True)\n"
        "(w @ w).sum().backward()"
    )
    shown = notebook.run("print([isinstance(p, Pair) and p.total for p in labs.ranks(2, add, 10)])")
    assert shown.error == ""
    assert sorted(shown.lines[:-1]) == ["rank 0 | the sum is 21", "rank 1 | the sum is 21"]
    assert shown.lines[-1] == "[21, 21]"


@pytest.mark.full
def test_ranks_that_return_nothing_show_nothing(notebook: Notebook) -> None:
    assert notebook.run("labs.ranks(2, print)").result == ""
    assert notebook.run("labs.ranks(2, int)").result == "[0, 0]"
    assert notebook.run("labs.ranks(2, print) == [None, None]").result == "True"


def test_an_error_on_a_rank_names_the_cell(notebook: Notebook) -> None:
    shown = notebook.run(
        "def wrong():\n    rows = [1]\n    return rows[labs.rank()] + dist.barrier()\nlabs.ranks(2, wrong)"
    )
    assert shown.error == "RanksFailed"
    told = "\n".join(shown.trace)
    assert told.startswith("RanksFailed: rank 1 failed first.")
    assert "], line 3 (wrong)\n    return rows[labs.rank()] + dist.barrier()\nIndexError" in told
    assert "Cell In[" in told
    assert "ranks.py" not in told


@pytest.mark.full
def test_an_answer_that_is_not_right_shows_two_sentences_and_no_traceback(notebook: Notebook) -> None:
    notebook.run(
        "@labs.check\n"
        "def double(given):\n"
        "    labs.expect(given(4) == 8, 'It is not 8.', look='What is twice four?')"
    )
    notebook.run("checks, double = double, lambda x: x + 2")
    shown = notebook.run("checks()")
    assert shown.error == "NotYet"
    assert shown.trace == ["✗ It is not 8.", "→ What is twice four?"]
    notebook.run("def double(x):\n    return x / 0")
    where, code = notebook.run("checks()").trace[1].splitlines()[1:]
    assert where.startswith("  Cell In[")
    assert code.strip() == "return x / 0"
    notebook.run("del double")
    assert notebook.run("checks()").trace[0] == "✗ double is still blank."


@pytest.mark.full
def test_a_plot_is_shown_as_svg(notebook: Notebook) -> None:
    shown = notebook.run("figure, axes = labs.figure()\naxes.bar(['a', 'b'], [1, 2]);")
    assert shown.error == ""
    (plot,) = shown.plots
    assert plot.startswith("<?xml")
    assert "<dc:date>" not in plot


def test_a_progress_bar_is_seen_and_leaves_nothing(notebook: Notebook) -> None:
    """It is written to the standard output alone; the last thing of it is a line that is empty again."""
    notebook.run("import threading\nlabs.words.DELAY = 0")
    before, threads = notebook.processes(), notebook.run("print(threading.active_count())").output
    shown = notebook.run("print(sum(labs.progress(range(3), 'adding')))")
    assert "adding:   0%|" in shown.output
    assert "| 0/3 [" in shown.output
    assert [line.rpartition("\r")[2] for line in shown.output.split("\n")] == ["3", ""]
    assert shown.errors == ""
    assert notebook.processes() == before
    assert notebook.run("print(threading.active_count())").output == threads


@pytest.mark.full
def test_the_time_of_ranks_is_seen_and_leaves_nothing(notebook: Notebook) -> None:
    """A loop with a bar shows it there; without one it has a line of its own, above which ranks print."""
    # To fork ranks and to connect them takes more than a millisecond.
    notebook.run("usual = labs.words.DELAY, labs.lab_ranks.SERVER.interval")
    notebook.run("labs.words.DELAY, labs.lab_ranks.SERVER.interval = 0, 0.001")
    shown = notebook.run("print(labs.ranks(2, labs.rank))")
    assert "the ranks compute: 00:0" in shown.output
    assert shown.lines == ["[0, 1]"]
    shown = notebook.run("for _ in labs.progress(range(2), 'twice'):\n    labs.ranks(1, print, 'here')")
    assert "twice:   0%|" in shown.output
    assert "the ranks compute" not in shown.output
    assert shown.lines == ["rank 0 | here"] * 2
    assert shown.errors == ""
    notebook.run("labs.words.DELAY, labs.lab_ranks.SERVER.interval = usual")


@pytest.mark.nightly
def test_an_interrupt_ends_the_ranks_and_the_next_call_works(notebook: Notebook) -> None:
    notebook.run(
        "def hang():\n    import threading\n    print('process', os.getpid())\n    threading.Event().wait()"
    )

    done: list[str] = []

    def interrupt(output: str) -> None:
        # A line with the time may follow what the ranks print.
        if output.count("\n") == 2 and not done:
            done.append(output)
            notebook.manager.interrupt_kernel()

    shown = notebook.run("labs.ranks(2, hang)", interrupt)
    assert shown.error == "KeyboardInterrupt"
    ranks = [int(line.split()[-1]) for line in shown.lines]
    assert len(ranks) == 2
    assert not any(psutil.pid_exists(each) for each in ranks)
    assert notebook.run("print(labs.ranks(2, labs.rank))").lines == ["[0, 1]"]


@pytest.mark.full
def test_no_rank_stays_after_a_call_and_no_process_after_the_kernel(notebook: Notebook) -> None:
    shown = notebook.run("print(labs.ranks(2, os.getpid))")
    ranks = {int(each) for each in shown.lines[-1].strip("[]").split(",")}
    left = notebook.processes()
    assert ranks.isdisjoint(each.pid for each in left)
    # The kernel, and the server that waits for the next call.
    assert len(left) == 2
    notebook.manager.shutdown_kernel()
    assert psutil.wait_procs(left, timeout=60)[1] == []
