"""# Annotations, calls and attributes

> What an annotation says and what a call returns tell which class a value has.
"""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Sequence

from sidelit.names import kinds
from sidelit.names.kinds import (
    HARMLESS,
    NOTHING,
    Above,
    Base,
    Class,
    Classes,
    Either,
    Function,
    Instance,
    Known,
    Module,
    Outside,
    decorators,
    either,
    own,
)
from sidelit.names.library import Library, Meaning
from sidelit.names.scopes import Binding, Scope

# ## What an annotation says
#
# > The class of the objects that an annotation allows, and of a container what it holds.


# What says something about the annotation in it, and nothing about the object.
_WRAPPERS = frozenset({"Annotated", "ClassVar", "Final", "InitVar", "Required", "NotRequired", "ReadOnly"})
_TYPING = ("typing", "typing_extensions", "dataclasses")


def kind(node: ast.expr | None, scope: Scope, objects: Objects, own: Known | None) -> Known | None:
    """What an object is that is annotated so; `own` is what `Self` means there."""
    if isinstance(node, ast.Constant):
        if node.value is None:
            return NOTHING
        return kind(_parsed(node.value), scope, objects, own) if isinstance(node.value, str) else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return either(kind(each, scope, objects, own) for each in (node.left, node.right))
    if isinstance(node, ast.Name | ast.Attribute):
        return _named(node, scope, objects, own)
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name | ast.Attribute):
        return _with_parts(node, node.value, scope, objects, own)
    return None


def _parsed(text: str) -> ast.expr | None:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _named(node: ast.Name | ast.Attribute, scope: Scope, objects: Objects, own: Known | None) -> Known | None:
    found = objects.meaning(node, scope)
    if isinstance(found, Binding):
        return Instance(found) if found.kind == "class" else _alias(found, objects)
    if found is None or objects.library.inside(found):
        return None
    module, _, word = found.rpartition(".")
    if module in _TYPING:
        return own if word == "Self" else _of_typing(word)
    return Instance(found)


def _of_typing(word: str) -> Known | None:
    return Instance(kinds.canonical(word)) if kinds.canonical(word) else None


def _alias(found: Binding, objects: Objects) -> Known | None:
    """A variable of a module that is assigned once may be another name for a type."""
    several = found.scope.bindings.get(found.name, ())
    if found.kind != "variable" or found.scope.kind != "module" or len(several) != 1:
        return None
    if found.source.path or found.source.how != "is":
        return None
    return kind(found.source.value, found.scope, objects, None)


def _with_parts(
    node: ast.Subscript, named: ast.Name | ast.Attribute, scope: Scope, objects: Objects, own: Known | None
) -> Known | None:
    found = objects.meaning(named, scope)
    if isinstance(found, Binding):
        return Instance(found) if found.kind == "class" else None
    module, _, word = (found or "").rpartition(".")
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if not parts and word not in ("tuple", "Tuple"):
        return None  # Of nothing, as `tuple[()]`, may be a tuple alone.
    if module in _TYPING and word in _WRAPPERS:
        return kind(parts[0], scope, objects, own)
    if module in _TYPING and word in ("Optional", "Union"):
        return either(kind(each, scope, objects, own) for each in parts)
    if word in ("type", "Type") and module in ("builtins", *_TYPING):
        said = kind(parts[0], scope, objects, own)
        return Class(said.what) if isinstance(said, Instance) else None
    if not found or objects.library.inside(found):
        return None
    name = kinds.canonical(word) if module in _TYPING else found
    if not name or word in ("Literal", "Callable"):
        return None
    held = [each for each in parts if not (isinstance(each, ast.Constant) and each.value is ...)]
    fixed = name == "builtins.tuple" and len(held) == len(parts)
    return Instance(name, tuple(kind(each, scope, objects, own) for each in held), fixed)


# ## What follows from a value
#
# > What an attribute of it means, what a call of it gives, and what is bound to it.


