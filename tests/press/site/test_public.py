"""A site with a public address: one value, and all that leads to the site or away from it follows."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from urllib.parse import quote
from xml.etree import ElementTree

import pytest

from press.project import git, sidelit, tree
from sidelit.config import config, origin

URL = "https://ada.github.io/loom/"
CHANGES = """# Changelog

## 0.3.0 (unreleased)

Nothing yet.

## 0.2.0 (2026-11-20)

- It has a *ring* & <b>more</b>.

## [0.1.0] - 2026-10-01

The first one.
"""
LINK = re.compile(
    r'<link rel="([^"]+)"(?: hreflang="([^"]+)")?(?: type="[^"]+")?(?: title="[^"]+")? href="([^"]+)"'
)


@pytest.fixture
def published(sample: Path) -> Path:
    """The sample project with a public address and nothing else, in a repository, and built."""
    path = sample / "site/sidelit.toml"
    text = re.sub(r"(?m)^(source|report)_url.*\n", "", path.read_text("utf-8"))
    path.write_text(f'url = "{URL}"\n{text}', encoding="utf-8")
    (sample / "CHANGELOG.md").write_text(CHANGES, encoding="utf-8")
    (sample / "pyproject.toml").write_text('[project]\nversion = "0.3.0"\n', encoding="utf-8")
    card = sample / "site/cards/index.png"
    card.parent.mkdir()
    card.write_bytes(b"\x89PNG")
    git(sample, "init", "-q")
    git(sample, "add", "-A")
    git(sample, "commit", "-qm", "All of it")
    sidelit("build", cwd=sample)
    return sample


def head(text: str) -> dict[str, list[str]]:
    """What the meta tags of a page say."""
    found: dict[str, list[str]] = {}
    for name, said in re.findall(r'<meta (?:name|property)="([^"]+)" content="([^"]*)">', text):
        found.setdefault(name, []).append(unescape(said))
    return found


def test_one_address_gives_every_link(published: Path) -> None:
    site = published / "build/site"
    commit = git(published, "rev-parse", "HEAD").strip()
    addresses = {"en": f"{URL}ring.html", "ja": f"{URL}ja/ring.html", "zh-Hans": f"{URL}zh/ring.html"}
    for lang, file in (("en", "ring.html"), ("zh-Hans", "zh/ring.html")):
        text = (site / file).read_text("utf-8")
        links = LINK.findall(text)
        assert [url for rel, _, url in links if rel == "canonical"] == [addresses[lang]]
        others = {tag: url for rel, tag, url in links if rel == "alternate" and tag}
        assert others == {**addresses, "x-default": addresses["en"]}
        assert ("alternate", "", f"{URL}feed.xml") in links
        said = head(text)
        assert said["og:url"] == [addresses[lang]]
        assert said["og:image"] == [f"{URL}cards/index.png"]
        assert said["twitter:card"] == ["summary_large_image"]
        assert said["citation_title"] == said["og:title"] == ["A ring"]
        assert said["citation_author"] == ["The Sample authors"]
        assert said["citation_public_url"] == [addresses[lang]]
        (date,) = said["citation_publication_date"]
        assert re.fullmatch(r"\d{4}/\d\d/\d\d", date)
        (data,) = re.findall(r'<script type="application/ld\+json">(.*?)</script>', text)
        known = json.loads(data)
        assert (known["@type"], known["url"], known["inLanguage"]) == (
            "LearningResource",
            addresses[lang],
            lang,
        )
        assert (known["version"], known["isPartOf"]["name"]) == ("0.3.0", "Sample")
        # The repository follows from the address: its lines, its commits, its issues.
        repository = "https://github.com/ada/loom"
        assert f'href="{repository}/blob/{commit}/src/sample/ring.py#L1"' in text
        assert f'href="{repository}/commit/{commit}"' in text
        form = "error.yml" if lang == "en" else f"translation.yml&language={quote('中文')}"
        about = f"&title=src/sample/ring.py%20%23Ring.put%20at%20{commit}"
        fields = f"&section=src/sample/ring.py%23Ring.put&version={commit}"
        assert f'href="{repository}/issues/new?template={form}{about}{fields}"' in unescape(text)
        assert f"{addresses[lang]}" in re.findall(r'<a class="link" href="([^"]+)"', text)
    made = config.load(published / "site/sidelit.toml")
    lab = origin.fill(made.public.colab_url, origin.origin(made), "notebooks/one lab.ipynb")
    assert lab == f"https://colab.research.google.com/github/ada/loom/blob/{commit}/notebooks/one%20lab.ipynb"


def test_no_page_has_a_link_that_waits_for_an_address(published: Path) -> None:
    site, repository = published / "build/site", "https://github.com/ada/loom"
    commit = git(published, "rev-parse", "HEAD").strip()
    kinds = {"/blob/": 0, "/commit/": 0, "/issues/new": 0}
    listed = (site / "sitemap.xml").read_text("utf-8")
    for name in (name for name in tree(site) if name.endswith(".html") and name != "404.html"):
        text = unescape((site / name).read_text("utf-8"))
        (canonical,) = re.findall(r'rel="canonical" href="([^"]+)"', text)
        assert f"<loc>{canonical}</loc>" in listed
        for url in re.findall(r'(?:href|src|content)="((?:https?:)?//[^"]*|)"', text):
            assert url, name
            assert not re.search(r"[{}]|None|undefined", url), url
            for kind in kinds:
                if url.startswith(repository + kind):
                    assert commit in url
                    kinds[kind] += 1
    assert min(kinds.values()) > 10, kinds


def test_the_list_of_pages_names_each_of_them_in_each_language(published: Path) -> None:
    site = published / "build/site"
    names = {"": "http://www.sitemaps.org/schemas/sitemap/0.9", "x": "http://www.w3.org/1999/xhtml"}
    entries = ElementTree.parse(site / "sitemap.xml").getroot().findall("url", names)
    listed = [entry.findtext("loc", "", names) for entry in entries]
    pages = {name for name in tree(site) if name.endswith(".html") and name != "404.html"}
    assert sorted(listed) == sorted(URL + name for name in pages)
    for entry in entries:
        others = {link.get("hreflang"): link.get("href") for link in entry.findall("x:link", names)}
        assert set(others) == {"en", "ja", "zh-Hans", "x-default"}
        assert set(others.values()) <= set(listed)


def test_the_feed_tells_of_the_releases_in_the_changelog(published: Path) -> None:
    atom = {"": "http://www.w3.org/2005/Atom"}
    feed = ElementTree.parse(published / "build/site/feed.xml").getroot()
    assert feed.findtext("updated", "", atom) == "2026-11-20T00:00:00Z"
    entries = feed.findall("entry", atom)
    assert [entry.findtext("title", "", atom) for entry in entries] == ["Sample 0.2.0", "Sample 0.1.0"]
    assert [entry.findtext("id", "", atom) for entry in entries] == [f"{URL}v0.2.0/", f"{URL}v0.1.0/"]
    words = entries[0].findtext("content", "", atom)
    assert "<em>ring</em> &amp; &lt;b&gt;more" in words


def test_what_is_not_there_is_told_in_every_language_at_any_depth(published: Path) -> None:
    text = (published / "build/site/404.html").read_text("utf-8")
    for home in ("/loom/index.html", "/loom/ja/index.html", "/loom/zh/index.html"):
        assert f'href="{home}"' in text
    assert re.findall(r'<div lang="([^"]+)"', text) == ["en", "ja", "zh-Hans"]
    assert all(url.startswith("/loom/") for url in re.findall(r'(?:href|src)="([^"]+)"', text))


def test_without_an_address_nothing_points_anywhere(sample: Path) -> None:
    path = sample / "site/sidelit.toml"
    path.write_text(re.sub(r"(?m)^(source|report)_url.*\n", "", path.read_text("utf-8")), encoding="utf-8")
    (sample / "CHANGELOG.md").write_text(CHANGES, encoding="utf-8")
    sidelit("build", cwd=sample)
    site = sample / "build/site"
    assert not {"sitemap.xml", "feed.xml", "404.html"} & set(tree(site))
    for name in ("ring.html", "index.html"):
        text = (site / name).read_text("utf-8")
        assert 'rel="canonical"' not in text
        assert not re.search(r'"(?:og:|citation_|twitter:)|ld\+json|class="source"', text)
        assert not [url for url in re.findall(r'href="(https?:[^"]+)', text) if "example.org" not in url], (
            name
        )


@pytest.mark.parametrize(
    ("said", "source"),
    [
        (
            'repository = "https://gitlab.com/a/b/c"',
            "https://gitlab.com/a/b/c/-/blob/{commit}/{path}#L{line}",
        ),
        ('url = "https://a.codeberg.page/b"', "https://codeberg.org/a/b/src/commit/{commit}/{path}#L{line}"),
        ('url = "https://a.github.io"', "https://github.com/a/a.github.io/blob/{commit}/{path}#L{line}"),
        ('url = "https://a.github.io/b"\nsource_url = "https://c.d/{path}"', "https://c.d/{path}"),
        ('url = "https://example.org/b"', None),
        ('repository = "https://example.org/b"', None),
    ],
)
def test_what_a_forge_serves_says_where_its_sources_are(sample: Path, said: str, source: str | None) -> None:
    path = sample / "site/sidelit.toml"
    text = re.sub(r"(?m)^(source|report)_url.*\n", "", path.read_text("utf-8"))
    path.write_text(f"{said}\n{text}", encoding="utf-8")
    assert config.load(path).public.source_url == source
