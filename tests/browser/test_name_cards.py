"""Cards of names in a browser: by mouse, finger and key, from a server and from a disk."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from browser.looks import ALL, point_and_press, violations
from browser.serving import serve
from press.project import SAMPLE, edit, sidelit, translate

RING, SHOWER = "src/sample/ring.py", "src/sample/tools/window.py"
HOSTILE = '''
    def hostile(self, at: int) -> None:
        """<object data=x onerror=alert(1)> and `code`. Not this."""
'''
USES = '''

from sample.ring import LIMIT, Ring


def fill(ring: Ring, size: int) -> None:
    """Fill a ring.

    :param size: how many items.
    """
    last = size
    ring.put(last)
    ring.hostile(len("a" * LIMIT))
'''
NAMES = "# Names.\n@ functions.html#{name}\nlen\n"
INVENTORY = '[[inventories]]\nfile = "names.txt"\nurl = "https://docs.example.org/{place}"\n\n'
KEEPS = "Keeps the last items, in the order in which they came."
PHONE = {"has_touch": True, "viewport": {"width": 390, "height": 780}}
CARD = ".name-card"
ICON = "assets/favicon.svg"
# How long a pointer rests before a card is asked for, and less than that.
REST, SHORT = 300, 200


def name(text: str) -> str:
    return f"#fill .n:text-is('{text}')"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample with names of every kind, one docstring of it translated."""
    sample = Path(shutil.copytree(SAMPLE, tmp_path_factory.mktemp("Ordner 100 % 本") / "sample"))
    edit(sample / RING, ".append(item)\n", f".append(item)\n{HOSTILE}")
    (sample / SHOWER).write_text((sample / SHOWER).read_text("utf-8") + USES, "utf-8")
    (sample / "site/names.txt").write_text(NAMES, "utf-8")
    front = '[[front]]\nsource = "index.md"'
    edit(sample / "site/sidelit.toml", front, INVENTORY + front)
    sidelit("sync", cwd=sample)
    translate(
        sample / "site/locale/ja/sample/ring.po",
        {"A ring": "リング", KEEPS: "最後の要素を`順に`保持します。次。"},
    )
    sidelit("build", cwd=sample)
    return sample / "build/site"


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[str]:
    with serve(folder) as address:
        yield address


@pytest.fixture(params=["served", "disk"])
def home(folder: Path, served: str, request: pytest.FixtureRequest) -> str:
    """The same site at an address, and as files."""
    return served if request.param == "served" else f"{folder.as_uri()}/"


def point(page: Page, at: str) -> None:
    """Rest on a name until its card is asked for."""
    page.hover(at)
    page.clock.run_for(REST)


def said(page: Page) -> list[str]:
    """The lines of the card, once it is there."""
    expect(page.locator(CARD)).to_be_visible()
    return page.locator(f"{CARD} p").all_inner_texts()


@pytest.mark.cases(now=1, ci=1)
def test_pointing_says_what_a_name_is_and_asks_nothing_before(page: Page, home: str) -> None:
    page.clock.install(time=0)
    asked: list[str] = []
    page.goto(home + "tools/window.html")
    # A clock that was installed goes on by itself, on a busy machine beyond a short moment: it is stopped.
    page.clock.pause_at(3600)
    page.on("request", lambda request: asked.append(request.url.removeprefix(home)))
    page.hover(name("put"))
    page.clock.run_for(SHORT)
    # The browser takes its time with the picture of a tab.
    assert set(asked) <= {ICON}
    page.clock.resume()
    page.clock.run_for(REST)
    assert said(page) == [
        "def Ring.put(self, item: object) -> None",
        "Add an item; see why it is cheap.",
        "§ 1.3 A ring",
    ]
    assert {*asked, ICON} == {ICON, "assets/names-card.js", "assets/names.css", "ring.cards.js"}
    link = page.locator(name("put"))
    assert link.get_attribute("aria-describedby") == page.locator(CARD).get_attribute("id")
    # The card of another name of that page asks for nothing more.
    point(page, name("Ring"))
    expect(page.locator(CARD)).to_contain_text("class Ring")
    assert asked.count("ring.cards.js") == 1
    assert link.get_attribute("aria-describedby") is None
    # Names of this page, of a line, of somebody else; words that somebody meant to do harm with.
    point(page, name("size"))
    expect(page.locator(CARD)).to_contain_text("how many items.")
    point(page, name("last"))
    expect(page.locator(CARD)).to_have_text("last = size")
    point(page, name("LIMIT"))
    expect(page.locator(CARD)).to_contain_text("LIMIT = 8")
    point(page, name("len"))
    expect(page.locator(CARD)).to_contain_text("len")
    assert said(page) == ["len", "In the documentation at docs.example.org"]
    point(page, name("hostile"))
    expect(page.locator(CARD)).to_contain_text("<object data=x onerror=alert(1)> and code.")
    assert page.locator(f"{CARD} img").count() == 0
    assert not [url for url in asked if ":" in url]


