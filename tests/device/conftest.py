"""The late device is compiled before its first test, in one process, while the others wait."""

from __future__ import annotations

import pytest

from device.build import library


@pytest.fixture(scope="session", autouse=True)
def compiled() -> None:
    library()
