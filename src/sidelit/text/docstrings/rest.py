"""# reStructuredText

> docutils reads it, with what Sphinx adds and with what people type without either.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from docutils import frontend, nodes, utils
from docutils.parsers.rst import Directive, Parser, directives, roles, states
from docutils.statemachine import string2lines
from docutils.transforms import references

# ## What Sphinx adds to reST
#
# > `:class:`, `.. versionadded::` and their kin, as far as a reader of one docstring has use for them.
#
# Most docstrings in reST were written for Sphinx, which knows roles and directives that docutils does not.
# They become what their authors meant on the page. What belongs to the making of other pages (`.. index::`,
# `.. currentmodule::`) leaves nothing behind, as there.


Made = tuple[list[nodes.Node], list[nodes.system_message]]

NAMES = "class func meth mod attr exc obj data const any deco property type function method module"
_CODE = "envvar option file kbd command program makevar mailheader mimetype newsgroup manpage samp"
_CODE += " keyword token regexp key c cpp python cite numref eq"
_WORDS = "term ref doc download abbr guilabel menuselection dfn"
_DOMAINS = ("c", "cpp", "js", "std", "rst")
_TITLED = re.compile(r"(.+?)\s*<([^<>]+)>", re.DOTALL)


def _name(role: str, raw: str, text: str, *rest: object, **more: object) -> Made:
    """A name of the code: `~a.b.C` shows its last word, `words <a.b.C>` shows the words."""
    text = nodes.unescape(text)
    titled = _TITLED.fullmatch(text)
    shown, target = (titled[1], titled[2]) if titled else (text, text)
    if titled is None and text[:1] == "~":
        shown = text[1:].rpartition(".")[2] or text[1:]
    node = nodes.literal(raw, shown.lstrip("!~."))
    name = target.strip().lstrip("~").removesuffix("()")
    if not text.startswith("!") and re.fullmatch(r"\.?\w+(\.\w+)*", name):
        node["name_of"] = name
    return [node], []


def _code(role: str, raw: str, text: str, *rest: object, **more: object) -> Made:
    text = nodes.unescape(text)
    titled = _TITLED.fullmatch(text)
    return [nodes.literal(raw, (titled[1] if titled else text).lstrip("!~"))], []


def _words(role: str, raw: str, text: str, *rest: object, **more: object) -> Made:
    """Words that lead to a place of another page, which is not here. A mere label is shown as code."""
    text = nodes.unescape(text)
    titled = _TITLED.fullmatch(text)
    if titled or " " in text or role not in ("ref", "doc", "download"):
        return [nodes.inline(raw, (titled[1] if titled else text).lstrip("!~"))], []
    return [nodes.literal(raw, text)], []


# The addresses of works. Many projects define these roles, and all in the same way.
_WORKS = {"doi": "https://doi.org/", "arxiv": "https://arxiv.org/abs/"}


def _work(role: str, raw: str, text: str, *rest: object, **more: object) -> Made:
    text = nodes.unescape(text)
    titled = _TITLED.fullmatch(text)
    shown, target = (titled[1], titled[2]) if titled else (f"{role.lower()}:{text}", text)
    return [nodes.reference(raw, shown, refuri=_WORKS[role.lower()] + target.strip())], []


class _Any(dict[str, Callable[[str], Any]]):
    """The options of a directive, when none of them matters here."""

    def __missing__(self, name: str) -> Callable[[str], Any]:
        return directives.unchanged


# An empty table would mean that a directive has no options.
_ANY = _Any(name=directives.unchanged)


class _Told(Directive):
    """A box with a title of the press; what stands on the line of the directive belongs to its text."""

    final_argument_whitespace = True
    optional_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        return [self.told("", " ".join(self.arguments))]

    def told(self, version: str, words: str) -> nodes.Element:
        node = nodes.admonition(self.block_text, kind=self.name, version=version)
        node.line = self.lineno
        if words:
            said, messages = self.state.inline_text(words, self.lineno)
            paragraph = nodes.paragraph(words, "", *said, *messages)
            paragraph.line = self.lineno
            node += paragraph
        self.state.nested_parse(self.content, self.content_offset, node)
        return node


class _Version(_Told):
    """Since when something is there, or is no longer."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        return [self.told(self.arguments[0].rstrip(":"), " ".join(self.arguments[1:]))]


