"""Mutation testing: break the training core in many small ways, and see a test fail each time.

    python tools/mutants.py                    # mutants of the whole core, as many as 10 minutes allow
    python tools/mutants.py layout unit        # of these modules alone
    python tools/mutants.py --minutes 60 --seed 1
    python tools/mutants.py --all              # without a limit
    python tools/mutants.py --again            # those that survived the last time, if no source has changed

Cosmic Ray makes the mutants and runs the tests. Of all mutants of one kind at one place in the code it would
try each. One of them is drawn here, because eleven ways to make `a + b` fail say no more than one. The draw
follows from the seed. It takes one mutant of every module first and goes through all modules evenly from then
on, so that the part that a time limit leaves is spread over the core.

The mutants are made in a copy of the working tree, below `build/`. The tests of each run in a Python of their
own, which starts a server of ranks of its own. So what the ranks import is the mutant, too. A mutant is
killed by a test that fails with it and passes without it; the second half is tried once for each test.

`tests/mutants.toml` lists the modules, the tests that prove each, the quickest first, and the mutants that no
test can kill because the program stays the same, each with its reason. If fewer than 95 % of the others are
killed, the command ends with an error.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import difflib
import io
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import time
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import chain, pairwise
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Any

import parso
from cosmic_ray import plugins
from cosmic_ray.commands import init
from cosmic_ray.mutating import mutate_and_test, mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import TestOutcome, WorkItem

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
TREE, SESSION = ROOT / "build" / "mutants" / "tree", ROOT / "build" / "mutants" / "session.sqlite"
CORE = Path("src", "shardbook")
LEFT_OUT = shutil.ignore_patterns(".*", "build", "dist", "__pycache__")
WANTED = 0.95
TEST_SECONDS = 60  # One test that takes longer waits for ever.
PYTEST = [
    sys.executable,
    *f"-m pytest -x -q --no-header -p no:cacheprovider --timeout {TEST_SECONDS}".split(),
    # Also what `make test` leaves to longer runs.
    *("-m", "not gpu"),
]


class DeleteStatement(Operator):
    """Leave out a call, a deletion, an exception or a change of something that exists.

    Cosmic Ray has no such operator. A statement that only gives a new name its value is kept: without it a
    later line fails, which proves nothing.
    """

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:
        if node.type == "simple_stmt" and self.acts(node.children[0]):
            yield node.children[0].start_pos, node.children[0].end_pos

    def acts(self, statement: Any) -> bool:
        """Whether a statement does something else than name a value."""
        if statement.type != "expr_stmt":
            return statement.type in ("atom_expr", "power", "del_stmt", "raise_stmt")
        target, operator = statement.children[0], statement.children[1]
        changes = target.type in ("atom_expr", "power", "testlist_star_expr")
        return operator.type == "operator" and (changes or operator.value != "=")

    def mutate(self, node: Any, index: int) -> Any:
        nothing = parso.parse("pass").children[0]
        nothing.prefix = node.get_first_leaf().prefix
        node.children[0] = nothing
        return node

    @classmethod
    def examples(cls) -> tuple[()]:
        return ()


def made(session: WorkDB, modules: list[str]) -> dict[str, list[WorkItem]]:
    """What may be drawn, by module: the mutants of the code that runs in a right program."""
    init([file_of(CORE, module) for module in modules], session, {})
    found: dict[str, list[WorkItem]] = {module: [] for module in modules}
    for item in session.work_items:
        (mutation,) = item.mutations
        if not any(first <= mutation.start_pos < last for first, last in no_code(mutation.module_path)):
            found[mutation.module_path.stem].append(item)
    return found


def file_of(package: Path, module: str) -> Path:
    """The file of a module of the training core. The checks of a lab may have its name, and are not meant."""
    (file,) = (
        path for path in package.rglob(f"{module}.py") if "labs" not in path.relative_to(package).parts
    )
    return file


@cache
def no_code(path: Path) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """The parts of a module that are for its readers and for the checker of types.

    These are annotations, assertions, the `strict=True` of a `zip`, which is an assertion, too, the bare
    `*` of a signature, and the `slots=True` of a record, which keeps a writer from a name that is no field.
    """
    parts: list[Any] = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        parts += [getattr(node, "annotation", None), getattr(node, "returns", None)]
        if isinstance(node, ast.Assert) or (
            isinstance(node, ast.keyword) and node.arg in ("strict", "slots")
        ):
            parts.append(node)
    found = [((p.lineno, p.col_offset), (p.end_lineno, p.end_col_offset)) for p in parts if p is not None]
    tokens = list(tokenize.generate_tokens(io.StringIO(path.read_text("utf-8")).readline))
    bare = (one for one, after in pairwise(tokens) if one.string == "*" and after.string == ",")
    return found + [(one.start, one.end) for one in bare]


def drawn(made: dict[str, list[WorkItem]], seed: int) -> list[WorkItem]:
    """One mutant of each kind at each place, in the order in which they are tried."""
    order = []
    for module, items in made.items():
        chance = random.Random(f"{seed} {module}")
        places: dict[Any, list[WorkItem]] = {}
        for item in sorted(items, key=nature):
            start, kind, _ = nature(item)
            places.setdefault((start, kind.partition("_")[0]), []).append(item)
        chosen = [chance.choice(same) for same in places.values()]
        chance.shuffle(chosen)
        order += [((i + chance.random()) / len(chosen) if i else 0, item) for i, item in enumerate(chosen)]
    return [item for _, item in sorted(order, key=lambda pair: pair[0])]


def nature(item: WorkItem) -> tuple[tuple[int, int], str, int]:
    """What tells a mutant from the others of its module."""
    (mutation,) = item.mutations
    return mutation.start_pos, mutation.operator_name, mutation.occurrence


def difference(item: WorkItem) -> tuple[str, str] | None:
    """The lines that a mutant changes, as they are and as they become; nothing if it is no program.

    To Cosmic Ray the star in a list of parameters is an operator, too.
    """
    (mutation,) = item.mutations
    before = mutation.module_path.read_text("utf-8")
    after = mutate_code(before, plugins.get_operator(mutation.operator_name)(), mutation.occurrence)
    try:
        compile(after, str(mutation.module_path), "exec")
    except SyntaxError:
        return None
    lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), n=0))[3:]
    was, becomes = ("\n".join(line[1:].strip() for line in lines if line[0] == sign) for sign in "-+")
    return was, becomes


@cache
def passes(*tests: str) -> bool:
    """Whether these tests pass without a mutant."""
    return subprocess.run([*PYTEST, *tests], capture_output=True, check=False).returncode == 0


def killer(output: str, tests: list[str]) -> list[str]:
    """The test that failed, or the file that could not be imported; all tests, if their process died."""
    found = re.search(r"^(?:FAILED|ERROR) (\S+?\.py(?:::.*?)?)(?: - .*)?$", output, re.MULTILINE)
    return [found[1]] if found else tests


def attempt(item: WorkItem, tests: list[str], session: WorkDB) -> str:
    """Run the tests with a mutant: the test that fails, or nothing if it survives."""
    result = mutate_and_test(item.mutations, shlex.join([*PYTEST, *tests]), timeout=3600)
    session.set_result(item.job_id, result)
    if result.test_outcome is TestOutcome.SURVIVED:
        return ""
    failed = killer(str(result.output), tests)
    if not passes(*failed):
        sys.exit(f"{', '.join(failed)} fails without a mutant, too; mend it first")
    # A mutant may ask for all of the machine's memory.
    return failed[0] if len(failed) == 1 else "the end of the process of the tests"


def survivors(session: WorkDB) -> list[WorkItem]:
    """What survived when it was tried the last time."""
    return [i for i, result in session.completed_work_items if result.test_outcome is TestOutcome.SURVIVED]


def run(
    items: list[WorkItem], table: dict[str, Any], seconds: float, session: WorkDB
) -> dict[str, Counter[str]]:
    """Try mutants until the time is over, tell of each, and count for each module what became of them."""
    end = time.monotonic() + seconds
    counts: dict[str, Counter[str]] = {module: Counter() for module in table["tests"]}
    equivalent = {(e["module"], e["was"], becomes) for e in table["equivalent"] for becomes in e["becomes"]}
    for item in items:
        module, line = item.mutations[0].module_path.stem, item.mutations[0].start_pos[0]
        if (changed := difference(item)) is None:
            continue
        was, becomes = changed
        counts[module]["mutants"] += 1
        if (module, was, becomes) in equivalent:
            counts[module]["equivalent"] += 1
        elif time.monotonic() < end:
            special = [tests for part, tests in table["lines"].items() if part in was]
            tests = chain(*special, table["tests"][module], table["everywhere"])
            test = attempt(item, list(dict.fromkeys(tests)), session)
            counts[module]["killed" if test else "survived"] += 1
            fate = f"killed by {test}" if test else f"SURVIVED\n  - {was}\n  + {becomes}"
            print(f"{module}.py:{line} {fate}", flush=True)
    return {module: count for module, count in counts.items() if count}


def told(counts: dict[str, Counter[str]]) -> float:
    """Print the table, and give the part of the mutants that was killed."""
    columns = ["mutants", "equivalent", "tried", "killed", "survived"]
    print("\n" + "".join(f"{name:>12}" for name in ["module", *columns, "score"]))
    score = 1.0
    for name, count in [*counts.items(), ("all", sum(counts.values(), Counter()))]:
        count["tried"] = count["killed"] + count["survived"]
        score = count["killed"] / count["tried"] if count["tried"] else 1.0
        shown = f"{score:.1%}" if count["tried"] else "-"
        print("".join(f"{cell:>12}" for cell in [name, *(count[column] for column in columns), shown]))
    return score


def copied() -> None:
    """Make the copy of the working tree anew, and let this program and its tests run in it."""
    shutil.rmtree(TREE, ignore_errors=True)
    shutil.copytree(ROOT, TREE, ignore=LEFT_OUT)
    os.chdir(TREE)
    # Files are compiled once, and what was compiled is used only if its source is still the same.
    compileall.compile_dir(".", quiet=1, invalidation_mode=PycInvalidationMode.CHECKED_HASH)
    os.environ.update(PYTHONPATH=str(TREE / "src"), PYTHONDONTWRITEBYTECODE="1")


def arguments(known: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="all by default")
    parser.add_argument("--minutes", type=float, default=10.0, help="begin no mutant later (default: 10)")
    parser.add_argument("--seed", type=int, default=0, help="what the draw follows from (default: 0)")
    parser.add_argument("--all", action="store_true", help="try all that are drawn, however long it takes")
    parser.add_argument("--again", action="store_true", help="try those that survived the last time")
    chosen = parser.parse_args()
    if unknown := [module for module in chosen.modules if module not in known]:
        parser.error(f"no such module in tests/mutants.toml: {', '.join(unknown)}")
    return chosen


def main() -> None:
    """Run the command line."""
    table = tomllib.loads((ROOT / "tests" / "mutants.toml").read_text("utf-8"))
    chosen = arguments([*table["tests"]])
    plugins.OPERATOR_PROVIDERS["shardbook"] = {"DeleteStatement": DeleteStatement}
    copied()
    with use_db(SESSION) as session:
        if chosen.again:
            items = survivors(session)
        else:
            items = drawn(made(session, chosen.modules or [*table["tests"]]), chosen.seed)
        print(f"{len(items)} mutants, seed {chosen.seed}", flush=True)
        score = told(run(items, table, float("inf") if chosen.all else chosen.minutes * 60, session))
    if score < WANTED:
        sys.exit(f"{score:.1%} of the mutants are killed, fewer than {WANTED:.0%}")


if __name__ == "__main__":
    main()
