"""Lessons of a small project: they take sections from its chapters, and what is not there fails the build."""

from __future__ import annotations

import json
import re
from pathlib import Path

import polib
import pytest

from press.project import edit, page, run, sidelit, translate, tree
from press.site.lessons import ROW, SECOND, WINDOW, give_lessons
from sidelit.config import config
from sidelit.site import site
from sidelit.text import directives, markup


@pytest.fixture
def course(sample: Path) -> Path:
    """The sample project with two lessons."""
    give_lessons(sample)
    return sample


def html(folder: Path, name: str) -> str:
    return (folder / "build/site" / name).read_text(encoding="utf-8")


def section(text: str, name: str) -> str:
    found = re.search(rf'(?s)<section id="{re.escape(name)}".*?</section>', text)
    assert found, name
    return found[0]


# ## The page


@pytest.mark.nightly
def test_a_lesson_says_its_number_its_minutes_its_needs_and_its_aims(course: Path) -> None:
    sidelit("build", cwd=course)
    first, second = html(course, "row.html"), html(course, "view.html")
    assert re.search(r"Lesson 0 <span[^>]*>5 minutes", first)
    assert re.search(r"Lesson 1 <span[^>]*>12 minutes", second)
    assert '<p><a href="notes/reading.html">how to read</a>, and a pencil</p>' in first
    assert re.findall(r"<li><p>(.*?)</p>", first) == [
        "say what a ring forgets",
        "predict the items of a ring of size 2",
    ]
    assert "What you need" not in second
    assert re.search(r"第 0 课 <span[^>]*>5 分钟", html(course, "zh/row.html"))
    # What stands in the head does not stand in the text a second time.
    assert first.count("a pencil") == 1
    assert ":minutes:" not in page(course / "build/site", "row.html").text


@pytest.mark.nightly
def test_next_leads_from_lesson_to_lesson(course: Path) -> None:
    sidelit("build", cwd=course)
    nav = {
        name: re.findall(r'<link rel="(prev|next)" href="([^"]+)"', html(course, name))
        for name in ("row.html", "view.html", "ring.html")
    }
    assert nav["row.html"] == [("prev", "notes/reading.html"), ("next", "view.html")]
    assert nav["view.html"] == [("prev", "row.html"), ("next", "ring.html")]
    assert nav["ring.html"][0] == ("prev", "view.html")


def test_lessons_stand_above_the_parts_wherever_pages_are_listed(course: Path) -> None:
    sidelit("build", cwd=course)
    for name in ("ring.html", "index.html", "ja/row.html"):
        text = html(course, name).partition('class="book"')[2]
        assert text.index("Course") < text.index("Containers")
    for name in ("contents.html", "ja/contents.html"):
        text = html(course, name).partition("<main")[2]
        assert text.index("Course") < text.index('<b class="number">0</b>') < text.index("Containers")
    assert '"row.html","Items' in html(course, "assets/contents/en.js")
    assert '<a href="row.html" data-lesson="lessons/row"><b><span class="number">0</span> Items' in html(
        course, "index.html"
    )
    assert "12 minutes" in html(course, "index.html")


def test_a_lesson_without_a_number_is_not_counted(course: Path) -> None:
    edit(course / "site/sidelit.toml", '"lessons/row.md"', '"lessons/row.md", number = ""')
    sidelit("build", cwd=course)
    assert re.search(r"Course <span[^>]*>5 minutes", html(course, "row.html"))
    assert "Lesson 0" in html(course, "view.html")


def test_a_site_without_lessons_has_no_words_for_them(sample: Path) -> None:
    sidelit("build", cwd=sample)
    assert "data-finish" not in html(sample, "index.html")


@pytest.mark.nightly
def test_progress_is_a_matter_of_the_script(course: Path) -> None:
    sidelit("build", cwd=course)
    text = html(course, "row.html")
    # The browser itself opens the contents; a button that wants a script is made by the script.
    assert re.findall(r"<button[^>]*>", text) == [
        '<button class="menu named" type="button" popovertarget="sidelit-contents">'
    ]
    assert 'data-finish="Mark this lesson as finished"' in text
    assert (course / "build/site/assets/lesson.js").stat().st_size <= 1750


@pytest.mark.nightly
def test_mkdocs_prints_the_same_lessons(course: Path) -> None:
    sidelit("build", "--out", course / "other", cwd=course)
    done = run("mkdocs", "build", "--strict", cwd=course)
    assert done.returncode == 0, done.stderr
    assert tree(course / "build/site") == tree(course / "other")


# ## What it takes


