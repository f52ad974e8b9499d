"""# The look of a site

> The press's templates and assets, and over them those of the project.

A template in `site/templates/` stands in the place of the press's template of that name, wherever that one is
extended, included or imported. The press's own stays at hand as `press/NAME`, so that a project writes down
only what is different:

    {% extends "press/base.html" %}
    {% block head %}<link rel="stylesheet" href="{{ asset('ours.css') }}">{% endblock %}

Files in `site/assets/` join those of the press. One that would take the place of the press's is named in the
configuration, under `override_assets`: a file that is in the way of a script or a stylesheet by accident
would break pages in silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import jinja2
from jinja2.bccache import Bucket

from sidelit import assets, bundles, reading, store, template_errors
from sidelit.breaks import breakable
from sidelit.config import Config
from sidelit.errors import SidelitError
from sidelit.tables import read_table

TEMPLATES, ASSETS = "templates", "assets"
# The name under which a project's template finds the one that it stands in the place of.
PRESS = "press"


@dataclass(frozen=True, slots=True)
class Look:
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
            else template_errors.stands_in(error, self.templates)
        )
        if self.templates and inside:
            return template_errors.refused(error, self.templates, self.shown)
        return template_errors.refused(error, ours, TEMPLATES)


def look(config: Config) -> Look:
    """The look of a site.

    Raises `SidelitError` where two files would be written to one place, for a file that lies outside of the
    project, and for an HTML file, which would have none of the pages' policy.
    """
    templates = config.folder / TEMPLATES
    for path in _files(templates):
        reading.refuse_outside(path, config.project, config.shown(templates))
    return Look(
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
            if name in bundles.BUNDLES:
                what = f"`override_assets` names {name!r}, which the press makes of several files"
                hint = f"name some of {', '.join(bundles.BUNDLES[name])}"
            shown = config.shown(config.path)
            line = read_table(config.path, shown).inside({}, "override_assets").line(name)
            raise SidelitError(what, path=shown, line=line, hint=hint)
    return known


def _own(config: Config) -> dict[str, Path]:
    folder, known = config.folder / ASSETS, {name for name, _ in assets.asset_files()} | set(bundles.BUNDLES)
    found: dict[str, Path] = {}
    for path in _files(folder):
        name = path.relative_to(folder).as_posix()
        shown = f"{config.shown(folder)}/{name}"
        reading.refuse_outside(path, config.project, shown)
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
    if name in bundles.BUNDLES:
        return f"give it another name: the press makes {name} of {', '.join(bundles.BUNDLES[name])}"
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
