"""What to write instead of another library's names: the data is complete, holds for PyTorch, and is shown."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import shardbook
import tables

ROOT = Path(__file__).parent
SOURCES = {source["heading"]: source for source in tables.sources()}
VERDICTS = {"same", "other name", "nothing to do", "differs", "refused"}
ROWS = [(source["heading"], row) for source in SOURCES.values() for row in source["rows"]]


def taken(thing: Any) -> list[str]:
    """The parameters of a function or of a class, without `self`."""
    return [name for name in inspect.signature(thing).parameters if name != "self"]


def offered(source: dict[str, Any]) -> set[str]:
    """Every parameter and every method of the roots of a source, as rows name them."""
    names = set()
    for root in source["roots"]:
        thing = getattr(importlib.import_module(source["module"]), root)
        if not (inspect.isclass(thing) and thing.__init__ is object.__init__):
            names |= {f"{root}({parameter})" for parameter in taken(thing)}
        if inspect.isclass(thing) and not hasattr(thing, "__dataclass_fields__"):
            names |= {f"{root}.{name}" for name in vars(thing) if not name.startswith("_")}
    return names


@pytest.mark.parametrize("heading", SOURCES)
def test_every_parameter_and_method_has_a_row_and_exists(heading: str) -> None:
    source = SOURCES[heading]
    named = {name for row in source["rows"] for name in row.get("names", ())}
    assert offered(source) - named == set(), "no row"
    # An older PyTorch has fewer of them.
    if torch.torch_version.TorchVersion(torch.__version__) >= "2.13":
        assert named - offered(source) == set(), "not in PyTorch"


def test_the_page_shows_the_data() -> None:
    assert tables.main(["--check"]) == 0


def test_the_examples_of_the_tool_hold() -> None:
    assert doctest.testmod(tables).failed == 0
    with pytest.raises(ValueError, match="no heading 'H' with a table below it"):
        tables.written(
            "## H\n\n## Next\n\n| x |\n|---|\n| y |\n", [{"heading": "H", "label": "T", "rows": []}]
        )


def test_a_row_says_one_of_five_things() -> None:
    for heading, row in ROWS:
        assert row["verdict"] in VERDICTS, (heading, row["theirs"])
        assert set(row) <= {"theirs", "verdict", "here", "names", "ours", "test"}, (heading, row["theirs"])


def resolved(name: str) -> bool:
    """Whether this library has a name, written as thing, thing.method, module.thing or thing(parameter)."""
    path, _, parameter = name.removesuffix(")").partition("(")
    thing: Any = shardbook
    for part in path.split("."):
        found = getattr(thing, part, None)
        thing = importlib.import_module(f"shardbook.{part}") if found is None else found
    return not parameter or parameter in taken(thing)


def test_what_a_row_relies_on_is_there() -> None:
    for heading, row in ROWS:
        for name in row["ours"]:
            assert resolved(name), (heading, row["theirs"], name)


@cache
def functions_of(path: Path) -> set[str]:
    return {
        node.name for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.FunctionDef)
    }


def test_each_row_names_a_test() -> None:
    for heading, row in ROWS:
        path, _, name = row["test"].partition("::")
        assert name in functions_of(ROOT / path), (heading, row["theirs"], row["test"])


def test_what_is_refused_is_no_option_here() -> None:
    """An option that is not offered is an error of Python's, and never taken in silence."""
    known = {*taken(shardbook.shard), *taken(shardbook.Policy)}
    for _, row in ROWS:
        if row["verdict"] != "refused":
            continue
        for name in row.get("names", ()):
            path, _, parameter = name.removesuffix(")").partition("(")
            if parameter:
                assert parameter not in known, name
                with pytest.raises(TypeError, match=f"unexpected keyword argument '{parameter}'"):
                    shardbook.shard(nn.Linear(1, 1), **{parameter: None})
            else:
                assert not hasattr(nn.Linear(1, 1), path.split(".")[-1]), name
        # What DeepSpeed's configuration calls an option is none of ours, either.
        assert known.isdisjoint(re.findall(r'"(\w+)"', row["theirs"])), row["theirs"]
