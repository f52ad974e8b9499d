"""A chapter names the tests that prove it: they are found without being run, and its page leads to them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from press.project import edit, page, sidelit, unbroken

ENTRY = '{ source = "ring.py", run = "python -m sample.ring" }'
TESTS = '''"""Tests of the ring."""

raise RuntimeError("nobody runs this")


def test_put():
    def test_inside(): ...


class TestMany:
    """Several."""

    @property
    def test_last(self): ...

    class TestDeep:
        def test_deeper(self): ...


if True:

    async def test_later(): ...


test_assigned = test_put
'''


@pytest.fixture
def tested(sample: Path) -> Path:
    (sample / "tests").mkdir()
    (sample / "tests/ring.py").write_text(TESTS, encoding="utf-8")
    return sample


def prove(sample: Path, *names: str, run: str = "python -m sample.ring") -> int:
    """Let the chapter name its tests, one a line; return the line of the first."""
    said = "".join(f'        "{name}",\n' for name in names)
    return (
        edit(
            sample / "site/sidelit.toml",
            ENTRY,
            f'{{ source = "ring.py", run = "{run}", proves = [\n{said}    ] }}',
        )
        + 1
    )


def foot(sample: Path, name: str) -> str:
    """The part of the foot that lists the tests."""
    html = (sample / "build/site" / name).read_text(encoding="utf-8")
    found = re.search(r'(?s)<div class="proofs">.*?</div>', html)
    return found[0].replace("<wbr>", "") if found else ""


ALL = [
    "tests/ring.py",
    "tests/ring.py::test_put",
    "tests/ring.py::TestMany",
    "tests/ring.py::TestMany::test_last",
    "tests/ring.py::TestMany::TestDeep::test_deeper",
    "tests/ring.py::test_later",
]


def test_the_foot_of_a_page_names_the_tests(tested: Path) -> None:
    prove(tested, *ALL)
    edit(tested / "site/sidelit.toml", "source_url = ", "# source_url = ")
    sidelit("build", cwd=tested)
    for name, words in (
        ("ring.html", "Proved by"),
        ("ja/ring.html", "検証するテスト"),
        ("zh/ring.html", "验证测试"),
    ):
        html = foot(tested, name)
        assert f"<dt>{words}</dt>" in html
        assert re.findall("<li><code>(.*?)</code></li>", html) == ALL
    assert foot(tested, "tools/window.html") == ""
    assert foot(tested, "index.html") == ""


def test_they_lead_to_their_lines_where_sources_have_addresses(tested: Path) -> None:
    prove(tested, *ALL)
    edit(tested / "site/sidelit.toml", "blob/{commit}/{path}#L{line}", "blob/main/{path}#L{line}")
    sidelit("build", cwd=tested)
    links = [address for address in page(tested / "build/site", "ring.html").addresses if "tests/" in address]
    assert links == [
        f"https://example.org/blob/main/tests/ring.py#L{line}" for line in (1, 6, 10, 13, 17, 22)
    ]


def test_an_address_that_wants_a_commit_is_left_out_without_one(tested: Path) -> None:
    prove(tested, ALL[0])
    sidelit("build", cwd=tested)
    assert "<a " not in foot(tested, "ring.html")


def listed(sample: Path, name: str) -> list[str]:
    """What a page says of each test: the chapter, what the test states, its name."""
    html = unbroken((sample / "build/site" / name).read_text(encoding="utf-8"))
    (found,) = re.findall(r'(?s)<div class="proved">(.*?)</details>', html)
    return re.findall(r"<(?:dt|dd)>(.*?)</(?:dt|dd)>", found)


def test_a_page_lists_the_tests_of_all_chapters_with_what_they_state(tested: Path) -> None:
    prove(tested, *ALL[:4])
    edit(
        tested / "tests/ring.py", "Tests of the ring.", "Whoever calls `put`\nfinds it again.\n\nMore of it."
    )
    edit(tested / "site/sidelit.toml", "source_url = ", "# source_url = ")
    with (tested / "site/pages/notes/reading.md").open("a", encoding="utf-8") as file:
        file.write("\n::: proofs\n:::\n")
    sidelit("build", cwd=tested)
    assert listed(tested, "notes/reading.html") == [
        '<a href="../ring.html">A ring</a>',
        "<span>Whoever calls <code>put</code> finds it again.</span> <code>tests/ring.py</code>",
        "<span>put</span> <code>tests/ring.py::test_put</code>",
        "<span>Several.</span> <code>tests/ring.py::TestMany</code>",
        "<span>last</span> <code>tests/ring.py::TestMany::test_last</code>",
    ]
    # A test is not translated, and the page says in which language it speaks.
    assert '<span lang="en">Several.</span>' in listed(tested, "ja/notes/reading.html")[3]


def test_a_test_that_states_something_else_is_shown_by_the_next_build(tested: Path) -> None:
    prove(tested, ALL[2])
    with (tested / "site/pages/notes/reading.md").open("a", encoding="utf-8") as file:
        file.write("\n::: proofs\n:::\n")
    sidelit("build", cwd=tested)
    edit(tested / "tests/ring.py", '"""Several."""', '"""Some of them."""')
    sidelit("build", cwd=tested)
    assert "<span>Some of them.</span>" in listed(tested, "notes/reading.html")[1]


def test_a_formula_in_what_a_test_states_is_as_it_is_written(tested: Path) -> None:
    prove(tested, ALL[2])
    edit(tested / "tests/ring.py", '"""Several."""', '"""It is $\\theta \\times 2$."""')
    with (tested / "site/pages/notes/reading.md").open("a", encoding="utf-8") as file:
        file.write("\n::: proofs\n:::\n")
    sidelit("build", cwd=tested)
    assert r"<span>It is $\theta \times 2$.</span>" in listed(tested, "notes/reading.html")[1]


def test_tests_stand_below_any_number_of_branches(tested: Path) -> None:
    name = "tests/ring.py::test_at_last"
    prove(tested, name)
    with (tested / "tests/ring.py").open("a", encoding="utf-8") as file:
        file.write(
            "if 1:\n    pass\n" + "elif 1:\n    pass\n" * 1500 + "else:\n    def test_at_last(): ...\n"
        )
    sidelit("build", cwd=tested)
    assert f"<li><code>{name}</code></li>" in foot(tested, "ring.html")


def test_tests_that_are_nested_too_deeply_are_refused_with_their_file(tested: Path) -> None:
    prove(tested, ALL[0])
    (tested / "tests/ring.py").write_text("x = " + "-" * 100_000 + "1\n", encoding="utf-8")
    told = sidelit("build", cwd=tested, code=1).stderr
    assert told == "tests/ring.py:1: nested too deeply for Python's parser\n"


def test_a_list_of_tests_wants_some(tested: Path) -> None:
    with (tested / "site/pages/notes/reading.md").open("a", encoding="utf-8") as file:
        file.write("\n::: proofs\n:::\n")
    assert (
        "no chapter of the project names a test; `proves` of a chapter"
        in sidelit("build", cwd=tested, code=1).stderr
    )


@pytest.mark.cases(now=1, ci=1)
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tests/rings.py", "the file tests/rings.py does not exist"),
        ("tests/rings.py::test_put", "the file tests/rings.py does not exist"),
        (
            "tests/ring.py::test_putt",
            "tests/ring.py has no function or class 'test_putt'; did you mean 'test_put'?",
        ),
        (
            "tests/ring.py::TestMany::test_deeper",
            "tests/ring.py has no function or class 'TestMany::test_deeper'",
        ),
        (
            "tests/ring.py::test_put::test_inside",
            "tests/ring.py has no function or class 'test_put::test_inside'",
        ),
        ("tests/ring.py::test_assigned", "tests/ring.py has no function or class 'test_assigned'"),
        ("tests/ring.py::TestMany.test_last", "tests/ring.py has no function or class 'TestMany.test_last'"),
        ("tests/ring.py::test_put[1]", "tests/ring.py has no function or class 'test_put[1]'"),
    ],
)
def test_a_test_that_is_not_there_is_told_at_its_line(tested: Path, name: str, said: str) -> None:
    line = prove(tested, "tests/ring.py::test_put", name) + 1
    for command in ("build", "lint"):
        told = sidelit(command, cwd=tested, code=1).stderr
        assert re.sub(r"^(\S+ )proves: ", r"\1", told).startswith(f"site/sidelit.toml:{line}: {said}")
        assert told.count("\n") == 1
    assert not (tested / "build/site").exists()


@pytest.mark.parametrize(
    "name", ["/tests/ring.py", "../ring.py", "tests/ring", "tests//ring.py", "::test_put", ""]
)
def test_what_is_no_name_of_a_test_is_refused(tested: Path, name: str) -> None:
    line = prove(tested, name) - (not name)
    told = sidelit("status", cwd=tested, code=1).stderr
    assert told.startswith(
        f"site/sidelit.toml:{line}: {name!r} in `proves` is not the name of a test; name a file"
    )


def test_a_name_that_stands_there_twice_is_refused(tested: Path) -> None:
    prove(tested, ALL[1], ALL[1])
    assert f"`proves` names {ALL[1]!r} twice" in sidelit("build", cwd=tested, code=1).stderr


@pytest.mark.parametrize("value", ["1", '"tests/ring.py"', "[1]"])
def test_it_is_a_list_of_strings(tested: Path, value: str) -> None:
    edit(tested / "site/sidelit.toml", ENTRY, ENTRY.replace(" }", f", proves = {value} }}"))
    told = sidelit("build", cwd=tested, code=1).stderr
    assert re.match(r"site/sidelit\.toml:\d+: `proves` must be a list", told)


@pytest.mark.cases(now=1, ci=1)
@pytest.mark.parametrize(
    ("run", "right"),
    [
        ("python -m pytest tests/ring.py", True),
        ("pytest -q tests/ring.py::test_put", True),
        ("pytest tests/other.py", False),
        ("python -m pytest tests/ring.py tests/other.py::test_x", False),
        ("python tests/other.py", True),
        ("pytest 'tests/other.py", True),
    ],
)
def test_the_command_of_a_chapter_starts_no_other_test(tested: Path, run: str, right: bool) -> None:
    line = prove(tested, "tests/ring.py::test_put", run=run)
    done = sidelit("build", cwd=tested, code=0 if right else 1)
    said = f"site/sidelit.toml:{line - 1}: `run` starts tests/other.py, which `proves` does not name"
    assert done.stderr.startswith(said) != right


def test_a_file_of_tests_that_is_no_python_is_told_at_its_own_line(tested: Path) -> None:
    prove(tested, ALL[1])
    edit(tested / "tests/ring.py", "def test_put():", "def test_put(:")
    assert sidelit("build", cwd=tested, code=1).stderr.startswith("tests/ring.py:6: not valid Python")


def test_all_mistakes_are_told_at_once(tested: Path) -> None:
    line = prove(tested, "tests/none.py", "tests/ring.py::none")
    told = sidelit("build", cwd=tested, code=1).stderr.splitlines()
    assert [text.split(" ")[0] for text in told] == [f"site/sidelit.toml:{line + n}:" for n in range(2)]
