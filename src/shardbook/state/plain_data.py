r"""# Data without programs

> What objects say of themselves, as text that cannot run anything.

A schedule or a scaler says where it stands as a dictionary of numbers. JSON holds those,
but neither tuples nor keys that are numbers, and a schedule has both. They are marked:

| Python | JSON |
|---|---|
| `(0.9, 0.999)` | `{"tuple": [0.9, 0.999]}` |
| `{10: 1}` | `{"dict": [[10, 1]]}` |

Numbers come back bit for bit, `nan` and infinities too.
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["plain", "restored"]
# sidelit: show


def plain(value: Any, where: str) -> Any:
    """A value in a form that `json` can write.

    >>> plain({"betas": (0.9, 0.999), "milestones": {10: 1}}, "the schedule")
    {'dict': [['betas', {'tuple': [0.9, 0.999]}], ['milestones', {'dict': [[10, 1]]}]]}

    :param where: what the value belongs to, as a message says it
    :raises ValueError: if a part of it is no number, text, list or dictionary
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [plain(each, where) for each in value]
    if isinstance(value, tuple):
        return {"tuple": [plain(each, where) for each in value]}
    if isinstance(value, Mapping):
        pairs = value.items()
        return {"dict": [[plain(key, where), plain(v, where)] for key, v in pairs]}
    raise ValueError(
        f"the state of {where} holds a {type(value).__name__}; a checkpoint takes "
        "numbers, strings, lists, tuples and dictionaries"
    )


def restored(value: Any) -> Any:
    """The value again.

    >>> restored({"dict": [["betas", {"tuple": [0.9, 0.999]}]]})
    {'betas': (0.9, 0.999)}
    """
    if isinstance(value, list):
        return [restored(each) for each in value]
    if not isinstance(value, dict):
        return value
    if "tuple" in value:
        return tuple(restored(value["tuple"]))
    return {restored(key): restored(each) for key, each in value["dict"]}
