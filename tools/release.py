"""Bring the files that name a version into agreement, and check that they are.

    .venv-site/bin/python tools/release.py prepare 1.2.0 --date 2026-11-24
    .venv-site/bin/python tools/release.py agree
    .venv-site/bin/python tools/release.py check [v1.2.0]
    .venv-site/bin/python tools/release.py notes

`prepare` writes the version and the day into `pyproject.toml`, `CITATION.cff` and `CHANGELOG.md`, and makes
`.zenodo.json`, which gives an archive its metadata, from `CITATION.cff`. The addresses in `CITATION.cff` are
those of `site/sidelit.toml`, and where that has none there are none. `agree` writes the addresses and
`.zenodo.json` alone, between releases. `check` fails where files differ, or differ from the tag that is
given, and `notes` prints what the changelog says of the version.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from datetime import date
from pathlib import Path
from typing import Any

import yaml

from sidelit.config import config
from sidelit.errors import SidelitError

ROOT = Path(__file__).parent.parent
ZENODO = ".zenodo.json"
ADDRESSES = {"url": "url", "repository-code": "repository"}


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Run the command line; what is wrong is one line each, and exit code 1."""
    given = parser().parse_args(arguments)
    try:
        return _run(given, root)
    except SidelitError as error:
        print(error, file=sys.stderr)
        return 1


def _run(given: argparse.Namespace, root: Path) -> int:
    if given.command == "prepare":
        prepare(root, given.version, given.date or date.today().isoformat())
        print(f"Look at the changes; then: sidelit publish, git commit, git tag v{given.version}")
        return 0
    if given.command == "agree":
        agree(root)
        return 0
    if given.command == "notes":
        print(notes(root))
        return 0
    wrong = list(disagreements(root, given.tag))
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


def parser() -> argparse.ArgumentParser:
    """The four commands."""
    top = argparse.ArgumentParser(prog="release.py")
    subs = top.add_subparsers(dest="command", required=True)
    sub = subs.add_parser("prepare", help="write a version into all files that name one")
    sub.add_argument("version")
    sub.add_argument("--date", help="default: today")
    subs.add_parser("agree", help="write the site's addresses into CITATION.cff, and make .zenodo.json of it")
    sub = subs.add_parser("check", help="see whether they agree")
    sub.add_argument("tag", nargs="?", help="the tag of the release")
    subs.add_parser("notes", help="print what the changelog says of this version")
    return top


def prepare(root: Path, version: str, day: str) -> None:
    """Write the version and the day of a release into every file that names them."""
    replace(root / "pyproject.toml", r'^version = ".*"$', f'version = "{version}"')
    replace(root / "CHANGELOG.md", r"^## .*\(unreleased\)$", f"## {version} ({day})")
    replace(root / "CITATION.cff", r"^version: .*$", f"version: {version}")
    agree(root, day)


def agree(root: Path, day: str = "") -> None:
    """Write the addresses of the site into `CITATION.cff`, and `.zenodo.json` from it; its day stays."""
    cff = root / "CITATION.cff"
    day = day or str(citation(root).get("date-released", ""))
    public = config.load(root / "site" / "sidelit.toml").public
    known = {"date-released": day} | {key: getattr(public, name) for key, name in ADDRESSES.items()}
    text = re.sub(rf"(?m)^(?:{'|'.join(known)}): .*\n", "", cff.read_text("utf-8"))
    lines = "".join(f'{key}: "{said}"\n' for key, said in known.items() if said)
    cff.write_text(re.sub(r"(?m)^version: .*\n", lambda found: found[0] + lines, text), "utf-8")
    (root / ZENODO).write_text(zenodo(root), "utf-8")


def disagreements(root: Path, tag: str | None = None) -> list[str]:
    """What does not agree, a line each."""
    version = current(root)
    cited = str(citation(root).get("version"))
    wrong = []
    if cited != version:
        wrong.append(f"CITATION.cff has the version {cited}, and pyproject.toml {version}")
    if f"\n## {version} (" not in (root / "CHANGELOG.md").read_text("utf-8"):
        wrong.append(f"CHANGELOG.md says nothing of {version}")
    path = root / ZENODO
    if not path.is_file() or path.read_text("utf-8") != zenodo(root):
        wrong.append(f"{ZENODO} is not what CITATION.cff says; run `tools/release.py agree`")
    if tag and tag.removeprefix("v") != version:
        wrong.append(f"the tag is {tag}, and pyproject.toml has the version {version}")
    if tag and "date-released" not in citation(root):
        wrong.append("CITATION.cff has no day; run `tools/release.py prepare`")
    return wrong


def notes(root: Path) -> str:
    """What the changelog says of the present version, as Markdown."""
    parts = re.split(r"(?m)^## ", (root / "CHANGELOG.md").read_text("utf-8"))
    found = next((part for part in parts if part.startswith(f"{current(root)} ")), "")
    return found.partition("\n")[2].strip()


def zenodo(root: Path) -> str:
    """The metadata of an archive, made from `CITATION.cff`."""
    said = citation(root)
    made: dict[str, object] = {
        "title": said["title"],
        "upload_type": "software",
        "description": said["abstract"].strip(),
        "creators": [creator(author) for author in said["authors"]],
        "version": str(said["version"]),
        "publication_date": str(said.get("date-released", "")),
        "license": said["license"][0],
        "keywords": said["keywords"],
        "language": "eng",
        "related_identifiers": list(related(said)),
    }
    known = {key: value for key, value in made.items() if value}
    return json.dumps(known, indent=2, ensure_ascii=False) + "\n"


def creator(author: dict[str, str]) -> dict[str, str]:
    """An author as an archive names one."""
    person = f"{author['family-names']}, {author['given-names']}" if "family-names" in author else ""
    made = {
        "name": person or author["name"],
        "orcid": author.get("orcid", "").rpartition("/")[2],
        "affiliation": author.get("affiliation", ""),
    }
    return {key: value for key, value in made.items() if value}


def related(said: dict[str, Any]) -> list[dict[str, str]]:
    """The site, and the works that the project refers to by an identifier."""
    known = (each for work in said.get("references", ()) for each in work.get("identifiers", ()))
    made = [{"identifier": each["value"], "relation": "references"} for each in known]
    if said.get("url"):
        made.insert(0, {"identifier": said["url"], "relation": "isDocumentedBy"})
    return made


def current(root: Path) -> str:
    """The version of the project."""
    found = re.search(r'(?m)^version = "(.+)"$', (root / "pyproject.toml").read_text("utf-8"))
    assert found, "pyproject.toml has no version"
    return found[1]


def citation(root: Path) -> dict[str, Any]:
    """What `CITATION.cff` says."""
    found: dict[str, Any] = yaml.safe_load((root / "CITATION.cff").read_text("utf-8"))
    return found


def replace(path: Path, pattern: str, line: str) -> None:
    """Put a line in the place of the first one that the pattern finds; a file without one stays."""
    text = path.read_text("utf-8")
    path.write_text(re.sub(pattern, lambda _: line, text, count=1, flags=re.MULTILINE), "utf-8")


if __name__ == "__main__":
    sys.exit(main())
