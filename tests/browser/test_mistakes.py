"""Each check of what is seen fails on a page with the mistake that it is there for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from browser.looks import (
    ALL,
    ALL_BUT_COLOURS,
    COLOURS,
    WAYS,
    Look,
    columns,
    in_print,
    look,
    sideways,
    stacked,
    theme,
    violations,
    without_scripts,
)
from built import CHAPTER, NARROW, Open, show
from tiers import rows

pytestmark = pytest.mark.full

Check = Callable[[Look], Iterator[str]]
WIDELY, NARROWLY = WAYS
BOTH = "main section:has(.doc > p):has(pre.code)"
# Commentary that is much longer than its code has no column beside it.
BESIDE = f"{BOTH}:not(.above)"


def scrolling(seen: Look) -> Iterator[str]:
    """What scrolls by itself."""
    yield from seen.scrolling


def style(selector: str, name: str, value: str) -> str:
    """Give the last of these elements a style of its own."""
    return f"[...document.querySelectorAll('{selector}')].at(-1).style.{name} = '{value}'"


def add(html: str) -> str:
    """Add something to the text."""
    return f"document.querySelector('main').insertAdjacentHTML('beforeend', '{html}')"


def in_print_only(text: str) -> str:
    """Add a rule to a stylesheet."""
    return f"document.styleSheets[0].insertRule('@media print {{ {text} }}')"


TEXTS = [
    "main h1",
    "main p:not(.acts)",
    "main td:not(.drawing td)",
    "main p:not(.acts) a",
    "main .katex-html .mord:not(:has(*), .mtight)",
    "h2 code",
    "pre .k",
    "pre .num",
    ".neighbours b",
    "footer code",
    ".menu .now",
]
MISTAKES: list[tuple[Check, tuple[int, Any], str]] = [
    (sideways, WIDELY, style("footer", "width", "1290px")),
    (sideways, NARROWLY, style("footer", "width", "400px")),
    (theme, WIDELY, style("body", "backgroundColor", "rgb(99, 99, 99)")),
    (theme, NARROWLY, style("body", "backgroundColor", "rgb(99, 99, 99)")),
    (scrolling, WIDELY, f"{style(BOTH, 'height', '20px')}; {style(BOTH, 'overflowY', 'auto')}"),
    (columns, WIDELY, style(f"{BESIDE} .doc", "transform", "translateY(40px)")),
    (columns, WIDELY, style(f"{BESIDE} pre.code", "marginLeft", "-40px")),
    (columns, WIDELY, style(BESIDE, "height", "5px")),
    (columns, WIDELY, style(BESIDE, "marginTop", "-40px")),
    (columns, WIDELY, style(f"{BOTH}.above pre.code", "marginTop", "-90px")),
    (stacked, NARROWLY, style(f"{BOTH} pre.code", "marginTop", "-90px")),
    (stacked, NARROWLY, style(f"{BOTH} .doc", "marginLeft", "-40px")),
    (stacked, NARROWLY, style(f"{BOTH} pre.code", "width", "500px")),
]
IN_PRINT = [
    in_print_only("html main .acts > a { display: block !important }"),
    in_print_only("main p { display: none }"),
    in_print_only("h1 { display: none }"),
    in_print_only(".drawing svg { display: block !important }"),
]
SCRIPTLESS = [
    add("<button>Copy</button>"),
    add("more"),
    style("footer > dl", "visibility", "hidden"),
    style("main .katex", "visibility", "hidden"),
]


@pytest.mark.cases(ci=1)
@pytest.mark.parametrize(
    ("check", "way", "mistake"),
    MISTAKES,
    ids=[f"{check.__name__} {place}" for place, (check, *_) in enumerate(MISTAKES)],
)
def test_a_mistake_is_seen(spoil: Open, check: Check, way: tuple[int, Any], mistake: str) -> None:
    page = spoil(CHAPTER)
    page.evaluate(mistake)
    assert list(check(look(page, way, axe=False)))


@pytest.mark.nightly
@pytest.mark.parametrize(("scheme", "pale"), [("light", "rgb(150, 150, 150)"), ("dark", "rgb(90, 90, 90)")])
def test_axe_sees_pale_text_wherever_it_is(spoil: Open, scheme: str, pale: str) -> None:
    page = show(spoil(CHAPTER), NARROW, scheme)
    for place, text in enumerate(TEXTS):
        page.evaluate(style(text, "color", pale))
        page.evaluate(f"[...document.querySelectorAll('{text}')].at(-1).id = 'pale-{place}'")
    said = violations(page, COLOURS)
    assert [
        text for place, text in enumerate(TEXTS) if not any(f'"pale-{place}"' in one for one in said)
    ] == []


@pytest.mark.nightly
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_sees_a_ground_that_is_too_close(spoil: Open, scheme: str) -> None:
    page = show(spoil(CHAPTER), NARROW, scheme)
    page.evaluate(style(f"{BOTH} .doc", "background", "rgb(120, 120, 120)"))
    assert violations(page, COLOURS)


@pytest.mark.cases(ci=1)
@pytest.mark.parametrize("rules", [ALL, ALL_BUT_COLOURS], ids=["all", "all but colours"])
def test_axe_sees_what_is_missing(spoil: Open, rules: dict[str, Any]) -> None:
    page = spoil(CHAPTER)
    page.evaluate(add('<img src="data:,"><a href="index.html"></a>'))
    assert {said.partition(":")[0] for said in violations(page, rules)} >= {"image-alt", "link-name"}


@pytest.mark.cases(ci=1)
@pytest.mark.parametrize("mistake", IN_PRINT, ids=range(len(IN_PRINT)))
def test_a_mistake_in_print_is_seen(spoil: Open, mistake: str) -> None:
    page = spoil(CHAPTER)
    page.evaluate(mistake)
    assert list(in_print(page))


@pytest.mark.nightly
@pytest.mark.parametrize(
    "mistake", rows(SCRIPTLESS, now=[SCRIPTLESS[0], SCRIPTLESS[-1]]), ids=range(len(SCRIPTLESS))
)
def test_a_mistake_without_scripts_is_seen(spoil: Open, mistake: str) -> None:
    scriptless = spoil(CHAPTER, scripts=False)
    scriptless.evaluate(mistake)
    assert list(without_scripts(scriptless, spoil(CHAPTER)))


@pytest.mark.nightly
def test_an_untouched_page_has_none_of_them(spoil: Open) -> None:
    page = spoil(CHAPTER)
    scriptless = spoil(CHAPTER, scripts=False)
    assert list(without_scripts(scriptless, page)) == []
    looks = {way: look(page, way) for way in WAYS}
    assert [said for seen in looks.values() for said in seen.violations] == []
    assert [said for check, way, _ in MISTAKES for said in check(looks[way])] == []
    assert list(in_print(page)) == []
