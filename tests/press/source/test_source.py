"""What sections are, rule by rule, and what is said about files that cannot be read."""

from __future__ import annotations

import codecs
import sys
from pathlib import Path

import pytest

from press.project import sidelit
from sidelit.errors import SidelitError
from sidelit.source import newer, source, syntax
from sidelit.source.source import Section


def cut(text: str) -> tuple[Section, ...]:
    return source.parse(text, "some.py").sections


def kinds(text: str) -> list[tuple[str, str]]:
    return [(section.kind, section.qualname) for section in cut(text)]


# ## Where sections start


def test_a_section_starts_at_each_comment_block_and_each_definition() -> None:
    text = (
        '"""Title."""\nx = 1\n# One.\n# More.\ny = 2\n\ndef f():\n    pass\nclass A:\n    def g(self): ...\n'
    )
    assert kinds(text) == [
        ("module", ""),
        ("comment", ""),
        ("function", "f"),
        ("class", "A"),
        ("function", "A.g"),
    ]


def test_code_that_leaves_the_block_of_a_comment_is_no_part_of_its_section() -> None:
    _, inside, after = cut("if a:\n    # Why.\n    b()\nc()\n")
    assert (inside.commentary, [number for number, _ in inside.code]) == ("Why.", [3])
    assert (after.kind, after.commentary, [number for number, _ in after.code]) == ("code", "", [4])


def test_code_behind_a_definition_belongs_to_what_is_around_it() -> None:
    assert kinds("class A:\n    def f(self):\n        pass\n    x = 1\ny = 2\n") == [
        ("class", "A"),
        ("function", "A.f"),
        ("code", "A"),
        ("code", ""),
    ]


def test_columns_are_counted_as_python_counts_them() -> None:
    _, last_word, after = cut("if x:\n  \f    y = 1\n    # Last word.\nz = 1\n")
    assert (last_word.indent, last_word.code, after.kind) == (4, (), "code")
    _, tabbed = cut("def f():\n\tif x:\n\t\ty = 1\n                # Sixteen columns.\n")
    assert (tabbed.indent, tabbed.qualname) == (16, "f")


def test_locals_do_not_appear_in_names() -> None:
    assert kinds("def f():\n    def g():\n        class H: ...\n") == [
        ("function", "f"),
        ("function", "f.g"),
        ("class", "f.g.H"),
    ]


def test_definitions_under_a_condition_keep_their_names_and_say_which_branch() -> None:
    text = "if posix:\n    def f(): ...\nelse:\n    def f(): ...\n"
    text += "try:\n    pass\nexcept OSError:\n    def f(): ...\n"
    found = [section for section in cut(text) if section.kind == "function"]
    assert {section.qualname for section in found} == {"f"}
    assert [section.traits for section in found] == [("posix",), ("not posix",), ("except OSError",)]


def test_decorators_and_comments_between_them_belong_to_the_definition() -> None:
    sections = cut("@one\n# Between.\n@two\ndef f():\n    pass\n")
    assert [(section.kind, section.first_line, section.commentary) for section in sections] == [
        ("function", 1, "")
    ]


def test_blank_lines_belong_to_the_section_above_them() -> None:
    first, second = cut("\n\nx = 1\n\n\n# Next.\n")
    assert (first.first_line, first.last_line, first.code) == (1, 5, ((3, "x = 1"),))
    assert second.first_line == 6


# ## Commentary


@pytest.mark.parametrize(
    "comment",
    ["# type: int", "# noqa: E501", "# NOQA", "# fmt: off", "#noqa", "# mypy: strict", "# pragma: no cover"],
)
def test_what_speaks_to_a_tool_is_code(comment: str) -> None:
    (section,) = cut(f"{comment}\nx = 1\n")
    assert section.commentary == ""
    assert section.code == ((1, comment), (2, "x = 1"))


def test_shebang_and_coding_lines_are_code_only_where_they_mean_something() -> None:
    lines = "#!/bin/python\n# -*- coding: utf-8 -*-\n"
    assert [section.commentary for section in cut(lines + "x = 1\n")] == [""]
    assert [section.commentary for section in cut("x = 1\n" + lines)] == [
        "",
        "!/bin/python\n-*- coding: utf-8 -*-",
    ]


