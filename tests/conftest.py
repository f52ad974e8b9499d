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


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give whole files to the processes of `pytest -n`, in their order; of the site, whole pages.

    The tests of a file share what they have found out, the tests of a page what they have opened.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file, _, name = nodeid.partition("::")
            return name.partition("[")[2] if file.startswith("tests/browser/") and "[" in name else file

    # The files with the fewest tests take longest: by their number, those would begin last.
    config.option.loadscopereorder = False
    return Scheduler(config, log)
