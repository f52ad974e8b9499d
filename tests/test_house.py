"""The architecture: which folder of a package may import which."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src"
# A folder, or a module that lies in none, imports from itself and from what stands before it.
ORDER = {
    "shardbook": [
        *("command", "foundations", "models", "sketch", "parameters", "guards", "zero", "training"),
        *("precision", "checkpointing", "streaming", "planning", "state", "memory", "parallel", "train"),
        *("finetune_neox", "check", "labs"),
        "__init__",
    ],
    "sidelit": [
        *(
            "errors",
            "interrupts",
            "leftovers",
            "whole_files",
            "workers",
            "kept",
            "packed",
            "records",
            "reading",
            "store",
            "digests",
            "memory",
            "drawings",
            "toml_places",
            "tables",
            "scripts",
            "assets",
            "bundles",
            "breaks",
            "dialects",
            "languages",
            "page_names",
            "requirements",
            "patterns",
            "proofs",
            "chapters",
            "prose_pages",
            "inventories",
            "public",
            "strictness",
            "config",
            "glossary",
            "origin",
            "template_errors",
            "look",
        ),
        *("source", "ids", "names", "text", "symbols", "catalog", "lint", "figures", "interactive", "labs"),
        *("cite", "site", "notebooks"),
        *(
            "cards",
            "adopt",
            "output",
            "versions",
            "pack",
            "slides",
            "book",
            "api",
            "__init__",
            "serve",
            "given",
            "translating",
            "commands",
            "cli",
            "mkdocs_plugin",
        ),
        "__main__",
    ],
}


def imported(path: Path) -> Iterator[str]:
    """The modules that a module imports, wherever it does so."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write the whole name"
            # What comes from the package itself is a module, or a public name of its.
            names = [f"{node.module}.{name.name}" for name in node.names] if node.module in ORDER else []
            yield from names or [node.module or ""]


@pytest.mark.cases(now=1, ci=1)
@pytest.mark.parametrize("package", ORDER)
def test_imports_run_one_way(package: str) -> None:
    order, root = ORDER[package], SRC / package
    upward = []
    for path in sorted(root.rglob("*.py")):
        own = path.relative_to(root).parts[0].removesuffix(".py")
        for name in imported(path):
            first, _, rest = name.partition(".")
            folder = rest.partition(".")[0]
            if first != package or (not (root / folder).exists() and not (root / f"{folder}.py").exists()):
                continue
            if order.index(folder) > order.index(own):
                upward.append(f"{path.relative_to(root)} imports {name}")
    assert upward == []


@pytest.mark.parametrize("package", ORDER)
def test_every_folder_and_every_module_has_its_place(package: str) -> None:
    found = {
        path.stem
        for path in (SRC / package).iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert found == set(ORDER[package])


def test_neither_package_imports_the_other() -> None:
    for package, other in (("shardbook", "sidelit"), ("sidelit", "shardbook"), ("sidelit", "torch")):
        for path in (SRC / package).rglob("*.py"):
            assert not any(name.partition(".")[0] == other for name in imported(path)), path
