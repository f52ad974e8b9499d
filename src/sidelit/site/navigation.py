"""# The ways through a site

> From every page a reader can go on, go back, change the language and see where they are.

All addresses are relative, and pages have the same path in each language, so a way between pages of one
language is the same way in all of them.
"""

from __future__ import annotations

import itertools
import json
import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from markupsafe import Markup

from sidelit.cache import store
from sidelit.cache.graph import NotedText, as_one
from sidelit.cache.records import Ids
from sidelit.config.chapters import Chapter
from sidelit.config.config import Config
from sidelit.config.prose import Prose
from sidelit.site import links, model, page_kinds
from sidelit.site.content import SourcePage
from sidelit.site.edition import Edition, Page
from sidelit.text import markup


def address(config: Config, output: str, lang: str) -> str:
    """Where a page in one language lies in the site: the language of the sources has the root."""
    return output if lang == config.source_language else f"{lang}/{output}"


# What a task notes that reads the contents of a site in one language, or what they say of one page.
CONTENTS, LEDE = "contents:{}", "lede:{}/{}"


class Navigation:
    """The ways that lead from one page."""

    def __init__(self, config: Config, edition: Edition, shown: Page) -> None:
        self.config = config
        self.edition = edition
        self.shown = shown
        self.here = address(config, shown.source.item.output, shown.lang)
        self._alternates: tuple[model.Alternate, ...] = ()

    @property
    def root(self) -> str:
        """To the root of the site."""
        return "../" * self.here.count("/")

    @property
    def language_root(self) -> str:
        """From the root of the page's language to the root of the site."""
        return "" if self.shown.lang == self.config.source_language else "../"

    @property
    def top(self) -> str:
        """To where all versions of the site lie."""
        return self.root + "../" * self.config.public.base.count("/")

    def newest(self, output: str) -> str:
        """To a page in the newest release, or to the home page of that where it has no such page."""
        public, name = self.config.public, address(self.config, output, self.shown.lang)
        return f"{self.top}{name if name in public.newest else public.others[0].home(self.shown.lang)}"

    def to(self, output: str) -> str:
        """To another page in the same language."""
        return links.relative(output, self.shown.source.item.output)

    def nav(self) -> Iterator[model.NavGroup]:
        """To every page, part by part, the page itself marked as the current one."""
        output = self.shown.source.item.output
        folder = posixpath.dirname(output)
        with as_one(CONTENTS.format(self.edition.lang)):
            if folder not in self.edition.contents:
                self.edition.contents[folder] = tuple(self._nav())
        own = links.relative(output, output)
        for group in self.edition.contents[folder]:
            yield _marked(group, own)

    def reading(self) -> str:
        """What stands for the contents."""
        return store.digest([_told(group) for group in self._nav()])

    def _nav(self) -> Iterator[model.NavGroup]:
        # A list of the pages does not list itself; the site's name leads to it.
        front = tuple(item for item in self.config.front if page_kinds.of(item).listed)
        yield from self._group("", "", front, None)
        stems = {lesson.stem for lesson in self.config.course.lessons}
        for course, (label, lang) in zip(self.config.courses, self.edition.courses, strict=True):
            beside = all(self._lesson_of(lesson) in stems for lesson in course.lessons)
            for group in self._group("", label, course.lessons, lang):
                yield replace(group, beside=beside)
        yield from self._parts(workshop=False)
        label, lang = self.edition.back
        yield from self._group("", label, self.config.back, lang)
        yield from self._parts(workshop=True)

    def _parts(self, workshop: bool) -> Iterator[model.NavGroup]:
        questions = self.edition.questions or [("", None)] * len(self.config.parts)
        said = zip(self.config.parts, self.edition.parts, questions, strict=True)
        for part, (label, lang), (question, question_lang) in said:
            if part.workshop is not workshop:
                continue
            for group in self._group(part.number, label, part.chapters, lang):
                asked = replace(group, question=question, question_lang=question_lang)
                yield replace(asked, kind="workshop" if workshop else "part")

    def neighbours(self) -> tuple[model.Link | None, model.Link | None]:
        """To the page before and the page after, in reading order; an old address has none.

        The last lesson and the last chapter of a part lead on, and the way says into which part. It passes
        the workshop over, where a page leads to others of its group and no further.
        """
        order = self._way()
        outputs = [item.output for item in order]
        if self.shown.source.item.output not in outputs:
            return None, None
        place = outputs.index(self.shown.source.item.output)
        before = self._neighbour(order[place - 1]) if place else None
        return before, self._neighbour(order[place + 1]) if place + 1 < len(order) else None

    def _way(self) -> Sequence[Chapter | Prose]:
        """The pages that the way through the book has, or that of a group of the workshop."""
        own = self.shown.source.item
        if isinstance(own, Chapter) and own.workshop:
            parts = (part for part in self.config.parts if own in part.chapters)
            return [each for part in parts for each in part.chapters if each.group == own.group]
        return [each for each in self.config.order if not (isinstance(each, Chapter) and each.workshop)]

    def _neighbour(self, item: Chapter | Prose) -> model.Link:
        there = self._part_of(item)
        with as_one(CONTENTS.format(self.edition.lang)):
            link = self._link(item)
        return replace(link, part=there if there != self.part() else "")

    def part(self) -> str:
        """The part or course that the page is in, a part with its number; empty for other prose."""
        return self._part_of(self.shown.source.item)

    def _part_of(self, item: Chapter | Prose) -> str:
        for course, (label, _) in zip(self.config.courses, self.edition.courses, strict=True):
            if item in course.lessons:
                return label
        for part, (label, _) in zip(self.config.parts, self.edition.parts, strict=True):
            if all(chapter.output != item.output for chapter in part.chapters):
                continue
            if part.workshop and isinstance(item, Chapter) and item.group:
                return f"{label} · {self.edition.groups[item.group][0]}"
            if label and part.number:
                return self.config.language(self.shown.lang).word("part", number=part.number, label=label)
            return label
        return ""

    def alternates(self) -> tuple[model.Alternate, ...]:
        """To the page in every language, this one included."""
        if not self._alternates:
            found = []
            for lang in self.config.languages:
                url = links.relative(address(self.config, self.shown.source.item.output, lang), self.here)
                known = self.config.language(lang)
                current = lang == self.shown.lang
                found.append(model.Alternate(lang, known.name, known.short, known.tag, url, current))
            self._alternates = tuple(found)
        return self._alternates

    def others(self, section: str) -> Iterator[model.Alternate]:
        """To a section in the other languages that the page stands in."""
        written = self.config.written_in(self.shown.source.item)
        anchor = f"#{links.fragment(section)}" if section else ""
        for other in self.alternates() if self.shown.lang in written else ():
            if other.code in written and not other.current:
                yield replace(other, url=other.url + anchor)

    def _group(
        self, number: str, label: str, items: Sequence[Chapter | Prose], lang: str | None
    ) -> Iterator[model.NavGroup]:
        if not items:
            return
        found = [self._link(item) for item in items]
        groups = []
        names = [item.group for item in items]
        for name, pairs in itertools.groupby(zip(names, found, strict=True), key=lambda pair: pair[0]):
            called, spoken = self.edition.groups.get(name, ("", None))
            groups.append(model.NavGroup(called, "", tuple(link for _, link in pairs), spoken))
        yield model.NavGroup(label, number, tuple(found), lang, groups=tuple(groups) if any(names) else ())

    def _lesson_of(self, lab: Prose) -> str:
        return self.edition.pages[lab.output].source.lesson

    def labs_of(self, lesson: Prose) -> tuple[model.Link, ...]:
        """To the labs that name a lesson."""
        with as_one(CONTENTS.format(self.edition.lang)):
            return tuple(self._labs_of(lesson))

    def _labs_of(self, item: Chapter | Prose) -> Iterator[model.Link]:
        labs = self.config.labs.lessons if item in self.config.course.lessons else ()
        stem = PurePosixPath(item.source).stem
        return (self._link(lab) for lab in labs if self._lesson_of(lab) == stem)

    def _link(self, item: Chapter | Prose) -> model.Link:
        other = self.edition.pages[item.output]
        return model.Link(
            label=other.label,
            url=self.to(item.output),
            lang=other.label_lang,
            lede=NotedText(other.summary, LEDE.format(self.edition.lang, item.output)),
            # A source without a title is called by its name already.
            name=PurePosixPath(item.source).stem if isinstance(item, Chapter) and other.title else "",
            number=item.number if isinstance(item, Prose) else str(other.source.number or ""),
            minutes=other.source.minutes,
            lesson=item.name if isinstance(item, Prose) and item.lesson else "",
            labs=tuple(self._labs_of(item)),
        )


