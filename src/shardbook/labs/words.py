r"""# The sentences of a lab

> A lab looks its sentences up in a catalogue of the reader's language.

A check prints what is wrong, and a plot has labels. Both stand in the code in English:

```python
tell("{count} ranks failed.", count=2)
```

[`tell`](#tell) looks the English sentence up in a catalogue of
[`gettext`](https://docs.python.org/3/library/gettext.html), and fills the blanks
afterwards. So a translation may put the blanks in another order. A sentence without a
translation stays English.

`python tools/lab_words.py` collects the sentences from the code. A test fails as long
as a translation is missing, or belongs to a sentence that has changed.
"""

from __future__ import annotations

import gettext
from functools import cache
from typing import Any

from shardbook.labs.lab_language import CATALOGUES, language

__all__ = ["sentences", "tell"]


def tell(text: str, /, **values: Any) -> str:
    """A sentence in the language of the lab.

    :param text: the sentence in English, with blanks such as `{count}`; a literal, since
        the tool reads it from the code
    :param values: what stands in the blanks

    >>> tell("{count} ranks failed.", count=2)
    '2 ranks failed.'
    """
    return sentences(language()).gettext(text).format(**values)


@cache
def sentences(code: str) -> gettext.NullTranslations:
    """The catalogue of a language; for English one that changes nothing."""
    return gettext.translation("labs", CATALOGUES, languages=[code], fallback=True)
