"""What a page looks like in a browser, and what can be wrong with that.

`look` shows a page in one way and takes down all that the tests ask of it, so that a page is loaded once and
is laid out once for each of its ways. The checks read what was taken down, and yield complaints.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from built import NARROW, WIDE, show

AXE = Axe().axe_script
# Letters line up, not boxes: a heading has more room above it than a line of code. Half a line is the most.
HALF_A_LINE = 12
# Axe takes long to judge the contrast of a text, and a page of code has thousands of texts in a few colours.
# So it judges three texts, the first, the middle and the last, of those that look the same: in colour, size
# and weight, on ancestors that paint or place the same.
ONE_OF_EACH_LOOK = """
() => {
    const plain = "rgba(0, 0, 0, 0)|none|1|none|normal|static|auto|none";
    const grounds = new Map([[null, ""]]);
    const ground = element => {
        if (!grounds.has(element)) {
            const style = getComputedStyle(element);
            const own = [
                style.backgroundColor, style.backgroundImage, style.opacity, style.filter, style.mixBlendMode,
                style.position.replace("relative", "static"), style.clip, style.clipPath,
            ].join("|");
            const below = ground(element.parentElement);
            grounds.set(element, own === plain ? below : `${below};${own}`);
        }
        return grounds.get(element);
    };
    const looks = new Map();
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
        const element = texts.currentNode.parentElement;
        if (!texts.currentNode.data.trim()) continue;
        if (!element.checkVisibility({ visibilityProperty: true })) continue;
        const { color, fontSize, fontWeight, textShadow } = getComputedStyle(element);
        const look = [color, fontSize, fontWeight, textShadow, ground(element)].join();
        if (looks.has(look)) looks.get(look).push(element);
        else looks.set(look, [element]);
    }
    document.querySelectorAll("[data-look]").forEach(element => element.removeAttribute("data-look"));
    for (const alike of looks.values()) {
        for (const place of [0, alike.length >> 1, alike.length - 1]) {
            alike[place].setAttribute("data-look", "");
        }
    }
}
"""
# As it comes, axe measures no control and judges no single letter, nor a text on a pseudo-element: each
# section of a chapter has one, transparent until somebody points at the section. A check needs all of its
# options.
CONTRAST = """
axe.configure({
    rules: [{ id: "color-contrast", selector: "[data-look]" }, { id: "target-size", enabled: true }],
    checks: [{
        id: "color-contrast",
        options: {
            ignorePseudo: true, ignoreLength: true, ignoreUnicode: true,
            boldValue: 700, boldTextPt: 14, largeTextPt: 18,
            contrastRatio: { normal: { expected: 4.5 }, large: { expected: 3 } },
            pseudoSizeThreshold: 0.25, shadowOutlineEmMax: 0.2, textStrokeEmMin: 0.03,
        },
    }],
})
"""
# What is taken down of a page: its width, its background, what can be scrolled up and down by itself, and the
# boxes of each section's commentary and code.
SEEN = """
() => {
    const box = element => {
        if (!element) return null;
        const { left, right, top, bottom } = element.getBoundingClientRect();
        return { left, right, top, bottom };
    };
    return {
        scroll_width: document.documentElement.scrollWidth,
        background: getComputedStyle(document.body).backgroundColor.match(/[\\d.]+/g).slice(0, 3).map(Number),
        scrolling: [...document.querySelectorAll("main *")].filter(element =>
            element.scrollHeight > element.clientHeight + 1 &&
            ["auto", "scroll"].includes(getComputedStyle(element).overflowY)
        ).map(element => element.outerHTML.slice(0, 80)),
        sections: [...document.querySelectorAll("section[id]")].map(section => {
            const doc = section.querySelector(".doc");
            const code = box(section.querySelector("pre.code:not(.imports *)"));
            // The line of the imports above it is the first line of the code.
            if (code) code.top = box(section.querySelector(".imports:has(+ pre.code)"))?.top ?? code.top;
            return {
                id: section.id,
                all: box(section),
                doc: doc?.textContent.trim() ? box(doc) : null,
                code,
                above: section.classList.contains("above"),
            };
        }),
    };
}
"""
VISIBLE = """
selector => [...document.querySelectorAll(selector)].filter(element => {
    if (!element.checkVisibility()) return false;
    const style = getComputedStyle(element);
    const {width, height} = element.getBoundingClientRect();
    return style.visibility === "visible" && width > 0 && height > 0;
}).length
"""

# The text of an element but for its buttons: only scripts make them, so their words are none of the page's.
TEXT = """
selector => {
    const whole = document.querySelector(selector);
    // A paragraph that a script has made for a button goes with it.
    const made = [...whole.querySelectorAll("button, p.aside:has(> button)")];
    const buttons = made.map(button => [button, button.style.display]);
    for (const [button] of buttons) button.style.display = "none";
    const text = whole.innerText.trimEnd();
    for (const [button, display] of buttons) button.style.display = display;
    return text;
}
"""
# For each drawing, how many of its two forms are seen.
DRAWINGS = """
() => [...document.querySelectorAll("main .drawing")].map(drawing =>
    [...drawing.querySelectorAll("svg")].filter(form => form.getBoundingClientRect().height > 0).length
)
"""

# Depth, as a reader has it who has unfolded all of it, and as one has it who comes to the page.
UNFOLD = "document.querySelectorAll('details:is(.depth, .imports)').forEach(fold => { fold.open = true })"
FOLD = UNFOLD.replace("true", "false")

Way = tuple[int, Any]
WAYS: list[Way] = [(WIDE, "light"), (NARROW, "dark")]
# Rules of axe. Those of colours have to find out what is painted on what, which takes as long as all others.
ALL: dict[str, Any] = {}
COLOUR_RULES = ["color-contrast", "link-in-text-block"]
COLOURS: dict[str, Any] = {"runOnly": COLOUR_RULES}
ALL_BUT_COLOURS: dict[str, Any] = {"rules": {rule: {"enabled": False} for rule in COLOUR_RULES}}


@dataclass
class Look:
    """A page, shown in one way."""

    width: int
    scheme: str
    scroll_width: int
    brightness: float
    """How light the background is, from 0 to 255."""
    scrolling: list[str]
    sections: list[dict[str, Any]]
    violations: list[str]
    """What axe finds, if it was asked."""

    @property
    def pairs(self) -> list[dict[str, Any]]:
        """The sections that have commentary and code."""
        return [section for section in self.sections if section["doc"] and section["code"]]


@dataclass
class Looks:
    """A page, wide and light, and narrow and dark."""

    wide: Look
    narrow: Look

    def __iter__(self) -> Iterator[Look]:
        return iter((self.wide, self.narrow))


def look(page: Page, way: Way, axe: bool = True, unfold: bool = True) -> Look:
    """Show a page in one way, depth and all, and take down what is seen."""
    page.evaluate(UNFOLD if unfold else FOLD)
    seen = show(page, *way).evaluate(SEEN)
    rules = ALL if way[0] == NARROW else ALL_BUT_COLOURS
    return Look(
        *way,
        scroll_width=seen["scroll_width"],
        brightness=sum(seen["background"]) / 3,
        scrolling=seen["scrolling"],
        sections=seen["sections"],
        violations=violations(page, rules) if axe else [],
    )


def violations(page: Page, rules: dict[str, Any]) -> list[str]:
    """What axe finds on the page as it is shown."""
    # To read axe into a page takes longer than to run it.
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE)
        page.evaluate(CONTRAST)
    if rules is not ALL_BUT_COLOURS:
        page.evaluate(ONE_OF_EACH_LOOK)
    options = {"resultTypes": ["violations"], "preload": False, **rules}
    found = page.evaluate("options => axe.run(options).then(found => found.violations)", options)
    return [
        f"{rule['id']}: {node['html'][:200]}: {node['failureSummary']}"
        for rule in found
        for node in rule["nodes"]
    ]


def visible(page: Page, selector: str) -> int:
    """How many of these elements take room on the page."""
    count: int = page.evaluate(VISIBLE, selector)
    return count


def columns(seen: Look) -> Iterator[str]:
    """Each section's commentary and code start on one line, side by side, inside their section.

    Commentary that is much longer than its code stands above it.
    """
    before = float("-inf")
    for section in seen.pairs:
        doc, code, whole = section["doc"], section["code"], section["all"]
        if section["above"]:
            if doc["bottom"] > code["top"] + 1:
                yield f"{section['id']}: the commentary reaches into the code below"
        elif doc["right"] > code["left"] + 1:
            yield f"{section['id']}: the commentary reaches into the code"
        elif abs(doc["top"] - code["top"]) > HALF_A_LINE:
            yield f"{section['id']}: commentary and code do not start on one line"
        if max(doc["bottom"], code["bottom"]) > whole["bottom"] + 1:
            yield f"{section['id']}: a column reaches out of its section"
        if whole["top"] < before - 1:
            yield f"{section['id']}: starts before the section above ends"
        before = whole["bottom"]


def stacked(seen: Look) -> Iterator[str]:
    """Each section's commentary stands above its code, inside the window."""
    for section in seen.pairs:
        doc, code = section["doc"], section["code"]
        if doc["bottom"] > code["top"] + 1:
            yield f"{section['id']}: the commentary reaches into the code"
        if doc["left"] < 0 or code["right"] > seen.width + 1:
            yield f"{section['id']}: reaches out of the window"


