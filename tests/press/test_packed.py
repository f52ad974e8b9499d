"""What takes little room is what it was put in for: a set of ids, a record, the places of a term."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from sidelit.cache import store
from sidelit.cache.records import UNPACKED, Ids, Packed
from sidelit.site.search.places import WORDS, SearchPlace
from sidelit.site.search.postings import STEPS, Lists, postings
from sidelit.site.search.tokenizer import Tokenizer

NAMES = st.lists(st.text(max_size=4), max_size=30)
WORDS_OF_PAGES = st.lists(
    st.lists(st.lists(st.sampled_from(["ring", "rank", "勾配", "it"]), max_size=6), max_size=4),
    min_size=1,
    max_size=8,
)


@given(NAMES, NAMES)
def test_ids_are_a_set(names: list[str], asked: list[str]) -> None:
    made, plain = Ids(names), frozenset(names)
    assert set(made) == plain
    assert [name in made for name in asked] == [name in plain for name in asked]
    assert list(made) == sorted(plain)
    assert len(made) == len(plain)
    assert pickle.loads(pickle.dumps(made)) == plain
    assert hash(made) == hash(copy.copy(made))
    assert store.digest(made) == store.digest(plain)


def test_what_is_no_name_is_no_id() -> None:
    odd: list[Any] = [1, None]
    assert not any(each in Ids(["1"]) for each in odd)


def test_records_come_back_equal_however_many_there_are() -> None:
    packed = Packed[list[int]]()
    for number in range(UNPACKED + 10):
        packed.put(str(number), [number])
    assert dict(packed) == {str(number): [number] for number in range(UNPACKED + 10)}
    assert packed["3"] is packed["3"]
    assert "x" not in packed
    with pytest.raises(KeyError):
        packed["x"]


CUT = Tokenizer()


@given(WORDS_OF_PAGES)
def test_the_places_of_a_term_are_those_that_say_it(pages: list[list[list[str]]]) -> None:
    made = [
        [SearchPlace(f"s{at}", "", WORDS, " ".join(words)) for at, words in enumerate(inside)]
        for inside in pages
    ]
    lists, together = Lists(), Lists()
    for inside in made:
        lists.add(postings(inside, CUT), len(inside))
    # A stretch of pages counts as one page.
    for start in range(0, len(made), 2):
        stretch = Lists()
        for inside in made[start : start + 2]:
            stretch.add(postings(inside, CUT), len(inside))
        together.add(stretch.postings(), sum(map(len, made[start : start + 2])))
    assert list(together.in_order()) == list(lists.in_order())
    found = {}
    for term, written in lists.in_order():
        number, at = 0, []
        for step in written.split():
            number += int(step, 36) // STEPS
            at.append(number)
        found[term] = at
    every = [place for inside in made for place in inside]
    for word in ("ring", "rank", "勾配", "it"):
        said = [at for at, place in enumerate(every) if word in place.words.split()]
        assert found.get(word, []) == said
    assert list(found) == sorted(found, key=lambda term: term.encode("utf-16-be"))
