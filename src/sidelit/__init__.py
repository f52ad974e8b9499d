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

Where something new goes, `CONTRIBUTING.md` says under “Extend the press”.
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
