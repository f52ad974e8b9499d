"""Releases stay at addresses of their own, and say where their sections are today."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from press.project import SAMPLE, Html, edit, git, page, sidelit, tree
from sidelit.site.links import fragment

URL = "https://ada.github.io/loom/"
OLD, NEW = "Keeps the last items, in the order in which they came.", "Keeps what came last."


def release(sample: Path, version: str) -> None:
    (sample / "pyproject.toml").write_text(f'[project]\nversion = "{version}"\n', encoding="utf-8")
    sidelit("publish", cwd=sample)
    git(sample, "add", "-A")
    git(sample, "commit", "-qm", version)
    git(sample, "tag", f"v{version}")


@pytest.fixture(scope="module")
def composed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with two releases and a draft; between them a page, a section and words were changed."""
    sample = Path(shutil.copytree(SAMPLE, tmp_path_factory.mktemp("versions") / "sample"))
    config, ring = sample / "site/sidelit.toml", sample / "src/sample/ring.py"
    text = re.sub(r"(?m)^(source|report)_url.*\n", "", config.read_text("utf-8"))
    config.write_text(text, encoding="utf-8")
    git(sample, "init", "-q")
    git(sample, "add", "-A")
    git(sample, "commit", "-qm", "Before there was a site to show")
    git(sample, "tag", "0.0-no-release")
    release(sample, "1.0")
    edit(ring, OLD, NEW)
    put = ring.read_text("utf-8")
    ring.write_text(put.replace("def put(", "def keep("), encoding="utf-8")
    for prose in (sample / "site/pages").rglob("*.md"):
        prose.write_text(prose.read_text("utf-8").replace("Ring.put", "Ring.keep"), encoding="utf-8")
    edit(config, 'source = "ring.py"', 'source = "ring.py", output = "round.html"')
    (sample / "CHANGELOG.md").write_text("## 1.10 (2026-11-20)\n\nRound.\n", encoding="utf-8")
    config.write_text(f'url = "{URL}"\n{config.read_text("utf-8")}', encoding="utf-8")
    release(sample, "1.10")
    git(sample, "tag", "v2.0-beta.1")
    # A branch of the same name is not the release.
    git(sample, "branch", "v1.0")
    edit(ring, NEW, "What nobody has released.")
    told = sidelit("versions", "--draft", "--without", "v2.0-beta.1", cwd=sample).stdout
    assert [line.partition(":")[0] for line in told.splitlines()] == [
        "v1.10",
        "v1.10",
        "v1.0",
        "the present state",
    ]
    return sample


@pytest.mark.nightly
def test_the_newest_release_is_at_the_root_and_each_one_at_its_own_address(composed: Path) -> None:
    site = composed / "build/versions"
    assert NEW in (site / "round.html").read_text("utf-8")
    assert NEW in (site / "v1.10/round.html").read_text("utf-8")
    assert OLD in (site / "v1.0/ring.html").read_text("utf-8")
    assert "nobody has released" in (site / "draft/round.html").read_text("utf-8")
    # Programs find the newest pages only.
    assert {name for name in tree(site) if name.endswith((".xml", "404.html"))} == {
        "404.html",
        "feed.xml",
        "sitemap.xml",
    }
    assert f"<id>{URL}v1.10/</id>" in (site / "feed.xml").read_text("utf-8")


def test_what_is_cited_is_at_the_address_of_the_citation(composed: Path) -> None:
    site = composed / "build/versions"
    for name, words, address in (
        ("round.html", NEW, "v1.10/round.html"),
        ("v1.10/round.html", NEW, "v1.10/round.html"),
        ("v1.0/ring.html", OLD, "v1.0/ring.html"),
    ):
        text = (site / name).read_text("utf-8")
        box = re.findall(r'<a class="link" href="([^"]+)"', text)[0]
        assert box == URL + address
        assert words in (site / box.removeprefix(URL)).read_text("utf-8")
        version = address.partition("/")[0].removeprefix("v")
        commit = git(composed, "rev-list", "-1", f"v{version}")[:10]
        assert f"version {version}, commit {commit}" in re.sub(r"\s+", " ", text)
    # Of a draft only its commit stays.
    box = re.findall(r'<a class="link" href="([^"]+)"', (site / "draft/round.html").read_text("utf-8"))[0]
    assert box.startswith("https://github.com/ada/loom/blob/")


def test_a_release_that_is_checked_out_is_cited_at_its_own_address(composed: Path, tmp_path: Path) -> None:
    clone = tmp_path / "loom"
    git(composed, "clone", "-q", "--branch", "v1.10", ".", str(clone))
    assert f"{URL}v1.10/round.html#Ring.keep\n" in sidelit("cite", "Ring.keep", cwd=clone).stdout
    edit(clone / "src/sample/ring.py", NEW, "What nobody has released.")
    assert f"{URL}round.html#Ring.keep\n" in sidelit("cite", "Ring.keep", cwd=clone).stdout


