r"""# Docstrings of other houses

> Parameters that NumPy or Google style lists line by line stay a list, and roles of reST become code.

Most docstrings were not written as Markdown, in which lines that follow each other are one paragraph. Here
the commonest habits are put into Markdown before a file is printed that belongs to no site. Each line stays
on its line, so that a message about line 7 is about line 7, and a text that has none of these habits passes
unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml

NUMPY = re.compile(
    r"(?:Other )?Parameters|Attributes|Returns|Yields|Receives|Raises|Warns|Warnings|See Also|Methods"
)
GOOGLE = re.compile(
    r"(?:Args|Arguments|Keyword Args|Attributes|Returns|Yields|Raises|Note|Notes|Example|Examples|Warning):"
)
# Houses have headings of their own, such as `Shape:`; a list below tells them from the end of a sentence.
HEADING = re.compile(r"[A-Z][\w-]*(?: \w+)?:")
ITEM = re.compile(r"[-*+] |\d+[.)] ")
ENTRY = re.compile(r"(\*{0,2}[A-Za-z_][\w.]*(?: ?\([^)]*\)| \[[^\]]*\])?):(?: |$)")
# The bound keeps a line of nothing but colons from being searched to its end at each of them.
ROLE = re.compile(r":[a-z:]{1,40}:`(?:[^`<]*<)?~?!?([^`<>]+)>?`")
NOTE = re.compile(r"\.\. (note|tip|important|warning)::(.*)")


def markdown(text: str) -> str:
    """Put a docstring into Markdown, line by line."""
    lines = _front_matter(text.split("\n"))
    for change in (_numpy, _google, _notes):
        lines = list(change(lines))
    return "\n".join(map(_inline, lines))


def _front_matter(lines: list[str]) -> list[str]:
    """Keep title and summary of what stands between two `---`, for a text that has no title of its own."""
    end = next((number for number, line in enumerate(lines) if number and line.rstrip() == "---"), 0)
    if not end or lines[0].rstrip() != "---":
        return lines
    try:
        said = yaml.safe_load("\n".join(lines[1:end]))
    except (yaml.YAMLError, RecursionError, ValueError):
        return lines
    if not isinstance(said, dict):
        return lines
    title, summary = said.get("title"), said.get("summary", said.get("description"))
    head = [""] * (end + 1)
    if isinstance(title, str) and not any(line.startswith("# ") for line in lines[end:]):
        head[0] = f"# {' '.join(title.split())}"
        if end > 2 and isinstance(summary, str):
            head[2] = f"> {' '.join(summary.split())}"
    return head + lines[end + 1 :]


def _numpy(lines: list[str]) -> Iterator[str]:
    """Under an underlined `Parameters`, a line at the margin is an entry and the lines below explain it."""
    entries = False
    for number, line in enumerate(lines):
        after = lines[number + 1] if number + 1 < len(lines) else ""
        if after.startswith("---") and not after.strip("- "):
            entries = NUMPY.fullmatch(line) is not None
        elif entries and line[:1].strip() and line.strip("- "):
            # The backslash keeps the explanation on a line of its own.
            line = f"- {_code(line)}" + ("\\" if after.startswith(" ") else "")
        yield line


def _google(lines: list[str]) -> Iterator[str]:
    """Under `Args:`, a line that begins with a name and a colon is an entry, and a list is a list."""
    inside = ""
    for number, line in enumerate(lines):
        after = lines[number + 1] if number + 1 < len(lines) else ""
        known = GOOGLE.fullmatch(line) or (HEADING.fullmatch(line) and ITEM.match(after.lstrip()))
        if known and after.startswith("  "):
            inside = after[: len(after) - len(after.lstrip())]
            line = f"**{line}**"
        elif line[:1].strip():
            inside = ""
        elif inside and (entry := ENTRY.match(line.removeprefix(inside))) and line.startswith(inside):
            line = f"- {_code(entry[1])}: {line[len(inside) + entry.end() :]}"
        elif inside and ITEM.match(line.removeprefix(inside)):
            line = line.removeprefix(inside)
        yield line


def _notes(lines: list[str]) -> Iterator[str]:
    """A directive that is an admonition becomes ours, with its lines indented as ours want it."""
    inside = False
    for line in lines:
        if found := NOTE.fullmatch(line):
            inside = True
            line = f"!!! {found[1]}" + (f' "{found[2].strip()}"' if found[2].strip() else "")
        elif line[:1].strip():
            inside = False
        elif inside and line.strip():
            line = "    " + line.lstrip()
        yield line


def _inline(line: str) -> str:
    """Roles become code; the double colon before a block of code becomes one."""
    line = ROLE.sub(r"`\1`", line)
    return line[:-1] if re.search(r"[^\s:]::$", line) and not line.startswith((" ", "..")) else line


def _code(text: str) -> str:
    fence = "``" if "`" in text else "`"
    return f"{fence}{' ' if '`' in text else ''}{text}{' ' if '`' in text else ''}{fence}"
