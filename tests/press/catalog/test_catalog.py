"""What a change to a source does to its translations, on real files."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from press.project import edit, sidelit
from sidelit.cache.graph import Graph
from sidelit.catalog import catalog, po_file, sync
from sidelit.catalog.sync import PageUnits
from sidelit.errors import SidelitError
from sidelit.source import source
from sidelit.text import markup

BOOK = '''r"""# Layers

Each rank holds a part.
"""

import torch


class Layer:
    """A layer that is whole only while it is used."""

    def gather(self):
        """Gather the parameters before the forward pass.

        Every rank gives its shard, `numel` values of it.
        """
        # Wait until the optimizer has written its last value.
        self.stream.wait()

        # Do not free the buffer here.
        return self.full

    def free(self):
        """Give the memory back."""
        self.full.resize_(0)
'''
TITLE = ("module", "Layers")
PART = ("module", "Each rank holds a part.")
LAYER = ("Layer", "A layer that is whole only while it is used.")
GATHER = ("Layer.gather", "Gather the parameters before the forward pass.")
SHARD = ("Layer.gather", "Every rank gives its shard, `numel` values of it.")
WAIT = ("Layer.gather", "Wait until the optimizer has written its last value.")
KEEP = ("Layer.gather", "Do not free the buffer here.")
FREE = ("Layer.free", "Give the memory back.")
ALL = [TITLE, PART, LAYER, GATHER, SHARD, WAIT, KEEP, FREE]


@dataclass
class Project:
    """One source on disk, its catalogues, and a translator whose words say what they translate."""

    root: Path

    @property
    def source(self) -> Path:
        return self.root / "src" / "book" / "layer.py"

    @property
    def locale(self) -> Path:
        return self.root / "site" / "locale"

    @property
    def po(self) -> Path:
        return self.locale / "ja" / "book" / "layer.po"

    def write(self, text: str) -> None:
        self.source.parent.mkdir(parents=True, exist_ok=True)
        self.source.write_text(text, encoding="utf-8")

    def sections(self) -> list[tuple[str, tuple[markup.Token, ...], str]]:
        return [
            (
                section.qualname or "module",
                markup.parse(
                    section.commentary, path="src/book/layer.py", first_line=section.commentary_line
                ),
                sync.code_digest(line for _, line in section.code),
            )
            for section in source.read(self.source).sections
        ]

    def pages(self) -> list[PageUnits]:
        return [PageUnits("book/layer", tuple(sync.extract(*part) for part in self.sections()))]

    def sync(self) -> tuple[Path, ...]:
        return catalog.sync(self.pages(), self.locale, ["ja"])

    def edit(self, old: str, new: str) -> None:
        text = self.po.read_text(encoding="utf-8")
        assert text.count(old) == 1
        self.po.write_text(text.replace(old, new), encoding="utf-8")

    def catalogs(self) -> catalog.Catalogs:
        return catalog.load(self.pages(), self.locale, ["ja"])

    def states(self) -> dict[tuple[str, str], str]:
        found = self.catalogs().catalog("book/layer", "ja")
        return {key: found.state(key) for key in found.digests}

    def shown(self) -> list[str]:
        """What a reader of the Japanese page sees, sentence by sentence."""
        found = self.catalogs().catalog("book/layer", "ja")
        done = [catalog.translate(tokens, found, context, code) for context, tokens, code in self.sections()]
        return [token.content for part in done for token in part.tokens if token.type == "inline"]

    def status(self) -> catalog.Row:
        (row,) = catalog.status(self.catalogs())
        return row


def translate(po: Path) -> None:
    """Fill every empty entry, as one does in an editor."""
    text = po.read_text(encoding="utf-8")
    filled = re.sub(r'(?<=\n)msgid "(.+)"\nmsgstr ""\n', r'msgid "\1"\nmsgstr "訳：\1"\n', text)
    po.write_text(filled, encoding="utf-8")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A source, translated whole."""
    made = Project(tmp_path)
    made.write(BOOK)
    made.sync()
    translate(made.po)
    return made


