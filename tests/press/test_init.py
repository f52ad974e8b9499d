"""`sidelit init` makes a site of a stranger's repository, and patterns list its files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from press.project import edit, git, page, run, sidelit, tree
from sidelit.cli import adopt
from sidelit.config import config
from sidelit.errors import SidelitError


def write(folder: Path, *names: str, text: str = '"""A module."""\n\nx = 1\n') -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository as strangers have one."""
    write(
        tmp_path,
        *(
            "src/nets/__init__.py",
            "src/nets/utils.py",
            "src/nets/layers/__init__.py",
            "src/nets/layers/utils.py",
        ),
        *("src/nets/layers/deep/dense.py", "src/nets/layers/tests/test_dense.py", "src/nets/data/set.py"),
        *("setup.py", "tests/test_it.py", "docs/conf.py"),
        *("conftest.py", "src/nets/conftest.py", "src/nets/layers/deep/conftest.py"),
        # Folders that hold nothing but tests.
        *("src/nets/quality/tests/test_nets.py", "src/nets/fixtures/conftest.py"),
    )
    write(tmp_path, "src/nets/data/old.py", text="print 'two'\n")
    write(tmp_path, "src/nets/odd.py", text='r"""Odd: $\\undefined$ and [a page](nowhere.md)."""\n')
    write(tmp_path, "README.md", text="![badge](b.svg)\n\n# Small nets\n\nWords.\n")
    write(
        tmp_path,
        "pyproject.toml",
        text='[project]\nname = "nets"\ndescription = "Nets in \\"pure\\" Python."\n',
    )
    return tmp_path


@pytest.mark.full
def test_a_repository_is_a_site_at_once(repository: Path) -> None:
    told = sidelit("init", cwd=repository).stdout.splitlines()
    assert told[:3] == [
        "site/sidelit.toml",
        "site/pages/index.md",
        "7 files in 3 parts, and 1 file skipped. Next:",
    ]
    assert [line.split("  ")[1] for line in told[3:]] == ["sidelit serve", "sidelit build"]
    made = config.load(repository / "site/sidelit.toml")
    assert (made.title, made.tagline, made.languages) == ("Small nets", 'Nets in "pure" Python.', ("en",))
    assert [(part.label, [chapter.output for chapter in part.chapters]) for part in made.parts] == [
        ("nets", ["nets/index.html", "nets/odd.html", "nets/utils.html"]),
        ("nets.data", ["nets/data/set.html"]),
        (
            "nets.layers",
            ["nets/layers/index.html", "nets/layers/utils.html", "nets/layers/deep/dense.html"],
        ),
    ]
    assert [chapter.module for chapter in made.parts[2].chapters][-1] == "nets.layers.deep.dense"
    done = sidelit("build", cwd=repository)
    assert "8 pages" in done.stdout
    assert "src/nets/odd.py:1" in done.stderr
    assert page(repository / "build/site", "nets/layers/deep/dense.html").sections == ["module"]
    # What is mended stays so: without the line that goes on, a mistake stops the build.
    edit(repository / "site/sidelit.toml", "keep_going = true\n", "")
    assert "src/nets/odd.py:1" in sidelit("build", cwd=repository, code=1).stderr


def test_every_command_goes_on_where_the_build_does(repository: Path) -> None:
    sidelit("init", cwd=repository)
    mean = repository / "src/nets/mean.py"
    mean.write_text('"""The mean, $\\\\frac12 \\times x$.\n\n:oddity:`x`\n"""\n', encoding="utf-8")
    (repository / "src/nets/lost.py").write_text("def (:\n", encoding="utf-8")
    done = sidelit("lint", cwd=repository)
    assert "src/nets/mean.py:1: tex-not-raw: " in done.stdout
    assert "src/nets/mean.py:3: source: reST: Unknown interpreted text role" in done.stdout
    assert "src/nets/lost.py:1: source: " in done.stdout
    assert " 0 errors, " in f" {done.stdout.splitlines()[-1]}"
    assert "nets/mean" in sidelit("cite", "nets/mean#module", cwd=repository).stdout
    sidelit("build", cwd=repository)
    assert "nets/mean.html" in sidelit("search", "mean", cwd=repository).stdout
    assert sidelit("status", cwd=repository).stdout.startswith("page ")
    # Where nothing may be missing, all of it is told, and is an error.
    edit(repository / "site/sidelit.toml", "keep_going = true\n", "")
    told = sidelit("lint", cwd=repository, code=1).stderr
    assert "tex-not-raw" in told
    assert "lost.py:1: source: " in told


