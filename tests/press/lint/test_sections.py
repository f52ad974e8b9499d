"""Rules about sections: each finds what it is for and nothing in a section that is right."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from press.project import SAMPLE, edit, sidelit
from sidelit.config.config import DEFAULT_SEVERITIES, LintOptions, Word, read_lint_options
from sidelit.config.toml import Table
from sidelit.errors import SidelitError
from sidelit.lint import sections
from sidelit.text import markup

LONG = "The rank reads " + "a number and " * 12 + "goes on"
ASKED = LintOptions(lines=3, forbidden=(Word(re.compile("utili[sz]e", re.IGNORECASE), "write `use`"),))


def found(rule: str, text: str, code: str = "", *, id: str = "f", definition: bool = False) -> list[int]:
    tokens = markup.parse(text, path="x.py", first_line=7)
    one = sections.Section("x.py", id, 5, False, tokens, tuple(code.split("\n")), definition)
    asked = replace(ASKED, severities={**dict.fromkeys(DEFAULT_SEVERITIES, "off"), rule: "error"})
    told = list(sections.lint(one, asked, is_english=True))
    assert {name for name, _, _ in told} <= {rule}
    return [line for _, line, _ in told]


CASES = [
    ("code-without-words", "", "a\nb\n\nc\nd", [5]),
    ("code-without-words", "", "a\n\n\nb\nc", []),
    ("code-without-words", "Four letters.", "a\nb\nc\nd", []),
    (
        "code-without-words",
        "",
        "from a import (\n    b,\n    c,\n)\nimport d\n__all__ = [\n    'b',\n]\ne\nf\ng",
        [],
    ),
    ("code-without-words", "", "    import d\n    e\n    f\n    g\n    h", [5]),
    ("code-without-words", "", "else:\n    e\n    f\n    g", [5]),
    ("repeats-code", "Increment the counter.", "counter += 1", [7]),
    ("repeats-code", "Loop over all the users.", "for user in users:\n    user.greet()", [7]),
    ("repeats-code", "Call `next_token`.", "token = nextToken()", [7]),
    ("repeats-code", "The next one was read already.", "counter += 1", []),
    ("repeats-code", "Increment the counter. The reader is behind by one.", "counter += 1", []),
    ("repeats-code", "Increment the counter.", "", []),
    ("picture-without-words", "One.\n\n![](a/ring.png)", "", [9]),
    ("picture-without-words", "One.\n\n![ring.png](a/ring.png)", "", [9]),
    ("picture-without-words", "One.\n\n![Four ranks in a ring.](a/ring.png)", "", []),
    ("long-sentence", f"One.\n\n- {LONG}.", "", [9]),
    ("long-sentence", f"{LONG[:100]}. {LONG[:100]}.", "", []),
    ("long-sentence", f"| {LONG} |\n|---|\n| {LONG} |", "", []),
    ("short-sentences", "It ran. It sat. It ate.", "", [7]),
    ("short-sentences", "It ran. It sat. After that it ate all of what it had found.", "", []),
    ("short-sentences", "It ran e.g. here. It sat.\n\nIt ate.", "", []),
    ("opening", "It is cast.", "", [7]),
    ("opening", "This takes one byte.", "", [7]),
    ("opening", "Those of the last step.", "", [7]),
    ("opening", "This rank takes one byte. It is cast.", "", []),
    ("opening", "One rank is enough.", "", []),
    ("opening", "This takes one byte.", "x = 1", []),
    ("opening", "It takes one byte.", "x = 1", [7]),
    ("opening", "It is possible to cast.", "", []),
    ("opening", "Items are cast.", "", []),
    ("word", "One.\n\nUtilize the cache.", "", [9]),
    ("word", "Use the cache, as `utilize` does.", "", []),
]


@pytest.mark.parametrize(("rule", "text", "code", "lines"), CASES)
def test_a_rule_finds_its_mistake_and_only_that(rule: str, text: str, code: str, lines: list[int]) -> None:
    assert found(rule, text, code) == lines


def test_a_docstring_repeats_the_head_of_its_definition_or_nothing() -> None:
    code = "def close_file(path):\n    loop = 1"
    assert found("repeats-code", "Close the file.", code, definition=True) == [7]
    assert found("repeats-code", "Loop.", code, definition=True) == []


@pytest.mark.parametrize(
    ("id", "is_found"), [("f/a-12ab34cd", True), ("f@0af3b21c9", True), ("f/a-2024", False)]
)
def test_nobody_can_say_a_digest(id: str, is_found: bool) -> None:
    assert bool(found("hash-id", "Words.", id=id)) == is_found


@pytest.mark.parametrize(
    ("id", "advice"),
    [
        ("abc123f0", "rename the definition: a published id still leads to it"),
        ("Box.abc123f0/words", "rename the definition: a published id still leads to it"),
        (
            "f/a-12ab34cd",
            "a release has published it, so allow it in site/sidelit.toml, under [[lint.allow]]",
        ),
    ],
)
def test_what_helps_against_such_an_id(id: str, advice: str) -> None:
    one = sections.Section("x.py", id, 5, False, markup.parse("Words."))
    assert [each for *_, each in sections.lint(one, ASKED, is_english=True)] == [
        f"nobody can say the id {id}; {advice}"
    ]


def test_every_rule_has_a_case_that_fails_and_one_that_passes() -> None:
    rules = {*sections.ANY, *sections.ENGLISH}
    assert rules <= set(DEFAULT_SEVERITIES)
    assert {rule for rule, _, _, lines in CASES if lines} == rules - {"hash-id"}
    assert {rule for rule, _, _, lines in CASES if not lines} == rules - {"hash-id"}


def test_rules_of_english_are_for_english() -> None:
    one = sections.Section("x.py", "f", 5, False, markup.parse("It is cast."))
    assert list(sections.lint(one, ASKED, is_english=False)) == []


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"rules": {"nothing": "off"}}, "there is no rule 'nothing'; there are unbound-symbol, "),
        ({"rules": {"opening": "loud"}}, 'the rule opening is "error", "warning" or "off"'),
        ({"avoid": [{"pattern": "(", "say": "x"}]}, "'(' is no pattern: "),
        ({"lines": 0}, "`lines` must be a number from 1 on"),
        ({"lines": True}, "`lines` must be a number from 1 on"),
        ({"words": "x"}, "`words` must be a number"),
        ({"allow": [{"rule": "opening", "source": "a", "section": "b", "because": " "}]}, "says why"),
        ({"strict": True}, "unknown key `strict`"),
    ],
)
def test_a_mistake_in_the_configuration_is_told(data: dict[str, object], told: str) -> None:
    with pytest.raises(SidelitError) as caught:
        read_lint_options(Table(data, "site/sidelit.toml", ""))
    assert told in str(caught.value)


def test_a_project_chooses_its_rules(tmp_path: Path) -> None:
    sample = Path(shutil.copytree(SAMPLE, tmp_path / "sample"))
    source, chosen = sample / "src/sample/more.py", sample / "site/sidelit.toml"
    source.write_text('"""# More"""\n\n\ndef run() -> None:\n    """It runs."""\n', encoding="utf-8")
    edit(chosen, "chapters = [", 'chapters = ["more.py", ')
    place = "src/sample/more.py:5: opening: a section is read alone, and 'It' points out of it"
    # What an allowance needs stands in the line.
    assert f"{place}; name the thing [run]\n" in sidelit("lint", cwd=sample).stdout
    written = chosen.read_text("utf-8")
    chosen.write_text(written + '\n[lint.rules]\nopening = "error"\n', encoding="utf-8")
    assert place in sidelit("lint", cwd=sample, code=1).stderr
    allow = (
        '[[lint.allow]]\nrule = "opening"\nsource = "src/sample/more.py"\nsection = "run"\nbecause = "so"\n'
    )
    chosen.write_text(f'{written}\n[lint.rules]\nopening = "error"\n{allow}', encoding="utf-8")
    assert "opening" not in sidelit("lint", cwd=sample).stdout
    edit(source, "It runs.", "The rank runs.")
    line = len(written.splitlines()) + 7
    told = f"site/sidelit.toml:{line}: allow: nothing in src/sample/more.py at run breaks the rule opening"
    assert told in sidelit("lint", cwd=sample, code=1).stderr
