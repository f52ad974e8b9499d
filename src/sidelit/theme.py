"""# The theme of a site

> The press's templates and assets, and over them those of the project.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import jinja2
from jinja2.bccache import Bucket
from markupsafe import Markup, escape

from sidelit.cache import store
from sidelit.config.config import Config
from sidelit.config.toml import read_table
from sidelit.errors import SidelitError
from sidelit.files import assets

# ## The look of a site
#
# > The press's templates and assets, and over them those of the project.
#
# A template in `site/templates/` stands in the place of the press's template of that name, wherever that one
# is extended, included or imported. The press's own stays at hand as `press/NAME`, so that a project writes
# down only what is different:
#
#     {% extends "press/base.html" %}
#     {% block head %}<link rel="stylesheet" href="{{ asset('ours.css') }}">{% endblock %}
#
# Files in `site/assets/` join those of the press. One that would take the place of the press's is named in
# the configuration, under `override_assets`: a file that is in the way of a script or a stylesheet by
# accident would break pages in silence.


TEMPLATES, ASSETS = "templates", "assets"
# The name under which a project's template finds the one that it stands in the place of.
PRESS = "press"


@dataclass(frozen=True, slots=True)
class Theme:
    """What pages are made with; without anything given it is the press's own look."""

    templates: Path | None = None
    """The folder of the project's templates, if it has one."""
    shown: str = TEMPLATES
    """What messages call that folder."""
    assets: Mapping[str, Path] = field(default_factory=lambda: dict(assets.asset_files()))
    """Every file that a page may refer to, by its name below `assets/`."""

    @property
    def environment(self) -> jinja2.Environment:
        """Where templates are looked up."""
        return _environment(self.templates)

    def refused(self, error: Exception) -> SidelitError:
        """What a template was refused for, with the line that is to be mended."""
        ours, name = assets.templates_folder(), getattr(error, "name", None) or ""
        inside = self.templates and (
            (self.templates / name).is_file()
            if isinstance(error, jinja2.TemplateSyntaxError)
            else stands_in(error, self.templates)
        )
        if self.templates and inside:
            return refused(error, self.templates, self.shown)
        return refused(error, ours, TEMPLATES)


def theme(config: Config) -> Theme:
    """The look of a site.

    Raises `SidelitError` where two files would be written to one place, for a file that lies outside of the
    project, and for an HTML file, which would have none of the pages' policy.
    """
    templates = config.folder / TEMPLATES
    for path in _files(templates):
        assets.refuse_outside(path, config.project, config.shown(templates))
    return Theme(
        templates if templates.is_dir() else None, config.shown(templates), {**_press(config), **_own(config)}
    )


def forget() -> None:
    """Read the templates anew at the next build: somebody may have saved one."""
    _environment.cache_clear()


def _press(config: Config) -> dict[str, Path]:
    known = dict(assets.asset_files())
    for name in config.override_assets:
        if name not in known or not (config.folder / ASSETS / name).is_file():
            where = "the press" if name not in known else config.shown(config.folder / ASSETS)
            what, hint = (
                f"`override_assets` names {name!r}, and {where} has no such file",
                "mend its spelling",
            )
            if name in assets.BUNDLES:
                what = f"`override_assets` names {name!r}, which the press makes of several files"
                hint = f"name some of {', '.join(assets.BUNDLES[name])}"
            shown = config.shown(config.path)
            line = read_table(config.path, shown).inside({}, "override_assets").line(name)
            raise SidelitError(what, path=shown, line=line, hint=hint)
    return known


def _own(config: Config) -> dict[str, Path]:
    folder, known = config.folder / ASSETS, {name for name, _ in assets.asset_files()} | set(assets.BUNDLES)
    found: dict[str, Path] = {}
    for path in _files(folder):
        name = path.relative_to(folder).as_posix()
        shown = f"{config.shown(folder)}/{name}"
        assets.refuse_outside(path, config.project, shown)
        if name.endswith((".html", ".htm")):
            what = "an HTML file among the assets would have none of the pages' policy and checks"
            raise SidelitError(what, path=shown, hint="write it as Markdown, in pages/")
        if name in known and name not in config.override_assets:
            what = f"two files would be written to assets/{name}, and one of them is the press's own"
            raise SidelitError(what, path=shown, hint=_instead(name))
        found[name] = path
    return found