def test_what_is_said_of_many_places_is_told_once_by_a_build_and_listed_by_lint(tmp_path: Path) -> None:
    text = '''"""# A

See :oddity:`x` and :other:`y`."""


def f():
    """The :oddity:`z`.

    Returns:
        :oddity:`x`
    """
'''
    write(tmp_path, "nets/a.py", "nets/b.py", text=text)
    sidelit("init", cwd=tmp_path)
    unknown = "reST: Unknown interpreted text role"
    once = [
        f'nets/a.py:3: {unknown} "oddity" … and 5 more places; {{}} lists them all',
        f'nets/a.py:3: {unknown} "other" … and 1 more place; {{}} lists them all',
    ]
    told = sidelit("build", cwd=tmp_path).stderr.splitlines()
    assert told == ["warning: " + line.format("`sidelit lint`") for line in once]
    told = sidelit("print", "nets", "--out", "out", cwd=tmp_path).stderr.splitlines()
    assert told == ["warning: " + line.format("--strict") for line in once]
    listed = sidelit("lint", cwd=tmp_path).stdout
    assert listed.count("source: reST") == 8
    assert sidelit("print", "nets", "--out", "out", "--strict", cwd=tmp_path, code=1).stderr.count("\n") == 8


@pytest.mark.nightly
def test_mkdocs_builds_the_same(repository: Path) -> None:
    sidelit("init", "--mkdocs", cwd=repository)
    sidelit("build", cwd=repository)
    written = tree(repository / "build/site")
    done = run("mkdocs", "build", "--strict", "--quiet", cwd=repository)
    assert done.returncode == 0, done.stderr
    assert tree(repository / "build/site") == written


def test_nothing_is_written_over(repository: Path) -> None:
    write(repository, "site/pages/index.md", text="# Ours\n")
    told = sidelit("init", cwd=repository, code=1).stderr
    assert told.startswith("site/pages/index.md: this file is there already")
    assert not (repository / "site/sidelit.toml").exists()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mkdocs.yml", "site_name: Nets\n"),
        ("mkdocs.yaml", "site_name: Nets\nsite_dir: 'site/'  # as always\n"),
        ("mkdocs.yml", 'site_dir: "./site"\nsite_name: Nets\n'),
        ("mkdocs.yml", "\ufeffsite_dir: null\n"),
        ("mkdocs.yml", "site_dir: !ENV [OUT, site]\n"),
        ("mkdocs.yml", "site_dir: site/pages\n"),
        ("mkdocs.yml", "site_dir: \0site\n"),
    ],
)
def test_a_folder_that_mkdocs_empties_gets_no_files(repository: Path, name: str, text: str) -> None:
    write(repository, name, text=text)
    told = sidelit("init", cwd=repository, code=1).stderr
    assert told.startswith(f"{name}: mkdocs deletes what lies in site/")
    assert "`site_dir: build/docs`" in told
    assert not (repository / "site").exists()


def test_mkdocs_of_the_project_itself_leaves_the_files_alone(repository: Path) -> None:
    write(repository, "mkdocs.yml", text="site_name: Nets\nsite_dir: build/docs\n")
    sidelit("init", cwd=repository)
    before = tree(repository / "site")
    run("mkdocs", "build", "--quiet", cwd=repository)
    assert (repository / "build/docs").is_dir()
    assert tree(repository / "site") == before


