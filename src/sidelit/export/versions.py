"""# Versions that stay

> Who cites a release cites an address, and the text that was cited is still there when newer ones follow.

A site with several versions has the newest release at its root, each release in a folder of its own, as
`v1.2.0/`, and if wanted the draft of the next one in `draft/`. The releases are the tags of the repository.
All of them are printed anew, by the press at hand: so each page can tell its reader that a newer one exists,
and where. The way from an old section to the same one today is that of every old address: its id, or what
the ledger has made of it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from urllib.parse import quote

from packaging.version import InvalidVersion, Version

from sidelit.config import config as configuration
from sidelit.config.config import Config
from sidelit.config.publication import DRAFT, OLDER, Other
from sidelit.errors import SidelitError
from sidelit.files import atomic
from sidelit.files.atomic import Output
from sidelit.site import metadata, navigation, site

DRAFTS = "draft/"


@dataclass(frozen=True, slots=True)
class Printed:
    """A version that was printed: its number, its folder in the site, and how many pages it has."""

    label: str
    folder: str
    pages: int


@dataclass(frozen=True, slots=True)
class _Release:
    """A tag of the repository, its number, and the project as it was then."""

    tag: str
    number: Version
    config: Config

    @property
    def folder(self) -> str:
        return f"v{self.number}/"


def compose(
    config: Config, out: Path, *, draft: bool = False, without: Collection[str] = (), jobs: int | None = None
) -> tuple[Printed, ...]:
    """Write the site of all versions into the folder `out`: the newest one first, in the order returned.

    A project without releases has its present state at the root. `without` are tags that are left out, and
    with `draft` the present state lies beside the releases.

    Raises `SidelitError` where a version cannot be printed, with its tag; then `out` is as it was.
    """
    tags = _tags(config, without)
    with atomic.written(out) as fresh, _clones() as folder:
        releases = [_Release(tag, number, _at(config, tag, folder / tag)) for tag, number in tags.items()]
        if not releases:
            return (_print(config, fresh, "", "", jobs),)
        return tuple(_printed(config, releases, fresh, draft, jobs))


def _printed(
    config: Config, releases: list[_Release], fresh: Output, draft: bool, jobs: int | None
) -> Iterator[Printed]:
    """Print the newest release twice: at the root, where readers come, and where it stays."""
    newest = releases[0]
    others = [Other(str(newest.number), _homes(newest.config, ""))]
    others += [Other(str(each.number), _homes(each.config, each.folder)) for each in releases[1:]]
    others += [Other("", _homes(config, DRAFTS))] if draft else []
    beside = _public(newest.config, pinned=newest.folder, others=others[1:])
    yield _print(beside, fresh, "", newest.tag, jobs)
    pages = frozenset(path.relative_to(fresh.folder).as_posix() for path in fresh.folder.rglob("*.html"))
    taken = {each.folder for each in releases} | ({DRAFTS} if draft else set())
    for name in sorted(taken & {f"{page.partition('/')[0]}/" for page in pages}):
        what = f"the site has pages in {name}, where another version of it would lie"
        raise SidelitError(what, path=config.shown(config.path), hint="give that folder another name")
    for each in releases:
        rest = [other for other in others if other.label != str(each.number)]
        notice = OLDER if each is not newest else ""
        made = _public(
            each.config, base=each.folder, pinned=each.folder, notice=notice, newest=pages, others=rest
        )
        yield _print(made, fresh.below(each.folder), each.folder, each.tag, jobs)
    if draft:
        made = _public(config, base=DRAFTS, notice=DRAFT, newest=pages, others=others[:-1])
        yield _print(made, fresh.below(DRAFTS), DRAFTS, "", jobs)


def _public(config: Config, **known: object) -> Config:
    return replace(config, public=replace(config.public, **known))  # type: ignore[arg-type]


def _print(config: Config, out: Output, name: str, tag: str, jobs: int | None) -> Printed:
    out.folder.mkdir(exist_ok=True)
    try:
        done = site.write(config, out, jobs=jobs)
    except SidelitError as error:
        raise _in_tag(error, tag) if tag else error from None
    return Printed(tag, name, sum(file.endswith(".html") for file in done.files))


def _in_tag(error: SidelitError, tag: str) -> SidelitError:
    return SidelitError(f"{tag} cannot be printed: {error}", hint=f"leave it out with --without {tag}")


def _homes(config: Config, folder: str) -> Mapping[str, str]:
    """The home page of a version in each language, from the root of all versions."""
    return {lang: folder + quote(navigation.address(config, config.home, lang)) for lang in config.languages}


def checked_out(config: Config) -> Config:
    """The project with the address at which its text stays, if it is a release as it was tagged."""
    try:
        if not config.public.url or _git(config, "status", "--porcelain", "--untracked-files=no"):
            return config
        here = _git(config, "tag", "--points-at", "HEAD").split()
        tags = [(tag, number) for tag, number in _tags(config, ()).items() if tag in here]
    except SidelitError:  # Without a repository there are no releases.
        return config
    return _public(config, pinned=_Release(*tags[0], config).folder) if tags else config


# ## The project as it was


def _tags(config: Config, without: Collection[str]) -> dict[str, Version]:
    """The tags that are releases and have a site, the newest one first: a draft of a release is older.

    Raises `SidelitError` for a tag that is left out and is none, and for two tags of one version.
    """
    names = _git(config, "tag", "--list").split()
    for name in without:
        if name not in names:
            raise SidelitError(f"there is no tag {name!r} that could be left out")
    numbers = {name: number for name in names if name not in without and (number := _number(name))}
    there = {name: number for name, number in numbers.items() if _has_site(config, name)}
    ordered = sorted(there, key=lambda name: (not there[name].is_prerelease, there[name]), reverse=True)
    for one, other in pairwise(ordered):
        if there[one] == there[other]:
            what = f"the tags {one} and {other} are one version, {there[one]}"
            raise SidelitError(what, hint=f"leave one of them out: --without {other}")
    return {name: there[name] for name in ordered}


def _number(tag: str) -> Version | None:
    if not re.match(r"v?\d", tag):
        return None
    try:
        return Version(tag)
    except InvalidVersion:
        return None


def _has_site(config: Config, tag: str) -> bool:
    """Whether the project was printed by the press at that time."""
    path = config.path.relative_to(config.project).as_posix()
    return bool(_git(config, "ls-tree", "--name-only", f"refs/tags/{tag}", "--", path))


def _at(config: Config, tag: str, folder: Path) -> Config:
    """The project as it was, in a clone of its own, with the public addresses of today.

    Raises `SidelitError` when its configuration cannot be read.
    """
    top = Path(_git(config, "rev-parse", "--show-toplevel"))
    # A branch may have the name of a tag, and `clone --branch` would take the branch.
    _git(config, "clone", "--quiet", "--shared", "--no-checkout", str(top), str(folder))
    _git(config, "-C", str(folder), "checkout", "--quiet", "--detach", f"refs/tags/{tag}")
    project = folder / config.project.relative_to(top.resolve())
    try:
        found = configuration.load(project / config.path.relative_to(config.project))
    except SidelitError as error:
        raise _in_tag(error, tag) from None
    _lend(config, found, site.CACHE)
    _lend(config, found, f"{found.folder.name}/{metadata.CARDS}")
    return replace(found, public=config.public)


def _lend(config: Config, found: Config, name: str) -> None:
    """Give a clone what no repository holds: the work of earlier builds, the cards that were drawn."""
    ours, theirs = config.project / name, found.project / name
    if ours.is_dir() and not theirs.exists():
        shutil.copytree(ours, theirs)


@contextmanager
def _clones() -> Iterator[Path]:
    """A folder for the clones, which is gone behind the block however it ends."""
    with tempfile.TemporaryDirectory() as name, atomic.tidied(lambda: shutil.rmtree(name, True)):
        yield Path(name).resolve()


def _git(config: Config, *arguments: str) -> str:
    command = ("git", "-C", str(config.project), *arguments)
    try:
        done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False)
    except OSError:
        raise SidelitError("git, which keeps the versions, is not installed") from None
    if done.returncode:
        told = done.stderr.strip().splitlines() or ["it said nothing"]
        raise SidelitError(f"git cannot show the versions: {told[-1]}")
    return done.stdout.strip()
