"""Labs of a small project: a page, and notebooks for students and for teachers in each language."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jupytext
import nbformat
import pytest

from press.project import edit, git, page, sidelit, translate, tree

LAB = '''\
# %% [markdown]
# # Fill a ring
# > A ring forgets; you will see what.
#
# :minutes: 20
# :lesson: row
# :needs: [how to read](../site/pages/notes/reading.md)
# :aim: fill a ring of $n$ items
#
# Some words, over
# two lines, about [the ring](src:sample/ring.py#Ring.put).

# %%
from collections import deque

ring = deque(maxlen=2)

# %% [markdown]
# ## One more item
#
# | size | kept |
# |---|---|
# | small `a\\|b` | the last |
#
# ::: question
# What is lost?
# ---
# The *first* item.
# :::
#
# - An item
#   of a list.
#
# ::: hint
# Use `append`.
# :::

# %% exercise="put"
def put(item):
    """Put an item into the ring."""
    ### BEGIN SOLUTION
    ring.append(item)
    ### END SOLUTION


# %% check="put" points=3
for item in range(3):
    put(item)
assert list(ring) == [1, 2], "```"
'''
LABS = """[course]
label = "Course"
lessons = [{ source = "lessons/row.md" }]

[labs]
label = "Labs"
labs = [{ source = "01_fill_a_ring.py" }]

[[parts]]
number"""
LESSON = """# Items in a row
> A ring keeps the last items.
:minutes: 5
:aim: say what a ring forgets

::: lab 1
Do it.
:::

