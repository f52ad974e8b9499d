"""Take the README's picture from the built site: `make site`, then `.venv/bin/python tools/screenshot.py`."""

from pathlib import Path

from playwright.sync_api import sync_playwright

import chromium

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "build" / "site" / "unit.html"
PICTURE = ROOT / "docs" / "screenshot.png"
SECTION = "Unit.gather"


def main() -> None:
    """Show one section of a chapter, at twice the pixels so that it is sharp on any screen."""
    path = chromium.ensure()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(
            viewport={"width": 1280, "height": 800}, device_scale_factor=2, color_scheme="light"
        )
        page.goto(f"{PAGE.as_uri()}#{SECTION}")
        page.evaluate("document.fonts.ready")
        PICTURE.parent.mkdir(exist_ok=True)
        page.screenshot(path=PICTURE)
        browser.close()


if __name__ == "__main__":
    main()
