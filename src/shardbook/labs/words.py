r"""# The text output of a lab

> A lab prints sentences in the reader's language, the reader's own lines of an error,
> and progress bars.

A check prints what is wrong, and a plot has labels. Both stand in the code in English:

```python
tell("{count} ranks failed.", count=2)
```

[`tell`](#tell) looks the English sentence up in a catalogue of
[`gettext`](https://docs.python.org/3/library/gettext.html), and fills the blanks
afterwards. So a translation may put the blanks in another order. A sentence without a
translation stays English.

[The language](#module/the-language-of-a-lab) usually follows from the notebook's
folder. Two kinds of output need more than a catalogue: [the lines of an
error](#module/the-readers-own-lines) and [a progress bar](#module/a-progress-bar).

`python tools/lab_words.py` collects the sentences from the code. A test fails as long
as a translation is missing, or belongs to a sentence that has changed.
"""

from __future__ import annotations

import gettext
import linecache
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, TypeVar
from weakref import WeakSet

import torch.distributed as dist
from tqdm.std import tqdm

from shardbook.check.watches import is_users
from shardbook.foundations.ranks import Frame, frames_of

__all__ = [
    "CATALOGUES",
    "Frame",
    "Waiting",
    "is_blank_line",
    "known",
    "language",
    "line_of",
    "own",
    "progress",
    "say",
    "sentences",
    "show",
    "spoken",
    "tell",
]


def tell(text: str, /, **values: Any) -> str:
    """A sentence in the language of the lab.

    :param text: the sentence in English, with blanks such as `{count}`; a literal, since
        the tool reads it from the code
    :param values: what stands in the blanks

    >>> tell("{count} ranks failed.", count=2)
    '2 ranks failed.'
    """
    return sentences(language()).gettext(text).format(**values)


@cache
def sentences(code: str) -> gettext.NullTranslations:
    """The catalogue of a language; for English one that changes nothing."""
    return gettext.translation("labs", CATALOGUES, languages=[code], fallback=True)


# ## The language of a lab
#
# > A lab says its sentences in the language of the notebook, whose code is the same in each.
#
# The notebook of a lab exists in English, in Japanese and in Chinese. Only its text is
# translated. The code cells are the same bytes, so no cell can say which language it
# belongs to. The notebooks lie in a folder for each language, and the name of that folder
# decides:
#
# ```
# notebooks/en/01_where_memory_goes.ipynb
# notebooks/ja/01_where_memory_goes.ipynb
# notebooks/zh/01_where_memory_goes.ipynb
# ```
#
# Four places are read, in this order: the environment variable `SHARDBOOK_LANG`, the
# notebook's path, a mark that [Colab](https://colab.research.google.com) hands over with
# the notebook, and the working folder. The first place that names a known language wins.
# In a language that a lab does not speak, it speaks English.


# A folder here holds the sentences in its language. The sentences in the code are
# English.
CATALOGUES = Path(__file__).parent / "locale"


def language() -> str:
    """The language of this lab: `"en"`, `"ja"`, `"zh"`, or another one with a catalogue.

    >>> os.environ["SHARDBOOK_LANG"] = "ja_JP.UTF-8"
    >>> language()
    'ja'
    >>> os.environ["SHARDBOOK_LANG"] = "fr"
    >>> language()
    'en'
    >>> del os.environ["SHARDBOOK_LANG"]
    """
    # Somebody who sets the variable wants this language, or the nearest that exists.
    if wanted := os.environ.get("SHARDBOOK_LANG"):
        return known(wanted) or "en"
    named = (known(name) for name in folders())
    return next((found for found in named if found), "en")


def known(name: str) -> str:
    """The language that a name means, or an empty string.

    >>> known("zh_CN"), known("JA"), known("english"), known("../ja")
    ('zh', 'ja', '', '')
    """
    code = name.lower().replace("-", "_").partition("_")[0]
    return code if code in spoken() else ""


