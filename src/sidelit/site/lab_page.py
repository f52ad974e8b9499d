"""# The page of a lab

> Where its notebook opens, which lesson it belongs to, and which run its outputs are from.

The notebooks are files of the repository, one for each language, which `sidelit lab` makes. The site has the
student's; the one with the solutions stays in the repository.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePosixPath

from sidelit import reading
from sidelit.config import Config, Lab
from sidelit.errors import SidelitError
from sidelit.labs import places
from sidelit.origin import fill
from sidelit.site import lesson_views, link_views, ways
from sidelit.site.desk import Desk


def head(desk: Desk, item: Lab) -> lesson_views.LabHead:
    """What stands at the head of a lab beside what every lesson says."""
    config, lang = desk.config, desk.shown.lang
    public, path = config.public, places.student(config, item, lang)
    known = (("Colab", public.colab_url), ("Jupyter", public.jupyter_url))
    opens = ((name, fill(pattern, desk.press.origin, path)) for name, pattern in known)
    return lesson_views.LabHead(
        lesson=_lesson(desk, item),
        notebook=desk.ways.to(_place(item)),
        places=tuple((name, address) for name, address in opens if address),
        teachers=fill(public.source_url, desk.press.origin, places.teacher(config, item, lang)),
        recording=desk.run.recording,
    )


def _lesson(desk: Desk, item: Lab) -> link_views.Link | None:
    """To the lesson that the lab names, if it names one."""
    text = desk.shown.text
    if not text.lesson:
        return None
    lessons = {PurePosixPath(each.source).stem: each for each in desk.config.course.lessons}
    if text.lesson not in lessons:
        what, hint = f"there is no lesson {text.lesson!r}", f"there is {', '.join(lessons) or 'none'}"
        desk.press.report(SidelitError(what, path=item.source, line=text.lesson_line, hint=hint))
        return None
    other = desk.edition.pages[lessons[text.lesson].output]
    return link_views.Link(other.label, desk.ways.to(other.text.item.output), lang=other.label_lang)


def _place(item: Lab) -> str:
    return item.output.removesuffix(".html") + ".ipynb"


def files(config: Config, report: Callable[[SidelitError], None]) -> dict[str, bytes]:
    """The students' notebooks, by where they lie in the site; `report` is told of those that nobody made."""
    found: dict[str, bytes] = {}
    for item in config.labs.labs:
        for lang in config.languages:
            path = places.student(config, item, lang)
            try:
                found[ways.address(config, _place(item), lang)] = reading.data(config.project / path)
            except OSError:
                what = f"the notebook {path} is not there"
                report(SidelitError(what, path=item.source, line=1, hint="run `sidelit lab`"))
    return found
