"""# The languages of a site

> A language is a file of data: what it is called, which way it is written, and the words of the interface.

The press brings `ui/CODE.toml` for a few languages. A project adds others, and other words for these, in its
own `site/ui/CODE.toml`:

    [language]
    name = "Deutsch"
    short = "DE"

    [ui]
    skip = "Zum Text"
    contents = "Inhalt"

Every word is needed, so that no page turns out half in one language and half in another by accident. A file
that is not finished says so: with `fallback = "en"` under `[language]` the words that it lacks are those of
that language.

What the project's own templates say stands under `[own]`, in every language; there it is `own.KEY`.

The search of a site needs to know a little of the language, in `[search]`. `stop` lists the words that every
sentence has. `fold` has patterns for what people type in another way, as in `"ß" = "ss"`. `endings` makes one
word of its forms: patterns for a whole word, of which the first that fits is exchanged for what stands behind
it, as in `"(.+)ing" = "$1"`. The page's script reads them, too, so they say what both languages understand.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Formatter
from types import MappingProxyType
from typing import Any

from sidelit.config.toml import Table, read_table
from sidelit.errors import SidelitError
from sidelit.files import assets

FOLDER = "ui"
# A code of BCP 47: `de`, `pt-BR`, `zh-Hant-TW`.
CODE = re.compile(r"[A-Za-z]{2,3}(?:-[A-Za-z0-9]{1,8})*")
_DIRECTIONS = ("ltr", "rtl")


@dataclass(frozen=True, slots=True)
class SearchWords:
    """What a search has to know of a language: `[search]`."""

    stop: tuple[str, ...] = ()
    fold: Mapping[str, str] = field(default_factory=dict)
    endings: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Language:
    """A language that pages are printed in."""

    code: str
    """What the configuration and the folders of the site call it."""
    name: str
    """What it calls itself."""
    short: str
    """The same in a letter or two, where there is little room."""
    words: Mapping[str, str]
    """The words of the interface by their keys."""
    tag: str = ""
    """What pages say in `lang`: browsers choose letters and voices by it."""
    direction: str = "ltr"
    """`ltr` or `rtl`, the way its lines run."""
    own: Mapping[str, str] = field(default_factory=dict)
    """The words of the project's own templates."""
    cjk: bool = False
    """Whether it is set in ideographs, which take none of the Latin text faces."""
    search: SearchWords = field(default_factory=SearchWords)
    counts: tuple[tuple[float, str], ...] = ()
    """What large numbers are counted in, with the word behind such a number, the largest first."""

    def word(self, key: str, **values: str) -> str:
        """One word of the interface with its blanks filled."""
        if key not in self.words:
            raise SidelitError(f"the word {key!r} is missing", path=f"templates/ui/{self.code}.toml", line=1)
        return self.words[key].format(**values)


def known() -> tuple[str, ...]:
    """List the languages that the press itself has words for."""
    return tuple(sorted(file.stem for file in _folder().glob("*.toml")))


def load(code: str, folder: Path | None = None, shown: str = FOLDER) -> Language:
    """Read a language: the press's own words, and over them those that a project keeps in `folder`.

    :param code: a code of BCP 47.
    :param folder: `site/ui` of a project, if there is one.
    :param shown: what messages call that folder.

    Raises `SidelitError` where nobody has words for the language, and at the file that lacks some.
    """
    refuse((code,))
    ours = _folder() / f"{code}.toml"
    own = folder / f"{code}.toml" if folder is not None else None
    press = (ours, f"templates/ui/{code}.toml") if ours.is_file() else None
    if own is not None and own.is_file():
        return _read(code, press, (own, f"{shown}/{code}.toml"))
    return _read(code, press, None) if press else _absent(code, f"{shown}/{code}.toml")


def beginning(code: str) -> str:
    """The first lines of a file of words for a language that the press does not know."""
    return (
        f"# The words of the interface in {code!r}. Those that it lacks are English, as `fallback` says;\n"
        f"# all of them stand in {FOLDER}/en.toml of the press's templates.\n"
        f'[language]\nname = "{code}"\nshort = "{code.upper()}"\nfallback = "en"\n\n[ui]\n'
        + "".join(f'# {key} = "{_english()[key]}"\n' for key in ("skip", "contents", "previous", "next"))
    )


