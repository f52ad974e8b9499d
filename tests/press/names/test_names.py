"""What a name means: each case is a small project whose comments say where its links lead.

`#> name=b:3` asks for a link to line 3 of the module `b`, `name=.3` to line 3 of the same file, `name=b` to
the module, `name=-` for none; anything else with a dot is a name from outside.
"""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent

import pytest

from sidelit.names.links import Definition, Names, Written

CASES = sorted((Path(__file__).parent / "cases").glob("*.txt"))


def read(text: str) -> Names:
    """A project of the files in a text, each below a line `== path`."""
    parts = re.split(r"(?m)^== (\S+)\n", text)[1:]
    files = zip(parts[::2], parts[1::2], strict=True)
    return Names(tuple(written(path, dedent(source)) for path, source in files))


def written(path: str, source: str) -> Written:
    module = path.removesuffix(".py").replace("/", ".")
    return Written(path, module.removesuffix(".__init__"), source, path.endswith("__init__.py"))


def said(names: Names, to: Definition | str, path: str) -> str:
    if isinstance(to, str):
        return to
    module = {each: name for name, each in names.paths.items()}[to.path]
    place = f":{to.line}" if to.line else ""
    return f".{to.line}" if to.path == path and to.line else f"{module}{place}"


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_a_link_leads_where_the_comment_says(case: Path) -> None:
    names = read(case.read_text("utf-8"))
    wrong, asked = [], 0
    for path, lines in names.lines.items():
        links = names.links(path)
        for number, line in enumerate(lines, 1):
            code, _, wanted = line.partition("#>")
            found = {}
            for link in links.get(number, ()):
                found.setdefault(code[link.start : link.end], said(names, link.to, path))
            for question in wanted.split():
                name, _, answer = question.partition("=")
                asked += 1
                if found.get(name, "-") != answer:
                    wrong.append(f"{path}:{number}: {question}, and it is {found.get(name, '-')}")
    assert asked
    assert wrong == [], "\n".join(wrong)


def test_a_file_that_is_no_python_has_no_links() -> None:
    names = Names((written("a.py", "def f(:\n"), written("b.py", "from a import f\nf()\n")))
    assert names.links("a.py") == {}
    assert names.links("b.py") == {}


def test_columns_count_characters() -> None:
    names = Names((written("a.py", "größe = 1\nprint('ä', größe, größe)\n"),))
    columns = [(link.start, link.end) for link in names.links("a.py")[2] if isinstance(link.to, Definition)]
    assert columns == [(11, 16), (18, 23)]


def test_a_star_import_in_a_circle_ends() -> None:
    names = Names((written("a.py", "from b import *\nx\n"), written("b.py", "from a import *\ny\n")))
    assert names.links("a.py")[1][0].to == Definition("b.py", 0, "module", "")
