"""Who uses no mouse, larger letters, colours of their own or no motion has the whole page."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from built import CONFIG, FRAMES, HEIGHT, LANGUAGES, LONG_IN_ENGLISH, NARROWEST, ZOOMED, Open, path_of

pytestmark = pytest.mark.full

# One page of each kind, in each language in turn: a home, a chapter, a lesson with a stepper, prose.
KINDS = [CONFIG.home, "ja/casting.html", "zh/one_step.html", "hardware.html"]
OPEN = """
() => document.querySelectorAll("main details:not([open])").forEach(each => {
    each.open = true;
    each.dataset.shut = "";
})
"""
SHUT = """
() => document.querySelectorAll("[data-shut]").forEach(each => {
    each.open = false;
    delete each.dataset.shut;
})
"""
# What the keyboard is at: where it stands, and whether its place is marked on it or on what is drawn for it.
STOP = """
() => {
    const stop = document.activeElement;
    if (stop === document.body) return null;
    const { top, bottom, left, right } = stop.getBoundingClientRect();
    const bar = document.querySelector(".top");
    const sill = bar.contains(stop) || stop.matches(".skip") ? 0 : bar.offsetHeight;
    const around = stop.parentElement;
    const drawn = [stop, around, stop.closest("li") ?? stop, ...around.children];
    const marked = drawn.some(one => {
        const { outlineStyle, outlineWidth } = getComputedStyle(one);
        return outlineStyle !== "none" && parseFloat(outlineWidth) >= 1;
    });
    const seen = bottom > sill && top < innerHeight && right > 0 && left < innerWidth;
    return { what: stop.outerHTML.slice(0, 120), marked, seen };
}
"""


@pytest.mark.pages(of=KINDS, ci=KINDS[-1:])
def test_the_keyboard_reaches_the_end_and_never_loses_its_place(visit: Open, path: str) -> None:
    page = visit(path)
    lost = []
    for _ in range(1000):
        page.keyboard.press("Tab")
        stop = page.evaluate(STOP)
        if stop is None:
            break
        if not (stop["marked"] and stop["seen"]):
            lost.append(stop)
    else:
        raise AssertionError("there is no way out of the page")
    assert lost == []
    # And back again.
    page.keyboard.press("Shift+Tab")
    assert page.evaluate(STOP)["marked"]


@pytest.mark.pages(ci=LONG_IN_ENGLISH)
def test_a_page_flows_into_a_quarter_of_the_window(shared: Page) -> None:
    """At 200 % and at 400 % nothing but a wide box itself scrolls sideways."""
    shared.emulate_media(media="screen", color_scheme="light")
    shared.evaluate(OPEN)
    for width in (ZOOMED, NARROWEST):
        shared.set_viewport_size({"width": width, "height": HEIGHT})
        shared.evaluate(FRAMES)
        assert shared.evaluate("document.documentElement.scrollWidth") == width
        bar = shared.locator(".top > *, .tools > *").evaluate_all(
            "all => Math.max(...all.map(one => one.getBoundingClientRect().right))"
        )
        assert bar <= width
    # The next test on this page finds it as a reader does.
    shared.evaluate(SHUT)


@pytest.mark.cases(ci=1)
@pytest.mark.parametrize("lang", LANGUAGES)
def test_letters_twice_as_large_leave_the_bar_in_the_window(visit: Open, lang: str) -> None:
    page = visit(path_of("hooks.html", lang))
    page.evaluate("document.documentElement.style.fontSize = '200%'")
    for width in (1280, 1000, 640):
        page.set_viewport_size({"width": width, "height": HEIGHT})
        page.evaluate(FRAMES)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        # The letters have grown, and no control is gone.
        assert page.locator(".top :is(.theme, .find, .unfold, .menu)").evaluate_all(
            "all => all.every(one => one.checkVisibility() && one.getBoundingClientRect().height >= 48)"
        )


@pytest.mark.nightly
def test_who_wants_no_motion_sees_none(visit: Open) -> None:
    page = visit(path_of("one_step.html", "ja"))
    page.locator(".live").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    assert page.evaluate("document.getAnimations().length") == 0
    assert page.evaluate("getComputedStyle(document.documentElement).scrollBehavior") == "auto"


@pytest.mark.nightly
def test_forced_colours_leave_every_control_its_drawing_and_its_state(visit: Open) -> None:
    page = visit("ja/zero3.html")
    page.emulate_media(forced_colors="active")
    drawn = "all => all.map(one => getComputedStyle(one, '::before').backgroundColor)"
    ink = page.evaluate("getComputedStyle(document.body).color")
    drawings = page.locator(".tools :is(.theme, .find, .beside)").evaluate_all(drawn)
    assert len(drawings) == 3
    assert set(drawings) == {ink}
    page.keyboard.press("o")
    pressed = page.locator(".beside[aria-pressed=true]")
    pressed.wait_for()
    assert pressed.evaluate("one => getComputedStyle(one).borderBottomStyle") == "solid"
    page.locator("main [data-sym]").first.hover()
    lit = page.locator("main .lit").first
    lit.wait_for()
    assert lit.evaluate("one => getComputedStyle(one).outlineStyle") == "solid"
