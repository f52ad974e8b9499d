"""What a forge does with this repository: its workflows, its forms, and the files that a release needs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import jsonschema
import pytest
import yaml

import release
from sidelit.config import publication, toml

ROOT = Path(__file__).parent.parent
FORGE = ROOT / ".github"
WORKFLOWS = sorted((FORGE / "workflows").glob("*.yml"))
FORMS = [FORGE / "ISSUE_TEMPLATE" / name for name in ("error.yml", "translation.yml")]
SCHEMAS = {
    "github-workflows": WORKFLOWS,
    "github-issue-forms": FORMS,
    "github-issue-config": [FORGE / "ISSUE_TEMPLATE" / "config.yml"],
}


def program(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a program of this environment."""
    command = [str(Path(sys.executable).parent / name), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


# ---- The forge ----


@pytest.mark.nightly
@pytest.mark.parametrize("kind", SCHEMAS)
def test_a_file_for_the_forge_is_what_its_schema_asks_for(kind: str, tmp_path: Path) -> None:
    check = ("check-jsonschema", "--builtin-schema", f"vendor.{kind}")
    done = program(*check, *SCHEMAS[kind])
    assert done.returncode == 0, done.stdout
    # It sees what is wrong.
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(SCHEMAS[kind][0].read_text("utf-8") + "nonsense: [1]\n", "utf-8")
    assert program(*check, wrong).returncode == 1


def test_no_workflow_lends_its_rights_to_strangers(tmp_path: Path) -> None:
    done = program("zizmor", "--offline", "--no-progress", "--config", FORGE / "zizmor.yml", *WORKFLOWS)
    assert done.returncode == 0, done.stdout
    careless = tmp_path / "careless.yml"
    text = (FORGE / "workflows" / "tests.yml").read_text("utf-8")
    careless.write_text(text.replace("make lint", "make ${{ github.event.pull_request.title }}"), "utf-8")
    assert "template-injection" in program("zizmor", "--offline", "--no-progress", careless).stdout


def test_workflows_ask_for_targets_and_commands_that_there_are() -> None:
    targets = set(re.findall(r"(?m)^([a-z-]+):.*## ", (ROOT / "Makefile").read_text("utf-8")))
    commands = set(
        re.findall(r'add\(\s*"([a-z]+)"', (ROOT / "src/sidelit/cli/options.py").read_text("utf-8"))
    )
    seen = 0
    for path in WORKFLOWS:
        text = path.read_text("utf-8")
        for target in re.findall(r"\bmake ([a-z-]+)", text.partition("jobs:")[2]):
            assert target in targets, path.name
            seen += 1
        for command in re.findall(r"bin/sidelit ([a-z]+)", text):
            assert command in commands, path.name
            seen += 1
        for tool in re.findall(r"tools/\w+\.py", text):
            assert (ROOT / tool).is_file(), path.name
        for action in re.findall(r"uses: (\S+)", text):
            assert re.fullmatch(r"actions/[\w-]+@v\d+", action), "an action of nobody else, by its version"
    assert seen >= 8


def test_every_python_that_the_project_supports_is_tested() -> None:
    jobs = yaml.safe_load((FORGE / "workflows" / "tests.yml").read_text("utf-8"))["jobs"]
    tested = jobs["tests"]["strategy"]["matrix"]["python"]
    oldest = re.search(r'requires-python = ">=([\d.]+)"', (ROOT / "pyproject.toml").read_text("utf-8"))
    assert oldest
    assert tested[0] == oldest[1]
    assert tested == [f"3.{minor}" for minor in range(10, 10 + len(tested))]
    support = (ROOT / "SUPPORT.md").read_text("utf-8")
    assert f"Python {tested[0]} to {tested[-1]}" in support


def test_the_report_link_of_a_page_fills_in_the_form(tmp_path: Path) -> None:
    path = tmp_path / "sidelit.toml"
    path.write_text('url = "https://ada.github.io/loom/"\n', "utf-8")
    found = publication.read(toml.read_table(path, "sidelit.toml"))
    for link, extra in ((found.report_url, set()), (found.translation_url, {"language"})):
        asked = parse_qs(urlsplit(link or "").query)
        (form,) = asked.pop("template")
        body = yaml.safe_load((FORGE / "ISSUE_TEMPLATE" / form).read_text("utf-8"))["body"]
        texts = {each.get("id") for each in body if each["type"] in ("input", "textarea")}
        assert set(asked) - {"title"} == {"section", "version"} | extra
        assert set(asked) - {"title"} <= texts


# ---- Releases ----


def test_the_files_that_name_a_version_agree() -> None:
    assert release.disagreements(ROOT) == []
    assert release.notes(ROOT)


def test_the_citation_file_names_no_address_that_the_site_does_not_have() -> None:
    said = release.citation(ROOT)
    known = toml.read_table(ROOT / "site/sidelit.toml", "site/sidelit.toml")
    found = publication.read(known)
    assert said.get("url") == found.url
    assert said.get("repository-code") == found.repository


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the files that a release changes, of a project with a public address."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    # A release of ours has its day and its heading already.
    cited = (ROOT / "CITATION.cff").read_text("utf-8")
    cited = re.sub(r"(?m)^(date-released|url|repository-code): .*\n", "", cited)
    (tmp_path / "CITATION.cff").write_text(cited, "utf-8")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 0.1.0 (unreleased)\n\nAll of it.\n", "utf-8")
    (tmp_path / "site").mkdir()
    site = 'title = "Loom"\nlanguages = ["en"]\nurl = "https://ada.github.io/loom/"\n'
    (tmp_path / "site/sidelit.toml").write_text(site, "utf-8")
    return tmp_path


def test_a_release_is_written_into_every_file(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert release.main(["prepare", "2.3.4", "--date", "2027-01-31"], project) == 0
    assert release.main(["check", "v2.3.4"], project) == 0
    said = release.citation(project)
    assert (said["version"], str(said["date-released"])) == ("2.3.4", "2027-01-31")
    assert said["url"] == "https://ada.github.io/loom/"
    assert said["repository-code"] == "https://github.com/ada/loom"
    made = json.loads((project / ".zenodo.json").read_text("utf-8"))
    assert (made["version"], made["publication_date"], made["license"]) == ("2.3.4", "2027-01-31", "MIT")
    assert made["creators"] == [release.creator(author) for author in said["authors"]]
    assert {"identifier": said["url"], "relation": "isDocumentedBy"} in made["related_identifiers"]
    assert "## 2.3.4 (2027-01-31)" in (project / "CHANGELOG.md").read_text("utf-8")
    # A second time changes nothing but what was asked for.
    before = (project / "CITATION.cff").read_text("utf-8")
    assert release.main(["prepare", "2.3.5", "--date", "2027-02-01"], project) == 0
    after = (project / "CITATION.cff").read_text("utf-8")
    assert after == before.replace("2.3.4", "2.3.5").replace("2027-01-31", "2027-02-01")
    capsys.readouterr()


def test_a_fork_writes_its_names_and_its_address_without_a_release(project: Path) -> None:
    cff = project / "CITATION.cff"
    version = release.current(project)
    cff.write_text(
        re.sub(r"(?m)^version: .*$", f"version: {version}", cff.read_text("utf-8")).replace(
            "authors:\n", "authors:\n  - family-names: Lovelace\n    given-names: Ada\n", 1
        ),
        encoding="utf-8",
    )
    (project / "CHANGELOG.md").write_text(f"# Changelog\n\n## {version} (unreleased)\n\nAll.\n", "utf-8")
    assert release.main(["check"], project) == 1
    assert release.main(["agree"], project) == 0
    assert release.main(["check"], project) == 0
    said = release.citation(project)
    assert (said["url"], "date-released" in said) == ("https://ada.github.io/loom/", False)
    made = json.loads((project / ".zenodo.json").read_text("utf-8"))
    assert made["creators"][0] == {"name": "Lovelace, Ada"}
    # A day that is there stays.
    assert release.main(["prepare", "2.3.4", "--date", "2027-01-31"], project) == 0
    assert release.main(["agree"], project) == 0
    assert str(release.citation(project)["date-released"]) == "2027-01-31"


def test_a_release_that_disagrees_is_told(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert release.main(["check", "v9.9"], project) == 1
    told = capsys.readouterr().err
    for words in ("the tag is v9.9", "has no day", ".zenodo.json is not"):
        assert words in told


def test_a_mistake_in_the_configuration_is_one_sentence(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (project / "site/sidelit.toml").open("a", encoding="utf-8") as file:
        file.write('[public]\nurl = "https://ada.github.io/loom/"\n')
    assert release.main(["prepare", "2.3.4"], project) == 1
    assert (
        capsys.readouterr().err
        == "site/sidelit.toml:4: unknown key `public`; remove it or mend its spelling\n"
    )


def test_a_person_is_named_as_archives_name_people() -> None:
    person = {"family-names": "Lovelace", "given-names": "Ada", "orcid": "https://orcid.org/0000-0001"}
    assert release.creator(person) == {"name": "Lovelace, Ada", "orcid": "0000-0001"}


def test_the_citation_file_is_what_its_format_asks_for() -> None:
    """The fields that version 1.2.0 of the format wants, and the form of those that it knows."""
    text = {"type": "string", "minLength": 1}
    schema = {
        "type": "object",
        "required": ["cff-version", "message", "title", "authors"],
        "properties": {
            "cff-version": {"const": "1.2.0"},
            "message": text,
            "title": text,
            "abstract": text,
            "type": {"enum": ["software", "dataset"]},
            "authors": {"type": "array", "minItems": 1, "items": {"type": "object"}},
            "version": {"type": ["string", "number"]},
            "date-released": {},
            "doi": {"type": "string", "pattern": "^10\\."},
            "url": {"type": "string", "pattern": "^https?://"},
            "repository-code": {"type": "string", "pattern": "^https?://"},
            "license": {"type": "array", "items": text},
            "keywords": {"type": "array", "items": text},
            "references": {"type": "array"},
        },
        "additionalProperties": False,
    }
    jsonschema.validate(release.citation(ROOT), schema)
