r"""# Math

> Formulas are set when the site is built, so that a page needs no script to show them.

KaTeX turns TeX into HTML for the eye and MathML for a screen reader. It is JavaScript, and it runs here in
QuickJS, an engine small enough to live inside the process: no node, no subprocess, no network. The script
lies in the templates, one version together with its stylesheet and fonts.

A formula that KaTeX refuses stops the build and names the line it stands on. What it accepts is kept on disk
under a digest of everything that decides the result, so that the next build sets only what changed.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sidelit.cache.store import Store
from sidelit.errors import SidelitError
from sidelit.files.assets import templates_folder

# A formula takes about a millisecond; one that needs a second or these many bytes is a mistake or an attack.
_SECONDS = 1.0
_BYTES = 256 * 1024 * 1024

# Errors are caught on the side of JavaScript, where they still have their position. `trust` is asked for
# commands that reach beyond the formula (links, images, raw attributes): by default KaTeX would print their
# names in red and go on, which nobody notices before a reader does.
_DOOR = r"""
function press(request) {
  const {tex, options, marks} = JSON.parse(request);
  options.trust = ({command}) => {
    if (marks && command === "\\htmlData") return true;
    throw new Error(command + " is not allowed in a formula");
  };
  if (marks) options.strict = code => code === "htmlExtension" ? "ignore" : "error";
  try {
    return JSON.stringify({html: katex.renderToString(tex, options)});
  } catch (error) {
    const position = typeof error.position === "number" ? error.position : 0;
    return JSON.stringify({message: error.rawMessage || error.message, position});
  }
}
"""

_OPTIONS = {
    "throwOnError": True,
    "output": "htmlAndMathml",
    "strict": "error",
    "maxSize": 40,
    "maxExpand": 1000,
}

# What authors of TeX know and KaTeX does not.
_MACROS = {r"\mbox": r"\text{#1}"}

_HINTS = {
    "Undefined control sequence": "correct the name, or define it as a macro",
    "Unicode text character": r"put words into \text{…}",
    "Unrecognized Unicode character": "write it with a TeX command",
}


class Typesetter:
    """Sets formulas and remembers them, in memory and in a store.

    :param store: where earlier builds have put them; `None` keeps formulas in memory only.
    :param macros: TeX macros that every formula may use, as `{"\\R": "\\mathbb{R}"}`.
    """

    def __init__(self, *, store: Store | None = None, macros: Mapping[str, str] | None = None) -> None:
        self._store = store or Store(None)
        self._macros = dict(sorted({**_MACROS, **(macros or {})}.items()))
        self._known: dict[tuple[str, bool, bool], str] = {}

    def render(
        self, tex: str, *, display: bool = False, path: str | Path | None = None, line: int | None = None
    ) -> str:
        """Return `tex` as one HTML element, MathML included.

        :param display: as a line of its own rather than in the run of a sentence.
        :param path: the file the formula stands in, for the message.
        :param line: the line on which it starts.
        :raises SidelitError: KaTeX refuses it; the line is that of the fault inside the formula.
        """
        return self._set(tex, display, path, line)

    def drawn(self, tex: str, *, display: bool = False) -> str:
        r"""Return what is to be seen of a formula, without MathML; in this one `\htmlData` is allowed.

        It is for a formula that `render` has accepted, and in which the press itself has marked something.

        :raises SidelitError: KaTeX refuses it.
        """
        return self._set(tex, display, None, None, marks=True)

    def _set(
        self, tex: str, display: bool, path: str | Path | None, line: int | None, marks: bool = False
    ) -> str:
        key = (tex, display, marks)
        if key not in self._known:
            self._known[key] = self._kept(tex, display, path, line, marks)
        return self._known[key]

    def _kept(self, tex: str, display: bool, path: str | Path | None, line: int | None, marks: bool) -> str:
        options = {**_OPTIONS, "displayMode": display, "macros": self._macros}
        asked: dict[str, Any] = {"tex": tex.strip(), "options": options}
        if marks:
            asked |= {"options": {**options, "output": "html"}, "marks": True}
        request = json.dumps(asked, sort_keys=True)
        name = hashlib.sha256(f"{_script_digest()}\n{request}".encode()).hexdigest()
        if (kept := self._store.get(name)) is not None:
            return kept.decode()
        answer = _ask(request)
        if "html" not in answer:
            raise _refusal(tex, answer, path, line)
        html = _valid(str(answer["html"]))
        self._store.put(name, html.encode())
        return html


_NUMBERED = re.compile(r"(\\(?:begin|end)\{(?:align|alignat|equation|gather))\}")


def unnumbered(tex: str) -> str:
    """A formula without the numbers that KaTeX gives to its rows; those of `\\tag` stay."""
    return _NUMBERED.sub(r"\1*}", tex)


_TAG = re.compile(r"<(/?)(\w+)([^>]*)>")
_LEAVES = {"mi", "mo", "mn", "mtext"}


def _valid(html: str) -> str:
    """KaTeX's MathML as HTML allows it.

    `\\underset` and its kin put elements into an identifier or operator, which may hold nothing but text: it
    becomes a row. `\\tag` writes a width on a cell, which has none.
    """
    end = html.find("</math>")
    parents: list[re.Match[str]] = []
    rows: set[int] = set()
    for match in _TAG.finditer(html, 0, max(end, 0)):
        if match[1]:
            opening = parents.pop()
            if opening.start() in rows:
                rows.add(match.start())
        elif not match[3].endswith("/"):
            if parents and parents[-1][2] in _LEAVES:
                rows.add(parents[-1].start())
            parents.append(match)

    def mend(match: re.Match[str]) -> str:
        if match.start() in rows:
            return f"<{match[1]}mrow>"
        return re.sub(r' width="[^"]*"', "", match[0]) if match[2] == "mtd" else match[0]

    return _TAG.sub(mend, html[:end]) + html[end:] if end >= 0 else html


def _refusal(tex: str, answer: Mapping[str, Any], path: str | Path | None, line: int | None) -> SidelitError:
    message = " ".join(str(answer["message"]).split())
    message = re.sub(r"^LaTeX-incompatible input .*? 'error': | \[\w+\]$", "", message)
    hint = next((hint for start, hint in _HINTS.items() if message.startswith(start)), None)
    # KaTeX counts from the first character that is not blank, in UTF-16; a line break is one unit in both.
    blank = len(tex) - len(tex.lstrip())
    units = tex.encode("utf-16-le", "surrogatepass")[: 2 * (blank + int(answer["position"]))]
    shown = " ".join(tex.split())
    shown = shown if len(shown) <= 60 else f"{shown[:59]}…"
    return SidelitError(
        f"KaTeX refuses the formula `{shown}`: {message}",
        path=path,
        line=None if line is None else line + units.decode("utf-16-le", "ignore").count("\n"),
        hint=hint,
    )


# One engine serves the process. QuickJS may be entered by one thread only, ever: `quickjs.Function` keeps
# such a thread; the lock guards the engine's making and its replacement.
_lock = threading.Lock()
_engine: Any = None


def _ask(request: str) -> dict[str, Any]:
    global _engine
    # The import of quickjs starts a thread, and a process that has two can share no work.
    import quickjs

    with _lock:
        if _engine is None:
            _engine = _start()
        try:
            answer = _engine(request, run_gc=False)
        except quickjs.JSException as error:
            # Out of time or memory in the middle of something: what that engine holds is not to be trusted.
            _engine = None
            return {"message": f"it takes too much time or memory ({error})", "position": 0}
    result: dict[str, Any] = json.loads(answer)
    return result


def _start() -> Any:
    import quickjs

    engine = quickjs.Function("press", _script() + _DOOR)
    engine.set_time_limit(_SECONDS)
    engine.set_memory_limit(_BYTES)
    return engine


@functools.cache
def _script() -> str:
    return (templates_folder() / "katex" / "katex.min.js").read_text(encoding="utf-8")


@functools.cache
def _script_digest() -> str:
    """Stands for the version of KaTeX and of this module, without starting the engine to ask."""
    return hashlib.sha256(_script().encode() + Path(__file__).read_bytes()).hexdigest()
