"""# What the cells of a lab printed

> A recording of one run in each language, so that a lab can be read without running it.

`site/recorded/labs/LANG/NAME.json` is a recording like any other; its `data` has for each cell, by its name,
a list of what it showed: `{"text": …}` or `{"svg": …}`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sidelit.config import Config, Lab
from sidelit.errors import SidelitError
from sidelit.figures import recording
from sidelit.figures.recording import Recording

FOLDER = "recorded/labs"
KINDS = ("text", "svg")


@dataclass(frozen=True, slots=True)
class Output:
    """One thing that a cell showed: `text`, or a drawing as SVG."""

    kind: str
    content: str


@dataclass(frozen=True, slots=True)
class Run:
    """What the cells of a lab showed in one language, by their names, and where they ran."""

    lang: str = ""
    recording: Recording | None = None
    outputs: Mapping[str, Sequence[Output]] = field(default_factory=dict)


def read(config: Config, item: Lab, lang: str) -> Run:
    """The run of a lab in a language, or in that of the sources; one without outputs if nobody recorded it.

    :raises SidelitError: if the recording is none
    """
    for each in dict.fromkeys((lang, config.source_language)):
        path = config.folder / FOLDER / each / f"{item.stem}.json"
        if path.is_file():
            shown = config.shown(path)
            found = recording.read(path, shown)
            return Run(each, found, _outputs(found.data, shown))
    return Run()


def _outputs(data: object, shown: str) -> dict[str, tuple[Output, ...]]:
    if not isinstance(data, dict) or not all(isinstance(each, list) for each in data.values()):
        raise SidelitError("the outputs of a lab are lists, by the names of its cells", path=shown, line=1)
    return {name: tuple(_output(each, shown) for each in given) for name, given in data.items()}


def _output(given: object, shown: str) -> Output:
    if isinstance(given, dict) and len(given) == 1:
        ((kind, content),) = given.items()
        if kind in KINDS and isinstance(content, str):
            return Output(kind, content)
    what = f"an output is an object with one key, {' or '.join(KINDS)}"
    raise SidelitError(what, path=shown, line=1, hint="record it again")
