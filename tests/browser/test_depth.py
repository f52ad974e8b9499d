"""Depth in a browser: it unfolds by a click, a key, a link, the switch of its page, and on paper.

The sample gets a long page with depth in several places, and a short one.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from browser.looks import UNFOLD, WAYS, columns, look, sideways, stacked
from browser.serving import serve
from browser.test_validity import complaints
from built import FRAMES
from press.project import SAMPLE, edit, sidelit
from tiers import rows

CORE = "# Number {0} is core.\ndef core_{0}(a):\n    b = a + {0}\n    return b\n\n\n"
DEPTH = (
    "# sidelit: depth Case {0}, of $n$ and `n`.\n\n\ndef deep_{0}(a):\n"
    '    """Refuse case {0}, then see [the first](#deep_0).\n\n    It is seldom.\n    """\n'
    "    if a:\n        # Why so.\n        raise ValueError(a)\n\n\n# sidelit: core\n\n\n"
)
TEXT = '"""# Long\n\n> A page with depth.\n\nThe [last](#deep_3) comes late.\n"""\n\n' + "".join(
    CORE.format(2 * number) + CORE.format(2 * number + 1) + DEPTH.format(number) for number in range(4)
)
LINE = TEXT[: TEXT.index("raise ValueError(a)", TEXT.index("def deep_2"))].count("\n") + 1
LINK = "#module p:not(.acts) a[href='#deep_3']"
FOLDS = "[...document.querySelectorAll('details.depth')].map(fold => fold.open)"
ALL, NONE = [True] * 4, [False] * 4
# Whether a reader sees a place: it is not folded away, and its top is in the window, below the bar.
SEEN = """
id => {
    const place = document.getElementById(id);
    const top = place.getBoundingClientRect().top;
    const bar = document.querySelector(".top").offsetHeight;
    return place.checkVisibility() && top >= bar - 1 && top < innerHeight;
}
"""


