"""How large a picture is, as far as its file says it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidelit.site.pictures import size

PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x01\x40\x00\x00\x00\xf0"


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (PNG, (320, 240)),
        (PNG[:20], None),
        (b'<?xml version="1.0"?>\n<svg xmlns="s" viewBox="0 0 480 450.4" fill="none">', (480, 450)),
        (b'<svg width="30px" height="20" viewBox="0 0 480 450">', (30, 20)),
        (b'<svg width="100%" viewBox="0,0,48,45">', (48, 45)),
        (b"<svg>", None),
        (b"GIF89a\x40\x01\xf0\0", (320, 240)),
        (b"\xff\xd8\xff\xe0\0\x04JF\xff\xc2\0\x0b\x08\0\xf0\x01\x40\x03", (320, 240)),
        (b"\xff\xd8\xff\xe0\0\x04JF\xff\xda\0\x0b", None),
        (b"\xff\xd8\xff", None),
        (b"", None),
    ],
)
def test_a_picture_says_its_size_or_nothing(
    tmp_path: Path, data: bytes, wanted: tuple[int, int] | None
) -> None:
    path = tmp_path / "picture"
    path.write_bytes(data)
    assert size(path) == wanted


def test_a_picture_that_is_not_there_has_no_size(tmp_path: Path) -> None:
    assert size(tmp_path / "none.svg") is None