def _marked(group: model.NavGroup, own: str) -> model.NavGroup:
    """The same group with the page marked that has this address."""
    if all(own not in (item.url, *(lab.url for lab in item.labs)) for item in group.items):
        return group
    return replace(
        group,
        items=tuple(_here(item, own) for item in group.items),
        groups=tuple(_marked(each, own) for each in group.groups),
    )


def _here(item: model.Link, own: str) -> model.Link:
    labs = tuple(_here(lab, own) for lab in item.labs)
    return replace(item, current=item.url == own, labs=labs)


def _told(group: model.NavGroup) -> model.NavGroup:
    """What a list of contents says of a group: no page's first words."""
    groups = tuple(_told(each) for each in group.groups)
    return replace(group, items=tuple(_called(item) for item in group.items), groups=groups)


def _called(item: model.Link) -> model.Link:
    return replace(item, lede="", labs=tuple(_called(lab) for lab in item.labs))


# ## The contents in a file of their own
#
# > A page lists the part that it is in; all other parts come from one script, which all pages of a language
# > share.
#
# Repeated in each page, the list of a hundred chapters is longer than many a page. A script is what a page on
# a disk may load. Without scripts a link leads to the page that lists everything.


FOLDER = "assets/contents/"


def contents(config: Config, edition: Edition) -> Page:
    """The page that lists all pages of a language."""
    language = config.language(edition.lang)
    label, tag = language.words["contents"], config.language(config.source_language).tag
    source = SourcePage(Prose("", config.contents, "", "contents"), label, (), Ids())
    key = store.digest(label, edition.lang)
    return Page(source, edition.lang, (), None, (), None, (), tag, label, digest=key)


