"""# The line above folded imports

> A reader is told what a module rests on before opening its imports, and three names are enough for that.

Modules of the same project are named first, together with those of other projects, and the standard library
behind them. A module of the project is called by its last name, as `store` for
`from shop.store import Store`, and another project by its first one, as `numpy` for `numpy.linalg`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass

SHOWN = 3


@dataclass(frozen=True, slots=True)
class Named:
    """What the line says: some names, and how many modules it does not name."""

    names: tuple[str, ...]
    more: int = 0


def named(modules: Iterable[str], own: str) -> Named:
    """Choose the names that stand in the line.

    :param modules: what is imported, as the source names it.
    :param own: the module that imports it, dotted.
    """
    # The sort keeps the order of the source among equals.
    found = sorted((_name(module, own) for module in modules), key=lambda each: each[0])
    names = list(dict.fromkeys(name for _, name in found))
    if len(names) > 1:
        names = [name for name in names if name != "__future__"]
    # One more name takes no more room than the words that it is missing.
    shown = len(names) if len(names) <= SHOWN + 1 else SHOWN
    return Named(tuple(names[:shown]), len(names) - shown)


def _name(module: str, own: str) -> tuple[bool, str]:
    """Whether a module is of the standard library, and what a reader knows it by."""
    first = module.partition(".")[0]
    ours = not first or first == own.partition(".")[0]
    standard = not ours and first in sys.stdlib_module_names
    return standard, module.rpartition(".")[2] if ours else first
