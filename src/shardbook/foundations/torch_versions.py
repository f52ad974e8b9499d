r"""# Versions of PyTorch

> What differs between the versions of PyTorch on which this library runs, each with its
> line and its reason.

A cluster has the PyTorch that its administrators have installed. A library that runs on
one version only is therefore of no use on most clusters. This library runs on the
versions 2.11 to 2.15, and `SUPPORT.md` has a table of the tests that passed on each of
them.

PyTorch changes with each version, so some lines must depend on it. All of these lines
are in this chapter, and no other module of the library checks the version. Where a
version added a name, the line checks whether PyTorch has the name, so it is right for
a build between two releases, too. Where only numbers changed, it compares versions.

| since | what changed | what the library uses |
|---|---|---|
| 2.12 | on CUDA autocast computes `rms_norm` in FP32 | `NEWER_IN_FP32` |
| 2.13 | `all_gather_into_tensor` warns, and is renamed `all_gather_single` | `start_all_gather` |
| 2.13 | `reduce_scatter_tensor` warns, and is renamed `reduce_scatter_single` | `start_reduce_scatter` |
| 2.13 | there is a loss `linear_cross_entropy` | `NEWER_LOSSES` |
| 2.13 | what is too large for E4M3FN becomes its largest number, and not NaN | `E4M3FN_SATURATES` |
| 2.14 | autocast has other decompositions of matrices | `SOME_DECOMPOSITIONS` |
| 2.14 | a selective checkpoint passes what it keeps through hooks, or warns | `bypass_hooks` |
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import Work

__all__ = [
    "ALL_GATHER",
    "E4M3FN_SATURATES",
    "NEWER_IN_FP32",
    "NEWER_LOSSES",
    "NEWEST",
    "OLDEST",
    "REDUCE_SCATTER",
    "SOME_DECOMPOSITIONS",
    "bypass_hooks",
    "check_version",
    "since",
    "start_all_gather",
    "start_reduce_scatter",
]

# The first and the last minor version on which all tests have passed.
OLDEST, NEWEST = "2.11", "2.15"


def check_version(version: str) -> None:
    """Refuse a PyTorch that is too old, and warn once of one that is newer than those tested.

    An older version lacks functions that the library calls. A newer version may have
    changed [a private name](torch_private.py). Usually it has not, so training may
    begin, and the tests of the private names tell which of them have changed.

    :param version: such as `torch.__version__`
    :raises ImportError: if the version is older than 2.11
    """
    if _minor(version) < _minor(OLDEST):
        raise ImportError(
            f"shardbook needs PyTorch {OLDEST} or newer, and this is {version}: "
            f"pip install 'torch>={OLDEST}'"
        )
    if _minor(version) > _minor(NEWEST):
        warnings.warn(
            f"shardbook was tested with PyTorch {OLDEST} to {NEWEST}, and this is {version}; "
            "tests/book/foundations/test_torch_private.py finds out what has changed",
            stacklevel=3,
        )


def _minor(version: str) -> tuple[int, ...]:
    """The first two numbers of a version, `(2, 11)` of `2.11.0+cu130`."""
    return tuple(map(int, version.split(".")[:2]))


def since(version: str) -> bool:
    """Whether this PyTorch is of that minor version or of a newer one."""
    return _minor(torch.__version__) >= _minor(version)


# **Exchanges of one tensor.** The names of the two collectives in `torch.distributed`.
# They are looked up at each call, because programs that watch exchanges put functions
# of their own in these places.
ALL_GATHER = (
    "all_gather_single"
    if hasattr(dist, "all_gather_single")
    else "all_gather_into_tensor"
)
REDUCE_SCATTER = (
    "reduce_scatter_single"
    if hasattr(dist, "reduce_scatter_single")
    else "reduce_scatter_tensor"
)


def start_all_gather(full: Tensor, piece: Tensor, *, group: Any) -> Work:
    """Start to collect the pieces of all ranks in one tensor, in rank order.

    :param full: receives the pieces; as many times as long as `piece` as there are ranks
    """
    work: Work = getattr(dist, ALL_GATHER)(full, piece, group=group, async_op=True)
    return work


def start_reduce_scatter(result: Tensor, full: Tensor, *, group: Any) -> Work:
    """Start to add up a tensor over the ranks, of which each rank receives a piece.

    :param result: receives this rank's piece of the sum
    """
    work: Work = getattr(dist, REDUCE_SCATTER)(result, full, group=group, async_op=True)
    return work


# **Losses that older versions lack.** `linear_cross_entropy`
# contains the product of a model's head, so this product, too, is computed [in
# FP32](norms.py).
NEWER_LOSSES: tuple[Callable[..., Any], ...] = tuple(
    getattr(F, name) for name in ("linear_cross_entropy",) if hasattr(F, name)
)

# **Autocast.** The operations that have a rule [in autocast's tables](autocast_rules.py) in
# some of the versions only. Version 2.12 added `rms_norm` on CUDA. Version 2.14 added
# `linalg_matrix_sqrth` on every device, and removed `cholesky` and `qr`.
NEWER_IN_FP32 = frozenset(
    (["rms_norm"] if since("2.12") else [])
    + (["linalg_matrix_sqrth"] if since("2.14") else [])
)
SOME_DECOMPOSITIONS = frozenset(
    {"linalg_matrix_sqrth"} if since("2.14") else {"cholesky", "qr"}
)

# **Eight bits.** Whether a conversion to [E4M3FN](formats.py), which has no infinity,
# gives the largest number where a value is too large. Before version 2.13 it gives NaN.
E4M3FN_SATURATES = since("2.13")


def bypass_hooks(block: Any) -> None:
    """Let PyTorch's selective checkpoint keep its results as they are.

    From version 2.14 on, the block of a selective checkpoint looks for hooks in which
    autograd saves tensors, and warns that it will pass what it keeps through them. Here
    these hooks are those of [the checkpoint around the block](saved_tensors.py), which
    would drop the result.

    :param block: the block of a forward pass; any other block stays as it is
    """
    if getattr(block, "respect_saved_tensors_hooks", False) is None:
        block.respect_saved_tensors_hooks = False
