r"""# The notebook of a lab

> The notebook of a lab looks at its machine, checks the reader's answers, and draws
> plots.

A lab is a notebook with exercises. Below each exercise [a
check](#module/checking-an-answer) says what is wrong with the answer, and
[plots](#module/the-plots-of-a-lab) show results. The first cell prints what is
installed, how many cores and GPUs there are, and where the ranks will run:

```
Python 3.11.7, PyTorch 2.13.0, CPU cores: 2, no GPU
A lab starts 2 to 4 ranks, on the CPU. gloo connects them.
The random seed is 0, here and in every rank.
The language is en. For another one of en, ja, zh, set SHARDBOOK_LANG.
```

A lab runs on every such machine without a changed line, but it is slower on some, and a
plot may be missing. So a sentence below the list says what is missing, before the reader
waits for it. Nothing is downloaded.

The cell also starts the [server of the ranks](forkserver.py). It imports PyTorch while
the reader reads the first paragraph.
"""

from __future__ import annotations

import dis
import importlib.util
import inspect
import os
import platform
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import FunctionType, TracebackType
from typing import TYPE_CHECKING, Any

import torch

from shardbook.foundations.ranks import frames_of
from shardbook.labs.lab_ranks import gpus, warm_up
from shardbook.labs.rank_process import SEED, Raised, RanksFailed, left_blank
from shardbook.labs.words import is_blank_line, language, line_of, own, spoken, tell

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "COLOURS",
    "FONTS",
    "LINES",
    "Check",
    "NotYet",
    "begin",
    "check",
    "expect",
    "figure",
    "font",
    "label",
    "show_as_svg",
]


def begin() -> None:
    """Prepare the lab, and print what was found."""
    torch.manual_seed(SEED)
    random.seed(SEED)
    show_sentences_alone()
    if importlib.util.find_spec("matplotlib"):
        show_as_svg()
    warm_up()
    for line in (*found(), *missing()):
        print(line)


def found() -> Iterator[str]:
    """What a lab has to work with."""
    count = gpus()
    devices = (
        tell("GPUs: {count} ({name})", count=count, name=torch.cuda.get_device_name(0))
        if count
        else tell("no GPU")
    )
    python, cores = (
        platform.python_version(),
        tell("CPU cores: {count}", count=cpu_cores()),
    )
    yield f"Python {python}, PyTorch {torch.__version__}, {cores}, {devices}"
    if count == 0:
        yield tell("A lab starts 2 to 4 ranks, on the CPU. gloo connects them.")
    elif count == 1:
        yield tell(
            "A lab starts 2 to 4 ranks, which share the GPU. gloo connects them."
        )
    else:
        yield tell(
            "A lab starts 2 to 4 ranks. Up to {count} have a GPU each, and NCCL connects "
            "them. More ranks share the GPUs, and gloo connects them.",
            count=count,
        )
    yield tell("The random seed is {seed}, here and in every rank.", seed=SEED)
    yield tell(
        "The language is {language}. For another one of {codes}, set SHARDBOOK_LANG.",
        language=language(),
        codes=", ".join(spoken()),
    )


def missing() -> Iterator[str]:
    """What a lab will do without, a sentence each."""
    if not hasattr(os, "fork"):
        yield tell("Ranks need Linux or macOS. On Windows, start the lab in WSL.")
    if cpu_cores() == 1:
        yield tell("The ranks share one core, so a lab takes longer than it says.")
    if importlib.util.find_spec("matplotlib") is None:
        yield tell("matplotlib is missing: pip install 'shardbook[notebooks]'")


def cpu_cores() -> int:
    """The cores that this process may use, which a container may limit."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# sidelit: depth In a script, a check says its sentences without a traceback, too.


def show_sentences_alone() -> None:
    """Let Python print the errors of a lab as a notebook shows them."""
    before = sys.excepthook

    def hook(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if isinstance(error, NotYet | RanksFailed):
            print(*error._render_traceback_(), sep="\n", file=sys.stderr)
        else:
            before(kind, error, trace)

    sys.excepthook = hook


# sidelit: core


# ## Checking an answer
#
# > A check calls what the reader wrote, and says what is wrong with it and where to look.
#
# A lab leaves blanks, and below each blank there is a check. Here is one, with the function
# that it checks:
#
# ```python
# @check
# def bytes_of_adamw(given):
#     expect(
#         given(1000) == 16_000,
#         tell("1,000 parameters take 16,000 bytes, not {found:,}.", found=given(1000)),
#         look=tell("Which four numbers does AdamW store for a parameter?"),
#     )
# ```
#
# A cell of the notebook runs `bytes_of_adamw()`. The check looks up the reader's variable
# of the same name. If the answer is right, it prints one line. Otherwise it raises
# [`NotYet`](#NotYet), and the notebook shows two sentences instead of a traceback.
#
# Three other things may happen, and each has sentences of its own: the blank is still
# empty, the reader's function raises an error, or it returns something that cannot be
# compared. An autograder such as nbgrader sees a cell that failed, in each case. Only the
# line of the blank itself counts as an empty blank: PyTorch raises the same class of error,
# such as for an operation that a device does not have.


class NotYet(Exception):
    """An answer that is not right yet.

    :param what: what is wrong, in one or two sentences
    :param look: where to look for the reason
    """

    def __init__(self, what: str, look: str = "") -> None:
        self.what, self.look = what, look
        super().__init__("\n".join(filter(None, (what, look))))

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows instead of a traceback."""
        return [f"✗ {self.what}", *([f"→ {self.look}"] if self.look else [])]


