"""# The command line

> Every command is a few lines around one function of the press.

A mistake of the user ends in one line for each mistake, `file:line: what is wrong`, and exit code 1. A
traceback means that the press itself is wrong.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from sidelit.errors import SidelitError, refused

# The distribution installs this command for everybody, and the packages it needs only for those who ask.
try:
    from sidelit import citing
    from sidelit.cli import commands
    from sidelit.config import chapters
except ModuleNotFoundError as error:
    if str(error.name).partition(".")[0] == "sidelit":
        raise
    from importlib import metadata

    try:
        # Who has installed the press alone has asked for all that it needs, so something of it was lost.
        wanted = metadata.distribution("sidelit").name
    except metadata.PackageNotFoundError:
        wanted = "shardbook[site]"
    sys.exit(f"sidelit: the package {error.name} is not installed; pip install '{wanted}'")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    given, others = parser().parse_known_args(arguments)
    command: Callable[[argparse.Namespace], int] = given.command
    if command is commands.search:
        # Readers search for options, too.
        given.words += others
        if not given.words:
            parser().error("name a word to search for")
    elif others:
        parser().error(f"unrecognized arguments: {' '.join(others)}")
    try:
        return command(given)
    except SidelitError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output, `head` perhaps, has seen enough. Nothing may be flushed to it any more.
        sys.stdout = None
        return 1
    except OSError as error:
        print(refused(error), file=sys.stderr)
        return 1


def parser() -> argparse.ArgumentParser:
    """Describe all commands and their options."""
    top = argparse.ArgumentParser(prog="sidelit", description="Print literate Python as annotated pages.")
    top.add_argument("--version", action=_Version, nargs=0, help="show the version, and that of Python")
    subs = top.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, about: str, command: Callable[[argparse.Namespace], int]) -> argparse.ArgumentParser:
        sub = subs.add_parser(name, help=about, description=about[0].upper() + about[1:] + ".")
        sub.set_defaults(command=command)
        if name not in ("init", "print", "sections"):
            sub.add_argument(
                "--config", type=Path, metavar="FILE", help="default: the nearest site/sidelit.toml"
            )
        return sub

    sub = add("build", "build the site", commands.build_site)
    sub.add_argument("--out", type=Path, metavar="DIR", help="where to (default: build/site)")
    sub.add_argument(
        "--keep-going",
        action="store_true",
        help="leave out what is no Python, print formulas and links that are wrong as they were typed",
    )
    _jobs(sub)
    sub = add(
        "pack", "build the site as one folder and one archive that open from a disk", commands.pack_site
    )
    sub.add_argument("--out", type=Path, metavar="DIR", help="where to (default: build/pack)")
    sub = add("book", "print the site as one PDF in each language", commands.book_site)
    sub.add_argument("--out", type=Path, metavar="DIR", help="where to (default: build/book)")
    _langs(sub)
    sub.add_argument("--browser", metavar="PROGRAM", help="a Chromium (default: the first that is found)")
    sub = add("slides", "make slides of a lesson, a section a slide", commands.make_slides)
    sub.add_argument("lesson", metavar="LESSON", help="a lesson or a lab, as in `one_step`")
    sub.add_argument("--out", type=Path, metavar="DIR", help="where to (default: build/slides/LESSON)")
    _langs(sub)
    sub = add("serve", "show the site on this machine and build it again on every save", commands.serve_site)
    sub.add_argument("--port", type=int, default=8000, help="default: %(default)s; 0 takes any free one")
    sub = add("init", "look at a repository and write a first configuration for it", commands.init)
    sub.add_argument(
        "folder", type=Path, nargs="?", default=Path(), metavar="FOLDER", help="default: this one"
    )
    sub.add_argument(
        "--lang",
        action="append",
        default=[],
        metavar="CODE",
        help="a language of the site; the first one is that of the sources; may be repeated",
    )
    sub.add_argument("--mkdocs", action="store_true", help="write mkdocs.yml as well")
    sub = add("print", "print any literate Python as pages, without a configuration", commands.print_files)
    sub.epilog = "What the next run can use is kept in ~/.cache/sidelit/printed, for the last few folders."
    _print(sub)
    sub = add("sections", "show how a file is cut into sections, as JSON", commands.sections)
    sub.add_argument("file", type=Path, metavar="FILE", help="a Python file")
    sub = add("sync", "bring the catalogues up to date with the sources", commands.sync)
    sub = add("status", "show the state of the translations, page by page", commands.status)
    sub.add_argument("--json", action="store_true", help="the same as JSON")
    sub.add_argument("--todo", action="store_true", help="list every sentence that waits for a translator")
    sub = add(
        "reviewed", "say that translations still fit the code that changed beside them", commands.reviewed
    )
    sub.add_argument(
        "page", nargs="+", help="a page as in `sidelit status`, or one context of it: PAGE#CONTEXT"
    )
    sub.add_argument("--lang", help="one language only")
    add("lint", "check sources and translations", commands.lint)
    sub = add("lab", "make the notebooks of all labs, for students and for teachers", commands.make_labs)
    sub.add_argument("--check", action="store_true", help="write nothing; fail if one is not as it should be")
    sub = add("cite", "print a citation of a section", commands.cite)
    sub.add_argument(
        "id",
        metavar="ID",
        help="Class.method, a number as 12.4, PAGE, or PAGE#ID where several pages have it",
    )
    sub.add_argument("--lang", help="the language of the page that is cited (default: the first one)")
    sub.add_argument("--form", choices=citing.FORMS, help="one form only; without it all are printed")
    sub = add("search", "search the site as its readers do", commands.search)
    sub.add_argument("words", nargs="*", metavar="WORD", help="a name, a part of it, an option, or words")
    sub.add_argument("--lang", help="default: the language that the site is written in")
    sub.add_argument(
        "--site", type=Path, metavar="FOLDER", help="a built site (default: build/site of the project)"
    )
    sub = add("cards", "draw the pictures that networks show of pages (needs Pillow)", commands.draw_cards)
    sub.add_argument("--font", type=Path, metavar="FILE", help="a font for letters that the press's own lack")
    sub = add(
        "versions", "build the site with every release at an address that stays", commands.compose_versions
    )
    sub.add_argument("--out", type=Path, metavar="DIR", help="where to (default: build/versions)")
    sub.add_argument("--url", help="the public address, where the configuration names none")
    sub.add_argument("--draft", action="store_true", help="show the present state beside the releases, too")
    sub.add_argument(
        "--without", action="append", default=[], metavar="TAG", help="leave a release out; may be repeated"
    )
    _jobs(sub)
    sub = add("publish", "fix the names of all sections, at a release", commands.publish)
    sub.add_argument(
        "--redirect",
        action="append",
        default=[],
        metavar="PAGE#OLD=NEW",
        help="where a published section's readers go now that it is gone: an id of its page, or PAGE#ID; "
        "* is every section that is gone from PAGE; may be repeated",
    )
    return top


class _Version(argparse.Action):
    """Looks the version up when somebody asks for it: that takes longer than to read the arguments.

    What brings the command along is the press, whatever distribution that is.
    """

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        # It takes as long to load as a tenth of the press, for a question that is seldom asked.
        from importlib import metadata

        found = next(iter(metadata.entry_points(group="console_scripts", name="sidelit")), None)
        version = found.dist.version if found and found.dist else "(not installed)"
        print(f"sidelit {version}, Python {platform.python_version()}")
        parser.exit()


def _print(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("files", type=Path, nargs="+", metavar="FILE", help="Python files, or folders of them")
    sub.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder to write")
    sub.add_argument("--lang", default="", help="the language of the pages (default: that of the files)")
    sub.add_argument("--locale", type=Path, metavar="DIR", help="translations: DIR/LANG/PAGE.po")
    sub.add_argument(
        "--source",
        metavar="LANG",
        default="",
        help="what the files are written in (default: as the site that they belong to says, or en)",
    )
    sub.add_argument(
        "--dialect",
        choices=chapters.DIALECTS,
        default="",
        help="of docstrings (default: as that site says, or each is guessed)",
    )
    sub.add_argument("--strict", action="store_true", help="a formula or link that is wrong is an error")
    _jobs(sub)


def _langs(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--lang", action="append", default=[], metavar="CODE", help="one language only; may be repeated"
    )


def _jobs(sub: argparse.ArgumentParser) -> None:
    help = "how many processes share the work (default: one for each core)"
    sub.add_argument("--jobs", type=int, metavar="N", help=help)


if __name__ == "__main__":
    sys.exit(main())