def refuse(given: Sequence[str]) -> None:
    """Refuse what is no code of a language, which would be a path or break a file, and a code given twice."""
    for place, code in enumerate(given):
        if not CODE.fullmatch(code):
            raise SidelitError(f"{code!r} is no code of a language", hint='write it like "de" or "pt-BR"')
        if code in given[:place]:
            raise SidelitError(f"the language {code!r} is named twice", hint="name each once")


def codes(top: Table) -> tuple[str, ...]:
    """The languages that a configuration names, the first one that of the sources."""
    named = tuple(str(code) for code in top.take("languages", list, ["en"]))
    if not named or len(set(named)) != len(named):
        raise top.error("`languages` must name at least one language, and each once", "languages")
    return named


def kept(table: Table, named: Sequence[str]) -> tuple[str, ...]:
    """The languages that a part or a page stands in, where it says so; `named` are those of the site.

    Raises `SidelitError` if the language of the sources is not the first of them, or the site lacks one.
    """
    said = table.strings("languages")
    for code in said:
        if code not in named:
            what = f"`languages` names {code!r}, which is no language of this site"
            raise table.error(what, "languages", hint=f"it has {', '.join(named)}")
    if said and (said[0] != named[0] or len(set(said)) != len(said)):
        what = f"`languages` must begin with {named[0]!r}, what everything is written in, and name each once"
        raise table.error(what, "languages")
    return said


def spoken(named: Sequence[str], folder: Path, shown: str, top: Table) -> dict[str, Language]:
    """Read the languages of a site; `folder` and `shown` are as in `load`.

    Raises `SidelitError` where the configuration names one that nobody has words for, and where the words of
    the project's own templates do not stand in each of them.
    """
    try:
        found = {code: load(code, folder, shown) for code in named}
    except SidelitError as error:
        raise error if error.path else top.error(error.what, "languages", hint=error.hint) from None
    asked = dict.fromkeys(key for language in found.values() for key in language.own)
    for code, language in found.items():
        if missing := [key for key in asked if key not in language.own]:
            what = f"words of the project's own templates are missing: {', '.join(missing)}"
            raise SidelitError(what, path=f"{shown}/{code}.toml", line=1, hint="write them under [own]")
    return found


def _folder() -> Path:
    return assets.templates_folder() / FOLDER


def _absent(code: str, place: str) -> Language:
    hint = (
        f'write {place} with `fallback = "en"` under [language] and as many words as you have, '
        f"after the pattern of {_folder() / 'en.toml'}"
    )
    raise SidelitError(f"the press has no words for the language {code!r} ({', '.join(known())})", hint=hint)


def _english() -> dict[str, str]:
    return _words(_open((_folder() / "en.toml", "templates/ui/en.toml")), "ui")


def _open(file: tuple[Path, str]) -> Table:
    return read_table(*file)


def _read(code: str, ours: tuple[Path, str] | None, own: tuple[Path, str] | None) -> Language:
    """The language of one file, or of two laid over each other."""
    tables = [_open(file) for file in (ours, own) if file is not None]
    said: dict[str, Any] = {}
    words: dict[str, str] = {}
    more: dict[str, str] = {}
    search = SearchWords()
    for table in tables:
        said.update(_about(table))
        words.update(_words(table, "ui"))
        more.update(_words(table, "own"))
        search = _search(table) or search
        table.finish()
    last = tables[-1]
    english = _english()
    if own is not None:
        _check_words(last, words, english)
    if "fallback" in said:
        words = {**_fallback(last, str(said["fallback"]), english), **words}
    _check_complete(last, words, said, english)
    return Language(
        code=code,
        name=str(said["name"]),
        short=str(said["short"]),
        words=MappingProxyType(words),
        own=MappingProxyType(more),
        tag=str(said.get("tag", code)),
        direction=str(said.get("direction", "ltr")),
        cjk=bool(said.get("cjk", False)),
        search=search,
        counts=said.get("counts", ()),
    )


