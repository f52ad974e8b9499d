r"""# The window

> A view of the last few items.

It works on any [ring](../ring.py).
"""


class Window:
    """Shows the last items, from `first` on."""

    first = 0
