"""Below a definition stand the sections that use it and the tests that name it, as links."""

from __future__ import annotations

import re
import shutil
from html import unescape
from pathlib import Path

import pytest

from press.project import SAMPLE, edit, git, sidelit, translate, unbroken

WINDOW = '''"""# The window

> A view of the last few items.
"""

from sample.ring import LIMIT, Ring, deque


class Window:
    """Sees a ring."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring

    def again(self) -> None:
        """Put something, twice."""
        self.ring.put(1)
        # Once is not enough.
        self.ring.put(2)
        self.again()

    def other(self) -> "Window":
        return Window(Ring(LIMIT))


RING = Ring(3)


class Pair:
    """Of methods."""

    def first(self) -> int:
        """The first of them."""
        return 1

    def _second(self) -> int:
        return self._inner()

    def _inner(self) -> int:
        return 2

    def third(self) -> int:
        """The third."""
        return self._second()


def shown() -> int:
    """Words."""
    return 1


SHOWN = shown()


class Many:
    """Uses a limit of its own often."""

    def one(self) -> int:
        return limit()


def limit() -> int:
    return 1

''' + "".join(f"\n\ndef use_{number}() -> int:\n    return limit()\n" for number in range(20))
TESTS = """from sample.ring import Ring
from sample.tools.window import Window


def filled():
    ring = Ring(2)
    ring.put(1)
    return ring


def helped(ring: Ring):
    return Window(ring)


class TestMany:
    def test_much(self):
        assert helped(filled())


def test_put_and_more():
    Ring(2).put(1)
    Window(Ring(2))


def test_put():
    filled()


def test_of_a_fixture(filled):
    assert filled


def test_nothing():
    Unknown().put(1)
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample with a source that uses the other one, and tests of the first."""
    sample = Path(shutil.copytree(SAMPLE, tmp_path_factory.mktemp("employed") / "sample"))
    (sample / "src/sample/tools/window.py").write_text(WINDOW, "utf-8")
    (sample / "tests").mkdir()
    (sample / "tests/test_ring.py").write_text(TESTS, "utf-8")
    edit(
        sample / "site/sidelit.toml",
        '-m sample.ring" }',
        '-m sample.ring", proves = ["tests/test_ring.py"] }',
    )
    edit(
        sample / "site/sidelit.toml",
        'name = "tools/window" }',
        'name = "tools/window", proves = ["tests/test_ring.py::TestMany"] }',
    )
    sidelit("sync", cwd=sample)
    translate(sample / "site/locale/ja/sample/tools/window.po", {"The window": "窓"})
    git(sample, "init")
    git(sample, "add", "-A")
    git(sample, "commit", "-m", "All of it")
    sidelit("build", cwd=sample)
    return sample / "build/site"


def below(pages: Path, page: str, section: str) -> list[str]:
    """The lines of a definition's box, the addresses before the words."""
    text = (pages / page).read_text("utf-8").partition(f' id="{section}"')[2]
    box = re.search(r'(?s)<details class="employed">(.*?)</details>', text.partition("</section>")[0])
    lines = re.findall(r"(?s)<(summary|dt|dd)>(.*?)</\1>", box[1]) if box else []
    addressed = (re.sub(r'<a href="([^"]*)"[^>]*>', r"\1 ", line) for _, line in lines)
    return [unescape(re.sub(r"<[^>]*>", "", line)) for line in addressed]


@pytest.mark.full
def test_the_uses_of_a_method_lead_to_their_sections_once_each(pages: Path) -> None:
    lines = below(pages, "ring.html", "Ring.put")
    assert lines[:3] == [
        "Uses: 1 · Tests: 4",
        "Used in",
        "tools/window.html#Window.again Window.again The window",
    ]


def test_of_many_uses_the_first_are_shown_and_all_are_there(pages: Path) -> None:
    text = (pages / "tools/window.html").read_text("utf-8").partition('<section id="limit"')[2]
    first, more = text.partition("</section>")[0].split("<details>")
    assert "Uses: 21" in first
    assert first.count("<dd><a ") == 12
    assert "9 more" in more
    assert more.count("<li><a ") == 9


def test_neither_an_import_nor_a_class_itself_is_a_use(pages: Path) -> None:
    places = [line.split(" ")[0] for line in below(pages, "ring.html", "Ring")[2:5]]
    assert places == [
        "tools/window.html#Window.__init__",
        "tools/window.html#Window.other",
        "tools/window.html#module/ring-ring-3",
    ]
    assert below(pages, "tools/window.html", "Window")[0] == "Window Tests: 1"
    assert "Uses" not in below(pages, "tools/window.html", "Window.again")[0]


def test_what_uses_code_without_words_stands_below_its_own_name(pages: Path) -> None:
    text = (pages / "tools/window.html").read_text("utf-8").partition('<section id="Pair.first"')[2]
    boxes = re.findall(r'(?s)<details class="employed">(.*?)</details>', text.partition("</section>")[0])
    assert [re.findall(r'<summary>(.*?)</summary>|href="([^"]*)"', unbroken(box)) for box in boxes] == [
        [("<code>_second</code> Uses: 1", ""), ("", "#Pair.third")],
        [("<code>_inner</code> Uses: 1", ""), ("", "#Pair._second")],
    ]
    # Behind the definition stands code that it is not about.
    assert below(pages, "tools/window.html", "shown")[0] == "shown Uses: 1"


def test_a_test_that_names_least_comes_first_and_helpers_and_fixtures_count(pages: Path) -> None:
    lines = below(pages, "ring.html", "Ring.put")
    at = lines.index("Proved by")
    assert [line.partition(" ")[2] for line in lines[at + 1 :]] == [
        "test_put",
        "test_of_a_fixture",
        "TestMany::test_much",
        "test_put_and_more",
    ]
    assert re.fullmatch(r"https://example.org/blob/\w+/tests/test_ring.py#L25 test_put", lines[at + 1])


def test_only_the_tests_that_a_chapter_names_prove_it(pages: Path) -> None:
    lines = below(pages, "tools/window.html", "Window.other")
    assert lines[0] == "other Tests: 1"
    assert lines[-1].endswith("TestMany::test_much")


def test_a_translation_says_it_in_its_own_words(pages: Path) -> None:
    lines = below(pages, "ja/ring.html", "Ring.put")
    assert lines[:3] == [
        "使用箇所：1 · テスト：4",
        "使われている箇所",
        "tools/window.html#Window.again Window.again 窓",
    ]


def test_no_address_leads_nowhere(pages: Path) -> None:
    for page in ("ring.html", "ja/ring.html", "tools/window.html"):
        text = (pages / page).read_text("utf-8")
        for box in re.findall(r'(?s)<details class="employed">.*?</details>', text):
            for address in re.findall(r'href="([^"]*)"', box):
                if not address.startswith("http"):
                    path, _, section = address.partition("#")
                    there = ((pages / page).parent / path) if path else pages / page
                    assert f'id="{section}"' in there.read_text("utf-8"), address
