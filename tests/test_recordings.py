"""The committed recordings: whole, small, and what the library of today records again."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tiers import rows

ROOT = Path(__file__).parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tools.record import frame  # noqa: E402

# A recording that takes a second or two is made again by `make test`, the others by `make test-all`.
QUICK = [
    *(
        "formats",
        "collectives",
        "columns_and_rows",
        "commands",
        "construction",
        "copies",
        "memory",
        "pipeline",
        "overlap",
        "planner",
    ),
    *("ring", "sketch", "states", "step", "three_dimensions", "vector"),
]

# These take half a minute to a minute each, and `.ci/run` leaves them to `make test-all`.
LONG = ["closing", "gradients", "losses", "stages", "timeline"]


def committed(name: str) -> dict[str, Any]:
    """A recording as it lies in the repository."""
    found: dict[str, Any] = json.loads((frame.FOLDER / f"{name}.json").read_text("utf-8"))
    return found


def test_each_recording_has_its_file_and_each_file_its_recording() -> None:
    assert sorted(path.stem for path in frame.FOLDER.glob("*.json")) == frame.names()


@pytest.mark.parametrize("name", frame.names())
def test_a_recording_says_where_it_comes_from(name: str) -> None:
    found = committed(name)
    assert sorted(found) == ["command", "commit", "data", "machine", "versions"]
    assert found["command"] == f"make record ARGS={name}"
    assert re.fullmatch("[0-9a-f]{40}", found["commit"]), "commit the library first, then record"
    assert sorted(found["versions"]) == ["python", "torch"]
    path = frame.FOLDER / f"{name}.json"
    assert path.read_text("utf-8") == frame.text(found) + "\n"
    assert path.stat().st_size <= frame.MOST_BYTES


@pytest.mark.cases(now=4, ci=14)
@pytest.mark.parametrize(
    "name",
    [
        *rows([name for name in frame.names() if name not in LONG], now=QUICK),
        *(pytest.param(name, marks=pytest.mark.nightly) for name in LONG),
    ],
)
def test_the_library_records_the_same_again(name: str) -> None:
    found = frame.exact(name, frame.module_of(name).record())
    assert found == frame.exact(name, committed(name)["data"]), f"run `make record ARGS={name}`"


def test_a_step_without_a_wait_is_the_same_on_a_cpu_and_races_on_a_gpu() -> None:
    right, broken = committed("step")["data"], committed("step_no_wait")["data"]
    plain = [
        {key: event[key] for key in event.keys() - {"removed", "races", "harmless"}}
        for event in broken["events"]
    ]
    assert plain == right["events"]
    found = [event for event in broken["events"] if event.get("removed")]
    # The backward pass of the embedding reads none of its weights.
    counts = [event.get("races", event.get("harmless"))["count"] for event in found]
    assert len(counts) == 6
    assert all(counts[:5])
    assert counts[5] == 0


def test_a_step_without_the_mean_adds_gradients_up_and_adamw_hides_it() -> None:
    right, broken = committed("step")["data"], committed("step_no_mean")["data"]
    for one, other in zip(right["events"], broken["events"], strict=True):
        changed = {key for key in one if one[key] != other[key]}
        assert changed == ({"norm"} if other.get("removed") else set())
        if changed:
            assert other["norm"] == pytest.approx([2 * norm for norm in one["norm"]], rel=1e-2)
    moved = broken["values"]
    assert moved["adamw_sum"] == moved["adamw_mean"]
    assert moved["sgd_sum"] == pytest.approx(2 * moved["sgd_mean"], rel=1e-2)


def test_a_recorded_step_has_scenes_that_a_reader_can_follow() -> None:
    data = committed("step")["data"]
    firsts = [scene["first"] for scene in data["scenes"]]
    assert 60 <= len(data["events"]) <= 120
    assert 20 <= len(firsts) <= 28
    assert firsts[0] == 0
    assert firsts == sorted({*firsts})


def test_a_line_that_is_not_there_once_is_no_point() -> None:
    from tools.record.lines import points

    with pytest.raises(ValueError, match="unpack"):
        points({"shardbook/zero/unit.py#Unit.wait": ("nowhere",)})
    with pytest.raises(ValueError, match="unpack"):
        points({"shardbook/zero/unit.py#Unit.wait": ("self",)})
    (found,) = points({"shardbook/zero/unit.py#Unit.fetch": ("flat.gathering = all_gather(",)}).values()
    assert [(one.last - one.first, one.line) for one in found] == [(2, "flat.gathering = all_gather(")]


def test_a_file_is_json_with_rows_that_fit_on_a_screen() -> None:
    value = {"b": [*range(100)], "a": {"1": [[1, 2], [3]], "x": "é" * 10}, "c": [{"d": ["w" * 60] * 3}]}
    assert json.loads(frame.text(value)) == value
    assert max(map(len, frame.text(value).splitlines())) <= frame.WIDTH
    assert frame.text({2: 1, 10: None}) == '{"10": null, "2": 1}'
    with pytest.raises(ValueError, match="JSON"):
        frame.text([float("nan")])


def test_a_recording_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(frame, "FOLDER", tmp_path)
    monkeypatch.setattr(frame.module_of("vector"), "record", lambda: ["word"] * 10_000)
    with pytest.raises(SystemExit, match=r"vector takes .* bytes, but a recording has at most 60,000"):
        frame.make("vector")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_name_is_refused_with_the_names_that_there_are() -> None:
    from tools.record.__main__ import main

    with pytest.raises(SystemExit, match=r"there is no recording 'vectors'; choose from .*vector"):
        main(["vectors"])
