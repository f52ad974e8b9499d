"""# What is left of other people's dialects?

> Packages of the environment are printed as strangers print them, and the words of their pages are searched
> for what no reader should see: formulas that were refused or set wrong, and marks of reST, Markdown and TeX.

    python -m benchmarks.dialects                      # the packages of the table
    python -m benchmarks.dialects click networkx       # others of this environment
    python -m benchmarks.dialects --show 5 docutils    # and five places of each kind

A mark that is left is no verdict: a docstring may speak about the marks, or be wrong in its own dialect.
Those who judge look at the places.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

from benchmarks.press.cost import sidelit

PACKAGES = (
    "labml_nn",
    "networkx",
    "docutils",
    "click",
    "attr",
    "jinja2",
    "rich",
    "matplotlib",
    "sympy.physics",
)
MARKS = {
    "role": r":[a-z][a-z:+-]*:`",
    "directive": r"(?:^|\s)\.\. [\w:-]+::",
    "target": r"(?:^|\s)\.\. (?:_\S.*:|\[\w+\])",
    "reference": r"`_(?!\w)|(?<!\w)\[[\w#*]+\]_(?!\w)",
    "code span": r"``|(?<![\w`'])`[^`'\s][^`']*`(?!\w)",
    "bold": r"(?<![\w*])\*\*[^\s*][^*]*\*\*(?![\w*])",
    "Markdown link": r"\]\((?:https?:|[\w./]+\.(?:html|md|py))",
    "Markdown heading": r"^#{1,6} \w",
    "fence": r"```|~~~~",
    "underline": r"^\s*(?:-{4,}|={4,})\s*$",
    "TeX": r"\$\$|\\(?:begin|end|frac|mathbf|mathbb|text|left|right)\b",
    "field": r"(?:^|\s):(?:param|type|returns?|rtype|raises)\b[^:]*:",
    "HTML": r"</?(?:a|b|br|p|i|img|code|div|span|pre)(?:\s[^<>]*)?/?>",
}
# What Python makes of `\t`, `\f` and others; in TeX they are the begin of a command that is lost.
LOST = re.compile(r"[\a\b\t\v\f\r]\w")
COUNTS = ("files", "formulas", "refused", "set wrong", *MARKS)
# What no reader sees, or sees as code on purpose.
APART = {"pre", "code", "script", "style", "math", "annotation"}
VOID = {"br", "hr", "img", "input", "link", "meta", "wbr", "col", "source"}
BLOCKS = {
    "p",
    "li",
    "td",
    "th",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "dt",
    "dd",
    "blockquote",
    "div",
    "figcaption",
}


class Words(HTMLParser):
    """The words of all commentary on a page, block by block, and its formulas."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.blocks = [""]
        self.formulas: list[str] = []
        self.codes: list[str] = []
        self._open: list[tuple[str, str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in VOID:
            return
        self._open.append((tag, dict(attrs).get("class") or ""))
        if tag in BLOCKS:
            self.blocks.append("")
        if tag == "annotation":
            self.formulas.append("")
        if tag == "code":
            self.codes.append("")

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop()[0] != tag:
            pass
        if tag in BLOCKS:
            self.blocks.append("")

    def handle_data(self, data: str) -> None:
        tags = {tag for tag, _ in self._open}
        if not any("doc" in each.split() for _, each in self._open):
            return
        if "annotation" in tags:
            self.formulas[-1] += data
        elif "code" in tags and "pre" not in tags:
            self.codes[-1] += data
        elif not tags & APART and not any("katex" in each for _, each in self._open):
            self.blocks[-1] += data


def found(page: str) -> Iterator[tuple[str, str]]:
    """What one page shows: kinds of `COUNTS`, each with its words."""
    words = Words(page)
    for tex in words.formulas:
        yield "formulas", tex
        if LOST.search(tex):
            yield "set wrong", tex
    for code in words.codes:
        # As it was typed is how a formula is printed that was refused.
        if re.fullmatch(r"\$[^$]+\$|\$\$[^$]+\$\$", code):
            yield "formulas", code
            yield "refused", code
    for block in words.blocks:
        for kind, mark in MARKS.items():
            for each in re.finditer(mark, block.strip(), re.MULTILINE):
                yield kind, block.strip()[max(0, each.start() - 40) : each.end() + 40]


def printed(package: str, folder: Path) -> dict[str, list[str]]:
    """Print one package, and return what its pages show by its kind, each with the name of its page."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        sys.exit(f"{package} is no package of this environment")
    copy = folder / package.rpartition(".")[2]
    ignored = shutil.ignore_patterns("__pycache__", "tests", "_version.py")
    shutil.copytree(spec.submodule_search_locations[0], copy, ignore=ignored)
    done = subprocess.run(
        list(map(str, sidelit("print", copy.name, "--out", "pages"))),
        cwd=folder,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(done.stderr)
    kinds: dict[str, list[str]] = {kind: [] for kind in COUNTS}
    for path in sorted((folder / "pages").rglob("*.html")):
        kinds["files"].append(path.name)
        for kind, words in found(path.read_text(encoding="utf-8")):
            kinds[kind].append(f"{path.relative_to(folder / 'pages')}: {' '.join(words.split())}")
    return kinds


def main(arguments: list[str] | None = None) -> int:
    """Print the table, and the places that were asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.dialects", description=__doc__.split("\n\n")[1]
    )
    parser.add_argument("packages", nargs="*", default=PACKAGES, metavar="PACKAGE")
    parser.add_argument("--show", type=int, default=0, metavar="N", help="places of each kind to print")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the counts to this file")
    options = parser.parse_args(arguments)
    table = {}
    for package in options.packages:
        with tempfile.TemporaryDirectory(prefix="bench-dialects-") as folder:
            kinds = printed(package, Path(folder))
        table[package] = {kind: len(places) for kind, places in kinds.items()}
        print(
            f"{package}: "
            + ", ".join(f"{count:,} {kind}" for kind, count in table[package].items() if count),
            flush=True,
        )
        for kind in COUNTS[2:]:
            for place in kinds[kind][: options.show]:
                print(f"    {kind}: {place}")
    if options.json is not None:
        options.json.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