def test_a_catalogue_holds_the_units_in_the_order_of_the_source(project: Project) -> None:
    text = project.po.read_text(encoding="utf-8")
    contexts = re.findall(r'msgctxt "(.*)"\nmsgid "(.*)"', text)
    assert contexts == ALL
    assert project.states() == dict.fromkeys(ALL, "current")
    # Nothing in the file changes with the day or with the lines of the source.
    assert "#:" not in text
    assert "Date" not in text


def test_only_words_are_units() -> None:
    text = (
        "# Title\n\n> The *lede* with\n> `code`.\n\n- one\n- `only_code`\n\n| head | $x$ |\n|---|---|\n"
        "| cell | 42 |\n\n```\nfenced\n```\n\n$$y$$\n\n!!! note\n    Body.\n\n"
        '!!! note "Mind"\n    this\n\n:param x: what it is[^1]\n\n[^1]: A footnote.\n'
    )
    units = sync.extract("module", markup.parse(text)).msgids
    assert units == (
        "Title",
        "The *lede* with `code`.",
        "one",
        "head",
        "cell",
        "Body.",
        "Mind",
        "this",
        "what it is[^1]",
        "A footnote.",
    )


def renamed(text: str) -> str:
    return text.replace("def gather", "def collect")


def copied(text: str) -> str:
    return text + "\n\ndef extra():\n    # Do not free the buffer here.\n    pass\n"


def reordered(text: str) -> str:
    start, end = text.index("    def gather"), text.index("    def free")
    return text[:start] + text[end:] + "\n" + text[start:end]


def swap(old: str, new: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        assert text.count(old) == 1
        return text.replace(old, new)

    return change


def without(*keys: tuple[str, str]) -> list[tuple[str, str]]:
    return [key for key in ALL if key not in keys]


CHANGES: dict[str, tuple[Callable[[str], str], list[tuple[str, str]], dict[tuple[str, str], str]]] = {
    "English reworded": (
        swap("before the forward pass", "just before the forward pass"),
        without(GATHER),
        {("Layer.gather", "Gather the parameters just before the forward pass."): "stale"},
    ),
    "English turned around": (
        swap("Do not free", "Free"),
        without(KEEP),
        {("Layer.gather", "Free the buffer here."): "stale"},
    ),
    "English written anew": (
        swap("Give the memory back.", "Nothing stays allocated after this."),
        without(FREE),
        {("Layer.free", "Nothing stays allocated after this."): "stale"},
    ),
    "English wrapped differently": (swap("Every rank gives its", "Every rank\n        gives its"), ALL, {}),
    "a sentence added": (
        swap("Give the memory back.", "Give the memory back.\n\n        A second call does nothing."),
        ALL,
        {("Layer.free", "A second call does nothing."): "missing"},
    ),
    "code changed beside a docstring": (swap("resize_(0)", "resize_(1)"), without(FREE), {FREE: "recheck"}),
    "code changed beside a comment": (swap("stream.wait", "main.wait"), without(WAIT), {WAIT: "recheck"}),
    "code moved to the right": (
        swap("        self.stream.wait()", "        if self:\n            self.stream.wait()"),
        without(WAIT),
        {WAIT: "recheck"},
    ),
    "blank lines and trailing spaces": (
        swap("        self.full.resize_(0)", "\n\n        self.full.resize_(0)   "),
        ALL,
        {},
    ),
    "section moved": (reordered, ALL, {}),
    "section deleted": (
        swap("        # Do not free the buffer here.\n", ""),
        without(KEEP, WAIT),
        {WAIT: "recheck"},
    ),
    "copied to a new context": (copied, ALL, {("extra", KEEP[1]): "recheck"}),
    "a word moved to a new context": (
        lambda text: swap(
            '"""Give the memory back."""', '"""Give the memory back.\n\n        - Layers\n        """'
        )(text).replace("# Layers\n\n", ""),
        without(TITLE),
        {("Layer.free", "Layers"): "recheck"},
    ),
    "moved to a new context": (
        renamed,
        without(GATHER, SHARD, WAIT, KEEP),
        {("Layer.collect", key[1]): "recheck" for key in (GATHER, SHARD, WAIT, KEEP)},
    ),
    "renamed and reworded": (
        lambda text: renamed(text).replace("Gather the parameters", "Gather all parameters"),
        without(GATHER, SHARD, WAIT, KEEP),
        {
            **{("Layer.collect", key[1]): "recheck" for key in (SHARD, WAIT, KEEP)},
            ("Layer.collect", "Gather all parameters before the forward pass."): "stale",
        },
    ),
}


@pytest.mark.cases(now=1, ci=1)
@pytest.mark.parametrize(("change", "current", "others"), CHANGES.values(), ids=CHANGES.keys())
def test_each_change_gives_exactly_its_states(
    project: Project,
    change: Callable[[str], str],
    current: list[tuple[str, str]],
    others: dict[tuple[str, str], str],
) -> None:
    project.write(change(BOOK))
    expected = {**dict.fromkeys(current, "current"), **others}
    # The build knows before anybody synchronises, and synchronising changes nothing about it.
    for _ in range(3):
        assert project.states() == expected
        row = project.status()
        assert [row.current, row.recheck, row.stale, row.missing] == [
            list(expected.values()).count(state) for state in ("current", "recheck", "stale", "missing")
        ]
        # A page shows a translation where it is current or to be rechecked, and English otherwise.
        for (_, msgid), state in expected.items():
            assert (f"訳：{msgid}" in project.shown()) == (state in ("current", "recheck"))
            assert (msgid in [catalog_text(text) for text in project.shown()]) == (
                state in ("stale", "missing")
            )
        project.sync()
    assert project.sync() == ()


def catalog_text(content: str) -> str:
    return " ".join(content.split())


@pytest.mark.parametrize("change", [change for change, _, _ in CHANGES.values()], ids=CHANGES.keys())
def test_a_change_taken_back_leaves_everything_current(
    project: Project, change: Callable[[str], str]
) -> None:
    project.write(change(BOOK))
    project.sync()
    project.write(BOOK)
    project.sync()
    assert project.states() == dict.fromkeys(ALL, "current")


def test_a_word_is_not_filled_in_from_another_context(project: Project) -> None:
    """In the cell of a table it may mean something else."""
    cell = "Give the memory back.\n\n        - Layers\n        "
    project.write(BOOK.replace(FREE[1], cell))
    for _ in range(2):
        assert project.states()[TITLE] == "current"
        assert project.states()["Layer.free", "Layers"] == "missing"
        project.sync()
    assert 'msgctxt "Layer.free"\nmsgid "Layers"\nmsgstr ""' in project.po.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("step", True),
        ("the step", True),
        ("`free` step, $N$ times", True),
        ("one full step", False),
        ("**one** _step_", True),
        ("参数", True),
        ("释放内存", True),
        ("保存之前释放内存", False),
    ],
)
def test_one_word_or_two_are_short(text: str, short: bool) -> None:
    assert sync.is_short(text) is short


