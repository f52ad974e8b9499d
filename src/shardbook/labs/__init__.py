"""The notebooks' side of the book: ranks, checks, plots and words of the labs."""

from shardbook.labs.lab_ranks import ranks
from shardbook.labs.notebook import (
    COLOURS,
    Check,
    NotYet,
    begin,
    check,
    expect,
    figure,
    label,
)
from shardbook.labs.rank_process import RanksFailed, device, rank
from shardbook.labs.words import language, progress, tell

__all__ = [
    "COLOURS",
    "Check",
    "NotYet",
    "RanksFailed",
    "begin",
    "check",
    "device",
    "expect",
    "figure",
    "label",
    "language",
    "progress",
    "rank",
    "ranks",
    "tell",
]
