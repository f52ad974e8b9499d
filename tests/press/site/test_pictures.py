"""A docstring shows the pictures of its project, and no page asks another machine for one."""

from __future__ import annotations

from pathlib import Path

import pytest

from press.project import sidelit

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x14\0\0\0\x0a"
TEXT = '''"""Some pictures: ![a cat](img/a%20cat.png), ![far](https://example.org/b.png "B").

[![badge](https://example.org/c.svg)](https://example.org)
"""

def f():
    """See it with :class:`x`.

    .. image:: img/d.png
    """
'''


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with one source and two pictures."""
    for folder in ("site", "src/img"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("a cat", "d"):
        (tmp_path / f"src/img/{name}.png").write_bytes(PNG)
    (tmp_path / "src/one.py").write_text(TEXT, encoding="utf-8")
    configured = 'title = "T"\ndialect = "auto"\nlanguages = ["en", "ja"]\n'
    configured += '[[parts]]\nlabel = "A"\nchapters = [{ source = "one.py" }]\n'
    (tmp_path / "site/sidelit.toml").write_text(configured, encoding="utf-8")
    return tmp_path


def test_a_site_carries_the_pictures_of_its_docstrings(project: Path) -> None:
    sidelit("build", cwd=project)
    out = project / "build/site"
    assert (out / "assets/pictures/src/img/a cat.png").read_bytes() == PNG
    for folder, root in (("", ""), ("ja/", "../")):
        html = (out / f"{folder}one.html").read_text("utf-8")
        shown = 'assets/pictures/src/img/a%20cat.png" alt="a cat" width="20" height="10" loading="lazy">'
        assert f'<img src="{root}{shown}' in html
        assert f'<img src="{root}assets/pictures/src/img/d.png" alt="d.png"' in html


def test_a_picture_from_elsewhere_is_a_link(project: Path) -> None:
    sidelit("build", cwd=project)
    html = (project / "build/site/one.html").read_text("utf-8")
    assert '<a href="https://example.org/b.png" rel="noopener">far</a>' in html
    # A link holds no other link.
    assert '<a href="https://example.org" rel="noopener">badge</a>' in html
    assert html.count("<img") == 2


@pytest.mark.parametrize(
    "place", ["docs/nets/gan/block.png", "docs/gan/block.png", "docs/block.png", "block.png"]
)
def test_a_picture_may_lie_in_a_folder_that_is_named(tmp_path: Path, place: str) -> None:
    for name, text in {
        "nets/__init__.py": "",
        "nets/gan/__init__.py": '"""A block: ![it](block.png)"""\n',
        "nets/gan/style.py": "# A block: ![it](/block.png)\nX = 1\n",
        "docs/readme.txt": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    sidelit("init", cwd=tmp_path)
    said = "warning: nets/gan/__init__.py:1: the link 'block.png' leads to no page or file of the site; "
    assert f"{said}name the folder where it lies in `pictures`\n" in sidelit("build", cwd=tmp_path).stderr
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / place).write_bytes(PNG)
    for written in ("site/sidelit.toml", "site/pages/index.md"):
        (tmp_path / written).unlink()
    sidelit("init", cwd=tmp_path)
    told = (tmp_path / "site/sidelit.toml").read_text("utf-8")
    assert ('pictures = ["docs"]\n' in told) == place.startswith("docs")
    assert sidelit("build", cwd=tmp_path).stderr == ""
    for page in ("index", "style"):
        html = (tmp_path / f"build/site/nets/gan/{page}.html").read_text("utf-8")
        assert f'<img src="../../assets/pictures/{place}" alt="it" width="20"' in html


@pytest.mark.parametrize("named", ["img", "../src", "src/one.py", ""])
def test_a_folder_of_pictures_that_is_none_is_refused(project: Path, named: str) -> None:
    path = project / "site/sidelit.toml"
    path.write_text(f'pictures = ["{named}"]\n' + path.read_text("utf-8"), encoding="utf-8")
    told = sidelit("build", cwd=project, code=1).stderr
    assert told.startswith(f"site/sidelit.toml:1: `pictures` names {named!r}, which is no folder of the ")


def test_print_carries_them_too(project: Path) -> None:
    (project / "site/sidelit.toml").unlink()
    assert sidelit("print", "src/one.py", "--out", "out", cwd=project).stderr == ""
    assert (project / "out/assets/pictures/img/d.png").read_bytes() == PNG
    html = (project / "out/one.html").read_text("utf-8")
    assert 'src="assets/pictures/img/a%20cat.png" alt="a cat" width="20"' in html


@pytest.mark.cases(now=1, ci=1)
@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("../../secret.png", "the picture ../../secret.png lies outside of the project"),
        ("link.png", "the picture link.png lies outside of the project"),
        ("one.py", "the file one.py is no picture"),
        ("evil.svg", "the picture evil.svg holds a program"),
        ("none.png", "the link 'none.png' leads to no page or file of the site"),
    ],
)
def test_what_may_not_be_shown_is_told_with_its_line(project: Path, target: str, told: str) -> None:
    (project.parent / "secret.png").write_bytes(PNG)
    (project / "src/link.png").symlink_to(project.parent / "secret.png")
    (project / "src/evil.svg").write_text("<svg xmlns='x'><script>1</script></svg>", encoding="utf-8")
    (project / "src/one.py").write_text(f'"""One.\n\n![x]({target})\n"""\n', encoding="utf-8")
    assert f"src/one.py:3: {told}" in sidelit("build", cwd=project, code=1).stderr
    assert not (project / "build/site").exists()
    sidelit("print", "src/one.py", "--out", "out", cwd=project)
    assert "<img" not in (project / "out/one.html").read_text("utf-8")
    assert not (project / "out/assets/pictures").exists()


def test_a_long_name_breaks_behind_its_dots_and_underscores(tmp_path: Path) -> None:
    (tmp_path / "some_package").mkdir()
    (tmp_path / "some_package/__init__.py").write_text("", encoding="utf-8")
    source = tmp_path / "some_package/with_long_names.py"
    source.write_text(
        "def a_function_with_a_long_name():\n    pass\n\ndef __short__(): pass\n", encoding="utf-8"
    )
    sidelit("print", source, "--out", "out", cwd=tmp_path)
    html = (tmp_path / "out/with_long_names.html").read_text("utf-8")
    assert "<h1>some_<wbr>package.<wbr>with_<wbr>long_<wbr>names</h1>" in html
    assert "<code>a_<wbr>function_<wbr>with_<wbr>a_<wbr>long_<wbr>name</code>" in html
    assert "<code>__short__</code></h" in html