def test_a_deleted_section_leaves_its_translation_for_later(project: Project) -> None:
    project.write(BOOK.replace("        # Do not free the buffer here.\n", ""))
    project.sync()
    text = project.po.read_text(encoding="utf-8")
    assert '#~ msgid "Do not free the buffer here."\n#~ msgstr "訳：Do not free the buffer here."' in text


def test_a_stale_entry_shows_the_translator_what_it_was_made_from(project: Project) -> None:
    for wording in ("Give all memory back.", "Give all of the memory back."):
        project.write(BOOK.replace(FREE[1], wording))
        project.sync()
    assert (
        "#, fuzzy\n"
        '#| msgid "Give the memory back."\n'
        'msgctxt "Layer.free"\n'
        'msgid "Give all of the memory back."\n'
        'msgstr "訳：Give the memory back."\n'
    ) in project.po.read_text(encoding="utf-8")


def test_a_mended_stale_entry_is_current_beside_the_code_of_the_day(project: Project) -> None:
    project.write(BOOK.replace(FREE[1], "Give all memory back.").replace("resize_(0)", "resize_(1)"))
    project.sync()
    project.edit(f'#, fuzzy\n#| msgid "{FREE[1]}"\n', "")
    assert set(project.states().values()) == {"current"}


@pytest.mark.parametrize("said", ["Layers", "layers", "Layers.", " “Layers” ", "**Layers**"])
def test_a_copy_of_the_english_is_no_translation(project: Project, said: str) -> None:
    project.edit('msgstr "訳：Layers"', f'msgstr "{said}"')
    assert project.states()[TITLE] == "missing"
    assert project.shown()[0] == "Layers"


