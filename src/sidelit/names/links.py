"""# The links of a file

> Each name in code leads to its definition; what a dot follows is worked out as a checker of types does.
"""

from __future__ import annotations

import ast
import gc
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from sidelit.cache.records import quick
from sidelit.names import kinds, scopes
from sidelit.names.kinds import NOTHING, Class, Function, Instance, Known, Module, Outside, either
from sidelit.names.library import File, Library, Meaning, ProjectFiles, Written
from sidelit.names.objects import Objects
from sidelit.names.scopes import Binding, Scope, absolute, place
from sidelit.names.survey import Import

# ## What an expression is
#
# > A value is followed from its annotation, its assignment or the class that is called, as far as that is
# > certain.


_DEEPEST = 40


class Values(Objects):
    """The values of a project."""

    def __init__(self, library: Library) -> None:
        super().__init__(library)
        self._depth = 0

    # ---- Expressions

    def of(self, node: ast.expr | None, scope: Scope) -> Known | None:
        """What an expression is, read in a scope."""
        ask = _ASKED.get(type(node))
        if ask is None or self._depth > _DEEPEST:
            return None
        self._depth += 1
        try:
            return ask(self, node, scope)
        finally:
            self._depth -= 1

    def meaning(self, node: ast.Name | ast.Attribute, scope: Scope) -> Meaning | None:
        """What a name or an attribute means."""
        if isinstance(node, ast.Name):
            return self.library.look_up(scope, node.id, node.lineno)
        return self.attribute(self.of(node.value, scope), node.attr)[0]

    def name(self, node: ast.Name, scope: Scope) -> Known | None:
        if node.id in scope.function.narrowed:
            return None
        around, bindings = scopes.find(scope, node.id)
        if bindings and all(each.kind in ("variable", "parameter") for each in bindings):
            if around.stars and self.library.look_up(scope, node.id, node.lineno) is None:
                return None
            line = node.lineno if around is scope.function or around is scope else 0
            return self._variable(scopes.meant(bindings, line))
        return self.known(self.library.look_up(scope, node.id, node.lineno))

    def dotted(self, node: ast.Attribute, scope: Scope) -> Known | None:
        if scope.function.narrowed and ast.unparse(node) in scope.function.narrowed:
            return None
        return self.attribute(self.of(node.value, scope), node.attr)[1]

    def below(self, module: str, name: str) -> Meaning | None:
        """What a dotted name means in a module; the module itself, if it is empty."""
        meaning, known = module, Module(module)  # type: tuple[Meaning | None, Known | None]
        for part in name.split(".") if name else ():
            before = known
            meaning, known = self.attribute(before, part)
            if meaning is None and (several := self._bindings(before, part)):
                meaning, known = several[-1], self.known(several[-1])
        return meaning

    def _bindings(self, whole: Known | None, name: str) -> Sequence[Binding]:
        """All definitions of one name, such as the overloads of a function; any of them is what is meant."""
        if isinstance(whole, Module) and whole.name in self.library.files:
            scope = self.library.files[whole.name].survey.top
        elif isinstance(whole, Class) and isinstance(whole.what, Binding):
            scope = self._body(whole.what)
        else:
            return ()
        several = [*scope.bindings.get(name, ()), *scope.attributes.get(name, ())]
        return [each for each in several if each.kind in ("class", "function")] or several[:1]

    def call(self, node: ast.Call, scope: Scope) -> Known | None:
        if isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args:
            return self._above(scope)
        called = self.of(node.func, scope)
        if isinstance(called, Outside):
            given = [self.of(each, scope) for each in node.args]
            return kinds.result(called, given, node, lambda each: self.each(each))
        return self.result(called)

    def subscript(self, node: ast.Subscript, scope: Scope) -> Known | None:
        whole = self.of(node.value, scope)
        if isinstance(whole, Instance) and isinstance(whole.what, str):
            return kinds.item(whole, node.slice)
        return None

    def constant(self, node: ast.Constant, scope: Scope) -> Known | None:
        return NOTHING if node.value is None else Instance(f"builtins.{type(node.value).__name__}")

    def text(self, node: ast.expr, scope: Scope) -> Known | None:
        return Instance("builtins.str")

    def display(self, node: ast.List | ast.Set, scope: Scope) -> Known | None:
        parts = {self.of(each, scope) for each in node.elts}
        return Instance(f"builtins.{_DISPLAYS[type(node)]}", (parts.pop() if len(parts) == 1 else None,))

    def row(self, node: ast.Tuple, scope: Scope) -> Known | None:
        if any(isinstance(each, ast.Starred) for each in node.elts):
            return Instance("builtins.tuple", (None,))
        return Instance("builtins.tuple", tuple(self.of(each, scope) for each in node.elts), fixed=True)

    def table(self, node: ast.Dict, scope: Scope) -> Known | None:
        sides = []
        for side in (node.keys, node.values):
            parts = {self.of(each, scope) for each in side}
            sides.append(parts.pop() if len(parts) == 1 else None)
        return Instance("builtins.dict", tuple(sides))

    def made(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp, scope: Scope) -> Known | None:
        return Instance(f"builtins.{_DISPLAYS[type(node)]}", (self.of(node.elt, scope.top.inner[node]),))

    def made_table(self, node: ast.DictComp, scope: Scope) -> Known | None:
        inner = scope.top.inner[node]
        return Instance("builtins.dict", (self.of(node.key, inner), self.of(node.value, inner)))

    def choice(self, node: ast.IfExp, scope: Scope) -> Known | None:
        return either((self.of(node.body, scope), self.of(node.orelse, scope)))

    def first_true(self, node: ast.BoolOp, scope: Scope) -> Known | None:
        return either(self.of(each, scope) for each in node.values) if isinstance(node.op, ast.Or) else None

    def assigned(self, node: ast.NamedExpr, scope: Scope) -> Known | None:
        return self.of(node.value, scope)

    def awaited(self, node: ast.Await, scope: Scope) -> Known | None:
        called = self.of(node.value.func, scope) if isinstance(node.value, ast.Call) else None
        if isinstance(called, Function) and isinstance(called.what.node, ast.AsyncFunctionDef):
            return self._returned(called)
        return None


