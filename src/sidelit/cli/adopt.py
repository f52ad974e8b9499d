"""# A first configuration

> A repository is looked at, and a site of all its modules is written down in a few lines.

`sidelit init` finds the packages of a folder, or those below its `src/` or whatever setuptools is told of,
and makes of each one part a folder: what lies in the package itself comes first, then its subfolders. It asks
nothing and runs nothing, and a file that is there already is never written over.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

from markdown_it.token import Token

from sidelit.cli import distribution
from sidelit.config import languages, origin
from sidelit.errors import SidelitError
from sidelit.site import pictures
from sidelit.source import source
from sidelit.text import markup

# Folders that hold no modules of the project's own, whatever lies in them.
_PASSED_OVER = {
    *("build", "dist", "docs", "doc", "env", "examples", "node_modules", "site", "site-packages", "target"),
    *("test", "testing", "tests", "venv", "benchmarks", "scripts", "tools"),
}
_TOOLS = {"fabfile.py", "noxfile.py", "setup.py", "tasks.py", "versioneer.py"}
# What pytest reads lies among the modules that it tests.
_OF_TESTS = "conftest.py"
CONFIGURATION, HOME, MKDOCS = "site/sidelit.toml", "site/pages/index.md", "mkdocs.yml"


@dataclass(frozen=True, slots=True)
class Part:
    """Chapters under one heading: a folder of the project, and the patterns of its files."""

    label: str
    folder: str
    patterns: tuple[str, ...]
    files: int
    """How many these match."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a repository is made of, as far as its files tell."""

    title: str
    tagline: str
    language: str
    root: str
    """The folder that imports start from."""
    parts: tuple[Part, ...]
    packages: bool
    """Whether there is any `__init__.py`."""
    left_out: tuple[SidelitError, ...]
    """Why which sources can have no page, such as those that are no Python."""
    pictures: tuple[str, ...]
    """The folders with pictures that sources show, where these lie beside no source."""


def init(folder: Path, *, codes: Sequence[str] = (), mkdocs: bool = False) -> tuple[Found, tuple[Path, ...]]:
    """Write a configuration for the project in `folder`; returns what was found and the files written.

    :param codes: the languages of the site, the first one that of the sources; guessed if there are none.
    :param mkdocs: whether mkdocs is to build the site as well.

    Raises `SidelitError` if one of the files is there already, if there is nothing to print, and if the
    project's own mkdocs empties the folder of these files.
    """
    if not folder.is_dir():
        raise SidelitError("there is no such folder", path=folder)
    languages.refuse(codes)
    _refuse_emptied(folder)
    found = look(folder)
    spoken = tuple(codes) or (found.language,)
    files = {CONFIGURATION: _configuration(found, spoken), HOME: _home(found)}
    if mkdocs:
        files[MKDOCS] = _mkdocs(found)
    for code in spoken:
        if code not in languages.known():
            files[f"site/{languages.FOLDER}/{code}.toml"] = languages.beginning(code)
    for name in files:
        if (folder / name).exists():
            raise SidelitError(
                "this file is there already", path=name, hint="remove it, or change it by hand"
            )
    return found, tuple(_write(folder, files))


def _refuse_emptied(folder: Path) -> None:
    """Refuse a project whose documentation is built into `site/`: mkdocs deletes what it finds there."""
    for name in (MKDOCS, "mkdocs.yaml"):
        path = folder / name
        if not path.is_file():
            continue
        text = path.read_text("utf-8", "replace").removeprefix("\ufeff").replace("\0", "")
        given = re.search(r"(?m)^site_dir *: *[\"']?([^\"'#\n]+)", text)
        said = given[1].strip() if given else ""
        # What stands in the environment of each machine may be missing there: then it is `site`, too.
        output = (folder / ("site" if said in ("", "null", "~") or said.startswith("!") else said)).resolve()
        if any((folder / name).resolve().is_relative_to(output) for name in (CONFIGURATION, HOME)):
            what = "mkdocs deletes what lies in site/, where sidelit keeps its own files"
            hint = "add the line `site_dir: build/docs` to it, or name another folder, and call init again"
            raise SidelitError(what, path=name, hint=hint)