class _Lenient(Directive):
    """A directive that takes whatever it is given: the press does not know all that other tools allow."""

    optional_arguments = 9
    final_argument_whitespace = True
    has_content = True
    option_spec = _ANY


class _Sample(_Lenient):
    """Code, whatever was to be done with it."""

    def run(self) -> list[nodes.Node]:
        code = "\n".join(self.content)
        language = self.arguments[0] if self.arguments and self.name in _LANGUAGE_FIRST else ""
        classes = ["code", language] if language else []
        return [nodes.literal_block(code, code, classes=classes)] if code else []


_LANGUAGE_FIRST = ("code", "code-block", "sourcecode")


class _Formula(_Lenient):
    """A displayed formula, with the options of Sphinx."""

    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        tex = "\n".join([*self.arguments, "", *self.content]).strip()
        node = nodes.math_block(self.block_text, tex)
        node.line = self.lineno
        return [node] if tex else []


class _Described(_Lenient):
    """`.. function:: f(x)`: a signature and what is said about it."""

    required_arguments = 1
    optional_arguments = 0

    def run(self) -> list[nodes.Node]:
        body = nodes.definition()
        self.state.nested_parse(self.content, self.content_offset, body)
        term = nodes.term("", "", nodes.literal("", self.arguments[0]))
        return [nodes.definition_list("", nodes.definition_list_item("", term, body))]


class _Names(_Lenient):
    """A list of names of the code, one a line."""

    def run(self) -> list[nodes.Node]:
        names = [line.strip().lstrip("~") for line in self.content if line.strip()]
        items = (nodes.list_item("", nodes.paragraph("", "", nodes.literal("", name))) for name in names)
        return [nodes.bullet_list("", *items)] if names else []


class _Inside(_Lenient):
    """What is around it changes nothing here."""

    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        around = nodes.container()
        self.state.nested_parse(self.content, self.content_offset, around)
        return [around]


class _Nothing(_Lenient):
    """An order for the maker of other pages."""

    def run(self) -> list[nodes.Node]:
        return []


class _Refused(_Lenient):
    """Shown as it was typed."""

    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        raise self.error(f'The directive "{self.name}" has no place in a docstring.')


VERSIONS = ("versionadded", "versionchanged", "deprecated", "versionremoved")
_TOLD = ("seealso", "todo")
_SAMPLES = (*_LANGUAGE_FIRST, "testcode", "testoutput", "doctest", "ipython", "plot", "prompt")
_DESCRIBED = "function method class attribute data exception staticmethod classmethod decorator property"
_NOTHING = "index highlight currentmodule module tabularcolumns default-domain testsetup testcleanup"
_DIRECTIVES: dict[str, type[Directive]] = {
    **dict.fromkeys(VERSIONS, _Version),
    **dict.fromkeys(_TOLD, _Told),
    **dict.fromkeys(_SAMPLES, _Sample),
    "math": _Formula,
    **dict.fromkeys(_DESCRIBED.split(), _Described),
    **dict.fromkeys((f"py:{name}" for name in _DESCRIBED.split()), _Described),
    **dict.fromkeys(("autosummary", "toctree"), _Names),
    **dict.fromkeys(("only", "hlist"), _Inside),
    **dict.fromkeys(_NOTHING.split(), _Nothing),
    **dict.fromkeys((f"py:{name}" for name in ("module", "currentmodule")), _Nothing),
    # The day on which a page is printed is no part of it, and no page takes another file in.
    **dict.fromkeys(("date", "include", "literalinclude", "raw"), _Refused),
}