def test_old_pages_lead_to_the_same_sections_of_the_newest_release(composed: Path) -> None:
    site = composed / "build/versions"
    for folder, lang in (("v1.0/", ""), ("v1.0/", "ja/"), ("draft/", "zh/")):
        name = f"{folder}{lang}{'ring' if folder == 'v1.0/' else 'round'}.html"
        old, up = page(site, name), "../" * name.count("/")
        # One link for the page, and one for each section.
        target = f"{up}{lang}{name.rpartition('/')[2]}"
        assert target in old.addresses
        for section in old.sections:
            assert f"{target}#{section}" in old.addresses
        new = page(site, f"{lang}{name.rpartition('/')[2]}")
        if folder == "v1.0/":
            # The old address forwards: each id is led to one that the page has today.
            there = page(site, f"{lang}round.html")
            leads = [url.partition("#")[2] for url in new.addresses if url.startswith("round.html#")]
            assert {fragment(section) for section in old.sections} <= set(new.ids) | {"module"}
            assert leads
            assert set(leads) <= set(there.ids)
    text = (site / "v1.0/ja/ring.html").read_text("utf-8")
    assert "これはバージョン1.0です。" in text
    assert f'rel="canonical" href="{URL}ja/ring.html"' in text
    assert "outdated" not in (site / "round.html").read_text("utf-8")
    assert "outdated" not in (site / "v1.10/round.html").read_text("utf-8")


@pytest.mark.full
def test_every_link_between_the_versions_leads_to_a_file(composed: Path) -> None:
    site = composed / "build/versions"
    files, seen = set(tree(site)), 0
    for name in sorted(file for file in files if file.endswith(".html") and file != "404.html"):
        for url in Html((site / name).read_text("utf-8")).addresses:
            assert url.strip(), f"{name} has an empty link"
            if not re.match(r"[a-z]+:|#", url):
                target = (site / name).parent / url.partition("#")[0].partition("?")[0]
                assert target.resolve().is_relative_to(site.resolve()), f"{name}: {url}"
                assert target.is_file(), f"{name}: {url}"
                seen += url.startswith("../") and "v1." in url
    assert seen > 20


@pytest.mark.full
def test_a_project_without_a_release_has_its_present_state_at_the_root(sample: Path) -> None:
    git(sample, "init", "-q")
    git(sample, "add", "-A")
    git(sample, "commit", "-qm", "All")
    sidelit("versions", cwd=sample)
    sidelit("build", cwd=sample)
    assert tree(sample / "build/versions") == tree(sample / "build/site")
    # Who publishes it may know the address before the configuration does, which has the last word.
    config = sample / "site/sidelit.toml"
    sidelit("versions", "--url", URL.removesuffix("/"), cwd=sample)
    page = (sample / "build/versions/ring.html").read_text("utf-8")
    assert f'rel="canonical" href="{URL}ring.html"' in page
    assert "https://github.com/ada/loom/commit/" in page
    config.write_text(f'url = "https://example.org/x/"\n{config.read_text("utf-8")}', encoding="utf-8")
    sidelit("versions", "--url", URL, cwd=sample)
    page = (sample / "build/versions/ring.html").read_text("utf-8")
    assert 'rel="canonical" href="https://example.org/x/ring.html"' in page


@pytest.mark.full
def test_a_release_that_cannot_be_printed_is_named_and_the_old_site_stays(sample: Path) -> None:
    git(sample, "init", "-q")
    ring = sample / "src/sample/ring.py"
    whole = ring.read_text("utf-8")
    ring.write_text("def broken(", encoding="utf-8")
    release_broken(sample)
    ring.write_text(whole, encoding="utf-8")
    release(sample, "1.1")
    told = sidelit("versions", cwd=sample, code=1).stderr
    assert told.startswith("v1.0 cannot be printed: src/sample/ring.py:1: ")
    assert "--without v1.0" in told
    assert not (sample / "build/versions").exists()
    assert "no public address" in sidelit("versions", "--url", "here", cwd=sample, code=1).stderr
    git(sample, "tag", "1.1.0")
    same = sidelit("versions", "--without", "v1.0", cwd=sample, code=1).stderr
    assert "are one version, 1.1" in same
    assert "--without" in same
    git(sample, "tag", "-d", "1.1.0")
    assert "no tag 'v9'" in sidelit("versions", "--without", "v9", cwd=sample, code=1).stderr
    sidelit("versions", "--without", "v1.0", cwd=sample)
    assert (sample / "build/versions/v1.1/ring.html").is_file()


def release_broken(sample: Path) -> None:
    git(sample, "add", "-A")
    git(sample, "commit", "-qm", "Broken")
    git(sample, "tag", "v1.0")


def test_without_git_one_sentence_says_so(sample: Path, tmp_path: Path) -> None:
    told = sidelit("versions", cwd=sample, code=1).stderr
    assert told.startswith("git cannot show the versions: ")
    assert len(told.splitlines()) == 1
