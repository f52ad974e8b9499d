"""# Which state of the project a page shows

> A reader who reports an error names the commit; the foot of every page says which one it was.

Version, commit and date come from the project itself, never from the clock: two builds of one commit are
equal byte for byte. Without git, or when the project lies unpacked inside somebody else's repository, they
are left out.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from sidelit.config.config import Config


@dataclass(frozen=True, slots=True)
class Origin:
    """The state of the project that a build shows."""

    version: str | None = None
    commit: str | None = None
    dirty: bool = False
    date: str | None = None

    @property
    def label(self) -> str | None:
        """The short commit; a plus sign says that files were changed after it."""
        return None if self.commit is None else self.commit[:10] + ("+" if self.dirty else "")

    @property
    def blank(self) -> Origin:
        """The same with a blank for the commit, so that a page need not be made again after each one."""
        return replace(self, commit=self.commit and _BLANK, dirty=False)

    def filled(self, content: bytes) -> bytes:
        """What was made with a blank, with the commit in it."""
        if not (self.commit and self.label):
            return content
        return content.replace(_BLANK.encode(), self.commit.encode()).replace(
            _BLANK[:10].encode(), self.label.encode()
        )


# It looks like a commit, and nobody writes it by chance. It stands in no file, not even in this one.
_BLANK = hashlib.sha256(b"the commit of a page is filled in when the page is written").hexdigest()[:40]


def origin(config: Config) -> Origin:
    """Ask the project's own files and its git repository."""
    # A release is called what its tag says.
    version = config.public.pinned.strip("v/") or _version(config.project)
    # The configuration must be tracked: otherwise the repository around it is not the project's.
    if git(config.project, "ls-files", "--error-unmatch", str(config.path)) is None:
        return Origin(version)
    line = git(config.project, "log", "-1", "--format=%H %cs")
    if not line:
        return Origin(version)
    commit, date = line.split()
    dirty = bool(git(config.project, "status", "--porcelain", "--untracked-files=no"))
    return Origin(version, commit, dirty, date)


def report(
    config: Config, origin: Origin, path: str, lang: str, line: int = 1, section: str = ""
) -> str | None:
    """Where a reader of the page in one language reports an error in it."""
    pattern = config.public.report_url if lang == config.source_language else config.public.translation_url
    return fill(pattern, origin, path, line, section, config.language(lang).name)


def fill(
    pattern: str | None, origin: Origin, path: str, line: int = 1, section: str = "", lang: str = ""
) -> str | None:
    """Fill the blanks of an address pattern; without the commit it wants it gives nothing."""
    if pattern is None or ("{commit}" in pattern and origin.commit is None):
        return None
    values = {"commit": origin.commit or "", "path": quote(path), "line": str(line), "id": quote(section)}
    values["lang"] = quote(lang)
    return re.sub(r"\{(commit|path|line|id|lang)\}", lambda blank: values[blank[1]], pattern)


def _version(project: Path) -> str | None:
    path = project / "pyproject.toml"
    found = (
        re.search(r'(?m)^version = "([^"]+)"', path.read_text(encoding="utf-8")) if path.is_file() else None
    )
    return found[1] if found else None


def git(folder: Path, *arguments: str) -> str | None:
    """What a git command answers in a folder; `None` if there is no git, or it refuses."""
    command = ("git", "-C", str(folder), *arguments)
    try:
        done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