def _about(table: Table) -> dict[str, Any]:
    """What a file says about the language itself."""
    about = table.table("language")
    said: dict[str, Any] = {}
    if about is None:
        return {}
    for key in ("name", "short", "tag", "direction", "fallback"):
        if value := about.take(key, str, ""):
            said[key] = value
    if said.get("direction", "ltr") not in _DIRECTIONS:
        raise about.error(f"`direction` is {said['direction']!r}", "direction", hint='write "ltr" or "rtl"')
    if "tag" in said and not CODE.fullmatch(said["tag"]):
        raise about.error(f"{said['tag']!r} is no tag of a language", "tag", hint='write it like "zh-Hans"')
    if counts := about.take("counts", dict, {}):
        if any(not isinstance(unit, (int, float)) or unit <= 1 for unit in counts.values()):
            what, hint = "`counts` gives each word the number that it stands for", 'as in `" billion" = 1e9`'
            raise about.error(what, "counts", hint=hint)
        said["counts"] = tuple(sorted(((unit, word) for word, unit in counts.items()), reverse=True))
    if "cjk" in about.data:
        said["cjk"] = about.take("cjk", bool)
    about.finish()
    return said


def _search(table: Table) -> SearchWords | None:
    """The table `[search]`, if the file has one."""
    if (found := table.table("search")) is None:
        return None
    folds, endings = found.take("fold", dict, {}), found.take("endings", dict, {})
    stop = tuple(word for line in found.strings("stop") for word in line.split())
    found.finish()
    for pattern, value in (*folds.items(), *endings.items()):
        if not isinstance(value, str):
            raise found.error(f"what stands for {pattern!r} must be a string", pattern)
        try:
            re.compile(pattern)
        except re.error as error:
            raise found.error(f"{pattern!r} is no pattern: {error}", pattern) from None
    return SearchWords(stop, MappingProxyType(folds), tuple(endings.items()))


def _words(table: Table, key: str) -> dict[str, str]:
    words = table.take(key, dict, {})
    for name, value in words.items():
        if not isinstance(value, str) or not value.strip():
            raise table.error(f"the word `{name}` must be a string", name)
    return dict(words)


def _check_words(table: Table, words: Mapping[str, str], english: Mapping[str, str]) -> None:
    """Refuse a word that nobody asks for, and a blank that the press does not fill."""
    for key, value in words.items():
        if key not in english:
            close = difflib.get_close_matches(key, english, n=1)
            hint = f"did you mean `{close[0]}`?" if close else "remove it"
            raise table.error(f"the interface has no word `{key}`", key, hint=hint)
        if strange := sorted(_blanks(table, key, value) - _blanks(table, key, english[key])):
            filled = ", ".join(f"{{{name}}}" for name in sorted(_blanks(table, key, english[key])))
            hint = f"it has {filled}" if filled else "it has none"
            raise table.error(f"nothing is put into the blank {{{strange[0]}}} of `{key}`", key, hint=hint)


def _blanks(table: Table, key: str, word: str) -> set[str]:
    try:
        return {name for _, name, _, _ in Formatter().parse(word) if name is not None}
    except ValueError:
        raise table.error(f"a brace in `{key}` has no partner", key, hint="write {{ or }} for one") from None


def _fallback(table: Table, code: str, english: Mapping[str, str]) -> Mapping[str, str]:
    if code not in known():
        what = f"`fallback` names {code!r}, and the press has no words for it"
        raise table.error(what, "fallback", hint=f"it has {', '.join(known())}")
    return english if code == "en" else load(code).words


def _check_complete(
    table: Table, words: Mapping[str, str], said: Mapping[str, Any], english: Mapping[str, str]
) -> None:
    keys: Sequence[str] = [key for key in ("name", "short") if key not in said]
    if keys:
        raise table.error(f"[language] lacks {' and '.join(f'`{key}`' for key in keys)}", "language")
    if missing := [key for key in english if key not in words]:
        what = f"words of the interface are missing: {', '.join(missing)}"
        hint = 'write them under [ui], or `fallback = "en"` under [language] to show those in English'
        raise table.error(what, "ui", hint=hint)
