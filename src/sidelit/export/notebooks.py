"""# Notebooks

> A lab becomes one notebook in each language, for students and for teachers.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from markdown_it.token import Token

from sidelit.catalog import catalog
from sidelit.catalog.catalog import Catalog
from sidelit.config import prose
from sidelit.config.config import Config
from sidelit.config.languages import Language
from sidelit.config.prose import Prose
from sidelit.errors import Collector, SidelitError
from sidelit.files import assets, atomic
from sidelit.labs import cells
from sidelit.labs.cells import Cell, nbformat
from sidelit.site import links, navigation, site
from sidelit.site.content import SourcePage
from sidelit.site.edition import Edition, edition
from sidelit.text import markup

# ## What Jupyter reads
#
# > The press's directives and the head of a lab become Markdown and HTML that every Jupyter shows.


_BEGIN = re.compile(r"::: +(\w+) *(.*)")
_FIELD = re.compile(r":(\w+): *(.*)")


def markdown(text: str, words: Language, lesson: str) -> str:
    """The Markdown of one cell; `lesson` is a link to the lesson of the lab, as Markdown."""
    return "\n".join(_lines(text, words, lesson))


def _lines(text: str, words: Language, lesson: str) -> Iterator[str]:
    ui, kind = words.words, ""
    aims = False
    for each in text.split("\n"):
        if found := _FIELD.fullmatch(each):
            name, said = found[1], found[2]
            if name == "aim" and not aims:
                yield f"- {ui['lab_aims']}:"
                aims = True
            yield _field(name, said, words, lesson)
        elif found := _BEGIN.fullmatch(each):
            kind = found[1]
            yield from _folded(ui["lab_hint"]) if kind == "hint" else (f"**{ui[kind]}**", "")
        elif kind == "question" and each == "---":
            yield from ("", *_folded(ui["answer"]))
        elif kind and each == ":::":
            yield from ("", "</details>") if kind in ("question", "hint") else ("",)
            kind = ""
        else:
            yield each


def _folded(label: str) -> tuple[str, ...]:
    """What begins something folded; Markdown goes on below a blank line."""
    return ("<details>", f"<summary>{label}</summary>", "")


def _field(name: str, said: str, words: Language, lesson: str) -> str:
    ui = words.words
    match name:
        case "minutes":
            return f"- {ui['minutes'].format(minutes=said)}"
        case "lesson":
            return f"- {ui['lab_lesson']}: {lesson}"
        case "needs":
            return f"- {ui['needs']}: {said}"
        case _:
            return f"  - {said}"


# ## One notebook
#
# > The same cells in each language; only the words around the code differ, and its ids never do.
#
# nbformat writes the file. What Jupyter would make up, such as ids, is given, so the same lab is the same
# bytes on every machine. The metadata of exercises and of their checks are those of nbgrader, with which a
# course may grade.


# The format of nbgrader's metadata.
_SCHEMA = 3


# Colab begins with an empty machine. Elsewhere the cell finds what it needs and does nothing.
_INSTALL = """\
import importlib.util
import subprocess
import sys

if importlib.util.find_spec("{module}") is None:
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", {requirement}], check=True)"""


def notebook(
    cells: Sequence[Cell], words: Sequence[str], lang: str, *, teacher: bool, install: str = ""
) -> bytes:
    """Write the notebook of a lab.

    :param words: the Markdown of each cell; of a cell of code it is not looked at.
    :param lang: the tag of the language of the words.
    :param install: what the first cell of code installs where it is missing.
    :param teacher: whether the exercises keep their solutions.
    """
    made = nbformat().v4.new_notebook(
        metadata={
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python", "file_extension": ".py", "mimetype": "text/x-python"},
            "lang": lang,
        }
    )
    made.nbformat_minor = 5
    made.cells = [_cell(cell, said, teacher) for cell, said in zip(cells, words, strict=True)]
    if install:
        code = _INSTALL.format(module=prose.module(install), requirement=json.dumps(install))
        place = next((number for number, cell in enumerate(cells) if not cell.markdown), len(cells))
        made.cells.insert(place, nbformat().v4.new_code_cell(code, id="install"))
    nbformat().validate(made)
    return str(nbformat().writes(made)).encode() + b"\n"


def _cell(cell: Cell, words: str, teacher: bool) -> Any:
    form = nbformat().v4
    if cell.markdown:
        return form.new_markdown_cell(words, id=cell.name)
    code = cell.text if teacher else cells.student(cell.text)
    return form.new_code_cell(code, id=cell.name, metadata=_graded(cell))