def _roles() -> Iterator[tuple[str, Callable[..., Made]]]:
    for name in NAMES.split():
        yield name, _name
        yield f"py:{name}", _name
        yield from ((f"{domain}:{name}", _code) for domain in _DOMAINS)
    yield from ((name, _code) for name in _CODE.split())
    yield from ((name, _words) for name in _WORDS.split())
    yield from ((name, _work) for name in _WORKS)
    yield from ((f"std:{name}", _words) for name in _WORDS.split())


_ROLES = dict(_roles())
_alone = threading.Lock()


@contextmanager
def known() -> Iterator[None]:
    """Let docutils know these while a text is parsed.

    Its tables of roles and directives are those of the process, and a text may put its own into them.
    """
    tables: tuple[dict[str, Any], ...] = (vars(roles)["_roles"], vars(directives)["_directives"])
    with _alone:
        before = [dict(table) for table in tables]
        tables[0].update(_ROLES)
        tables[1].update(_DIRECTIVES)
        try:
            yield
        finally:
            for table, others in zip(tables, before, strict=True):
                table.clear()
                table.update(others)


# ## reST as people type it
#
# > Formulas between dollars, marks that touch a letter, examples without a blank line: no reST, but clear.
#
# docutils reads what its specification allows. Docstrings of real packages hold more: `$O(n)$`, which a
# script sets in the browser; `` `Attribute`s ``, with the plural right behind the mark; `>>> f(x)` right
# below its sentence. Each is brought into the form that docutils reads, and every line keeps its number.


# What stands between backquotes is no formula, and is passed over as a whole. A formula touches its dollars.
# A dollar next to a letter belongs to the variable of some shell.
_MARKED = re.compile(
    r"""
      (?P<literal> ``(?![\s`]) (?: [^`] | `(?!`) )+? (?<!\s)``(?!`) )
    | (?P<words> (?<!`)`(?![\s`]) [^`]+ (?<!\s)`(?!`) _{0,2} )
    | (?P<note> (?<=\w) \[ (?:\d+|\#\w*) \]_ (?!\w) )
    | (?P<displayed> (?<![\w$\\]) \$\$ [^$`]+ \$\$ (?!\$) )
    | (?P<formula> (?<![\w$\\]) \$ (?![\s$]) [^$`]+ (?<![\s\\]) \$ (?! (?!(?:th|st|nd|rd|s)\b) \w | [${] ) )
    """,
    re.VERBOSE,
)
# Marks that nobody types stand for the formulas while docutils reads the sentence.
_HELD = re.compile("\ue0f0([0-9]+)\ue0f1")
# A role of another project's documentation is that of its last words.
_ELSEWHERE = re.compile(r"external(?:\+[\w-]+)?:")
# How docutils begins to say so.
_UNKNOWN_ROLE = "Unknown interpreted text role"


class Inliner(states.Inliner):
    """Reads a sentence."""

    def parse(
        self, text: str, lineno: int, memo: Any, parent: nodes.Element
    ) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """The nodes of a sentence, formulas between dollars among them."""
        held: list[nodes.math] = []
        if "\ue0f0" not in text:
            text = _MARKED.sub(lambda found: _mended(found, held), text)
        made, messages = super().parse(text, lineno, memo, parent)
        if held:
            made = [each for node in made for each in _set(node, held)]
        return made, messages

    def interpreted(self, rawsource: str, text: str, role: str, lineno: int) -> Any:
        """The nodes of words with a role; those of somebody's own extension are shown as code."""
        made, messages = super().interpreted(rawsource, text, _ELSEWHERE.sub("", role), lineno)
        if messages and _UNKNOWN_ROLE in messages[-1].astext():
            made, _ = _code(role, rawsource, text)
        return made, messages


