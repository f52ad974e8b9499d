"""What was worked out before is found again, and only what the last build asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidelit.cache.graph import Graph
from sidelit.cache.store import Store


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return tmp_path / "work"


def asked(folder: Path, *keys: str) -> list[str]:
    """The keys for which a build has to make something."""
    made: list[str] = []
    graph = Graph(Store(folder))
    for key in keys:

        def make(key: str = key) -> str:
            made.append(key)
            return f"of {key}"

        assert graph.of("kind", key, make) == f"of {key}"
    graph.keep()
    return made


def test_work_is_done_once_and_forgotten_when_nobody_asks_for_it(folder: Path) -> None:
    assert asked(folder, "one", "two", "one") == ["one", "two"]
    assert asked(folder, "one", "two") == []
    assert asked(folder, "two") == []
    assert asked(folder, "one", "two") == ["one"]


def test_kinds_are_apart_and_an_empty_key_keeps_nothing(folder: Path) -> None:
    first = Graph(Store(folder))
    assert [first.of(kind, "key", lambda kind=kind: kind) for kind in ("one", "two")] == ["one", "two"]
    assert [first.of("one", "", lambda each=each: each) for each in (1, 2)] == [1, 2]
    assert first.knows("one", "key")
    assert not first.knows("one", "")
    first.keep()
    second = Graph(Store(folder))
    assert second.knows("two", "key")
    assert second.of("two", "key", lambda: "other") == "two"
    assert not second.knows("three", "key")


def test_what_is_large_is_kept_alone(folder: Path) -> None:
    assert Graph(Store(folder)).alone("kind", "key", lambda: (1, 2)) == (1, 2)
    assert Graph(Store(folder)).alone("kind", "key", lambda: (3,)) == (1, 2)


def test_a_memory_of_nothing_makes_everything() -> None:
    graph = Graph()
    assert [graph.of("kind", "key", lambda each=each: each) for each in (1, 2)] == [1, 2]
    assert [graph.alone("kind", "key", lambda each=each: each) for each in (1, 2)] == [1, 2]
    assert not graph.knows("kind", "key")
    graph.keep()
