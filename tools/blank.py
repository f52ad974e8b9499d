"""Measure how much of a page's right half is blank: `make site`, then `.venv/bin/python tools/blank.py`.

For the home page and every lesson and lab, in each language, at 1280 × 900 pixels, the right half is what
lies between x = 640 and x = 1280, from the top of the first heading to the end of the page's own words: the
neighbours and the foot below them are on every page and do not count.

**Content** is what a reader sees without opening anything: each drawing, picture, bar, form field and button
with its box, and each paragraph, heading, list, table, question, cell and block of code with the smallest
rectangle that holds its letters, however wide the element itself is. A tinted ground, a border, a rule and an
empty box are no content.

**Blank** is a row of pixels on which content covers less than a quarter of the half, 160 of 640 pixels: words
of a column at the left that reach a little over the middle do not fill the half. Gaps of at most 32 pixels
between filled rows are not blank: lines and paragraphs have such gaps everywhere.

For each page the table has the share of blank rows, the longest blank stretch in pixels, and the share of the
half's *area* that no content covers, which is larger, as every margin and every short line counts there.

    python tools/blank.py                     # all pages in all languages of build/site
    python tools/blank.py --lang en --limit 0.35 lessons/one_step labs/formats
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

import chromium

SITE = Path(__file__).parent.parent / "build" / "site"
WIDTH, HEIGHT = 1280, 900
ENOUGH, GAP = 0.25, 32

# The boxes of what is to be seen, each as [left, top, right, bottom] in the page, and where the page's words
# begin and end.
BOXES = """() => {
  const boxes = [], main = document.querySelector('main');
  const add = (box) => {
    if (box.width < 2 || box.height < 2) return;
    boxes.push([box.left, box.top + scrollY, box.right, box.bottom + scrollY]);
  };
  const seen = (element) => element.checkVisibility({ opacityProperty: true, visibilityProperty: true });
  // The letters of a block are one rectangle: what lies between two lines of code belongs to them.
  const blocks = new Map();
  const block = (node) => {
    let element = node.parentElement;
    const found = element.closest('table, ul, ol, dl, .ask, .margin > .cell') ?? element.closest('pre');
    if (found) return found;
    while (getComputedStyle(element).display.startsWith('inline')) element = element.parentElement;
    return element;
  };
  const whole = 'svg, img, canvas, video, input, button, select, textarea, .bytes, .vector, .bar';
  const { FILTER_ACCEPT, FILTER_SKIP, FILTER_REJECT, SHOW_ELEMENT, SHOW_TEXT } = NodeFilter;
  const walk = document.createTreeWalker(main, SHOW_ELEMENT | SHOW_TEXT, (node) => {
    if (node.nodeType === Node.TEXT_NODE) return node.data.trim() ? FILTER_ACCEPT : FILTER_SKIP;
    const hidden = !seen(node) && getComputedStyle(node).display !== 'contents';
    return hidden ? FILTER_REJECT : FILTER_ACCEPT;
  });
  while (walk.nextNode()) {
    const node = walk.currentNode;
    if (node.nodeType === Node.TEXT_NODE) {
      if (node.parentElement.closest('svg, .katex-mathml')) continue;
      const range = new Range();
      range.selectNodeContents(node);
      const of = block(node);
      blocks.set(of, [...(blocks.get(of) ?? []), ...range.getClientRects()].filter((box) => box.width > 1));
    } else if (node.matches(whole) && !node.parentElement.closest('svg')) add(node.getBoundingClientRect());
  }
  for (const found of blocks.values()) {
    if (!found.length) continue;
    const [left, top] = ['left', 'top'].map((side) => Math.min(...found.map((box) => box[side])));
    const [right, bottom] = ['right', 'bottom'].map((side) => Math.max(...found.map((box) => box[side])));
    add({ left, top, right, bottom, width: right - left, height: bottom - top });
  }
  const start = main.querySelector('h1').getBoundingClientRect().top + scrollY;
  return { boxes, start, end: main.getBoundingClientRect().bottom + scrollY };
}"""


@dataclass(frozen=True, slots=True)
class Blank:
    """What is blank of one page: shares of its rows and of its area, and the longest stretch in pixels."""

    name: str
    rows: float
    area: float
    longest: int


def covered(boxes: list[tuple[float, float, float, float]], start: int, end: int) -> list[int]:
    """How many pixels of the right half content covers, for each row from `start` to `end`."""
    half = WIDTH // 2
    rows = [0] * (end - start)
    spans: list[list[tuple[int, int]]] = [[] for _ in rows]
    for left, top, right, bottom in boxes:
        begin, stop = max(half, round(left)), min(WIDTH, round(right))
        if begin < stop:
            for row in range(max(start, round(top)), min(end, round(bottom))):
                spans[row - start].append((begin, stop))
    for row, found in enumerate(spans):
        reached = half
        for begin, stop in sorted(found):
            rows[row] += max(0, stop - max(begin, reached))
            reached = max(reached, stop)
    return rows


def stretches(rows: list[int]) -> Iterator[int]:
    """The heights of the blank stretches."""
    height = 0
    for pixels in [*rows, WIDTH]:
        if pixels < ENOUGH * WIDTH / 2:
            height += 1
            continue
        if height > GAP:
            yield height
        height = 0


def measure(page: Page, name: str, address: str) -> Blank:
    """Open a page and measure it."""
    page.goto(address)
    page.evaluate("document.fonts.ready")
    found = page.evaluate(BOXES)
    rows = covered(found["boxes"], round(found["start"]), round(found["end"]))
    blank = [*stretches(rows)]
    area = 1 - sum(rows) / (len(rows) * (WIDTH - WIDTH // 2))
    return Blank(name, sum(blank) / len(rows), area, max(blank, default=0))


def pages(site: Path, langs: list[str], named: list[str]) -> Iterator[str]:
    """The names of the pages to measure: those that were named, or the home pages, lessons and labs."""
    for lang in langs:
        folder = site if lang == "en" else site / lang
        places = [folder / f"{name}.html" for name in named] or [folder / "index.html", *lessons(folder)]
        yield from (str(place.relative_to(site).with_suffix("")) for place in places)


def lessons(folder: Path) -> Iterator[Path]:
    """The pages of the lessons and the labs."""
    for place in (*sorted(folder.glob("*.html")), *sorted(folder.glob("labs/*.html"))):
        if '<article class="course"' in place.read_text("utf-8"):
            yield place


def main() -> None:
    """Print a line for each page; exit with 1 if one is above the limit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("pages", nargs="*", help="as in lessons/one_step; left out: home, lessons and labs")
    parser.add_argument("--site", type=Path, default=SITE, help="the folder of the built site")
    parser.add_argument("--lang", action="append", choices=["en", "ja", "zh"], help="left out: each")
    parser.add_argument("--limit", type=float, help="exit with 1 if a page has a greater share of blank rows")
    given = parser.parse_args()
    if not (given.site / "index.html").is_file():
        sys.exit(f"{given.site} holds no site; run `make site`")
    found = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium.ensure(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        print(f"{'page':36} {'blank':>6} {'longest':>8} {'area':>6}")
        for name in pages(given.site, given.lang or ["en", "ja", "zh"], given.pages):
            found.append(measure(page, name, (given.site / f"{name}.html").resolve().as_uri()))
            print(
                f"{name:36} {found[-1].rows:6.2f} {found[-1].longest:5} px {found[-1].area:6.2f}", flush=True
            )
        browser.close()
    above = [each.name for each in found if given.limit is not None and each.rows > given.limit]
    if above:
        sys.exit(f"more than {given.limit} of the right half is blank: {', '.join(above)}")


if __name__ == "__main__":
    main()
