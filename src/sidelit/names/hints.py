"""# What an annotation says

> The class of the objects that an annotation allows, and of a container what it holds.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from sidelit.names import containers
from sidelit.names.kinds import NOTHING, Class, Instance, Known, either
from sidelit.names.scopes import Binding, Scope

if TYPE_CHECKING:
    from sidelit.names.objects import Objects

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
    return Instance(containers.canonical(word)) if containers.canonical(word) else None


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
    name = containers.canonical(word) if module in _TYPING else found
    if not name or word in ("Literal", "Callable"):
        return None
    held = [each for each in parts if not (isinstance(each, ast.Constant) and each.value is ...)]
    fixed = name == "builtins.tuple" and len(held) == len(parts)
    return Instance(name, tuple(kind(each, scope, objects, own) for each in held), fixed)
