r"""# The plots of a lab

> A plot has labels in the reader's language, colours that differ in grey as well, and the
> same bytes each time.

```python
figure, axes = labs.figure()
axes.bar([labs.label("parameters"), labs.label("gradients")], [4, 4])
```

**Fonts.** matplotlib draws a sign that its font does not have as an empty box, and its
own fonts have no Chinese and no Japanese signs. Most computers have a font for the
language of their owner. So the labels use the first font of a list below that is
installed. If there is none, the labels are English, and a sentence says which font to
install.

**Colours.** They are those of the book's figures: parameters are red, gradients blue, the
optimizer's state is the colour of sand, and activations are pale. Each is lighter than
the one before it, so that a colour-blind reader and a printout in grey can tell them
apart. Lines differ in their dashes as well.

**Bytes.** Notebooks show a plot as SVG. Its ids are derived from its content, and it has
no date. So a plot that has not changed is the same file.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING, Any

from shardbook.labs.lab_language import language
from shardbook.labs.words import tell

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "FONTS", "LINES", "figure", "font", "label", "show_as_svg"]

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
