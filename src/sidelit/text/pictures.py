"""# How large a picture is

> A page that knows it keeps the room, so that nothing below moves when the picture arrives.

Only the head of a file is read: an SVG says its size itself, or by the box that it shows, a PNG and a GIF by
the numbers behind their signatures, and a JPEG in one of the segments before its first line. Of any other
picture the size stays unknown.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path

# What cameras write into a JPEG before its size may be long.
_HEAD = 65_536
_PNG = b"\x89PNG\r\n\x1a\n"
_NUMBER = r"\s*([\d.]+)(?:px)?\s*"


def size(path: Path) -> tuple[int, int] | None:
    """The width and height of a picture in pixels; `None` where the file is missing or does not say it."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return None
    if head.startswith(_PNG) and len(head) >= 24:
        width, height = struct.unpack(">II", head[16:24])
        return width, height
    if head[:6] in (b"GIF87a", b"GIF89a") and len(head) >= 10:
        width, height = struct.unpack("<HH", head[6:10])
        return width, height
    if head.startswith(b"\xff\xd8"):
        return _jpeg(head)
    return _svg(head[:2048].decode("utf-8", "replace"))


def _jpeg(head: bytes) -> tuple[int, int] | None:
    """Go from segment to segment, to the one that begins a frame and says how large it is."""
    at = 2
    while at + 9 <= len(head) and head[at] == 0xFF:
        kind, length = head[at + 1], int.from_bytes(head[at + 2 : at + 4], "big")
        if 0xC0 <= kind <= 0xCF and kind not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", head[at + 5 : at + 9])
            return width, height
        at += 2 + length
    return None


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
