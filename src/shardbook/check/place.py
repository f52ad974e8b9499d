r"""# The line of the program

> A finding names a line of your own program, and not a line of the libraries that it
> calls.

When a check makes a finding, the stack of calls is deep. The innermost frames belong to
this library or to PyTorch, and the outermost frames to the command that runs the script.
Between them are the frames of your program. The innermost of these is the line to
name.

```
train.py:31    loss.backward()          <- the line that is named
torch/_tensor.py:…  backward
torch/autograd/__init__.py:…  backward
shardbook/zero/hooks.py:…  before_backward
```

A file belongs to your program if it is not in Python's own folder, not in a folder of
installed packages, and not in this library. So the modules in the script's folder
belong to your program. If your model comes from an installed library, the finding names
your line that calls the model.

On a GPU, PyTorch runs a backward pass in a thread of its own. The stack of this thread
does not contain your program. So for such a finding the line of the last
[`backward`](watch_gradients.py) is named.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType

import torch

__all__ = ["Place", "called_by_user", "frames", "is_users", "place"]


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file."""

    file: str
    line: int

    def __str__(self) -> str:
        path = Path(self.file)
        short = (
            path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
        )
        return f"{short}:{self.line}"


def place() -> Place | None:
    """The innermost line of the user's program, or `None` outside of it."""
    found = next((each for each in frames() if is_users(each.f_code.co_filename)), None)
    return None if found is None else Place(found.f_code.co_filename, found.f_lineno)


def called_by_user() -> Place | None:
    """The line of the user's program that directly made the watched call, or `None`.

    If a library made the call, such as PyTorch's `zero_grad`, the user did not write
    it, so there is no line.
    """
    for each in frames():
        file = each.f_code.co_filename
        if not file.startswith(_CHECKS):
            return Place(file, each.f_lineno) if is_users(file) else None
    return None


def frames() -> Iterator[FrameType]:
    """The frames of this thread, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


@cache
def is_users(file: str) -> bool:
    """Whether a file is part of the user's program.

    >>> is_users(sys.modules["torch"].__file__), is_users("<frozen runpy>")
    (False, False)
    >>> is_users("/home/someone/train.py")
    True
    """
    return not (file.startswith(_LIBRARIES) or file.startswith("<"))


def both_ways(path: str) -> set[str]:
    """The path of a folder as written, and with symbolic links resolved."""
    return {str(Path(path)) + "/", str(Path(path).resolve()) + "/"}


_CHECKS = str(Path(__file__).parent) + "/"
# The folders of PyTorch and of this library.
_OURS = tuple(
    folder
    for each in (Path(str(torch.__file__)).parent, Path(__file__).parents[1])
    for folder in both_ways(str(each))
)
# The folders of Python and of installed packages.
_LIBRARIES = (
    *_OURS,
    *(
        folder
        for name in ("stdlib", "platstdlib", "purelib", "platlib")
        for folder in both_ways(sysconfig.get_path(name))
    ),
)
