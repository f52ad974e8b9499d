"""# How large a picture is

> A page that knows it keeps the room, so that nothing below moves when the picture arrives.

Only the head of a file is read: an SVG says its size itself, or by the box that it shows, and a PNG by the
numbers behind its signature. Of any other picture the size stays unknown.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path

_PNG = b"\x89PNG\r\n\x1a\n"
_NUMBER = r"\s*([\d.]+)(?:px)?\s*"


def size(path: Path) -> tuple[int, int] | None:
    """The width and height of a picture in pixels; `None` where the file is missing or does not say it."""
    try:
        with path.open("rb") as file:
            head = file.read(2048)
    except OSError:
        return None
    if head.startswith(_PNG) and len(head) >= 24:
        width, height = struct.unpack(">II", head[16:24])
        return width, height
    return _svg(head.decode("utf-8", "replace"))


def _svg(text: str) -> tuple[int, int] | None:
    opening = re.search(r"<svg\b[^>]*>", text)
    if opening is None:
        return None
    said = [re.search(rf'\s{name}="{_NUMBER}"', opening[0]) for name in ("width", "height")]
    if all(said):
        width, height = (float(found[1]) for found in said if found)
    elif box := re.search(rf'\sviewBox="{_NUMBER}[\s,]{_NUMBER}[\s,]{_NUMBER}[\s,]{_NUMBER}"', opening[0]):
        width, height = float(box[3]), float(box[4])
    else:
        return None
    return round(width), round(height)