def _mended(found: re.Match[str], held: list[nodes.math]) -> str:
    """What docutils gets for a mark: the mark with room around it, or a sign for a formula."""
    said = found[0]
    if found["formula"] or found["displayed"]:
        tex = said.strip("$")
        held.append(nodes.math(said, tex, displayed=bool(found["displayed"])))
        return f"\ue0f0{len(held) - 1}\ue0f1"
    text, start, end = found.string, found.start(), found.end()
    before = "\\ " if start and text[start - 1].isalnum() else ""
    after = "\\ " if end < len(text) and text[end].isalnum() and not said.endswith("_") else ""
    return f"{before}{said}{after}"


def _set(node: nodes.Node, held: Sequence[nodes.math]) -> list[nodes.Node]:
    """A node with its formulas in their places."""
    if isinstance(node, nodes.Text):
        parts = _HELD.split(str(node))
        return [held[int(part)] if at % 2 else nodes.Text(part) for at, part in enumerate(parts) if part]
    if isinstance(node, nodes.Element) and node.children:
        made = [each for child in node.children for each in _set(child, held)]
        node.children = []
        node.extend(made)
    return [node]


def spaced(lines: Sequence[str]) -> tuple[list[str], Callable[[int], int]]:
    """The lines with a blank one before each example that stands right below a sentence.

    Returns with them what gives the number of a line, which counts from 1, in the text as it was.
    """
    made: list[str] = []
    numbers = [0]
    example, sample, before = False, _NO_SAMPLE, ""
    for number, line in enumerate(lines, start=1):
        indent = len(line) - len(line.lstrip())
        prompt = line.startswith(">>> ", indent)
        if line.strip() and indent <= sample:
            sample = indent if _opens_sample(line) else _NO_SAMPLE
        elif sample == _NO_SAMPLE and _opens_sample(line):
            sample = indent
        # Whatever stands in a sample of code is code.
        if prompt and not example and sample == _NO_SAMPLE and _is_sentence(before, indent):
            made.append("")
            numbers.append(number)
        example = bool(line.strip()) and (example or prompt)
        made.append(line)
        numbers.append(number)
        before = line
    return made, lambda line: numbers[line] if 0 <= line < len(numbers) else line


_NO_SAMPLE = -1


def _opens_sample(line: str) -> bool:
    """Whether what is indented below a line belongs to it: code, or the text of a directive."""
    return line.rstrip().endswith("::") or line.lstrip().startswith(".. ")


def _is_sentence(line: str, indent: int) -> bool:
    begun = line.lstrip()
    return bool(begun) and len(line) - len(begun) == indent and not begun.startswith((".. ", ":"))


# ## reStructuredText
#
# > docutils reads it; nothing in a docstring may open a file, run a program or stop a build.
#
# A docstring may come in parts, when its sections are those of Google or NumPy: each is read for itself, and
# footnotes, targets and substitutions are shared by all. What docutils has to say about a text is told with
# its line. A text that it cannot read at all is shown as it was typed.


# A message, and its line in the text, which counts from 1.
Report = Callable[[str, int], None]

_WARNING = 2
# What nobody sees on the page: every word is there, and where it should be.
_HARMLESS = (
    "Unexpected indentation",
    "Block quote ends without a blank line",
    "Bullet list ends without a blank line",
    "Definition list ends without a blank line",
    "Enumerated list ends without a blank line",
    "Explicit markup ends without a blank line",
    "Title underline too short",
    "Title overline too short",
    "Inline emphasis start-string",
    "Inline strong start-string",
    "Inline substitution_reference start-string",
    "Inline interpreted text or phrase reference start-string",
    "Inline literal start-string",
    "Duplicate explicit target name",
    "Duplicate target name",
)
_TRANSFORMS = (
    references.Substitutions,
    references.PropagateTargets,
    references.AnonymousHyperlinks,
    references.IndirectHyperlinks,
    references.Footnotes,
    references.ExternalTargets,
    references.InternalTargets,
)
# A line of this length is no sentence, and a table of it is an attack.
_LONGEST = 10_000