_DISPLAYS: dict[type[ast.AST], str] = {
    ast.List: "list",
    ast.Set: "set",
    ast.ListComp: "list",
    ast.SetComp: "set",
    ast.GeneratorExp: "generator",
}

_ASKED: dict[type, Callable[..., Known | None]] = {
    ast.Name: Values.name,
    ast.Attribute: Values.dotted,
    ast.Call: Values.call,
    ast.Subscript: Values.subscript,
    ast.Constant: Values.constant,
    ast.JoinedStr: Values.text,
    ast.List: Values.display,
    ast.Set: Values.display,
    ast.Tuple: Values.row,
    ast.Dict: Values.table,
    ast.ListComp: Values.made,
    ast.SetComp: Values.made,
    ast.GeneratorExp: Values.made,
    ast.DictComp: Values.made_table,
    ast.IfExp: Values.choice,
    ast.BoolOp: Values.first_true,
    ast.NamedExpr: Values.assigned,
    ast.Await: Values.awaited,
}


# ## The links of a file
#
# > Each identifier that means one thing for certain, with its place and what it means.
#
# The name that a definition gives is no link, and neither is what is bound on the line where it is used, nor
# `self`: such a link would lead to where the reader is looking.


@quick
@dataclass(frozen=True, slots=True)
class Definition:
    """Where a name is defined. Its line is not part of it: words above it move it, and it stays what it is.

    :param kind: `class`, `function`, `variable`, `parameter`, or `module`.
    :param qualname: the dotted name in its module; empty for the whole file.
    :param number: which of the bindings of the name in the file it is.
    """

    path: str
    kind: str
    qualname: str
    number: int = 0

    def line(self, bound: Lines) -> int:
        """The line on which the name is bound, 0 for the whole file."""
        return bound[self.qualname.rpartition(".")[2]][self.number] if self.qualname else 0


@quick
@dataclass(frozen=True, slots=True)
class Link:
    """An identifier: its column in its line, counted in characters, its text, and what it means: a definition
    of the project, or a dotted name from outside.
    """

    start: int
    text: str
    to: Definition | str


Links = Mapping[int, tuple[Link, ...]]
# The lines on which each name of a file is bound, in the order of the numbers of its bindings.
Lines = Mapping[str, tuple[int, ...]]
# A name that the words of a file say, and the definition that they are about; empty for the whole file.
Said = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Found:
    """What was found in a file: its links, by line, the lines on which it binds each name, the modules whose
    code decides what its names mean, and what the names in its words mean.
    """

    links: Links = field(default_factory=dict)
    lines: Lines = field(default_factory=dict)
    asked: frozenset[str] = frozenset()
    said: Mapping[Said, Definition | str] = field(default_factory=dict)


# How much text stays outlined before all of it is put away, in characters; it takes twice as many bytes.
# A project of which less is held than a file asks for is read again for nearly each of its files.
MOST = 16_000_000