class Objects:
    """The objects of a project, as far as their classes are known."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.classes = Classes(self._body, self._base)
        self._bound: dict[Binding, Known | None] = {}
        self._open: set[Binding] = set()

    @abstractmethod
    def of(self, node: ast.expr | None, scope: Scope) -> Known | None:
        """What an expression is, read in a scope."""

    @abstractmethod
    def meaning(self, node: ast.Name | ast.Attribute, scope: Scope) -> Meaning | None:
        """What a name or an attribute means."""

    # ---- What follows from a value

    def attribute(self, of: Known | None, name: str) -> tuple[Meaning | None, Known | None]:
        """What a dot and a name after a value mean, and what that is."""
        if isinstance(of, Module):
            found: Meaning | None = self.library.member(of.name, name)
            return found, self.known(found)
        if isinstance(of, Outside):
            return (f"{of.name}.{name}", Outside(f"{of.name}.{name}")) if not of.receiver else (None, None)
        if isinstance(of, Either):
            found_all = [self.attribute(each, name) for each in of.kinds]
            meanings = {meaning for meaning, _ in found_all}
            return (
                (meanings.pop(), either(kind for _, kind in found_all))
                if len(meanings) == 1
                else (None, None)
            )
        if isinstance(of, Above):
            whole = of.receiver
            inside = whole.what if isinstance(whole, Instance | Class) else None
            found = self.classes.attribute(inside, name, of.what) if isinstance(inside, Binding) else None
            return found, self._bind(found, whole)
        if isinstance(of, Instance | Class):
            if isinstance(of.what, str):
                outside = f"{of.what}.{name}"
                return outside, Outside(outside, of if isinstance(of, Instance) else None)
            found = self.classes.attribute(of.what, name)
            return found, self._bind(found, of)
        return None, None

    def known(self, meaning: Meaning | None) -> Known | None:
        """What a meaning is."""
        if meaning is None:
            return None
        if isinstance(meaning, str):
            return Module(meaning) if self.library.inside(meaning) else Outside(meaning)
        if meaning.kind == "class":
            return Class(meaning)
        if meaning.kind == "function":
            return Function(meaning)
        bindings = meaning.scope.bindings.get(meaning.name, [meaning])
        return self._variable(bindings if meaning in bindings else [meaning])

    def result(self, called: Known | None) -> Known | None:
        """What a call gives."""
        if isinstance(called, Class):
            if isinstance(called.what, str):
                return Instance(called.what)
            makers = (self.classes.attribute(called.what, "__new__"), self._metaclass(called.what))
            return None if any(isinstance(each, Binding) for each in makers) else Instance(called.what)
        if isinstance(called, Function) and isinstance(called.what.node, ast.FunctionDef):
            return self._returned(called)
        return None

    def each(self, whole: Known | None) -> Known | None:
        """What a loop over a value gives."""
        if not isinstance(whole, Instance):
            return None
        if isinstance(whole.what, str):
            return kinds.each(whole)
        found = self.attribute(whole, "__iter__")[1]
        given = self.result(found)
        return self.each(given) if given != whole else self.result(self.attribute(whole, "__next__")[1])

    # ---- Bindings

    def _bind(self, found: Meaning | None, receiver: Known) -> Known | None:
        if isinstance(found, str):
            return Outside(found, receiver if isinstance(receiver, Instance) else None)
        if found is None or found.kind != "function":
            return self.known(found) if found is None or found.kind != "variable" else self._field(found)
        words = decorators(found)
        if words.keys() & {"property", "cached_property"} and isinstance(receiver, Instance):
            return self._returned(Function(found, receiver))
        return Function(found, None if "staticmethod" in words else receiver)

    def _field(self, found: Binding) -> Known | None:
        """What an attribute is: all that the class assigns to it must agree."""
        body = found.scope if found.scope.kind == "class" else found.scope.parent
        if body is None or found.annotation is not None:
            return self._value(found)
        several = [*body.bindings.get(found.name, ()), *body.attributes.get(found.name, ())]
        return self._variable(several or [found])

    def _variable(self, bindings: Sequence[Binding]) -> Known | None:
        """What a variable is that is bound in these places."""
        declared = [each for each in bindings if each.annotation is not None]
        if declared:
            said = self._value(declared[0])
            rest = [self._value(each) for each in bindings if each is not declared[0]]
            return said if all(each in (None, NOTHING, said) for each in rest) else None
        kinds = [self._value(each) for each in bindings]
        found = either(kinds) if kinds else None
        return None if isinstance(found, Either) else found

    def _value(self, found: Binding) -> Known | None:
        if found not in self._bound:
            if found in self._open:
                return None
            self._open.add(found)
            self._bound[found] = self._read(found)
            self._open.discard(found)
        return self._bound[found]

    def _read(self, found: Binding) -> Known | None:
        scope = found.scope
        if found.annotation is not None:
            # That of a parameter is read outside of its function.
            around = scope.parent if found.kind == "parameter" and scope.parent else scope
            if isinstance(found.node, ast.ExceptHandler):
                caught = self.of(found.annotation, scope)
                return self.result(caught) if isinstance(caught, Class) else _made(caught)
            said = kind(found.annotation, around, self, own(scope))
            # `Final` leaves it to the value.
            return said if said is not None or found.source.value is None else self._unpacked(found)
        if found.kind == "parameter":
            node = scope.node
            first = found.name == scope.receiver and scope.receiver
            return own(scope, node) if first else None
        return self._unpacked(found)

    def _unpacked(self, found: Binding) -> Known | None:
        source = found.source
        value = self.of(source.value, found.scope) if source.how != "lost" else None
        if source.how == "each":
            outer = found.scope.parent if found.scope.kind == "comprehension" else None
            value = self.each(self.of(source.value, outer) or value if outer else value)
        if source.how == "enter":
            value = self._entered(value)
        for place in source.path:
            value = kinds.place(value, place) if isinstance(value, Instance) else None
        return value

    def _entered(self, value: Known | None) -> Known | None:
        """What `with` gives: that of `__enter__`, or what a context manager made of a function yields."""
        if not isinstance(value, Instance):
            return None
        if value.what == kinds.MANAGER:
            return value.parts[0]
        return self.result(self.attribute(value, "__enter__")[1]) if isinstance(value.what, Binding) else None

    # ---- Functions and classes

    def _returned(self, called: Function) -> Known | None:
        node = called.what.node
        assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        words = decorators(called.what)
        if not words.keys() <= HARMLESS or node.returns is None:
            return None
        receiver = called.receiver.what if isinstance(called.receiver, Instance | Class) else None
        this = Instance(receiver) if receiver is not None else None
        said = kind(node.returns, called.what.scope, self, this)
        if "contextmanager" in words:
            return Instance(kinds.MANAGER, (self.each(said),))
        return said

    def _above(self, scope: Scope) -> Known | None:
        method = scope.function
        while method.parent and method.parent.kind != "class":
            method = method.parent.function
        receiver = own(method, method.node)
        if not isinstance(receiver, Instance | Class) or isinstance(receiver.what, str):
            return None
        return Above(receiver.what, receiver)

    def _body(self, what: Binding) -> Scope:
        return what.scope.top.inner[what.node]

    def _base(self, node: ast.expr, scope: Scope) -> Base:
        if not isinstance(node, ast.Name | ast.Attribute):
            return None
        found = self.meaning(node, scope)
        if isinstance(found, Binding) and found.kind == "class":
            return found
        return found if isinstance(found, str) and not self.library.inside(found) else None

    def _metaclass(self, what: Binding) -> Meaning | None:
        for each in self.classes.order(what):
            for keyword in (
                each.node.keywords
                if isinstance(each, Binding) and isinstance(each.node, ast.ClassDef)
                else ()
            ):
                if keyword.arg == "metaclass" and isinstance(keyword.value, ast.Name | ast.Attribute):
                    found = self._base(keyword.value, each.scope) if isinstance(each, Binding) else None
                    return self.classes.attribute(found, "__call__") if isinstance(found, Binding) else None
        return None


def _made(caught: Known | None) -> Known | None:
    return Instance(caught.name) if isinstance(caught, Outside) else None
