"""The imports that a file begins with: which lines they are, and that the rest of the file is as it was."""

from __future__ import annotations

import pytest

from sidelit.source import source

FOLDED = {
    "a run behind the docstring": (
        '"""Text."""\n\nimport os\nfrom a.b import (\n    c,\n    d,\n)\n\nX = 1\n',
        (3, 7),
        ("os", "a.b"),
    ),
    "no docstring": ("import os\nX = 1\n", (1, 1), ("os",)),
    "several modules of one statement": ("import os, a.b as c\nX = 1\n", (1, 1), ("os", "a.b")),
    "a module of the same package": (
        "from . import a, b\nfrom ..c import d\nX = 1\n",
        (1, 2),
        (".a", ".b", "..c"),
    ),
    "__future__ and __all__": (
        'from __future__ import annotations\n\n__all__ = ["X"]\n__all__ += ["Y"]\nX = 1\n',
        (1, 4),
        ("__future__",),
    ),
    "for a type checker": (
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from a import B\nX = 1\n",
        (1, 4),
        ("typing", "a"),
    ),
    "one of two": (
        "import sys\nif sys.version_info >= (3, 11):\n    import tomllib\nelse:\n    import tomli\nX = 1\n",
        (1, 5),
        ("sys", "tomllib", "tomli"),
    ),
    "what may be missing": (
        "try:\n    import a\nexcept ImportError:\n    a = None\nelse:\n    HAS_A = True\nX = 1\n",
        (1, 6),
        ("a",),
    ),
    "a note to a checker": (
        "import os  # why\n# isort: split\nimport a  # noqa\nX = 1\n",
        (1, 3),
        ("os", "a"),
    ),
    "a comment behind them": ("import os\n\n# Why.\nX = 1\n", (1, 1), ("os",)),
    "a comment among them": ("import os\n\n# Why.\nimport a\nX = 1\n", (1, 1), ("os",)),
    "words behind the first of them": (
        '# coding: utf-8\nfrom __future__ import a, b\n"""Text.\n\nMore."""\nimport os\n\nX = 1\n',
        (1, 6),
        ("__future__", "os"),
    ),
    "a licence above them": ("#!/bin/python\n# Licence.\n\nimport os\nX = 1\n", (4, 4), ("os",)),
    "a copyright above them": (
        '# Copyright A.\n\n"""Text."""\n\nimport os\nX = 1\n',
        (1, 5),
        ("os",),
    ),
    "lines for tools above them": (
        '#!/bin/python\n# coding: utf-8\n"""Text."""\n\nimport os\nX = 1\n',
        (1, 5),
        ("os",),
    ),
    "a copyright above other words": (
        '# Copyright A.\n\n# Text.\n\n"""More."""\nimport os\nX = 1\n',
        (6, 6),
        ("os",),
    ),
    "hidden lines among them": (
        "import os\n# sidelit: hide\nA = 1\n# sidelit: show\nimport a\nX = 1\n",
        (1, 5),
        ("os", "a"),
    ),
    "two statements in the last line": ("import os\nimport a; X = 1\n", (1, 1), ("os",)),
}


@pytest.mark.parametrize("name", FOLDED)
def test_the_imports_that_a_file_begins_with_stand_apart(name: str) -> None:
    text, lines, modules = FOLDED[name]
    (found,) = (each for each in source.parse(text, "m.py").sections if each.importing)
    assert (found.importing[0][0], found.importing[-1][0]) == lines
    assert tuple(each.module for each in found.imports.modules) == modules
    assert not {number for number, _ in found.body} & set(found.imports.rows)
    assert [each for each in found.code if each[1].strip()] == sorted(
        each for each in (*found.body, *found.importing) if each[1].strip()
    )


@pytest.mark.parametrize(
    "text",
    [
        "X = 1\n",
        "X = 1\nimport os\n",
        "def f():\n    import os\n    return os\n",
        "# Why this one.\nimport os\nX = 1\n",
        '"""Text."""\n\n# ## What it needs\n\nimport os\nX = 1\n',
        '"""Text."""; import os\nX = 1\n',
        "import os; X = 1\n",
        '__all__ = ["X"]\nX = 1\n',
        "if TYPE_CHECKING:\n    # Why.\n    import os\nX = 1\n",
        "try:\n    import a\nexcept ImportError:\n    stop()\nX = 1\n",
        "try:\n    import a\nfinally:\n    stop()\nX = 1\n",
        "if TYPE_CHECKING:\n    import os\n    X = 1\nY = 1\n",
        '"""Text."""\n\nimport os\nfrom a import b\n\n__all__ = ["b"]\n',
        "# sidelit: hide\nimport os\n# sidelit: show\nX = 1\n",
        "",
    ],
)
def test_nothing_else_is_folded(text: str) -> None:
    assert not any(each.importing for each in source.parse(text, "m.py").sections)


def test_what_a_package_imports_is_what_it_offers() -> None:
    text = "from .a import b\n\nX = 1\n"
    assert source.parse(text, "p/m.py").sections[0].importing
    assert not source.parse(text, "p/__init__.py").sections[0].importing


def test_sections_and_their_words_are_those_of_a_file_without_imports() -> None:
    text = '"""Text."""\n\nimport os\n\nX = 1\n\n# Why.\nY = 1\n'
    found, bare = source.parse(text, "m.py"), source.parse(text.replace("import os\n", "\n"), "m.py")
    shown = [[(each.kind, each.commentary, each.body) for each in made.sections] for made in (found, bare)]
    assert shown[0] == shown[1]
    assert "".join(each.source for each in found.sections) == text
