"""The numbers of equations go on over the whole page, in the window and on paper."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page

from press.project import edit

ROWS = r"$$\begin{align} a &= 1 \\ b &= 2 \end{align}$$"
PLACES = ("notes/reading.html", "numbered.html")


def furnish(sample: Path) -> None:
    reading = sample / "site/pages/notes/reading.md"
    reading.write_text(f"{reading.read_text('utf-8')}\n{ROWS}\n\n{ROWS}\n", "utf-8")
    source = f'r"""# Numbered\n\n> It has equations.\n\n{ROWS}\n"""\n\n# Once more:\n#\n# {ROWS}\na = 1\n'
    (sample / "src/sample/numbered.py").write_text(source, "utf-8")
    toml = sample / "site/sidelit.toml"
    entry = '{ source = "ring.py", run = "python -m sample.ring" }'
    edit(toml, entry, f'{entry},\n    {{ source = "numbered.py" }}')


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("media", ["screen", "print"])
def test_the_numbers_of_equations_go_on(page: Page, home: str, place: str, media: str) -> None:
    page.emulate_media(media=media)  # type: ignore[arg-type]
    page.goto(f"{home}{place}")
    # What a stylesheet writes is in no document, but in what is laid out.
    with_text = page.context.new_cdp_session(page).send("DOMSnapshot.captureSnapshot", {"computedStyles": []})
    (shown,) = with_text["documents"]
    laid = "".join(with_text["strings"][at] for at in shown["layout"]["text"] if at >= 0)
    # Each formula is there twice, for screen readers and for the eye.
    assert re.findall(r"\((\d+)\)", laid) == [*"12", *"12", *"34", *"34"]
