"""Imports on a page: one line that opens, their names linked, and the rest of the page as it was."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from press.project import edit, sidelit
from sidelit.config import config
from sidelit.site import content, site
from sidelit.site.search.index import folder


@pytest.mark.parametrize(
    ("modules", "names", "more"),
    [
        (["os"], ["os"], 0),
        (["__future__"], ["__future__"], 0),
        (["__future__", "os.path", "os"], ["os"], 0),
        (["abc", "torch.nn", "shop.store.goods", "torch"], ["torch", "goods", "abc"], 0),
        ([".core", "..a.b", "re"], ["core", "b", "re"], 0),
        (["a", "b", "c", "d"], ["a", "b", "c", "d"], 0),
        (["a", "b", "c", "d", "e"], ["a", "b", "c"], 2),
    ],
)
def test_the_line_names_what_says_most(modules: list[str], names: list[str], more: int) -> None:
    assert content.named(modules, "shop.till") == content.Named(tuple(names), more)


RING = """

from __future__ import annotations

import json
import torch
from sample.tools.window import Window
from collections.abc import Sequence
from re import (
    Match,
)

if __debug__:
    import abc

__all__ = ["Ring"]
"""


def furnish(sample: Path) -> None:
    edit(sample / "src/sample/ring.py", '"""\n\n# sidelit: hide', f'"""{RING}\n\n# sidelit: hide')


@pytest.fixture
def importing(sample: Path) -> Path:
    furnish(sample)
    return sample


def folded(folder: Path, name: str) -> str:
    (found,) = re.findall(r'(?s)<details class="imports">.*?</details>', (folder / name).read_text("utf-8"))
    return str(found)


def test_imports_are_one_line_that_opens_and_their_names_are_links(importing: Path) -> None:
    sidelit("build", cwd=importing)
    found = folded(importing / "build/site", "ring.html")
    summary, _, lines = found.partition("</summary>")
    assert summary.endswith("<summary>Imports: <code>torch, window, json</code> and 3 more")
    assert '<a class="n" href="tools/window.html" tabindex="-1">window</a>' in lines
    assert 'href="tools/window.html#Window"' in lines
    assert "__all__" in lines
    there = folded(importing / "build/site", "ja/ring.html")
    said = "<summary>インポート：<code>torch, window, json</code>、ほか3個</summary>"
    assert said in there.replace("<wbr>", "")


def test_sections_words_and_the_search_are_as_without_imports(sample: Path) -> None:
    def told() -> tuple[object, ...]:
        made = config.load(sample / "site/sidelit.toml")
        found = {page.item.source: page.sections for page in site.texts(made)}["src/sample/ring.py"]
        sections = [(each.id, each.number, each.code_digest, len(each.lines)) for each in found]
        files = site.whole_files(made)
        index = {name: files[name] for name in files if name.startswith(folder("en"))}
        assert index
        return sections, index

    before = told()
    furnish(sample)
    assert told() == before


def test_translations_do_not_ask_for_a_recheck(sample: Path) -> None:
    sidelit("sync", cwd=sample)
    before = sidelit("status", cwd=sample).stdout
    furnish(sample)
    sidelit("sync", cwd=sample)
    assert sidelit("status", cwd=sample).stdout == before


def test_sections_still_tell_all_code(importing: Path) -> None:
    told = json.loads(sidelit("sections", importing / "src/sample/ring.py", cwd=importing).stdout)
    assert told[0]["code"].startswith("from __future__ import annotations\n\nimport json\n")


def test_a_package_and_a_file_under_a_licence(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("from .m import X\n\nY = X\n", encoding="utf-8")
    (tmp_path / "m.py").write_text("# Licence.\n\nimport os\n\nX = os.sep\n", encoding="utf-8")
    sidelit("print", tmp_path / "__init__.py", tmp_path / "m.py", "--out", tmp_path / "out", cwd=tmp_path)
    shut = (tmp_path / "out/m.html").read_text("utf-8")
    shown = [path.name for path in (tmp_path / "out").glob("*.html") if 'class="imports"' in path.read_text()]
    assert shown == ["m.html"]
    assert shut.count('<details class="imports"><summary>Imports: <code>os</code></summary>') == 1
    assert shut.index("Licence.</p>") < shut.index('<details class="imports"') < shut.index(">sep")