def _instead(name: str) -> str:
    """What to do about a file that would be written where the press writes its own."""
    if name in assets.BUNDLES:
        return f"give it another name: the press makes {name} of {', '.join(assets.BUNDLES[name])}"
    return f'give it another name, or write `override_assets = ["{name}"]` if it takes its place'


def _files(folder: Path) -> list[Path]:
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]


@cache
def _environment(own: Path | None) -> jinja2.Environment:
    press = jinja2.FileSystemLoader(assets.templates_folder())
    loaders: list[jinja2.BaseLoader] = [jinja2.PrefixLoader({PRESS: press})]
    loaders += [jinja2.FileSystemLoader(own)] if own else []
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([*loaders, press]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.filters["breakable"] = breakable
    environment.bytecode_cache = _Compiled()
    return environment


class _Compiled(jinja2.BytecodeCache):
    """What templates compile to. It is a program, so only what this user's press wrote is run."""

    def __init__(self) -> None:
        home = store.home()
        self._store = store.Store(home and home / "compiled")

    def load_bytecode(self, bucket: Bucket) -> None:
        if (kept := self._store.get(bucket.key)) is not None:
            # Jinja compiles anew where the template is another one, or was compiled by another Python.
            bucket.bytecode_from_string(kept)

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._store.put(bucket.key, bucket.bytecode_to_string())


# ## Where a template fails
#
# > The file and the line that an author has to mend, for whatever was raised while a template was filled.


# What the expressions of a template raise, beside Jinja2's own complaints.
RAISED = (
    *(jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError),
    # A template that is part of itself, and one that makes more than there is room for.
    *(RecursionError, MemoryError),
)


def refused(error: Exception, folder: Path, shown: str) -> SidelitError:
    """What a template in `folder`, which messages call `shown`, was refused for, with its line."""
    if isinstance(error, jinja2.TemplateSyntaxError):
        return SidelitError(
            f"not a valid template: {error.message}", path=f"{shown}/{error.name}", line=error.lineno
        )
    name, line = _place(error, folder, shown)
    if isinstance(error, UnicodeDecodeError):
        name = next(_undecodable(folder, shown), name)
    return SidelitError(f"the template fails: {_reason(error)}", path=name or shown, line=line)


def _reason(error: Exception) -> str:
    if isinstance(error, jinja2.TemplateNotFound):
        return f"there is no {error.name}"
    if isinstance(error, RecursionError):
        return "it is part of itself, or nested too deeply; what it extends of the press begins with `press/`"
    if isinstance(error, MemoryError):
        return "it makes more than there is room for"
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    # The words of the interface, and those of the project, are such objects.
    return re.sub(
        r"'mappingproxy object' has no attribute '(.*)'", r"there is no word called '\1'", str(error)
    )


def _undecodable(folder: Path, shown: str) -> Iterator[str]:
    """The templates that are not UTF-8: the error does not say which one it was raised for."""
    for path in sorted(folder.rglob("*.html")):
        try:
            path.read_text("utf-8")
        except UnicodeDecodeError:
            yield f"{shown}/{path.relative_to(folder).as_posix()}"


def stands_in(error: BaseException, folder: Path) -> bool:
    """Whether the deepest template of a traceback is one of this folder.

    Where there is none, a template could not be read, and those of the press can.
    """
    trace, inside = error.__traceback__, True
    while trace is not None:
        file = Path(trace.tb_frame.f_code.co_filename)
        if file.suffix in (".html", ".svg"):
            inside = file.is_relative_to(folder)
        trace = trace.tb_next
    return inside


def _place(error: BaseException, folder: Path, shown: str) -> tuple[str | None, int | None]:
    """The deepest template line in a traceback: Jinja2 rewrites frames to point at its templates."""
    name: str | None = None
    line: int | None = None
    trace = error.__traceback__
    while trace is not None:
        file = Path(trace.tb_frame.f_code.co_filename)
        if file.is_relative_to(folder):
            name, line = f"{shown}/{file.relative_to(folder).as_posix()}", trace.tb_lineno
        trace = trace.tb_next
    return name, line


# ## Where a long name may break
#
# > A line ends behind a dot or an underscore of a name, not in the middle of a word.


# Letters that fit into a line of a phone at the size of a heading. A shorter name never breaks.
_SHORT = 20


def breakable(name: str) -> Markup:
    """A name as HTML that a line may break behind its dots and underscores."""
    if len(name) <= _SHORT:
        return escape(name)
    pieces = re.split(r"(?<=[._])(?=[^._])", name)
    return Markup("<wbr>").join(map(escape, pieces))
