"""The press called from Python: the same files as the commands write, or nothing and one sentence."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import sidelit
from press.project import SAMPLE, tree
from press.project import sidelit as command


def test_only_the_public_names_are_offered() -> None:
    assert dir(sidelit) == ["Printed", "SidelitError", "build", "print_files"]
    with pytest.raises(AttributeError, match="has no attribute 'bild'"):
        sidelit.bild()  # type: ignore[attr-defined]


def test_a_site_is_that_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    shutil.copytree(SAMPLE, project)
    command("build", "--out", tmp_path / "by command", cwd=project)
    done = sidelit.build(project / "site" / "sidelit.toml", tmp_path / "named")
    assert tree(done.folder) == tree(tmp_path / "by command")
    assert {page.relative_to(done.folder).as_posix() for page in done.pages} == {
        name for name in tree(done.folder) if name.endswith(".html") and not name.endswith("contents.html")
    }
    monkeypatch.chdir(project / "src")
    assert tree(sidelit.build().folder) == tree(done.folder)
    assert (project / "build" / "site").is_dir()


def test_files_are_those_of_the_command(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text('r"""# A\n\n$\\frac{1}{2}$ and a [link](b.py) to nowhere."""\n')
    command("print", tmp_path / "a.py", "--out", "by command", cwd=tmp_path)
    done = sidelit.print_files([tmp_path / "a.py"], tmp_path / "printed")
    assert tree(done.folder) == tree(tmp_path / "by command")
    assert done.pages == (tmp_path / "printed" / "a.html",)
    assert ["b.py" in str(warning) for warning in done.warnings] == [True]


def test_a_mistake_is_one_error_and_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text('"""# A\n\n[link](b.py)"""\n')
    (tmp_path / "broken.py").write_text("def f(:\n")
    for files, options, said in (
        (["broken.py"], {}, "broken.py:1"),
        (["a.py"], {"strict": True}, "b.py"),
        (["a.py"], {"locale": "nowhere"}, "there is no such folder of translations"),
        (["a.py"], {"lang": "xx"}, "the press has no words for the language 'xx'"),
    ):
        with pytest.raises(sidelit.SidelitError, match=said):
            sidelit.print_files([tmp_path / name for name in files], tmp_path / "printed", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "printed").exists()
    with pytest.raises(sidelit.SidelitError, match="there is no such file; name the"):
        sidelit.build(tmp_path / "sidelit.toml")
