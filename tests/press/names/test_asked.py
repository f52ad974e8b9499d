"""What the names in a file mean is asked again when code changes that was asked for them, and only then."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from sidelit.cache.graph import Graph
from sidelit.cache.store import Store
from sidelit.config import config
from sidelit.names.links import Found, Names, Said
from sidelit.site import identifiers, site

TOML = """title = "Rings"
languages = ["en"]
source_root = "src"

[[parts]]
label = "All"
folder = "src/top"
chapters = [{}]
"""
C = """# # A ring

class C:
    # What it holds.
    x = 1
# sidelit: hide
HIDDEN = 1
# sidelit: show
"""
FILES = {
    "a.py": "# # It names B\n\nfrom top.b import B\n\nB\n",
    "b.py": "# # It makes a C\n\nfrom top.c import C\n\nB = C()\n",
    "c.py": C,
    "d.py": "# # It looks into B\n\nfrom top.b import B\n\nB.x\n",
    "e.py": "# # It imports B and looks at none of it\n\nimport top.b\n\nE = 1\n",
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    (tmp_path / "src/top").mkdir(parents=True)
    (tmp_path / "site").mkdir()
    listed = ", ".join(f'{{ source = "{name}" }}' for name in FILES)
    (tmp_path / "site/sidelit.toml").write_text(TOML.replace("{}", listed), "utf-8")
    for name, text in FILES.items():
        (tmp_path / "src/top" / name).write_text(text, "utf-8")
    return tmp_path


def asked(project: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[set[str], identifiers.Identifiers]:
    """The files whose names a build asks for, and what it knows of them."""
    found: set[str] = set()
    real = Names.of

    def noted(names: Names, path: str, said: Collection[Said] = ()) -> Found:
        found.add(path.removeprefix("src/top/"))
        return real(names, path, said)

    monkeypatch.setattr(Names, "of", noted)
    made = config.load(project / "site/sidelit.toml")
    graph = Graph(Store(project / ".cache"))
    known = identifiers.identifiers(made, site.texts(made, graph=graph), 1)
    graph.keep()
    monkeypatch.setattr(Names, "of", real)
    return found, known


@pytest.mark.parametrize(
    ("changed", "before", "after", "others"),
    [
        ("c.py", "x = 1", "x = 2", {"b.py", "d.py"}),
        ("c.py", "HIDDEN = 1", "HIDDEN = 2", {"b.py", "d.py"}),
        ("b.py", "B = C()", "# What it holds,\n# and no more.\n\nB = C()", set()),
        ("b.py", "B = C()", "B = 1", {"a.py", "d.py", "e.py"}),
        ("e.py", "E = 1", "E = 2", set()),
    ],
)
def test_a_file_rests_on_what_was_asked_for_it(
    project: Path, monkeypatch: pytest.MonkeyPatch, changed: str, before: str, after: str, others: set[str]
) -> None:
    assert asked(project, monkeypatch)[0] == {*FILES}
    assert asked(project, monkeypatch)[0] == set()
    path = project / "src/top" / changed
    path.write_text(path.read_text("utf-8").replace(before, after), "utf-8")
    assert asked(project, monkeypatch)[0] == {changed, *others}


def test_a_line_that_moved_is_found_where_it_is(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def leads_to() -> str | None:
        known = asked(project, monkeypatch)[1]
        ((link,),) = [row for line, row in known.links("src/top/a.py").items() if line == 5]
        return known.address(link.to, "a.html")

    assert leads_to() == "b.html#line-5"
    moved = FILES["b.py"].replace("B = C()", "# Once more.\n\nB = C()")
    (project / "src/top/b.py").write_text(moved, "utf-8")
    assert leads_to() == "b.html#line-7"
