"""What is wrong with the lines, tables and drawings of a built site, as a Chromium shows it.

    python tools/layout_faults.py                        # all pages of build/site, in minutes
    python tools/layout_faults.py api.html ja/api.html   # some of them
    python tools/layout_faults.py --list --width 390     # with an example for each fault, on a phone

The kinds of faults are those of layout_faults.js: tables and formulas that are cut, numbers in two lines,
samples that lose their indentation, lines of Japanese and Chinese that begin with a sign or end with a letter
or two, labels that lie on each other.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

import chromium

ROOT = Path(__file__).parent.parent
LOOK = (Path(__file__).parent / "layout_faults.js").read_text("utf-8")
SHORT, BLOCKS = "short last line", "blocks"
# What a reader can still do about it, or what a page may have some of.
ALLOWED = {"table scrolls", SHORT, BLOCKS}


def faults(page: Page) -> list[tuple[str, str]]:
    """The kinds of faults of a page that is open, each with an example."""
    # Comments stand above the function.
    source = LOOK[LOOK.index("() =>") :]
    return [(kind, text) for kind, text in page.evaluate(source)]


def short_share(found: list[tuple[str, str]]) -> float:
    """The share of the blocks whose last line has at most three letters."""
    blocks = sum(int(text) for kind, text in found if kind == BLOCKS)
    return sum(kind == SHORT for kind, _ in found) / max(1, blocks)


def pages(site: Path) -> Iterator[str]:
    """Every page of a site that shows something itself."""
    for path in sorted(site.rglob("*.html")):
        if 'http-equiv="refresh"' not in path.read_text("utf-8")[:2000]:
            yield path.relative_to(site).as_posix()


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("pages", nargs="*", help="pages, by their place in the site (default: all)")
    parser.add_argument("--site", type=Path, default=ROOT / "build" / "site")
    parser.add_argument("--width", type=int, action="append", help="of the window (default: 1280 and 390)")
    parser.add_argument("--list", action="store_true", help="print each fault")
    given = parser.parse_args()
    counts: Counter[str] = Counter()
    lines: dict[str, list[tuple[str, str]]] = {}
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--font-render-hinting=none"]
        browser = playwright.chromium.launch(executable_path=chromium.ensure(), args=flags)
        page = browser.new_page(reduced_motion="reduce")
        for width in given.width or [1280, 390]:
            page.set_viewport_size({"width": width, "height": 900})
            for name in given.pages or pages(given.site):
                page.goto((given.site.resolve() / name).as_uri())
                found = faults(page)
                lines.setdefault(name.partition("/")[0] if "/" in name else "", []).extend(found)
                for kind, text in found:
                    if kind != BLOCKS:
                        counts[kind] += 1
                        print(f"{width}\t{name}\t{kind}\t{text}\n" if given.list else "", end="")
        browser.close()
    for kind, count in sorted(counts.items()):
        print(f"{count:6} {kind}")
    for folder, found in lines.items():
        if any(kind == BLOCKS and text != "0" for kind, text in found):
            print(f"{short_share(found):6.2%} of the blocks in {folder}/ end with at most three letters")
    return any(counts[kind] for kind in counts if kind not in ALLOWED)


if __name__ == "__main__":
    sys.exit(main())