@pytest.mark.full
def test_a_language_that_the_press_does_not_know_begins_with_a_file_of_words(repository: Path) -> None:
    sidelit("init", "--lang", "de", "--lang", "en", cwd=repository)
    sidelit("build", cwd=repository)
    assert page(repository / "build/site", "nets/utils.html").lang == "de"
    assert page(repository / "build/site", "en/nets/utils.html").lang == "en"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (("../../../x",), "'../../../x' is no code of a language; write it like"),
        (('e"n',), "is no code of a language"),
        (("",), "'' is no code of a language"),
        (("de", "en", "de"), "the language 'de' is named twice; name each once"),
    ],
)
def test_what_is_no_language_is_refused_before_anything_is_written(
    repository: Path, said: tuple[str, ...], told: str
) -> None:
    before = tree(repository)
    given = [each for code in said for each in ("--lang", code)]
    assert told in sidelit("init", *given, cwd=repository, code=1).stderr
    assert tree(repository) == before


def test_a_file_is_left_out_whatever_its_name_is(tmp_path: Path) -> None:
    write(tmp_path, "nets/__init__.py", "nets/y.py", "nets/[t]/tests/a.py", "nets/[t]/b.py", "[x].py")
    write(tmp_path, "nets/[y].py", text="print 'two'\n")
    sidelit("init", cwd=tmp_path)
    made = config.load(tmp_path / "site/sidelit.toml")
    assert [chapter.source for chapter in made.chapters] == ["[x].py", "nets/__init__.py", "nets/y.py"]


def test_what_is_kept_for_the_next_build_is_none_of_the_repository(tmp_path: Path) -> None:
    write(tmp_path, "nets/__init__.py")
    git(tmp_path, "init", "--quiet")
    sidelit("init", cwd=tmp_path)
    sidelit("build", cwd=tmp_path)
    assert (tmp_path / ".cache/sidelit/work").is_dir()
    listed = git(tmp_path, "status", "--porcelain", "--untracked-files=all").split("\n")
    assert {line[3:].partition("/")[0] for line in listed if line} == {"build", "nets", "site"}
    # Whoever keeps it on purpose has a file of their own.
    (tmp_path / ".cache/sidelit/.gitignore").write_text("", "utf-8")
    sidelit("build", cwd=tmp_path)
    assert (tmp_path / ".cache/sidelit/.gitignore").read_text("utf-8") == ""


def test_what_cannot_be_read_is_counted_for_itself(tmp_path: Path) -> None:
    write(tmp_path, "py2.py", text="print 'two'\n")
    (tmp_path / "gbk.py").write_bytes("# -*- coding: gbk -*-\n# 网络\nx = 1\n".encode("gbk"))
    done = sidelit("init", cwd=tmp_path)
    assert "1 file in 1 part, and 1 file skipped. Next:" in done.stdout
    assert done.stderr.startswith("skipped: py2.py:1: not valid Python")


def test_where_nothing_can_be_read_there_is_no_part(tmp_path: Path) -> None:
    write(tmp_path, "nets/__init__.py", "nets/good/a.py", "fine.py")
    write(tmp_path, "nets/old/x.py", "loose.py", text="print 'two'\n")
    sidelit("init", cwd=tmp_path)
    text = (tmp_path / "site/sidelit.toml").read_text("utf-8")
    assert re.findall("(?m)^chapters = .*", text) == [
        'chapters = ["fine.py"]',
        'chapters = ["*.py"]',
        'chapters = ["**/*.py"]',
    ]
    sidelit("build", cwd=tmp_path)
    (tmp_path / "nets/__init__.py").unlink()
    other = tmp_path / "other"
    write(other, "x.py", text="print 'two'\n")
    assert "x.py:1: not valid Python" in sidelit("init", cwd=other, code=1).stderr
    assert not (other / "site").exists()


def test_another_folder_and_loose_modules(tmp_path: Path) -> None:
    write(
        tmp_path, "tool/tool.py", "tool/setup.py", text='"""環状のバッファです。古い値から順に捨てます。"""\n'
    )
    told = sidelit("init", "tool", cwd=tmp_path).stdout
    assert "1 file in 1 part. Next:" in told
    assert "sidelit build --config tool/site/sidelit.toml" in told
    sidelit("build", "--config", "tool/site/sidelit.toml", cwd=tmp_path)
    assert page(tmp_path / "tool/build/site", "tool.html").lang == "ja"