@pytest.mark.nightly
def test_a_section_is_shown_whole_under_an_id_that_says_where_it_is_from(course: Path) -> None:
    sidelit("build", cwd=course)
    whole = section(html(course, "row.html"), "ring/Ring.put")
    chapter = section(html(course, "ring.html"), "Ring.put")
    assert 'href="ring.html#Ring.put"' in whole
    assert "Add an item" in whole
    # Its lines have the colours and the numbers that they have in the chapter, and their numbers lead there.
    lines = r'<span class="pad">.*'
    assert re.findall(lines, whole.replace("ring.html#", "#")) == re.findall(lines, chapter) != []
    assert re.findall(r'class="num" href="ring.html#line-(\d+)"', whole) == re.findall(
        r'id="line-(\d+)"', chapter
    )
    # A link in its commentary leads from the lesson to where it leads from the chapter.
    assert 'href="#Ring.__init__"' in chapter
    assert 'href="ring.html#Ring.__init__"' in whole


@pytest.mark.nightly
def test_ids_are_unique_however_often_a_section_is_shown(course: Path) -> None:
    sidelit("build", cwd=course)
    for name in ("row.html", "ja/row.html", "view.html"):
        ids = page(course / "build/site", name).ids
        assert len(ids) == len(set(ids))
    assert page(course / "build/site", "row.html").sections == [
        "ring/Ring",
        "ring/Ring.put",
        "ring/Ring.put:2",
    ]
    # A heading of the lesson is called almost like it, and a page may lie in a folder.
    assert {"ring-put", "tools/window/Window"} <= set(page(course / "build/site", "view.html").ids)


@pytest.mark.nightly
def test_named_lines_alone_are_shown_and_words_replace_the_commentary(course: Path) -> None:
    sidelit("build", cwd=course)
    some = section(html(course, "row.html"), "ring/Ring.put:2")
    assert "A deque forgets by itself." in some
    assert "Add an item" not in some
    assert "append" in some
    assert "def" not in re.sub("<[^>]*>", "", some)
    assert len(re.findall('class="num"', some)) == 1


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        ('to="def put"', [41]),
        ('from="self._items" to="append(item)"', [47]),
        ("from='def put(self, item: object)'", [41, 47]),
    ],
)
def test_lines_are_named_by_what_stands_in_them(course: Path, options: str, numbers: list[int]) -> None:
    edit(course / ROW, 'from="self._items.append"', options)
    sidelit("build", cwd=course)
    some = section(html(course, "row.html"), "ring/Ring.put:2")
    shown = [int(number) for number in re.findall(r'class="num" href="[^"]*#line-(\d+)"', some)]
    lines = (course / "src/sample/ring.py").read_text(encoding="utf-8").splitlines()
    first = lines.index("    def put(self, item: object) -> None:") + 1
    assert [number - first for number in shown] == [number - 41 for number in numbers]


def test_the_section_is_the_one_of_today(course: Path) -> None:
    edit(course / "src/sample/ring.py", "self._items.append(item)", "self._items.extend([item])")
    edit(course / "src/sample/ring.py", "Add an item; see", "Append an item; see")
    edit(course / ROW, 'from="self._items.append"', 'from="self._items.extend"')
    sidelit("build", cwd=course)
    assert "extend" in section(html(course, "row.html"), "ring/Ring.put:2")
    assert "Append an item" in section(html(course, "row.html"), "ring/Ring.put")


def test_a_directive_is_found_by_the_end_of_a_path_too(course: Path) -> None:
    edit(course / WINDOW, "src:sample/tools/window.py#Window", "window.py#Window")
    sidelit("build", cwd=course)
    assert section(html(course, "view.html"), "tools/window/Window")


# ## Words set apart


@pytest.mark.nightly
def test_the_answer_is_folded_and_the_question_is_not(course: Path) -> None:
    sidelit("build", cwd=course)
    text = html(course, "row.html")
    (answer,) = re.findall(r'(?s)<details class="answer">.*?</details>', text)
    assert "None: <code>maxlen</code> is 0." in answer
    assert "of size 0 keep?" in text.replace(answer, "")
    assert "of size 0 keep?" not in answer
    # What looks like the end of a directive in a block of code is code.
    assert ":::\n---" in re.sub("<[^>]*>", "", answer)
    assert "Lab 2" in text
    assert 'class="katex"' in text[text.index("It measures") :]
    assert "答案" in html(course, "zh/row.html")


