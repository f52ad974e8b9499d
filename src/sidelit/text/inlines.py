"""# Inside a sentence

> The words of a sentence become safe HTML: a short list may stand in a text, and all else enters through
> slots.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from types import MappingProxyType
from typing import Protocol
from urllib.parse import quote, unquote

import nh3
from markdown_it.token import Token

from sidelit.errors import SidelitError
from sidelit.text import markup
from sidelit.text.code import printable
from sidelit.text.directives import Directive
from sidelit.text.inline_syntax import is_cjk

# ## Slots and the sieve
#
# > What text may contain is a short list; everything else enters through a numbered slot.
#
# Words come from authors and translators, and a careless or hostile one must not be able to put a script on
# the page. So HTML made from words passes a sieve that knows little. What the press itself makes would not
# pass (a formula needs styles, a link an address), and it does not have to: the words carry only numbered
# places, and the pieces are put there after the sieve. A place is an element, and text is escaped before, so
# none can be forged; a piece is never searched for places again.


_HEADINGS = {f"h{level}" for level in range(1, 7)}
_CELL = {"left", "center", "right", "symbol", "untranslated"}

_ATTRIBUTES = {
    "*": {"lang", "data-state"},
    "a": {"data-slot"},
    "aside": {"role"},
    "code": {"data-sym"},
    "div": {"data-slot", "tabindex", "role", "aria-label"},
    "li": {"id"},
    "ol": {"start"},
    "span": {"data-slot"},
    "td": {"data-label", "colspan", "rowspan"},
    "th": {"scope", "colspan", "rowspan"},
    **{heading: {"id"} for heading in _HEADINGS},
}

_CLASSES = {
    "aside": {"admonition", "note", "tip", "important", "warning", "version"},
    "code": {"gap-before", "gap-after"},
    "div": {"scroll"},
    "ol": {"footnotes"},
    "p": {"admonition-title", "untranslated"},
    "span": {"untranslated", "type"},
    "sup": {"footnote-ref"},
    "table": {
        "fields",
        "parameter",
        "attribute",
        "returns",
        "yields",
        "raises",
        "other",
        "receives",
        "warns",
        "method",
        "see_also",
        "field",
        "notation",
        "stack",
    },
    "td": _CELL,
    "th": _CELL,
    **{heading: {"untranslated"} for heading in _HEADINGS},
}

_PLAIN = {"blockquote", "br", "caption", "dd", "dl", "dt", "em", "hr", "strong", "tbody", "thead", "tr", "ul"}
_PLAIN |= {"cite", "del", "ins", "kbd", "mark", "samp", "small", "sub", "u", "var"}

_SIEVE = nh3.Cleaner(
    tags=_PLAIN | set(_ATTRIBUTES) - {"*"} | set(_CLASSES),
    attributes=_ATTRIBUTES,
    allowed_classes=_CLASSES,
    link_rel=None,
)

_PLACE = re.compile(r'<(span|div) data-slot="(\d+)"></\1>|<a data-slot="(\d+)">')


class Slots:
    """The pieces of one text that bypass the sieve, in the order in which they were made."""

    def __init__(self) -> None:
        self._pieces: list[str] = []

    def inline(self, piece: str) -> str:
        """The place of a piece inside a sentence."""
        return f'<span data-slot="{self._add(piece)}"></span>'

    def block(self, piece: str) -> str:
        """The place of a piece that stands between paragraphs."""
        return f'<div data-slot="{self._add(piece)}"></div>'

    def anchor(self, opening: str) -> str:
        """The place of the opening tag of a link; the text of the link follows it and passes the sieve."""
        return f'<a data-slot="{self._add(opening)}">'

    def fill(self, html: str) -> str:
        """Sieve `html`, then put the pieces in their places."""
        return _PLACE.sub(lambda found: self._pieces[int(found[2] or found[3])], _SIEVE.clean(html))

    def _add(self, piece: str) -> int:
        self._pieces.append(piece)
        return len(self._pieces) - 1


def tag(name: str, attributes: Mapping[str, object]) -> str:
    """An opening tag with its attributes escaped; those without a value are left out."""
    written = "".join(f' {key}="{escape(str(value))}"' for key, value in attributes.items() if value != "")
    return f"<{name}{written}>"


# ## The press's own words in a text
#
# > A page has them in its language; here they are in English, for a text that is on no page.


# The words that the press adds to a text. A page passes those of its language; these stand in for the rest.
LABELS: Mapping[str, str] = MappingProxyType(
    {
        "note": "Note",
        "tip": "Tip",
        "important": "Important",
        "warning": "Warning",
        "parameter": "Parameter",
        "attribute": "Attribute",
        "returns": "Returns",
        "yields": "Yields",
        "raises": "Raises",
        "other": "Other parameter",
        "receives": "Receives",
        "warns": "Warns",
        "method": "Method",
        "see_also": "See also",
        "field": "Field",
        "symbol": "Symbol",
        "meaning": "Meaning",
        "condition": "When",
        "notation": "Notation",
        "examples": "Examples",
        "notes": "Notes",
        "references": "References",
        "todo": "To do",
        "versionadded": "New in version {version}",
        "versionchanged": "Changed in version {version}",
        "deprecated": "Deprecated since version {version}",
        "versionremoved": "Removed in version {version}",
        "footnote": "Footnote {number}",
        "footnote_back": "Back to the text",
        "table": "Table, scrollable",
        "formula": "Formula, scrollable",
        "sample": "Code, scrollable",
    }
)


# ## Inside a sentence
#
# > Words, code, formulas, links and notes: what one unit of translation becomes on the page.
#
# This is where a text meets the page it stands on. A link asks the site whether its target exists, a formula
# is set, and each that fails names its own line, in the source or in the catalogue it was translated in.


# A link to a name of the code, `py:package.module.Class`, which is shown without one where nobody knows it.
# As in a role of Sphinx, a dot may stand for what is left out before the name: `py:.Class`.
NAME = "py:"
# Addresses that leave the site. Every other scheme is the resolver's to know (`bib:`, `src:`) or to refuse.
_OUTSIDE = re.compile(r"https?://|mailto:", re.IGNORECASE)
_FAR = re.compile(r"https?://", re.IGNORECASE)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)


def named(tokens: Iterable[Token]) -> Iterator[str]:
    """The names of the code that a text would lead to."""
    children = (child for token in tokens for child in token.children or ())
    targets = (str(child.attrs["href"]) for child in children if child.type == "link_open")
    return (target.removeprefix(NAME) for target in targets if target.startswith(NAME))


class Typesets(Protocol):
    """What a sentence asks of a typesetter; `sidelit.text.math.Typesetter` is one."""

    def render(self, tex: str, *, display: bool, path: str | None, line: int | None) -> str:
        """Return the formula as HTML, or raise `SidelitError`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderContext:
    """What a text needs to know about the page it is printed on.

    :param resolve: turns the target of a link and its line into an address; raises `SidelitError` when there
        is nothing. Targets with `https://`, `http://` and `mailto:` do not pass through it; `bib:` does.
    :param image: the same for the files of pictures; `resolve` when it is not given.
    :param picture_size: the width and height of a picture by its target, or nothing.
    :param name: the address of a definition by its dotted name, or nothing.
    :param math: sets formulas; without one they are shown as they were typed.
    :param symbols: the keys of the symbols whose name in the program a piece of code is.
    :param section: the id of the section, which makes the ids of footnotes unique on the page.
    :param place: where in the section a text stands that is not part of its body: its title, the lede.
    :param heading_ids: whether headings get ids (from the English, so that all languages share them).
    :param typed_quotes: whether quotes around letters stay as they were typed.
    :param labels: the press's own words in the reader's language.
    :param directive: turns a directive and a writer of its words into HTML that is safe.
    :param strict: when false, a bad formula or link is shown as plain text instead of being an error, which
        suits text that was not written for this press.
    :param report: is told of each link that is shown so.
    """

    resolve: Callable[[str, int], str]
    image: Callable[[str, int], str] | None = None
    picture_size: Callable[[str], tuple[int, int] | None] = lambda target: None
    name: Callable[[str], str | None] = lambda name: None
    math: Typesets | None = None
    symbols: Callable[[str], str] = lambda code: ""
    section: str = ""
    place: str = ""
    heading_ids: bool = False
    typed_quotes: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    directive: Callable[[Directive, Callable[[Sequence[Token]], str]], str] | None = None
    strict: bool = True
    report: Callable[[SidelitError], None] = lambda error: None

    def label(self, key: str) -> str:
        """One of the press's own words, in English if the page's language has none."""
        return self.labels.get(key) or LABELS[key]


