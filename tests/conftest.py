"""Settings that every test shares."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# No time limits and no luck: an example is as slow as its machine, and a red run must be red again.
settings.register_profile(
    "shardbook",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("shardbook")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the pages of the site last: they are many and short, so that all processes end together."""
    items.sort(key=lambda item: page_of(item.nodeid) is not None)


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
