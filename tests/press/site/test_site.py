"""A site is built from a small project by the command a reader would type, and looked at from outside."""

from __future__ import annotations

import posixpath
import re
import subprocess
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from press.project import SAMPLE_PAGES, Html, edit, page, run, sidelit, translate, tree

PAGES = [prefix + name for prefix in ("", "ja/", "zh/") for name in (*SAMPLE_PAGES, "contents.html")]


@pytest.fixture
def built(sample: Path) -> Path:
    done = sidelit("build", cwd=sample)
    assert "18 pages" in done.stdout
    return sample / "build" / "site"


def test_every_page_exists_in_every_language_and_nothing_else_is_left_behind(built: Path) -> None:
    files = tree(built)
    assert sorted(name for name in files if name.endswith(".html")) == sorted(PAGES)
    assert "assets/theme.js" in files
    assert "pictures/columns.svg" in files
    assert not [name for name in files if name.endswith((".md", ".py", ".toml", ".po"))]
    assert [path.name for path in built.parent.iterdir()] == ["site"]


@pytest.mark.nightly
def test_languages_are_declared_and_share_their_ids(built: Path) -> None:
    for name in SAMPLE_PAGES:
        english, japanese, chinese = (page(built, prefix + name) for prefix in ("", "ja/", "zh/"))
        assert (english.lang, japanese.lang, chinese.lang) == ("en", "ja", "zh-Hans")
        assert english.ids == japanese.ids == chinese.ids
        assert len(set(english.ids)) == len(english.ids)


@pytest.mark.nightly
def test_every_address_leads_somewhere(built: Path) -> None:
    ids = {name: set(page(built, name).ids) for name in PAGES}
    files = tree(built)
    outside = set()
    for name in PAGES:
        for address in page(built, name).addresses:
            parts = urlsplit(address)
            if parts.scheme:
                outside.add(parts.netloc)
                continue
            path = unquote(parts.path)
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) if path else name
            assert target in files, f"{name}: {address}"
            assert not parts.fragment or unquote(parts.fragment) in ids[target], f"{name}: {address}"
    assert outside == {"example.org"}


def test_nothing_is_fetched_from_elsewhere(built: Path) -> None:
    for name in PAGES:
        html = (built / name).read_text(encoding="utf-8")
        assert "default-src 'none'" in html
        assert not [
            part for part in html.split("<") if part.startswith(("script ", "link ", "img ")) and "//" in part
        ]
        assert "reload" not in html


def test_a_section_holds_its_words_and_its_lines_under_their_numbers(built: Path) -> None:
    html = (built / "ring.html").read_text(encoding="utf-8")
    shown = page(built, "ring.html")
    assert {"module", "Ring", "Ring.__init__", "Ring.put"} <= set(shown.sections)
    put = Html(html[html.index('<section id="Ring.put"') :].partition("</section>")[0]).text
    assert "Add an item" in put
    assert "42" in put
    assert "self._items.append(item)" in put
    assert "Sample" in shown.text
    assert "A ring" in shown.text


def test_hidden_lines_are_left_out_and_still_counted(built: Path) -> None:
    html = (built / "ring.html").read_text(encoding="utf-8")
    assert "__all__" not in page(built, "ring.html").text
    assert 'id="line-24"' in html
    assert 'id="line-18"' not in html


def test_formulas_are_set_for_eyes_and_for_screen_readers(built: Path) -> None:
    html = (built / "ring.html").read_text(encoding="utf-8")
    assert html.count("<math ") == 5
    assert "katex-html" in html
    assert "$N$" not in html


def test_a_macro_of_the_configuration_may_stand_in_every_formula(sample: Path) -> None:
    edit(sample / "site/sidelit.toml", "[[parts]]", "[macros]\n'\\R' = '\\mathbb{R}'\n\n[[parts]]")
    edit(sample / "src/sample/ring.py", "A ring of $N$", r"A ring of $\R$")
    sidelit("build", cwd=sample)
    html = (sample / "build/site/ring.html").read_text(encoding="utf-8")
    assert '<annotation encoding="application/x-tex">\\R</annotation>' in html
    assert 'mathvariant="double-struck"' in html


