"""The running interpreter's own library, all of it: nothing is lost, and every docstring is found."""

from __future__ import annotations

import ast
import gc
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidelit.errors import SidelitError
from sidelit.source import source
from tiers import rows

pytestmark = pytest.mark.full

LIBRARY = Path(sysconfig.get_path("stdlib"))

# What `ast.parse` refuses: files kept in the library because they are wrong, or because they are Python 2.
INVALID = {
    "bad_coding.py",
    "bad_coding2.py",
    "badsyntax_3131.py",
    "badsyntax_pep3120.py",
    "bom.py",
    "crlf.py",
    "different_encoding.py",
    "false_encoding.py",
    "py2_test_grammar.py",
}


# Where the library keeps tests of its own: more than half of its text.
TESTS = {"test", "tests", "idle_test"}


def files() -> list[Path]:
    foreign = {"site-packages", "dist-packages"}
    return [path for path in sorted(LIBRARY.rglob("*.py")) if foreign.isdisjoint(path.parts)]


def is_test(path: Path) -> bool:
    return not TESTS.isdisjoint(path.relative_to(LIBRARY).parts)


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Syntax trees hold no cycles: to look for some takes a fifth of the time."""
    gc.disable()
    yield
    gc.enable()


def tree_of(data: bytes) -> ast.Module | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(data)
        except (SyntaxError, ValueError):
            return None


def lone_docstrings(tree: ast.Module, lines: list[str]) -> Iterator[str]:
    """Every docstring whose lines hold nothing else, by the columns of the syntax tree.

    Written without a look at the press: it compares columns, where the press compares tokens.
    """
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        todo += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr)]
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        text = ast.get_docstring(node)
        if text is None:
            continue
        statement = node.body[0]
        assert statement.end_lineno is not None
        first = lines[statement.lineno - 1].encode()
        last = lines[statement.end_lineno - 1].encode()
        if not first[: statement.col_offset].strip() and not last[statement.end_col_offset :].strip():
            yield text


def check(path: Path, data: bytes, tree: ast.Module) -> int:
    document = source.read(path)
    assert "".join(section.source for section in document.sections) == document.text, path
    assert document.text.encode(document.encoding) == data, path
    lines = document.text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    missing = Counter(lone_docstrings(tree, lines)) - Counter(each.commentary for each in document.sections)
    assert not missing, path
    return len(document.sections)


def shares() -> dict[str, list[Path]]:
    """The library in four parts. `make test` reads the first: every third module."""
    modules = [path for path in files() if not is_test(path)]
    return {
        "a third": modules[::3],
        "another third": modules[1::3],
        "the last third": modules[2::3],
        "tests": [path for path in files() if is_test(path)],
    }


@pytest.mark.cases(ci=1)
@pytest.mark.parametrize("share", rows(shares(), now=["a third"]))
@pytest.mark.usefixtures("uncollected")
def test_the_standard_library_comes_back_and_its_docstrings_are_found(share: str) -> None:
    sections = 0
    invalid = set()
    paths = shares()[share]
    for path in paths:
        data = path.read_bytes()
        tree = tree_of(data)
        if tree is None:
            invalid.add(path.name)
        else:
            sections += check(path, data, tree)
    assert invalid <= INVALID
    # One section a file would come back too, and would hold no more than one docstring.
    assert sections > 20 * len(paths)
    assert len(paths) > 200


@pytest.mark.cases(ci=1)
@pytest.mark.parametrize("name", sorted(INVALID - {"bad_coding2.py"}))
def test_what_python_refuses_is_refused_with_a_place(name: str) -> None:
    """`bad_coding2` is wrong in a way that Python's own tools do not agree on."""
    for path in LIBRARY.rglob(name):
        if tree_of(path.read_bytes()) is None:
            with pytest.raises(SidelitError) as caught:
                source.read(path)
            assert str(caught.value).startswith(f"{path}:{caught.value.line}: ")
