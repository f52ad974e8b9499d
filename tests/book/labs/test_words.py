"""The sentences of the labs exist in every language, and the right language is found."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import lab_words
from shardbook import labs
from shardbook.labs import words


def test_every_sentence_is_translated_and_compiled() -> None:
    assert len(lab_words.catalogues()) == 2
    assert list(lab_words.faults()) == []


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the labs, to be broken."""
    shutil.copytree(lab_words.ROOT / "src/shardbook/labs", tmp_path / "src/shardbook/labs")
    (tmp_path / "notebooks").mkdir()
    for lab in (lab_words.ROOT / "notebooks").glob("*.py"):
        shutil.copy(lab, tmp_path / "notebooks")
    return tmp_path


@pytest.mark.full
def test_what_is_missing_or_stale_is_found(project: Path) -> None:
    more = project / "src/shardbook/labs/more.py"
    more.write_text('tell("A new sentence, {name}.", name=1)\n', "utf-8")
    assert next(fault.partition(": ")[2] for fault in lab_words.faults(project)) == (
        "'A new sentence, {name}.' is missing; run tools/lab_words.py update"
    )
    lab_words.update(project)
    assert [fault.partition(": ")[2] for fault in lab_words.faults(project)] == [
        "no translation of 'A new sentence, {name}.'"
    ] * 2
    (catalogue, *_) = lab_words.catalogues(project)
    text = catalogue.read_text("utf-8")
    catalogue.write_text(text.replace('{name}."\nmsgstr ""', '{name}."\nmsgstr "{nom}"'), "utf-8")
    found = list(lab_words.faults(project))
    assert any("other blanks" in fault for fault in found)
    assert any("labs.mo or labs.po is not as the code says" in fault for fault in found)
    more.unlink()
    assert any("no code says 'A new sentence" in fault for fault in lab_words.faults(project))


def test_two_updates_write_the_same_bytes(project: Path) -> None:
    files = [*project.rglob("*.po"), *project.rglob("*.mo")]
    before = [each.read_bytes() for each in files]
    lab_words.update(project)
    assert [each.read_bytes() for each in files] == before


@pytest.mark.parametrize(
    ("environment", "folder", "found"),
    [
        ({"SHARDBOOK_LANG": "zh-Hans", "JPY_SESSION_NAME": "/home/a/ja/01.ipynb"}, "ja", "zh"),
        ({"SHARDBOOK_LANG": "fr"}, "ja", "en"),
        ({"JPY_SESSION_NAME": "/home/a/notebooks/ja/01.ipynb"}, "zh", "ja"),
        ({"JPY_SESSION_NAME": "C:\\labs\\zh\\01.ipynb"}, "", "zh"),
        ({"JPY_SESSION_NAME": "/home/zh/notebooks/01.ipynb"}, "", "en"),
        ({}, "ja", "ja"),
        ({}, "elsewhere", "en"),
    ],
)
def test_the_language_is_found_where_the_notebook_lies(
    environment: dict[str, str], folder: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SHARDBOOK_LANG", "JPY_SESSION_NAME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    (tmp_path / folder).mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path / folder)
    assert labs.language() == found


def test_vs_code_and_colab_say_it_in_their_own_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHARDBOOK_LANG", raising=False)
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    page: dict[str, object] = {"metadata": {"lang": "ja"}}
    colab = ModuleType("google.colab")
    colab._message = SimpleNamespace(blocking_request=lambda *_, **__: {"ipynb": page})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "google.colab", colab)
    assert labs.language() == "ja"
    # A notebook of somebody else has no such mark.
    page["metadata"] = {}
    assert labs.language() == "en"
    monkeypatch.setattr(words, "notebook_variables", lambda: {"__vsc_ipynb_file__": r"c:\labs\zh\01.ipynb"})
    assert labs.language() == "zh"


def test_a_sentence_is_told_in_the_language_of_the_lab(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDBOOK_LANG", "en")
    assert labs.tell("{name} is still blank.", name="f") == "f is still blank."
    monkeypatch.setenv("SHARDBOOK_LANG", "ja")
    assert labs.tell("{name} is still blank.", name="f") == "f はまだ空欄です。"
    monkeypatch.setenv("SHARDBOOK_LANG", "zh")
    assert labs.tell("{name} is still blank.", name="f") == "f 还没有填写。"
    assert labs.tell("Nobody has translated this.") == "Nobody has translated this."