@pytest.fixture(scope="module")
def folded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample project with depth on two of its pages."""
    sample = Path(shutil.copytree(SAMPLE, tmp_path_factory.mktemp("folded") / "sample"))
    (sample / "src/sample/long.py").write_text(
        TEXT + "".join(map(CORE.format, range(8, 20))), encoding="utf-8"
    )
    edit(sample / "src/sample/ring.py", "    def put(", "    # sidelit: depth A full ring.\n    def put(")
    entry = '{ source = "ring.py", run = "python -m sample.ring" }'
    edit(sample / "site/sidelit.toml", entry, f'{entry},\n    {{ source = "long.py" }}')
    sidelit("build", cwd=sample)
    return sample / "build/site"


@pytest.fixture(scope="module")
def home(folded: Path) -> Iterator[str]:
    """Where that site is served."""
    with serve(folded) as address:
        yield address


@pytest.fixture
def window(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A window of a newcomer whose scripts are on, or off where the test says so."""
    scripts = getattr(request, "param", True)
    context = browser.new_context(
        java_script_enabled=scripts, reduced_motion="reduce", viewport={"width": 1280, "height": 700}
    )
    messages: list[str] = []
    page = context.new_page()
    page.on("console", lambda said: messages.append(said.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    yield page
    context.close()
    assert messages == []


WITH_AND_WITHOUT = pytest.mark.parametrize(
    "window", [True, False], indirect=True, ids=["scripts", "no scripts"]
)
WITHOUT_SCRIPTS = pytest.mark.parametrize("window", [False], indirect=True, ids=["no scripts"])


def switch(page: Page, words: str) -> None:
    """Press the switch, which says these words, where it stands: `Locator.click` may scroll to it."""
    button = page.locator("button.unfold")
    assert button.inner_text() == words
    box = button.bounding_box()
    assert box
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)


def sees(page: Page, name: str) -> None:
    """Wait until the browser has scrolled to where a place is seen."""
    page.wait_for_function(SEEN, arg=name)


@pytest.mark.cases(now=1, ci=1)
@WITH_AND_WITHOUT
def test_a_click_unfolds_one_stretch_and_folds_it_again(window: Page, home: str) -> None:
    window.goto(home + "long.html")
    assert window.evaluate(FOLDS) == NONE
    assert not window.locator("#deep_1").is_visible()
    summary = window.locator("details.depth summary").nth(1)
    assert "Case 1, of" in summary.inner_text()
    summary.click()
    assert window.evaluate(FOLDS) == [False, True, False, False]
    assert window.locator("#deep_1").is_visible()
    summary.click()
    assert window.evaluate(FOLDS) == NONE


@pytest.mark.nightly
@WITH_AND_WITHOUT
def test_the_keyboard_unfolds_and_the_focus_is_seen(window: Page, home: str) -> None:
    window.goto(home + "long.html")
    summary = window.locator("details.depth summary").first
    before = window.evaluate("getComputedStyle(document.querySelector('details.depth summary')).outlineStyle")
    # The last stop above it is the link of the section before.
    window.locator("main > section .acts a").nth(8).focus()
    for _ in range(60):
        if summary.evaluate("summary => summary === document.activeElement"):
            break
        window.keyboard.press("Tab")
    assert summary.evaluate("summary => getComputedStyle(summary).outlineStyle") == "solid" != before
    window.keyboard.press("Enter")
    assert window.evaluate(FOLDS) == [True, False, False, False]


@pytest.mark.nightly
@WITH_AND_WITHOUT
@pytest.mark.parametrize("anchor", rows(["deep_2", "deep_2/why-so", f"line-{LINE}"], now=["deep_2/why-so"]))
def test_an_address_unfolds_what_it_names(window: Page, home: str, anchor: str) -> None:
    for language in ("", "ja/"):
        window.goto("about:blank")
        window.goto(f"{home}{language}long.html#{anchor}")
        sees(window, anchor)
        assert window.evaluate(FOLDS) == [False, False, True, False]


@pytest.mark.nightly
@WITH_AND_WITHOUT
def test_a_link_of_the_page_unfolds_what_it_leads_to(window: Page, home: str) -> None:
    window.goto(home + "long.html")
    for _ in range(2):
        window.locator(LINK).click()
        sees(window, "deep_3")
        # Folded again, the address stays the same, and the link has to work once more.
        window.locator("details.depth summary").nth(3).click()
        assert window.evaluate(FOLDS) == NONE


@pytest.mark.nightly
def test_a_browser_that_unfolds_nothing_by_itself_is_helped(window: Page, home: str) -> None:
    window.goto(home + "long.html")
    # The script hears of the click, the browser does not follow it.
    window.evaluate(
        "document.querySelector('main').addEventListener('click', event => event.preventDefault())"
    )
    window.locator(LINK).click()
    sees(window, "deep_3")
    # The address changes, and nothing is unfolded by the change.
    window.evaluate(
        "history.replaceState(null, '', '#deep_1'); dispatchEvent(new HashChangeEvent('hashchange'))"
    )
    sees(window, "deep_1")
    assert window.evaluate(FOLDS) == [False, True, False, True]
    # An address that somebody cut short is no reason to stop.
    window.evaluate(
        "history.replaceState(null, '', '#deep%'); dispatchEvent(new HashChangeEvent('hashchange'))"
    )
    switch(window, "Show all depth")


@pytest.mark.nightly
def test_the_switch_unfolds_everything_and_is_remembered(window: Page, home: str) -> None:
    window.goto(home + "long.html")
    switch(window, "Show all depth")
    assert window.evaluate(FOLDS) == ALL
    window.reload()
    assert window.evaluate(FOLDS) == ALL
    window.goto(home + "ja/ring.html")
    assert window.evaluate(FOLDS) == [True]
    switch(window, "詳細を折りたたむ")
    assert window.evaluate(FOLDS) == [False]
    window.goto(home + "zh/long.html")
    assert window.evaluate(FOLDS) == NONE
    assert window.locator("button.unfold").inner_text() == "展开全部细节"


@pytest.mark.nightly
def test_the_switch_says_what_it_would_do_now(window: Page, home: str) -> None:
    window.goto(home + "long.html")
    for place in range(4):
        assert window.locator("button.unfold").inner_text() == "Show all depth"
        window.locator("details.depth summary").nth(place).click()
    window.evaluate(FRAMES)
    switch(window, "Fold depth")
    assert window.evaluate(FOLDS) == NONE
    # What a reader unfolds by hand is nobody's wish for other pages.
    window.reload()
    assert window.evaluate(FOLDS) == NONE


@pytest.mark.nightly
def test_an_address_is_found_among_unfolded_depth(window: Page, home: str) -> None:
    window.goto(home + "long.html")
    switch(window, "Show all depth")
    window.goto("about:blank")
    window.goto(home + "long.html#deep_3")
    sees(window, "deep_3")
    window.goto("about:blank")
    window.goto(home + "long.html#core_7")
    sees(window, "core_7")


@pytest.mark.nightly
def test_who_folds_the_depth_around_them_is_left_at_its_line(window: Page, home: str) -> None:
    window.goto(home + "long.html")
    switch(window, "Show all depth")
    # Not every browser holds on to the place by itself.
    window.evaluate("document.documentElement.style.overflowAnchor = 'none'")
    window.evaluate("document.getElementById('deep_2').scrollIntoView(); scrollBy(0, 60)")
    switch(window, "Fold depth")
    line = window.locator("details.depth summary").nth(2)
    line.evaluate("line => { line.parentElement.id = 'here' }")
    sees(window, "here")


@pytest.mark.full
def test_a_browser_that_stores_nothing_has_the_switch_all_the_same(window: Page, home: str) -> None:
    window.add_init_script(
        "Object.defineProperty(window, 'localStorage', { get() { throw new Error('forbidden') } })"
    )
    window.goto(home + "long.html")
    switch(window, "Show all depth")
    assert window.evaluate(FOLDS) == ALL


@pytest.mark.nightly
def test_a_page_without_depth_has_no_switch(window: Page, home: str) -> None:
    for name, count in (("long.html", 1), ("tools/window.html", 0), ("index.html", 0)):
        window.goto(home + name)
        assert window.locator("button.theme").count() == 1
        assert window.locator("button.unfold").count() == count


@pytest.mark.full
@WITHOUT_SCRIPTS
def test_without_scripts_there_is_no_switch(window: Page, home: str) -> None:
    window.goto(home + "long.html")
    # The browser opens the contents by itself.
    assert window.locator("button:not([popovertarget])").count() == 0
    assert window.locator("details.depth").count() == 4


@pytest.mark.nightly
@WITH_AND_WITHOUT
def test_on_paper_nothing_is_folded(window: Page, home: str) -> None:
    window.goto(home + "long.html")
    window.emulate_media(media="print")
    assert window.evaluate(FOLDS) == NONE
    for place in range(4):
        shown = window.locator(f"#deep_{place} .code")
        assert shown.evaluate("code => code.checkVisibility() && code.getBoundingClientRect().height > 20")
    # What is below comes after it, and not on top of it.
    bottom, top = (
        window.evaluate(f"document.getElementById('{name}').getBoundingClientRect().{edge}")
        for name, edge in (("deep_0", "bottom"), ("module/number-2-is-core", "top"))
    )
    assert bottom <= top + 1


@pytest.mark.nightly
def test_a_browser_whose_stylesheets_cannot_unfold_for_paper_is_helped(window: Page, home: str) -> None:
    window.goto(home + "long.html")
    window.locator("details.depth summary").nth(1).click()
    window.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert window.evaluate(FOLDS) == ALL
    window.evaluate("dispatchEvent(new Event('afterprint'))")
    assert window.evaluate(FOLDS) == [False, True, False, False]


@pytest.mark.nightly
def test_what_is_folded_is_not_where_the_reader_is(window: Page, home: str) -> None:
    """The language menu leads to what is at the top of the window."""
    window.goto(home + "long.html")
    for name in ("core_1", "core_2", "core_3"):
        window.evaluate(f"document.getElementById('{name}').scrollIntoView()")
        window.wait_for_function(
            "name => document.querySelector('.langs a[data-lang=ja]').hash === `#${name}`", arg=name
        )


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("way", "unfolded"),
    rows([*product(WAYS, [False, True])], now=[(WAYS[0], True), (WAYS[1], False)]),
    ids=["wide, folded", "wide, unfolded", "narrow, folded", "narrow, unfolded"],
)
def test_it_looks_right(window: Page, home: str, way: tuple[int, str], unfolded: bool) -> None:
    """Axe finds nothing, columns line up, and nothing is wider than the window, folded or not."""
    for name in ("long.html", "ja/long.html"):
        window.goto(home + name)
        seen = look(window, way, unfold=unfolded)
        assert window.evaluate(FOLDS) == (ALL if unfolded else NONE)
        assert [*seen.violations, *sideways(seen)] == []
        if unfolded:
            assert len(seen.pairs) >= 12
            assert list((columns if way == WAYS[0] else stacked)(seen)) == []


@pytest.mark.nightly
def test_they_are_valid(folded: Path) -> None:
    assert complaints(*(folded / path for path in ("long.html", "ja/long.html", "ring.html"))) == []


@pytest.mark.full
def test_unfolding_is_what_the_other_tests_take_it_for(window: Page, home: str) -> None:
    window.goto(home + "long.html")
    window.evaluate(UNFOLD)
    assert window.evaluate(FOLDS) == ALL
