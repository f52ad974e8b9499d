"""The search in a browser: from a server and from a disk, by keyboard, in the languages of a site."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest
from playwright.sync_api import Browser, Page, expect

import questions
from browser.looks import ALL, violations
from browser.serving import serve
from built import CONFIG, FRAMES
from press.project import SAMPLE, sidelit, translate
from sidelit.site.search import index as searching
from sidelit.site.search.ask import opened

DEQUE = "A bounded deque drops items at its other end, which is all a ring has to do."
RESULTS = "dialog.search li a"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample, one sentence of it translated."""
    sample = Path(shutil.copytree(SAMPLE, tmp_path_factory.mktemp("search") / "sample"))
    row = '[[synonyms]]\nen = ["bounded deque", "circular queue"]\n'
    (sample / "site/search.toml").write_text(row, encoding="utf-8")
    sidelit("sync", cwd=sample)
    translate(sample / "site/locale/ja/sample/ring.po", {DEQUE: "上限つきの両端キューは、勾配を捨てます。"})
    translate(sample / "site/locale/zh/sample/ring.po", {DEQUE: "优化器的参数。"})
    sidelit("pack", cwd=sample)
    # As somebody unpacks it.
    place = tmp_path_factory.mktemp("take") / "Ordner 100 % 本 #1"
    with ZipFile(sample / "build/pack/sample.zip") as archive:
        archive.extractall(place)
    return place / "sample"


@pytest.fixture(params=["served", "disk"])
def home(folder: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """The same site at an address, and as files."""
    if request.param == "disk":
        yield f"{folder.as_uri()}/"
        return
    with serve(folder) as address:
        yield address


def ask(page: Page, query: str) -> None:
    """Type a query and wait for what it finds."""
    page.locator("dialog.search input").fill(query)
    page.locator(RESULTS).first.wait_for()


@pytest.mark.cases(now=1, ci=1)
def test_a_query_leads_to_its_section_by_keyboard_alone(page: Page, home: str) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{home}notes/reading.html")
    assert not [url for url in asked if "search-" in url or "core.js" in url]
    opener = page.locator("[data-search]")
    opener.press("Enter")
    field = page.locator("dialog.search input")
    field.wait_for()
    assert field.evaluate("field => field === document.activeElement")
    page.keyboard.type("bounded deque")
    expect(page.locator("dialog.search mark").first).to_have_text("bounded deque")
    expect(page.locator("dialog.search [role=status]")).to_have_text("Results: 1")
    # Down to the link, up to the field, and typing goes on there.
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.href").endswith(
        "ring.html#Ring.__init__/a-bounded-deque-drops-items"
    )
    page.keyboard.press("ArrowUp")
    assert field.evaluate("field => field === document.activeElement")
    page.keyboard.press("Escape")
    assert not page.locator("dialog.search").is_visible()
    assert opener.evaluate("opener => opener === document.activeElement")
    # What was typed is there again, and Enter goes to the best result, even before it is shown.
    opener.press("Enter")
    page.keyboard.type("Ring.put")
    page.keyboard.press("Enter")
    page.wait_for_url("**/ring.html#Ring.put")
    # On the same page the dialog makes room for what it found.
    page.locator("[data-search]").click()
    field.wait_for()
    page.keyboard.type("keeps the last items")
    page.keyboard.press("Enter")
    page.wait_for_url("**/ring.html#Ring")
    assert not page.locator("dialog.search").is_visible()


@pytest.mark.nightly
def test_translations_are_searched_in_their_own_words(page: Page, folder: Path) -> None:
    for lang, query, said in [("ja", "勾配", "検索結果：1件"), ("zh", "优化器", "共 1 条结果")]:
        page.goto((folder / lang / "tools/window.html").as_uri())
        page.locator("[data-search]").click()
        ask(page, query)
        assert page.locator("dialog.search [role=status]").inner_text() == said
        assert page.locator("dialog.search mark").inner_text() == query
        page.locator(RESULTS).click()
        page.wait_for_url(f"**/{lang}/ring.html#Ring.__init__/a-bounded-deque-drops-items")
        # English stays where the translation lacks, and says that it is English.
        page.locator("[data-search]").click()
        ask(page, "add an item")
        found = page.locator("dialog.search .found").first
        found.locator("mark").first.wait_for()
        assert found.get_attribute("lang") == "en"


