"""# Where the readers of a section that is gone go

> Its author says so once, at a release, and a word of it that means nothing is refused.

`sidelit publish --redirect PAGE#OLD=NEW` names a published id whose section is gone, and the id that its
readers should find: one of the same page, or `PAGE#ID`. `*` stands for every other id of the page.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence

from sidelit.errors import SidelitError
from sidelit.ids.claims import Claims
from sidelit.ids.matching import Imprint

Redirects = Mapping[str, Mapping[str, str]]
"""By page and id, where the readers of sections that are gone go: `ID`, or `PAGE#ID`; `*` is any other id."""


def published(claims: Claims, lost: Mapping[str, Sequence[Imprint]]) -> dict[str, dict[str, bool]]:
    """By the names of each published page its ids, and whether the section of each is lost."""
    found: dict[str, dict[str, bool]] = {}
    for name, page in claims.ledger.pages.items():
        for called in {name, claims.homes[name].name} if claims.owns(name) else {name}:
            found.setdefault(called, {}).update({each.id: each in lost[name] for each in page})
    return found


def refuse(
    redirects: Redirects,
    known: Mapping[str, Mapping[str, bool]],
    leads: Callable[[str, str], bool],
) -> None:
    """Refuse a redirect from what was never published or is still there, and one to what is on no page.

    :param known: the published ids of each page by every name that it has, and whether each is gone.
    :param leads: whether a page has a section that a redirect of its ids names.
    """
    for page, said in redirects.items():
        if said and page not in known:
            raise SidelitError(f"no published page is called {page!r}", hint=_near(page, known))
        for old, new in said.items():
            if old != "*":
                _refuse_id(f"{page}#{old}", known[page].get(old), _near(old, known[page]))
            if not leads(page, new):
                what = f"the redirect of {f'{page}#{old}'!r} names {new!r}, which is on no page"
                raise SidelitError(what, hint="`sidelit sections FILE` lists the ids of a file")


def _refuse_id(place: str, gone: bool | None, near: str | None) -> None:
    if gone is None:
        raise SidelitError(f"no release has published the id {place!r}", hint=near)
    if not gone:
        what = f"the section {place!r} is still there, and only an id whose section is gone can be redirected"
        raise SidelitError(what, hint="leave this redirect out")


def _near(wanted: str, known: Iterable[str]) -> str | None:
    close = difflib.get_close_matches(wanted, list(known), n=1)
    return f"did you mean {close[0]!r}?" if close else None
