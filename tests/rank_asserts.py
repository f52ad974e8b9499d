"""Let an assert in a rank say what differed, as pytest does in a test.

pytest rewrites the asserts of a test file when it imports it. A rank imports the file by itself, in a process
where pytest does not run. `ranks` imports this module there first. The names of pytest that are used are not
public; `test_ranks.py` fails if they change.
"""

from __future__ import annotations

from typing import Any

from _pytest.assertion import install_importhook, util
from _pytest.config import get_config

config = get_config()
config.option.verbose = 2
hook = install_importhook(config)
# Beside test files, what they share.
hook.mark_rewrite("book", "peers", "loopback")


def compare(operator: str, left: Any, right: Any) -> str | None:
    """How two operands differ, in the form in which a rewritten assert takes it."""
    for told in config.hook.pytest_assertrepr_compare(config=config, op=operator, left=left, right=right):
        if told:
            return "\n~".join(line.replace("\n", "\\n") for line in told).replace("%", "%%")
    return None


util._reprcompare, util._config = compare, config
