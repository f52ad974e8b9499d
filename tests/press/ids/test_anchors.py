"""Ids: what they are at first, and how they last."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidelit.errors import SidelitError
from sidelit.ids import anchors, matching, moves
from sidelit.ids import ledger as ledger_file
from sidelit.ids.ledger import Placed
from sidelit.source import source

PAGE = "chapter"


def ids(text: str) -> list[str]:
    """The ids of a text that was never published."""
    return [anchor.id for anchor in anchors.assign(source.parse(text, "some.py"))]


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "anchors.json"


def placed(text: str, name: str = PAGE) -> Placed:
    """A page as it would stand in a site."""
    return Placed(name, f"{name}.html", source.parse(text, "some.py"))


def publish(ledger: Path, text: str, redirects: Mapping[str, str] | None = None) -> ledger_file.Page:
    """Publish a site of one page; returns what its ledger holds."""
    return moves.publish(ledger, [placed(text)], {PAGE: redirects or {}}).pages[PAGE]


def rebuilt(ledger: Path, text: str) -> dict[str, tuple[str, ...]]:
    """The ids of a later text, with their aliases."""
    found = anchors.assign(source.parse(text, "some.py"), ledger_file.load(ledger).pages.get(PAGE))
    return {anchor.id: anchor.aliases for anchor in found}


# ## First names


def test_an_id_is_the_qualified_name_and_for_comments_the_first_words() -> None:
    text = '''"""Title."""
# Nothing is gathered yet.
x = 1
class Layer:
    """A layer."""
    def gather(self):
        # **Wait** for the `optimizer`, or $w_t$ is stale.
        wait()
        def inner(): ...
'''
    assert ids(text) == [
        "module",
        "module/nothing-is-gathered-yet",
        "Layer",
        "Layer.gather",
        "Layer.gather/wait-for-the-optimizer-or",
        "Layer.gather.inner",
    ]


@pytest.mark.parametrize(
    ("text", "slug"),
    [
        ("Wait for the optimizer. Then go.", "wait-for-the-optimizer"),
        ("Don't free `p.grad` before all of it", "dont-free-p-grad-before"),
        ("With $\\frac{1}{N}$ of $$x$$ each", "with-of-each"),
        ("## A *heading*\n\nand text", "a-heading"),
        ("See [the paper](bib:x) and <b>more</b>", "see-the-paper-and-more"),
        ('!!! note "On streams"\n    Text.', "on-streams"),
        ("Naïve café[^1]", "naive-cafe"),
        ("```\ncode\n```\nWords", "words"),
        ("日本語", ""),
        ("$x$", ""),
    ],
)
def test_a_slug_is_made_of_the_first_words(text: str, slug: str) -> None:
    assert matching.slug(text) == slug


def test_code_without_commentary_is_named_by_its_first_line_and_told_apart_by_the_others() -> None:
    assert ids("# 日本語\nx = 1\ndef f(): ...\n")[0] == "module/x-1"
    assert ids("def f(): ...\nwith stream:\n    y = 1\n")[1] == "module/with-stream"
    assert ids("def f(): ...\n(\n)\n")[1] == "module/code"
    text = "with stream:\n    f(a, b)\n# Why.\nx = 1\ndef g(): ...\nwith stream:\n    f(c)\n"
    several = [name for name in ids(text) if name.startswith("module/with")]
    assert all("@" in name for name in several) == (len(several) > 1)


def test_data_makes_no_long_id_and_a_long_one_that_was_published_stays(
    ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"import a\n# Why.\ndef f(): ...\ntable['{'abc' * 6_000}'] = 'one'\n"
    short = ids(text)
    assert max(map(len, short)) < 100
    with monkeypatch.context() as before:
        before.setattr(matching, "LETTERS", 100_000)
        publish(ledger, text)
        long = ids(text)
        assert max(map(len, long)) > 18_000
    assert list(rebuilt(ledger, text)) == long != short


def test_a_digest_that_was_published_becomes_an_alias_of_words(ledger: Path) -> None:
    text = "def f(): ...\ny = 1\n"
    publish(ledger, text)
    ledger.write_text(ledger.read_text("utf-8").replace("module/y-1", "module/code-0b8e1aa0"), "utf-8")
    assert rebuilt(ledger, text)["module/y-1"] == ("module/code-0b8e1aa0",)


def test_a_digest_that_was_published_becomes_an_alias_where_its_definition_is_renamed(ledger: Path) -> None:
    body = '(a):\n    """Put all of them into one list."""\n    def h(): ...\n    e = [a, a]\n'
    publish(ledger, f"def f{body}")
    ledger.write_text(ledger.read_text("utf-8").replace("f/e-a-a", "f/code-64650601"), "utf-8")
    assert rebuilt(ledger, f"def g{body}")["g/e-a-a"] == ("f/code-64650601",)


def test_doubles_are_told_apart_by_decorator_and_condition() -> None:
    text = """
