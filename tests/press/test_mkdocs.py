"""mkdocs and the press alone give the same site, and mkdocs' strictness keeps the old one."""

from __future__ import annotations

from pathlib import Path

import pytest

from press.project import edit, run, sidelit, tree

pytestmark = pytest.mark.full


def test_mkdocs_writes_the_same_files_byte_for_byte(sample: Path) -> None:
    sidelit("build", "--out", sample / "alone", cwd=sample)
    done = run("mkdocs", "build", "--strict", cwd=sample)
    assert done.returncode == 0, done.stderr
    assert tree(sample / "build/site") == tree(sample / "alone")
    assert [path.name for path in (sample / "build").iterdir()] == ["site"]


@pytest.mark.cases(ci=1)
@pytest.mark.parametrize("name", ["notes/README.md", "templates/one.md", ".hidden/one.md"])
def test_mkdocs_keeps_pages_that_it_would_rename_or_leave_out(sample: Path, name: str) -> None:
    (sample / "site/pages" / name).parent.mkdir(exist_ok=True)
    (sample / "site/pages" / name).write_text("# One\n\n## The two columns\n", encoding="utf-8")
    edit(sample / "site/sidelit.toml", 'source = "notes/reading.md"', f'source = "{name}"')
    edit(sample / "site/pages/index.md", "notes/reading.md", name)
    sidelit("build", "--out", sample / "alone", cwd=sample)
    done = run("mkdocs", "build", "--strict", cwd=sample)
    assert done.returncode == 0, done.stderr
    assert tree(sample / "build/site") == tree(sample / "alone")


@pytest.mark.nightly
def test_mkdocs_replaces_the_site_that_was_there(sample: Path) -> None:
    run("mkdocs", "build", "--strict", cwd=sample)
    (sample / "build/site/stray.html").write_text("old", encoding="utf-8")
    edit(sample / "src/sample/ring.py", "LIMIT = 8", "LIMIT = 9")
    run("mkdocs", "build", "--strict", cwd=sample)
    assert not (sample / "build/site/stray.html").exists()
    assert b'<span class="mi">9</span>' in (sample / "build/site/ring.html").read_bytes()


@pytest.mark.nightly
def test_a_warning_of_any_plugin_keeps_the_old_site_in_strict_mode(sample: Path) -> None:
    run("mkdocs", "build", "--strict", cwd=sample)
    before = tree(sample / "build")
    hook = 'import logging\ndef on_post_build(config):\n    logging.getLogger("mkdocs.hook").warning("odd")\n'
    (sample / "hook.py").write_text(hook, encoding="utf-8")
    with (sample / "mkdocs.yml").open("a", encoding="utf-8") as file:
        file.write("hooks: [hook.py]\n")
    edit(sample / "src/sample/ring.py", "LIMIT = 8", "LIMIT = 9")
    done = run("mkdocs", "build", "--strict", cwd=sample)
    assert done.returncode == 1
    assert "odd" in done.stderr
    assert tree(sample / "build") == before
    # Without strict mode a warning is only told.
    assert run("mkdocs", "build", cwd=sample).returncode == 0
    assert tree(sample / "build") != before
