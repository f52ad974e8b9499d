"""What stands on a page, and templates: one that asks for what is not there stops the build at its line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

from press import project
from press.project import edit, sidelit
from sidelit import theme
from sidelit.config import config
from sidelit.errors import SidelitError
from sidelit.files import assets
from sidelit.site import links, site

# ## Templates


@pytest.fixture
def templates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the templates that the press uses in place of its own."""
    folder = Path(shutil.copytree(assets.templates_folder(), tmp_path / "templates"))
    monkeypatch.setattr(assets, "templates_folder", lambda: folder)
    theme.forget()
    yield folder
    theme.forget()


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ("{{ asset('nothing.css') }}", "assets/nothing.css"),
        ("{{ ui.nothing }}", "nothing"),
        ("{{ page.nothing }}", "nothing"),
        ("{% if %}", "template"),
    ],
)
def test_a_template_that_is_wrong(sample: Path, templates: Path, broken: str, words: str) -> None:
    path = templates / "prose.html"
    lines = path.read_text(encoding="utf-8").splitlines()
    place = next(number for number, text in enumerate(lines) if "block main" in text) + 1
    lines.insert(place, broken)
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(SidelitError, match=words) as told:
        site.whole_files(config.load(sample / "site/sidelit.toml"))
    assert str(told.value).startswith(f"templates/prose.html:{place + 1}: ")


def test_a_word_that_one_language_lacks(sample: Path, templates: Path) -> None:
    path = templates / "ui" / "ja.toml"
    text = path.read_text(encoding="utf-8")
    path.write_text(
        "".join(line for line in text.splitlines(True) if not line.startswith("part =")), encoding="utf-8"
    )
    with pytest.raises(SidelitError, match="part") as told:
        site.whole_files(config.load(sample / "site/sidelit.toml"))
    assert str(told.value).startswith("templates/ui/ja.toml:8: words of the interface are missing: part;")


@pytest.mark.full
def test_templates_are_read_again_for_the_next_build(sample: Path, templates: Path) -> None:
    configuration = sample / "site/sidelit.toml"
    assert "Sample" in site.whole_files(config.load(configuration))["ring.html"].decode()
    edit(templates / "ui/en.toml", 'name = "English"', 'name = "Plain English"')
    edit(templates / "prose.html", "{%- block main %}", "{%- block main %}<b>again</b>")
    made = site.whole_files(config.load(configuration))
    assert "Plain English" in made["ja/ring.html"].decode()
    assert "<b>again</b>" in made["notes/reading.html"].decode()


# ## On the page


@pytest.mark.parametrize(
    ("target", "at", "address"),
    [
        ("a.html", "b.html", "a.html"),
        ("a.html", "ja/b.html", "../a.html"),
        ("ja/a.html", "ja/b/c.html", "../a.html"),
        ("zh/a/b.html", "ja/a/b.html", "../../zh/a/b.html"),
    ],
)
def test_addresses_are_relative(target: str, at: str, address: str) -> None:
    assert links.relative(target, at) == address


def test_a_title_keeps_what_looks_like_a_tag(tmp_path: Path) -> None:
    text = '"""# The `<file>` element\n\n> It may hold an <item>.\n"""\n'
    (tmp_path / "one.py").write_text(text, encoding="utf-8")
    sidelit("print", "one.py", "--out", "out", cwd=tmp_path)
    html = (tmp_path / "out/one.html").read_text(encoding="utf-8")
    assert "<title>The &lt;file&gt; element" in html
    assert 'content="It may hold an &lt;item&gt;."' in html


def test_a_page_says_in_its_language_how_long_a_line_is_whose_beginning_it_shows(tmp_path: Path) -> None:
    text = f'"""Words."""\n# Data.\nDATA = "{"abcdefgh" * 2_000}"\nMORE = DATA\n'
    (tmp_path / "one.py").write_text(text, encoding="utf-8")
    for lang, said in (("en", "… a line of 16,009 characters, of"), ("zh", "…… 这一行共 16,009 个字符，")):
        sidelit("print", "one.py", "--out", lang, "--lang", lang, cwd=tmp_path)
        html = (tmp_path / lang / "one.html").read_text(encoding="utf-8")
        assert f'<span class="rest">{said}' in html
        assert html.count("abcdefgh") < 100
    objects = json.loads(sidelit("sections", "one.py", cwd=tmp_path).stdout)
    assert "".join(each["source"] for each in objects) == text


