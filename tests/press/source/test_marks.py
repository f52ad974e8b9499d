"""Where depth begins and ends, and what is said about marks that begin or end nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from press.project import sidelit
from sidelit.ids import anchors
from sidelit.source import source


def folded(text: str) -> list[tuple[str, str | None]]:
    """Each section of a file without faults: what it is, and the words above it."""
    document = source.parse(text, "some.py")
    assert [str(fault) for fault in document.faults] == []
    assert "".join(section.source for section in document.sections) == text
    return [
        (section.commentary or section.qualname, section.depth.words if section.depth else None)
        for section in document.sections
    ]


def faults(text: str) -> list[str]:
    return [str(fault) for fault in source.parse(text, "some.py").faults]


# ## Where depth begins and ends


def test_depth_lasts_until_core() -> None:
    text = '"""T."""\n# sidelit: depth Rare.\ndef f(): ...\n# Why.\nx = 1\n# sidelit: core\ndef g(): ...\n'
    assert folded(text) == [("T.", None), ("f", "Rare."), ("Why.", "Rare."), ("g", None)]


def test_depth_lasts_until_the_end_of_the_file() -> None:
    assert folded('"""T."""\n# sidelit: depth Rare.\n# Why.\nx = 1\ndef f(): ...\n') == [
        ("T.", None),
        ("Why.", "Rare."),
        ("f", "Rare."),
    ]


def test_a_mark_in_a_class_covers_its_methods_and_ends_with_the_class() -> None:
    text = (
        "class A:\n    def f(self): ...\n    # sidelit: depth Rare.\n    def g(self):\n        # In it.\n"
        "        x = 1\n    y = 2\nclass B:\n    def h(self): ...\n"
    )
    assert folded(text) == [
        ("A", None),
        ("A.f", None),
        ("A.g", "Rare."),
        ("In it.", "Rare."),
        ("A", "Rare."),
        ("B", None),
        ("B.h", None),
    ]


@pytest.mark.parametrize("after", ["# After.\ny = 2\n", "y = 2\n"])
def test_a_mark_in_a_function_covers_what_comments_describe_there(after: str) -> None:
    text = f"def f():\n    # One.\n    x = 1\n    # sidelit: depth Rare.\n    # Two.\n    x = 2\n{after}"
    assert folded(text)[:3] == [("f", None), ("One.", None), ("Two.", "Rare.")]
    assert folded(text)[3][1] is None


def test_core_goes_on_within_a_function() -> None:
    text = "def f():\n    # sidelit: depth Rare.\n    # One.\n    a\n    # sidelit: core\n    # Two.\n    b\n"
    assert folded(text) == [("f", None), ("One.", "Rare."), ("Two.", None)]


def test_a_mark_in_an_inner_block_ends_with_that_block() -> None:
    text = (
        "def f(x):\n    if x:\n        # sidelit: depth Rare.\n        # One.\n        g()\n    else:\n"
        "        # Two.\n        h()\n"
    )
    assert folded(text) == [("f", None), ("One.", "Rare."), ("f", None), ("Two.", None)]


def test_a_mark_belongs_to_the_block_that_a_comment_in_its_place_would() -> None:
    """Python lets a comment stand in any column."""
    text = "class A:\n    def f(self): ...\n# sidelit: depth Rare.\n    def g(self): ...\ndef h(): ...\n"
    assert folded(text) == [("A", None), ("A.f", None), ("A.g", "Rare."), ("h", None)]


def test_a_core_behind_the_block_ends_it_too() -> None:
    text = (
        "class A:\n    # sidelit: depth Rare.\n    def f(self): ...\n# sidelit: core\n"
        "# sidelit: depth Rarer.\ndef g(): ...\n"
    )
    assert folded(text) == [("A", None), ("A.f", "Rare."), ("g", "Rarer.")]


def test_depth_at_the_margin_may_end_inside_a_class() -> None:
    text = (
        "x = 1\n# sidelit: depth Rare.\nclass A:\n    def f(): ...\n    # sidelit: core\n    def g(): ...\n"
    )
    assert folded(text) == [("", None), ("A", "Rare."), ("A.f", "Rare."), ("A.g", None)]


def test_a_class_after_depth_may_have_depth_of_its_own() -> None:
    text = (
        "class A:\n    # sidelit: depth One.\n    def f(self): ...\n\n\n# sidelit: depth Two.\ndef g(): ...\n"
    )
    assert folded(text) == [("A", None), ("A.f", "One."), ("g", "Two.")]


def test_a_stretch_knows_its_line_and_the_definition_it_stands_in() -> None:
    text = (
        "x = 1\nclass A:\n    def f():\n        # sidelit: depth  Of `x`, $n$  \n        # Why.\n        y\n"
    )
    depth = source.parse(text, "some.py").sections[-1].depth
    assert depth
    assert (depth.words, depth.line, depth.qualname) == ("Of `x`, $n$", 4, "A.f")


def test_depth_and_hidden_lines_do_not_mind_each_other() -> None:
    text = (
        '"""T."""\n# sidelit: depth Rare.\n# sidelit: hide\nimport a\n# sidelit: show\ndef f():\n'
        "    x = 1\n    # sidelit: hide\n    y = 2\n    # sidelit: show\n    return x\n"
    )
    assert folded(text) == [("T.", None), ("f", "Rare.")]
    assert [number for number, _ in source.parse(text, "some.py").sections[1].code] == [6, 7, 11]


def test_marks_are_never_printed_and_line_numbers_count_on() -> None:
    text = '"""T."""\na = 1\n# sidelit: depth Rare.\ndef f():\n    b = 2\n# sidelit: core\ndef g(): ...\n'
    code = [line for section in source.parse(text, "some.py").sections for line in section.code]
    assert code == [(2, "a = 1"), (4, "def f():"), (5, "    b = 2"), (7, "def g(): ...")]


def test_behind_code_it_is_no_mark() -> None:
    (section,) = source.parse("x = 1  # sidelit: depth Rare.\n", "some.py").sections
    assert (section.depth, section.code) == (None, ((1, "x = 1  # sidelit: depth Rare."),))


def test_marks_change_no_id() -> None:
    text = '"""T."""\n\nclass A:\n    x = 1\n\n    def f():\n        # Why so.\n        x\n\ndef g(): ...\n'
    before = source.parse(text, "some.py")
    published = anchors.imprints(before, anchors.assign(before))
    marked = text.replace("    def f", "    # sidelit: depth Rare.\n    def f")
    marked = marked.replace("def g", "# sidelit: depth Rarer.\ndef g")
    after = source.parse(marked, "some.py")
    assert anchors.assign(after, published) == anchors.assign(before)
    assert [section.depth is None for section in after.sections] == [True, True, False, False, False]


# ## What is said about marks that are wrong

NOWHERE = "no section begins below this mark in its block; put it above a comment, a `def` or a `class`"
UNKNOWN = "there is `hide`, `show`, `depth` with words behind it, and `core`"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "# A.\nx = 1\n# sidelit: core\n# B.\ny = 2\n",
            "3: no stretch of depth is open that this `core` could end; remove it",
        ),
        (
            "class A:\n    # sidelit: depth Rare.\n    def f(): ...\nx = 1\n# sidelit: core\n# B.\ny = 2\n",
            "5: no stretch of depth is open that this `core` could end; remove it",
        ),
        (
            "# A.\nx = 1\n# sidelit: depth\n# B.\ny = 2\n# sidelit: core\n# C.\n",
            "3: this `depth` does not say what it guards against; "
            "say it in one line: `# sidelit: depth WORDS`",
        ),
        (
            "# A.\n# sidelit: depth Rare.\nclass B:\n    # sidelit: depth Rarer.\n    def f(self): ...\n",
            "4: this `depth` begins inside the one of line 2; end that one with `# sidelit: core` first",
        ),
        (
            "# A.\n# sidelit: depth Rare.\n# B.\n# sidelit: depth Rarer.\n# C.\n",
            "4: this `depth` begins inside the one of line 2; end that one with `# sidelit: core` first",
        ),
        ("# A.\nx = 1\n# sidelit: depth Rare.\ny = 2\n", f"3: {NOWHERE}"),
        ("def f():\n    # sidelit: depth Rare.\n    '''Doc.'''\n", f"2: {NOWHERE}"),
        ("class A:\n    def f(self): ...\n    # sidelit: depth Rare.\ndef g(): ...\n", f"3: {NOWHERE}"),
        ("# A.\nx = 1\n# sidelit: depth Rare.\n", f"3: {NOWHERE}"),
        ("# A.\nx = 1\n# sidelit: depth Rare.\n# sidelit: core\n# B.\n", f"3: {NOWHERE}"),
        (
            "def f():\n    # sidelit: depth Rare.\n    # A.\n    x = 1\n    # sidelit: core\n    y = 2\n",
            f"5: {NOWHERE}",
        ),
        (
            "# A.\nx = [\n    # sidelit: depth Rare.\n    1,\n]\n# B.\n",
            "3: this mark stands in the middle of a statement; put it above a comment, a `def` or a `class`",
        ),
        (
            "# A.\n@a\n# sidelit: depth Rare.\n@b\ndef f(): ...\n# B.\n",
            "3: this mark stands in the middle of a statement; put it above a comment, a `def` or a `class`",
        ),
        (
            '# sidelit: depth Rare.\n"""T."""\n# A.\n',
            "1: this mark would fold the opening of the chapter; put it below the docstring of the module",
        ),
        (
            "# sidelit: depth Rare.\nx = 1\n# A.\n",
            "1: this mark would fold the opening of the chapter; put it below the docstring of the module",
        ),
        ("# A.\n# sidelit: deph Rare.\n# B.\n", f"2: there is no mark 'deph Rare.'; {UNKNOWN}"),
        ("# A.\n# sidelit: core again\n# B.\n", f"2: there is no mark 'core again'; {UNKNOWN}"),
        ("# A.\n# sidelit:\n# B.\n", f"2: there is no mark ''; {UNKNOWN}"),
    ],
)
def test_a_wrong_mark_is_told_once_in_one_sentence_with_its_place(text: str, said: str) -> None:
    assert faults(text) == [f"some.py:{said}"]
    assert "".join(section.source for section in source.parse(text, "some.py").sections) == text


def test_faults_come_in_the_order_of_the_file() -> None:
    text = "# sidelit: deph\n# A.\n# sidelit: core\n# B.\n# sidelit: depth Rare.\n"
    assert [line.split(":")[1] for line in faults(text)] == ["1", "3", "5"]


def test_what_is_wrong_folds_nothing_and_the_rest_of_the_stretch_stays() -> None:
    text = '# sidelit: depth Rare.\n"""T."""\n# A.\n# sidelit: core\n# sidelit: depth\n# B.\n'
    depths = [section.depth and section.depth.words for section in source.parse(text, "some.py").sections]
    assert depths == [None, None, "Rare.", None]


# ## For other programs


def test_the_json_of_sections_says_what_is_depth(tmp_path: Path) -> None:
    text = '"""T."""\n# sidelit: depth Ränke.\ndef f(): ...\n# sidelit: core\ndef g(): ...\n'
    (tmp_path / "one.py").write_text(text, encoding="utf-8")
    found = json.loads(sidelit("sections", "one.py", cwd=tmp_path).stdout)
    assert [(each["id"], each["depth"]) for each in found] == [("module", None), ("f", "Ränke."), ("g", None)]
    assert "".join(each["source"] for each in found) == text