::: labs
:::
"""
SOURCE, CONFIG = "notebooks/01_fill_a_ring.py", "site/sidelit.toml"
WORDS = {
    "Fill a ring": "リングを満たす",
    "Some words, over two lines, about [the ring](src:sample/ring.py#Ring.put).": (
        "[リング](src:sample/ring.py#Ring.put)についての話です。"
    ),
    "What is lost?": "何が失われますか。",
    "small `a|b`": "1つの`a|b`",
    "An item of a list.": "項目です。",
    "Labs": "ラボ",
}


@pytest.fixture
def labs(sample: Path) -> Path:
    """The sample project with a lesson and its lab."""
    (sample / "site/lessons").mkdir()
    (sample / "site/lessons/row.md").write_text(LESSON, encoding="utf-8")
    (sample / "notebooks").mkdir()
    (sample / SOURCE).write_text(LAB, encoding="utf-8")
    edit(sample / CONFIG, "[[parts]]\nnumber", LABS)
    return sample


def notebook(folder: Path, lang: str = "en", who: str = "") -> Any:
    return nbformat.read(folder / "notebooks" / who / lang / "01_fill_a_ring.ipynb", as_version=4)


def in_japanese(labs: Path) -> None:
    sidelit("sync", cwd=labs)
    words = {text: said for text, said in WORDS.items() if text != "Labs"}
    translate(labs / "site/locale/ja/labs/fill_a_ring.po", words)
    translate(labs / "site/locale/ja/site.po", {"Labs": WORDS["Labs"]})


# ## The notebooks


def test_the_student_has_a_blank_where_the_teacher_has_the_solution(labs: Path) -> None:
    sidelit("lab", cwd=labs)
    student, teacher = (notebook(labs, who=who) for who in ("", "teacher"))
    (asked,) = (cell for cell in student.cells if cell.id == "put")
    (solved,) = (cell for cell in teacher.cells if cell.id == "put")
    assert asked.source.splitlines()[1:] == [
        '    """Put an item into the ring."""',
        "    # YOUR CODE HERE",
        "    raise NotImplementedError()",
    ]
    assert "    ring.append(item)\n" in solved.source
    codes = (
        [cell.source for cell in made.cells if cell.cell_type == "code" and cell.id != "put"]
        for made in (student, teacher)
    )
    assert next(codes) == next(codes)


def test_nbgrader_finds_what_it_grades_by(labs: Path) -> None:
    sidelit("lab", cwd=labs)
    graded = [cell.metadata.nbgrader for cell in notebook(labs).cells if "nbgrader" in cell.metadata]
    common = {"schema_version": 3, "task": False}
    assert graded == [
        {"grade": False, "grade_id": "put", "locked": False, "solution": True, **common},
        {"grade": True, "grade_id": "put-check", "locked": True, "solution": False, "points": 3, **common},
    ]


def test_the_code_is_the_same_in_every_language_and_the_words_are_not(labs: Path) -> None:
    in_japanese(labs)
    sidelit("lab", cwd=labs)
    english, japanese = notebook(labs), notebook(labs, "ja")
    assert [cell.id for cell in english.cells] == [cell.id for cell in japanese.cells]
    pairs = [pair for pair in zip(english.cells, japanese.cells, strict=True) if pair[0].cell_type == "code"]
    assert [own for own, _ in pairs] == [other for _, other in pairs]
    assert len(pairs) == 3
    said = "\n\n".join(cell.source for cell in japanese.cells if cell.cell_type == "markdown")
    assert said.startswith("# リングを満たす\n> A ring forgets; you will see what.\n\n- 20分\n")
    assert "\n[リング](../../src/sample/ring.py)についての話です。\n" in said + "\n"
    assert "| 1つの`a\\|b` | the last |" in said
    assert "<summary>答え</summary>\n\nThe *first* item.\n\n</details>" in said
    assert "- 項目です。\n" in said
    assert "**問い**\n\n何が失われますか。" in said
    assert said.count("<details>") == said.count("</details>") == 2
    assert ":::" not in said


def test_links_of_a_notebook_lead_to_files_or_in_public_to_pages(labs: Path) -> None:
    sidelit("lab", cwd=labs)
    student, teacher = (notebook(labs, who=who).cells[0].source for who in ("", "teacher"))
    assert "[how to read](../../site/pages/notes/reading.md)" in student
    assert "[how to read](../../../site/pages/notes/reading.md)" in teacher
    assert "Belongs to the lesson: [Items in a row](../../site/lessons/row.md)" in student
    edit(labs / CONFIG, 'title = "Sample"', 'title = "Sample"\nurl = "https://example.org/book"')
    sidelit("lab", cwd=labs)
    first = notebook(labs, "ja").cells[0].source
    assert "](https://example.org/book/ja/ring.html#Ring.put)" in first
    assert "](https://example.org/book/ja/row.html)" in first


def test_jupytext_reads_the_code_of_the_notebook_in_the_source(labs: Path) -> None:
    sidelit("lab", cwd=labs)
    own = jupytext.read(labs / SOURCE, fmt="py:percent")
    made = notebook(labs, who="teacher")
    codes = ([cell.source for cell in each.cells if cell.cell_type == "code"] for each in (own, made))
    assert next(codes) == next(codes)


def test_a_notebook_installs_what_is_missing_before_anything_runs(labs: Path) -> None:
    edit(labs / CONFIG, 'label = "Labs"', 'label = "Labs"\ninstall = "no-such-rings[labs]>=2"')
    sidelit("lab", cwd=labs)
    codes = [cell for cell in notebook(labs).cells if cell.cell_type == "code"]
    assert codes[0].id == "install"
    assert 'find_spec("no_such_rings") is None' in codes[0].source
    assert '"--quiet", "no-such-rings[labs]>=2"], check=True)' in codes[0].source
    edit(labs / CONFIG, "no-such-rings[labs]>=2", "jupytext")
    sidelit("lab", cwd=labs)
    exec(notebook(labs).cells[1].source, {})
    edit(labs / CONFIG, "jupytext", "rm -rf")
    told = sidelit("lab", cwd=labs, code=1).stderr
    assert "'rm -rf' is nothing that pip installs" in told


def test_the_same_lab_is_the_same_bytes_and_is_written_once(labs: Path) -> None:
    told = sidelit("lab", cwd=labs).stdout
    assert told.endswith("6 notebooks are up to date.\n")
    assert len(told.splitlines()) == 7
    before = tree(labs / "notebooks")
    assert sidelit("lab", cwd=labs).stdout == "6 notebooks are up to date.\n"
    assert tree(labs / "notebooks") == before
    sidelit("lab", "--check", cwd=labs)


def test_a_check_names_what_is_not_as_it_should_be_and_writes_nothing(labs: Path) -> None:
    sidelit("lab", cwd=labs)
    (labs / "notebooks/ja/gone.ipynb").write_text("{}", encoding="utf-8")
    edit(labs / SOURCE, "maxlen=2", "maxlen=3")
    before = tree(labs / "notebooks")
    told = sidelit("lab", "--check", cwd=labs, code=1).stderr.splitlines()
    assert told[0] == "notebooks/en/01_fill_a_ring.ipynb is not what its lab is today: run `sidelit lab`"
    assert len(told) == 7
    assert tree(labs / "notebooks") == before
    assert "notebooks/ja/gone.ipynb\n" in sidelit("lab", cwd=labs).stdout
    assert not (labs / "notebooks/ja/gone.ipynb").exists()


# ## The page


def build(labs: Path) -> str:
    sidelit("lab", cwd=labs)
    sidelit("build", cwd=labs)
    return (labs / "build/site/labs/fill_a_ring.html").read_text(encoding="utf-8")


def test_the_page_shows_the_blank_the_solution_and_the_notebook(labs: Path) -> None:
    text = build(labs)
    assert "Lab 1" in text
    assert "raise</span> <span class=" in text or "NotImplementedError" in text
    assert "### BEGIN SOLUTION" not in text
    assert text.count("<summary>Solution</summary>") == 1
    assert text.count("<summary>Hint</summary>") == 1
    assert 'href="fill_a_ring.ipynb" download' in text
    assert "Colab" not in text
    site = labs / "build/site"
    for lang, there in (("en", "labs"), ("ja", "ja/labs")):
        made = (labs / f"notebooks/{lang}/01_fill_a_ring.ipynb").read_bytes()
        assert (site / there / "fill_a_ring.ipynb").read_bytes() == made
    assert 'href="../row.html"' in text


@pytest.mark.nightly
def test_a_lesson_leads_to_its_lab_and_lists_all_labs(labs: Path) -> None:
    build(labs)
    text = page(labs / "build/site", "row.html")
    assert text.addresses.count("labs/fill_a_ring.html") >= 3
    edit(labs / "site/lessons/row.md", "::: lab 1", "::: lab 2")
    assert sidelit("build", cwd=labs, code=1).stderr.endswith(": there is no lab '2'; there is 1\n")
    edit(labs / CONFIG, 'label = "Labs"', 'label = "Labs"\ncoming = [2]')
    sidelit("build", cwd=labs)
    assert "Lab 2, in preparation" in (labs / "build/site/row.html").read_text(encoding="utf-8")


def test_a_lab_that_is_coming_keeps_its_number(labs: Path) -> None:
    edit(labs / CONFIG, 'label = "Labs"', 'label = "Labs"\ncoming = [1]')
    edit(labs / "site/lessons/row.md", "::: lab 1", "::: lab 2")
    assert "Lab 2" in build(labs)


def test_the_page_says_where_the_notebook_opens(labs: Path) -> None:
    edit(labs / CONFIG, 'title = "Sample"', 'title = "Sample"\njupyter_url = "https://lab.example/{path}"')
    assert 'href="https://lab.example/notebooks/en/01_fill_a_ring.ipynb"' in build(labs)


@pytest.mark.nightly
def test_with_an_address_a_page_opens_a_notebook_that_installs_the_repository(labs: Path) -> None:
    edit(labs / CONFIG, 'label = "Labs"', 'label = "Labs"\ninstall = "rings[labs] @ git+{repository}"')
    # What no repository is known for is not installed, and where it is missing nothing runs.
    assert "Colab" not in build(labs)
    assert all(cell.id != "install" for cell in notebook(labs).cells)
    git(labs, "init", "-q")
    git(labs, "add", "-A")
    git(labs, "commit", "-qm", "All of it")
    sidelit("versions", "--draft", "--url", "https://ada.github.io/loom/", cwd=labs)
    drafted = (labs / "build/versions/labs/fill_a_ring.html").read_text(encoding="utf-8")
    assert "https://ada.github.io/loom/" in drafted
    assert "Colab" not in drafted
    edit(labs / CONFIG, 'title = "Sample"', 'url = "https://ada.github.io/loom/"\ntitle = "Sample"')
    assert "is not what its lab is today" in sidelit("lab", "--check", cwd=labs, code=1).stderr
    build(labs)
    commit = git(labs, "rev-parse", "HEAD").strip()
    colab = f"https://colab.research.google.com/github/ada/loom/blob/{commit}/notebooks"
    for lang, file in (("en", "labs/fill_a_ring.html"), ("ja", "ja/labs/fill_a_ring.html")):
        made = page(labs / "build/site", file)
        assert f"{colab}/{lang}/01_fill_a_ring.ipynb" in made.addresses
        first = next(cell for cell in notebook(labs, lang).cells if cell.cell_type == "code")
        assert '"rings[labs] @ git+https://github.com/ada/loom"' in first.source


def test_recorded_outputs_stand_below_their_cells(labs: Path) -> None:
    svg = (
        '<svg xmlns="http://www.w3.org/2000/svg" width="90pt" viewBox="0 0 9 9"><metadata>m</metadata>'
        '<script>alert(1)</script><defs><path id="a" d="M0 0"/></defs><g id="b" onclick="alert(2)">'
        '<use xmlns:x="http://www.w3.org/1999/xlink" x:href="#a" style="fill: #1F1D19; stroke: #123456"/>'
        '<text style="font: bold 10px sans-serif" clip-path="url(#a)">items &lt;b&gt;</text>'
        '<image href="https://example.org/x.png"/></g></svg>'
    )
    data = {"one-more-item-code": [], "put-check": [{"text": "<b>done</b>\n"}, {"svg": svg}]}
    folder = labs / "site/recorded/labs/en"
    folder.mkdir(parents=True)
    about = {
        "command": "record labs",
        "commit": "0123456789abcdef",
        "machine": "one",
        "versions": {"torch": "2"},
    }
    (folder / "01_fill_a_ring.json").write_text(json.dumps({**about, "data": data}), encoding="utf-8")
    text = build(labs)
    assert '<pre class="printed"><span class="row">' in text
    assert "&lt;b&gt;done&lt;/b&gt;" in text
    assert '<svg role="img" aria-label="items &lt;b&gt;" viewBox="0 0 9 9">' in text
    assert '<use href="#put-check-1-a" fill="var(--ink)" stroke="#123456"></use>' in text
    assert (
        'clip-path="url(#put-check-1-a)" font-size="10px" font-weight="bold">items &lt;b&gt;</text>' in text
    )
    assert "alert" not in text
    assert "x.png" not in text
    assert "record labs" in text
    japanese = (labs / "build/site/ja/labs/fill_a_ring.html").read_text(encoding="utf-8")
    assert '<div class="outputs" role="group" aria-label="このセルの出力" lang="en">' in japanese


# ## Mistakes


@pytest.mark.cases(now=3, ci=5)
@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('exercise="put"', 'exercise="Put it"', 'is no name of an exercise; write exercise="NAME"'),
        ('check="put" points=3', "", "no cell checks the exercise 'put'"),
        ('check="put"', 'check="get"', "no cell checks the exercise 'put'"),
        ('exercise="put"', "", "no exercise 'put' stands above this check"),
        ("    ### END SOLUTION\n", "", "`### BEGIN SOLUTION` has no partner"),
        ("    ### BEGIN SOLUTION\n    ring.append(item)\n    ### END SOLUTION\n", "", "has no solution"),
        ("points=3", "points=-1", "`points` is a whole number, and not -1"),
        ("points=3", "hidden=3", "a cell of a lab has no option 'hidden'"),
        ("# Some words, over\n", '"""Some words"""\n', "a cell of Markdown is a comment"),
        ("maxlen=2)\n\n", "maxlen=2)\n", "leave a blank line below this cell"),
        ("ring = deque(", "ring = deque((", "is not valid Python"),
        (":lesson: row", ":lesson: raw", "there is no lesson 'raw'; there is row"),
        (":minutes: 20", ":minutes: some", "`:minutes:` is a whole number"),
    ],
)
def test_a_mistake_is_one_line_with_its_place(labs: Path, old: str, new: str, words: str) -> None:
    sidelit("lab", cwd=labs)
    edit(labs / SOURCE, old, new)
    told = sidelit("build", cwd=labs, code=1).stderr
    assert words in told
    assert told.startswith(f"{SOURCE}:")
    assert "Traceback" not in told


def test_a_notebook_has_no_place_for_what_only_a_page_can_show(labs: Path) -> None:
    edit(labs / SOURCE, "::: hint", "::: parts")
    told = sidelit("lab", cwd=labs, code=1).stderr
    assert told.startswith(f"{SOURCE}:34: a lab has no place for `::: parts`; it may have")


def test_a_notebook_that_nobody_made_is_told(labs: Path) -> None:
    told = sidelit("build", cwd=labs, code=1).stderr.splitlines()
    assert told[0].endswith("the notebook notebooks/en/01_fill_a_ring.ipynb is not there; run `sidelit lab`")
    assert len(told) == 3


def test_without_labs_there_is_nothing_to_make(sample: Path) -> None:
    assert "the project has no labs" in sidelit("lab", cwd=sample, code=1).stderr