def test_a_formula_in_a_heading_alone_gets_its_stylesheet(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(
        '"""Words."""\n# ## All $N$ ranks\n#\n# Text.\nx = 1\n', encoding="utf-8"
    )
    sidelit("print", "one.py", "--out", "out", cwd=tmp_path)
    html = (tmp_path / "out/one.html").read_text(encoding="utf-8")
    assert 'class="katex"' in html
    assert "katex-swap.min.css" in html


NOTED = '''"""# Title[^a]

> Lede[^b].

Text[^b].

[^a]: First.
[^b]: Second.
"""
# ## Part[^c]
#
# Text.
#
# [^c]: Third.
x = 1
'''


def test_footnotes_of_titles_and_ledes_lead_somewhere(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(NOTED, encoding="utf-8")
    sidelit("print", "one.py", "--out", "out", cwd=tmp_path)
    shown = project.page(tmp_path / "out", "one.html")
    assert len(set(shown.ids)) == len(shown.ids)
    inner = [unquote(address[1:]) for address in shown.addresses if address.startswith("#")]
    assert set(inner) <= set(shown.ids)


def many(classes: int, methods: int, words: str = "") -> str:
    held = "".join(f"    def m{number}(self): ...\n" for number in range(methods)) or "    pass\n"
    return words + "\n".join(f"class C{number}:\n{held}" for number in range(classes))


@pytest.mark.parametrize(("classes", "methods"), [(20, 0), (4, 4)])
def test_a_short_list_of_contents_is_seen_at_a_glance(tmp_path: Path, classes: int, methods: int) -> None:
    (tmp_path / "one.py").write_text(many(classes, methods), encoding="utf-8")
    sidelit("print", "one.py", "--out", "out", cwd=tmp_path)
    html = (tmp_path / "out/one.html").read_text("utf-8")
    assert 'class="under"' not in html
    assert 'class="rest"' not in html


def test_a_long_list_of_contents_folds_after_twenty_and_methods_below_their_class(tmp_path: Path) -> None:
    told = '"""# Two\n\n> Told.\n\nMore.\n"""\n'
    for name, words in (("one", "import os\n"), ("two", told), ("three", "")):
        (tmp_path / f"{name}.py").write_text(many(23, 2, words), encoding="utf-8")
        sidelit("print", f"{name}.py", "--out", "out", cwd=tmp_path)
        html = (tmp_path / f"out/{name}.html").read_text("utf-8")
        opening = html[html.index('<nav class="inside toc"') : html.index('<section id="C0"')]
        shown, rest = opening.split('<details class="rest"><summary>3 more</summary>')
        assert (shown.count('<li class="d0">'), rest.count('<li class="d0">')) == (20, 3)
        assert 'C5</code></a><details class="under"><summary aria-label="C5: 2 more"></summary>' in shown
        # Every section has its line in the contents all the same.
        assert opening.count('<li class="d1">') == 23 * 2
        # Without words of its own, the module opens with the list; beside words the list stands at the side.
        assert ("opening across" in html) == (name != "two")


def test_a_heading_does_not_take_an_id_of_the_page(sample: Path) -> None:
    with (sample / "site/pages/index.md").open("a", encoding="utf-8") as file:
        file.write("\n\n## Main text\n\nNoted[^a].\n\n## Note 1\n\n[^a]: A note.\n")
    sidelit("build", cwd=sample)
    ids = project.page(sample / "build/site", "index.html").ids
    assert len(set(ids)) == len(ids)


def test_a_site_without_a_home_page_begins_with_its_first_page(tmp_path: Path) -> None:
    for name in ("b.py", "a.py"):
        (tmp_path / "src").mkdir(exist_ok=True)
        (tmp_path / "src" / name).write_text('"""# A page"""\n\nx = 1\n', encoding="utf-8")
    (tmp_path / "site").mkdir()
    configured = (
        'title = "T"\nurl = "https://example.org/"\n[[parts]]\nlabel = "P"\nchapters = ["b.py", "a.py"]\n'
    )
    (tmp_path / "site/sidelit.toml").write_text(configured, encoding="utf-8")
    sidelit("build", cwd=tmp_path)
    site = tmp_path / "build/site"
    for name in ("a.html", "b.html", "404.html"):
        text = (site / name).read_text("utf-8")
        assert "index.html" not in text
        assert 'href="b.html"' in text or name == "404.html"
