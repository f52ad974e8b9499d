r"""# A sentence of reST as Markdown

> Emphasis, code, formulas, links and notes of one dialect, written in the other.

A unit of translation is Markdown whatever its source was written in. What reads as a sign of Markdown and was
none in reST gets a backslash.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from docutils import nodes
from docutils.nodes import unescape

from sidelit.text.inlines import NAME

_SIGN = re.compile(
    r"[\\`*$]|(?<![^\W_])_|_(?![^\W_])|\[(?=\^)|\](?=[(\[])|<(?=[a-zA-Z/!?])|&(?=#|[a-zA-Z]+;)|^>(?=>>)"
)
# Between these two a formula stands; nothing but a digit behind it would make it none.
_FORMULA = re.compile(r"[^$`]*\S[^$`]*")


def sentence(parts: Sequence[nodes.Node], notes: Mapping[str, str]) -> str:
    """The Markdown of inline nodes; `notes` are the labels of footnotes by their ids."""
    said = [_part(each, notes) for each in parts]
    for number, (one, after) in enumerate(pairwise(said)):
        # `$x$2` would be an amount of money.
        if _is_formula(one) and after[:1].isdigit():
            said[number] += "\u200b"
    return re.sub(r"[ \t]*\n[ \t]*", "\n", "".join(said)).strip()


def _is_formula(said: str) -> bool:
    return len(said) > 2 and said[0] == said[-1] == "$"


def _part(node: nodes.Node, notes: Mapping[str, str]) -> str:
    inside = node.children
    match node:
        case nodes.Text():
            return escaped(unescape(str(node)))
        case nodes.literal() | nodes.title_reference():
            name = node.get("name_of", "")
            shown = code(node.astext())
            return f"[{shown}]({NAME}{name})" if name else shown
        case nodes.math() if node.get("displayed"):
            return f"$${node.astext().strip()}$$"
        case nodes.math():
            return formula(node.astext())
        case nodes.strong():
            return _around("**", sentence(inside, notes))
        case nodes.emphasis():
            return _around("*", sentence(inside, notes))
        case nodes.superscript() | nodes.subscript() if re.fullmatch(r"[\w+-]+", node.astext()):
            sign = "^" if isinstance(node, nodes.superscript) else "_"
            return f"${sign}{{{node.astext()}}}$"
        case nodes.footnote_reference() | nodes.citation_reference():
            label = notes.get(node.get("refid", ""))
            return f"[^{label}]" if label else escaped(f"[{node.astext()}]")
        case nodes.reference():
            return _link(node, notes)
        case nodes.image():
            return picture(node)
        case nodes.problematic() | nodes.substitution_reference():
            typed = unescape(node.rawsource or node.astext())
            # A role that only its own project knows; what it marks is a name of something in most of them.
            role = re.fullmatch(r":[a-zA-Z][\w:+.-]*:`([^`]+)`", typed)
            return code(role[1]) if role else escaped(typed)
        case _:
            return sentence(inside, notes) if inside else escaped(node.astext())


def escaped(text: str) -> str:
    """Words that mean nothing to Markdown."""
    return _SIGN.sub(r"\\\g<0>", text)


def code(text: str) -> str:
    """A code span."""
    text = " ".join(text.split())
    runs = [len(run) for run in re.findall("`+", text)]
    fence = "`" * (max(runs, default=0) + 1)
    room = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{room}{text}{room}{fence}" if text else ""


def formula(tex: str) -> str:
    """A formula in a sentence; as code where Markdown has no way to write it."""
    tex = " ".join(tex.split())
    return f"${tex}$" if _FORMULA.fullmatch(tex) and not tex.endswith("\\") else code(tex)


def picture(node: nodes.image) -> str:
    """A picture, with its words or else the name of its file."""
    address = str(node["uri"])
    words = str(node.get("alt") or address.rpartition("/")[2])
    return f"![{escaped(words)}]({_address(address)})"


def _link(node: nodes.reference, notes: Mapping[str, str]) -> str:
    words = sentence(node.children, notes)
    if address := node.get("refuri"):
        return f"[{words}]({_address(str(address))})" if words else f"<{address}>"
    if "refid" in node or "refname" not in node:
        return words
    # Nothing here has this name. `size_` is a word that ends so; with backticks it is a place elsewhere.
    return words if node.rawsource.startswith("`") else escaped(unescape(node.rawsource)) or words


def _address(address: str) -> str:
    address = "".join(address.split())
    return f"<{address}>" if re.search(r"[()<>\\]", address) and "<" not in address else address


def _around(sign: str, words: str) -> str:
    return f"{sign}{words}{sign}" if words.strip() else words
