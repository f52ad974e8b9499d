"""# Names of other distributions

> The list of names that are documented elsewhere, and the address of each.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from sidelit import reading
from sidelit.errors import SidelitError
from sidelit.inventories import Inventory

_MOST = 50_000_000  # bytes of a list, unpacked


def addresses(inventories: Sequence[Inventory], folder: Path, shown: str) -> Mapping[str, str]:
    """The address of each documented name; the first list that has a name decides.

    :param folder: where the lists lie
    :param shown: the folder as messages write it
    """
    found: dict[str, str] = {}
    for each in inventories:
        path = folder / each.file
        place = f"{shown}/{each.file}"
        try:
            reading.refuse_outside(path, folder, place)
            names = (
                _sphinx(reading.data(path))
                if each.file.endswith(".inv")
                else _listed(reading.text(path), place)
            )
            for name, at in names:
                if not each.prefix or f"{name}.".startswith(f"{each.prefix}."):
                    found.setdefault(name, each.url.replace("{place}", at))
        except (OSError, UnicodeDecodeError, ValueError, zlib.error) as error:
            reason = (
                error.strerror if isinstance(error, OSError) and error.strerror else "it is no list of names"
            )
            raise SidelitError(f"cannot be read: {reason}", path=place) from None
    return found


def address(known: Mapping[str, str], name: str) -> str | None:
    """Where a dotted name is documented. What is built into Python is listed without `builtins`."""
    return known.get(name.removeprefix("builtins."))


def _listed(text: str, shown: str) -> Iterator[tuple[str, str]]:
    """The lines of a list that a person wrote."""
    pattern = ""
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("# ")[0].split() if not line.startswith("#") else []
        if words[:1] == ["@"]:
            pattern = words[1] if len(words) == 2 else ""
        elif words and (not pattern or len(words) > 2 or not re.fullmatch(r"\w+(\.\w+)*", words[0])):
            what = f"{line.strip()!r} is no name of a list"
            hint = "write `@ PLACE` with {name} in it above the names, and one name on a line"
            raise SidelitError(what, path=shown, line=number, hint=hint)
        elif words:
            yield words[0], pattern.replace("{name}", words[-1])


def _sphinx(data: bytes) -> Iterator[tuple[str, str]]:
    """The Python names of an `objects.inv`, version 2: four lines of text, and the rest packed."""
    *head, packed = data.split(b"\n", 4)
    if len(head) < 4 or b"version 2" not in head[0] or b"zlib" not in head[3]:
        raise ValueError("not an inventory of Sphinx")
    text = zlib.decompressobj().decompress(packed, _MOST).decode()
    for found in re.finditer(r"(?m)^(\S+)\s+py:\S+\s+-?\d+\s+(\S+)\s", text + "\n"):
        name, place = found.groups()
        yield name, place[:-1] + name if place.endswith("$") else place
