"""# The press inside mkdocs

> mkdocs counts the warnings and writes the files; what is in them was made before it asked.

The plugin hands finished pages to mkdocs and keeps mkdocs from touching them, so `mkdocs build` and
`sidelit build` give the same files byte for byte. mkdocs empties its site folder before it builds; here
that folder is a fresh one, and the old site is exchanged only after everything went well, warnings in
strict mode included.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import click
import jinja2
from mkdocs.config import config_options
from mkdocs.config.base import Config as Options
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.plugins import BasePlugin, event_priority
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from mkdocs.utils import CountHandler

from sidelit.config import config
from sidelit.errors import SidelitError, summed
from sidelit.files import atomic


class SidelitOptions(Options):
    """The plugin's part of `mkdocs.yml`."""

    config = config_options.Type(str, default="site/sidelit.toml")


class SidelitPlugin(BasePlugin[SidelitOptions]):
    """Lets mkdocs build a site of the press."""

    def __init__(self) -> None:
        self._command = "build"
        self._strict = False
        self._files: dict[str, bytes] = {}
        self._target: Path | None = None
        self._fresh: Path | None = None
        self._open = ExitStack()
        self._warnings = CountHandler()
        self._warnings.setLevel(logging.WARNING)

    def on_startup(self, *, command: Literal["build", "gh-deploy", "serve"], dirty: bool) -> None:
        """Remember what mkdocs was called for: its own server builds into a folder of its own."""
        self._command = command
        # Other programs that build with mkdocs end as they please; so does its server.
        if command != "serve" and click.get_current_context(silent=True) is not None:
            atomic.arm()

    def on_shutdown(self) -> None:
        """Leave nothing behind, whatever ended the build."""
        self._clear(None)
        atomic.disarm()

    def on_config(self, config: MkDocsConfig) -> MkDocsConfig:
        """Make the site first of all: when it has a mistake, nothing has been touched yet."""
        self._files = self._make(config)
        # mkdocs would add its own sitemap, which holds the date of the build.
        config.theme.static_templates = set()
        config.use_directory_urls = False
        config.nav = None
        self._strict = bool(config.strict)
        if self._command == "serve":
            return config
        logging.getLogger("mkdocs").addHandler(self._warnings)
        self._target = Path(config.site_dir).resolve()
        try:
            atomic.check_target(self._target)
        except SidelitError as error:
            raise PluginError(str(error)) from None
        self._fresh = self._open.enter_context(atomic.fresh_folder(self._target))
        config.site_dir = str(self._fresh)
        return config

    def on_files(self, files: Files, *, config: MkDocsConfig) -> Files:
        """Put the files of the site in place of what mkdocs found."""
        return Files([self._file(name, content, config) for name, content in self._files.items()])

    def on_page_read_source(self, *, page: Page, config: MkDocsConfig) -> str:
        """Give mkdocs an empty text to render: the page is finished."""
        return ""

    def on_env(self, env: jinja2.Environment, *, config: MkDocsConfig, files: Files) -> jinja2.Environment:
        """Give mkdocs an empty template to fill."""
        env.loader = jinja2.DictLoader({"main.html": ""})
        return env

    def on_post_page(self, output: str, *, page: Page, config: MkDocsConfig) -> str:
        """Put the finished page in place of what mkdocs made of nothing."""
        return self._files[page.file.dest_uri].decode()

    # After every other plugin, whose warnings count too.
    @event_priority(-100)
    def on_post_build(self, *, config: MkDocsConfig) -> None:
        """Exchange the sites, unless strict mode is about to stop the build."""
        if self._fresh is None or self._target is None:
            return
        if not (self._strict and self._warnings.get_counts()):
            atomic.switch(self._fresh, self._target)
        self._clear(config)

    def on_build_error(self, *, error: Exception) -> None:
        """Leave nothing behind."""
        self._clear(None)

    def _make(self, options: MkDocsConfig) -> dict[str, bytes]:
        # Loading the press takes a moment, and Ctrl-C in that moment is taken care of only now.
        from sidelit.site import site

        path = Path(options.config_file_path).parent / self.config.config
        try:
            files, done = site.files(config.load(path))
        except SidelitError as error:
            raise PluginError(str(error)) from None
        # The configuration asked for it, so this is no warning, which strict mode would stop at.
        for each in (*summed(done.odd), *map(str, done.skipped)):
            logging.getLogger("mkdocs.plugins.sidelit").info(each)
        return files

    def _file(self, name: str, content: bytes, config: MkDocsConfig) -> File:
        # What the site holds is decided already: mkdocs would leave out whatever lies in `templates/`.
        included = InclusionLevel.INCLUDED
        if not name.endswith(".html"):
            return File.generated(config, name, content=content, inclusion=included)
        # mkdocs knows a page by its Markdown file; `unit.md` becomes `unit.html`, but `README.md` an index.
        file = File.generated(config, name.removesuffix(".html") + ".md", content=b"", inclusion=included)
        file.dest_uri = name
        return file

    def _clear(self, config: MkDocsConfig | None) -> None:
        logging.getLogger("mkdocs").removeHandler(self._warnings)
        self._open.close()
        if config is not None and self._target is not None:
            config.site_dir = str(self._target)
        self._fresh = None
