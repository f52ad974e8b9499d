"""The waits in the sources of the book, which tests remove one at a time."""

from __future__ import annotations

import ast
from pathlib import Path

import shardbook

BOOK = Path(str(shardbook.__file__)).parent
WAITS = ("wait", "wait_stream", "wait_event", "synchronize", "arrive")


def waits_in_the_book() -> dict[str, set[str]]:
    """Every call in the sources that makes a stream or the host wait, and the lines it stands on."""
    found = {}
    for file in sorted(BOOK.rglob("*.py")):
        # Programs wait for the end of a checkpoint that is written in the background. What checks a program
        # makes none of its streams wait. A pipeline waits on the host for its messages to go, and
        # test_parallel.py counts them. A lab waits for processes, and so does what starts ranks.
        others = {"state", "train", "finetune_neox", "check", "parallel", "labs", "ranks.py", "forkserver.py"}
        if others & {file.relative_to(BOOK).parts[0], file.name}:
            continue
        for function in ast.walk(ast.parse(file.read_text())):
            # The first makes the host wait, for backends that have no streams. The second keeps gradients
            # from piling up on a device, and test_streaming.py counts them. The third keeps NCCL's kernels
            # from blocking each other, and test_collectives.py looks for it. test_handover.py looks for the
            # fourth, which needs a recomputation on several streams. The last three wait for other
            # processes and for the end of a thread.
            unseen = (
                "watch",
                "has_failed",
                "let_leave",
                "take_turn",
                "hand_over",
                "wait_for",
                "found_in_store",
                "monitor",
            )
            if not isinstance(function, ast.FunctionDef) or function.name in unseen:
                continue
            for node in ast.walk(function):
                match node:
                    # What a class passes on to its parent is another thing of the same name.
                    case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id="super")))):
                        pass
                    case ast.Call(func=ast.Attribute(attr=name)) if name in WAITS:
                        name = f"{file.name}:{node.lineno} {ast.unparse(node)}"
                        lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
                        found[name] = {f"{file.name}:{line}" for line in lines}
    return found