class A:
    @property
    def x(self): ...
    @x.setter
    def x(self, value): ...
    @x.deleter
    def x(self): ...
if sys.version_info >= (3, 11):
    def f(): ...
elif sys.platform == "win32":
    def f(): ...
else:
    def f(): ...
@overload
def g(a): ...
def g(b): ...
"""
    assert [name for name in ids(text) if "/" not in name] == [
        "A",
        "A.x",
        "A.x@setter",
        "A.x@deleter",
        "f@sys-version-info-ge-3-11",
        "f@sys-platform-eq-win32",
        "f@not-sys-platform-eq-win32",
        "g@overload",
        "g",
    ]


def test_other_doubles_are_told_apart_by_their_text() -> None:
    assert ids("def f(): return 1\ndef f(): return 2\n") == ["f@return-1", "f@return-2"]
    assert ids("def f(): return 2\ndef f(): return 1\n") == ["f@return-2", "f@return-1"]
    # The same words in another order: the texts are counted, wherever they stand.
    one, two = "def f(): return a, b\n", "def f(): return b, a\n"
    assert ids(one + two) == ["f", "f-2"]
    assert ids(two + one) == ["f-2", "f"]


def test_no_id_holds_a_digest() -> None:
    same = "# 日本語\n(\n)\n# 中文\n[\n]\n"
    text = f"def f(): return 1\ndef f(): return 2\n{same}# Commit 5f252ca0b1 is bad.\nseed = 1\n"
    found = ids(text + "x = 0x1e3779b97f4a7c15\ndef g(): ...\ny = '5f252ca0b1'\n")
    assert not [name for name in found if re.search("[0-9a-f]{6}", name)], found
    assert "module/commit-is-bad" in found
    assert "module/y" in found


def test_a_function_named_module_does_not_take_the_modules_id() -> None:
    names = ids('"""Title."""\ndef module(): ...\n')
    assert names[0] == "module"
    assert names[1].startswith("module@")


PARTS = st.lists(
    st.sampled_from(
        [
            "# Wait for it.\n",
            "# Wait for it.\nx = 1\n",
            "# 日本語\n",
            "# ?\n",
            "def f(): return 1\n",
            "def f(): return 2\n",
            "@f.setter\ndef f(): return 3\n",
            "# Perhaps.\nif a:\n    def f(): ...\n",
            "def g():\n    # Wait for it.\n    pass\n",
            "def module(): ...\n",
            "class A:\n    # Wait for it.\n    # More.\n    def f(self): ...\n    y = 1\n",
        ]
    ),
    min_size=1,
    max_size=9,
)


def named(parts: list[str]) -> list[tuple[str, str]]:
    document = source.parse("\n".join(parts), "some.py")
    names = [anchor.id for anchor in anchors.assign(document)]
    assert len(set(names)) == len(names)
    assert all(name.isascii() and not set(name) & set(" \"'<>#&") for name in names)
    texts = (" ".join(section.source.split()) for section in document.sections)
    return sorted(zip(names, texts, strict=True))


@given(PARTS, st.data())
def test_ids_are_unique_and_do_not_depend_on_the_order_of_the_file(
    parts: list[str], data: st.DataObject
) -> None:
    assert named(parts) == named(data.draw(st.permutations(parts)))


# ## Ids that last

TEXT = '''"""# A chapter"""
import torch

class Layer:
    """A layer that holds a shard of its parameters."""

    def gather(self):
        """Fill the full vector from the shards of all ranks."""
        # Wait for the optimizer, since it writes the shard on another stream.
        self.stream.wait(self.optimizer)
        self.check()
        # The gather runs in place, so it costs no copy.
        work = all_gather(self.full, self.shard)
        return work

    def free(self):
        # Give the storage back.
        self.full.resize_(0)


