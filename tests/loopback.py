"""Count what the collectives put on the loopback device. Run in a network namespace of its own:

    unshare --net python tests/loopback.py

The accounting. A new namespace has a loopback device that is down, with counters at zero, and no other
traffic. The device counts packets without their Ethernet header, so each carries 20 bytes of IPv4 and 32 of
TCP header (20, and 12 of the timestamps option); hence

    payload = bytes - 52 * packets

for data and for bare acknowledgements alike, however the kernel cuts the stream. `2k` calls minus `k` calls
leave the payload of `k` calls, because the barriers around them are in both. A busy kernel sends some of the
segments twice; it knows how many bytes, socket by socket (`tcpi_bytes_retrans`), and they are taken off. What
is left beyond the ledgers are gloo's headers.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import stat
import struct
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

import ranks
from shardbook.foundations.collectives import (
    all_gather,
    all_reduce,
    broadcast,
    ledger,
    reduce_scatter_mean,
    world,
)
from shardbook.foundations.torch_private import start_reduce_scatter

HEADERS = 20 + 32
CALLS = 3
NUMEL = 12 * 50_000  # 2.4 MB in fp32, divisible by 2, 3 and 4


def _gather(numel: int, dtype: torch.dtype) -> None:
    _, size = world()
    all_gather(torch.zeros(numel, dtype=dtype), torch.zeros(numel // size, dtype=dtype)).wait()


def _reduce(numel: int, dtype: torch.dtype) -> None:
    reduce_scatter_mean(torch.zeros(numel, dtype=dtype)).wait()


def _broadcast(numel: int, dtype: torch.dtype) -> None:
    broadcast(torch.zeros(numel, dtype=dtype))


def _broadcast_from_last(numel: int, dtype: torch.dtype) -> None:
    broadcast(torch.zeros(numel, dtype=dtype), source=world()[1] - 1)


def _all_reduce(numel: int, dtype: torch.dtype) -> None:
    all_reduce(torch.zeros(numel, dtype=dtype))


COLLECTIVES: dict[str, Callable[[int, torch.dtype], None]] = {
    "broadcast": _broadcast,
    "broadcast-from-last": _broadcast_from_last,
    "all-gather": _gather,
    "reduce-scatter": _reduce,
    "all-reduce": _all_reduce,
}


def gloo_s_own_reduce_scatter(numel: int, dtype: torch.dtype) -> None:
    piece, full = torch.zeros(numel // world()[1], dtype=dtype), torch.zeros(numel, dtype=dtype)
    start_reduce_scatter(piece, full, group=None).wait()


Figures = tuple[int, int, int]  # bytes on the device, bytes repeated by this rank, bytes in its ledger


def observe(function: Callable[[int, torch.dtype], None], times: int) -> Figures:
    """What some calls add to each of the three figures."""
    device, repeated = read_in_silence()
    with ledger() as book:
        for _ in range(times):
            function(NUMEL, torch.float32)
    device_after, repeated_after = read_in_silence()
    return device_after - device, repeated_after - repeated, book.total


def read_in_silence() -> tuple[int, int]:
    """Between the barriers every rank has sent all it had to, and none starts anew."""
    dist.barrier()
    figures = payload(), socket_bytes()[1]
    dist.barrier()
    return figures


def observe_all() -> list[tuple[Figures, Figures]]:
    """Runs on each rank: `CALLS` and `2 * CALLS` calls of every collective."""
    functions = [*COLLECTIVES.values(), gloo_s_own_reduce_scatter]
    for function in functions:
        function(NUMEL, torch.float32)  # connections stand
    return [(observe(function, CALLS), observe(function, 2 * CALLS)) for function in functions]


def socket_bytes() -> tuple[int, int]:
    """Payload that the kernel has sent on this process's TCP sockets, and how much of it was a repetition."""
    sent, repeated = 0, 0
    for link in list(Path("/proc/self/fd").iterdir()):
        try:
            descriptor = os.dup(int(link.name))
        except OSError:  # the one that listed the folder is closed by now
            continue
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            continue
        with socket.socket(fileno=descriptor) as connection:
            if connection.type == socket.SOCK_STREAM and connection.family != socket.AF_UNIX:
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                more = struct.unpack_from("QQ", info, 200)  # tcpi_bytes_sent, tcpi_bytes_retrans
                sent, repeated = sent + more[0], repeated + more[1]
    return sent, repeated


def raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        set_flags, up_and_running = 0x8914, 0x1 | 0x40
        fcntl.ioctl(any_socket, set_flags, struct.pack("16sh14x", b"lo", up_and_running))


def payload() -> int:
    """From /proc, which shows the namespace of the reader; /sys shows the one in which it was mounted."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    fields = next(line.split(":")[1].split() for line in lines if line.strip().startswith("lo:"))
    received, packets = int(fields[0]), int(fields[1])
    return received - HEADERS * packets


def measure(size: int) -> dict[str, tuple[int, int]]:
    """For each collective, the bytes of `CALLS` calls: on the device, and in all ranks' ledgers together."""
    answers = ranks.run(size, observe_all)
    result = {}
    for i, name in enumerate([*COLLECTIVES, "gloo"]):
        pairs = [answer[i] for answer in answers]
        device = pairs[0][1][0] - pairs[0][0][0]  # one device: rank 0 has read it for all
        repeated = sum(twice[1] - once[1] for once, twice in pairs)
        result[name] = device - repeated, sum(twice[2] - once[2] for once, twice in pairs)
    return result


def main() -> None:
    raise_loopback()
    rows = []
    for size in (2, 3, 4):
        figures = measure(size)
        own, _ = figures.pop("gloo")
        for name, (counted, said) in figures.items():
            row = {"world_size": size, "name": name, "payload": CALLS * NUMEL * 4}
            rows.append({**row, "counted": counted, "ledger": said, "gloo_own": own})
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