def test_a_folder_without_python_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "README.md")
    assert "there is no Python" in sidelit("init", cwd=tmp_path, code=1).stderr
    assert "there is no such folder" in sidelit("init", "nowhere", cwd=tmp_path, code=1).stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md"]


@pytest.mark.parametrize(
    ("files", "root", "parts"),
    [
        ("lib/nets/__init__.py lib/nets/a/b.py", "lib", ["nets", "nets.a"]),
        ("sources/main/nets/__init__.py train.py", "sources/main", ["Own", "nets"]),
        ("lib/nets/__init__.py lib/data/__init__.py lib/run.py", "lib", ["lib", "data", "nets"]),
        # A package of the project's own folder comes first, unless another has the name of the distribution.
        ("nets/__init__.py lib/ours/__init__.py lib/ours/a.py", "", ["lib.ours", "nets"]),
        ("nets/__init__.py lib/own/__init__.py", "lib", ["own", "nets"]),
        # Without any package imports start from the folder itself, and so they do where `src` is one.
        ("lib/nets.py train.py", "", ["Own", "lib"]),
        ("src/__init__.py src/nets/__init__.py", "", ["src", "src.nets"]),
        # A folder is a part of the names without saying so.
        ("own/nets/__init__.py own/nets/a.py", "own", ["nets"]),
        ("own/nets/__init__.py own/nets/a.py use.py:own.nets.a", "", ["Own", "own.nets"]),
        ("own/nets/__init__.py setup.cfg:own-nets", "", ["own.nets"]),
        ("src/own/nets/__init__.py train.py", "src", ["own.nets"]),
    ],
)
def test_imports_start_where_the_outermost_package_lies(
    tmp_path: Path, files: str, root: str, parts: list[str]
) -> None:
    folder = tmp_path / "Own"
    for name in files.split():
        name, _, said = name.partition(":")
        text = f"[metadata]\nname = {said}\n" if name == "setup.cfg" else f"from {said or 'x'} import y\n"
        write(folder, name, text=text)
    found = adopt.look(folder)
    assert (found.root, [each.label.replace("own-nets", "Own") for each in found.parts]) == (root, parts)


@pytest.mark.parametrize(
    ("name", "text", "root"),
    [
        ("pyproject.toml", '[tool.setuptools]\npackage-dir = { "" = "python/" }\n', "python"),
        ("pyproject.toml", '[tool.setuptools.packages.find]\nwhere = ["python"]\n', "python"),
        ("pyproject.toml", '[tool.setuptools.packages.find]\nwhere = ["."]\n', ""),
        ("pyproject.toml", '[tool.setuptools]\npackages = ["nets"]\npackage-dir = 3\n', "python/group"),
        ("setup.cfg", "[options]\npackage_dir =\n    = python\n", "python"),
        ("setup.cfg", "[options.packages.find]\nwhere = ../python\n", "python/group"),
        ("setup.py", "setup(package_dir={'': 'python'}, packages=['x'])\n", "python"),
        ("setup.py", "setup(packages=find_packages(where='python'))\n", "python"),
        ("setup.py", "setup(packages=find_packages(HERE), package_dir=f())\n", "python/group"),
    ],
)
def test_setuptools_says_where_imports_start(tmp_path: Path, name: str, text: str, root: str) -> None:
    write(tmp_path, "python/group/nets/__init__.py")
    write(tmp_path, name, text=text)
    assert adopt.look(tmp_path).root == root


def test_a_module_of_any_layout_is_called_as_it_is_imported(tmp_path: Path) -> None:
    write(tmp_path, "lib/nets/__init__.py")
    write(tmp_path, "lib/nets/kinds.py", text="class Kind:\n    pass\n")
    write(tmp_path, "lib/nets/use.py", text="from nets.kinds import Kind\n\nmade = Kind()\n")
    sidelit("init", cwd=tmp_path)
    sidelit("build", cwd=tmp_path)
    html = (tmp_path / "build/site/nets/use.html").read_text("utf-8")
    assert "<title>nets.use · " in html
    assert 'href="kinds.html#Kind"' in html


