"""# A site in public

> One address, and every link that leads to the site from elsewhere begins with it.

`url` says where the site is, `repository` where its sources are. For a known forge the links to a line, to a
commit and to a new issue follow from the repository, and for pages that the forge itself serves the
repository follows from `url`. What the configuration says itself is taken as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from sidelit.config.toml import Table
from sidelit.errors import SidelitError


@dataclass(frozen=True, slots=True)
class Other:
    """Another version of the site."""

    label: str
    """Its number; empty for the draft, which has none."""
    homes: Mapping[str, str]
    """Its home page in each of its languages, from `url`; that of its sources comes first."""

    def home(self, lang: str) -> str:
        """Its home page in a language, or in its first one."""
        return self.homes.get(lang) or next(iter(self.homes.values()))


@dataclass(frozen=True, slots=True)
class Public:
    """Where a site and its sources are published.

    Patterns have the blanks {commit}, {path}, {line} and {id}; that of reports has {lang}, too.
    """

    url: str | None = None
    """Where the site is, with a slash at its end; without it nothing points anywhere."""
    repository: str | None = None
    source_url: str | None = None
    commit_url: str | None = None
    report_url: str | None = None
    colab_url: str | None = None
    """Where a notebook of the repository opens to be run, at Colab."""
    jupyter_url: str | None = None
    """The same, at a Jupyter of one's own or of a class."""
    base: str = ""
    """The folder below `url` in which this build stands, with a slash at its end: that of its version."""
    pinned: str = ""
    """The folder below `url` in which this text stays, if it is a release."""
    notice: str = ""
    """Why this build is not what readers should read: "older" or "draft"."""
    newest: frozenset[str] = frozenset()
    """The pages of the newest release, in a build that lies in a folder of its own."""
    others: tuple[Other, ...] = ()
    """The other versions, the newest one first."""

    @property
    def translation_url(self) -> str | None:
        """Where an error on a translated page is reported: a form of its own, where the forge has forms."""
        form = "template=translation.yml&language={lang}"
        return self.report_url and self.report_url.replace("template=error.yml", form)

    @property
    def here(self) -> str:
        """The address of the root of this build, empty where nothing is public."""
        return f"{self.url}{self.base}" if self.url else ""

    @property
    def lasting(self) -> str:
        """The address of the root at which this text stays.

        It is `here` where no release keeps it, and empty for a draft, of which only the commit stays.
        """
        return f"{self.url}{self.pinned or self.base}" if self.url and self.notice != DRAFT else ""


# The two kinds of `notice`.
OLDER, DRAFT = "older", "draft"
# What is printed for its author alone.
NOWHERE = Public()

_WEB = re.compile(r"https?://[^\s/?#{}]+(?:/[^\s?#{}]*)?")
# What follows the repository: a line, a commit, a new issue. Without such a form it shows an empty issue.
_ABOUT = "{path}%20%23{id}%20at%20{commit}"
# A form of GitHub takes its fields from the address as well.
_FIELDS = "&section={path}%23{id}&version={commit}"
_FORGES = {
    "github.com": (
        "/blob/{commit}/{path}#L{line}",
        "/commit/{commit}",
        f"/issues/new?template=error.yml&title={_ABOUT}{_FIELDS}",
    ),
    "gitlab.com": (
        "/-/blob/{commit}/{path}#L{line}",
        "/-/commit/{commit}",
        f"/-/issues/new?issue[title]={_ABOUT}",
    ),
    "codeberg.org": (
        "/src/commit/{commit}/{path}#L{line}",
        "/commit/{commit}",
        f"/issues/new?title={_ABOUT}",
    ),
}
# Pages that a forge serves say in their address whose they are.
_SERVED = {"github.io": "github.com", "gitlab.io": "gitlab.com", "codeberg.page": "codeberg.org"}


def read(top: Table) -> Public:
    """Take the addresses out of a configuration, and add those that follow from them.

    Raises `SidelitError` for what is no address on the web.
    """
    url, repository = _address(top, "url"), _address(top, "repository")
    said = (address(top, f"{kind}_url") for kind in ("source", "commit", "report", "colab"))
    return replace(_public(url, repository, *said), jupyter_url=address(top, "jupyter_url"))


def at(known: Public, url: str) -> Public:
    """The same with a public address, for a configuration that names none; one that it names stays.

    The notebooks of the repository were made without this address, and at Colab they would not find what
    they need. So no page leads there.

    Raises `SidelitError` for what is no address on the web.
    """
    if known.url:
        return known
    if not _WEB.fullmatch(url):
        raise SidelitError(f"{url!r} is no public address", hint="write it like https://example.org/book/")
    said = (known.source_url, known.commit_url, known.report_url, known.colab_url)
    made = _public(url.rstrip("/"), known.repository, *said)
    return replace(made, colab_url=known.colab_url, jupyter_url=known.jupyter_url)


def _public(url: str | None, repository: str | None, *said: str | None) -> Public:
    """What is known, and what follows from it."""
    repository = repository or _repository(url)
    patterns = _patterns(repository) if repository else (None,) * 4
    source, commit, report, colab = (own or known for own, known in zip(said, patterns, strict=True))
    return Public(f"{url}/" if url else None, repository, source, commit, report, colab)


def address(top: Table, key: str) -> str | None:
    """A web address, perhaps with blanks: a link that is a program would run on every page.

    Raises `SidelitError` for anything else.
    """
    address = top.take(key, str, "")
    if address and not re.fullmatch(r"https?://[^\s\"<>]+", address):
        raise top.error(f"`{key}` must be a web address", key, hint="begin it with https://")
    return address or None


def authors(top: Table) -> tuple[str, ...]:
    """The names of those who wrote it, `Family, Given` or any other name.

    Raises `SidelitError` for what is no list of names.
    """
    given = top.take("authors", list, [])
    if not all(isinstance(name, str) and name.strip() for name in given):
        raise top.error("`authors` must be a list of names", "authors")
    return tuple(name.strip() for name in given)


def _address(top: Table, key: str) -> str | None:
    given = top.take(key, str, "")
    if given and not _WEB.fullmatch(given):
        hint = f'write it like {key} = "https://example.org/book/"'
        raise top.error(f"{given!r} is no public address", key, hint)
    return given.rstrip("/") or None


def _repository(url: str | None) -> str | None:
    """The repository whose pages a forge serves at an address."""
    found = re.fullmatch(r"https://([\w-]+)\.([\w.]+)(?:/([\w.-]+))?", url or "")
    if not found or found[2] not in _SERVED:
        return None
    return f"https://{_SERVED[found[2]]}/{found[1]}/{found[3] or f'{found[1]}.{found[2]}'}"


def _patterns(repository: str) -> tuple[str | None, ...]:
    host, _, name = repository.partition("://")[2].partition("/")
    if host not in _FORGES:
        return (None,) * 4
    notebooks = "https://colab.research.google.com/github/"
    colab = f"{notebooks}{name}/blob/{{commit}}/{{path}}" if host == "github.com" else None
    return (*(repository + rest for rest in _FORGES[host]), colab)