def expect(condition: object, what: str, look: str = "") -> None:
    """Go on if the condition holds.

    :raises NotYet: otherwise

    >>> expect(2 + 2 == 4, "Two and two are four.")
    >>> expect(2 + 2 == 5, "Two and two are not five.", look="Count on your fingers.")
    Traceback (most recent call last):
        ...
    shardbook.labs.notebook.NotYet: Two and two are not five.
    Count on your fingers.
    """
    if not condition:
        raise NotYet(what, look)


class Check:
    """A check of one exercise.

    :param function: calls `expect`; may return a sentence for a right answer. Its
        parameters are the names of the reader's variables. A parameter `given` means
        the variable that is named like the check
    """

    def __init__(self, function: Callable[..., str | None]) -> None:
        self.function = function
        self.name = function.__name__
        self.__doc__ = function.__doc__
        parameters = inspect.signature(function).parameters
        self.names = [self.name if each == "given" else each for each in parameters]

    def __call__(self, *given: Any) -> None:
        """Check the answers, by default those of the calling cell.

        :raises NotYet: if an answer is missing or not right
        """
        answers = given or self.found(sys._getframe(1).f_globals)
        for name, answer in zip(self.names, answers, strict=True):
            if is_blank(answer):
                raise blank(name)
        try:
            praise = self.function(*answers)
        except NotYet:
            raise
        # The cell shows the sentences alone, and not how they were found. A script that an
        # answer has left would end as if all answers were right.
        except (Exception, SystemExit) as error:
            raise self.sentence(error) from None
        print("✓", praise or tell("{name} is right.", name=self.name))

    def found(self, variables: Mapping[str, Any]) -> list[Any]:
        """The reader's answers among the variables of a cell."""
        for name in self.names:
            if name not in variables:
                raise blank(name)
        return [variables[name] for name in self.names]

    def sentence(self, error: BaseException) -> NotYet:
        """An error that the answer has caused, in words."""
        name = ", ".join(self.names)
        if is_blank_line(error):
            return blank(name)
        if isinstance(error, RanksFailed):
            first = error.outcomes[0].failure
            if left_blank(first):
                return blank(name)
            # A check that runs on the ranks calls `expect` there.
            if isinstance(first, Raised) and first.kind == NotYet.__name__:
                what, _, look = first.text.partition("\n")
                return NotYet(what, look)
            return NotYet(tell("{name} fails on the ranks:", name=name), str(error))
        said = f"{type(error).__name__}: {error}"
        lines = own(frames_of(error.__traceback__))
        if lines:
            return NotYet(
                tell("{name} raises {error}", name=name, error=said),
                tell("The error was raised here:") + f"\n{line_of(lines[-1])}",
            )
        return NotYet(
            tell("{name} cannot be checked: {error}", name=name, error=said),
            tell("Which arguments should {name} take, and what return?", name=name),
        )


def check(function: Callable[..., str | None]) -> Check:
    """Make a check of a function that calls [`expect`](#expect)."""
    return Check(function)


def blank(name: str) -> NotYet:
    return NotYet(
        tell("{name} is still blank.", name=name),
        tell("Fill in the cell above, and run it before this one."),
    )


def is_blank(answer: object) -> bool:
    """Whether the reader has written nothing yet.

    >>> def empty():
    ...     "What it should do."
    ...     ...
    >>> is_blank(empty), is_blank(...), is_blank(0), is_blank(len)
    (True, True, False, False)
    """
    if not isinstance(answer, FunctionType):
        return answer is ...
    # Such a function consists of a single action: it returns `None`.
    marks = {"RESUME", "NOP", "CACHE"}
    code = [each for each in dis.get_instructions(answer) if each.opname not in marks]
    return len(code) <= 2 and code[0].argval is None


