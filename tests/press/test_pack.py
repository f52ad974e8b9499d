"""The pack: a site that needs neither a server nor a network, the same bytes each time."""

from __future__ import annotations

import posixpath
import re
import zipfile
from pathlib import Path
from urllib.parse import unquote

import pytest

from press.project import GAPS, edit, gappy, page, sidelit, tree
from sidelit.export.pack import zipped


@pytest.mark.full
def test_an_archive_holds_the_folder_and_is_the_same_each_time(sample: Path, tmp_path: Path) -> None:
    told = sidelit("pack", cwd=sample).stdout.splitlines()
    folder, archive = sample / "build/pack/sample", sample / "build/pack/sample.zip"
    assert told[0] == str(folder)
    assert told[1].startswith(f"{archive}: ")
    sidelit("pack", "--out", tmp_path / "again", cwd=sample)
    assert (tmp_path / "again/sample.zip").read_bytes() == archive.read_bytes()
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(tmp_path / "out")
        assert {entry.date_time for entry in packed.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    assert tree(tmp_path / "out") == {f"sample/{name}": data for name, data in tree(folder).items()}
    assert sorted(path.name for path in (sample / "build/pack").iterdir()) == ["sample", "sample.zip"]


def test_every_address_is_a_file_of_the_pack(sample: Path) -> None:
    sidelit("pack", cwd=sample)
    folder = sample / "build/pack/sample"
    pages = [path.relative_to(folder).as_posix() for path in folder.rglob("*.html")]
    assert len(pages) > 15
    for name in pages:
        for address in page(folder, name).addresses:
            path = address.partition("#")[0]
            if not path or re.match(
                r"(https://example\.org/|https://doi\.org|https://arxiv\.org|data:)", path
            ):
                continue
            assert not re.match(r"/|[a-z]+:", path), (name, address)
            there = posixpath.normpath(posixpath.join(posixpath.dirname(name), unquote(path)))
            assert (folder / there).is_file(), (name, address)


@pytest.mark.full
def test_a_pack_replaces_the_pack_before_and_nothing_else(sample: Path) -> None:
    sidelit("pack", cwd=sample)
    before = tree(sample / "build/pack")
    edit(sample / "src/sample/ring.py", "# A ring", "# [A ring](nowhere.py)")
    assert "nowhere.py" in sidelit("pack", cwd=sample, code=1).stderr
    assert tree(sample / "build/pack") == before
    other = sample / "build/elsewhere/sample"
    other.mkdir(parents=True)
    (other / "thesis.txt").write_text("mine")
    told = sidelit("pack", "--out", other.parent, cwd=sample, code=1).stderr
    assert "this folder holds something that is not a site" in told
    assert tree(other.parent) == {"sample/thesis.txt": b"mine"}


def test_gaps_are_told(sample: Path) -> None:
    gappy(sample)
    told = sidelit("pack", cwd=sample).stderr
    assert all(gap in told for gap in GAPS)


def test_the_date_is_that_of_the_commit() -> None:
    assert zipped({"a": b"x"}, "f", "2026-01-31") == zipped({"a": b"x"}, "f", "2026-01-31")
    assert zipped({"a": b"x"}, "f", "2026-01-31") != zipped({"a": b"x"}, "f", "2026-02-01")
