r"""# The language of a lab

> A lab says its sentences in the language of the notebook, whose code is the same in each.

The notebook of a lab exists in English, in Japanese and in Chinese. Only its text is
translated. The code cells are the same bytes, so no cell can say which language it
belongs to. The notebooks lie in a folder for each language, and the name of that folder
decides:

```
notebooks/en/01_where_memory_goes.ipynb
notebooks/ja/01_where_memory_goes.ipynb
notebooks/zh/01_where_memory_goes.ipynb
```

Four places are read, in this order: the environment variable `SHARDBOOK_LANG`, the
notebook's path, a mark that [Colab](https://colab.research.google.com) hands over with
the notebook, and the working folder. The first place that names a known language wins.
In a language that a lab does not speak, it speaks English.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

__all__ = ["CATALOGUES", "known", "language", "spoken"]

# A folder here holds the sentences in its language. The sentences in the code are
# English.
CATALOGUES = Path(__file__).parent / "locale"


def language() -> str:
    """The language of this lab: `"en"`, `"ja"`, `"zh"`, or another one with a catalogue.

    >>> os.environ["SHARDBOOK_LANG"] = "ja_JP.UTF-8"
    >>> language()
    'ja'
    >>> os.environ["SHARDBOOK_LANG"] = "fr"
    >>> language()
    'en'
    >>> del os.environ["SHARDBOOK_LANG"]
    """
    # Somebody who sets the variable wants this language, or the nearest that exists.
    if wanted := os.environ.get("SHARDBOOK_LANG"):
        return known(wanted) or "en"
    named = (known(name) for name in folders())
    return next((found for found in named if found), "en")


def known(name: str) -> str:
    """The language that a name means, or an empty string.

    >>> known("zh_CN"), known("JA"), known("english"), known("../ja")
    ('zh', 'ja', '', '')
    """
    code = name.lower().replace("-", "_").partition("_")[0]
    return code if code in spoken() else ""


def spoken() -> list[str]:
    """The languages that a lab speaks.

    >>> spoken()
    ['en', 'ja', 'zh']
    """
    catalogues = CATALOGUES.glob("*/LC_MESSAGES/labs.mo")
    return ["en", *sorted(each.parents[1].name for each in catalogues)]


def folders() -> Iterator[str]:
    """The names that may be languages, the best witness first."""
    variables = notebook_variables()
    # Jupyter tells a kernel the path of its notebook in the environment, and VS Code in
    # a variable of the notebook.
    for path in (
        variables.get("__vsc_ipynb_file__"),
        os.environ.get("JPY_SESSION_NAME"),
    ):
        if path:
            # A path from Windows may be read on Linux, such as in WSL.
            yield PurePosixPath(str(path).replace("\\", "/")).parent.name
    yield mark_of_colab()
    yield Path.cwd().name


def notebook_variables() -> Mapping[str, Any]:
    """The variables of the notebook, none outside of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return {} if shell is None else shell.user_ns


# sidelit: depth Colab copies a notebook without its folder.


def mark_of_colab() -> str:
    """The language in the notebook's own metadata, `{"lang": "ja"}`.

    In Colab all notebooks run in the same folder, under no name. But the page in the
    browser hands the whole notebook to a kernel that requests it.
    """
    if "google.colab" not in sys.modules:
        return ""
    # The function is not public. Without it the lab goes on, in English.
    with suppress(Exception):
        from google.colab import (  # type: ignore[import-not-found]
            _message,
        )

        answer = _message.blocking_request("get_ipynb", request="", timeout_sec=5)
        return str(answer["ipynb"]["metadata"]["lang"])
    return ""