def test_a_copy_may_be_marked_as_meant(project: Project) -> None:
    project.edit('msgctxt "module"\nmsgid "Layers"\nmsgstr "訳：Layers"', SAME)
    project.sync()
    assert project.states()[TITLE] == "current"
    assert SAME in project.po.read_text(encoding="utf-8")


SAME = '#, same\nmsgctxt "module"\nmsgid "Layers"\nmsgstr "Layers"'


def test_what_stays_english_says_so_in_the_page(project: Project) -> None:
    text = "# A title\n\nA paragraph.\n\n- an item\n- `x`\n\n| a head |\n|---|\n| a cell |\n"
    tokens = markup.parse(text)
    done = catalog.translate(tokens, catalog.Catalog("p", "ja"), "module")
    assert done.state == "missing"
    marked = [(token.type, token.tag) for token in done.tokens if token.attrs.get("lang") == "en"]
    assert marked == [
        ("heading_open", "h1"),
        ("paragraph_open", "p"),
        # A tight list item has no visible paragraph to carry the mark.
        ("paragraph_open", "span"),
        ("th_open", "th"),
        ("td_open", "td"),
    ]
    assert all(
        token.attrs["class"] == "untranslated" and token.attrs["data-state"] == "missing"
        for token in done.tokens
        if "lang" in token.attrs
    )
    assert not any(token.attrs.get("lang") for token in tokens)


def test_a_translation_knows_its_line_in_the_catalogue(project: Project) -> None:
    found = project.catalogs().catalog("book/layer", "ja")
    lines = project.po.read_text(encoding="utf-8").split("\n")
    for context, tokens, code in project.sections():
        for token in catalog.translate(tokens, found, context, code).tokens:
            if token.type == "inline":
                assert markup.path_of(token) == "site/locale/ja/book/layer.po"
                assert lines[markup.line_of(token) - 1] == f'msgstr "{token.content}"'


def test_labels_are_units_too(tmp_path: Path) -> None:
    site = PageUnits("site", (sync.SectionUnits("nav", ("Foundations", "ZeRO")),))
    catalog.sync([site], tmp_path / "locale", ["zh"])
    po = tmp_path / "locale" / "zh" / "site.po"
    po.write_text(po.read_text().replace('"Foundations"\nmsgstr ""', '"Foundations"\nmsgstr "基础"'))
    found = catalog.load([site], tmp_path / "locale", ["zh"]).catalog("site", "zh")
    assert catalog.text("Foundations", found, "nav").text == "基础"
    assert catalog.text("ZeRO", found, "nav") == catalog.Translation("ZeRO", "missing")


def test_a_page_that_changes_its_name_takes_its_translations_along(project: Project) -> None:
    (page,) = project.pages()
    moved = PageUnits("book/renamed", page.sections)
    catalog.sync([moved], project.locale, ["ja"])
    found = catalog.load([moved], project.locale, ["ja"]).catalog("book/renamed", "ja")
    # They were judged beside this very code, under the same names.
    assert {found.state(key) for key in found.digests} == {"current"}
    assert catalog.sync([moved], project.locale, ["ja"]) == ()
    # Back under its old name it finds everything as it was.
    project.sync()
    assert project.states() == dict.fromkeys(ALL, "current")


def prose(project: Project, text: str) -> dict[tuple[str, str], str]:
    sections = sync.split_prose(markup.parse(text))
    page = PageUnits("pages/home", tuple(sync.extract(*part) for part in sections))
    catalog.sync([page], project.locale, ["ja"])
    po = project.locale / "ja" / "pages" / "home.po"
    po.write_text(
        re.sub(r'(?<=\n)msgid "(.+)"\nmsgstr ""\n', r'msgid "\1"\nmsgstr "訳：\1"\n', po.read_text("utf-8")),
        "utf-8",
    )
    found = catalog.load([page], project.locale, ["ja"]).catalog("pages/home", "ja")
    return {key: found.state(key) for key in found.digests}


