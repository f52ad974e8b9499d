"""# What others can know of a source

> A source is read once; what other files see of it has a digest of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from sidelit.cache import store
from sidelit.cache.graph import Graph
from sidelit.source import source
from sidelit.source.decoding import read_source
from sidelit.source.source import Document

# ## What other files can know of a source
#
# > Two sources of the same code look the same to all others, whatever stands between its lines.
#
# A name of another file is followed through the imports of that file. So what a name means follows from its
# own source, and from the code of all sources that its imports reach.


# Anything that looks like an import counts, in a text as well: one too many does no harm. No name of a module
# is longer than this.
_FROM = re.compile(r"(?=\bfrom\b([\w.\s\\]{0,400}?)\bimport\b)")
_IMPORT = re.compile(r"\bimport\b((?:[\w., \t]|\\\r?\n){0,400})")
_BLANK = re.compile(r"[\s\\]+")


@dataclass(frozen=True, slots=True)
class Surface:
    """What others can know of a source.

    :param code: stands for its code.
    :param imports: what it may import, as it says it, with dots before a name that is relative.
    """

    code: str = ""
    imports: tuple[str, ...] = ()


def surface(document: Document) -> Surface:
    """What others can know of a source."""
    # A mark may hide a part of a section, whose code is not among the lines that are shown.
    whole = document.text if "sidelit: hide" in document.text else ""
    # Empty lines come and go with the words between them.
    lines = (line for section in document.sections for _, line in section.code if line.strip())
    code = store.digest(whole, list(lines))
    return Surface(code, tuple(dict.fromkeys(_imports(document.text))))


def of_text(text: str) -> Surface:
    """The same of a file whose sections nobody asks for: whatever changes in it, its code may have."""
    return Surface(store.digest(text), tuple(dict.fromkeys(_imports(text))))


def _imports(text: str) -> Iterator[str]:
    yield from (_BLANK.sub("", found[1]) for found in _FROM.finditer(text))
    for found in _IMPORT.finditer(text):
        for each in found[1].replace("\\", " ").split(","):
            # `import a.b` binds `a`, and with it all that is below.
            if name := each.split(" as ")[0].strip().partition(".")[0]:
                yield name


@dataclass(frozen=True, slots=True)
class Module:
    """A module of a project, and what others can know of it."""

    name: str
    package: bool
    surface: Surface


def reached(modules: Mapping[str, Module]) -> dict[str, str]:
    """Stands, for each module, for the code of all modules that its imports reach, and theirs."""
    names = sorted(modules)
    place = {name: 1 << number for number, name in enumerate(names)}
    # With a package comes what is below it: `a.*` stands for that.
    steps: dict[str, set[str]] = {}
    for name in names:
        for prefix in _prefixes(name):
            steps.setdefault(f"{prefix}.*", set()).add(name)
    for name, module in modules.items():
        steps[name] = {step for said in module.surface.imports for step in _steps(module, said)} & (
            steps.keys() | set(names)
        )
    reach = {node: place.get(node, 0) for node in (*names, *steps)}
    changed = True
    while changed:
        changed = False
        for node, others in steps.items():
            found = reach[node]
            for other in others:
                found |= reach[other]
            changed, reach[node] = changed or found != reach[node], found
    stands = {found: _digest(found, names, modules) for found in {reach[name] for name in names}}
    return {name: stands[reach[name]] for name in names}


def _digest(found: int, names: Sequence[str], modules: Mapping[str, Module]) -> str:
    inside = (name for number, name in enumerate(names) if found >> number & 1)
    return store.digest([(name, modules[name].surface.code) for name in inside])


def _steps(module: Module, said: str) -> Iterator[str]:
    """The modules that an import leads to: the one it names, those around it, and what is below it."""
    bare = said.lstrip(".")
    dots = len(said) - len(bare)
    around = module.name.split(".")
    around = around[: len(around) - dots + module.package] if dots else []
    name = ".".join([*around, bare] if bare else around)
    yield from _prefixes(name)
    yield f"{name}.*"


def _prefixes(name: str) -> Iterator[str]:
    """`a`, `a.b` and `a.b.c` for `a.b.c`."""
    yield from accumulate(name.split("."), "{}.{}".format)


# ## Sources that an earlier build has read
#
# > A source with the same text under the same name has the same sections.


def read(path: Path, shown: str, graph: Graph | None) -> source.Document:
    """Read a Python file, as `source.read` does."""
    if graph is None:
        return source.read(path, shown=shown)
    text, encoding = read_source(path, shown)
    key = store.digest(text, shown, encoding)
    return graph.of("documents", key, lambda: source.parse(text, shown, encoding))