@pytest.mark.nightly
def test_prose_pages_may_ask_too_and_may_not_take_sections(course: Path) -> None:
    notes = course / "site/pages/notes/reading.md"
    before = notes.read_text(encoding="utf-8")
    notes.write_text(before + "\n::: question\nWhy?\n---\nSo.\n:::\n", encoding="utf-8")
    sidelit("build", cwd=course)
    assert '<details class="answer">' in html(course, "notes/reading.html")
    notes.write_text(before + "\n::: section src:sample/ring.py#Ring\n:::\n", encoding="utf-8")
    told = sidelit("build", cwd=course, code=1).stderr
    assert re.fullmatch(r"site/pages/notes/reading.md:\d+: `section` stands in lessons only\n", told)


@pytest.mark.nightly
def test_commentary_knows_no_directives(course: Path) -> None:
    edit(course / "src/sample/ring.py", "A comment may begin", "::: question\n# A comment may begin")
    sidelit("build", cwd=course)
    assert "::: question" in page(course / "build/site", "ring.html").text


# ## In other languages


@pytest.mark.nightly
def test_the_words_of_a_lesson_are_translated_like_those_of_a_page(course: Path) -> None:
    sidelit("sync", cwd=course)
    said = {
        "say what a ring forgets": "リングが忘れるものを説明する",
        "How many items does a ring of size 0 keep?": "サイズ0のリングはいくつの要素を保持するか。",
        "A deque forgets by itself.": "dequeは自分で忘れる。",
        "None: `maxlen` is 0.": "保持しない。`maxlen`は0である。",
    }
    path = course / "site/locale/ja/lessons/row.po"
    translate(path, said)
    rows = {(row["page"], row["lang"]): row for row in status(course)}
    assert rows["lessons/row", "ja"]["current"] == len(said)
    edit(course / ROW, "say what a ring forgets", "say what each ring forgets")
    sidelit("sync", cwd=course)
    assert {row["page"]: row for row in status(course) if row["lang"] == "ja"}["lessons/row"]["stale"] == 1
    sidelit("build", cwd=course)
    text = re.sub(r'<wbr>|<span class="whole">([^<]*)</span>', r"\1", html(course, "ja/row.html"))
    assert all(words.replace("`maxlen`", "<code>maxlen</code>") in text for words in list(said.values())[1:])
    assert '<p lang="en" class="untranslated" data-state="stale">say what each ring forgets</p>' in text
    told = sidelit("status", "--todo", cwd=course).stdout
    assert "site/locale/ja/lessons/row.po:" in told
    labels = polib.pofile(str(course / "site/locale/ja/site.po"))
    assert "Course" in [entry.msgid for entry in labels]


def status(folder: Path) -> list[dict[str, object]]:
    return list(json.loads(sidelit("status", "--json", cwd=folder).stdout))


@pytest.mark.nightly
def test_what_is_taken_has_the_translation_of_its_chapter_and_its_state(course: Path) -> None:
    sidelit("sync", cwd=course)
    words = {
        "Add an item; see [why it is cheap](#Ring.__init__).": "要素を追加する。[理由](#Ring.__init__)。"
    }
    translate(course / "site/locale/ja/sample/ring.po", words)
    sidelit("build", cwd=course)
    taken = section(html(course, "ja/row.html"), "ring/Ring.put")
    assert '要素を追加する。<a href="ring.html#Ring.__init__">理由</a>' in taken
    assert "badge" not in taken
    assert 'class="badge missing"' in section(html(course, "zh/row.html"), "ring/Ring.put")
    assert 'hreflang="zh-Hans">' in taken
    edit(course / "src/sample/ring.py", "self._items.append(item)", "self._items.append( item )")
    edit(course / ROW, 'from="self._items.append"', 'from="append( item )"')
    sidelit("build", cwd=course)
    assert 'class="badge recheck"' in section(html(course, "ja/row.html"), "ring/Ring.put")


# ## Mistakes

