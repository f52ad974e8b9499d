"""# A catalogue on disk

> One PO file a page and language, written so that a diff shows what a translator did.

Catalogues are gettext PO, which every translation tool reads: one file a page and language. What the
press writes has no line numbers and no dates, and one message stays on one line, so that a diff shows
what a translator changed and nothing else. Two facts about an entry have no word in gettext, so they
stand in its translator comment, the one place that every tool hands on:

    # code: 3f2a9c0b17de      the code beside the sentence when it was last judged
    # allow: term, the verb   a lint that a translator overruled, and why

polib reads leniently: it drops a string whose closing quote is missing. A lost sentence is the one thing
a catalogue must never do, so each line is checked before polib sees it.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import polib

from sidelit.cache import store
from sidelit.cache.graph import Graph, Task
from sidelit.cache.records import quick
from sidelit.errors import SidelitError
from sidelit.files import assets, atomic

# Before a line is looked at, a letter stands for each escape in it: a choice at every character of a long
# string would take the pattern a hundred bytes for each.
_ESCAPE = re.compile(r'\\[\\"nrtabfv]')
_STRING = r'"[^"\\]*"'
_LINE = re.compile(
    rf"(?:#~?[ \t]*)?(?:\|[ \t]*)?(?P<keyword>msgctxt|msgid|msgstr)[ \t]+{_STRING}[ \t]*"
    rf"|(?:#~[ \t]*|#\|[ \t]*|#~\|[ \t]*)?{_STRING}[ \t]*"
)
_FIX = "mend this line, or restore the file and run `sidelit sync`"

# A translation is one sentence or paragraph: this many pages of a book, printed, would take a minute.
MOST = 200_000
# Written in place of a fingerprint when a text arrives in a context that nobody has judged it in.
MOVED = "moved"
# Written for a section without code, where another section of the same context has some.
NO_CODE = "none"


@quick
@dataclass(frozen=True, slots=True)
class Entry:
    """One unit in one language.

    `digests` are the fingerprints of the code beside it when the translation was last judged; `same` says
    that it equals the English on purpose; `previous` is the English that a stale translation was made
    from. `line` is where its msgstr stands in the file `path`, 0 while it stands in none.
    """

    context: str
    msgid: str
    msgstr: str = ""
    digests: tuple[str, ...] = ()
    fuzzy: bool = False
    same: bool = False
    previous: str = ""
    obsolete: bool = False
    notes: tuple[str, ...] = ()
    path: str = ""
    line: int = 0

    @property
    def key(self) -> tuple[str, str]:
        """What tells entries of one file apart."""
        return self.context, self.msgid


@dataclass(frozen=True, slots=True)
class File:
    """A catalogue as it lies on the disk: a digest of it, and what reads its entries."""

    digest: str
    read: Callable[[], tuple[Entry, ...]]


def opened(path: Path, lang: str, shown: str, graph: Graph) -> File:
    """Find a catalogue sound, which an earlier build may have done; raises as `read` does."""
    task = reading(path, lang, shown)
    read = partial(graph.do, task)
    if graph.knows(task.kind, task.key):
        return File(str(task.key), read)
    entries = read()
    return File(str(task.key), lambda: entries)


def reading(path: Path, lang: str, shown: str) -> Task[tuple[Entry, ...]]:
    """Find a catalogue; the task reads it."""
    text = _decode(path, shown)
    key = store.digest(text, lang, shown)
    return Task("catalogues", key, partial(_read, path, text, lang, shown))


def read(path: Path, lang: str, shown: str) -> tuple[Entry, ...]:
    """Read the entries of one catalogue, the obsolete ones too; messages call the file `shown`.

    Raises `SidelitError` at the line of whatever is not a whole, unambiguous UTF-8 catalogue of this
    language.
    """
    return _read(path, _decode(path, shown), lang, shown)


def _read(path: Path, text: str, lang: str, shown: str) -> tuple[Entry, ...]:
    lines = text.split("\n")
    msgstr_lines = _check(lines, shown)
    try:
        parsed = polib.pofile(str(path), encoding="utf-8", wrapwidth=0)
    except OSError as error:
        where = re.search(r"\(line (\d+)\)", str(error))
        line = int(where[1]) if where else None
        raise SidelitError("this is not a valid PO catalogue", path=shown, line=line, hint=_FIX) from error
    stated = parsed.metadata.get("Language", lang)
    if stated != lang:
        raise SidelitError(
            f"the header says `Language: {stated}`, the folder says {lang}",
            path=shown,
            line=1,
            hint="move the file or mend its header",
        )
    found: dict[tuple[str, str], int] = {}
    entries = []
    for raw in parsed:
        line = msgstr_lines[bisect.bisect_left(msgstr_lines, raw.linenum)]
        entry = _from_polib(raw, shown, line)
        if len(entry.msgstr) > MOST:
            many = f"this msgstr has {len(entry.msgstr):,} characters, and a translation {MOST:,} at most"
            raise SidelitError(many, path=shown, line=line, hint="shorten it, or leave it empty")
        if entry.key in found:
            raise SidelitError(
                f"this entry repeats the one at line {found[entry.key]} (context {entry.context!r})",
                path=shown,
                line=line,
                hint="keep one of the two",
            )
        found[entry.key] = line
        entries.append(entry)
    return tuple(entries)


def _decode(path: Path, shown: str) -> str:
    try:
        data = assets.data(path)
    except OSError as error:
        raise SidelitError(f"cannot be read: {error.strerror}", path=shown) from None
    try:
        # Some editors put a byte order mark first. It says nothing here, and polib passes over it too.
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SidelitError(
            "this is not UTF-8", path=shown, line=line, hint="save the file as UTF-8"
        ) from error
    return text.replace("\r\n", "\n")


def _check(lines: Sequence[str], shown: str) -> list[int]:
    """Refuse what polib would read differently from what stands there; returns the lines of all msgstr."""
    msgstr_lines = []
    unanswered = 0
    for number, line in enumerate((*lines, ""), 1):
        is_string = line.strip() and (not line.startswith("#") or line.startswith(("#~", "#|")))
        match = _LINE.fullmatch(_ESCAPE.sub("x", line)) if is_string else None
        if is_string and not match:
            raise SidelitError("this line is not PO", path=shown, line=number, hint=_FIX)
        keyword = match["keyword"] if match and "|" not in line[:3] else None
        if unanswered and (not is_string or keyword == "msgctxt"):
            raise SidelitError("this entry has no msgstr", path=shown, line=unanswered, hint=_FIX)
        if keyword == "msgstr":
            msgstr_lines.append(number)
            unanswered = 0
        elif keyword:
            unanswered = unanswered or number
    return msgstr_lines


def _from_polib(raw: polib.POEntry, path: str, line: int) -> Entry:
    digests: tuple[str, ...] = ()
    notes = []
    for comment in raw.tcomment.split("\n") if raw.tcomment else ():
        if comment.startswith("code: "):
            digests = tuple(comment.removeprefix("code: ").split())
        else:
            notes.append(comment)
    return Entry(
        context=raw.msgctxt or "",
        msgid=raw.msgid,
        msgstr=raw.msgstr,
        digests=digests,
        fuzzy="fuzzy" in raw.flags and bool(raw.msgstr),
        same="same" in raw.flags,
        previous=raw.previous_msgid or "",
        obsolete=bool(raw.obsolete),
        notes=tuple(notes),
        path=path,
        line=line,
    )


def render(entries: Iterable[Entry], lang: str) -> str:
    """The text of a catalogue: the entries in the order given, the obsolete ones last."""
    catalogue = polib.POFile(wrapwidth=0)
    catalogue.metadata = {
        "Language": lang,
        "MIME-Version": "1.0",
        "Content-Type": "text/plain; charset=UTF-8",
        "Content-Transfer-Encoding": "8bit",
    }
    for entry in entries:
        catalogue.append(_to_polib(entry))
    return str(catalogue)


def _to_polib(entry: Entry) -> polib.POEntry:
    code = (f"code: {' '.join(entry.digests)}",) if entry.digests else ()
    flags = [name for name, is_set in (("fuzzy", entry.fuzzy), ("same", entry.same)) if is_set]
    return polib.POEntry(
        msgctxt=entry.context,
        msgid=entry.msgid,
        msgstr=entry.msgstr,
        tcomment="\n".join((*entry.notes, *code)),
        flags=flags,
        # polib writes the previous msgid of an obsolete entry and cannot read it back.
        previous_msgid=(entry.previous or None) if entry.fuzzy and not entry.obsolete else None,
        obsolete=entry.obsolete,
    )


def write(path: Path, content: str) -> bool:
    """Write a catalogue if it differs from what stands there; a reader never sees half of one."""
    return atomic.write(path, content.encode())