def _write(folder: Path, files: Mapping[str, str]) -> Iterator[Path]:
    """Write them all; where the disk refuses one, the others do not stay behind."""
    written: list[Path] = []
    try:
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8", newline="\n") as file:
                written.append(path)
                file.write(text)
    except OSError:
        for path in written:
            path.unlink(missing_ok=True)
        raise
    yield from written


def look(folder: Path) -> Found:
    """See what a repository is made of.

    Raises `SidelitError` if there is no Python in it.
    """
    likely = filter(None, (distribution.source_root(folder), "src"))
    inside = next((each for each in likely if _is_root(folder / each)), "")
    base = folder / inside
    packages = [each for each in _folders(base) if any(_modules(each))]
    loose = [path.name for path in _python(base) if path.name not in _TOOLS]
    title = _title(folder)
    paths = [path for path in _modules(base) if path.parent != base or path.name in loose]
    if not paths:
        raise SidelitError(
            "there is no Python in this folder or in a package of it", path=folder, hint="name another folder"
        )
    bad: dict[Path, SidelitError] = {}
    words: list[str] = []
    imported: list[str] = []
    wanted: list[tuple[Path, str]] = []
    for path in paths:
        try:
            document = source.read(path, shown=path.relative_to(folder).as_posix())
            said = [section.commentary for section in document.sections]
            wanted += [(path.parent, target) for each in said for target in _targets(each)]
            words += said
            imported += _imported(document.text)
        except SidelitError as error:
            bad[path] = error
    loose = [name for name in loose if base / name not in bad]
    root = inside or _root(folder, imported)
    parts = [Part(title, inside or ".", tuple(map(glob.escape, loose)), len(loose))] if loose else []
    parts += [part for package in packages for part in _package(package, folder, folder / root, bad)]
    if not parts:
        raise next(iter(bad.values()))
    return Found(
        title,
        _tagline(folder),
        _language(words),
        root.removeprefix("."),
        parts=tuple(parts),
        packages=any(path.stem == "__init__" for path in paths),
        left_out=tuple(bad.values()),
        pictures=tuple(_pictures(folder, wanted)),
    )


_PICTURE = re.compile(r"!\[[^\]]*\]\(\s*<?([^)\s>]+)|^\s*\.\. (?:image|figure):: +(\S+)", re.MULTILINE)


def _targets(commentary: str) -> Iterator[str]:
    """Where the pictures of a text lie, if they are in the project."""
    found = (each[1] or each[2] for each in _PICTURE.finditer(commentary))
    yield from (unquote(each) for each in found if not re.match(r"\w+:|//|#", each))


def _pictures(project: Path, wanted: Sequence[tuple[Path, str]]) -> Iterator[str]:
    """The folders at the top of a project that have pictures which are not where their sources say."""
    folders = [path for path in sorted(project.iterdir()) if path.is_dir() and not path.name.startswith(".")]
    lost = {pair for pair in wanted if not _lies(project, *pair)}
    for each in folders:
        if found := {pair for pair in lost if _lies(project, *pair, each.name)}:
            lost -= found
            yield each.name


def _lies(project: Path, folder: Path, target: str, *named: str) -> bool:
    """Whether a picture lies where the press looks for it."""
    places = pictures.places(project.resolve(), folder.resolve(), named)
    try:
        return any((place / target.lstrip("/")).is_file() for place in places)
    except (OSError, ValueError):
        return False


def _package(package: Path, project: Path, root: Path, bad: Collection[Path]) -> Iterator[Part]:
    """One part for what lies in a package itself, and one for each of its subfolders, without `bad` files.

    What holds the source root is no package: its subfolders are.
    """
    whole = not root.is_relative_to(package)
    yield from _part(package, "*.py", project, root, bad)
    for each in _folders(package):
        if whole:
            yield from _part(each, "**/*.py", project, root, bad)
        else:
            yield from _package(each, project, root, bad)