MISTAKES = {
    "::: section src:sample/ring.py#Ring.putt\n:::": "has no section 'Ring.putt'; did you mean 'Ring.put'?",
    "::: section src:sample/rinf.py#Ring\n:::": "'src:sample/rinf.py'; did you mean 'src:sample/ring.py'?",
    "::: section src:sample/ring.py\n:::": "does not say which section",
    "::: section notes/reading.md#the-works\n:::": "site/pages/notes/reading.md is no chapter",
    "::: section src:sample/ring.py#Ring.put from='pop'\n:::": "'pop', which stands in no line of Ring.put",
    "::: section src:sample/ring.py#Ring.put to='deque('\n:::": "stands in 'Ring.__init__/a-bounded-deque",
    "::: section src:sample/ring.py#Ring.put from='item'\n:::": "stands in several lines of Ring.put",
    "::: section src:sample/ring.py#Ring.put from=''\n:::": "stands in several lines",
    "::: section src:sample/ring.py#Ring.put from='_items' to='def'\n:::": "above the line of `from`",
    "::: section src:sample/ring.py#Ring.put form='x'\n:::": "no option `form`; did you mean 'from'?",
    "::: section src:sample/ring.py#Ring.put from=item\n:::": "is not understood; write KEY=",
    "::: section src:sample/ring.py#Ring.put\na\n---\nb\n:::": "`section` has one part",
    "::: secton x\n:::": "no directive `::: secton`; did you mean 'section'?",
    "::: question\nWhy?\n:::": "`question` has 2 parts, and here are 1; a line `---` divides the parts",
    "::: question\nWhy?\n---\n:::": "`question` says nothing",
    "::: question 7\nWhy?\n---\nSo.\n:::": "takes nothing on its line",
    "::: try\n:::": "`try` says nothing",
    "::: lab\nMore.\n:::": "`lab` does not say which",
    "::: figure\n:::": "`figure` does not say which",
    "::: figure ring\nMore.\n:::": "`figure` takes no words",
    "::: figure ring\n:::": "there is no figure 'ring'",
    "::: try\nRun it.": "the directive `::: try` does not end; write `:::`",
}


@pytest.mark.cases(now=1, ci=1)
@pytest.mark.parametrize("written", MISTAKES)
def test_a_mistake_in_a_directive_is_one_line_in_the_build_and_in_the_lint(
    course: Path, written: str
) -> None:
    (course / WINDOW).write_text(f"{SECOND}\nMore.\n\n{written}\n", encoding="utf-8")
    line = SECOND.count("\n") + 4
    for command in ("build", "lint"):
        told = sidelit(command, cwd=course, code=1).stderr
        assert told.count("\n") == 1, told
        assert told.startswith(f"{WINDOW}:{line}: ")
        assert MISTAKES[written] in told
    assert not (course / "build/site").exists()


def test_depth_is_not_shown(course: Path) -> None:
    ring = course / "src/sample/ring.py"
    edit(ring, "    def put(self", "    # sidelit: depth Puts.\n\n    def put(self")
    told = sidelit("build", cwd=course, code=1).stderr.splitlines()
    assert len(told) == 2
    assert all(
        "src/sample/ring.py#Ring.put is depth, and a lesson shows what is core" in line for line in told
    )


def test_a_section_that_was_renamed_is_refused_with_its_new_name(course: Path) -> None:
    sidelit("publish", cwd=course)
    ring = course / "src/sample/ring.py"
    ring.write_text(ring.read_text(encoding="utf-8").replace("put", "push"), encoding="utf-8")
    told = sidelit("build", cwd=course, code=1).stderr.splitlines()
    assert len(told) == 2
    assert all("has no section 'Ring.put'; it is called 'Ring.push' now" in line for line in told)


def test_a_section_that_moved_to_another_page_is_refused_with_its_place(course: Path) -> None:
    sidelit("publish", cwd=course)
    ring, window = course / "src/sample/ring.py", course / "src/sample/tools/window.py"
    words = ring.read_text(encoding="utf-8")
    start = words.index("# # A heading of its own")
    ring.write_text(words[:start], encoding="utf-8")
    window.write_text(window.read_text(encoding="utf-8") + "\n\n" + words[start:], encoding="utf-8")
    edit(course / WINDOW, "tools/window.py#Window", "ring.py#module/a-heading-of-its-own")
    told = sidelit("build", cwd=course, code=1).stderr
    assert "it is 'module/a-heading-of-its-own' of src/sample/tools/window.py now" in told


def test_all_mistakes_of_a_lesson_are_told_at_once(course: Path) -> None:
    with (course / WINDOW).open("a", encoding="utf-8") as file:
        file.write("\n::: try\n:::\n\n[nowhere](src:nowhere.py)\n\n::: lab\n:::\n")
    assert len(sidelit("build", cwd=course, code=1).stderr.splitlines()) == 3


HEADS = {
    ":minutes: 12\n": ("", "no `:minutes:`; write `:minutes: 15` below the lede"),
    ":minutes: 12": (":minutes: long", "`:minutes:` is a whole number, and not 'long'"),
    ":aim: say where a window begins\n": ("", "no `:aim:`"),
    ":aim:": (":aims:", "no field `:aims:`; did you mean `:aim:`?"),
    "\n## Ring put": (":needs: a\n:needs: b\n\n## Ring put", "says `:needs:` twice"),
    ":minutes: 12\n:aim: say where a window begins\n": ("\nText.\n", "no `:minutes:`"),
}


