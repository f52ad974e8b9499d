"""The encoding that a source declares is read as Python reads it, or refused."""

from __future__ import annotations

import pytest

from sidelit.errors import SidelitError
from sidelit.source import decoding


@pytest.mark.parametrize(
    ("declared", "meant"),
    [
        ("utf-8-unix", "utf-8"),
        ("UTF_8-dos", "utf-8"),
        ("utf-8-sig", "utf-8"),
        ("latin-1-unix", "iso8859-1"),
        ("iso-8859-1-mac", "iso8859-1"),
    ],
)
def test_the_line_ends_that_emacs_adds_to_an_encoding_are_ignored_as_python_does(
    declared: str, meant: str
) -> None:
    data = f"# -*- coding: {declared} -*-\nx = '\u00e9'\n".encode(meant)
    compile(data, "some.py", "exec")
    text, encoding = decoding.decode(data, "some.py")
    assert "\u00e9" in text
    assert (encoding, text.encode(encoding)) == (meant, data)


@pytest.mark.parametrize("declared", ["undefined", "idna", "punycode"])
def test_an_encoding_that_only_python_itself_can_stumble_over_is_refused(declared: str) -> None:
    with pytest.raises(SidelitError, match=r"^some\.py:1: .*UTF-8"):
        decoding.decode(f"# coding: {declared}\nx = 1\n".encode(), "some.py")
