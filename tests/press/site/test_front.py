"""What a home page is arranged of, in a small project."""

from __future__ import annotations

from pathlib import Path

import pytest
from markupsafe import Markup

from press.project import edit, sidelit
from press.site.lessons import COURSE, FIRST, ROW, SECOND, WINDOW
from sidelit.site.directives import layout

HOME = """# Sample
> It keeps the last items.

::: opening
Words beside nothing.

::: doors
- [Learn](#what-there-is)
- [Use](notes/reading.md) it.
:::
:::

## What there is

::: editions src:sample/ring.py#Ring.put
:::

::: numbers
- [**0.5**](notes/reading.md) of the time
---
Not measured: space.
:::

::: columns
One side.
---
The other side.
:::

::: lessons
:::

::: parts
:::
"""


@pytest.fixture
def front(sample: Path) -> Path:
    """The sample project with two lessons, a question, and a home page that is arranged."""
    (sample / "site/lessons").mkdir()
    (sample / ROW).write_text(FIRST, encoding="utf-8")
    (sample / WINDOW).write_text(SECOND, encoding="utf-8")
    edit(sample / "site/sidelit.toml", "[[parts]]\nnumber", COURSE)
    edit(sample / "site/sidelit.toml", "[[parts]]\n", '[[parts]]\nquestion = "What does a ring forget?"\n')
    (sample / "site/pages/index.md").write_text(HOME, encoding="utf-8")
    return sample


def html(folder: Path, name: str = "index.html") -> str:
    return (folder / "build/site" / name).read_text(encoding="utf-8")


def built(folder: Path) -> str:
    sidelit("build", cwd=folder)
    return html(folder)


def test_what_stands_beside_the_title_comes_before_the_picture_of_the_project(front: Path) -> None:
    (front / "site/templates").mkdir(exist_ok=True)
    (front / "site/templates/bars.html").write_text("<p>bars</p>", encoding="utf-8")
    edit(front / "site/sidelit.toml", "title = ", 'home_figure = "bars.html"\ntitle = ')
    edit(
        front / "site/pages/index.md",
        "- [Use](notes/reading.md) it.\n:::\n",
        "- [Use](notes/reading.md) it.\n:::\n---\nA call.\n",
    )
    page = built(front)
    places = [
        page.index(words) for words in ("Words beside nothing.", 'class="picture"', "A call.", "<p>bars</p>")
    ]
    assert places == sorted(places)


def test_without_either_nothing_stands_beside_the_title(front: Path) -> None:
    page = built(front)
    assert 'class="below-title"' in page
    assert 'class="picture"' not in page


def test_a_colon_behind_a_label_is_dropped_and_nothing_is_escaped_twice() -> None:
    told = Markup('<ul><li><a href="x.html"><b>1</b></a>：它的用时 &amp; 内存</li></ul>')
    assert layout._headed(told) == '<ul><li><a href="x.html"><b>1</b></a> 它的用时 &amp; 内存</li></ul>'
    # Inside of a sentence a colon stays, whatever it follows.
    others = Markup(
        '<ul><li>See <a href="x.html">x</a>: y</li><li><a href="a">a</a> and <a href="b">b</a>: c</li></ul>'
    )
    assert layout._headed(others) == others
