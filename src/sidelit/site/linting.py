"""# Linting a site

> Sources, pages, symbols and translations are read once, and each is shown to the rules that are about it.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from sidelit.cache.records import Late
from sidelit.config import glossary
from sidelit.config.config import DEFAULT_SEVERITIES, Config
from sidelit.errors import Collector, SidelitError
from sidelit.lint import lint, sections
from sidelit.lint.lint import Finding
from sidelit.site import anchoring, backlinks, content, site
from sidelit.source.decoding import read_source
from sidelit.source.syntax import Misread

# Every rule that a finding may name, those first that the configuration chooses.
RULES = (
    *DEFAULT_SEVERITIES,
    *(lint.SOURCE, lint.TEX_NOT_RAW, lint.STRAY, lint.DIRECTIVE, lint.PROVES, lint.ALLOW, lint.FIRST_USE),
    *(rule.name for rule in lint.RULES),
)
_TAG = re.compile("<[^>]*>")


def findings(config: Config) -> tuple[Finding, ...]:
    """All that is wrong with a site and can be said without a build.

    What a build goes on over, if the configuration asks it to, is a warning.

    Raises `SidelitError` if a page of prose or a catalogue cannot be read.
    """
    severity: Literal["error", "warning"] = "warning" if config.keep_going else "error"
    # What a build has read is not read again; what is missing is read by several processes.
    graph = site.graph_of(config)
    config, unread = site.readable(config, graph)
    notes = Collector()
    written = site.texts(config, notes, graph)
    books = site.catalogs(config, written, graph)
    words = config.folder / "glossary.toml"
    terms = glossary.read(words, config.shown(words), config.languages)
    found: list[Finding] = []
    for chapter in config.chapters:
        document = anchoring.read(config, chapter.source, graph).document()
        found += (
            replace(each, severity=severity) if each.rule == lint.TEX_NOT_RAW else each
            for each in lint.lint_source(document)
        )
    # Of formulas that Python misreads, each docstring is told already.
    odd = (error for error in notes.errors if not isinstance(error, Misread))
    told = {str(error): error for error in (*unread, *odd)}
    found += (replace(lint.refused(error, lint.SOURCE), severity=severity) for error in told.values())
    for book in books.by_page.values():
        found += lint.lint_catalog(book, terms)
    found += (lint.refused(error, lint.DIRECTIVE) for error in site.mistakes(site.book(config, written)))
    found += _chosen(config, written)
    backlinks.proofs(config, lambda error: found.append(lint.refused(error, lint.PROVES)))
    return tuple(found)


def _chosen(config: Config, written: Sequence[content.SourcePage]) -> Iterator[Finding]:
    """What breaks a rule that the configuration may choose, and the allowances that nothing needs."""
    needed = set()
    allowed = {(each.rule, each.source, each.section) for each in config.lint_options.allowed}
    for rule, section, error in (*_symbols(written), *_sections(config, written), *_hidden(config, written)):
        severity = config.lint_options.severities[rule]
        asked = rule, str(error.path), section
        if asked in allowed:
            needed.add(asked)
        elif severity != "off":
            yield Finding(str(error.path), error.line or 1, rule, _said(error), severity, section)
    for each in config.lint_options.allowed:
        if (each.rule, each.source, each.section) not in needed:
            sentence = f"nothing in {each.source} at {each.section} breaks the rule {each.rule}; remove this"
            yield Finding(config.shown(config.path), each.line, lint.ALLOW, sentence)


def _hidden(config: Config, written: Sequence[content.SourcePage]) -> Iterator[tuple[str, str, SidelitError]]:
    for page in written:
        if page.prose:
            continue
        path = page.item.source
        text, _ = read_source(config.project / path, path)
        for line, sentence in lint.lint_characters(text):
            above = [each for each in page.sections if each.first_line <= line]
            section = max(above, key=lambda each: each.first_line).id if above else ""
            yield "hidden-character", section, SidelitError(sentence, path=path, line=line)


def _said(error: SidelitError) -> str:
    return error.what + (f"; {error.hint}" if error.hint else "")


def _symbols(written: Sequence[content.SourcePage]) -> Iterator[tuple[str, str, SidelitError]]:
    """What is wrong with the notation of pages; it belongs to a page as a whole."""
    # Few pages say what their symbols mean, and only these ask what the code of all of them has.
    lines = (line for page in written for section in page.sections for _, line in section.lines)
    program = Late(lambda: lint.program(lines))
    for page in written:
        yield from ((rule, "", error) for rule, error in lint.lint_symbols(page.tokens, program))


def _sections(
    config: Config, written: Sequence[content.SourcePage]
) -> Iterator[tuple[str, str, SidelitError]]:
    is_english = config.language(config.source_language).tag.partition("-")[0] == "en"
    for page in written:
        for section in page.sections:
            code = tuple(html.unescape(_TAG.sub("", line)) for _, line in section.lines)
            name, path = section.id or section.context, page.item.source
            definition = section.kind in ("function", "class")
            one = sections.Section(
                path, name, section.first_line, page.prose, section.tokens, code, definition
            )
            for rule, line, sentence in sections.lint(one, config.lint_options, is_english=is_english):
                yield rule, name, SidelitError(sentence, path=path, line=line)
