"""Two lessons for the sample project."""

from __future__ import annotations

from pathlib import Path

from press.project import edit

FIRST = """# Items in a row
> A ring keeps the last items.
:minutes: 5
:needs: [how to read](../pages/notes/reading.md), and a pencil
:aim: say what a ring forgets
:aim: predict the items of a ring of size 2

Begin with the whole of it.

::: section src:sample/ring.py#Ring
:::

## What it keeps

::: question
How many items does a ring of size 0 keep?
---
None: `maxlen` is 0.

```
:::
---
```
:::

::: section src:sample/ring.py#Ring.put
:::

::: section src:sample/ring.py#Ring.put from="self._items.append"
A deque forgets by itself.
:::

::: try
Put 3 items into a ring of size 2.
:::

::: lab 2
It measures $O(1)$.
:::
"""
SECOND = """# A window
> A view of a ring.
:minutes: 12
:aim: say where a window begins

## Ring put

::: section src:sample/tools/window.py#Window
:::
"""
COURSE = """[course]
label = "Course"
lessons = [
    { source = "lessons/row.md" },
    { source = "lessons/view.md" },
]

[[parts]]
number"""
ROW, WINDOW = "site/lessons/row.md", "site/lessons/view.md"


def give_lessons(sample: Path) -> None:
    """Put the lessons into the project."""
    (sample / "site/lessons").mkdir()
    (sample / ROW).write_text(FIRST, encoding="utf-8")
    (sample / WINDOW).write_text(SECOND, encoding="utf-8")
    edit(sample / "site/sidelit.toml", "[[parts]]\nnumber", COURSE)