def test_prose_is_filed_under_its_headings(project: Project) -> None:
    start = "# Home\n\nHello.[^n]\n\n## First *steps*\n\nOne.\n\n"
    text = start + "### Deeper\n\nTwo.\n\n## Last\n\nThree.\n\n[^n]: Note.\n"
    states = prose(project, text)
    assert list(states) == [
        ("page", "Home"),
        ("page", "Hello.[^n]"),
        ("first-steps", "First *steps*"),
        ("first-steps", "One."),
        ("first-steps/deeper", "Deeper"),
        ("first-steps/deeper", "Two."),
        ("last", "Last"),
        ("last", "Three."),
        ("footnotes", "Note."),
    ]
    assert set(states.values()) == {"current"}
    after = prose(project, text.replace("# Home", "# Our home").replace("## Last", "## The last"))
    assert {key: state for key, state in after.items() if state != "current"} == {
        ("page", "Our home"): "stale",
        ("the-last", "The last"): "stale",
        ("the-last", "Three."): "recheck",
    }


def test_reviewed_clears_a_page_or_one_context(project: Project) -> None:
    project.write(BOOK.replace("stream.wait", "main.wait").replace("resize_(0)", "resize_(1)"))

    def review(context: str | None = None) -> int:
        return catalog.reviewed(
            project.pages(), project.locale, ["ja"], page="book/layer", lang="ja", context=context
        )

    assert review("Layer.free") == 1
    assert project.states() == {**dict.fromkeys(ALL, "current"), WAIT: "recheck"}
    assert review() == 1
    assert project.states() == dict.fromkeys(ALL, "current")
    assert review() == 0
    assert project.sync() == ()


def test_what_is_left_to_do_is_listed_with_its_place(project: Project) -> None:
    project.write(
        BOOK.replace("stream.wait", "main.wait").replace(
            FREE[1], "Give all memory back.\n\n        Twice is once."
        )
    )
    project.sync()
    lines = project.po.read_text(encoding="utf-8").split("\n")
    found = list(catalog.pending(project.catalogs()))
    assert [(each.state, each.context, each.msgid) for each in found] == [
        ("recheck", *WAIT),
        ("stale", "Layer.free", "Give all memory back."),
        ("missing", "Layer.free", "Twice is once."),
    ]
    for each in found:
        assert lines[each.line - 2] == f'msgid "{each.msgid}"'
        assert str(each) == (
            f"site/locale/ja/book/layer.po:{each.line}: {each.state}: {each.context}: {each.msgid}"
        )


def test_reviewed_does_not_make_a_translation_of_what_is_none(project: Project) -> None:
    project.write(BOOK.replace(FREE[1], "Give all memory back."))
    catalog.reviewed(project.pages(), project.locale, ["ja"], page="book/layer")
    assert project.states()["Layer.free", "Give all memory back."] == "stale"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"page": "book/lair"}, "there is no page 'book/lair'; there is book/layer"),
        ({"page": "book/layer", "lang": "jp"}, "there is no language 'jp'; there is ja"),
        ({"page": "book/layer", "context": "Layer.fre"}, "no context 'Layer.fre'; there is Layer.free"),
    ],
)
def test_reviewed_says_what_there_is(project: Project, words: dict[str, str], sentence: str) -> None:
    with pytest.raises(SidelitError) as caught:
        catalog.reviewed(project.pages(), project.locale, ["ja"], **words)
    assert sentence in str(caught.value)


ENTRY = 'msgctxt "module"\nmsgid "Layers"\nmsgstr "訳：Layers"\n'
MALFORMED: dict[str, tuple[str, str, str]] = {
    "a conflict left in": (ENTRY, "<<<<<<< HEAD\n" + ENTRY, ":10: this line is not PO"),
    "a quote not closed": (ENTRY, ENTRY.replace('ers"\n', "ers\n", 1), ":11: this line is not PO"),
    "more than a translation": ("訳：Layers", "訳" * 200_001, ":12: this msgstr has 200,001 characters"),
    "a quote not escaped": ("訳：Layers", '訳"Layers', ":12: this line is not PO"),
    "an escape that is none": ("訳：Layers", r"訳\Layers", ":12: this line is not PO"),
    "an entry without translation": (
        ENTRY,
        'msgctxt "module"\nmsgid "Layers"\n',
        ":10: this entry has no msgstr",
    ),
    "an entry twice": (ENTRY, ENTRY + "\n" + ENTRY, ":16: this entry repeats the one at line 12"),
    "another language": ("Language: ja", "Language: zh", ":1: the header says `Language: zh`"),
}


