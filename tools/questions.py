"""Whether the search finds what people ask for: the right page among the first three results.

    python tools/questions.py                    # asks build/site, and names what is missed
    python tools/questions.py --site FOLDER      # asks another built site
    python tools/questions.py QUESTIONS          # other questions

A file of questions is TOML: rows `[[questions]]` with a `language`, a `text`, and the `pages` that answer it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sidelit.site.search import ask

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
QUESTIONS = ROOT / "tests" / "press" / "data" / "questions.toml"
FIRST = 3


@dataclass(frozen=True)
class Question:
    """What somebody types, and the pages that answer it."""

    language: str
    text: str
    pages: tuple[str, ...]


def read(path: Path = QUESTIONS) -> dict[str, list[Question]]:
    """The questions of a file, by their language."""
    found: dict[str, list[Question]] = {}
    for row in tomllib.loads(path.read_text("utf-8"))["questions"]:
        question = Question(row["language"], row["text"], tuple(row["pages"]))
        found.setdefault(question.language, []).append(question)
    return found


def missed(index: ask.Index, asked: Sequence[Question]) -> Mapping[Question, list[str]]:
    """The questions whose pages are not among the first results, each with what is there."""
    wrong = {}
    for question in asked:
        first = [answer.address for answer in index.ask(question.text, FIRST)]
        if not any(address.partition("#")[0] in question.pages for address in first):
            wrong[question] = first
    return wrong


def main() -> int:
    """Print what is missed and the score of each language; fail below 95 %."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("questions", type=Path, nargs="?", default=QUESTIONS)
    parser.add_argument("--site", type=Path, metavar="FOLDER", default=ROOT / "build" / "site")
    given = parser.parse_args()
    low = False
    for language, asked in read(given.questions).items():
        wrong = missed(ask.opened(given.site, language), asked)
        for question, first in wrong.items():
            print(f"{language}: {question.text}")
            print(f"    wanted {', '.join(question.pages)}\n    found  {', '.join(first)}")
        right = len(asked) - len(wrong)
        print(f"{language}: {right} of {len(asked)}")
        low |= right < 0.95 * len(asked)
    return int(low)


if __name__ == "__main__":
    sys.exit(main())
