"""What the names in a file mean is asked again when code changes that its imports reach, and only then."""

from __future__ import annotations

import pytest

from sidelit.source import source
from sidelit.source.summary import Module, reached, surface

FILES = {
    "top": "",
    "top.a": "from top.b import B\n",
    "top.b": "from .c import C\nB = C\n",
    "top.c": '"""Words."""\n\nC = 1\n',
    "top.pack": "from top.pack.inner import X\n",
    "top.pack.inner": "X = 2\n",
    "top.whole": "import top.a\n",
    "top.package": "from top import pack\n",
    "top.far": "def far():\n    from ..top.c import (\n        C,\n    )\n    return C\n",
    "top.alone": "ALONE = 3\n",
}
# They import the package, and with it all that is below.
WHOLE = ("top.package", "top.whole")


def stands(changes: dict[str, str]) -> dict[str, str]:
    made = {**FILES, **changes}
    packages = {"top", "top.pack"}
    return reached(
        {
            name: Module(name, name in packages, surface(source.parse(text, f"{name}.py")))
            for name, text in made.items()
        }
    )


@pytest.mark.parametrize(
    ("changed", "text", "others"),
    [
        ("top.c", '"""Words."""\n\nC = 5\n', {"top.a", "top.b", "top.c", "top.far", *WHOLE}),
        ("top.c", '"""Words."""\n\n\n# More words.\nC = 1\n', set()),
        ("top.c", '"""Other words."""\n\nC = 1\n', set()),
        ("top.pack.inner", "X = 3\n", {"top.pack", "top.pack.inner", *WHOLE}),
        ("top.alone", "ALONE = 4\n", {"top.alone", *WHOLE}),
        ("top.b", "from top.alone import ALONE\n", {"top.a", "top.b", *WHOLE}),
    ],
)
def test_a_file_rests_on_what_its_imports_reach(changed: str, text: str, others: set[str]) -> None:
    before, after = stands({}), stands({changed: text})
    assert {name for name in before if before[name] != after[name]} == others


def test_hidden_code_counts_too() -> None:
    hidden = "A = 1\n# sidelit: hide\nB = {}\n# sidelit: show\nC = 3\n"
    one, two = (surface(source.parse(hidden.format(number), "a.py")) for number in (1, 2))
    assert one.code != two.code


@pytest.mark.parametrize(
    "said", ["from\\\n  a.b import c", "x = 1; from a . b import c", "if x:\n\tfrom a.b import(c)"]
)
def test_an_import_is_seen_however_it_is_written(said: str) -> None:
    assert "a.b" in surface(source.parse(f"x = 0\n{said}\n", "a.py")).imports