def spoken() -> list[str]:
    """The languages that a lab speaks.

    >>> spoken()
    ['en', 'ja', 'zh']
    """
    catalogues = CATALOGUES.glob("*/LC_MESSAGES/labs.mo")
    return ["en", *sorted(each.parents[1].name for each in catalogues)]


def folders() -> Iterator[str]:
    """The names that may be languages, the best witness first."""
    variables = notebook_variables()
    # Jupyter tells a kernel the path of its notebook in the environment, and VS Code in
    # a variable of the notebook.
    for path in (
        variables.get("__vsc_ipynb_file__"),
        os.environ.get("JPY_SESSION_NAME"),
    ):
        if path:
            # A path from Windows may be read on Linux, such as in WSL.
            yield PurePosixPath(str(path).replace("\\", "/")).parent.name
    yield mark_of_colab()
    yield Path.cwd().name


def notebook_variables() -> Mapping[str, Any]:
    """The variables of the notebook, none outside of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return {} if shell is None else shell.user_ns


# sidelit: depth Colab copies a notebook without its folder.


def mark_of_colab() -> str:
    """The language in the notebook's own metadata, `{"lang": "ja"}`.

    In Colab all notebooks run in the same folder, under no name. But the page in the
    browser hands the whole notebook to a kernel that requests it.
    """
    if "google.colab" not in sys.modules:
        return ""
    # The function is not public. Without it the lab goes on, in English.
    with suppress(Exception):
        from google.colab import (  # type: ignore[import-not-found]
            _message,
        )

        answer = _message.blocking_request("get_ipynb", request="", timeout_sec=5)
        return str(answer["ipynb"]["metadata"]["lang"])
    return ""


# sidelit: core


# ## The reader's own lines
#
# > An error shows the lines that the reader wrote, and not the layers of libraries below.
#
# Suppose that a cell calls an all-gather with a wrong shape. The traceback has twelve
# frames, and eleven of them belong to PyTorch and to this library. The reader wrote
# one, which is the line to change. So a lab shows the [lines of the reader's own
# program](watches.py#module/the-line-of-the-program), and after them the last frame of
# all, where the error was raised.
#
# A frame from another process arrives as a file, a line number and a function. For a cell
# Jupyter invents a file, such as `/tmp/ipykernel_411/2874.py`. Only the notebook's kernel
# knows the number and the text of that cell, so the frames are turned into text there.


def line_of(frame: Frame) -> str:
    """A line that was running: its place, and its text."""
    place = tell("{file}, line {line}", file=name_of(frame.file), line=frame.line)
    code = linecache.getline(frame.file, frame.line).strip()
    within = "" if frame.function == "<module>" else f" ({frame.function})"
    return f"  {place}{within}" + (f"\n    {code}" if code else "")


def is_blank_line(error: BaseException) -> bool:
    """Whether an error comes from the line that a lab puts in the place of a solution.

    The line is `raise NotImplementedError()`. PyTorch raises errors of the same class,
    but says in words what is missing.
    """
    if type(error) is not NotImplementedError or error.args:
        return False
    frames = frames_of(error.__traceback__)
    return bool(frames) and is_users(frames[-1].file)


def own(frames: Iterable[Frame]) -> list[Frame]:
    """The frames of the reader's program."""
    return [frame for frame in frames if is_users(frame.file)]


def show(frames: Sequence[Frame]) -> str:
    """The reader's own frames and the innermost one, a line or two for each.

    Dots stand for the frames that are left out.

    >>> print(show([Frame("a.py", 3, "work"), Frame(threading.__file__, 2, "inner")]))
    ... # doctest: +ELLIPSIS
      a.py, line 3 (work)
      ...threading.py, line 2 (inner)
    """
    kept: list[str] = []
    skipped = False
    for number, frame in enumerate(frames):
        if is_users(frame.file) or number == len(frames) - 1:
            kept += ["  …"] * skipped + [line_of(frame)]
            skipped = False
        else:
            skipped = bool(kept)
    return "\n".join(kept)


