"""Records that are kept for the next build come back as they were."""

from __future__ import annotations

import pickle

import pytest

from sidelit.cache.records import quick
from sidelit.catalog.sync import SectionUnits
from sidelit.names.links import Definition
from sidelit.site.search.places import SearchPlace
from sidelit.source.source import Imported, parse

RECORDS = [
    Definition("ring.py", "class", "Ring", 3),
    Imported("collections", 1),
    SectionUnits("Ring", ("It keeps.", "It drops."), "0a"),
    SectionUnits("Ring", ()),
    SearchPlace("Ring", "", 1, "it keeps", foreign=True),
    *parse('"""Words."""\n\nimport os\n\n\ndef f():\n    """More."""\n    return os\n', "a.py").sections,
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_comes_back_equal_and_as_a_call(record: object) -> None:
    assert pickle.loads(pickle.dumps(record)) == record
    kind, values = record.__reduce__()[:2]  # type: ignore[misc]
    assert kind is type(record)
    assert kind(*values) == record


def test_what_is_no_such_record_is_refused() -> None:
    with pytest.raises(TypeError):
        quick(int)