def helper(x):
    """Round a number up to a multiple of the world size."""
    y = x + 1
    return y
'''


@pytest.fixture
def published(ledger: Path) -> Path:
    publish(ledger, TEXT)
    return ledger


def test_publishing_twice_changes_nothing(published: Path) -> None:
    before = published.read_bytes()
    publish(published, TEXT)
    assert published.read_bytes() == before
    assert set(rebuilt(published, TEXT)) == set(ids(TEXT))


def test_a_reworded_comment_keeps_its_id(published: Path) -> None:
    later = TEXT.replace(
        "Wait for the optimizer, since it", "Stale weights would follow if the optimizer still"
    )
    assert later != TEXT
    assert set(rebuilt(published, later)) == set(ids(TEXT))


def test_changed_code_under_a_comment_changes_no_id(published: Path) -> None:
    later = TEXT.replace("self.check()", "self.verify(deep=True)").replace("self.stream.wait(", "wait_for(")
    assert set(rebuilt(published, later)) == set(ids(TEXT))


def test_moved_sections_keep_their_ids(published: Path) -> None:
    head, gather, rest = TEXT.partition("    def gather")
    gather += rest.partition("    def free")[0]
    free, _, helper = rest.partition("    def free")[2].partition("\n\ndef helper")
    later = head + "    def free" + free + "\n" + gather + "\n\ndef helper" + helper
    assert sorted(ids(later)) == sorted(ids(TEXT))
    found = rebuilt(published, later)
    assert set(found) == set(ids(TEXT))
    assert not any(found.values())


def test_comments_that_change_places_take_their_ids_along(published: Path) -> None:
    one = "        # Wait for the optimizer, since it writes the shard on another stream.\n"
    two = "        # The gather runs in place, so it costs no copy.\n"
    later = TEXT.replace(one, "@@@").replace(two, one).replace("@@@", two)
    names = [name for name in rebuilt(published, later) if name.startswith("Layer.gather/")]
    assert names == ["Layer.gather/the-gather-runs-in-place", "Layer.gather/wait-for-the-optimizer-since"]


def test_a_new_comment_with_the_words_of_a_published_one_does_not_take_its_id(published: Path) -> None:
    later = TEXT.replace("Give the storage back.", "Nothing is kept.")
    later = later.replace(
        "        self.full.resize_(0)\n",
        "        self.full.resize_(0)\n"
        "        # Give the storage back. The gradients do it too.\n"
        "        self.grad = None\n",
    )
    document = source.parse(later, "some.py")
    found = anchors.assign(document, ledger_file.load(published).pages[PAGE])
    by_text = {
        section.commentary: anchor.id for section, anchor in zip(document.sections, found, strict=True)
    }
    assert by_text["Nothing is kept."] == "Layer.free/give-the-storage-back"
    assert by_text["Give the storage back. The gradients do it too."] == "Layer.free/give-the-storage-back-2"


def test_a_renamed_class_takes_its_methods_and_comments_along_and_leaves_aliases(published: Path) -> None:
    found = rebuilt(published, TEXT.replace("Layer", "Unit").replace("A layer that", "A unit that"))
    assert found["Unit"] == ("Layer",)
    assert found["Unit.gather"] == ("Layer.gather",)
    assert found["Unit.free/give-the-storage-back"] == ("Layer.free/give-the-storage-back",)


def test_a_class_without_words_is_found_by_its_methods(ledger: Path) -> None:
    body = "    def fill(self, x):\n        self.x = x\n        self.full = True\n        return self\n"
    publish(ledger, "class Box:\n    lid = 1\n" + body)
    found = rebuilt(ledger, "class Crate(Base):\n    top = 2\n" + body)
    assert found == {"Crate": ("Box",), "Crate.fill": ("Box.fill",)}


def test_a_comment_carried_to_another_function_keeps_its_words_and_an_alias(published: Path) -> None:
    comment = "        # The gather runs in place, so it costs no copy.\n"
    comment += "        work = all_gather(self.full, self.shard)\n"
    later = TEXT.replace(comment, "        work = self.start()\n")
    later = later.replace("        return work\n", "        return work\n\n    def start(self):\n" + comment)
    found = rebuilt(published, later)
    assert found["Layer.start/the-gather-runs-in-place"] == ("Layer.gather/the-gather-runs-in-place",)


def test_aliases_stay_from_release_to_release_and_a_name_may_come_back(published: Path) -> None:
    publish(published, TEXT.replace("helper", "round_up"))
    publish(published, TEXT.replace("helper", "ceil"))
    assert rebuilt(published, TEXT.replace("helper", "ceil"))["ceil"] == ("helper", "round_up")
    publish(published, TEXT)
    assert rebuilt(published, TEXT)["helper"] == ("round_up", "ceil")


def test_a_second_definition_of_a_name_leaves_the_first_its_id(published: Path) -> None:
    later = TEXT + "\n\ndef helper(z):\n    return z\n"
    document = source.parse(later, "some.py")
    first, second = anchors.assign(document, ledger_file.load(published).pages[PAGE])[-2:]
    assert first.id == "helper"
    assert second.id.startswith("helper@")


def test_a_double_with_a_docstring_does_not_take_the_id_of_one_without(ledger: Path) -> None:
    old = "class K:\n    x = 1\n"
    published = publish(ledger, old)
    document = source.parse(f'class K:\n    """New."""\n\n    y = 2\n\n\n{old}', "some.py")
    found = zip(document.sections, anchors.assign(document, published), strict=True)
    names = {section.commentary: anchor.id for section, anchor in found}
    assert names[""] == "K"


@pytest.mark.full
def test_a_long_file_that_was_reformatted_is_found_again(ledger: Path) -> None:
    # To compare every section with every other again and again would take longer than a test may.
    lines = "\n\ndef f{0}(a):\n    # Claim number {0} is made here.\n    return a[{1}{0}{1}]\n"
    before, after = ("".join(lines.format(n, quote) for n in range(1000)) for quote in ("'", '"'))
    published = publish(ledger, before)
    found = anchors.assign(source.parse(after, "some.py"), published)
    assert [anchor.id for anchor in found] == [each.id for each in published]


@pytest.mark.parametrize(
    ("gone", "name"),
    [
        ("        # Give the storage back.\n", "Layer.free/give-the-storage-back"),
        (TEXT[TEXT.index("def helper") :], "helper"),
    ],
)
def test_a_published_id_that_would_lead_nowhere_stops_the_build(
    published: Path, gone: str, name: str
) -> None:
    later = TEXT.replace(gone, "")
    with pytest.raises(
        SidelitError, match=r"^some\.py: the published id '.*' would lead nowhere; "
    ) as caught:
        rebuilt(published, later)
    assert repr(name) in str(caught.value)
    before = published.read_bytes()
    with pytest.raises(SidelitError):
        publish(published, later)
    assert published.read_bytes() == before


def test_another_comment_elsewhere_does_not_inherit_the_id_of_a_deleted_one(published: Path) -> None:
    gone = TEXT.replace("        # The gather runs in place, so it costs no copy.\n", "")
    other = "    # The caller counts in place, so it adds no rank of its own.\n    z = 1\n    return y\n"
    with pytest.raises(SidelitError, match=r"'Layer\.gather/the-gather-runs-in-place' would lead nowhere"):
        rebuilt(published, gone.replace("    return y\n", other))


def test_hiding_a_published_section_stops_the_build(published: Path) -> None:
    hidden = TEXT.replace("def helper", "# sidelit: hide\ndef helper") + "# sidelit: show\n"
    with pytest.raises(SidelitError, match="'helper' would lead nowhere"):
        rebuilt(published, hidden)


def test_a_redirect_sends_readers_of_a_deleted_section_elsewhere(published: Path) -> None:
    later = TEXT[: TEXT.index("\n\ndef helper")] + "\n"
    publish(published, later, {"helper": "Layer.gather"})
    assert rebuilt(published, later)["Layer.gather"] == ("helper",)


def test_a_redirect_to_nowhere_is_refused(published: Path) -> None:
    with pytest.raises(SidelitError, match=r"'chapter#helper' names 'Layer\.scatter', which is on no page"):
        publish(published, TEXT[: TEXT.index("\n\ndef helper")] + "\n", {"helper": "Layer.scatter"})


HIDDEN = "# sidelit: hide\n# Out of sight.\ny = 2\n# sidelit: show\n"


def test_a_redirect_to_what_nobody_sees_is_refused(ledger: Path) -> None:
    publish(ledger, f"# First claim.\nx = 1\n{HIDDEN}")
    before = ledger.read_bytes()
    with pytest.raises(SidelitError, match="first-claim"):
        publish(ledger, f'"""Title."""\nz = 3\n{HIDDEN}', {"module/first-claim": "module/out-of-sight"})
    assert ledger.read_bytes() == before


def test_code_that_nobody_named_falls_back_to_the_definition_around_it(ledger: Path) -> None:
    text = "def f():\n    for a in b:\n        # Why.\n        c()\n    d()\n    e()\n"
    publish(ledger, text)
    found = rebuilt(ledger, text.replace("    d()\n    e()\n", ""))
    assert found["f"] == ("f/d",)


def test_equal_sections_keep_their_ids_among_themselves(ledger: Path) -> None:
    text = "".join(f"if x{n}:\n    # Why.\n    a{n}()\nelse:\n    # Or not.\n    b()\n" for n in range(12))
    publish(ledger, text)
    document = source.parse(text, "some.py")
    assert anchors.assign(document, ledger_file.load(ledger).pages[PAGE]) == anchors.assign(document)


@given(PARTS, st.data())
def test_every_published_id_is_kept_whatever_order_comes(parts: list[str], data: st.DataObject) -> None:
    page = anchors_page("\n".join(parts))
    later = source.parse("\n".join(data.draw(st.permutations(parts))), "some.py")
    found = anchors.assign(later, page)
    names = [name for anchor in found for name in (anchor.id, *anchor.aliases)]
    assert len(set(names)) == len(names)
    assert {entry.id for entry in page} <= set(names)


def anchors_page(text: str) -> ledger_file.Page:
    document = source.parse(text, "some.py")
    found = anchors.assign(document)
    return anchors.imprints(document, found)


# ## The file


def test_the_ledger_is_sorted_text_with_one_entry_a_section(published: Path) -> None:
    text = published.read_text(encoding="utf-8")
    data = json.loads(text)
    assert list(data) == [PAGE]
    # The first entry is about the page: no section has an empty id.
    assert list(data[PAGE]) == ["", *sorted(ids(TEXT))]
    assert data[PAGE][""] == {"address": "chapter.html"}
    assert text == json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    assert [path.name for path in published.parent.iterdir()] == ["anchors.json"]


def test_half_a_character_in_a_docstring_can_be_published(ledger: Path) -> None:
    written = publish(ledger, '"""# A \\ud800 title."""\n')
    assert ledger_file.load(ledger).pages[PAGE] == written


def test_without_a_ledger_nothing_is_published(ledger: Path) -> None:
    assert ledger_file.load(ledger) == ledger_file.Ledger()


_ODD = '{"a": {},\n "b": {\n  "c": {"kind": "heading", "qualname": "", %s}}}'


@pytest.mark.parametrize(
    "text",
    [
        *("{\n nonsense", "[]", '{"a": 1}', '{"a": {"b": {}}}', '{"a": {"b": {"kind": 1}}}'),
        *(_ODD % each for each in ('"qualname": null', '"kind": []', '"words": 1', '"aliases": "install"')),
        *(_ODD % each for each in ('"aliases": [["install"]]', '"places": {"a.html#b": 1}')),
    ],
)
def test_a_damaged_ledger_is_refused_with_its_place(ledger: Path, text: str) -> None:
    ledger.write_text(text, encoding="utf-8")
    with pytest.raises(SidelitError) as caught:
        ledger_file.load(ledger)
    assert str(caught.value).startswith(f"{ledger}:{caught.value.line}: not ")
    assert "sidelit publish" in str(caught.value)
    # The page is named by the line on which it begins.
    assert caught.value.line == 1 + text.partition('"b"')[0].count("\n")


def test_a_published_page_must_stay(published: Path) -> None:
    with pytest.raises(SidelitError, match="the published page 'chapter' would vanish"):
        moves.publish(published, [placed("x = 1\n", "other")])
