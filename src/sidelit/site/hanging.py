"""# Pictures on a page

> The address of a picture from the page that shows it, and its size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote, unquote

from sidelit.site.press import Press
from sidelit.text import pictures


@dataclass(frozen=True, slots=True)
class Hanging:
    """The pictures of one text.

    :param source: the file that the text is from.
    :param root: the way from the page to the folder of the site.
    :param resolve: finds what lies among the pages.
    """

    press: Press
    source: str
    root: str
    resolve: Callable[[str, int], str]

    def address(self, target: str, line: int) -> str:
        """Where a picture is, as seen from the page.

        Raises `SidelitError` if it is not there or may not be shown.
        """
        found = self.press.pictures.find(self.source, target)
        return f"{self.root}{quote(found.output)}" if found else self.resolve(target, line)

    def size(self, target: str) -> tuple[int, int] | None:
        """Its width and height, if it says them. A picture lies beside the text that shows it."""
        target = unquote(target)
        if found := self.press.pictures.find(self.source, target):
            return pictures.size(found.path)
        return pictures.size((self.press.config.project / self.source).parent / target)
