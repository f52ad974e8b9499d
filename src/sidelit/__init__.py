r"""# The press

> Sidelit reads literate Python and prints it: words on the left, code on the right, in several languages.

```python
sidelit.build()                                  # the site of this project, as `sidelit build` does
sidelit.print_files(["module.py"], "printed")    # any Python files, as `sidelit print` does
```

The package is a pipeline of folders, and text flows through them in this order. Each stage takes frozen
records and returns frozen records, none looks back, and none runs the code it prints.

| folder | takes | gives |
|---|---|---|
| `config` | `sidelit.toml` and what it names | languages, parts, chapters, pages, the glossary |
| `source` | a Python file | sections: commentary and the lines it is about |
| `ids` | sections | names that last from release to release |
| `text` | commentary, formulas, code | tokens, one for each sentence of a translator, and safe HTML |
| `catalog` | tokens | the same tokens in another language |
| `names` | sources | the definition that each name in code means |
| `symbols` | formulas and code | what each letter stands for, and where else it stands |
| `figures`, `labs` | recordings, notebooks | drawings, what a reader can move, cells and outputs |
| `site` | all of these | pages, and every file of a site |
| `export` | a site | one PDF, slides, an archive, notebooks, older versions |
| `lint` | sources and catalogues | what is wrong with them |

`files` reads and writes, `cache` holds the build graph and what earlier builds have made, `theme` finds
templates and assets. The doors are `api`, `cli`, `serve` and `mkdocs_plugin`. Start with `site/site.py`,
which is the pipeline in one place, or with `python -m sidelit --help`.

Where something new goes:

- **A directive** between `:::`: a kind in `site/directives/` and a line in its `registry`, and a template in
  `templates/directives/`.
- **A language**: its words in `templates/ui/`, its style in `lint/language.py`, and its code in the table of
  `lint/lint.py`.
- **A lint rule** for a sentence: a function in `lint/unit.py` or `lint/language.py`, and a row of `RULES` in
  `lint/lint.py`. For commentary: a function and a row in `lint/sections.py`, and how strict it usually is in
  `config/config.py`.
- **A kind of page**: a line in `site/page_kinds.py` and a template of its name. If it shows data, a module
  beside `site/commands.py` has the class of its table. If it is a kind of lesson, `config/prose.py` reads its
  entries, and `load` and `courses` in `config/config.py` put them in their place.
- **A dialect of docstrings**: its name in `config/chapters.py`, its reader in `text/docstrings/`.
- **A command**: a function in `cli/commands.py`, its options in `cli/options.py`.
- **Something that pages read**: the head of `cache/graph.py` says how the next build hears of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sidelit.api import Printed, build, print_files
    from sidelit.errors import SidelitError

__all__ = ["Printed", "SidelitError", "build", "print_files"]


def __getattr__(name: str) -> Any:
    """The public names. Who imports one module of the press does not wait for all."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sidelit import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return __all__
