r"""# What Sphinx adds to reST

> `:class:`, `.. versionadded::` and their kin, as far as a reader of one docstring has use for them.

Most docstrings in reST were written for Sphinx, which knows roles and directives that docutils does not. They
become what their authors meant on the page. What belongs to the making of other pages (`.. index::`,
`.. currentmodule::`) leaves nothing behind, as there.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive, directives, roles

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
    name = target.strip().lstrip("~.").removesuffix("()")
    if not text.startswith("!") and re.fullmatch(r"[\w.]+", name):
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
