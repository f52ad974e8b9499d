r"""# Object states as JSON

> The `state_dict` of a schedule or a scaler is stored as JSON, which cannot run code as
> a pickle can.

The state of a schedule or a scaler is a dictionary of numbers. JSON can store such a
dictionary, but no tuples, no numbers as keys, and no tensors. A learning-rate schedule
may have all three. So they are marked:

| Python | JSON |
|---|---|
| `(0.9, 0.999)` | `{"tuple": [0.9, 0.999]}` |
| `{10: 1}` | `{"dict": [[10, 1]]}` |
| `torch.tensor(0.1)` | `{"dtype": "float32", "tensor": 0.10000000149011612}` |

Numbers are restored bit for bit, even `nan` and infinities. A large tensor does not
belong in JSON, so it is kept beside the text:

| Python | JSON | kept |
|---|---|---|
| `{"directions": [d]}` | `{"dict": [["directions", [{"kept": "directions.0"}]]]}` | `d` as `directions.0` |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["plain", "restored"]


def plain(value: Any, where: str, kept: dict[str, Tensor] | None = None) -> Any:
    """Convert a value into a form that `json` can write.

    >>> plain({"betas": (0.9, 0.999), "milestones": {10: 1}}, "the schedule")
    {'dict': [['betas', {'tuple': [0.9, 0.999]}], ['milestones', {'dict': [[10, 1]]}]]}

    :param where: the owner of the value, for the message
    :param kept: takes the tensors, by their places below `where`; without it all
        tensors must be small, and become part of the text
    :raises ValueError: naming a part of the value that is no number, string, list,
        tuple, dictionary or tensor, or a tensor that is too large for the text
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [plain(each, f"{where}.{n}", kept) for n, each in enumerate(value)]
    if isinstance(value, tuple):
        return {"tuple": plain(list(value), where, kept)}
    if isinstance(value, Mapping):
        pairs = value.items()
        return {
            "dict": [
                [plain(k, where), plain(v, f"{where}.{k}", kept)] for k, v in pairs
            ]
        }
    if isinstance(value, Tensor) and kept is not None:
        kept[where] = value.detach()
        return {"kept": where}
    if isinstance(value, Tensor) and value.numel() <= SMALL and not value.is_complex():
        dtype = str(value.dtype).removeprefix("torch.")
        return {"dtype": dtype, "tensor": value.detach().tolist()}
    raise ValueError(
        f"{where} holds a {type(value).__name__}; a checkpoint takes numbers, strings, "
        f"lists, tuples, dictionaries, and tensors of up to {SMALL} elements"
    )


SMALL = 1024


def restored(value: Any, kept: Mapping[str, Tensor] | None = None) -> Any:
    """Convert the value back.

    >>> restored({"dict": [["betas", {"tuple": [0.9, 0.999]}]]})
    {'betas': (0.9, 0.999)}
    >>> restored({"dtype": "float32", "tensor": [0.5]})
    tensor([0.5000])

    :param kept: the tensors that were kept beside the text
    """
    if isinstance(value, list):
        return [restored(each, kept) for each in value]
    if not isinstance(value, dict):
        return value
    if "tuple" in value:
        return tuple(restored(value["tuple"], kept))
    if "kept" in value:
        return (kept or {})[value["kept"]]
    if "tensor" in value:
        dtype = getattr(torch, value["dtype"])
        return torch.tensor(value["tensor"], dtype=dtype, device="cpu")
    return {restored(key): restored(each, kept) for key, each in value["dict"]}
