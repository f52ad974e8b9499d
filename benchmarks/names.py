"""# Are the links in code right?

> Every link of the press is compared with what mypy says about the same name, on this book and on packages of
> other people.

    python -m benchmarks.names                       # this project
    python -m benchmarks.names jinja2 click          # packages of this environment
    python -m benchmarks.names --wrong 20 jinja2     # and the links that mypy contradicts

mypy says for each name and each attribute what it refers to, or nothing, as in annotations. Of a link to
another distribution, the two dotted names must give the same object when they are imported.
"""

from __future__ import annotations

import argparse
import ast
import collections.abc
import importlib.util
import pydoc
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from mypy.dmypy_server import Server
from mypy.find_sources import create_source_list
from mypy.options import Options

from sidelit.config import config
from sidelit.names import library
from sidelit.names.library import Written
from sidelit.names.links import Definition, Names

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Answer:
    """What mypy says: the file and the line of a definition, and its name."""

    path: str
    line: int
    name: str


@dataclass(slots=True)
class Tally:
    """What a comparison found; the links that mypy contradicts, with what both say."""

    names: int = 0
    links: int = 0
    right: int = 0
    unknown: int = 0
    wrong: list[str] = field(default_factory=list)

    @property
    def precision(self) -> float:
        judged = self.right + len(self.wrong)
        return self.right / judged if judged else 1.0

    @property
    def coverage(self) -> float:
        return self.links / self.names if self.names else 1.0


class Oracle:
    """mypy's daemon, within this process."""

    def __init__(self, paths: Sequence[Path]) -> None:
        options = Options()
        options.export_types = options.check_untyped_defs = options.namespace_packages = True
        options.ignore_errors = options.ignore_missing_imports = True
        options.incremental = options.fine_grained_incremental = True
        options.use_fine_grained_cache = options.cache_fine_grained = False
        options.local_partial_types = options.preserve_asts = True
        options.native_parser = False
        options.python_executable = sys.executable
        options.cache_dir = "/dev/null"
        self.server = Server(options, "")
        sources = create_source_list([str(each) for each in paths], options)
        self.server.check(sources, export_types=True, is_tty=False, terminal_width=80)

    def ask(self, path: str, line: int, column: int) -> list[Answer]:
        """What the name in a place means; columns count bytes, from 1."""
        said = self.server.cmd_inspect("definition", f"{path}:{line}:{column}", limit=1, include_span=True)
        text = str(said.get("out", "")).strip()
        if " -> " not in text:
            return []
        span, _, found = text.partition(" -> ")
        # What ends elsewhere is another expression than the name that was asked for.
        if span.split(":")[2:] != [str(line), str(column)]:
            return []
        answers = []
        for each in found.split(", "):
            place, row, _, name = each.rsplit(":", 3)
            # What mypy makes itself, as the fields of a `NamedTuple`, has no line.
            if int(row) >= 0:
                answers.append(Answer(place, int(row), name))
        return answers


def compare(written: Sequence[Written], documented: Mapping[str, str]) -> Tally:
    """Compare all links of these files."""
    names, tally = Names(written), Tally()
    oracle = Oracle([Path(each.path) for each in written])
    for each in written:
        links, file = names.links(each.path), library.read(each)
        if file is None:
            continue
        tally.names += sum(
            1 for node, _ in file.survey.uses if getattr(node, "id", "") not in ("self", "cls")
        )
        for line, row in links.items():
            text = file.lines[line - 1]
            for link in row:
                if isinstance(link.to, str) and not library.address(documented, link.to):
                    continue
                tally.links += 1
                known = oracle.ask(each.path, line, len(text[: link.start + len(link.text)].encode()))
                where = f"{each.path}:{line}:{link.start + 1} {link.text}"
                _judge(tally, link.to, known, where)
    return tally


def _judge(tally: Tally, to: Definition | str, known: Sequence[Answer], where: str) -> None:
    if not known:
        tally.unknown += 1
    elif any(_agrees(to, each) for each in known):
        tally.right += 1
    else:
        said = ", ".join(f"{each.name} {each.path}:{each.line}" for each in known)
        ours = to if isinstance(to, str) else f"{to.qualname} {to.path}:{to.line}"
        tally.wrong.append(f"{where}: the link leads to {ours}, mypy says {said}")


