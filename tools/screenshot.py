"""Take the README's picture from the built site: `make site`, then `.venv/bin/python tools/screenshot.py`.

A test takes it again and compares: when the page looks otherwise, it says that this command is due.
"""

import io
from pathlib import Path

from PIL import Image, ImageChops, ImageStat
from playwright.sync_api import Browser, sync_playwright

import chromium

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "build" / "site" / "unit.html"
PICTURE = ROOT / "docs" / "screenshot.png"
SECTION = "Unit.gather"
# Small enough that a letter which is a little wider shows nothing, and large enough that a line does.
SMALL = (160, 100)


def main() -> None:
    """Write the picture."""
    with sync_playwright() as playwright:
        path = chromium.ensure()
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        PICTURE.parent.mkdir(exist_ok=True)
        PICTURE.write_bytes(take(browser, PAGE.as_uri()))
        browser.close()


def take(browser: Browser, page: str) -> bytes:
    """Show one section of a chapter, at twice the pixels so that it is sharp on any screen."""
    size = {"width": 1280, "height": 800}
    context = browser.new_context(viewport=size, device_scale_factor=2, color_scheme="light")
    shown = context.new_page()
    shown.goto(f"{page}#{SECTION}")
    shown.evaluate("document.fonts.ready")
    picture = shown.screenshot()
    context.close()
    return picture


def difference(one: bytes, other: bytes) -> float:
    """How much two pictures differ, as a share of the way from black to white."""
    first, second = (Image.open(io.BytesIO(each)).convert("L").resize(SMALL) for each in (one, other))
    return float(ImageStat.Stat(ImageChops.difference(first, second)).mean[0] / 255)


if __name__ == "__main__":
    main()
