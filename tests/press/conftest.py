"""Fixtures of the press's tests."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from press.project import SAMPLE


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    """A copy of the sample project, to build and to break."""
    return Path(shutil.copytree(SAMPLE, tmp_path / "sample"))