@pytest.mark.parametrize(("old", "new", "sentence"), MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_catalogue_is_refused_with_its_line(
    project: Project, old: str, new: str, sentence: str
) -> None:
    project.edit(old, new)
    before = project.po.read_bytes()
    for use in (project.catalogs, project.sync):
        with pytest.raises(SidelitError) as caught:
            use()
        assert str(caught.value).startswith("site/locale/ja/book/layer.po:")
        assert sentence in str(caught.value)
        assert "\n" not in str(caught.value)
    assert project.po.read_bytes() == before


def test_a_catalogue_that_is_not_utf8_is_refused(project: Project) -> None:
    project.po.write_bytes(project.po.read_bytes().replace("訳：Layers".encode(), "訳".encode("shift_jis")))
    with pytest.raises(SidelitError, match=r"^site/locale/ja/book/layer\.po:12: this is not UTF-8; save"):
        project.catalogs()


@pytest.mark.full
def test_a_catalogue_may_begin_with_a_byte_order_mark(sample: Path) -> None:
    sidelit("sync", cwd=sample)
    path = sample / "site/locale/ja/sample/ring.po"
    edit(path, 'msgid "A ring"\nmsgstr ""', 'msgid "A ring"\nmsgstr "リング"')
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    sidelit("build", cwd=sample)
    assert "<h1>リング</h1>" in (sample / "build/site/ja/ring.html").read_text(encoding="utf-8")


def test_a_folder_of_an_unknown_language_is_refused(project: Project) -> None:
    (project.locale / "fr").mkdir()
    with pytest.raises(SidelitError, match=r"^site/locale/fr: the site has no language 'fr' \(.*ja\); name"):
        project.catalogs()


def test_remarks_of_translators_and_other_tools_stay(project: Project) -> None:
    project.edit(ENTRY, "# allow: term, on purpose\n" + ENTRY)
    project.po.write_bytes(project.po.read_bytes().replace(b"\n", b"\r\n"))
    project.sync()
    assert f"# allow: term, on purpose\n# code: {project_digest(project)}\n{ENTRY}" in project.po.read_text(
        "utf-8"
    )


def test_what_a_translator_allowed_goes_with_the_text(project: Project) -> None:
    given = f'msgctxt "Layer.gather"\nmsgid "{GATHER[1]}"\n'
    project.edit(given, "# a remark on this place\n# allow: term, on purpose\n" + given)
    project.write(renamed(project.source.read_text("utf-8")))
    project.sync()
    moved = given.replace("Layer.gather", "Layer.collect")
    assert f"# allow: term, on purpose\n# code: moved\n{moved}" in project.po.read_text("utf-8")


def project_digest(project: Project) -> str:
    return project.sections()[0][2]


# Texts that PO, polib or a line-based reader might trip over.
nasty = st.text(
    st.sampled_from(
        ["a", '"', "\\", "\n", "\t", "\r", "\v", "\f", "\b", "\x85", "\u2028", "訳", "#", "~", " ", "%"]
    ),
    min_size=1,
    max_size=12,
)


@given(st.dictionaries(st.tuples(nasty, nasty), nasty, min_size=1, max_size=4))
def test_any_text_comes_back_from_a_catalogue(
    tmp_path_factory: pytest.TempPathFactory, texts: dict[tuple[str, str], str]
) -> None:
    path = tmp_path_factory.mktemp("po") / "a.po"
    entries = [
        po_file.Entry(context, msgid, msgstr, obsolete=bool(index % 2))
        for index, ((context, msgid), msgstr) in enumerate(texts.items())
    ]
    po_file.write(path, po_file.render(entries, "ja"))
    back = po_file.read(path, "ja", "a.po")
    assert {(entry.key, entry.msgstr, entry.obsolete) for entry in back} == {
        (entry.key, entry.msgstr, entry.obsolete) for entry in entries
    }
    assert po_file.render(back, "ja") == path.read_text(encoding="utf-8")


SENTENCES = [
    "Do not free the shard.",
    "Free the shard.",
    "Do not free the shards.",
    "Gather the shard.",
    "Wait.",
    "Each rank waits for the others.",
]
section = st.builds(
    sync.SectionUnits,
    st.sampled_from(["module", "f", "g", "C.f"]),
    st.lists(st.sampled_from(SENTENCES), min_size=1, max_size=3).map(tuple),
    st.sampled_from(["", "aaa", "bbb"]),
)
pages = st.lists(st.lists(section, max_size=4).map(tuple), min_size=2, max_size=2).map(
    lambda bodies: [PageUnits(f"p/{number}", body) for number, body in enumerate(bodies)]
)


@pytest.mark.full
@settings(max_examples=60)
@given(st.lists(st.tuples(pages, st.sets(st.integers(0, 7))), min_size=1, max_size=5))
def test_no_text_is_lost_nor_shown_for_another_sentence(
    tmp_path_factory: pytest.TempPathFactory,
    history: list[tuple[list[PageUnits], set[int]]],
) -> None:
    locale = tmp_path_factory.mktemp("site") / "locale"
    written: set[str] = set()
    for book, chosen in history:
        catalog.sync(book, locale, ["ja"])
        assert catalog.sync(book, locale, ["ja"]) == ()
        for path in sorted(locale.rglob("*.po")):
            text = path.read_text(encoding="utf-8")
            written |= fill(path, text, chosen)
        kept = "".join(path.read_text(encoding="utf-8") for path in locale.rglob("*.po"))
        assert all(f'msgstr "{text}"' in kept for text in written)
        catalogs = catalog.load(book, locale, ["ja"])
        for page in book:
            found = catalogs.catalog(page.name, "ja")
            for part in page.sections:
                for msgid in part.msgids:
                    shown = catalog.text(msgid, found, part.context, part.code_digest)
                    own = (
                        {msgid}
                        if shown.state in ("stale", "missing")
                        else {f"{name} 訳：{msgid}" for name in "ab"}
                    )
                    assert shown.text in own


def fill(path: Path, text: str, chosen: set[int]) -> set[str]:
    """Translate the chosen ones of the empty entries of a file, in words of that file."""
    count = 0
    written = set()

    def one(match: re.Match[str]) -> str:
        nonlocal count
        count += 1
        if count - 1 not in chosen:
            return match[0]
        words = f"{'ab'[int(path.stem)]} 訳：{match[1]}"
        written.add(words)
        return f'msgid "{match[1]}"\nmsgstr "{words}"\n'

    path.write_text(re.sub(r'(?<=\n)msgid "(.+)"\nmsgstr ""\n', one, text), encoding="utf-8")
    return written


SENTENCES = st.sampled_from(["One.", "Two.", "Three."])
ENTRIES = st.builds(
    po_file.Entry,
    st.sampled_from(["a", "b"]),
    SENTENCES,
    st.sampled_from(["", "Eins.", "Zwei."]),
    digests=st.sampled_from([(), ("c",), ("c", "d")]),
    obsolete=st.booleans(),
)


@given(st.lists(st.lists(ENTRIES, max_size=4).map(tuple), max_size=4))
def test_elsewhere_is_what_all_catalogues_remember(files: list[tuple[po_file.Entry, ...]]) -> None:
    all_of_them = sync.remember(entry for entries in files for entry in entries)
    read = [
        po_file.File(str(number), lambda entries=entries: entries) for number, entries in enumerate(files)
    ]
    assert dict(catalog.Elsewhere(read, Graph())) == all_of_them


def test_a_catalogue_is_read_for_a_sentence_that_it_has() -> None:
    read: list[str] = []

    def file(name: str, sentence: str) -> po_file.File:
        def entries() -> tuple[po_file.Entry, ...]:
            read.append(name)
            return (po_file.Entry("a", sentence, "Eins."),)

        return po_file.File(name, entries)

    found = catalog.Elsewhere([file("first", "One."), file("second", "Two.")], Graph())
    assert found.get("Three.") is None
    read.clear()
    assert found["Two."].msgstr == "Eins."
    assert read == ["second"]
