"""The sentences of the labs in other languages: src/shardbook/labs/locale/LANGUAGE/LC_MESSAGES/labs.po.

    python tools/lab_words.py update   # collect the sentences from the code, and make labs.mo from labs.po
    python tools/lab_words.py check    # say what is missing, and end with an error if anything is

A sentence is the first argument of `tell` or `label`, in the runtime of the labs or in a notebook. One that
the code no longer contains leaves the catalogues.
"""

from __future__ import annotations

import string
import sys
from collections.abc import Iterator
from pathlib import Path

import polib
from babel.messages.extract import extract_from_file

ROOT = Path(__file__).parent.parent
CATALOGUES = "src/shardbook/labs/locale"
KEYWORDS = {"tell": None, "label": None}


def sentences(root: Path = ROOT) -> dict[str, list[str]]:
    """Every sentence, in the order of the code, with the files that say it."""
    found: dict[str, list[str]] = {}
    for path in sorted([*root.glob("src/shardbook/labs/**/*.py"), *root.glob("notebooks/*.py")]):
        name = path.relative_to(root).as_posix()
        for _, message, _, _ in extract_from_file("python", path, keywords=KEYWORDS):
            assert isinstance(message, str), f"{name}: {message}"
            if name not in found.setdefault(message, []):
                found[message].append(name)
    return found


def catalogues(root: Path = ROOT) -> list[Path]:
    """The catalogue of each language."""
    return sorted(root.glob(f"{CATALOGUES}/*/LC_MESSAGES/labs.po"))


def updated(path: Path, wanted: dict[str, list[str]]) -> polib.POFile:
    """A catalogue with exactly these sentences, translated where they were."""
    before = polib.pofile(str(path), wrapwidth=100)
    after = polib.POFile(wrapwidth=100)
    # No date, and nobody's name: the same sentences are the same bytes.
    after.metadata = {
        "Language": path.parents[1].name,
        "MIME-Version": "1.0",
        "Content-Type": "text/plain; charset=UTF-8",
        "Content-Transfer-Encoding": "8bit",
    }
    for sentence, files in wanted.items():
        old = before.find(sentence)
        after.append(
            polib.POEntry(
                msgid=sentence,
                msgstr=old.msgstr if old else "",
                # Without line numbers, so that the catalogue does not change with every line of code.
                occurrences=[(file, "") for file in files],
            )
        )
    return after


def update(root: Path = ROOT) -> None:
    """Write both files of every language."""
    for path in catalogues(root):
        made = updated(path, sentences(root))
        path.write_text(f"{made}\n", "utf-8")
        path.with_suffix(".mo").write_bytes(made.to_binary())


def faults(root: Path = ROOT) -> Iterator[str]:
    """What keeps the labs from speaking every language."""
    wanted = sentences(root)
    for path in catalogues(root):
        name = path.relative_to(root).as_posix()
        found = polib.pofile(str(path), wrapwidth=100)
        for entry in found:
            if entry.msgid not in wanted:
                yield f"{name}: no code says {entry.msgid!r} any more; run tools/lab_words.py update"
            elif not entry.msgstr:
                yield f"{name}: no translation of {entry.msgid!r}"
            elif blanks(entry.msgid) != blanks(entry.msgstr):
                yield f"{name}: other blanks than in {entry.msgid!r}: {entry.msgstr!r}"
        for sentence in wanted:
            if found.find(sentence) is None:
                yield f"{name}: {sentence!r} is missing; run tools/lab_words.py update"
        made = updated(path, wanted)
        if path.read_text("utf-8") != f"{made}\n" or path.with_suffix(".mo").read_bytes() != made.to_binary():
            yield f"{name}: labs.mo or labs.po is not as the code says; run tools/lab_words.py update"


def blanks(text: str) -> list[tuple[str, str]]:
    """The blanks of a sentence, with their formats, in the order of their names."""
    parts = string.Formatter().parse(text)
    return sorted((name, f"{form}!{how}") for _, name, form, how in parts if name is not None)


def main(arguments: list[str]) -> int:
    """Run the command line."""
    match arguments:
        case ["update"]:
            update()
            return 0
        case ["check"]:
            found = list(faults())
            print(*found, sep="\n")
            return 1 if found else 0
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