class Names:
    """The names of a project.

    A file that Python cannot read has none. What was read is put away at the end of `with`.

    :param most: the length of the texts that may be outlined before the next file is asked for
    """

    def __init__(self, written: Iterable[Written], most: int = MOST) -> None:
        self._written = tuple(written)
        self._most = most
        self._begin()
        self.paths = {each.module: each.path for each in self.files.written.values()}
        self._modules = {path: module for module, path in self.paths.items()}

    def _begin(self) -> None:
        self.files = ProjectFiles(self._written)
        self._ask()

    def _ask(self) -> None:
        """Forget what was found out for another file, and whom it was asked of."""
        self.files.asked.clear()
        self.library = Library(self.files)
        self.values = Values(self.library)

    def __enter__(self) -> Names:
        return self

    def __exit__(self, *raised: object) -> None:
        self._put_away()

    def _put_away(self) -> None:
        # Scopes know each other, so they are garbage that only the collector finds.
        if self.files.size:
            self._begin()
            gc.collect()

    def links(self, path: str) -> Links:
        """The links of a file, by line."""
        return self.of(path).links

    def of(self, path: str, said: Collection[Said] = ()) -> Found:
        """The links of a file, and what others need to find the line of a name of it.

        :param said: the names in its words.
        """
        if self.files.size > self._most:
            self._put_away()
        if path not in self._modules:
            return Found()
        self._ask()
        found: dict[int, dict[int, Link]] = {}
        with self.files.whole(self._modules[path]) as file:
            if file is None:
                return Found()
            for line, link in self._all(file):
                found.setdefault(line, {})[link.start] = link
        # Now the outline of the file itself is at hand.
        named = {each: to for each in said if (to := self._named(file, *each))}
        links = {line: tuple(row[start] for start in sorted(row)) for line, row in sorted(found.items())}
        return Found(links, file.survey.lines, frozenset(self.files.asked), named)

    def _named(self, file: File, name: str, around: str) -> Definition | str | None:
        """What words mean by a name: a full one, or one in the definition that they are about, in one around
        it, in the module or in its packages.

        One word, and what a dot begins, is looked for nearby first. For any other name that comes last.
        """
        bare, packages = name.lstrip("."), [*_inwards(file.module.rpartition(".")[0])][::-1]
        words = bare.split(".")
        whole = [(".".join(words[:end]), ".".join(words[end:])) for end in range(1, len(words) + 1)]
        near = [(file.module, f"{each}.{bare}") for each in _inwards(around)][::-1]
        near += [(module, bare) for module in (file.module, *packages)]
        for module, inside in (*near, *whole) if name != bare or len(words) == 1 else (*whole, *near):
            try:
                to = self._target(self.values.below(module, inside)) if self.library.inside(module) else None
            except RecursionError:
                continue
            # A function beside the module is more likely meant than the module.
            beside = module in packages and inside == bare
            if to and not (beside and isinstance(to, Definition) and to.kind == "module"):
                return to
        return bare if name == bare and words[0] not in self.files.tops else None

    def _all(self, file: File) -> Iterator[tuple[int, Link]]:
        for node, scope in file.survey.uses:
            yield from self._used(file, node, scope)
        for each, scope in file.survey.imports:
            yield from self._imported(file, each, scope)

    def _used(self, file: File, node: ast.Name | ast.Attribute, scope: Scope) -> Iterator[tuple[int, Link]]:
        try:
            meaning = self.values.meaning(node, scope)
        except RecursionError:
            return
        if isinstance(node, ast.Name):
            yield from self._link(file, meaning, node.lineno, node.col_offset, node.id)
        else:
            yield from self._link(file, meaning, *place(node), node.attr)

    def _imported(self, file: File, node: Import, scope: Scope) -> Iterator[tuple[int, Link]]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from self._module(file, alias.name, alias.lineno, alias.col_offset, alias.name)
            return
        package = file.module if file.package else file.module.rpartition(".")[0]
        origin = absolute(node, package)
        line = file.lines[node.lineno - 1]
        said = re.compile(r"from\s+(\.*)\s*").match(line, _characters(line, node.col_offset))
        if said and node.module:
            column = len(line[: said.end()].encode())
            yield from self._module(file, origin, node.lineno, column, node.module)
        for alias in node.names:
            if alias.name != "*":
                meaning = self.library.member(origin, alias.name) if origin else None
                yield from self._link(file, meaning, alias.lineno, alias.col_offset, alias.name)

    def _module(self, file: File, name: str, line: int, column: int, text: str) -> Iterator[tuple[int, Link]]:
        """Link each part of a dotted name of a module, of which `text` is written."""
        above = name[: len(name) - len(text)]
        for part in re.finditer(r"[^.]+", text):
            meaning = self.library.module(above + text[: part.end()])
            before = len(text[: part.start()].encode())
            yield from self._link(file, meaning, line, column + before, part[0])

    def _link(
        self, file: File, meaning: Meaning | None, line: int, column: int, text: str
    ) -> Iterator[tuple[int, Link]]:
        to = self._target(meaning)
        if to is None:
            return
        if isinstance(meaning, Binding) and (meaning.scope.module, meaning.line) == (file.module, line):
            return
        row = file.lines[line - 1]
        start = _characters(row, column)
        # Some versions of Python are mistaken about places inside of f-strings.
        if row[start : start + len(text)] == text:
            yield line, Link(start, text, to)

    def _target(self, meaning: Meaning | None) -> Definition | str | None:
        if isinstance(meaning, str):
            if meaning in self.files:
                return Definition(self.paths[meaning], "module", "")
            return None if self.library.inside(meaning) else meaning
        if meaning is None or meaning.kind == "import" or _is_receiver(meaning):
            return None
        return Definition(self.paths[meaning.scope.module], meaning.kind, meaning.qualname, meaning.number)


def _inwards(name: str) -> Iterable[str]:
    """`a`, `a.b`, `a.b.c`."""
    return accumulate(name.split("."), "{}.{}".format) if name else ()


def _is_receiver(meaning: Binding) -> bool:
    return meaning.kind == "parameter" and meaning.name == meaning.scope.receiver


def _characters(line: str, column: int) -> int:
    """A column in characters from one in bytes."""
    return column if line.isascii() else len(line.encode()[:column].decode(errors="ignore"))
