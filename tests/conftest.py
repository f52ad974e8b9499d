"""Settings that every test shares."""

from __future__ import annotations

import gc
import os
import shlex
import signal
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

import tiers

# No time limits and no luck: an example is as slow as its machine, and a red run must be red again.
settings.register_profile(
    "shardbook",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("shardbook")


def pytest_configure(config: pytest.Config) -> None:
    """Keep each process of `pytest -n`, with the ranks and browsers that it starts, on a core of its own, if
    there are as many processes as cores.

    Ranks wait for each other many times in a step. Where another core has to be woken up for that, as in a
    virtual machine, the waiting takes longer than the work.
    """
    # Where a shell has started the tests in the background, they ignore Ctrl-C, and so would all they start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    worker: dict[str, Any] = getattr(config, "workerinput", {})
    if worker and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        if worker["workercount"] >= len(cores):
            number = int(worker["workerid"].removeprefix("gw"))
            os.sched_setaffinity(0, {cores[number % len(cores)]})
            # Several threads on one core would wait for each other, and spin meanwhile.
            os.environ["OMP_NUM_THREADS"] = "1"
            torch.set_num_threads(1)


@pytest.fixture(scope="session")
def late_device() -> None:
    """The device of `device/` is compiled: by one process, while the others wait."""
    from device.build import library

    library()


# The same tests run on a GPU and, in `make test-all`, on the late device.
@pytest.fixture(
    params=[pytest.param("cuda", marks=pytest.mark.gpu), pytest.param("late", marks=pytest.mark.full)]
)
def accelerator(request: pytest.FixtureRequest) -> str:
    """The type of a device that is not the CPU."""
    if request.param == "late":
        request.getfixturevalue("late_device")
    return str(request.param)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None, None, None]:
    """Mark the cases that wait for a longer run, before pytest chooses by marks.

    Then put the pages of the site last: they are many and short, so that all processes end together.
    """
    tiers.wait(items)
    yield
    items.sort(key=lambda item: page_of(item.nodeid) is not None)


def pytest_collection_finish() -> None:
    """What is here now stays: no collection of garbage during a test has to look through all of it."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Before the names of what failed, say how to run one of them again."""
    bad = [*terminalreporter.getreports("failed"), *terminalreporter.getreports("error")]
    if bad:
        python = Path(sys.executable)
        python = python.relative_to(Path.cwd()) if python.is_relative_to(Path.cwd()) else python
        terminalreporter.write_sep("=", "to run one of those below again")
        # Without the marks, which may leave it to a longer run.
        terminalreporter.write_line(f"{python} -m pytest -m '' {shlex.quote(bad[0].nodeid)}")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """After a green run its pages need not be opened again until they change."""
    if exitstatus == 0 and "BUILT_SITE" in os.environ and not hasattr(session.config, "workerinput"):
        from built import all_is_green

        all_is_green()


def page_of(nodeid: str) -> str | None:
    """Which page of the built site a test opens; None if it opens none, or several."""
    file, _, name = nodeid.partition("::")
    page = name.partition("[")[2].removesuffix("]")
    return page if file.startswith("tests/browser/") and page.endswith(".html") else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give whole files to the processes of `pytest -n`, in their order; of the site, whole pages.

    The tests of a file share what they have found out, the tests of a page what they have opened. What else
    looks at the site goes to one process, so that no other waits until the site is built.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return page_of(nodeid) or ("tests/browser" if file.startswith("tests/browser/") else file)

    # The files with the fewest tests take longest: by their number, those would begin last.
    config.option.loadscopereorder = False
    return Scheduler(config, log)
