"""The ledger is real: the kernel counts the same bytes.

Two witnesses. For each rank alone, the kernel knows how many bytes it sent on that process's own sockets. For
all ranks together, a network namespace in which nothing else runs has a loopback device that counts every
byte.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

import loopback
import ranks
from shardbook.foundations.collectives import ledger, record, record_move

HEADER = 48  # gloo announces every message, and every wish to receive one, with a header of this size


def bytes_sent() -> int:
    """Payload that the kernel has sent on this process's TCP sockets, without repetitions."""
    sent, repeated = loopback.socket_bytes()
    return sent - repeated


def differences(name: str, numels: list[int], dtype: torch.dtype) -> list[tuple[int, int]]:
    """For each size: the bytes in this rank's ledger, and what the kernel counted beyond them."""
    result = []
    loopback.COLLECTIVES[name](numels[0], dtype)  # connections stand
    for numel in numels:
        dist.barrier()
        before = bytes_sent()
        with ledger() as book:
            loopback.COLLECTIVES[name](numel, dtype)
        dist.barrier()  # all has arrived everywhere, so all has been sent
        result.append((book.total, bytes_sent() - before - book.total))
    return result


@pytest.mark.cases(now=3, ci=3)
@pytest.mark.parametrize("world_size", [2, 3, 4])
@pytest.mark.parametrize("name", list(loopback.COLLECTIVES))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_rank_sends_what_its_ledger_says(world_size: int, name: str, dtype: torch.dtype) -> None:
    """Beyond the ledger there are only whole headers: at most a few dozen in a call and its barrier.

    The sizes include single elements, and sizes that no number of ranks divides.
    """
    numels = [world_size, 12 * 1001, 12 * 100_003, 12 * 200_003]
    if name.startswith(("broadcast", "all-reduce")):
        numels += [1, 1_234_567]
    for rank, answer in enumerate(ranks.run(world_size, differences, name, numels, dtype)):
        for numel, (counted, beyond) in zip(numels, answer, strict=True):
            assert 0 <= beyond <= 100 * HEADER, (rank, numel, counted, beyond)
            assert beyond % HEADER == 0, (rank, numel, counted, beyond)


@pytest.fixture(scope="module")
def measured() -> list[dict[str, float]]:
    """What `loopback.py` prints from inside a network namespace of its own."""
    refusals = []
    for wall in (["unshare", "--net"], ["unshare", "--net", "--map-root-user"]):
        try:
            trial = subprocess.run([*wall, "true"], capture_output=True, text=True)
        except FileNotFoundError:
            pytest.fail("the byte ledger's test needs the program unshare; install util-linux")
        if trial.returncode == 0:
            break
        refusals.append(trial.stderr.strip())
    else:
        pytest.fail(
            f"the byte ledger's test needs a network namespace of its own ({refusals[-1]}); "
            "run it as root or allow user namespaces (sysctl kernel.unprivileged_userns_clone=1; on Ubuntu "
            "kernel.apparmor_restrict_unprivileged_userns=0)"
        )
    path = os.pathsep.join(entry for entry in sys.path if entry)
    done = subprocess.run(
        [*wall, sys.executable, str(loopback.__file__)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    result: list[dict[str, float]] = json.loads(done.stdout)
    return result


@pytest.mark.full
def test_the_loopback_device_counts_what_the_ledgers_say(measured: list[dict[str, float]]) -> None:
    """Within a thousandth: what remains are gloo's own headers, 48 bytes a message."""
    assert len(measured) == 3 * len(loopback.COLLECTIVES)
    for row in measured:
        assert row["counted"] / row["ledger"] == pytest.approx(1, abs=1e-3), row


def test_an_ideal_reduce_scatter_is_half_of_what_gloo_s_own_sends(measured: list[dict[str, float]]) -> None:
    """The reason for the all-to-all, as a measured fact."""
    for size in (2, 3, 4):
        row = next(row for row in measured if (row["world_size"], row["name"]) == (size, "reduce-scatter"))
        assert row["ledger"] == (size - 1) * row["payload"]  # all ranks together
        assert row["gloo_own"] / row["counted"] == pytest.approx(2, rel=1e-3)


def test_a_nested_ledger_that_counted_nothing_ends_alone() -> None:
    """Two ledgers without entries are equal. The one that ends is a matter of which, not of what it holds."""
    with ledger() as outer:
        with ledger() as inner:
            pass
        record("all-reduce", 2, 8, 8)
        record_move("parameters to the device", 4)
    assert (outer.total, outer.moved) == (8, {"parameters to the device": 4})
    assert (inner.total, inner.moved) == (0, {})