def _part(folder: Path, pattern: str, project: Path, root: Path, bad: Collection[Path]) -> Iterator[Part]:
    found = (path for path in folder.glob(pattern) if path.is_file())
    paths = {path for path in found if _is_kept(path.relative_to(folder))}
    if kept := paths - {*bad}:
        label = folder.relative_to(root if folder.is_relative_to(root) and folder != root else project)
        without = (
            [f"!{glob.escape(path)}/**/*.py" for path in _passed_over(folder)] if pattern != "*.py" else []
        )
        of_tests = folder.glob(pattern.replace("*.py", _OF_TESTS))
        without += sorted(f"!{_escaped(path, folder)}" for path in (*of_tests, *paths - kept))
        place = folder.relative_to(project).as_posix()
        yield Part(".".join(label.parts), place, (pattern, *without), len(kept))


# Where a module is imported, with the first name that is taken from it.
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+([^\W\d][\w.]*)[ \t]+import[ \t(]+(\w+)|import[ \t]+([^\W\d][\w.]*))", re.MULTILINE
)


def _imported(text: str) -> Iterator[str]:
    yield from (each[3] or f"{each[1]}.{each[2]}" for each in _IMPORT.finditer(text))


def _root(folder: Path, imported: Sequence[str]) -> str:
    """The folder that imports start from, if that is not the project's: it holds the outermost packages.

    A folder around these may be a part of their names all the same, which needs no file that says so. Then
    the distribution is called like that, or its modules import each other like that.
    """
    named = _flat(_name(folder))
    found: dict[Path, list[Path]] = {}
    for package in _outermost(folder):
        found.setdefault(package.parent, []).append(package)

    def names(root: Path, place: Path) -> list[str]:
        return [".".join(each.relative_to(root).parts) for each in found[place]]

    def is_named(root: Path, place: Path) -> bool:
        return named in map(_flat, names(root, place))

    def above(place: Path) -> list[Path]:
        return [each for each in (place, *place.parents) if each.is_relative_to(folder)]

    def weight(place: Path) -> tuple[bool, bool, int]:
        called = any(is_named(root, place) for root in above(place))
        return called, place == folder, sum(len([*_modules(each)]) for each in found[place])

    def uses(root: Path) -> tuple[bool, int]:
        known = tuple(f"{name}." for name in names(root, place))
        return is_named(root, place), sum(f"{name}.".startswith(known) for name in imported)

    if not found:
        return ""
    place = max(found, key=weight)
    root = max(above(place), key=uses).relative_to(folder)
    return root.as_posix() if root.parts else ""


