"""When a gather hides behind the computation, for many speeds and numbers of tokens: a table for sliders."""

from __future__ import annotations

from typing import Any

from shardbook.planning.overlap import Wire

RANKS, NUMEL = 8, 100_000_000
FLOPS = (70e12, 140e12, 250e12, 400e12, 800e12)
BANDWIDTHS = (1.56e9, 3.1e9, 12.5e9, 25e9, 50e9, 100e9, 200e9, 300e9, 450e9, 900e9)
TOKENS = (512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536)


def record() -> Any:
    """For 8 ranks, and a unit of 100 million parameters in 16 bits, what the formulas of the chapter give."""
    return {
        "axes": [
            {"name": "flops", "values": list(FLOPS), "start": FLOPS.index(400e12)},
            {"name": "bandwidth", "values": list(BANDWIDTHS), "start": BANDWIDTHS.index(50e9)},
            {"name": "tokens", "values": list(TOKENS), "start": TOKENS.index(4096)},
        ],
        "rows": ["computation", "gather", "factor", "enough"],
        "parts": ["all"],
        "answers": [
            [[answer(flops, bandwidth, tokens) for tokens in TOKENS] for bandwidth in BANDWIDTHS]
            for flops in FLOPS
        ],
    }


def answer(flops: float, bandwidth: float, tokens: int) -> list[list[float]]:
    """Two times in seconds, how many times its computation a forward pass takes, and enough tokens."""
    wire = Wire(flops, bandwidth, RANKS)
    found = (
        wire.compute_seconds(NUMEL, tokens),
        wire.gather_seconds(NUMEL),
        1 + wire.waited(tokens),
        wire.enough_tokens(),
    )
    return [[float(f"{value:.6g}")] for value in found]
