"""# Tokens by hand

> What another parser than that of Markdown has read becomes the same tokens, one unit a sentence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from markdown_it.token import Token

from sidelit.text import markup


@dataclass(slots=True)
class Maker:
    """Collects the tokens of one text.

    :param path: the file that it is from.
    :param first_line: the line of that file on which the text starts.
    :param notes: the number of each footnote by its label, from 0.
    """

    path: str
    first_line: int
    notes: Mapping[str, int] = field(default_factory=dict)
    tokens: list[Token] = field(default_factory=list)

    @contextmanager
    def block(self, kind: str, tag: str, line: int, /, **meta: object) -> Iterator[Token]:
        """A block with all that is made inside; `line` counts from 0 in the text."""
        opening = self._add(Token(f"{kind}_open", tag, 1, block=True, map=[line, line + 1]), meta)
        yield opening
        self._add(Token(f"{kind}_close", tag, -1, block=True, hidden=opening.hidden), {})

    def leaf(self, kind: str, line: int, content: str = "", /, **meta: object) -> Token:
        """A token without anything inside."""
        return self._add(Token(kind, "", 0, content=content, block=True, map=[line, line + 1]), meta)

    def sentence(self, markdown: str, line: int) -> None:
        """One unit of translation; what it says is Markdown."""
        token = Token("inline", "", 0, block=True, map=[line, line + 1])
        token.meta.update(path=self.path, first_line=self.first_line)
        token.meta.update(references={}, footnotes=self.notes)
        self.tokens.append(markup.reinline(token, markdown))

    def paragraph(self, markdown: str, line: int, hidden: bool = False) -> None:
        """A paragraph; one of a tight list is hidden."""
        with self.block("paragraph", "p", line) as opening:
            opening.hidden = hidden
            self.sentence(markdown, line)

    def sample(self, code: str, language: str, line: int) -> None:
        """A piece of code."""
        self.leaf("fence", line, code.rstrip("\n") + "\n").info = language

    @contextmanager
    def field(self, kind: str, argument: str, line: int, type_: str = "") -> Iterator[None]:
        """A row of a table of fields with all that is made inside, as `:param int x: …`."""
        with self.block("fieldlist_name", "dt", line):
            name = self.leaf("field_name", line, f"{kind} {argument}".strip(), kind=kind, argument=argument)
            name.meta["type"] = " ".join(type_.split())
        with self.block("fieldlist_body", "dd", line):
            yield

    @contextmanager
    def fields(self, line: int) -> Iterator[None]:
        """A list of fields."""
        with self.block("field_list", "dl", line):
            yield

    @contextmanager
    def admonition(self, kind: str, line: int, label: str = "", said: str = "") -> Iterator[None]:
        """A box; `label` is the press's own word for its title, `said` one of the author."""
        with self.block("admonition", "div", line, tag=kind):
            with self.block("admonition_title", "p", line) as title:
                title.attrs = {"class": "admonition-title"}
                if said:
                    self.sentence(said, line)
                else:
                    self.leaf("admonition_label", line, label or kind)
            yield

    def label(self, key: str, line: int, said: str = "") -> None:
        """What stands above a part of a text: a word of the press, or one of the author."""
        if said:
            self.paragraph(f"**{said}**", line)
            return
        with self.block("paragraph", "p", line), self.block("strong", "strong", line):
            self.leaf("admonition_label", line, key)

    def _add(self, token: Token, meta: Mapping[str, object]) -> Token:
        token.meta.update(meta, path=self.path, first_line=self.first_line)
        self.tokens.append(token)
        return token


def finished(tokens: Sequence[Token]) -> tuple[Token, ...]:
    """The tokens with their levels, and with ids for their headings."""
    level = 0
    for token in tokens:
        level -= token.nesting == -1
        token.level = level
        level += token.nesting == 1
    markup.slug_headings(tokens)
    return tuple(tokens)