def _agrees(to: Definition | str, said: Answer) -> bool:
    if isinstance(to, Definition):
        if to.kind == "module":
            return to.path == said.path and said.line <= 1
        if to.kind in ("variable", "parameter"):
            # mypy takes a local name for the module of that name, and knows only the first binding of it.
            return said.name == to.qualname.rpartition(".")[2] and said.line in _bindings(to)
        return to.path == said.path and said.line in _lines(to.path).get(to.line, range(to.line, to.line + 1))
    last = to.rpartition(".")[2]
    if said.name.rpartition(".")[2] != last:
        one, other = pydoc.locate(to), pydoc.locate(said.name)
        return one is not None and one is other
    around, ours = _around(said.path, said.line), to.rpartition(".")[0]
    if not around:
        return True
    kind, abstract = pydoc.locate(ours), getattr(collections.abc, around, object)
    mro = getattr(kind, "__mro__", ())
    above = any(each.__name__ == around for each in mro) or ours.endswith(around)
    return above or (abstract is not object and bool(mro) and issubclass(mro[0], abstract))


@cache
def _file(path: str) -> library.File | None:
    return library.read(Written(path, path, Path(path)))


def _bindings(to: Definition) -> set[int]:
    """The lines that bind the variable of a definition."""
    found = {to.line}
    file = _file(to.path)
    top = [file.survey.top] if file else []
    for scope in (*top, *(inner for each in top for inner in each.inner.values())):
        bound = scope.bindings.get(to.qualname.rpartition(".")[2], [])
        if any((each.line, each.qualname) == (to.line, to.qualname) for each in bound):
            found.update(each.line for each in bound)
    return found


@cache
def _lines(path: str) -> Mapping[int, range]:
    """From the line of each definition, its lines from the first decorator on."""
    return {
        node.lineno: range(
            min([node.lineno, *(each.lineno for each in node.decorator_list)]), node.lineno + 1
        )
        for node in ast.walk(ast.parse(Path(path).read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }


@cache
def _classes(path: str) -> list[tuple[range, str]]:
    tree = ast.parse(Path(path).read_text("utf-8"))
    return [
        (range(node.lineno + 1, (node.end_lineno or 0) + 1), node.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    ]


def _around(path: str, line: int) -> str:
    """The class that a line of a file stands in."""
    found = [(len(lines), name) for lines, name in _classes(path) if line in lines]
    return min(found)[1] if found else ""


def project() -> tuple[list[Written], Mapping[str, str]]:
    """The chapters of this project, and the names that it knows from outside."""
    made = config.load(config.find(ROOT))
    written = [
        Written(
            str(made.project / each.source),
            each.module,
            (made.project / each.source).read_text("utf-8"),
            each.source.endswith("__init__.py"),
        )
        for each in made.chapters
    ]
    return written, library.addresses(made.inventories, made.folder, "site")


def package(name: str, copies: Path) -> list[Written]:
    """The files of an installed package, copied, since mypy takes no installed package for a project."""
    found = importlib.util.find_spec(name)
    if found is None or not found.submodule_search_locations:
        sys.exit(f"there is no package {name} here")
    folder = Path(shutil.copytree(found.submodule_search_locations[0], copies / name))
    written = []
    for path in sorted(folder.rglob("*.py")):
        parts = (name, *path.relative_to(folder).with_suffix("").parts)
        inside = parts[-1] == "__init__"
        module = ".".join(parts[:-1] if inside else parts)
        written.append(Written(str(path), module, path.read_text("utf-8"), inside))
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0].lstrip("# "))
    parser.add_argument("packages", nargs="*", help="packages of this environment; without any, this project")
    parser.add_argument("--wrong", type=int, default=10, metavar="N", help="show so many wrong links")
    given = parser.parse_args()
    print(f"{'':16}{'names':>8}{'links':>8}{'judged':>8}{'wrong':>7}{'precision':>11}{'coverage':>10}")
    for name in given.packages or ["this project"]:
        with tempfile.TemporaryDirectory() as copies:
            written, documented = (package(name, Path(copies)), {}) if given.packages else project()
            tally = compare(written, documented)
        judged = tally.right + len(tally.wrong)
        print(
            f"{name:16}{tally.names:8}{tally.links:8}{judged:8}{len(tally.wrong):7}"
            f"{tally.precision:11.4%}{tally.coverage:10.1%}"
        )
        for each in tally.wrong[: given.wrong]:
            print(f"  {each}")


if __name__ == "__main__":
    main()