def test_comments_behind_code_and_inside_brackets_are_code() -> None:
    (section,) = cut("x = [  # a\n    # b\n    1,\n]  # c\n")
    assert section.commentary == ""
    assert len(section.code) == 4


def test_the_sign_and_one_blank_are_taken_off_and_no_more() -> None:
    (section,) = cut("# A list:\n#   - one\n#\n#     code\n#tight #1\n")
    assert section.commentary == "A list:\n  - one\n\n    code\ntight #1"


RULES = ("# -------", "#######", "#", "# =====\n    # =====", "#-#-#-#-#", "# ~~~~", "# ──")


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_drawn_across_the_page_is_no_section(rule: str) -> None:
    (one,) = cut(f"def f():\n    x = 1\n    {rule}\n    return x\n")
    assert (one.kind, one.commentary, len(one.code)) == ("function", "", 4 + rule.count("\n"))
    assert kinds(f"{rule.lstrip()}\n# Words.\nx = 1\n")[0][0] == "comment"
    assert kinds(f"{rule.lstrip()}\n\n# Words.\nx = 1\n") == [("comment", "")]


@pytest.mark.parametrize(
    ("comment", "said"),
    [
        # A banner is a heading.
        ("# =====\n# One\n# =====\n# two", "One\n=====\ntwo"),
        ("# -----\n# One\n# -----", "One\n-----"),
        ("###########\n# One\n###########", "One"),
        # No heading has several lines.
        ("# -----\n# one\n# two\n# -----\n# three", "one\ntwo\n\nthree"),
        ("# one\n# two\n# -----", "one\ntwo"),
        # What Markdown knows stays.
        ("# One\n# -----\n# two", "One\n-----\ntwo"),
        ("# ---\n# title: One\n# ---", "---\ntitle: One\n---"),
        ("# one\n#\n# -----\n#\n# two", "one\n\n-----\n\ntwo"),
        ("# ~~~~\n# x\n# ~~~~", "~~~~\nx\n~~~~"),
    ],
)
def test_rules_around_words_are_drawn_and_not_read(comment: str, said: str) -> None:
    (one,) = cut(f"{comment}\nx = 1\n")
    assert (one.kind, one.commentary) == ("comment", said)
    assert len(one.code) == 1


def test_a_docstring_counts_by_what_it_evaluates_to() -> None:
    raw, cooked = cut('def f():\n    r"""a\\tb"""\ndef g():\n    """a\\tb"""\n')
    assert raw.commentary == "a\\tb"
    assert cooked.commentary == "a       b"


@pytest.mark.parametrize(
    "body", [' "no"', '\n    "no"; x = 1', '\n    """no\n    """; x = 1', " \\\n    'no'"]
)
def test_a_docstring_that_shares_a_line_with_code_is_code(body: str) -> None:
    (section,) = cut(f"def f():{body}\n")
    assert section.commentary == ""
    assert "no" in "".join(text for _, text in section.code)


def test_a_docstring_behind_a_comment_gets_a_section_of_its_own() -> None:
    sections = cut("def f():\n    # First.\n    '''Second.'''\n    return 1\n")
    assert [(section.kind, section.commentary) for section in sections] == [
        ("function", ""),
        ("comment", "First."),
        ("comment", "Second."),
    ]


def test_the_modules_docstring_may_follow_a_licence() -> None:
    sections = cut('#!/bin/python\n# Licence.\n"""Title."""\n')
    assert [(section.kind, section.commentary) for section in sections] == [
        ("comment", "Licence."),
        ("module", "Title."),
    ]


ATTRIBUTES = '''"""Module."""
LIMIT = 8
"""How many fit."""
OTHER = 9

class A:
    """A class."""

    size: int = (
        1
    )
    """The *size*,

    in elements."""
    name = "x"
    """The name."""
    rest = 2

    # Why.
    more = 3
    """What."""
    x = 1; """No words."""
    y = 2
    # Between.
    """Words."""

    def f(self): ...
'''