def sideways(seen: Look) -> Iterator[str]:
    """Nothing is wider than the window."""
    if seen.scroll_width != seen.width:
        yield f"the page is {seen.scroll_width} px wide in a window of {seen.width} px"


def theme(seen: Look) -> Iterator[str]:
    """Light is light and dark is dark."""
    if not (seen.brightness > 200 if seen.scheme == "light" else seen.brightness < 60):
        yield f"the {seen.scheme} background has the brightness {seen.brightness}"


def without_scripts(scriptless: Page, shared: Page) -> Iterator[str]:
    """The same text, links and formulas; and no control that would need a script to do something.

    Where a script shows one part of a page at a time, both are looked at as they are printed: whole.
    """
    parts = shared.locator(".live").count() > 0
    # A choice between radio buttons shows by the stylesheet alone, and the browser opens a popover by itself.
    if visible(
        show(scriptless),
        "button:not([popovertarget]), input:not([type=radio]), select, textarea, [role=button], [onclick]",
    ):
        yield "there are controls"
    for page in (scriptless, shared):
        show(page, media="print" if parts else "screen").evaluate(UNFOLD)
    for selector in ("main", "footer"):
        text = scriptless.evaluate(TEXT, selector)
        if not text.strip() or text != shared.evaluate(TEXT, selector):
            yield f"{selector} has other text"
    for selector in ("main a", "main .katex"):
        if visible(scriptless, selector) != visible(shared, selector):
            yield f"{selector} is not seen as often"


def in_print(page: Page) -> Iterator[str]:
    """All of the text, folded or not, without the imports and without a menu."""
    # A drawing has code in it, too, and another form on paper than on a screen.
    text = "main section .doc > :not(.acts), main section .code:not(svg *, .imports *)"
    page.evaluate(UNFOLD)
    on_screen = visible(show(page), text)
    page.evaluate(FOLD)
    show(page, media="print")
    # The number of a section is printed, and is all that is left of the line that it stands in.
    if visible(page, "header, .langs, .crumbs, .neighbours, .menu, button, .acts > a"):
        yield "there are menus"
    if visible(page, "h1") != 1:
        yield "there is no single title"
    if visible(page, text) != on_screen:
        yield "there is not the text of the screen"
    if any(seen != 1 for seen in page.evaluate(DRAWINGS)):
        yield "a drawing is not there once"


def point_and_press(page: Page, selector: str, key: str) -> None:
    """Press a key while the pointer is on something, and let the page move below it."""
    box = page.locator(selector).first.bounding_box()
    assert box is not None
    here = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(*here)
    page.keyboard.press(key)
    page.evaluate("document.querySelector('main').style.paddingTop = '300px'")
    # It stays where it is, and comes to something else.
    page.mouse.move(*here)
