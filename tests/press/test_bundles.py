"""Files that every page loads: few, whole, and with what a project puts in their place."""

from __future__ import annotations

import re
from pathlib import Path

from press.project import edit, sidelit
from sidelit.files import assets

KNOWN = dict(assets.asset_files())
SERVED = assets.served(KNOWN)


def test_a_bundle_is_its_parts_in_their_order() -> None:
    for name, parts in assets.BUNDLES.items():
        assert name not in KNOWN
        assert SERVED[name] == b"\n".join(SERVED[part] for part in parts)
    assert SERVED["frame.js"].startswith(b'"use strict";')


def test_a_stylesheet_is_served_without_comments_and_means_the_same() -> None:
    for name in (name for name in KNOWN if name.endswith(".css") and "/" not in name):
        text, small = KNOWN[name].read_text("utf-8"), SERVED[name].decode()
        assert "/*" not in small
        plain = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
        assert re.sub(r"\s+", " ", small).strip() == re.sub(r"\s+", " ", plain).strip(), name


def test_what_others_wrote_is_served_as_it_is() -> None:
    others = [name for name in KNOWN if "/" in name]
    assert others
    assert all(SERVED[name] == KNOWN[name].read_bytes() for name in others)


def test_a_chapter_asks_for_few_files(sample: Path) -> None:
    sidelit("build", cwd=sample)
    html = (sample / "build/site/ring.html").read_text("utf-8")
    asked = re.findall(r'<(?:script src|link rel="stylesheet" href)="([^"]+)"', html)
    # Formulas and symbols have files of their own.
    few = [name for name in asked if "katex" not in name and "symbols" not in name]
    assert few == [
        f"assets/{name}" for name in ("theme.js", "frame.css", "chapter.css", "print.css", "frame.js")
    ]


def test_a_file_of_the_project_takes_its_place_in_the_bundle(sample: Path) -> None:
    (sample / "site/assets").mkdir()
    (sample / "site/assets/colours.css").write_text(":root { --accent: #123456; }\n", encoding="utf-8")
    edit(
        sample / "site/sidelit.toml",
        'title = "Sample"',
        'title = "Sample"\noverride_assets = ["colours.css"]',
    )
    sidelit("build", cwd=sample)
    assert "--accent: #123456" in (sample / "build/site/assets/frame.css").read_text("utf-8")


def test_a_file_of_the_project_is_no_bundle(sample: Path) -> None:
    (sample / "site/assets").mkdir()
    (sample / "site/assets/frame.js").write_text("", encoding="utf-8")
    told = sidelit("build", cwd=sample, code=1).stderr
    assert "two files would be written to assets/frame.js" in told