class InlineWriter:
    """Writes inline tokens as HTML for the sieve, keeping in `slots` what must not pass through it."""

    def __init__(self, context: RenderContext) -> None:
        self.context = context
        self.slots = Slots()
        self._notes: Counter[int] = Counter()
        self._typed_quotes = False

    def inline(self, token: Token, marks: Mapping[str, object] = MappingProxyType({})) -> str:
        """Write the children of an inline token; `marks` are the attributes of the element around it."""
        children = token.children or []
        # What stands there in the language that it was written in is set in the font of that.
        self._typed_quotes = self.context.typed_quotes and "lang" not in marks
        return "".join(self._child(token, children, index) for index in range(len(children)))

    def _child(self, owner: Token, children: Sequence[Token], index: int) -> str:
        child = children[index]
        match child.type:
            case "text" | "text_special":
                words = child.meta.get("typed", child.content) if self._typed_quotes else child.content
                return escape(words, quote=False)
            case "code_inline":
                gaps = _gaps(children, index, child.content[:1], child.content[-1:])
                attributes = {"class": gaps, "data-sym": self.context.symbols(child.content)}
                return f"{tag('code', attributes)}{printable(child.content)}</code>"
            case "math_inline":
                return self.formula(owner, child, gaps=_gaps(children, index))
            case "math_inline_double":
                return self.formula(owner, child, display=True)
            case "softbreak":
                return "" if _between_wide(children, index) else "\n"
            case "hardbreak":
                return "<br>\n"
            case "link_open" | "link_close" if self._names_nothing(children, index):
                return ""
            case "link_open":
                return self._open_link(owner, child)
            case "image":
                return self._image(owner, children, index)
            case "footnote_ref":
                return self._note(child)
            case "anchor":
                return ""  # The section has the name.
            case _:
                return f"</{child.tag}>" if child.nesting == -1 else f"<{child.tag}>"

    def formula(self, owner: Token, token: Token, *, display: bool = False, gaps: str = "") -> str:
        """Write a formula; `owner` is the inline token it stands in, or the token itself for a block."""
        tex, block = token.content, token.type == "math_block"
        if self.context.math is None:
            return self._as_typed(token, block)
        try:
            line = markup.line_of(token, None if owner is token else owner)
            html = self.context.math.render(tex, display=display, path=markup.path_of(owner), line=line)
        except SidelitError:
            if self.context.strict:
                raise
            return self._as_typed(token, block)
        if not display:
            return self.slots.inline(f"{tag('span', {'class': f'math {gaps}'.strip()})}{html}</span>")
        # A wide formula scrolls in its own box, which a keyboard must be able to reach.
        box = {
            "class": "math display",
            "tabindex": 0,
            "role": "group",
            "aria-label": self.context.label("formula"),
        }
        if block:
            return self.slots.block(f"{tag('div', box)}{html}</div>\n")
        return self.slots.inline(f"{tag('span', box)}{html}</span>")

    def _as_typed(self, token: Token, block: bool) -> str:
        typed = f"<code>{escape(token.markup + token.content + token.markup, quote=False)}</code>"
        return f"<p>{typed}</p>\n" if block else typed

    def _names_nothing(self, children: Sequence[Token], index: int) -> bool:
        """Whether a link that opens or closes here is that of a name without a definition on the site."""
        opening = next(children[at] for at in range(index, -1, -1) if children[at].type == "link_open")
        target = str(opening.attrs["href"])
        return target.startswith(NAME) and self.context.name(target.removeprefix(NAME)) is None

    def _open_link(self, owner: Token, token: Token) -> str:
        if (target := str(token.attrs["href"])).startswith(NAME):
            known = self.context.name(target.removeprefix(NAME)) or ""
            return self.slots.anchor(tag("a", {"href": known, "rel": _rel(known)}))
        address = self._address(owner, token, str(token.attrs["href"]), self.context.resolve)
        if address is None:
            return self.slots.anchor("<a>")
        rel, bare = _rel(address), "bare" if token.markup == "autolink" else ""
        title = token.attrs.get("title", "")
        return self.slots.anchor(tag("a", {"href": address, "class": bare, "rel": rel, "title": title}))

    def _image(self, owner: Token, children: Sequence[Token], index: int) -> str:
        token = children[index]
        source, alt = str(token.attrs["src"]), markup.plain(token.children or ())
        if _FAR.match(source):
            # No page asks another machine for anything. What it would show is one click away.
            inside = sum(each.nesting for each in children[:index] if each.type.startswith("link_"))
            words = escape(alt or source, quote=False)
            link = self.slots.anchor(tag("a", {"href": source, "rel": "noopener"}))
            return words if inside else f"{link}{words}</a>"
        resolve = self.context.image or self.context.resolve
        address = self._address(owner, token, source, resolve, picture=True)
        if address is None:
            return escape(alt, quote=False)
        title = escape(str(token.attrs.get("title", "")))
        extra = f' title="{title}"' if title else ""
        if size := self.context.picture_size(source):
            extra += f' width="{size[0]}" height="{size[1]}"'
        return self.slots.inline(f'<img src="{escape(address)}" alt="{escape(alt)}"{extra} loading="lazy">')

    def _address(
        self,
        owner: Token,
        token: Token,
        target: str,
        resolve: Callable[[str, int], str],
        picture: bool = False,
    ) -> str | None:
        """Where a link or picture leads; `None` if it leads nowhere and the context is lenient."""
        line = markup.line_of(token, owner)
        try:
            return _checked(target, line, resolve, picture)
        except SidelitError as error:
            # The resolver knows the site, and only the text knows which file of it is being read.
            path = markup.path_of(owner) or error.path
            told = SidelitError(" ".join(error.what.split()), path=path, line=line, hint=error.hint)
            if self.context.strict:
                raise told from None
            self.context.report(told)
            return None

    def _note(self, token: Token) -> str:
        number = int(token.meta["id"])
        self._notes[number] += 1
        attributes = {
            "href": fragment(self.note_id(number)),
            "id": self.reference_id(number, self._notes[number]),
            "aria-label": self.context.label("footnote").format(number=number + 1),
        }
        return f'<sup class="footnote-ref">{self.slots.anchor(tag("a", attributes))}{number + 1}</a></sup>'

    def references(self, number: int) -> int:
        """How often the text written so far refers to a footnote."""
        return self._notes[number]

    def note_id(self, number: int) -> str:
        """The id of a footnote on the page."""
        return f"{self.context.section}:note-{number + 1}".lstrip(":")

    def reference_id(self, number: int, count: int) -> str:
        """The id of the `count`-th reference to a footnote."""
        place = f"{self.context.place}-" if self.context.place else ""
        return f"{self.context.section}:{place}ref-{number + 1}-{count}".lstrip(":")


