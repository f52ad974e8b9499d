"""Numbers are written in one way: a percent sign without a space, units as symbols.

    python tools/number_style.py           # names each place that is written in another way
    python tools/number_style.py --fix     # mends them, in the sources and in the catalogues

The rules stand in CONTRIBUTING.md, under "Numbers and units". Code and formulas are left as they are.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
import tokenize
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
SITE = ROOT / "site"
# Words of the sources, by the folders and the endings that they stand in.
PROSE = ("site/pages/**/*.md", "site/lessons/**/*.md", "README.md", "CONTRIBUTING.md")
DATA = ("site/figures/*.toml", "site/sliders/*.toml", "site/steppers/*.toml", "site/glossary.toml")
CODE = ("src/**/*.py", "notebooks/*.py", "benchmarks/*.py")

Rule = tuple["re.Pattern[str]", "str | Callable[[re.Match[str]], str]"]
# What is no word: code, formulas, the addresses of links.
_KEPT = re.compile(r"(`[^`]*`|\$[^$\n]*\$|\]\([^)\s]*\))")
_PERCENT: Rule = (re.compile(r"(?<=\d)[ \u00a0\u202f]%(?!\w|\s*[\d(])"), "%")


def _times(names: dict[str, str], space: str) -> Iterator[Rule]:
    """Times below a second are symbols, which a letter of a language with spaces stands apart from."""
    for word, symbol in names.items():
        yield re.compile(rf"(?<=\d) ?{word}(?=[^\W\d_a-z])"), f" {symbol}{space}"
        yield re.compile(rf"(?<=\d) ?{word}"), f" {symbol}"


def _counted(unit: str) -> Callable[[re.Match[str]], str]:
    """Billions of parameters, counted as the language counts: 1.2B are 12億."""
    return lambda found: f"{float(found[1]) * 10:g}{unit}"


RULES: dict[str, tuple[Rule, ...]] = {
    "ja": (
        _PERCENT,
        *_times({"ミリ秒": "ms", "マイクロ秒": "µs", "ナノ秒": "ns"}, ""),
        (re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)B(?=個?の?(?:パラメータ|モデル))"), _counted("億")),
    ),
    "zh": (
        _PERCENT,
        *_times({"毫秒": "ms", "微秒": "µs", "纳秒": "ns"}, " "),
        (re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)B ?(?=个?(?:参数|模型))"), _counted(" 亿")),
    ),
}


def styled(text: str, rules: Sequence[Rule]) -> str:
    """A text with its numbers written as the rules want them; code in it stays."""
    parts = _KEPT.split(text)
    for at in range(0, len(parts), 2):
        for pattern, by in rules:
            parts[at] = pattern.sub(by, parts[at])
    return "".join(parts)


def styled_code(text: str) -> str:
    """A program with its comments and docstrings mended: in them alone `%` is a percent sign."""
    lines = text.splitlines(keepends=True)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and '"""' in token.string[:4]):
            first, column = token.start
            for number in range(first, token.end[0] + 1):
                line, own = lines[number - 1], column if number == first else 0
                lines[number - 1] = line[:own] + styled(line[own:], (_PERCENT,))
    return "".join(lines)


def styled_catalog(text: str, lang: str) -> str:
    """A catalogue: its originals follow the sources, its translations the rules of their language."""
    lines = text.splitlines(keepends=True)
    rules: Sequence[Rule] = ()
    for at, line in enumerate(lines):
        if line.startswith(("msgid", "msgctxt", "#|")):
            rules = (_PERCENT,)
        elif line.startswith("msgstr"):
            rules = RULES[lang]
        if line.startswith(("msgid", "msgstr", '"', "#|")):
            lines[at] = styled(line, rules)
    return "".join(lines)


def mended(root: Path = ROOT) -> Iterator[tuple[Path, str, str]]:
    """Each file whose numbers are written in another way, with its text and what it should be."""
    for patterns, mend in (((*PROSE, *DATA), lambda text: styled(text, (_PERCENT,))), (CODE, styled_code)):
        for path in sorted(path for pattern in patterns for path in root.glob(pattern)):
            yield from _one(path, mend)
    for lang in RULES:
        for path in sorted((root / "site" / "locale" / lang).rglob("*.po")):
            yield from _one(path, lambda text, lang=lang: styled_catalog(text, lang))  # type: ignore[misc]


def _one(path: Path, mend: Callable[[str], str]) -> Iterator[tuple[Path, str, str]]:
    text = path.read_text("utf-8")
    if (new := mend(text)) != text:
        yield path, text, new


def complaints(root: Path = ROOT) -> Iterator[str]:
    """Each line that is written in another way, with what it should be."""
    for path, text, new in mended(root):
        for number, (is_, should) in enumerate(zip(text.splitlines(), new.splitlines(), strict=True), 1):
            if is_ != should:
                yield f"{path.relative_to(root)}:{number}: {should.strip()}"


def main() -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--fix", action="store_true", help="mend what is found")
    if parser.parse_args().fix:
        for path, _, new in [*mended()]:
            path.write_text(new, "utf-8")
        return 0
    found = [*complaints()]
    print(*found, sep="\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
