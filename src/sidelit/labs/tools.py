"""# What labs are read and written with

> Jupytext and nbformat, which only a project with labs needs.
"""

from __future__ import annotations

import importlib
from typing import Any

from sidelit.errors import SidelitError


def jupytext() -> Any:
    """The module of that name.

    :raises SidelitError: if it is not installed
    """
    return _needed("jupytext")


def nbformat() -> Any:
    """The module of that name.

    :raises SidelitError: if it is not installed
    """
    return _needed("nbformat")


def _needed(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        hint = "install the press with its labs: `pip install 'sidelit[labs]'`"
        raise SidelitError(f"labs need {name}, which is not installed", hint=hint) from None