def test_a_string_below_an_assignment_is_its_commentary() -> None:
    sections = cut(ATTRIBUTES)
    assert [(each.qualname, each.commentary, [number for number, _ in each.code]) for each in sections] == [
        ("", "Module.", []),
        ("", "How many fit.", [2]),
        ("", "", [4]),
        ("A", "A class.", [6]),
        ("A", "The *size*,\n\nin elements.", [9, 10, 11]),
        ("A", "The name.", [15]),
        ("A", "", [17]),
        ("A", "Why.", [20]),
        ("A", "What.", [22, 23]),
        ("A", "Between.", [25]),
        ("A.f", "", [27]),
    ]
    assert "".join(section.source for section in sections) == ATTRIBUTES


CELLS = """# ---
# jupyter:
#   jupytext: {}
# ---

# %% [markdown]
# # A notebook
#
# Words.

# %%
x = 1

# %% tags=["a"]
y = 2

# %%
# A comment.
# %time z = 3
z = 3

# %% Load the data [code] key="value"
w = 4
# %% [md]
'''
Words in *quotes*.
'''
# %%
def f():
    # %% no cell
    pass
"""


def test_the_marks_of_cells_divide_code_and_are_never_printed() -> None:
    sections = cut(CELLS)
    assert [(section.commentary, [number for number, _ in section.code]) for section in sections] == [
        ("---\njupyter:\n  jupytext: {}\n---", []),
        ("# A notebook\n\nWords.", [12]),
        ("", [15]),
        ("A comment.", [19, 20]),
        ("## Load the data", [23]),
        ("Words in *quotes*.", []),
        ("", [29]),
        ("%% no cell", [31]),
    ]
    assert "".join(section.source for section in sections) == CELLS


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        ("# %%", ""),
        ("#%%", ""),
        ("# %% [markdown]", ""),
        ("# %% [raw] slideshow={'a': 1}", ""),
        ("# %% A title", "## A title"),
        ('# %%%% {"a": 1}', ""),
        ("# In[12]:", ""),
        ("# In[ ]:", ""),
        ('# + [markdown] id="x"', ""),
        ('# + {"tags": []}', ""),
        # These are none.
        ("# %%timeit", "%%timeit"),
        ("# 5 %% 3", "5 %% 3"),
        ("# + more", "+ more"),
        ("# In[x]: y", "In[x]: y"),
    ],
)
def test_what_is_a_mark_of_a_cell(mark: str, said: str) -> None:
    (one,) = cut(f"{mark}\nx = 1\n")
    assert one.commentary == said
    assert [number for number, _ in one.code] == [2]


TOOLS = "#!/usr/bin/env python\n# -*- coding: utf-8 -*-\n"


@pytest.mark.parametrize("words", ['"""Title."""\n', '\n"""Title."""\n\n', "#\n# Title.\n", "\n# Title.\n"])
def test_words_at_the_top_stand_beside_the_first_code_and_not_beside_lines_for_tools(words: str) -> None:
    (one,) = cut(f"{TOOLS}{words}x = 1\n")
    assert (one.first_line, one.commentary, [text for _, text in one.code]) == (1, "Title.", ["x = 1"])


def test_lines_for_tools_without_words_are_code() -> None:
    (one,) = cut(f"{TOOLS}x = 1\n")
    assert [number for number, _ in one.code] == [1, 2, 3]
    both = cut(f"{TOOLS}def f():\n    'It.'\n")
    assert [(section.kind, [number for number, _ in section.code]) for section in both] == [("function", [3])]


LICENCE = "# coding=utf-8\n# Copyright 2020 The Authors.\n#\n# You may not use it.\n# ====\n"


@pytest.mark.parametrize(
    ("below", "kind", "said"),
    [
        ('"""Title."""\nx = 1\n', "module", "Title."),
        ('\n"""Title."""\nx = 1\n', "module", "Title."),
        ("\n# SPDX-License-Identifier: MIT\n\n# A word.\nx = 1\n", "comment", "A word."),
        ("x = 1\n", "module", ""),
        ("\nclass A:\n    'It.'\n", "class", "It."),
    ],
)
def test_a_licence_at_the_top_is_code(below: str, kind: str, said: str) -> None:
    first = cut(LICENCE + below)[0]
    assert (first.kind, first.commentary, first.first_line) == (kind, said, 1)
    assert (2, "# Copyright 2020 The Authors.") in first.code[:2]