def _rel(address: str) -> str:
    return "noopener" if _OUTSIDE.match(address) else ""


def fragment(identifier: str) -> str:
    """The address of an id on the same page."""
    return "#" + quote(identifier, safe="/:.~()@!$&'*+,;=-_")


def _checked(target: str, line: int, resolve: Callable[[str, int], str], picture: bool) -> str:
    if not target:
        raise SidelitError("a link without a target", hint="write [text](target)")
    if picture and _SCHEME.match(target):
        raise SidelitError(f"the picture {target} is not a file of the site", hint="copy it into the site")
    if not picture and _OUTSIDE.match(target):
        return target
    # A `#` that is part of a name has to stay apart from the one before an id.
    address = resolve(unquote(re.sub("%(?=23|25)", "%25", target)), line)
    # Whatever a resolver returns is written into the page: no scheme but these may get there, and no blanks
    # or line breaks, which a browser leaves out before it looks for a scheme.
    if re.search(r"[\x00-\x20]", address) or (_SCHEME.match(address) and not _OUTSIDE.match(address)):
        raise SidelitError(f"the link {target} leads to {address}, which is no address for a page")
    return address


def _neighbour(children: Sequence[Token], index: int, step: int) -> str:
    """The character beside a child, looking through emphasis and links; empty if there is none."""
    index += step
    while 0 <= index < len(children):
        child = children[index]
        if child.type in ("text", "text_special"):
            if child.content:
                return child.content[0 if step > 0 else -1]
        elif child.nesting == 0:
            return ""
        index += step
    return ""


def _gaps(children: Sequence[Token], index: int, first: str = "", last: str = "") -> str:
    # Browsers put a gap between an ideograph and a letter, but not beside a formula, nor beside code that
    # begins or ends with a sign. There the stylesheet makes it, told by these classes.
    before = is_cjk(_neighbour(children, index, -1) or " ") and not first.isalnum()
    after = is_cjk(_neighbour(children, index, 1) or " ") and not last.isalnum()
    return " ".join(["gap-before"] * before + ["gap-after"] * after)


def _between_wide(children: Sequence[Token], index: int) -> bool:
    # A line break in the source is a space on the page, which between two ideographs would be a hole.
    return _is_wide(_neighbour(children, index, -1)) and _is_wide(_neighbour(children, index, 1))


def _is_wide(char: str) -> bool:
    return bool(char) and (is_cjk(char) or "\u3000" <= char <= "\u303f" or "\uff00" <= char <= "\uffef")
