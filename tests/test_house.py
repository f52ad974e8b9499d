"""The architecture: which folder of a package may import which."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from sidelit.config import config
from test_chapters import lines_of_code

SRC = Path(__file__).parent.parent / "src"
# A folder, or a module that lies in none, imports from itself and from what stands before it.
ORDER = {
    "shardbook": [
        *("command", "foundations", "models", "sketch", "zero", "training"),
        *("precision", "checkpointing", "streaming", "planning", "state", "memory", "parallel", "train"),
        *("finetune_neox", "check", "labs"),
        "__init__",
    ],
    "sidelit": [
        *(
            "errors",
            "files",
            "workers",
            "cache",
            "config",
            "source",
            "citing",
            "theme",
            "ids",
            "names",
            "text",
        ),
        *("catalog", "symbols", "figures", "lint", "labs", "site", "export", "serve"),
        *("api", "__init__", "cli", "mkdocs_plugin", "__main__"),
    ],
}


# Modules of fewer lines of code than a chapter needs, and why they are modules all the same.
SMALL = {
    "shardbook": {
        "check/__main__.py": "the door of a program",
        "finetune_neox/__main__.py": "the door of a program",
        "train/__main__.py": "the door of a program",
        "labs/__init__.py": "the names that a notebook needs",
    },
    "sidelit": {
        "__init__.py": "the names that a program needs",
        "__main__.py": "the door of the command",
    },
}
# Modules that one other module imports, and that are no chapter of the book.
OF_ONE = {
    "labs/lessons/fifty_lines_compared.py": "a part of a lab's answers, which the others call",
    "labs/lessons/messages.py": "what the checks of a lab share",
    "finetune_neox/finetune.py": "what the door of the program opens",
    "check/check_command.py": "what the door of the program opens",
}
# The state of a step: the class that owns each field, and the only other module that sets it.
OWNERS = {
    ("zero/unit.py", "Unit"): {
        "compiled": "zero/hooks.py",
        "exchanged_as": "zero/unit.py",
        "fresh": "zero/scheduler.py",
        "pins": "training/whole.py",
        "precise": "training/whole.py",
        "usage": "zero/scheduler.py zero/unit.py zero/unused.py",
    },
    ("zero/flat.py", "Flat"): {
        "changes": "state/run_state.py zero/optimizer_guard.py",
        "gathering": "zero/unit.py",
        "hooks": "zero/hooks.py",
        "order": "zero/unit.py",
        "pending": "zero/scheduler.py zero/unused.py",
        "plain": "zero/access.py",
        "reducing": "zero/unit.py",
    },
    ("zero/hooks.py", "Use"): {
        "computed": "zero/hooks.py",
        "inputs": "zero/hooks.py",
        "pair": "zero/hooks.py",
        "to_prefetch": "zero/hooks.py zero/scheduler.py",
    },
    ("zero/hooks.py", "Hooks"): {
        "backward_use": "zero/scheduler.py",
        "expected": "training/whole.py zero/scheduler.py",
        "owes": "zero/scheduler.py",
    },
    ("zero/scheduler.py", "Scheduler"): {
        "going_on": "zero/scheduler.py",
        "in_flight": "zero/scheduler.py",
        "syncing": "training/accumulate.py",
        "thread": "zero/refusals.py",
        "unused_get_zero": "zero/model.py",
        "waited": "zero/scheduler.py",
    },
    ("zero/unused.py", "Usage"): {"late": "zero/unused.py"},
    ("foundations/exchange_order.py", "Order"): {
        "issued": "foundations/exchange_order.py",
        "loaded_alone": "zero/state_dict.py",
    },
}
# Attributes of these names belong to other objects, too: tensors, contexts of autograd, results.
OTHERS = {"calls", "changed", "full", "grad", "group", "last", "name", "place", "units"}


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


def modules(package: str = "shardbook") -> list[Path]:
    return [path for path in sorted((SRC / package).rglob("*.py")) if lines_of_code(path)]


@pytest.mark.parametrize("package", ORDER)
def test_a_module_is_a_subject_and_not_a_slice(package: str) -> None:
    lines = {path.relative_to(SRC / package).as_posix(): lines_of_code(path) for path in modules(package)}
    assert {name for name, count in lines.items() if count < 40} == {*SMALL[package]}
    assert {name: count for name, count in lines.items() if count > 500} == {}


def test_who_is_imported_once_is_a_chapter() -> None:
    by: dict[str, set[str]] = {}
    for path in modules():
        own = path.relative_to(SRC / "shardbook").as_posix()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "shardbook":
                folder = SRC.joinpath(*(node.module or "").split("."))
                for file in (folder.with_suffix(".py"), *(folder / f"{n.name}.py" for n in node.names)):
                    if file.is_file():
                        by.setdefault(file.relative_to(SRC / "shardbook").as_posix(), set()).add(own)
    chapters = {chapter.source for chapter in config.load(SRC.parent / "site" / "sidelit.toml").chapters}
    once = {name for name, users in by.items() if len(users) == 1}
    assert {name for name in once if f"src/shardbook/{name}" not in chapters} <= {*OF_ONE}


@pytest.mark.parametrize("package", ORDER)
def test_no_module_imports_itself_through_others(package: str) -> None:
    """Only types go in a circle, and only within a folder: in `zero` a unit, its vector, its hooks and the
    scheduler know each other. In the press not even types do.
    """
    needs: dict[str, set[str]] = {}
    for path in modules(package):
        tree = ast.parse(path.read_text("utf-8"))
        own = ".".join(path.relative_to(SRC).with_suffix("").parts)
        typed = [
            each
            for node in tree.body
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            for each in node.body
            if isinstance(each, ast.ImportFrom) and (each.module or "").startswith(package)
        ]
        of = {(each.module or "").split(".")[1] for each in typed}
        assert of <= {path.parent.name} if package == "shardbook" else not of or own == "sidelit.__init__", (
            own
        )
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(package):
                inner = {f"{node.module}.{name.name}" for name in node.names}
                needs.setdefault(own, set()).update({node.module or "", *inner})
    order = TopologicalSorter({own: {n for n in them if n in needs} for own, them in needs.items()})
    assert set(order.static_order()) >= {*needs}


def test_each_field_of_a_steps_state_has_one_owner() -> None:
    fields: dict[str, set[str]] = {}
    for (file, owner), outside in OWNERS.items():
        tree = ast.parse((SRC / "shardbook" / file).read_text("utf-8"))
        (found,) = (n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == owner)
        own = {name for name, node in set_in(found) if isinstance(node, ast.Name) and node.id == "self"}
        own |= {
            n.target.id for n in found.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
        }
        assert outside.keys() <= own, (owner, outside.keys() - own)
        for name in own - OTHERS:
            fields.setdefault(name, set()).update(outside.get(name, "").split())
    written: dict[str, set[str]] = {}
    for path in modules():
        for name, of in set_in(ast.parse(path.read_text("utf-8"))):
            if name in fields and not (isinstance(of, ast.Name) and of.id == "self"):
                written.setdefault(name, set()).add(path.relative_to(SRC / "shardbook").as_posix())
    assert written == {name: users for name, users in fields.items() if users}


def set_in(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The attributes that are set, and the objects whose attributes they are."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.value


def test_no_object_of_a_step_is_of_any_type() -> None:
    """Each of them has its class, wherever a function takes one or a variable names one."""
    ours = {"flat", "hooks", "rendezvous", "order", "pair", "scheduler", "site", "unit", "usage", "use"}
    untyped = []
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            name = node.arg if isinstance(node, ast.arg) else None
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                name = node.target.id
            if name in ours and node.annotation is not None and ast.unparse(node.annotation) == "Any":
                untyped.append(f"{path.relative_to(SRC)}:{node.lineno}")
    assert untyped == []