@pytest.mark.parametrize(
    "text",
    [
        "# # A title\n#\n# Copyright 2020 The Authors.\nx = 1\n",
        "# Words.\n\n# Copyright 2020 The Authors.\nx = 1\n",
        '"""Words."""\n# Copyright 2020 The Authors.\nx = 1\n',
        "# Checks the copyrights of pictures.\nx = 1\n",
    ],
)
def test_other_words_at_the_top_are_words(text: str) -> None:
    assert not any(line.startswith("#") for each in cut(text) for _, line in each.code)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('"""Here."""\n', 1),
        ('"""\nHere.\n"""\n', 2),
        ('"""\\\nHere.\n"""\n', 2),
        ('"""\n\n   \nHere.\n"""\n', 4),
        ("#\n# Here.\n", 2),
        ("x = 1\n", 0),
    ],
)
def test_the_line_of_the_first_word_is_known(text: str, line: int) -> None:
    assert cut(text)[0].commentary_line == line


# ## What is left off the page


def test_hidden_lines_stay_in_the_source_and_leave_the_page() -> None:
    text = '"""T."""\nimport a\n# sidelit: hide\nimport b\n# sidelit: show\nimport c\n'
    (section,) = cut(text)
    assert section.code == ((2, "import a"), (6, "import c"))
    assert (section.source, section.hidden) == (text, False)


def test_sections_out_of_sight_are_hidden_and_do_not_swallow_what_follows() -> None:
    sections = cut("# sidelit: hide\n# Licence.\n# sidelit: show\nimport a\n# Seen.\n")
    assert [(section.hidden, section.kind) for section in sections] == [
        (True, "code"),
        (True, "comment"),
        (False, "module"),
        (False, "comment"),
    ]
    assert sections[2].code == ((4, "import a"),)


def test_a_hidden_docstring_is_not_shown_with_its_function() -> None:
    (section,) = cut('def f():\n    # sidelit: hide\n    """No."""\n    # sidelit: show\n    return 1\n')
    assert (section.commentary, section.commentary_line) == ("", 0)
    assert [number for number, _ in section.code] == [1, 5]


def test_markers_without_a_partner_are_reported() -> None:
    text = "# sidelit: show\nx = 1\n# sidelit: hide\n# sidelit: show\n# sidelit: hide\ny = 1\n"
    document = source.parse(text, "some.py")
    assert document.stray == (1, 5)
    assert [number for section in document.sections for number, _ in section.code] == [2]


# ## Bytes


def written(folder: Path, data: bytes) -> Path:
    path = folder / "some.py"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("data", "encoding"),
    [
        (b"x = 1\r\n", "utf-8"),
        (codecs.BOM_UTF8 + "x = 'é'\n".encode(), "utf-8-sig"),
        ("# coding: latin-1\nx = 'é'\n".encode("latin-1"), "iso8859-1"),
        ("#!x\n# coding=euc-jp\nx = '注'\n".encode("euc-jp"), "euc_jp"),
        ("# é coding: latin-1\n".encode("latin-1"), "iso8859-1"),
        (b"x = 1\n# coding: latin-1\n", "utf-8"),
        (b"", "utf-8"),
    ],
)
def test_the_encoding_is_pythons_choice_and_gives_the_bytes_back(
    tmp_path: Path, data: bytes, encoding: str
) -> None:
    document = source.read(written(tmp_path, data))
    assert document.encoding == encoding
    assert "".join(section.source for section in document.sections).encode(encoding) == data


