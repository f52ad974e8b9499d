"""`sidelit print` takes any literate Python, whatever its authors wrote in it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from press.project import Html, page, sidelit, translate, tree

ODD = r'''
"""Costs $5, or $HOME and `a|b`, *args and **kwargs.

Parameters
----------
x : int
    Something_with_underscores_ and <b>tags</b> & [a link](nowhere.md) ![](no.png).

.. math:: \frac{1}{2

>>> f(1)"""
# A formula $\nosuch{x}$ that no KaTeX knows, and a footnote[^none]
# | half | a
# |---
#
# !!! oddity "Really?"
#     - list
#         1. deep
def f(*args, **kwargs):
    """
        >>> f("x")

    Returns:
        $$ unclosed
    """
    return args
'''


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    (tmp_path / "odd.py").write_text(ODD.lstrip(), encoding="utf-8")
    return tmp_path


def test_a_lone_file_becomes_a_page_that_needs_no_configuration(odd: Path) -> None:
    done = sidelit("print", "odd.py", "--out", "out", cwd=odd)
    assert done.stdout == "1 page: out/odd.html\n"
    assert [name for name in tree(odd / "out") if name.endswith(".html")] == ["odd.html"]
    shown = page(odd / "out", "odd.html")
    assert shown.lang == "en"
    assert "odd.py" in shown.text
    assert {"module", "f"} <= set(shown.sections)
    assert "return args" in shown.text
    assert "<strong>tags</strong>" in (odd / "out/odd.html").read_text("utf-8")
    # What is odd stands there as it was typed.
    assert r"\nosuch{x}" in shown.text


def test_what_is_odd_is_a_warning_with_its_place(odd: Path) -> None:
    lines = sidelit("print", "odd.py", "--out", "out", cwd=odd).stderr.splitlines()
    place = ODD.lstrip()[: ODD.lstrip().index("# A formula")].count("\n") + 1
    assert any(line.startswith(f"warning: odd.py:{place}: KaTeX refuses") for line in lines)
    assert any("'nowhere.md'" in line for line in lines)
    assert all(line.startswith("warning: odd.py:") for line in lines)


def test_strict_makes_an_error_of_it_and_writes_nothing(odd: Path) -> None:
    sidelit("print", "odd.py", "--out", "out", cwd=odd)
    before = tree(odd / "out")
    (odd / "odd.py").write_text(ODD.lstrip() + "\nx = 1\n", encoding="utf-8")
    done = sidelit("print", "odd.py", "--out", "out", "--strict", cwd=odd, code=1)
    assert done.stderr.count("odd.py:") == done.stderr.count("\n") > 1
    assert tree(odd / "out") == before


def test_several_files_keep_their_places_and_get_an_index(odd: Path) -> None:
    package = odd / "package" / "deep"
    package.mkdir(parents=True)
    (package / "one.py").write_text('"""See [two](../two.py#g)."""\n', encoding="utf-8")
    (odd / "package" / "two.py").write_text('"""# Number two"""\n\n\ndef g(): ...\n', encoding="utf-8")
    done = sidelit("print", "package", "odd.py", "--out", "out", cwd=odd)
    assert "nowhere" in done.stderr
    assert "two.py" not in done.stderr
    names = [name for name in tree(odd / "out") if name.endswith(".html")]
    assert names == ["index.html", "odd.html", "package/deep/one.html", "package/two.html"]
    index = page(odd / "out", "index.html")
    assert {"odd.html", "package/deep/one.html", "package/two.html"} <= set(index.addresses)
    assert "Number two" in index.text
    assert "package.deep.one" in index.text
    assert "../two.html#g" in page(odd / "out", "package/deep/one.html").addresses


def test_one_of_many_that_is_no_python_is_left_out_and_told(odd: Path) -> None:
    (odd / "broken.py").write_text("x = 1\ndef f(:\n", encoding="utf-8")
    (odd / "good.py").write_text('"""[It](broken.py)"""\n', encoding="utf-8")
    done = sidelit("print", ".", "--out", "out", cwd=odd)
    assert done.stdout == "2 pages in out, and 1 file skipped\n"
    assert [line for line in done.stderr.splitlines() if line.startswith("skipped: ")] == [
        "skipped: broken.py:2: not valid Python: invalid syntax"
    ]
    assert {"good.html", "odd.html", "index.html"} == {
        name for name in tree(odd / "out") if name.endswith(".html")
    }
    assert "broken.html" not in page(odd / "out", "index.html").addresses


def test_the_list_of_the_pages_is_none_of_them(odd: Path) -> None:
    (odd / "broken.py").write_text("def f(:\n", encoding="utf-8")
    done = sidelit("print", "odd.py", "broken.py", "--out", "out", cwd=odd)
    assert done.stdout == "1 page: out/odd.html, and 1 file skipped\n"


@pytest.mark.parametrize("arguments", [["broken.py"], ["broken.py", "odd.py", "--strict"]])
def test_alone_or_strictly_it_is_an_error(odd: Path, arguments: list[str]) -> None:
    (odd / "broken.py").write_text("x = 1\ndef f(:\n", encoding="utf-8")
    done = sidelit("print", *arguments, "--out", "out", cwd=odd, code=1)
    assert "broken.py:2: not valid Python" in done.stderr
    assert not (odd / "out").exists()


def test_a_module_called_index_keeps_its_page(tmp_path: Path) -> None:
    for name in ("index", "other"):
        (tmp_path / f"{name}.py").write_text(f'"""# The {name} module"""\n', encoding="utf-8")
    sidelit("print", "index.py", "other.py", "--out", "out", cwd=tmp_path)
    assert "The index module" in page(tmp_path / "out", "index.html").text
    assert "index.html" in page(tmp_path / "out", "contents.html").addresses


def test_links_to_the_pages_and_names_of_another_tool_lead_to_ours(tmp_path: Path) -> None:
    files = {
        "pkg/__init__.py": "[a](sub/a.html), [its class](sub/a.html#the-class), [sub](sub/index.html)",
        "pkg/sub/__init__.py": "[up](../), [a](a), [this](../sub)",
        "pkg/sub/a.py": '<a id="head"></a>\n\n# A title\n\n[home](../index.html), [below](#the-class)',
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(f'"""\n{text}\n"""\n', encoding="utf-8")
    with (tmp_path / "pkg/sub/a.py").open("a", encoding="utf-8") as source:
        source.write('class A:\n    """Says <a id="the-class"></a>more. <a id="head"></a>"""\n\n    x = 1\n')
    assert sidelit("print", "pkg", "--out", "out", "--strict", cwd=tmp_path).stderr == ""
    addresses = {name: page(tmp_path / "out", name).addresses for name in ("__init__.html", "sub/a.html")}
    assert {"sub/a.html", "sub/a.html#the-class", "sub/__init__.html"} <= set(addresses["__init__.html"])
    assert {"../__init__.html", "#the-class"} <= set(addresses["sub/a.html"])
    assert {"../__init__.html", "a.html", "__init__.html"} <= set(
        page(tmp_path / "out", "sub/__init__.html").addresses
    )
    shown = page(tmp_path / "out", "sub/a.html")
    assert shown.ids.count("the-class") == shown.ids.count("head") == 1
    assert "A title" in shown.text
    assert "<a id" not in shown.text


def test_the_language_of_the_page_can_be_chosen(sample: Path) -> None:
    ring = sample / "src/sample/ring.py"
    sidelit("print", ring, "--out", "plain", "--lang", "ja", cwd=sample.parent)
    assert page(sample.parent / "plain", "ring.html").lang == "ja"
    told = sidelit("print", ring, "--out", "none", "--lang", "xx", cwd=sample, code=1).stderr
    assert "'xx'" in told
    assert "en, ja, zh" in told
    assert not (sample / "none").exists()


@pytest.mark.full
def test_a_file_of_a_project_is_translated_by_its_catalogues(sample: Path) -> None:
    sidelit("sync", cwd=sample)
    catalogue = sample / "site/locale/ja/sample/ring.po"
    translate(catalogue, {"A ring": "リング"})
    sidelit("print", "src/sample/ring.py", "--out", "out", "--lang", "ja", cwd=sample)
    assert "リング" in page(sample / "out", "ring.html").text
    # Catalogues from elsewhere are given by their folder and win.
    elsewhere = sample / "elsewhere/ja/ring.po"
    elsewhere.parent.mkdir(parents=True)
    elsewhere.write_bytes(catalogue.read_bytes())
    translate(elsewhere, {"A ring": "輪"})
    command = ("print", "src/sample/ring.py", "--out", "out", "--lang", "ja", "--locale", "elsewhere")
    sidelit(*command, cwd=sample)
    assert "輪" in page(sample / "out", "ring.html").text


@pytest.fixture
def chinese(tmp_path: Path) -> Path:
    """A site whose sources are Chinese, and which is translated into Japanese."""
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets/__init__.py").write_text('"""# 网络\n\n这里有许多小的神经网络。"""\n', "utf-8")
    (tmp_path / "nets/net.py").write_text('"""# 一层\n\n它把输入乘以权重。"""\n', "utf-8")
    sidelit("init", "--lang", "zh", "--lang", "ja", cwd=tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("asked", "lang", "marked"),
    [
        ("", "zh-Hans", False),
        ("--source en", "en", False),
        ("--lang en", "en", False),
        ("--source en --lang ja", "ja", False),
        # The site is translated into this one, and nobody has done it yet.
        ("--lang ja", "ja", True),
    ],
)
def test_what_is_asked_for_wins_and_the_rest_is_as_the_site_says(
    chinese: Path, asked: str, lang: str, marked: bool
) -> None:
    sidelit("print", "nets", "--out", "out", *asked.split(), cwd=chinese)
    assert page(chinese / "out", "net.html").lang == lang
    assert ('class="badge' in (chinese / "out/net.html").read_text("utf-8")) == marked


def test_translations_of_a_language_that_nobody_names_are_refused(odd: Path) -> None:
    (odd / "locale").mkdir()
    told = sidelit("print", "odd.py", "--out", "out", "--locale", "locale", cwd=odd, code=1).stderr
    assert told == "locale: nobody says into what language these translations are; name it with --lang\n"


@pytest.mark.cases(now=1, ci=1)
@pytest.mark.parametrize("name", ["argparse.py", "heapq.py", "dataclasses.py", "this.py", "_pydecimal.py"])
def test_modules_of_the_standard_library_print_whole(tmp_path: Path, name: str) -> None:
    source = Path(ast.__file__).parent / name
    done = sidelit("print", source, "--out", "out", cwd=tmp_path)
    assert "Traceback" not in done.stderr
    html = (tmp_path / "out" / name).with_suffix(".html").read_text(encoding="utf-8")
    shown = Html(html)
    tree_of = ast.parse(source.read_bytes())
    names = [n.name for n in tree_of.body if isinstance(n, ast.ClassDef | ast.FunctionDef)]
    # What says nothing joins the section before, and its name leads there.
    assert set(names) <= {section.partition("@")[0] for section in shown.ids}
    assert len(set(shown.ids)) == len(shown.ids)


@pytest.mark.nightly
def test_the_press_prints_itself(tmp_path: Path) -> None:
    import sidelit as press

    done = sidelit("print", Path(press.__file__).parent, "--out", "out", cwd=tmp_path)
    pages = [name for name in tree(tmp_path / "out") if name.endswith(".html")]
    assert {"site/site.html", "source/source.html", "cli/options.html"} <= set(pages)
    assert "KaTeX refuses" not in done.stderr


@pytest.mark.full
def test_an_interrupted_reader_is_no_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sidelit", "sections", ast.__file__]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path) as started:
        assert started.stdout is not None
        assert started.stderr is not None
        started.stdout.read(1)
        started.stdout.close()
        assert b"Traceback" not in started.stderr.read()


def test_a_folder_of_translations_that_is_not_there_is_told(odd: Path) -> None:
    told = sidelit("print", "odd.py", "--out", "out", "--lang", "ja", "--locale", "nowhere", cwd=odd, code=1)
    assert told.stderr == "nowhere: there is no such folder of translations; name another\n"
    assert not (odd / "out").exists()


def test_a_name_of_a_file_that_is_skipped_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("from b import f\n\nprint(f())\n", "utf-8")
    twice = '"""# B\n\n:figure: one\n:figure: two\n"""\n\n\ndef f():\n    return 1\n'
    (tmp_path / "b.py").write_text(twice, "utf-8")
    done = sidelit("print", "a.py", "b.py", "--out", "out", cwd=tmp_path)
    assert "b.py" in done.stderr
    assert (tmp_path / "out/a.html").is_file()


HEADED = '''
r"""
.. note:: First.

Title
-----

Words.

Title
-----

Part
^^^^

See :class:`f`.
"""

# # A comment
#
# Words.
#
# #### Deep


def f():
    """Words of Markdown.

    # One

    ### Two

    # Three
    """
'''


def test_headings_of_a_docstring_stand_below_the_one_above_them_and_none_skips_a_level(
    tmp_path: Path,
) -> None:
    (tmp_path / "headed.py").write_text(HEADED.lstrip(), encoding="utf-8")
    sidelit("print", "headed.py", "--out", "out", cwd=tmp_path)
    shown = (tmp_path / "out/headed.html").read_text("utf-8").partition("<main")[2]
    assert re.findall(r"<(h\d)[^>]*>(?:<code>)?(\w[\w ]*)", shown) == [
        ("h1", "headed"),
        ("h2", "Title"),
        ("h2", "Title"),
        ("h3", "Part"),
        ("h2", "A comment"),
        ("h3", "Deep"),
        ("h2", "f"),
        ("h3", "One"),
        ("h4", "Two"),
        ("h3", "Three"),
    ]


QUOTED = '''
"""风格可以是 'default', "first letter" 或者 "默认 default"，它们 don't，见“引号”.

Python's "str" and '*tone*'.
"""
'''


def test_quotes_around_letters_are_as_narrow_as_letters_beside_ideographs(tmp_path: Path) -> None:
    (tmp_path / "quoted.py").write_text(QUOTED.lstrip(), encoding="utf-8")
    said = {}
    for lang in ("zh", "ja", "en"):
        sidelit("print", "quoted.py", "--lang", lang, "--out", lang, cwd=tmp_path)
        said[lang] = re.sub("<[^>]*>", "", (tmp_path / lang / "quoted.html").read_text("utf-8"))
    for lang in ("zh", "ja"):
        assert (
            "风格可以是 'default', \"first letter\" 或者 “默认 default”，它们 don't，见“引号”." in said[lang]
        )
        assert "Python's \"str\" and 'tone'." in said[lang]
    # A font of letters has printed ones.
    assert "‘default’, “first letter” 或者 “默认 default”，它们 don’t，见“引号”." in said["en"]


def test_english_beside_its_translation_keeps_the_quotes_of_english(tmp_path: Path) -> None:
    (tmp_path / "quoted.py").write_text('"""# It\'s\n\nIt\'s "new".\n\n- It\'s "old".\n"""\n', "utf-8")
    (tmp_path / "locale/zh").mkdir(parents=True)
    words = 'msgctxt "module"\nmsgid "It\'s"\nmsgstr "它\'s"\n'
    (tmp_path / "locale/zh/quoted.po").write_text(words, "utf-8")
    sidelit("print", "quoted.py", "--lang", "zh", "--locale", "locale", "--out", "out", cwd=tmp_path)
    shown = (tmp_path / "out/quoted.html").read_text("utf-8")
    assert "它's</h1>" in shown
    assert re.findall(r'lang="en"[^>]*>(It[^<]*)<', shown) == ["It’s “new”.", "It’s “old”."]