def test_many_modules(tmp_path: Path) -> None:
    names = [f"big/part{number // 25}/module{number}.py" for number in range(250)]
    write(tmp_path, "big/__init__.py", *names)
    assert "251 files in 11 parts" in sidelit("init", cwd=tmp_path).stdout
    assert len(config.load(tmp_path / "site/sidelit.toml").chapters) == 251


@pytest.mark.nightly
def test_many_modules_are_printed(tmp_path: Path) -> None:
    write(tmp_path, "big/__init__.py", *(f"big/part{n // 25}/module{n}.py" for n in range(250)))
    sidelit("init", cwd=tmp_path)
    assert "252 pages" in sidelit("build", cwd=tmp_path).stdout


# ---- Patterns ----

HEAD = 'title = "T"\n\n[[front]]\nsource = "index.md"\n\n'


def chapters(folder: Path, parts: str) -> list[list[str]]:
    write(folder, "a.py", "b.py", "sub/__init__.py", "sub/a.py", ".hidden/c.py", "site/pages/index.md")
    write(folder, "site/sidelit.toml", text=HEAD.replace('"T"', '"T"\nsource_root = ""') + parts)
    made = config.load(folder / "site/sidelit.toml")
    return [[chapter.source for chapter in part.chapters] for part in made.parts]


def test_the_page_of_a_package_is_the_index_of_its_folder(tmp_path: Path) -> None:
    names = ("__init__.py", "nets/__init__.py", "nets/a.py", "odd/__init__.py", "odd/index.py")
    write(tmp_path, *names, text='"""See [nets](src:nets/__init__.py) and [this](src:nets/index.py)."""\n')
    sidelit("init", cwd=tmp_path)
    assert sidelit("build", cwd=tmp_path).stderr == ""
    site = tmp_path / "build/site"
    pages = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    made = ["nets/a.html", "nets/index.html", "odd/__init__.html", "odd/index.html"]
    assert pages == ["__init__.html", "contents.html", "index.html", *made]
    html = (site / "nets/a.html").read_text("utf-8")
    assert 'See <a href="index.html">nets</a> and <a href="index.html">this</a>' in html
    # A site whose readers know the other address keeps it.
    edit(tmp_path / "site/sidelit.toml", "index_pages = true\n", "")
    sidelit("build", cwd=tmp_path)
    assert (site / "nets/__init__.html").is_file()


def part(listed: str, folder: str = ".") -> str:
    return f'[[parts]]\nlabel = "P"\nfolder = "{folder}"\nchapters = [{listed}]\n'


@pytest.mark.parametrize(
    ("parts", "found"),
    [
        (part('"*.py"'), [["a.py", "b.py"]]),
        (part('"**/*.py"'), [["a.py", "b.py", "sub/__init__.py", "sub/a.py"]]),
        (part('"b.py", "*.py"'), [["b.py", "a.py"]]),
        (part('"**/*.py", "!sub/*"'), [["a.py", "b.py"]]),
        (part('"*.py"') + part('{ source = "a.py" }'), [["b.py"], ["a.py"]]),
        (part('"*.py"') + part('"**/*.py"'), [["a.py", "b.py"], ["sub/__init__.py", "sub/a.py"]]),
        (part('"*.py"', "sub"), [["sub/__init__.py", "sub/a.py"]]),
    ],
)
def test_a_pattern_stands_for_files(tmp_path: Path, parts: str, found: list[list[str]]) -> None:
    assert chapters(tmp_path, parts) == found


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (part('"*.pyx"'), r"sidelit\.toml:10: no Python file in \./ is matched by '\*\.pyx'"),
        (part('"none.py"'), r"sidelit\.toml:10: the file none\.py does not exist"),
        (part('"/*.py"'), r"sidelit\.toml:10: '/\*\.py' is no pattern"),
        (part("7"), r"sidelit\.toml:10: `chapters` must be a list of tables and patterns"),
    ],
)
def test_a_pattern_that_is_wrong(tmp_path: Path, parts: str, said: str) -> None:
    with pytest.raises(SidelitError) as told:
        chapters(tmp_path, parts)
    assert re.search(said, str(told.value)), str(told.value)