def name_of(file: str) -> str:
    """A file as the reader knows it.

    A cell has its number, an installed file its path in the package, and another one its
    path in the working folder.
    """
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None and (named := shell.compile.format_code_name(file)):
        return " ".join(named)
    for installed in ("/site-packages/", "/dist-packages/"):
        if installed in file:
            return file.rpartition(installed)[2]
    path = Path(file)
    near = path.is_relative_to(Path.cwd())
    return str(path.relative_to(Path.cwd()) if near else path)


# ## A progress bar
#
# > A loop that takes longer than a second shows how far it is, and the bar leaves nothing
# > behind.
#
# ```python
# for step in labs.progress(range(200), "training"):
#     ...
# ```
#
# The bar is that of [tqdm](https://tqdm.github.io). Left to itself, tqdm writes to
# `stderr`, and a notebook shows that in red. It also starts a thread, and on some systems
# a process. This one writes to `stdout`, and it starts neither.
#
# At the end the bar is removed, since the time in it is another one in each run. So what
# a cell shows afterwards does not depend on how fast it was.
#
# There is a bar in a notebook and in a terminal. In a file and in a rank it would be many
# lines of text, so there is none. While ranks compute, the notebook shows the time that
# they have taken. In a loop with a bar, that bar shows it.


Item = TypeVar("Item")

# Seconds until the bar appears.
DELAY = 1.0
# Signs in a line. A notebook does not say how wide it is.
WIDTH = 72


class Bar(tqdm):  # type: ignore[misc]
    """A bar without a thread that watches it."""

    monitor_interval = 0
    shown: ClassVar[WeakSet[Bar]] = WeakSet()

    def __init__(self, *items: Any, **options: Any) -> None:
        super().__init__(*items, **options)
        if not self.disable:
            self.shown.add(self)

    def close(self) -> None:
        """Remove the bar."""
        self.shown.discard(self)
        super().close()


# The usual lock is shared with other processes, and some systems start one to free it.
Bar.set_lock(threading.RLock())


def progress(
    items: Iterable[Item], text: str = "", total: int | None = None
) -> Iterable[Item]:
    """The same items, and a bar that grows while they are taken.

    :param text: stands before the bar
    :param total: the number of items, if `len(items)` is not known

    >>> sum(progress(range(4)))
    6
    """
    bar: Any = Bar(
        items,
        desc=text or None,
        total=total,
        file=sys.stdout,
        disable=not is_watched(),
        delay=DELAY,
        ncols=WIDTH,
        leave=False,
    )
    return bar  # type: ignore[no-any-return]


class Waiting:
    """A line with the seconds that something takes, after the first of them.

    :param text: stands before the time
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.appears = time.monotonic() + DELAY
        self.bar: Any = None

    def tick(self) -> None:
        """Show the time that has passed until now."""
        if time.monotonic() < self.appears or not is_watched():
            return
        if not Bar.shown:
            self.bar = Bar(
                desc=self.text,
                bar_format="{desc}: {elapsed}",
                file=sys.stdout,
                leave=False,
            )
            # The time counts from the beginning, and not from the first sight of it.
            self.bar.start_t -= DELAY
        for bar in list(Bar.shown):
            bar.refresh()

    def close(self) -> None:
        """Remove the line."""
        if self.bar is not None:
            self.bar.close()


def say(line: str) -> None:
    """Print a line above the bars."""
    Bar.write(line, file=sys.stdout)
    sys.stdout.flush()


def is_watched() -> bool:
    """Whether somebody sees a line that is written over."""
    if dist.is_initialized():
        return False
    ipython = sys.modules.get("IPython")
    return sys.stdout.isatty() or bool(ipython and ipython.get_ipython())
