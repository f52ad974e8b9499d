r"""# Front matter

> A title and a summary between two `---` are the title and the lede of a text that has none.

Authors write it for other tools, which take the page's title from it. Each line of the text stays on its
line, so that a message about line 7 is about line 7.
"""

from __future__ import annotations

import yaml


def titled(text: str) -> str:
    """Keep title and summary of what stands between two `---`, for a text that has no title of its own."""
    if not text.startswith("---"):
        return text
    lines = text.split("\n")
    end = next((number for number, line in enumerate(lines) if number and line.rstrip() == "---"), 0)
    if not end or lines[0].rstrip() != "---":
        return text
    try:
        said = yaml.safe_load("\n".join(lines[1:end]))
    except (yaml.YAMLError, RecursionError, ValueError):
        return text
    if not isinstance(said, dict):
        return text
    title, summary = said.get("title"), said.get("summary", said.get("description"))
    head = [""] * (end + 1)
    if isinstance(title, str) and not any(line.startswith("# ") for line in lines[end:]):
        head[0] = f"# {' '.join(title.split())}"
        if end > 2 and isinstance(summary, str):
            head[2] = f"> {' '.join(summary.split())}"
    return "\n".join(head + lines[end + 1 :])
