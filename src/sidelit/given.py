"""# What was given on the command line

> Most commands work on a site, which is found by its configuration.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from sidelit import config


def path(given: argparse.Namespace) -> Path:
    """The configuration that was named, or the nearest one in the current folder or above it.

    Raises `SidelitError` if there is none.
    """
    return given.config or config.find(Path.cwd())


def configuration(given: argparse.Namespace) -> config.Config:
    """What that configuration says.

    Raises `SidelitError` if it cannot be read.
    """
    return config.load(path(given))