@pytest.mark.nightly
def test_a_card_can_be_read_with_the_pointer_on_it_and_dismissed(page: Page, served: str) -> None:
    page.clock.install()
    page.goto(served + "tools/window.html")
    card = page.locator(CARD)
    point(page, name("put"))
    expect(card).to_be_visible()
    card.hover()
    page.clock.run_for(1000)
    expect(card).to_be_visible()
    page.keyboard.press("Escape")
    expect(card).to_be_hidden()
    point(page, name("len"))
    expect(card).to_be_visible()
    page.hover("h1")
    page.clock.run_for(REST)
    expect(card).to_be_hidden()
    # Who only passes by sees nothing.
    page.hover(name("put"))
    page.clock.run_for(SHORT)
    page.hover("h1")
    page.clock.run_for(1000)
    expect(card).to_be_hidden()


@pytest.mark.full
def test_keys_walk_the_names_in_sight_and_tab_passes_them(page: Page, served: str) -> None:
    page.goto(served + "tools/window.html")
    page.locator("#fill").scroll_into_view_if_needed()
    page.keyboard.press("n")
    first = page.evaluate("document.activeElement.textContent")
    expect(page.locator(CARD)).to_be_visible()
    page.keyboard.press("n")
    assert page.evaluate("document.activeElement.className") == "n"
    page.keyboard.press("N")
    assert page.evaluate("document.activeElement.textContent") == first
    page.keyboard.press("Escape")
    expect(page.locator(CARD)).to_be_hidden()
    page.locator(name("put")).focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") != "n"
    expect(page.locator(CARD)).to_be_hidden()
    page.keyboard.press("?")
    expect(page.locator("dialog.shortcuts")).to_contain_text("Next and previous name in sight")


@pytest.mark.full
def test_a_page_that_moves_below_a_resting_pointer_keeps_the_card_of_a_key(page: Page, served: str) -> None:
    page.clock.install()
    page.goto(served + "tools/window.html")
    point_and_press(page, "h1", "n")
    expect(page.locator(CARD)).to_be_visible()
    page.clock.run_for(1000)
    expect(page.locator(CARD)).to_be_visible()
    page.mouse.move(1, 1)
    page.clock.run_for(1000)
    expect(page.locator(CARD)).to_be_hidden()


@pytest.mark.nightly
@pytest.mark.parametrize("page", [PHONE], indirect=True)
def test_a_long_press_asks_and_a_tap_follows(page: Page, served: str) -> None:
    # A clock that goes on by itself would make a long press of a tap on a busy machine. It is there from the
    # start: a timer of the clock before could not be stopped.
    page.clock.install(time=0)
    page.goto(served + "ja/tools/window.html")
    link = page.locator(name("Ring")).first
    link.scroll_into_view_if_needed()
    box = link.bounding_box()
    assert box is not None
    page.clock.pause_at(3600)
    finger = page.context.new_cdp_session(page)
    place = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
    finger.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [place]})
    page.clock.run_for(500)
    assert said(page) == ["class Ring", "最後の要素を順に保持します。", "§ 1.1 リング"]
    assert page.locator(f"{CARD} p code").all_inner_texts() == ["class Ring", "順に"]
    finger.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    expect(page.locator(CARD)).to_be_visible()
    edges = page.locator(CARD).bounding_box()
    assert edges is not None
    assert edges["x"] >= 0
    assert edges["x"] + edges["width"] <= 390
    page.tap("h1")
    expect(page.locator(CARD)).to_be_hidden()
    link.tap()
    page.wait_for_url("**/ja/ring.html#Ring")


@pytest.mark.nightly
@pytest.mark.parametrize("page", [{"color_scheme": "dark"}, {"forced_colors": "active"}], indirect=True)
def test_axe_finds_nothing(page: Page, served: str) -> None:
    page.goto(served + "zh/tools/window.html")
    page.locator(name("Ring")).first.focus()
    expect(page.locator(f"{CARD} [lang=en]").first).to_be_visible()
    assert violations(page, ALL) == []
