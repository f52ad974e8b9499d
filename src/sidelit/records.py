"""# Records that are read quickly

> A record is kept as the call that makes it.

A build reads tens of thousands of them that an earlier one has kept. By itself, a dataclass with slots looks
up its fields each time that one is read or written.
"""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter
from typing import Any, TypeVar

Record = TypeVar("Record")


def quick(kind: type[Record]) -> type[Record]:
    """Let `pickle` write a dataclass as a call with its values; it needs two fields at least, each of them an
    argument.
    """
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    values = attrgetter(*names)
    assert len(names) > 1, "attrgetter gives a tuple of two and more"

    def call(record: Any) -> tuple[Any, tuple[Any, ...]]:
        return kind, values(record)

    kind.__reduce__ = call  # type: ignore[method-assign, assignment]
    return kind
