"""What was worked out before is found again, and only what the last build asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidelit.cache.graph import Graph, Noted, noting
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


def traced(folder: Path, words: dict[str, str], *, inputs: bool = True) -> list[str]:
    """A task that reads words by their names; returns what a build had to make."""
    made: list[str] = []
    graph, known = Graph(Store(folder)), Noted(words, "word:{}")
    if inputs:
        graph.input("word", lambda name: words[name])

    def make() -> str:
        made.append("page")
        return known["one"] if "other" not in known else known["other"]

    if (found := graph.recalled("pages", "key")) is None:
        with noting() as read:
            value = make()
        graph.remember("pages", "key", ["value"], read, value.encode())
    else:
        assert found.value == ["value"]
    if inputs:
        content = graph.content("pages", "key")
        assert content == words.get("other", words["one"]).encode()
    return made


def test_a_task_is_done_again_when_what_it_read_differs(folder: Path) -> None:
    assert traced(folder, {"one": "1", "two": "2"}) == ["page"]
    assert traced(folder, {"one": "1", "two": "3"}) == []
    assert traced(folder, {"one": "4", "two": "3"}) == ["page"]
    assert traced(folder, {"one": "4"}) == []


def test_what_is_gone_or_unknown_is_no_reason_to_fail(folder: Path) -> None:
    assert traced(folder, {"one": "1", "other": "2"}) == ["page"]
    # `other` was read, and is not there any more.
    assert traced(folder, {"one": "1"}) == ["page"]
    assert traced(folder / "more", {"one": "1"}, inputs=False) == ["page"]
    assert traced(folder / "more", {"one": "1"}, inputs=False) == ["page"]