def script(config: Config, edition: Edition) -> bytes:
    """What fills the contents of every page of a language; addresses start from the folder of that."""
    language = config.language(edition.lang)

    def row(link: model.Link, number: str) -> list[object]:
        labs = [row(lab, language.word("lab", number=lab.number)) for lab in link.labs]
        return [link.url, link.label, link.lang or "", number, link.lesson, labs]

    groups = Navigation(config, edition, contents(config, edition)).nav()
    found = [
        [
            [inside.label, inside.lang or "", [row(link, link.number) for link in inside.items]]
            for inside in group.groups or (replace(group, label=""),)
        ]
        for group in groups
    ]
    return f"listed={json.dumps(found, ensure_ascii=False, separators=(',', ':'))};\n".encode()


def sections(shown: Sequence[model.SectionView]) -> Iterator[model.TocEntry]:
    """The contents of a chapter: its classes and functions, and the comments that have a heading.

    A function without words has its line, but no number; one that Python itself calls, such as `__init__`,
    has none. A line stands below that of the definition around it.
    """
    listed = set[str]()
    for section in shown:
        for each in (section, *section.joined):
            if each.title:
                # The entry is itself a link, and HTML knows no link in a link.
                label = unlinked(each.title)
            elif each.name and not (each is not section and each.name.startswith("__")):
                label = Markup("<code>{}</code>").format(each.name)
            else:
                continue
            around = itertools.accumulate(each.qualname.split(".")[:-1], "{}.{}".format)
            depth = sum(name in listed for name in around)
            if each.name:
                listed.add(each.qualname)
            yield model.TocEntry(each.id, label, depth, section.fold is not None, each.number)


# A list that is no longer than this is seen at a glance.
SHORT = 20


def outline(entries: Sequence[model.TocEntry]) -> tuple[model.TocGroup, ...]:
    """The contents of a chapter, each definition with what it holds; none where all are few enough."""
    groups: list[list[model.TocEntry]] = []
    for entry in entries if len(entries) > SHORT else ():
        if entry.depth == 0 or not groups:
            groups.append([])
        groups[-1].append(entry)
    return tuple(model.TocGroup(first, tuple(below)) for first, *below in groups)


def unlinked(html: Markup) -> Markup:
    """The same words without their links."""
    return Markup(re.sub(r"</?a\b[^>]*>", "", html))


def headings(shown: Page) -> Iterator[model.TocEntry]:
    """The contents of a page of prose: two levels of headings."""
    tokens = [token for words in shown.words for token in words.tokens]
    for before, token in itertools.pairwise(tokens):
        if before.type == "heading_open" and before.tag in ("h2", "h3"):
            yield model.TocEntry(str(before.meta["slug"]), markup.plain(token), int(before.tag[1]) - 2)