def _flat(name: str) -> str:
    """A name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _is_root(folder: Path) -> bool:
    """Whether imports start from a folder that is said, or used, to be the source root."""
    return any(_modules(folder)) and not _is_package(folder)


def _is_package(folder: Path) -> bool:
    return (folder / "__init__.py").is_file()


def _outermost(folder: Path) -> Iterator[Path]:
    """The packages that lie in no other."""
    for each in _folders(folder):
        if _is_package(each):
            yield each
        else:
            yield from _outermost(each)


def _escaped(path: Path, folder: Path) -> str:
    """A pattern that matches this file alone, below a folder."""
    return glob.escape(path.relative_to(folder).as_posix())


def _is_kept(inside: Path) -> bool:
    """Whether a source becomes a page; `inside` is its path below the folder of its part."""
    return inside.name != _OF_TESTS and not _PASSED_OVER.intersection(inside.parent.parts)


def _passed_over(folder: Path) -> Iterator[str]:
    """The folders below this one that hold no modules of their own, though they hold Python."""
    for path in sorted(each for each in folder.rglob("*") if each.is_dir()):
        inside = path.relative_to(folder)
        if path.name in _PASSED_OVER and any(path.rglob("*.py")):
            yield inside.as_posix()


def _folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    inside = (path for path in sorted(folder.iterdir()) if path.is_dir() and not path.is_symlink())
    return [path for path in inside if path.name not in _PASSED_OVER and path.name.isidentifier()]


def _python(folder: Path) -> list[Path]:
    found = (path for path in sorted(folder.glob("*.py")) if path.name != _OF_TESTS)
    return [path for path in found if path.is_file() and not path.is_symlink()]


def _modules(folder: Path) -> Iterator[Path]:
    """Every source of a folder, those of a folder before those of its subfolders."""
    yield from _python(folder) if folder.is_dir() else ()
    for each in _folders(folder):
        yield from _modules(each)


def _tagline(folder: Path) -> str:
    """What a project says of itself in one sentence: in its configuration, else where its README begins.

    Without it a home page would have no words, and no description for those who find it elsewhere.
    """
    if said := distribution.told(folder).get("description"):
        return str(said)
    paragraphs = (after for before, after in pairwise(_readme(folder)) if before.type == "paragraph_open")
    first = " ".join(markup.plain(next(filter(_is_spoken, paragraphs), ())).split())
    sentence = re.match(r".{12,}?[.!?。！？](?=\s|$|[^\x00-\x7f])", first)
    return sentence[0] if sentence else first


# What is written in HTML would be shown as it was typed.
_HTML = re.compile(r"</?[A-Za-z][\w-]*(?:\s[^<>]*)?/?>")


def _is_spoken(paragraph: Token) -> bool:
    """Whether a paragraph says something: it is no HTML, no row of badges, no choice among languages."""
    inside = paragraph.children or []
    linked, words = 0, ""
    for child in inside:
        linked += child.nesting if child.type.startswith("link_") else 0
        words += "" if linked else child.content
    kinds = {child.type for child in inside}
    letters = len(re.findall(r"\w", words))
    return (
        "image" not in kinds and not _HTML.search(paragraph.content) and letters > 12 * ("link_open" in kinds)
    )


def _title(folder: Path) -> str:
    """The first heading of the README, if it is a name; else that of the distribution, or of the repository.

    A later heading is the title of a part, such as "Installation". The first is no more than that if it says
    nothing else, or if others stand beside it and it shares no word with the name.
    """
    name = _name(folder)
    headings = [pair for pair in pairwise(_readme(folder)) if pair[0].type == "heading_open"]
    outer = [(opening.tag, inline) for opening, inline in headings if opening.level == 0]
    if not outer or outer[0][0] != "h1" or not re.fullmatch(r"[^<\[!`]+", outer[0][1].content):
        return name
    title = markup.plain(outer[0][1])
    if set(_words(title)) & set(_words(name)):
        return title
    alone = [tag for tag, _ in outer].count("h1") == 1
    return title if alone and not _OF_A_PART.fullmatch(title) else name


def _name(folder: Path) -> str:
    """What the distribution is called, or else the repository."""
    return str(distribution.told(folder).get("name") or _repository(folder) or folder.resolve().name)


def _words(name: str) -> list[str]:
    return re.findall(r"[^\W_]{3,}", name.casefold())


# A heading of nothing but such words is that of a part: English, Chinese and Japanese READMEs have them.
_OF_A_PART = re.compile(
    r"(?:[\W\d_]*\b(?:a|about|and|background|contents|dependencies|description|documentation|environment|"
    r"features|for|getting|guide|how|install|installation|installing|instructions|introduction|me|notes|of|"
    r"overview|packages?|prerequisites|project|quick|quickstart|read|readme|repo|repository|requirements|run|"
    r"running|set|setup|start|started|structure|summary|table|the|this|to|up|updates?|usage|use|welcome|what)\b)+"
    r"[\W_]*"
    r"|(?:[\W\d_]*(?:本|此|项目|專案|工程|软件|仓库|介绍|簡介|简介|说明|概述|概要|概览|安装|环境|配置|依赖|要求|使用|"
    r"用法|方法|运行|目录|结构|背景|前言|快速|开始|入门|更新|日志|功能|特性|特点|文档|关于|はじめに|インストール|使い方|"
    r"目次|要件|環境|準備|について|の|と|和|与|及))+[\W_]*",
    re.IGNORECASE,
)


def _repository(folder: Path) -> str:
    """What the repository is called where it was cloned from; empty if it is nobody's clone."""
    if not (folder / ".git").exists():
        return ""
    address = origin.git(folder, "config", "--get", "remote.origin.url") or ""
    return re.split(r"[/:\\]", address.rstrip("/").removesuffix(".git"))[-1]


# Notes to editors, and the table that some hosts read at the top, are no words of the README.
_UNSEEN = re.compile(r"\A---\n.*?\n---\n|<!--.*?-->", re.DOTALL)


