r"""# Object states as JSON

> The `state_dict` of a schedule or a scaler is stored as JSON, which cannot run code as
> a pickle can.

The state of a schedule or a scaler is a dictionary of numbers. JSON can store such a
dictionary, but no tuples and no numbers as keys. A learning-rate schedule has both. So
tuples and dictionaries are marked:

| Python | JSON |
|---|---|
| `(0.9, 0.999)` | `{"tuple": [0.9, 0.999]}` |
| `{10: 1}` | `{"dict": [[10, 1]]}` |

Numbers are restored bit for bit, even `nan` and infinities.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["plain", "restored"]


def plain(value: Any, where: str) -> Any:
    """Convert a value into a form that `json` can write.

    >>> plain({"betas": (0.9, 0.999), "milestones": {10: 1}}, "the schedule")
    {'dict': [['betas', {'tuple': [0.9, 0.999]}], ['milestones', {'dict': [[10, 1]]}]]}

    :param where: the owner of the value, for the message
    :raises ValueError: if a part of the value is no number, string, list, tuple or
        dictionary
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
    """Convert the value back.

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
