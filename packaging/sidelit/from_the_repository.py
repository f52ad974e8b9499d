"""Take the press out of the repository that it lives in, when its own distribution is built.

In a clone, the repository begins two folders above this file. A source archive, which this module makes too,
holds what it needs of it in a folder of that name.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ARCHIVED = "repository"
# Everything of the repository that is installed, and where to.
INSTALLED = {"src/sidelit": "sidelit", "templates": "sidelit/templates", "LICENSE": "sidelit/LICENSE"}


def repository(root: str) -> Path:
    """The folder that holds the sources, the templates and the description of the whole project."""
    here = Path(root)
    return here / ARCHIVED if (here / ARCHIVED).is_dir() else here.parent.parent


class Described(MetadataHookInterface):
    """Says what the repository says: one version, one list of requirements, one list of commands."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (repository(self.root) / "pyproject.toml").read_text(encoding="utf-8")
        whole = tomllib.loads(text)["project"]
        extras = whole["optional-dependencies"]
        needed = extras["site"]
        for key in ("version", "requires-python", "scripts", "entry-points"):
            metadata[key] = whole[key]
        # `sidelit build` does without mkdocs; who builds with it has it already.
        metadata["dependencies"] = [each for each in needed if not each.startswith("mkdocs")]
        metadata["optional-dependencies"] = {
            "mkdocs": [each for each in needed if each.startswith("mkdocs")],
            **{name: extras[name] for name in ("labs", "cards", "book")},
        }


class Collected(BuildHookInterface[Any]):
    """Puts the press's sources and templates into what is built."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        home = repository(self.root)
        if self.target_name == "sdist":
            places = {name: f"{ARCHIVED}/{name}" for name in (*INSTALLED, "pyproject.toml")}
        else:
            places = INSTALLED
        build_data["force_include"].update({str(home / name): place for name, place in places.items()})