def _readme(folder: Path) -> Sequence[Token]:
    """The README, however its name is written; nothing if there is none, or it cannot be read."""
    named = {path.name.lower(): path for path in sorted(folder.iterdir()) if path.is_file()}
    found = next((named[name] for name in ("readme.md", "readme.rst", "readme") if name in named), None)
    try:
        text = found.read_text("utf-8", "replace").removeprefix("\ufeff") if found else ""
        if found and found.suffix.lower() == ".rst":
            # What reads reST takes long to import. What is wrong in a README is told to nobody.
            from sidelit.text.docstrings import foreign

            return foreign.tokens(text, None, "rest", foreign.TextPlace(found.name, 1, lambda _: None))
        # Some Markdown needs no blank behind the sign of a heading.
        return markup.parse(re.sub(r"\A(\s*#+)(?=[^\s#])", r"\1 ", _UNSEEN.sub("", text)))
    except (OSError, SidelitError):
        return ()


def _language(words: Sequence[str]) -> str:
    """What the commentary is written in, as far as letters tell: kana are Japanese, ideographs Chinese.

    Commentary in Chinese is full of English names, and one character says about as much as a word.
    """
    text = "".join(words)
    kana = len(re.findall("[\u3041-\u30ff]", text))
    ideographs = len(re.findall("[\u4e00-\u9fff]", text))
    if kana + ideographs <= len(re.findall("[A-Za-z_]+", text)):
        return "en"
    return "ja" if kana * 10 > ideographs else "zh"


def _quoted(text: str) -> str:
    """A string of TOML."""
    return '"' + _printable(text).replace("\\", "\\\\").replace('"', '\\"') + '"'


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)


_INDEX = (
    "# The page of a package x is x/index.html; without this line it is x/__init__.html.",
    "index_pages = true",
)


def _configuration(found: Found, spoken: Sequence[str]) -> str:
    shown = f"pictures = [{', '.join(map(_quoted, found.pictures))}]" if found.pictures else ""
    lines = [
        "# The site that `sidelit build` writes into build/site/. Paths start at the folder above this one.",
        f"title = {_quoted(found.title)}",
        *([f"tagline = {_quoted(' '.join(found.tagline.split()))}"] if found.tagline else []),
        "# The first language is that of the sources; `sidelit sync` writes catalogues for the others.",
        f"languages = [{', '.join(map(_quoted, spoken))}]",
        "# Imports start from this folder: a path below it is the name of a module and the place of a page.",
        f"source_root = {_quoted(found.root)}",
        *(_INDEX if found.packages else ()),
        "# How docstrings are written is guessed, one by one: Markdown, reST, Google's style or NumPy's.",
        'dialect = "auto"',
        "# What is wrong with a formula or a link is told and printed as it was typed. Remove this line when",
        "# all of it is mended: then a mistake stops the build.",
        "keep_going = true",
        *(["# Where pictures lie that are not beside the sources that show them.", shown] if shown else []),
        "",
        "[[front]]",
        'source = "index.md"',
    ]
    if found.left_out:
        lines += ["", "# No page for these files, which the press cannot read:"]
        lines += [f"# {_printable(str(reason))}" for reason in found.left_out]
    for part in found.parts:
        patterns = ", ".join(map(_quoted, part.patterns))
        lines += ["", "[[parts]]", f"label = {_quoted(part.label)}", f"folder = {_quoted(part.folder)}"]
        lines += [f"chapters = [{patterns}]"]
    lines += [
        "",
        "# `sidelit lint` also finds what makes pages hard to read. Here you say how strict it is:",
        "# [lint]",
        "# lines = 25    # of code without a word beside it",
        "# words = 40    # in a sentence",
        "# [lint.rules]",
        '# code-without-words = "error"    # or "warning", or "off"',
    ]
    return "\n".join(lines) + "\n"


def _home(found: Found) -> str:
    about = f"\n> {' '.join(found.tagline.split())}\n" if found.tagline else ""
    return f"# {found.title}\n{about}"


def _mkdocs(found: Found) -> str:
    return (
        "# mkdocs writes what site/sidelit.toml says: `mkdocs build --strict`.\n"
        f"site_name: {_quoted(found.title)}\n"
        "docs_dir: site/pages\nsite_dir: build/site\nuse_directory_urls: false\n"
        "theme:\n  name: null\n  custom_dir: site/pages\nplugins:\n  - sidelit\n"
    )