@pytest.mark.nightly
def test_links_of_all_kinds_are_resolved(built: Path) -> None:
    assert "tools/window.html#Window" in page(built, "ring.html").addresses
    assert "../tools/window.html#Window" not in page(built, "ja/ring.html").addresses
    assert "bibliography.html#bib-knuth1973art" in page(built, "ring.html").addresses
    assert "ring.html#Ring.put" in page(built, "index.html").addresses
    assert "../ring.html" in page(built, "tools/window.html").addresses
    assert "../../pictures/columns.svg" in page(built, "ja/notes/reading.html").addresses


def test_headings_in_any_script_have_ids_of_their_own_words(sample: Path) -> None:
    links = "[Below](#配置), [above](#安装-pytorch), [a kept link](#pytorch)."
    told = f"## 安装 PyTorch\n\n{links}\n\n## 配置 {{#setup}}\n\n## 配置\n\n## The works"
    edit(sample / "site/pages/notes/reading.md", "## The works", told)
    edit(sample / "site/pages/index.md", "(notes/reading.md#the-two-columns)", "(notes/reading.md#setup)")
    sidelit("build", cwd=sample)
    for prefix in ("", "ja/"):
        shown = page(sample / "build/site", f"{prefix}notes/reading.html")
        assert {"setup", "配置", "安装-pytorch", "pytorch"} <= set(shown.ids)
        assert {"#配置", "#安装-pytorch", "#pytorch", "#setup"} <= set(map(unquote, shown.addresses))
        assert "{#" not in shown.text
        assert "notes/reading.html#setup" in page(sample / "build/site", f"{prefix}index.html").addresses


def test_a_picture_keeps_its_room_until_it_is_there(built: Path) -> None:
    html = (built / "ja/notes/reading.html").read_text(encoding="utf-8")
    assert re.search(r'<img src="[^"]+columns.svg"[^>]* width="2" height="1"', html)
    assert "../glossary.html#term-ring" in page(built, "zh/notes/reading.html").addresses


def test_each_section_leads_to_itself_in_the_other_languages(built: Path) -> None:
    for name in ("ring.html", "tools/window.html"):
        shown = page(built, name)
        up = "../" * name.count("/")
        for section in shown.sections:
            assert f"{up}ja/{name}#{section}" in shown.addresses
            assert f"{up}zh/{name}#{section}" in shown.addresses


def test_glossary_and_bibliography_are_made_from_data(built: Path) -> None:
    glossary, works = page(built, "glossary.html"), page(built, "bibliography.html")
    assert "term-window" in glossary.ids
    assert "ウィンドウ" in glossary.text
    assert "环形缓冲区" in glossary.text
    assert "bib-knuth1973art" in works.ids
    assert "Donald E. Knuth" in works.text
    # The work is cited by one page, and its entry leads there.
    assert "ring.html" in works.addresses


@pytest.mark.nightly
def test_two_builds_of_the_same_project_are_equal(sample: Path, built: Path) -> None:
    first = tree(built)
    sidelit("build", "--out", sample / "again", cwd=sample)
    assert tree(sample / "again") == first


@pytest.mark.nightly
def test_a_page_that_is_gone_from_the_project_is_gone_from_the_site(sample: Path, built: Path) -> None:
    edit(sample / "site" / "sidelit.toml", '[[front]]\nsource = "notes/reading.md"\n', "")
    edit(sample / "site" / "pages" / "index.md", ", then [how to read](notes/reading.md#the-two-columns)", "")
    sidelit("build", cwd=sample)
    assert not (built / "notes").exists()