@pytest.mark.parametrize(
    ("added", "said"),
    [
        ("# lines = 1\n[lint]\nlines = 0\n", "13: `lines` must be a number from 1 on"),
        (
            '# code-without-words\n[lint.rules]\ncode-without-words = "warn"\n',
            "13: the rule code-without-words",
        ),
        ('[[parts]]\nlabel = "Q"\nchapters = 3\n', "13: `chapters` must be a list"),
        ('[[parts]]\nchapters = ["a.py"]\n', "11: the key `label` is missing"),
        (
            '[[lint.allow]]\nrule = "word"\nsource = "a.py"\nsection = ""\n',
            "11: the key `because` is missing",
        ),
        ('[[lint.avoid]]\nsay = "x"\npattern = ""\n', "13: an empty `pattern` finds everything"),
        ('[[parts]]\nlabel = "Q"\nlanguages = ["de"]\n', "13: `languages` names 'de'"),
    ],
)
def test_a_mistake_is_told_at_its_own_line(tmp_path: Path, added: str, said: str) -> None:
    with pytest.raises(SidelitError) as told:
        chapters(tmp_path, part('"*.py"') + added)
    assert str(told.value).startswith(f"site/sidelit.toml:{said}")


def test_a_configuration_may_begin_with_a_mark_of_its_encoding(tmp_path: Path) -> None:
    chapters(tmp_path, part('"*.py"'))
    path = tmp_path / "site/sidelit.toml"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert config.load(path).title == "T"


def test_a_configuration_that_is_not_there_is_called_as_it_was_given(tmp_path: Path) -> None:
    (tmp_path / "deep/site").mkdir(parents=True)
    hint = "name the `site/sidelit.toml` of a project\n"
    told = sidelit("build", "--config", "deep/nope.toml", cwd=tmp_path, code=1).stderr
    assert told == f"deep/nope.toml: there is no such file; {hint}"
    told = sidelit("build", "--config", "deep/site", cwd=tmp_path, code=1).stderr
    assert told == f"deep/site: this is no file; {hint}"


@pytest.mark.parametrize(
    ("name", "readme", "title", "tagline"),
    [
        ("readme.md", "# Nets\n\nSmall ones.\n", "Nets", "Small ones."),
        ("README.md", "<h1>N</h1>\n\n<p align=center>A picture.</p>\n\nIt is one.\n", "own", "It is one."),
        ("README.md", "![logo](l.png)\n\n## Package dependencies\n\n# Installation\n", "own", ""),
        ("README.md", "# [Nets](https://example.org)\n\n# 项目介绍\n", "own", ""),
        ("README.zh.md", "# 项目介绍\n", "own", ""),
        ("README.md", "> # Quoted\n\n# **Small** nets &amp; more\n", "Small nets & more", ""),
        ("README.md", "Nets\nin Python\n===\n", "Nets in Python", ""),
        ("README.md", "\n#Nets: small\n\nIt.\n", "Nets: small", "It."),
        ("README.rst", "=====\nNets\n=====\n\n.. image:: a.svg\n\nSmall `nets`_.\n", "Nets", "Small nets."),
        ("README.md", "# Package Dependencies\n\nIt is one.\n\n# Usage\n", "own", "It is one."),
        ("README.md", "# 1. Package dependencies\n", "own", ""),
        ("README.md", "# 项目介绍\n\n## 安装\n", "own", ""),
        ("README.md", "# Nets\n\n# Install\n", "own", ""),
        ("README.md", "# Nets of my OWN\n\n# Install\n", "Nets of my OWN", ""),
        ("README.md", "---\ntitle: x\n---\n<!--\n\nA note.\n\n-->\n# Nets\n", "Nets", ""),
        (
            "README.md",
            "# Nets\n\n**English** | [中文](zh.md)\n\nWords<br>and [more](m).\n\nIt.\n",
            "Nets",
            "It.",
        ),
    ],
)
def test_the_title_is_the_first_heading_or_the_name(
    tmp_path: Path, name: str, readme: str, title: str, tagline: str
) -> None:
    write(tmp_path, "own/net.py", text="X = 1\n")
    write(tmp_path, f"own/{name}", text=readme)
    found = adopt.look(tmp_path / "own")
    assert (found.title, found.tagline) == (title, tagline)


