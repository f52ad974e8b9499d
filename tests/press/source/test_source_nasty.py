"""Programs that nobody would write, made by hypothesis: whatever Python accepts comes back whole."""

from __future__ import annotations

import ast
import warnings
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidelit.errors import SidelitError
from sidelit.ids import matching
from sidelit.source import source
from sidelit.source.source import Document, Section

# Pieces that mean something to a tokenizer, thrown together at random: most are no Python, and some are.
SCRAPS = [
    *"\n\n\n\r\t\f \\#:;()[]{}\"'@=x1,é",
    *("\r\n", "    ", "# c\n", '"""', "'''", 'f"', 'rb"', "f'{", "}'", "\\\n", "\ufeff", "\u2028", "\x0b"),
    *(
        "def f():",
        "class A:",
        "if x:",
        "else:",
        "async ",
        "await x",
        "match x:",
        "case _:",
        "lambda: 0",
        "pass",
    ),
    *(
        "# sidelit: hide\n",
        "# sidelit: show\n",
        "# sidelit: depth Rare.\n",
        "# sidelit: core\n",
        "# type: int\n",
        "@d\n",
        '"doc"\n',
        "    # c\n",
        "\n    pass\n",
    ),
]


def valid(text: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ast.parse(text.removeprefix("\ufeff"))
        except (SyntaxError, ValueError):
            return False
    return True


def plain(text: str) -> str:
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def assert_whole(document: Document, text: str) -> None:
    assert "".join(section.source for section in document.sections) == text
    following = 1
    for section in document.sections:
        assert section.first_line == following
        assert section.last_line >= section.first_line
        following = section.last_line + 1
    ids = matching.propose(document.sections)
    assert len(set(ids)) == len(ids)


@given(st.lists(st.sampled_from(SCRAPS), max_size=14).map("".join))
def test_any_text_comes_back_or_is_refused_as_python_refuses_it(text: str) -> None:
    document: Document | None
    try:
        document = source.parse(text, "nasty.py")
    except SidelitError as error:
        document, place = None, error.line
    else:
        place = None
    assert valid(text) == (document is not None)
    if document is None:
        assert place
    else:
        assert_whole(document, text)


# ## Valid programs

EXPRESSIONS = st.sampled_from(
    [
        "x = 1",
        "x = '# no comment'",
        'x = f"# {a!r:>{3}} #"',
        "x = '''\n# in a string\n  deeper'''",
        "x = [\n# in brackets\n1,  # trailing\n\n]",
        "x = 1 + \\\n  2",
        "x = 1; y = 2  # trailing",
        "\\\nx = 1",
        "lambda: (\n  # inside\n  0)",
        'print("a" "b"\n"c")',
        "pass  # sidelit: hide",
    ]
)
DOCSTRINGS = st.sampled_from(
    [
        '"""One line."""',
        "'''Several\n\n    lines.\n    '''",
        'r"""$\\nu$"""  # trailing',
        '"""\\\nlifted"""',
        '"one " "two"',
        '("in"\n # said\n "brackets")',
        'u"old"',
        '"shares"; x = 1',
        '"""shares\na"""; y = 2',
        'f"none"',
        'b"none"',
        '""',
    ]
)
DEPTH, CORE = "# sidelit: depth Rare.", "# sidelit: core"
COMMENTS = st.sampled_from(
    [
        *("# Said.", "#", "# noqa", "# type: int", "#tight", "## Twice"),
        *("# sidelit: hide", "# sidelit: show", DEPTH, CORE, "# sidelit: depth"),
    ]
)
HEADERS = st.sampled_from(
    [
        "def f():",
        "async def g(a,\n   # in the header\n   b):",
        "class A:  # trailing",
        "class B(\n object):",
        "if x:",
        "for i in y:",
        "while x:",
        "with a as b, c:",
        "try:",
        "match x:",
    ]
)
ONE_LINERS = st.sampled_from(
    ['def one(): "doc"', "class C: pass", "if x: pass", "async def two(): return 1; x = 2"]
)


@st.composite
def lines(draw: st.DrawFn, depth: int = 0) -> list[tuple[int | None, str]]:
    """A block: its lines with their depth, or `None` where the column does not matter."""
    found: list[tuple[int | None, str]] = []
    for _ in range(draw(st.integers(1, 3))):
        for _ in range(draw(st.integers(0, 2))):
            found.append((draw(st.sampled_from([None, depth])), draw(COMMENTS)))
        found += [(None, "")] * draw(st.integers(0, 1))
        if depth < 3 and draw(st.booleans()):
            found += draw(compound(depth))
        else:
            found.append((depth, draw(st.one_of(EXPRESSIONS, ONE_LINERS))))
    found += [(None, draw(COMMENTS))] * draw(st.integers(0, 1))
    return found


@st.composite
def compound(draw: st.DrawFn, depth: int) -> list[tuple[int | None, str]]:
    header = draw(HEADERS)
    found: list[tuple[int | None, str]] = []
    if header.startswith(("def", "async", "class")):
        for _ in range(draw(st.integers(0, 2))):
            found.append((depth, draw(st.sampled_from(["@a", "@b.c(\n1\n)", "@ \\\n d"]))))
            found += [(None, "# between")] * draw(st.integers(0, 1))
    found.append((depth, header))
    if header.startswith("match"):
        found.append((depth + 1, "case [_, *_] if x:"))
        return found + draw(lines(depth + 2))
    if draw(st.booleans()):
        found += [(depth + 1, draw(COMMENTS))] * draw(st.integers(0, 1))
        found.append((depth + 1, draw(DOCSTRINGS)))
    found += draw(lines(depth + 1))
    if header == "try:":
        found.append((depth, "except OSError:"))
        found += draw(lines(depth + 1))
    if header == "if x:" and draw(st.booleans()):
        found.append((depth, "else:"))
        found += draw(lines(depth + 1))
    return found


@st.composite
def drafts(draw: st.DrawFn) -> str:
    unit = draw(st.sampled_from(["    ", "\t", " ", "  \t", "\x0c    "]))
    body: list[tuple[int | None, str]] = [(0, draw(DOCSTRINGS))] if draw(st.booleans()) else []
    body += draw(lines())
    text = "".join(
        (" " * draw(st.integers(0, 9)) if depth is None else unit * depth) + line + "\n"
        for depth, line in body
    )
    newline = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    text = draw(st.sampled_from(["", "\ufeff", "#!/x\n", "\n\x0c\n"])) + text
    return text.removesuffix("\n" * draw(st.integers(0, 1))).replace("\n", newline)


def simple_statements(tree: ast.AST) -> list[tuple[int, int]]:
    """First and last line of each statement that holds no others."""
    return [
        (node.lineno, node.end_lineno or node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and not isinstance(node, ast.Match) and not hasattr(node, "body")
    ]


# A lone backslash before a statement sets its indentation, and now and then that makes no sense.
PROGRAMS = drafts().filter(valid)


@pytest.mark.full
@given(PROGRAMS)
def test_nasty_programs_come_back_with_every_statement_in_one_piece(text: str) -> None:
    document = source.parse(text, "nasty.py")
    assert_whole(document, text)
    home = {
        row: index
        for index, section in enumerate(document.sections)
        for row in range(section.first_line, section.last_line + 1)
    }
    tree = ast.parse(plain(text))
    for first, last in simple_statements(tree):
        assert home[first] == home[last]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            section = document.sections[home[node.lineno]]
            assert section.kind == ("class" if isinstance(node, ast.ClassDef) else "function")
            assert section.qualname.rpartition(".")[2] == node.name
            assert all(home[each.lineno] == home[node.lineno] for each in node.decorator_list)


def names(tree: ast.AST, around: str = "") -> list[str]:
    found: list[str] = []
    for child in ast.iter_child_nodes(tree):
        name = around
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{around}.{child.name}" if around else child.name
            found.append(name)
        found += names(child, name)
    return found


@pytest.mark.full
@given(PROGRAMS)
def test_nasty_programs_have_all_their_names_and_all_their_words(text: str) -> None:
    document = source.parse(text, "nasty.py")
    tree = ast.parse(plain(text))
    named = [section.qualname for section in document.sections if section.kind in ("class", "function")]
    assert named == names(tree)
    shown = {number for section in document.sections for number, _ in section.code}
    inside = {row for first, last in simple_statements(tree) for row in range(first, last + 1)}
    hidden = hidden_rows(plain(text).split("\n"), inside)
    said = "\n".join(section.commentary for section in document.sections)
    for row, line in enumerate(plain(text).split("\n"), start=1):
        if row in hidden:
            assert row not in shown
        elif line.strip() in ("# Said.", "#tight", "## Twice") and row not in inside:
            assert row not in shown
            assert line.strip("# \t\x0c") in said
        elif line.strip() in ("# noqa", "# type: int", "# between", "# in the header"):
            assert row in shown


def hidden_rows(rows: list[str], inside: set[int]) -> set[int]:
    found: set[int] = set()
    hiding = False
    for row, line in enumerate(rows, start=1):
        marker = line.strip().removeprefix("# sidelit: ") if line.strip().startswith("# sidelit: ") else ""
        hiding = hiding or marker == "hide"
        if hiding or marker:
            found.add(row)
        hiding = hiding and marker != "show"
    return found


# ## Depth


def marks(text: str, inside: set[int]) -> dict[int, str]:
    """The rows of marks between statements, where they count."""
    lines = enumerate(plain(text).split("\n"), start=1)
    said = {row: line.strip(" \t\x0c") for row, line in lines if row not in inside}
    return {row: line for row, line in said.items() if line in (DEPTH, CORE)}


@pytest.mark.full
@given(PROGRAMS)
def test_depth_is_what_begins_between_its_mark_and_the_end_of_its_block(text: str) -> None:
    document = source.parse(text, "nasty.py")
    statements = simple_statements(ast.parse(plain(text)))
    known = marks(text, {row for first, last in statements for row in range(first, last + 1)})
    sections = document.sections
    for before, section in pairwise(sections):
        if (depth := section.depth) is None:
            continue
        assert known[depth.line] == DEPTH
        assert depth.line < section.first_line
        # It follows its mark, or a section of the same stretch: only the opening may interrupt it.
        assert before.last_line >= depth.line if before.depth != depth else True
        assert before.depth == depth or before.first_line <= depth.line or before.kind == "module"
        assert f"{section.qualname}.".startswith(f"{depth.qualname}." if depth.qualname else "")
        assert not [row for row in range(depth.line, section.first_line) if known.get(row) == CORE]
    # A mark with which nothing is wrong speaks of the section that readers see below it.
    wrong = {fault.line for fault in document.faults}
    starts = {section.first_line: section for section in sections if not section.hidden}
    for row, mark in known.items():
        after = starts.get(min((start for start in starts if start > row), default=0))
        following = min((other for other in known if other > row), default=len(text) + 1)
        if row not in wrong and after and after.first_line < following:
            assert after.depth and after.depth.line == row if mark == DEPTH else after.depth is None


@pytest.mark.nightly
@given(PROGRAMS)
def test_marks_of_depth_change_nothing_but_depth(text: str) -> None:
    """Beside the same file with notes to another tool in their places."""
    other = (
        text.replace(DEPTH, "# fmt: Rare.").replace(CORE, "# fmt: core").replace("# sidelit: depth", "# fmt:")
    )
    one, two = source.parse(text, "nasty.py"), source.parse(other, "nasty.py")
    if plain(text).lstrip().startswith("# sidelit: "):
        return
    assert [cut(section) for section in one.sections] == [cut(section) for section in two.sections]
    assert not two.faults


def cut(section: Section) -> tuple[object, ...]:
    return section.qualname, section.first_line, section.last_line, section.indent, section.commentary