@pytest.mark.nightly
@pytest.mark.parametrize("module", ["sidelit", "mkdocs"])
def test_a_site_that_is_a_link_stays_one(sample: Path, module: str) -> None:
    (sample / "elsewhere/here").mkdir(parents=True)
    (sample / "build").mkdir()
    (sample / "build/site").symlink_to("../elsewhere/here")
    done = run(module, "build", cwd=sample)
    assert done.returncode == 0, done.stderr
    assert (sample / "build/site").is_symlink()
    assert (sample / "elsewhere/here/ring.html").is_file()


@pytest.mark.nightly
def test_what_is_translated_is_shown_and_the_rest_stays_english(sample: Path, built: Path) -> None:
    assert "missing" in (built / "ja" / "ring.html").read_text(encoding="utf-8")
    sidelit("sync", cwd=sample)
    translate(
        sample / "site/locale/ja/sample/ring.po",
        {"A ring": "リング", "Make an empty ring.": "空のリングを作る。"},
    )
    sidelit("build", cwd=sample)
    html = (built / "ja" / "ring.html").read_text(encoding="utf-8")
    shown = Html(html)
    assert "リング" in shown.text
    assert "空のリングを作る。" in shown.text
    assert "Make an empty ring." not in shown.text
    # What has no translation is English, and says so to browsers and screen readers.
    assert "Keeps the last items" in shown.text
    assert '<p lang="en"' in html
    # The navigation of the other pages follows.
    assert "リング" in page(built, "ja/index.html").text
    assert "リング" not in page(built, "zh/ring.html").text


@pytest.mark.nightly
def test_labels_of_parts_are_translated(sample: Path, built: Path) -> None:
    sidelit("sync", cwd=sample)
    translate(sample / "site/locale/zh/site.po", {"Containers": "容器"})
    sidelit("build", cwd=sample)
    assert "容器" in page(built, "zh/ring.html").text
    assert "Containers" not in page(built, "zh/ring.html").text


@pytest.mark.nightly
def test_the_foot_names_version_commit_and_date(sample: Path) -> None:
    (sample / "pyproject.toml").write_text(
        '[project]\nname = "sample"\nversion = "1.2.3"\n', encoding="utf-8"
    )
    date = {"GIT_AUTHOR_DATE": "2024-05-06T12:00:00+00:00", "GIT_COMMITTER_DATE": "2024-05-06T12:00:00+00:00"}
    commit = commit_all(sample, date)
    sidelit("build", cwd=sample)
    shown = page(sample / "build/site", "ring.html")
    assert "1.2.3" in shown.text
    assert commit[:10] in shown.text
    assert f"{commit[:10]}+" not in shown.text
    assert "2024-05-06" in shown.text
    assert f"https://example.org/blob/{commit}/src/sample/ring.py#L42" in shown.addresses
    assert "2.13.0" in shown.text
    assert "python -m sample.ring" in shown.text
    edit(sample / "src/sample/ring.py", "LIMIT = 8", "LIMIT = 9")
    sidelit("build", cwd=sample)
    assert f"{commit[:10]}+" in page(sample / "build/site", "ring.html").text


def test_the_commit_of_somebody_elses_repository_is_not_ours(sample: Path) -> None:
    outside = sample.parent
    (outside / ".gitignore").write_text("sample/\n", encoding="utf-8")
    commit = commit_all(outside, {})
    sidelit("build", cwd=sample)
    shown = page(sample / "build/site", "ring.html")
    assert commit[:7] not in shown.text
    assert not [address for address in shown.addresses if "/blob/" in address]


def commit_all(folder: Path, dates: dict[str, str]) -> str:
    """Put a folder under git, with an identity of its own, and return the commit."""

    def git(*arguments: str) -> str:
        identity = (
            "-c",
            "user.name=Reader",
            "-c",
            "user.email=reader@example.org",
            "-c",
            "commit.gpgsign=false",
        )
        command = ("git", *identity, *arguments)
        environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(folder), **dates}
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    git("init", "-q")
    git("add", "-A")
    git("commit", "-q", "-m", "All of it")
    return git("rev-parse", "HEAD")
