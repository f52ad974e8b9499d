"""A kind of page is a template and one line of the registry."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from press.project import edit, sidelit
from sidelit.files import assets
from sidelit.site import page_kinds
from sidelit.site.data_pages import Around, DataTable
from sidelit.site.edition import Page
from sidelit.site.model import TocEntry
from sidelit.site.page_kinds import PageKind
from sidelit.site.search.places import WORDS, SearchPlace

TOML = "site/sidelit.toml"
BACK = '[[back]]\nsource = "fruit.md"\nappend = "fruit"\n\n[[back]]\nsource = "glossary.md"'
WORDS_OF_PAGE = "# Fruit\n\n> What grows here.\n\nA [fig](#fig) is sweet.\n"
TEMPLATE = """{% extends "press/prose.html" %}
{% block body %}{{ body }}
<ul>{% for name in entries %}<li id="{{ name }}">{{ name }}</li>{% endfor %}</ul>{% endblock %}
"""


@dataclass(frozen=True)
class Fruit(DataTable):
    """A table that the press does not have."""

    names: tuple[str, ...] = ("fig", "medlar")

    def ids(self) -> tuple[str, ...]:
        return self.names

    def entries(self, around: Around) -> tuple[str, ...]:
        return self.names

    def places(self, shown: Page) -> Iterator[SearchPlace]:
        return (SearchPlace(name, name, WORDS, "grows on a tree") for name in self.names)

    def toc(self) -> Iterator[TocEntry]:
        return (TocEntry(name, name, 0) for name in self.names)


def give_fruit(sample: Path) -> None:
    edit(sample / TOML, '[[back]]\nsource = "glossary.md"', BACK)
    (sample / "site/pages/fruit.md").write_text(WORDS_OF_PAGE, encoding="utf-8")
    (sample / "site/templates").mkdir()
    (sample / "site/templates/fruit.html").write_text(TEMPLATE, encoding="utf-8")


def test_a_line_and_a_template_make_a_kind(sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(page_kinds.KINDS, "fruit", PageKind("fruit", lambda config, terms: Fruit()))
    give_fruit(sample)
    sidelit("build", cwd=sample)
    for language in ("", "ja/"):
        html = (sample / f"build/site/{language}fruit.html").read_text("utf-8")
        assert '<li id="medlar">medlar</li>' in html
        assert '<a href="#medlar">' in html
        assert '<a href="#fig">fig</a> is sweet' in html
    assert "fruit.html#medlar" in sidelit("search", "medlar", cwd=sample).stdout


def test_an_unknown_kind_is_refused_with_its_place(sample: Path) -> None:
    give_fruit(sample)
    told = sidelit("build", cwd=sample, code=1).stderr
    line = (sample / TOML).read_text("utf-8").split("\n").index('append = "fruit"') + 1
    assert told == (
        f"{TOML}:{line}: nothing is made under the name 'fruit'; there is glossary, bibliography, commands\n"
    )
    edit(sample / TOML, 'append = "fruit"', 'append = "glosary"')
    assert "did you mean 'glossary'?" in sidelit("lint", cwd=sample, code=1).stderr


def test_each_kind_has_a_template() -> None:
    templates = assets.templates_folder()
    assert [name for name in page_kinds.KINDS if not (templates / f"{name}.html").is_file()] == []
