"""What a name means: each case is a small project whose comments say where its links lead.

`#> name=b:3` asks for a link to line 3 of the module `b`, `name=.3` to line 3 of the same file, `name=b` to
the module, `name=-` for none; anything else with a dot is a name from outside.
"""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent

import pytest

from sidelit.names.library import Written
from sidelit.names.links import Definition, Names

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
    module = {path: name for name, path in names.paths.items()}[to.path]
    line = to.line(names.of(to.path).lines)
    place = f":{line}" if line else ""
    return f".{line}" if to.path == path and line else f"{module}{place}"


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_a_link_leads_where_the_comment_says(case: Path) -> None:
    names = read(case.read_text("utf-8"))
    wrong, asked = [], 0
    for each in names.files.written.values():
        path, links = each.path, names.links(each.path)
        for number, line in enumerate(str(each.text).split("\n"), 1):
            wanted = line.partition("#>")[2]
            found = {}
            for link in links.get(number, ()):
                found.setdefault(link.text, said(names, link.to, path))
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
    columns = [link.start for link in names.links("a.py")[2] if isinstance(link.to, Definition)]
    assert columns == [11, 18]


def test_a_star_import_in_a_circle_ends() -> None:
    names = Names((written("a.py", "from b import *\nx\n"), written("b.py", "from a import *\ny\n")))
    assert names.links("a.py")[1][0].to == Definition("b.py", "module", "")


def test_two_files_of_one_module_have_no_links_and_none_leads_to_them() -> None:
    twice = Written("c/a.py", "a", "def f(): ...\nf()\n")
    names = Names((written("a.py", "def f(): ...\nf()\n"), twice, written("b.py", "from a import f\nf()\n")))
    assert [names.links(path) for path in ("a.py", "c/a.py", "b.py")] == [{}, {}, {}]


def test_what_was_put_away_is_read_again_and_says_the_same() -> None:
    files = (written("a.py", "def f(): ...\n"), written("b.py", "from a import f\nf()\n"))
    small, large = Names(files, most=0), Names(files)
    assert [small.links("b.py") for _ in range(3)] == [large.links("b.py")] * 3
    assert large.links("b.py")[2][0].to == Definition("a.py", "function", "f")