# ## The plots of a lab
#
# > A plot has labels in the reader's language, colours that differ in grey as well, and the
# > same bytes each time.
#
# ```python
# figure, axes = labs.figure()
# axes.bar([labs.label("parameters"), labs.label("gradients")], [4, 4])
# ```
#
# **Fonts.** matplotlib draws a sign that its font does not have as an empty box, and its
# own fonts have no Chinese and no Japanese signs. Most computers have a font for the
# language of their owner. So the labels use the first font of a list below that is
# installed. If there is none, the labels are English, and a sentence says which font to
# install.
#
# **Colours.** They are those of the book's figures: parameters are red, gradients blue, the
# optimizer's state is the colour of sand, and activations are pale. Each is lighter than
# the one before it, so that a colour-blind reader and a printout in grey can tell them
# apart. Lines differ in their dashes as well.
#
# **Bytes.** Notebooks show a plot as SVG. Its ids are derived from its content, and it has
# no date. So a plot that has not changed is the same file.


# The colours of areas, such as bars. The page of a lab replaces them at night.
COLOURS = ("#8a2d0f", "#38759f", "#dcbf78", "#dfe6dc")
# A pale line would vanish on a white page.
LINES = ("#8a2d0f", "#38759f", "#1f1d19")

# The names under which the usual systems install a font. The last ones of each list
# cover the language, too, in the style of another one.
FONTS = {
    "ja": [
        *("Noto Sans CJK JP", "Noto Sans JP", "Source Han Sans JP", "IPAexGothic"),
        *("IPAGothic", "TakaoGothic", "VL Gothic", "Hiragino Sans"),
        *("Hiragino Kaku Gothic ProN", "BIZ UDGothic", "Yu Gothic", "Meiryo"),
        *("MS Gothic", "Arial Unicode MS"),
    ],
    "zh": [
        *("Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC"),
        *("Source Han Sans CN", "WenQuanYi Micro Hei", "WenQuanYi Zen Hei"),
        *("PingFang SC", "Hiragino Sans GB", "Heiti SC", "STHeiti"),
        *("Microsoft YaHei", "SimHei", "Arial Unicode MS", "Droid Sans Fallback"),
        *("Noto Sans CJK JP",),
    ],
}


def figure(width: float = 6.4, height: float = 3.6) -> tuple[Figure, Axes]:
    """An empty plot in the book's look.

    :param width: in inches
    :param height: in inches
    :returns: the figure and its axes, as from `matplotlib.pyplot.subplots`
    """
    import matplotlib.pyplot as plt

    plt.rcParams.update(style())  # type: ignore[arg-type]
    drawn, axes = plt.subplots(figsize=(width, height), layout="constrained")
    return drawn, axes


def style() -> dict[str, Any]:
    """The settings of matplotlib."""
    from cycler import cycler

    own_font = font(language())
    return {
        "font.family": [own_font] * bool(own_font) + ["DejaVu Sans"],
        "font.size": 10,
        "axes.prop_cycle": cycler(color=LINES, linestyle=["-", "--", ":"]),
        # A pale area is told from the page by its edge.
        "patch.force_edgecolor": True,
        "patch.edgecolor": "#4a463e",
        "patch.linewidth": 0.6,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "axes.grid": True,
        "grid.color": "#e6e1d6",
        "axes.edgecolor": "#4a463e",
        # The minus sign of some CJK fonts is missing.
        "axes.unicode_minus": False,
        "figure.facecolor": "white",
        "svg.hashsalt": "shardbook",
        # Text stays text: it can be searched, and a screen reader reads it.
        "svg.fonttype": "none",
    }


def label(text: str, /, **values: Any) -> str:
    """A text for a plot: in the language of the lab if a font can draw it, else in
    English.

    :param text: in English, as for [`tell`](words.py#tell)
    """
    code = language()
    if code in FONTS and font(code) is None:
        say_what_to_install(code)
        return text.format(**values)
    return tell(text, **values)


@cache
def font(code: str) -> str | None:
    """The font for a language that is installed here.

    :param code: the language
    :returns: its name; `None` if there is none, or none is needed
    """
    from matplotlib import font_manager

    installed = {each.name for each in font_manager.fontManager.ttflist}
    return next((name for name in FONTS.get(code, []) if name in installed), None)


@cache
def say_what_to_install(code: str) -> None:
    """Say it once."""
    wanted = FONTS[code][0]
    print(
        tell(
            "The plots have English labels. For others, install the font {font}, and "
            "restart the kernel.",
            font=wanted,
        )
    )


def show_as_svg() -> None:
    """Let a notebook show its plots as SVG, and not as pixels."""
    ipython = sys.modules.get("IPython")
    if ipython is not None and ipython.get_ipython() is not None:
        from matplotlib_inline.backend_inline import set_matplotlib_formats

        set_matplotlib_formats("svg", metadata={"Date": None, "Creator": None})