@dataclass(frozen=True, slots=True)
class DocstringPart:
    """A part of a docstring and the line of the docstring on which it starts, from 0."""

    text: str
    line: int


def parse(parts: Sequence[DocstringPart], report: Report) -> list[list[nodes.Node]]:
    """The nodes of each part; their lines count from 1 in the docstring."""
    document = utils.new_document("", _settings())
    told = _Reported(report)
    document.reporter.attach_observer(told)
    read = []
    with known():
        for part in parts:
            before = len(document.children)
            _read(part, document, told)
            read.append((before, len(document.children)))
        groups = [nodes.container("", *document.children[start:end]) for start, end in read]
        document.children = []
        document.extend(groups)
        document.transformer.add_transforms(_TRANSFORMS)
        document.transformer.apply_transforms()
    for group in groups:
        _unsay(group)
    return [list(group.children) for group in groups]


def _unsay(group: nodes.Element) -> None:
    """Take the messages of docutils out of a text, and leave what they are about."""
    for message in list(group.findall(nodes.system_message)):
        about = [each for each in message.children if isinstance(each, nodes.literal_block)]
        if message.parent is not None:
            message.parent.replace(message, about)


def _read(part: DocstringPart, document: nodes.document, told: _Reported) -> None:
    # Blank lines above give the nodes the lines that they have in the whole.
    lines = [""] * part.line + string2lines(part.text, tab_width=8, convert_whitespace=True)
    if any(len(line) > _LONGEST for line in lines):
        document.append(nodes.literal_block(part.text, part.text))
        return
    lines, told.line = spaced(lines)
    before = len(document.children)
    machine = _machine()
    machine.observers = []  # It has forgotten them, unless a text before was too deep for it.
    machine.run(lines, document, inliner=_inliner())
    for node in document.children[before:]:
        for each in node.findall():
            each.line = each.line and told.line(each.line)


@cache
def _machine() -> states.RSTStateMachine:
    """What cuts a text into blocks. It would make all its states anew for every text."""
    return states.RSTStateMachine(state_classes=states.state_classes, initial_state="Body")


@cache
def _inliner() -> states.Inliner:
    """What reads a sentence. It would compile the same patterns anew for every text."""
    inliner = states.Inliner()
    inliner.init_customizations(_defaults())
    # It makes its patterns of what stands in its class alone, so the class changes afterwards.
    inliner.__class__ = Inliner
    vars(inliner)["init_customizations"] = lambda settings: None
    return inliner


@cache
def _defaults() -> Any:
    settings = frontend.get_default_settings(Parser)
    vars(settings).update(
        {
            "file_insertion_enabled": False,
            "raw_enabled": False,
            "warning_stream": False,
            "report_level": 5,
            "halt_level": 6,
            "syntax_highlight": "none",
            "smart_quotes": False,
            "line_length_limit": _LONGEST,
            "pep_references": None,
            "rfc_references": None,
            "doctitle_xform": False,
        }
    )
    return settings


def _settings() -> Any:
    return _defaults().copy()


@dataclass(slots=True)
class _Reported:
    """Passes on what an author should know.

    :param line: gives the line of the docstring for one of what docutils reads.
    """

    report: Report
    line: Callable[[int], int] = int

    def __call__(self, message: nodes.system_message) -> None:
        if int(message["level"]) < _WARNING:
            return
        words = message.children[0].astext() if message.children else ""
        if words and not words.startswith(_HARMLESS):
            self.report(" ".join(words.split()).rstrip("."), self.line(int(message.get("line", 1))))


def footnotes(groups: Sequence[Sequence[nodes.Node]]) -> Iterator[nodes.Element]:
    """The footnotes and citations among nodes, in order."""
    for group in groups:
        for node in group:
            if isinstance(node, nodes.Element):
                yield from (
                    each
                    for each in node.findall(nodes.Element)
                    if isinstance(each, nodes.footnote | nodes.citation)
                )
