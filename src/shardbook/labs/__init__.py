"""The notebooks' side of the book: ranks, checks, plots and words of the labs."""

from shardbook.labs.checks import Check, NotYet, check, expect
from shardbook.labs.first_cell import begin
from shardbook.labs.lab_language import language
from shardbook.labs.lab_ranks import ranks
from shardbook.labs.plots import COLOURS, figure, label
from shardbook.labs.progress_bar import progress
from shardbook.labs.rank_outcomes import RanksFailed
from shardbook.labs.rank_process import device, rank
from shardbook.labs.words import tell

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
