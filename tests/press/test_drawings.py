"""An SVG that could run something is told from one that could not."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidelit.site import pictures

ROOT = Path(__file__).parent.parent.parent
SVG = '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'


@pytest.mark.parametrize(
    "inside",
    [
        "<script>1</script>",
        "<s:script xmlns:s='http://www.w3.org/2000/svg'>1</s:script>",
        "<my-s.v:script xmlns:my-s.v='http://www.w3.org/2000/svg'>1</my-s.v:script>",
        "<g onclick='1'/>",
        '<g id="a"onclick="1"/>',
        "<g ONLOAD\n=\n'1'/>",
        "<foreignObject><h:body xmlns:h='http://www.w3.org/1999/xhtml' onload='1'/></foreignObject>",
        "<foreignObject><meta xmlns='http://www.w3.org/1999/xhtml' http-equiv='refresh'/></foreignObject>",
        "<iframe xmlns='http://www.w3.org/1999/xhtml' src='x'/>",
        "<h:embed xmlns:h='http://www.w3.org/1999/xhtml' src='x'/>",
        "<a href='javascript:1'/>",
        "<a href='java&#115;cript:1'/>",
        "<a href='java\nscript:1'/>",
        "<a href='java&Tab;script:1'/>",
        "<animate attributeName='href' values=' JavaScript :1'/>",
        "<a href='data:text/html,x'/>",
    ],
)
def test_a_program_is_found(inside: str) -> None:
    drawing = f"{SVG}{inside}</svg>"
    for encoded in (drawing.encode(), drawing.encode("utf-16"), drawing.encode("utf-16-be")):
        assert pictures.runs(encoded), encoded


@pytest.mark.parametrize(
    "before",
    [
        '<!DOCTYPE svg [<!ENTITY x "y">]>',
        '<!DOCTYPE svg [<!ATTLIST svg onload CDATA "1">]>',
        '<?xml-stylesheet type="text/xsl" href="x.xsl"?>',
    ],
)
def test_declarations_that_add_a_program_are_found(before: str) -> None:
    assert pictures.runs(f"{before}{SVG}</svg>".encode())


@pytest.mark.parametrize(
    "inside",
    [
        "<text>on = 1, one = 2, a description: the script ends</text>",
        "<a href='https://example.org/javascript'><path d='M0 0'/></a>",
        "<style>.one { fill: none }</style><g class='on' data-once='x'/>",
        "<image href='data:image/png;base64,AAAA'/>",
        "<foreignObject><p xmlns='http://www.w3.org/1999/xhtml'>A label.</p></foreignObject>",
    ],
)
def test_other_drawings_may_be_shown(inside: str) -> None:
    assert not pictures.runs(f"{SVG}{inside}</svg>".encode())


def test_the_drawings_of_this_project_may_be_shown() -> None:
    found = [path for folder in ("site", "templates") for path in (ROOT / folder).rglob("*.svg")]
    assert found
    assert not [path for path in found if pictures.runs(path.read_bytes())]
