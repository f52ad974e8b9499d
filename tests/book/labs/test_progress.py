"""The progress bar: where it appears, and what is left of it."""

from __future__ import annotations

import io
import multiprocessing
import sys
import threading

import pytest

from shardbook import labs
from shardbook.labs import words


class Terminal(io.StringIO):
    """A text that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch, delay: float = 0.0) -> Terminal:
    """From here on the standard output; a bar appears after this delay."""
    made = Terminal()
    monkeypatch.setattr(sys, "stdout", made)
    monkeypatch.setattr(words, "DELAY", delay)
    return made


def left(text: str) -> str:
    """What stands in the line after all that was written over it."""
    line = ""
    for piece in text.split("\r"):
        line = piece + line[len(piece) :]
    return line.rstrip()


def test_a_terminal_shows_a_bar_and_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = terminal(monkeypatch)
    for item in labs.progress(range(3), "adding"):
        if item == 0:
            assert "adding:   0%|" in shown.getvalue()
    assert left(shown.getvalue()) == ""


def test_the_bar_goes_where_a_loop_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = terminal(monkeypatch)
    for _ in labs.progress(iter(range(3)), total=3):
        break
    assert "| 0/3 [" in shown.getvalue()
    assert left(shown.getvalue()) == ""


def test_a_short_loop_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = terminal(monkeypatch, delay=60.0)
    assert list(labs.progress(range(3))) == [0, 1, 2]
    assert shown.getvalue() == ""


def test_a_file_gets_no_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "DELAY", 0.0)
    assert list(labs.progress(range(3))) == [0, 1, 2]
    assert capsys.readouterr() == ("", "")


def test_a_bar_starts_no_thread_and_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal(monkeypatch)
    # Other tests of this process may have started some.
    threads, processes = threading.active_count(), multiprocessing.active_children()
    for _ in labs.progress(range(2)):
        assert threading.active_count() == threads
        assert multiprocessing.active_children() == processes
    # A lock that processes share would have a name in the system.
    assert type(words.Bar.get_lock()) is type(threading.RLock())
