"""# All notebooks

> `sidelit lab` makes the notebooks of every lab, for students and for teachers, in each language.

With `--check` it writes nothing and says which of the notebooks are not what their sources are today.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import quote, unquote

from sidelit import reading, requirements, whole_files
from sidelit.catalog.catalog import Catalog
from sidelit.config import Config, Lab
from sidelit.errors import SidelitError
from sidelit.labs import cells, places, written
from sidelit.notebooks import jupyter, localized
from sidelit.notebooks.notebook import notebook
from sidelit.site import links, site, ways
from sidelit.site.collector import Collector
from sidelit.site.content import Text
from sidelit.site.edition import Edition, edition


@dataclass(frozen=True, slots=True)
class _Made:
    """One lab in one language."""

    config: Config
    text: Text
    item: Lab
    edition: Edition
    index: links.Index

    def words(self, made: Sequence[cells.Cell], book: Catalog | None, notebook: str) -> list[str]:
        """The Markdown of each cell; of one of code, nothing. `notebook` is where they will stand."""
        source = reading.text(self.config.project / self.item.source)
        lines = written.markdown(source, made, self.item.source).split("\n")
        said = localized.sentences(self.text, book, lambda href, line: self._leads(href, line, notebook))
        return [self._words(cell, lines, said, notebook) if cell.markdown else "" for cell in made]

    def _words(
        self, cell: cells.Cell, lines: list[str], said: Sequence[localized.Sentence], notebook: str
    ) -> str:
        text = localized.cell(cell, lines, said, self.item.source)
        words = self.config.language(self.edition.lang)
        return jupyter.markdown(text, words, self._lesson(notebook))

    def _lesson(self, notebook: str) -> str:
        """A link to the lesson that the lab belongs to, if it names one."""
        name = self.text.lesson
        for lesson in self.config.course.lessons:
            if PurePosixPath(lesson.source).stem == name:
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
            return (
                f"{self.config.public.url}{quote(ways.address(self.config, output, self.edition.lang))}{end}"
            )
        return quote(posixpath.relpath(source, posixpath.dirname(notebook)))


def notebooks(config: Config) -> dict[str, bytes]:
    """Every notebook by its path from the project folder.

    :raises SidelitError: for a lab that is wrong, or a project without labs
    """
    if not config.labs.labs:
        hint = "list them in site/sidelit.toml, under `[labs]`"
        raise SidelitError("the project has no labs", path=config.shown(config.path), hint=hint)
    texts = site.texts(config)
    gathered = Collector(list(site.mistakes(config, texts)))
    gathered.check()
    shelf, known = site.shelf(config, texts), site.book(config, texts).index
    install = requirements.filled(config.labs.install, config.public.repository)
    found: dict[str, bytes] = {}
    for lang in config.languages:
        shown = edition(config, texts, shelf, lang)
        tag = config.language(lang).tag
        for text in texts:
            if isinstance(text.item, Lab):
                book = shelf.translation(text.item.name, lang)
                made = cells.read(reading.text(config.project / text.item.source), text.item.source)
                lab = _Made(config, text, text.item, shown, known)
                for teacher, place in ((False, places.student), (True, places.teacher)):
                    path = place(config, text.item, lang)
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
    for folder in (root, root / places.TEACHERS):
        for lang in config.languages:
            for path in sorted((folder / lang).glob("*.ipynb")):
                if config.shown(path) not in made:
                    yield config.shown(path)


def write(config: Config, made: Mapping[str, bytes]) -> list[str]:
    """Write the notebooks that differ, and remove those that belong to no lab; returns their paths."""
    changed = list(differing(config, made))
    for path in changed:
        if path in made:
            whole_files.write(config.project / path, made[path])
        else:
            (config.project / path).unlink()
    return changed
