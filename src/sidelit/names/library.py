"""# The files of a project and their modules

> A name leads from file to file, and each file is read when somebody asks for it.
"""

from __future__ import annotations

import ast
import builtins
import gc
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from sidelit.config.config import Inventory
from sidelit.errors import SidelitError
from sidelit.files import assets
from sidelit.names import scopes
from sidelit.names.scopes import Binding, Scope
from sidelit.names.survey import Survey, survey
from sidelit.source import syntax
from sidelit.source.decoding import read_source

# ## The files of a project, as they are asked for
#
# > The names of one file follow from a few others, and memory has no room for the trees of all.
#
# So a file is read when something is asked about its module. What stays is its outline: what other files can
# name, without the bodies of functions, whose trees take about thirty times as much memory as the text.


@dataclass(frozen=True, slots=True)
class Written:
    """A source: its path in the project, the module that it is, its text or the file that holds it, and
    whether it is the `__init__` of a package.
    """

    path: str
    module: str
    text: str | Path
    package: bool = False


@dataclass(frozen=True, slots=True)
class File:
    """A source that was read: its lines, and its names."""

    path: str
    module: str
    package: bool
    lines: list[str]
    survey: Survey
    size: int


class ProjectFiles(Mapping[str, File]):
    """The files of a project by their modules; those that Python cannot read are not there.

    :param modules: the names of all modules, whether they can be read or not
    :param packages: the names of all that have modules below them
    :param tops: the first words of all names
    :param asked: the modules that something was asked about; whoever wants to know empties it first
    :param size: the length of the texts whose outlines are at hand, in characters
    """

    def __init__(self, written: Iterable[Written]) -> None:
        named: dict[str, list[Written]] = {}
        for each in written:
            named.setdefault(each.module, []).append(each)
        self.modules = frozenset(named)
        self.packages = frozenset(name[:end] for name in named for end in _ends(name))
        self.tops = frozenset(name.partition(".")[0] for name in named)
        self.asked: set[str] = set()
        # Of two files of one module nobody knows which one is imported.
        self.written = {module: files[0] for module, files in named.items() if len(files) == 1}
        self._outlines: dict[str, File | None] = {}
        self.size = 0

    def __getitem__(self, module: str) -> File:
        if module not in self._outlines:
            found = read(self.written[module])
            self._keep(module, outlined(found) if found else None)
        self.asked.add(module)
        outline = self._outlines[module]
        if outline is None:
            raise KeyError(module)
        return outline

    def __iter__(self) -> Iterator[str]:
        return (module for module in self.written if module in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @contextmanager
    def whole(self, module: str) -> Iterator[File | None]:
        """A file with all that is in it, for as long as it is needed; `None` if Python cannot read it."""
        found = read(self.written[module])
        yield found
        if module not in self._outlines:
            self._keep(module, outlined(found) if found else None)

    def _keep(self, module: str, outline: File | None) -> None:
        self._outlines[module] = outline
        self.size += outline.size if outline else 0


def read(each: Written) -> File | None:
    """Read a file; `None` if it is not valid Python."""
    try:
        text = each.text if isinstance(each.text, str) else read_source(each.text, each.path)[0]
        text = re.sub(r"\r\n?", "\n", text).removeprefix("\ufeff")
        with _undisturbed():
            found = survey(syntax.tree(text), each.module, each.package)
    except (SyntaxError, ValueError, RecursionError, MemoryError, SidelitError):
        return None
    return File(each.path, each.module, each.package, text.split("\n"), found, len(text))


def outlined(file: File) -> File:
    """Take from a file what no other file can name.

    Of a method it leaves what is needed to say what it assigns to `self`.
    """
    top = file.survey.top
    left = {
        binding.scope
        for scope in top.inner.values()
        for found in scope.attributes.values()
        for binding in found
    }
    for node, scope in tuple(top.inner.items()):
        around = [scope, *scope.around]
        if any(each.kind == "function" and each not in left for each in around):
            scope.bindings = {}
            del top.inner[node]
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            node.body = []
    if isinstance(top.node, ast.Module):
        top.node.body = []
    return replace(file, lines=[], survey=Survey(top))


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Make many objects without looking through all of them for some that are in nobody's use."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


# ## The modules of a project
#
# > What a module exports, followed through its imports to the place where it is defined.
#
# A meaning is a [binding](scopes.py#Binding) of the project, or the dotted name of a module or of something
# outside of the project. Where two answers are possible there is none.


Meaning: TypeAlias = "Binding | str"

_BUILT_IN = frozenset(name for name in dir(builtins) if not name.startswith("_"))


class Library:
    """All modules of a project, as one of its files sees them."""

    def __init__(self, files: ProjectFiles) -> None:
        self.files = files
        self._asked: set[tuple[str, str]] = set()
        self._members: dict[tuple[str, str], Meaning | None] = {}

    def follow(self, found: Binding) -> Meaning | None:
        """What a binding means: itself, unless it is an import."""
        if found.kind != "import":
            return found
        module, _, name = found.target.partition(":")
        return self.member(module, name) if name else self.module(module)

    def module(self, name: str) -> str | None:
        """The module of this name; `None` if it belongs to the project and is not among its files."""
        known = self.inside(name) or name.partition(".")[0] not in self.files.tops
        return name if name and known else None

    def member(self, module: str, name: str) -> Meaning | None:
        """What `name` means in a module, or below it."""
        key = (module, name)
        if key not in self._members:
            if key in self._asked:
                return self.module(f"{module}.{name}") if self.inside(f"{module}.{name}") else None
            self._asked.add(key)
            self._members[key] = self._member(module, name)
            self._asked.discard(key)
        return self._members[key]

    def inside(self, name: str) -> bool:
        """Whether this is a module or a package of the project."""
        return name in self.files or name in self.files.packages

    def look_up(self, scope: Scope, name: str, line: int) -> Meaning | None:
        """What a name means where it is read."""
        around, bindings = scopes.find(scope, name)
        if bindings:
            found = scopes.meant(bindings, line if around is scope.function or around is scope else 0)
            # A star import below may give the name another meaning.
            certain = around.parent or (found and not self._starred(around, name))
            return self.follow(found[0]) if found and certain else None
        if around.stars:
            return self._starred(around, name)
        return f"builtins.{name}" if name in _BUILT_IN else None

    def _member(self, module: str, name: str) -> Meaning | None:
        below = f"{module}.{name}"
        if module not in self.files:
            if self.inside(module):
                return below if self.inside(below) else None
            return below if module and module.partition(".")[0] not in self.files.tops else None
        top = self.files[module].survey.top
        bindings = top.bindings.get(name, ())
        if bindings:
            found = scopes.meant(bindings)
            return self.follow(found[0]) if found and not self._starred(top, name) else None
        return self._starred(top, name) or (below if self.inside(below) else None)

    def _starred(self, top: Scope, name: str) -> Meaning | None:
        """What `from … import *` gives for a name. Of a module from outside nobody knows what it exports."""
        known = [each for each in top.stars if each in self.files]
        if not top.stars or (name.startswith("_") and not any(self._exports(each, name) for each in known)):
            return None
        if len(known) < len(top.stars):
            return None
        found = [each for each in known if self._exports(each, name)]
        return self.member(found[0], name) if len(found) == 1 else None

    def _exports(self, module: str, name: str) -> bool:
        top = self.files[module].survey.top
        listed = _listed(top)
        if listed is not None:
            return name in listed
        if name.startswith("_") or name in top.bindings:
            return name in top.bindings and not name.startswith("_")
        # Two modules may take all names of each other.
        key = (module, f"*{name}")
        if key in self._asked:
            return False
        self._asked.add(key)
        found = self._starred(top, name) is not None
        self._asked.discard(key)
        return found


def _ends(name: str) -> Iterable[int]:
    return (place for place, letter in enumerate(name) if letter == ".")


def _listed(top: Scope) -> frozenset[str] | None:
    """The names in `__all__`, if they are written out."""
    said = top.bindings.get("__all__", ())
    if len(said) != 1:
        return None
    value = said[0].source.value
    if not isinstance(value, ast.List | ast.Tuple):
        return None
    return frozenset(str(each.value) for each in value.elts if isinstance(each, ast.Constant))


# ## Names of other distributions
#
# > The list of names that are documented elsewhere, and the address of each.


_MOST = 50_000_000  # bytes of a list, unpacked


def addresses(inventories: Sequence[Inventory], folder: Path, shown: str) -> Mapping[str, str]:
    """The address of each documented name; the first list that has a name decides.

    :param folder: where the lists lie
    :param shown: the folder as messages write it
    """
    found: dict[str, str] = {}
    for each in inventories:
        path = folder / each.file
        place = f"{shown}/{each.file}"
        try:
            assets.refuse_outside(path, folder, place)
            names = (
                _sphinx(assets.data(path))
                if each.file.endswith(".inv")
                else _of_inventory(assets.text(path), place)
            )
            for name, at in names:
                if not each.prefix or f"{name}.".startswith(f"{each.prefix}."):
                    found.setdefault(name, each.url.replace("{place}", at))
        except (OSError, UnicodeDecodeError, ValueError, zlib.error) as error:
            reason = (
                error.strerror if isinstance(error, OSError) and error.strerror else "it is no list of names"
            )
            raise SidelitError(f"cannot be read: {reason}", path=place) from None
    return found


def address(known: Mapping[str, str], name: str) -> str | None:
    """Where a dotted name is documented. What is built into Python is listed without `builtins`."""
    return known.get(name.removeprefix("builtins."))


def _of_inventory(text: str, shown: str) -> Iterator[tuple[str, str]]:
    """The lines of a list that a person wrote."""
    pattern = ""
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("# ")[0].split() if not line.startswith("#") else []
        if words[:1] == ["@"]:
            pattern = words[1] if len(words) == 2 else ""
        elif words and (not pattern or len(words) > 2 or not re.fullmatch(r"\w+(\.\w+)*", words[0])):
            what = f"{line.strip()!r} is no name of a list"
            hint = "write `@ PLACE` with {name} in it above the names, and one name on a line"
            raise SidelitError(what, path=shown, line=number, hint=hint)
        elif words:
            yield words[0], pattern.replace("{name}", words[-1])


def _sphinx(data: bytes) -> Iterator[tuple[str, str]]:
    """The Python names of an `objects.inv`, version 2: four lines of text, and the rest packed."""
    *head, packed = data.split(b"\n", 4)
    if len(head) < 4 or b"version 2" not in head[0] or b"zlib" not in head[3]:
        raise ValueError("not an inventory of Sphinx")
    text = zlib.decompressobj().decompress(packed, _MOST).decode()
    for found in re.finditer(r"(?m)^(\S+)\s+py:\S+\s+-?\d+\s+(\S+)\s", text + "\n"):
        name, place = found.groups()
        yield name, place[:-1] + name if place.endswith("$") else place