def test_a_synonym_finds_and_stop_words_are_not_marked(page: Page, folder: Path) -> None:
    page.goto((folder / "tools/window.html").as_uri())
    page.locator("[data-search]").click()
    ask(page, "what is the circular queue")
    marks = page.locator("dialog.search li:first-child mark")
    expect(marks.first).to_have_text("bounded deque")
    assert marks.count() == 1


def test_the_contents_are_filtered_by_what_the_search_finds(page: Page, folder: Path) -> None:
    page.goto((folder / "tools/window.html").as_uri())
    page.locator(".menu").click()
    shown = page.locator(".panel .book li a:visible")
    # No title has the words; the page of the deque comes by its synonym.
    page.locator(".panel .filter").fill("circular queue")
    expect(shown).to_have_text(["1 A ring"])
    page.locator(".panel .filter").fill("qqqqq")
    expect(shown).to_have_count(0)


@pytest.mark.nightly
def test_a_hand_on_a_narrow_screen_finds_it_too(page: Page, folder: Path) -> None:
    page.set_viewport_size({"width": 390, "height": 700})
    page.goto((folder / "ring.html").as_uri())
    page.locator("[data-search]").click()
    ask(page, "ring")
    page.locator("dialog.search mark").first.wait_for()
    page.evaluate(FRAMES)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    box = page.locator("dialog.search").bounding_box()
    assert box
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
    assert box["height"] <= 700
    page.get_by_role("button", name="Close").click()
    assert not page.locator("dialog.search").is_visible()
    page.locator("[data-search]").click()
    page.locator("dialog.search input").fill("qqqqq")
    page.get_by_text("Nothing found").wait_for()
    # Beside the dialog.
    page.mouse.click(5, 690)
    assert not page.locator("dialog.search").is_visible()


@pytest.mark.nightly
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_the_dialog(page: Page, folder: Path, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    page.goto((folder / "ring.html").as_uri())
    page.locator("[data-search]").click()
    ask(page, "ring")
    page.locator("dialog.search mark").first.wait_for()
    assert violations(page, ALL) == []


@pytest.mark.nightly
def test_an_index_that_is_not_there_is_told(browser: Browser, folder: Path) -> None:
    page = browser.new_page()
    page.route("**/core.js", lambda route: route.abort())
    page.goto((folder / "ring.html").as_uri())
    page.locator("[data-search]").click()
    assert page.get_by_role("alert").inner_text() == "The search could not be loaded"
    page.close()


@pytest.mark.full
def test_without_scripts_there_is_no_button(browser: Browser, folder: Path) -> None:
    page = browser.new_page(java_script_enabled=False)
    page.goto((folder / "ring.html").as_uri())
    assert page.locator("[data-search], button:not(.menu)").count() == 0
    page.close()


@pytest.mark.full
@pytest.mark.parametrize("lang", CONFIG.languages)
def test_what_people_ask_is_among_the_first_results(site: Path, lang: str) -> None:
    asked = questions.read()[lang]
    missed = questions.missed(opened(site, lang), asked)
    assert len(missed) <= 0.05 * len(asked), {each.text: found for each, found in missed.items()}


@pytest.mark.nightly
@pytest.mark.parametrize("lang", CONFIG.languages)
def test_the_book_answers(site: Path, lang: str) -> None:
    """The questions that the book was asked first, by the ids of the sections that answer them."""
    place, found = site / searching.folder(lang), opened(site, lang)
    every = {"Unit.gather": "unit.html#Unit.gather", "reduce_scatter": "collectives.html#reduce_scatter_mean"}
    own = {
        "en": {
            "master weights": "flat.html#Flat/master-weights",
            "optimizer state": "optimizer_state.html#module",
        },
        "ja": {"勾配": "glossary.html#term-gradient", "マスター重み": "flat.html#Flat/master-weights"},
        "zh": {"参数": "glossary.html#term-parameter", "优化器": "glossary.html#term-optimizer"},
    }
    for query, address in {**every, **own.get(lang, {})}.items():
        assert found.ask(query)[0].address == address, query
        # The names and the words of a first question, as a host sends them; the excerpts come one by one.
        parts = ("core.js", *found.parts(query))
        assert sum(len(gzip.compress((place / name).read_bytes())) for name in parts) < 120_000
