"""# The modules of a project

> What a module exports, followed through its imports to the place where it is defined.

A meaning is a [binding](scopes.py#Binding) of the project, or the dotted name of a module or of something
outside of the project. Where two answers are possible there is none.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable
from typing import TypeAlias

from sidelit.names import scopes
from sidelit.names.scopes import Binding, Scope
from sidelit.names.shelf import Shelf

Meaning: TypeAlias = "Binding | str"

_BUILT_IN = frozenset(name for name in dir(builtins) if not name.startswith("_"))


class Library:
    """All modules of a project."""

    def __init__(self, shelf: Shelf) -> None:
        self.files = shelf
        self.packages = {name[:end] for name in shelf.modules for end in _ends(name)}
        self.tops = {name.partition(".")[0] for name in shelf.modules}
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
        known = name in self.files or name in self.packages or name.partition(".")[0] not in self.tops
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
        return name in self.files or name in self.packages

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
            return below if module and module.partition(".")[0] not in self.tops else None
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
