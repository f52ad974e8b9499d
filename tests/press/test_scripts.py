"""The press's own scripts: small, and served without what only their readers need."""

from __future__ import annotations

import re

import pytest

from sidelit.files import assets
from sidelit.files.assets import compact

FOLDER = assets.templates_folder() / "assets"
SCRIPTS = sorted(FOLDER.glob("*.js"))
NAMES = [path.name for path in SCRIPTS]
# What only some pages load, or only some readers ask for, in bytes.
# The search loads with its first use; a page has only its button.
LIMITS = {
    "cite.js": 2000,
    "comforts.js": 3560,
    "names.js": 2700,
    "names-card.js": 1700,
    "newest.js": 200,
    "original.js": 1850,
    "original-page.js": 2400,
    "search.js": 1060,
    "sidebar.js": 3800,
    "search-rank.js": 13_600,
    "search-dialog.js": 2360,
    "slides.js": 1000,
    "symbols.js": 2210,
}


def test_all_scripts_together_are_smaller_than_one_picture() -> None:
    sizes = {path.name: len(assets.read_asset(path)) for path in SCRIPTS}
    assert sizes["stepper.js"] <= 8000
    assert sum(size for name, size in sizes.items() if name not in LIMITS) < 15_000, sizes


@pytest.mark.parametrize("name", LIMITS)
def test_a_script_of_its_own_is_smaller_than_its_limit(name: str) -> None:
    assert len(assets.read_asset(FOLDER / name)) <= LIMITS[name]


@pytest.mark.parametrize("name", NAMES)
def test_a_script_is_written_as_the_press_can_make_it_small(name: str) -> None:
    text = (FOLDER / name).read_text("utf-8")
    code = re.sub(r"//[^\n]*", "", text)
    assert not re.search(r"`[^`]*\$\{[^}`]*`", code), "a template inside of a template"
    for line in filter(None, map(str.strip, code.splitlines())):
        assert line.endswith(tuple(";{}([,|&")) or re.fullmatch(r"(if|else|for) ?(\(.*\))?", line), line
    served = assets.read_asset(FOLDER / name).decode()
    assert strings(served) == strings(code)
    # The end of the last statement of a block is left out, so none may be empty.
    assert not re.search(r"\b(for|if|while) ?\([^()]*\);", code)


def strings(text: str) -> list[str]:
    return re.findall(r'"[^"\n]*"|`[^`]*`', text)


@pytest.mark.parametrize("name", NAMES)
def test_a_script_needs_no_exception_from_the_policy_and_nobody_else(name: str) -> None:
    text = (FOLDER / name).read_text("utf-8")
    for way in ("innerHTML", 'setAttribute("style"', "eval(", "http", "fetch(", "import"):
        assert way not in text, way


@pytest.mark.parametrize(
    ("text", "small"),
    [
        ("// Why.\na = 1; // So.\nb = 2;\n", "a=1;b=2;"),
        ('a = "b  // c" + `d  ${e} "f`;', 'a="b  // c"+`d  ${e} "f`;'),
        (r'a = "b\"  // c" ;', r'a="b\"  // c";'),
        ("if (a) b();\nelse c();\n", "if(a)b();else c();"),
        ("for (const a of b) {\n  if (a) return;\n}\nc();\n", "for(const a of b){if(a)return}\nc();"),
        ("a = b\n  ? c\n  : - -d;\n", "a=b?c:- -d;"),
        ("a = {\n  b: 1,\n};\n", "a={b:1};"),
        ("const a = () => {\n  b(`;}`);\n};\nc([1, 2,], d,);\n", "const a=()=>{b(`;}`)};c([1,2],d);"),
        ("", ""),
    ],
)
def test_what_is_left_means_the_same(text: str, small: str) -> None:
    assert compact(text) == small


def test_files_that_others_wrote_are_served_as_they_are() -> None:
    names = dict(assets.asset_files())
    for name in ("katex/katex.min.js", "page.css"):
        if name in names:
            assert assets.read_asset(names[name]) == names[name].read_bytes()


# What stands on pages of every kind, or belongs to the frame, and is meant to look alike everywhere.
SHARED = {"text", "front", "code", "line", "num", "claim", "caption", "recorded-by", "on", "now"}


# A lesson says where what moves stands in it, and the bars of a home page are those of its own figure.
INSIDE = {
    "lesson.css": {"stepper", "sliders", "moment", "held", "kinds"},
    "home.css": {"bar", "p1", "p2", "p3"},
}


def test_what_moves_shares_no_class_with_pages_that_it_may_stand_on() -> None:
    sheets = {path.name: classes(path.read_text("utf-8")) for path in FOLDER.glob("*.css")}
    moving = {"stepper.css", "sliders.css"}
    for name in moving:
        # What is printed of it stands in the sheets for paper, by its own name.
        for other in sheets.keys() - moving - {"print.css", "book.css"}:
            common = sheets[name] & sheets[other] - SHARED
            # These stand inside of a class of their own wherever they are named.
            assert common <= {"s1", "s2", "parts"} | INSIDE.get(other, set()), (name, other)


def classes(sheet: str) -> set[str]:
    text = re.sub(r"(?s)/\*.*?\*/", "", sheet)
    return {name for rule in re.findall(r"([^{}]+)\{", text) for name in re.findall(r"\.([a-z][\w-]*)", rule)}