@pytest.mark.parametrize(
    ("data", "line", "words"),
    [
        (b"# coding: utf-7\nx = 1\n", 1, "the encoding utf-7 cannot be written back"),
        (b"\n# coding: unicode_escape\n", 2, "the encoding unicode-escape cannot be written back"),
        (b"# coding: raw-unicode-escape\n", 1, "cannot be written back"),
        (b"# coding: iso2022-jp\nx = '\x1b(B'\n", 1, "cannot be written back"),
        (b"# coding: klingon\n", 1, "unknown encoding klingon"),
        (b"# coding: rot13\n", 1, "unknown encoding rot13"),
        (codecs.BOM_UTF8 + b"# coding: latin-1\n", 1, "byte order mark"),
        (b"x = 1\ny = '\xff'\n", 2, "not valid utf-8"),
        (b"x = 1\r\n\r\ny = (\n", 3, "not valid Python: '(' was never closed"),
        (b"x = 1\rif x:\ry = 1\r", 3, "not valid Python: expected an indented block"),
        (b"x = 1\n'''\n", 2, "not valid Python: unterminated triple-quoted string"),
        (b"x = 1\ny = '\x00'\n", 2, "not valid Python"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line_with_its_place(
    tmp_path: Path, data: bytes, line: int, words: str
) -> None:
    path = written(tmp_path, data)
    with pytest.raises(SidelitError) as caught:
        source.read(path)
    said = str(caught.value)
    assert said.startswith(f"{path}:{line}: ")
    assert words in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("text", "since", "line"),
    [
        ("try:\n    a\nexcept* A:\n    b\n", (3, 11), 3),
        ("a = b[1, *c]\n", (3, 11), 1),
        ("def f(*a: *T): ...\n", (3, 11), 1),
        ("\ndef first[T](many: list[T]) -> T: ...\n", (3, 12), 2),
        ("class A[T: (int, str), *Ts, **P](B): ...\n", (3, 12), 1),
        ("a = 1; type X[T] = list[T]\n", (3, 12), 1),
        ("'f[T]'; type X = int\n", (3, 12), 1),
        ("a = f'{b['c']}'\n", (3, 12), 1),
        ("a = f'{f'{f'{1}'}'}'\n", (3, 12), 1),
        ("a = (f'b'\n     rf'{'\\n'.join(c)!r:{d}}')\n", (3, 12), 2),
        ("a = f'\\N{DASH} {{ {\n    b  # c\n}'\n", (3, 12), 1),
        ("async def f(): return f'{await g(a['b']) == 1 = }'\n", (3, 12), 1),
        ("def f[T = int, *Ts = *tuple[int]](a): ...\n", (3, 13), 1),
        ("def f[T](a): ...\ntry:\n    a\nexcept A, B:\n    b\n", (3, 14), 4),
        ("a = t'{b!r:>{c}}'\n", (3, 14), 1),
        ("lazy from a import b\n", (3, 15), 1),
        ("a = [*b for b in c]\n", (3, 15), 1),
    ],
)
def test_syntax_of_a_newer_python_is_known_by_its_version(
    text: str, since: tuple[int, int], line: int
) -> None:
    def old(given: str) -> None:
        if given == text:
            raise SyntaxError
        syntax.tree(given)

    found = newer.newer(text, old, (3, 10))
    assert found is not None
    assert (found.since, found.line) == (since, line)


@pytest.mark.parametrize(
    "text",
    [
        *("a = f'{b c['d']}'\n", "a = f'{}{b['c']}'\n", "a = f'{b['c']\n", "a = f'{b['", "f'{f'{f'{"),
        *("def f[](a): ...\n", "def f[T](a): = 1\n", "class A[1 2]: ...\n", "'def f[T](a)'\nb = = 1\n"),
        *("try:\n    a\nexcept A, e:\n    print 'b'\n", "a = [" * 9_000, "f'{" * 9_000, "a[*b" * 9_000),
    ],
)
def test_what_no_python_reads_is_not_called_newer(text: str) -> None:
    assert newer.newer(text, syntax.tree, (3, 10)) is None


def test_who_runs_an_older_python_is_told_which_one_reads_a_file(tmp_path: Path) -> None:
    (tmp_path / "new.py").write_text('"""New."""\nlazy import json\n', encoding="utf-8")
    running = ".".join(map(str, sys.version_info[:2]))
    said = f"new.py:2: a lazy import needs Python 3.15 or newer, and the press runs on Python {running}; "
    said += "install the press with Python 3.15\n"
    assert sidelit("sections", "new.py", cwd=tmp_path, code=1).stderr == said
    (tmp_path / "old.py").write_text('"""Old."""\n', encoding="utf-8")
    assert sidelit("init", cwd=tmp_path).stderr == f"skipped: {said}"
    assert f"# {said}" in (tmp_path / "site/sidelit.toml").read_text("utf-8")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SidelitError, match=r"none\.py: the file cannot be read \(No such file"):
        source.read(tmp_path / "none.py")


def test_errors_use_the_name_that_is_shown(tmp_path: Path) -> None:
    with pytest.raises(SidelitError, match=r"^src/some\.py:1: not valid Python"):
        source.read(written(tmp_path, b"("), shown="src/some.py")


def test_text_with_a_byte_order_mark_or_lone_surrogates() -> None:
    (section,) = cut("\ufeffx = 1\n")
    assert (section.source, section.code) == ("\ufeffx = 1\n", ((1, "x = 1"),))
    with pytest.raises(SidelitError, match=r"some\.py:2: not valid Python"):
        cut("x = 1\ny = '\ud800'\n")


def test_nesting_beyond_pythons_parser_is_an_error_and_not_a_crash() -> None:
    with pytest.raises(SidelitError, match=r"some\.py:1: "):
        cut("x = " + "-" * 200_000 + "1\n")


# ## Errors


def test_an_error_prints_as_a_place_a_fault_and_a_way_out() -> None:
    assert (
        str(SidelitError("it is broken", path="a.py", line=3, hint="mend it"))
        == "a.py:3: it is broken; mend it"
    )
    assert str(SidelitError("it is broken", path=Path("a.py"))) == "a.py: it is broken"
    assert str(SidelitError("it is broken", line=3)) == "line 3: it is broken"
    assert str(SidelitError("it is broken")) == "it is broken"


INTRODUCED = """#!/bin/python
# Licence: Copyright A.
from __future__ import (
    a,
)
from __future__ import b

"""


def test_a_string_below_imports_from_the_future_is_what_its_author_says_of_the_module() -> None:
    words = '"""# Title\n\nText.\n"""\n\nimport os\n\nX = 1\n'
    (section,) = source.parse(INTRODUCED + words, "a.py").sections
    assert (section.kind, section.commentary, section.commentary_line) == ("module", "# Title\n\nText.", 8)
    # The imports stay code.
    assert [row for row, _ in section.importing] == [1, 2, 3, 4, 5, 6, 7, 12, 13]
    assert section.source == INTRODUCED + words


@pytest.mark.parametrize(
    "text",
    [
        'from __future__ import a; """Text."""\nX = 1\n',
        'from __future__ import a\n"""Text."""; X = 1\n',
        'from __future__ import a\nX = 1\n"""Text."""\n',
        'from .__future__ import a\n"""Text."""\n',
        'import os\n"""Text."""\n',
    ],
)
def test_a_string_that_shares_its_lines_or_stands_below_other_code_is_none_of_it(text: str) -> None:
    assert [section.kind for section in source.parse(text, "a.py").sections if section.commentary] in (
        [],
        ["comment"],
    )
    assert "".join(section.source for section in source.parse(text, "a.py").sections) == text


def test_a_module_with_a_docstring_has_no_second_one_below_its_imports() -> None:
    text = '"""Text."""\nfrom __future__ import a\n"""More."""\nX = 1\n'
    (section,) = source.parse(text, "a.py").sections
    assert section.commentary == "Text."
    assert [row for row, _ in section.code] == [2, 3, 4]


@pytest.mark.parametrize(
    ("comment", "words"),
    [
        ("# Routing ######", "Routing"),
        ("#########\n# Routing #\n# Views ##\n#########", "Routing #\nViews"),
        ("# ## Routing ##\n#\n# C # is not C ##, nor F## ####", "## Routing\n\nC # is not C ##, nor F##"),
        ("# ```\n# a ##\n# ```\n#\n#     b ##", "```\na ##\n```\n\n    b ##"),
        ("#\n# ##\n# x", "##\nx"),
    ],
)
def test_signs_that_close_a_line_of_a_comment_are_no_words(comment: str, words: str) -> None:
    text = f"{comment}\n\nX = 1\n"
    (section,) = source.parse(text, "a.py").sections
    assert (section.commentary, section.source) == (words, text)