def _graded(cell: Cell) -> dict[str, object]:
    """What nbgrader wants to know: an exercise is the student's to write, its check is what counts."""
    if not cell.exercise and not cell.check:
        return {}
    about = {
        "grade": bool(cell.check),
        "grade_id": cell.name,
        "locked": bool(cell.check),
        "schema_version": _SCHEMA,
        "solution": bool(cell.exercise),
        "task": False,
    }
    return {"nbgrader": {**about, "points": cell.points} if cell.check else about}


# ## The Markdown of a lab in one language
#
# > Sentences are exchanged in the text itself, so that a notebook holds Markdown that its readers can edit.
#
# A page takes the tokens of a translation and writes HTML. A notebook wants the Markdown back. So each
# sentence is looked for in the lines that its token names, and what stands there is replaced by its
# translation, with links that lead from the notebook to where the page would lead.


# Where a link of the lab leads from its notebook, given the link and its line.
Resolve = Callable[[str, int], str]


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence as it is written, in the lines from `first` to before `end`, and what takes its place."""

    first: int
    end: int
    written: str
    said: str


def sentences(page: SourcePage, book: catalog.Catalog | None, resolve: Resolve) -> tuple[Sentence, ...]:
    """All sentences of a lab, in the order of the text."""
    found: list[Sentence] = []
    for section in page.sections:
        tokens = section.tokens
        if book is not None:
            tokens = catalog.translate(tokens, book, section.context, section.code_digest).tokens
        for own, other in zip(section.tokens, tokens, strict=True):
            if own.type == "inline" and own.map:
                said = _linked(other, resolve)
                found.append(Sentence(own.map[0] + 1, own.map[1] + 1, own.content, said))
    return tuple(sorted(found, key=lambda each: each.first))


def _linked(token: Token, resolve: Resolve) -> str:
    """The Markdown of a sentence with its links resolved."""
    said = token.content
    for href in dict.fromkeys(_hrefs(token.children or ())):
        said = said.replace(f"]({href}", f"]({resolve(href, markup.line_of(token))}")
    return said


def _hrefs(children: Iterable[Token]) -> Iterator[str]:
    for child in children:
        href = child.attrGet("href") if child.type == "link_open" else None
        if isinstance(href, str):
            yield href


def localized_cell(made: Cell, lines: list[str], said: Iterable[Sentence], path: str) -> str:
    """The Markdown of a cell; `lines` are those of the whole lab as Markdown.

    :raises SidelitError: if a sentence does not stand where it should
    """
    text = "\n".join(lines[made.first : made.last])
    starts = [0]
    for line in lines[made.first : made.last]:
        starts.append(starts[-1] + len(line) + 1)
    parts: list[str] = []
    done = 0
    for sentence in said:
        if not made.first < sentence.first <= made.last:
            continue
        place = max(done, starts[sentence.first - made.first - 1])
        found = _pattern(sentence.written).search(text, place)
        if found is None:
            what = f"the sentence {sentence.written[:40]!r} is not found in its lines"
            raise SidelitError(what, path=path, line=sentence.first, hint="write it without an escape")
        parts += [text[done : found.start()], _in_place(sentence, lines)]
        done = found.end()
    return "".join([*parts, text[done:]]).strip("\n")


def _pattern(written: str) -> re.Pattern[str]:
    """A sentence in its lines: each may be indented, and quoted, and a bar in a table is escaped."""
    lines = (re.escape(line).replace(r"\|", r"\\?\|") for line in written.split("\n"))
    return re.compile(r"[ \t]*\n[ \t>]*".join(lines))


def _in_place(sentence: Sentence, lines: list[str]) -> str:
    """In a table bars are escaped, and what goes on in a next line is indented as the first one is."""
    first = lines[sentence.first - 1]
    if first.lstrip().startswith("|"):
        return re.sub(r"(?<!\\)\|", r"\\|", sentence.said)
    indent = " " * (len(first) - len(first.lstrip()))
    return sentence.said.replace("\n", f"\n{indent}")


# ## All notebooks
#
# > `sidelit lab` makes the notebooks of every lab, for students and for teachers, in each language.
#
# With `--check` it writes nothing and says which of the notebooks are not what their sources are today.


@dataclass(frozen=True, slots=True)
class _Made:
    """One lab in one language."""

    config: Config
    page: SourcePage
    item: Prose
    edition: Edition
    index: links.Index

    def words(self, made: Sequence[cells.Cell], book: Catalog | None, notebook: str) -> list[str]:
        """The Markdown of each cell; of one of code, nothing. `notebook` is where they will stand."""
        source = assets.text(self.config.project / self.item.source)
        lines = cells.markdown(source, made, self.item.source).split("\n")
        said = sentences(self.page, book, lambda href, line: self._leads(href, line, notebook))
        return [self._words(cell, lines, said, notebook) if cell.markdown else "" for cell in made]

    def _words(self, cell: cells.Cell, lines: list[str], said: Sequence[Sentence], notebook: str) -> str:
        text = localized_cell(cell, lines, said, self.item.source)
        words = self.config.language(self.edition.lang)
        return markdown(text, words, self._lesson(notebook))

    def _lesson(self, notebook: str) -> str:
        """A link to the lesson that the lab belongs to, if it names one."""
        name = self.page.lesson
        for lesson in self.config.course.lessons:
            if lesson.stem == name:
                label = self.edition.pages[lesson.output].label
                return f"[{label}]({self._to(lesson.output, lesson.source, '', notebook)})"
        return name

    def _leads(self, href: str, line: int, notebook: str) -> str:
        """Where a link of the lab leads from its notebook.

        In public it is the page; otherwise the file that the page is made of, which lies in the same folders.
        """
        here = self.index.targets[self.item.source]
        address = self.index.resolve(href, here, line)
        path, _, anchor = address.partition("#")
        output = posixpath.normpath(
            posixpath.join(posixpath.dirname(here.output), unquote(path) or here.output)
        )
        if not path:
            output = here.output
        sources = {target.output: target.source for target in self.index.targets.values()}
        source = sources.get(output, posixpath.join(self.index.pages, output))
        return self._to(output, source, anchor, notebook) if not href.startswith(links.EXTERNAL) else href

    def _to(self, output: str, source: str, anchor: str, notebook: str) -> str:
        end = f"#{anchor}" if anchor else ""
        if self.config.public.url:
            address = navigation.address(self.config, output, self.edition.lang)
            return f"{self.config.public.url}{quote(address)}{end}"
        return quote(posixpath.relpath(source, posixpath.dirname(notebook)))


def notebooks(config: Config) -> dict[str, bytes]:
    """Every notebook by its path from the project folder.

    :raises SidelitError: for a lab that is wrong, or a project without labs
    """
    if not config.labs.lessons:
        hint = "list them in site/sidelit.toml, under `[labs]`"
        raise SidelitError("the project has no labs", path=config.shown(config.path), hint=hint)
    pages = site.texts(config)
    named = site.book(config, pages)
    gathered = Collector(list(site.mistakes(named)))
    gathered.check()
    catalogs, known = site.catalogs(config, pages), named.index
    install = prose.filled(config.labs.install, config.public.repository)
    found: dict[str, bytes] = {}
    for lang in config.languages:
        shown = edition(config, pages, catalogs, lang)
        tag = config.language(lang).tag
        for page in pages:
            if isinstance(page.item, Prose) and page.item.kind == "lab":
                book = catalogs.translation(page.item.name, lang)
                made = cells.read(assets.text(config.project / page.item.source), page.item.source)
                lab = _Made(config, page, page.item, shown, known)
                for teacher, place in ((False, cells.student_path), (True, cells.teacher_path)):
                    path = place(config, page.item, lang)
                    words = lab.words(made, book, path)
                    found[path] = notebook(made, words, tag, teacher=teacher, install=install)
    return found


def differing(config: Config, made: Mapping[str, bytes]) -> Iterator[str]:
    """The notebooks that are not what they should be, and those that belong to no lab."""
    for path, data in sorted(made.items()):
        file = config.project / path
        if not file.is_file() or file.read_bytes() != data:
            yield path
    yield from stray(config, made)


def stray(config: Config, made: Mapping[str, bytes]) -> Iterator[str]:
    """Notebooks in the folders of notebooks that belong to no lab."""
    root = config.project / config.labs.folder
    for folder in (root, root / cells.TEACHERS):
        for lang in config.languages:
            for path in sorted((folder / lang).glob("*.ipynb")):
                if config.shown(path) not in made:
                    yield config.shown(path)


def write(config: Config, made: Mapping[str, bytes]) -> list[str]:
    """Write the notebooks that differ, and remove those that belong to no lab; returns their paths."""
    changed = list(differing(config, made))
    for path in changed:
        if path in made:
            atomic.write(config.project / path, made[path])
        else:
            (config.project / path).unlink()
    return changed