@pytest.mark.parametrize(
    ("name", "text", "title", "tagline"),
    [
        ("pyproject.toml", '[tool.poetry]\nname = "nets"\ndescription = "Small."\n', "nets", "Small."),
        ("setup.cfg", "[metadata]\nname = nets\ndescription = Small.\n", "nets", "Small."),
        ("setup.py", "import s\nx = 1\ns.setup(name='nets', description='Small.', v=x)\n", "nets", "Small."),
        ("setup.py", "from s import setup\nNAME = 'x'\nsetup(NAME, name=NAME, **{})\n", "own", ""),
        ("setup.py", "setup(\n", "own", ""),
        ("setup.cfg", "[metadata\n", "own", ""),
    ],
)
def test_a_distribution_says_its_name_in_any_of_three_files(
    tmp_path: Path, name: str, text: str, title: str, tagline: str
) -> None:
    write(tmp_path, "own/net.py", text="X = 1\n")
    write(tmp_path, f"own/{name}", text=text)
    found = adopt.look(tmp_path / "own")
    assert (found.title, found.tagline) == (title, tagline)


def test_a_clone_is_called_as_its_repository(tmp_path: Path) -> None:
    write(tmp_path, "net.py")
    git(tmp_path, "init", "--quiet")
    assert adopt.look(tmp_path).title == tmp_path.name
    git(tmp_path, "remote", "add", "origin", "git@example.org:ada/small-nets.git")
    assert adopt.look(tmp_path).title == "small-nets"


def test_what_is_only_called_like_a_readme_does_not_hide_it(tmp_path: Path) -> None:
    write(tmp_path, "net.py", "readme/picture.txt")
    write(tmp_path, "Readme", text="# A log\n")
    (tmp_path / "README.md").write_bytes("# Réseaux\n\nPetits.\n".encode("latin-1"))
    found = adopt.look(tmp_path)
    assert (found.title, found.tagline) == ("R\ufffdseaux", "Petits.")


@pytest.mark.parametrize(
    ("comment", "language"),
    [
        ("计算 attention 分数，形状是 (batch, heads, seq_len, seq_len)，再除以 sqrt(d_k)", "zh"),
        ("AttentionのスコアをFP32で計算し、softmaxの前にmaskを加える", "ja"),
        ("Tokens such as 你好 are cut into bytes before they are counted.", "en"),
        ("", "en"),
    ],
)
def test_the_language_is_that_of_the_commentary(tmp_path: Path, comment: str, language: str) -> None:
    write(tmp_path, "net.py", text=f"# {comment}\nX = 1\n")
    assert adopt.look(tmp_path).language == language


NETS = "Small nets, in pure Python."


@pytest.mark.cases(now=1, ci=1)
@pytest.mark.parametrize(
    ("readme", "said"),
    [
        (
            "# Nets\n\n[![badge](b.svg)](b) ![two](c.svg)\n\nSmall *nets*, in\npure `Python`. And more.\n",
            NETS,
        ),
        ("# Nets\n\n> Small nets, in pure Python.\n", NETS),
        ("# Nets\n\n![badge](b.svg)\n", ""),
        ("", ""),
    ],
)
def test_a_home_page_says_what_the_project_says_of_itself(tmp_path: Path, readme: str, said: str) -> None:
    write(tmp_path, "nets/net.py", text="X = 1\n")
    write(tmp_path, "README.md", text=readme)
    sidelit("init", cwd=tmp_path)
    sidelit("build", cwd=tmp_path)
    html = (tmp_path / "build/site/index.html").read_text("utf-8")
    assert ('<meta name="description"' in html) == bool(said)
    assert not said or f'<meta name="description" content="{said}">' in html