@pytest.mark.parametrize("old", HEADS)
def test_a_mistake_in_the_head_is_one_line(course: Path, old: str) -> None:
    new, words = HEADS[old]
    edit(course / WINDOW, old, new)
    told = sidelit("build", cwd=course, code=1).stderr
    assert re.match(rf"{WINDOW}:[3-7]: ", told)
    assert told.count("\n") == 1
    assert words in told


ENTRIES = {
    '"lessons/row.md"': ('"pages/row.md"', "no Markdown file in lessons/"),
    '{ source = "lessons/view.md" }': (
        '{ source = "lessons/view.md", number = "7" }',
        "has the number 1, not '7'",
    ),
    'label = "Course"': ('label = "Course"\nlesson = 1', "unknown key `lesson`"),
    "[course]": ("[[course]]", "`course` must be a table"),
}


@pytest.mark.parametrize("old", ENTRIES)
def test_a_mistake_in_the_entry_of_a_lesson_is_one_line(course: Path, old: str) -> None:
    new, words = ENTRIES[old]
    edit(course / "site/sidelit.toml", old, new)
    told = sidelit("build", cwd=course, code=1).stderr
    assert re.match(r"site/sidelit.toml:\d+: ", told)
    assert words in told


# ## Other doors


def test_a_save_of_a_lesson_or_of_what_it_shows_is_seen(course: Path) -> None:
    watched = site.watched(course / "site/sidelit.toml")
    for path in (course / ROW, course / "src/sample/ring.py"):
        assert any(path.resolve().is_relative_to(each) for each in watched)


def test_a_lesson_is_cited_by_its_name(course: Path) -> None:
    for name in ("row", "lessons/row", "row.html"):
        told = sidelit("cite", name, cwd=course).stdout
        assert " Items in a row. In Sample." in told
        assert "site/lessons/row.md" in told
        assert "@misc{sample:lessons/row," in told
    # A section is cited where it stands, and not where it is shown.
    assert "src/sample/ring.py, section Ring.put" in sidelit("cite", "Ring.put", cwd=course).stdout


# ## A chapter's opening


def test_a_chapter_may_name_the_figure_that_it_opens_with(course: Path) -> None:
    line = edit(course / "src/sample/ring.py", ":notation $N$", ":figure: places\n:notation $N$")
    pages = site.texts(config.load(course / "site/sidelit.toml"))
    (ring,) = (page for page in pages if page.item.name == "sample/ring")
    assert (ring.sections[0].figure, ring.sections[0].figure_line) == ("places", line)
    assert {section.figure for page in pages for section in page.sections if page is not ring} == {""}
    # The other fields of the list stay, and the name is no word to translate.
    fields = [token for token in ring.tokens if token.type == "field_name"]
    assert [token.meta["kind"] for token in fields if token.meta["kind"] in ("notation", "figure")] == [
        "notation"
    ]


@pytest.mark.parametrize(
    ("said", "words"), [("a b", "`:figure:` says 'a b'"), ("a\n:figure: b", "a section has one figure")]
)
def test_a_chapter_opens_with_one_figure(course: Path, said: str, words: str) -> None:
    edit(course / "src/sample/ring.py", ":notation $N$", f":figure: {said}\n:notation $N$")
    assert words in sidelit("build", cwd=course, code=1).stderr


# ## The form


def test_directives_lie_in_each_other() -> None:
    text = "::: question\n::: try\na\n---\nb\n:::\n---\nc\n:::\n\nd\n"
    tokens = markup.parse(text, path="a.md", directives=True)
    outer, inner = (directives.read(each) for each in directives.among(tokens))
    assert (outer.name, len(outer.parts), outer.line) == ("question", 2, 1)
    assert (inner.name, len(inner.parts), inner.line) == ("try", 2, 2)
    assert [token.content for token in inner.body if token.type == "inline"] == ["a", "b"]


def test_a_paragraph_or_a_list_ends_where_a_directive_begins() -> None:
    for before in ("a", "- a", "> a", ":aim: a"):
        tokens = markup.parse(f"{before}\n::: try\nb\n:::\n", directives=True)
        assert [token.level for token in tokens if token.type == directives.OPEN] == [0]


def test_an_option_may_hold_what_code_holds() -> None:
    text = """::: section a.py#f(x=1) from="a = \\"b\\"" to='"c"'\n:::"""
    (tokens,) = directives.among(markup.parse(text, directives=True))
    given = directives.read(tokens)
    assert given.argument == "a.py#f(x=1)"
    assert given.options == {"from": 'a = "b"', "to": '"c"'}
