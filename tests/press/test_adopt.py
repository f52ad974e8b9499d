"""The page for strangers says what happens: its files are written, its commands run, its outputs compared."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from press.project import page, sidelit
from sidelit.site import linting

ROOT = Path(__file__).parent.parent.parent
WRITTEN = (ROOT / "site/pages/adopt.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"(?ms)^```(\w+)\n(.*?)^```$", WRITTEN)
# The first line of a block names the file that it is, or the file whose lines it changes.
NAMED = re.compile(r"(?:# |<!-- |/\* )(in |added to )?(\S+)(?: -->| \*/)?\n")
HOME = "/home/me/rings"


def write(folder: Path, text: str) -> Path:
    """Write a block into its file, add it there, or change the lines of the file that have its keys."""
    head = NAMED.match(text)
    assert head, text
    path, body = folder / head[2], text[head.end() :]
    path.parent.mkdir(parents=True, exist_ok=True)
    if head[1] == "added to ":
        body = f"{path.read_text(encoding='utf-8')}\n{body}"
    elif head[1]:
        whole = path.read_text(encoding="utf-8")
        for line in body.splitlines():
            whole, count = re.subn(rf"(?m)^{line.partition(' = ')[0]} = .*$", line, whole)
            assert count == 1, line
        body = whole
    path.write_text(body, encoding="utf-8")
    return path


def notebook_code(path: Path) -> str:
    """The cells of code of a notebook, one below the other."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


def ran(text: str) -> list[tuple[str, str]]:
    """The commands of a block, each with the output that is shown below it."""
    return re.findall(r"(?m)^\$ (.+)\n((?:(?!\$ ).*\n)*)", text)


@pytest.mark.full
def test_every_command_of_the_page_prints_what_it_says(tmp_path: Path) -> None:
    folder = tmp_path / "rings"
    seen = []
    for kind, text in BLOCKS:
        if kind != "console":
            write(folder, text)
            continue
        for command, output in ran(text):
            program, *arguments = shlex.split(command)
            seen.append(" ".join([program, *arguments[:1]]))
            if program == "pip":
                # tests/test_package.py installs it.
                assert (ROOT / arguments[-1] / "pyproject.toml").is_file()
                continue
            assert program == "sidelit"
            done = sidelit(*arguments, cwd=folder)
            assert (done.stdout + done.stderr).replace(str(folder), HOME) == output, command
    assert seen == [
        *("pip install", "sidelit init", "sidelit build", "sidelit sync", "sidelit status"),
        *("sidelit lint", "sidelit build", "sidelit lint", "sidelit lab", "sidelit print"),
    ]
    # The last lines of the configuration allow what was found.
    assert sidelit("lint", cwd=folder).stdout == "0 errors, 0 warnings.\n"
    shown = page(folder / "build/site", "de/rings/ring.html")
    assert shown.lang == "de"
    assert "Inhalt" in shown.text
    assert "Contents" not in shown.text
    html = (folder / "build/site/rings/ring.html").read_text(encoding="utf-8")
    assert 'href="../assets/ours.css"' in html
    assert "<math" in html
    sidelit("build", cwd=folder)
    assert 'href="fill.ipynb" download' in (folder / "build/site/labs/fill.html").read_text(encoding="utf-8")
    # The notebook of a student has a blank, which the check tells of; the teacher's passes.
    codes = {who: notebook_code(folder / "notebooks" / who / "en/01_fill.ipynb") for who in ("", "teacher")}
    exec(codes["teacher"], {})
    with pytest.raises(NotImplementedError):
        exec(codes[""], {})
    assert "--accent" in (folder / "build/site/assets/colours.css").read_text(encoding="utf-8")


def test_the_tables_name_every_rule_of_lint() -> None:
    tables = re.findall(r"(?m)^\| rule \|.*\n\|---\|---\|\n((?:\|.*\n)+)", WRITTEN)
    cells = (line.split(" | ")[0] for table in tables for line in table.splitlines())
    named = [rule for cell in cells for rule in re.findall("`(.+?)`", cell)]
    assert sorted(named) == sorted(linting.RULES)


def test_the_ten_lines_are_those_that_init_writes(tmp_path: Path) -> None:
    source = next(text for kind, text in BLOCKS if kind == "python")
    (lines,) = (text for _, text in BLOCKS if text.startswith("# site/sidelit.toml"))
    write(tmp_path / "rings", source)
    sidelit("init", cwd=tmp_path / "rings")
    written = (tmp_path / "rings/site/sidelit.toml").read_text(encoding="utf-8")
    # Beside its comments it names the folder that imports start from, which `src` is anyway.
    said = [line for line in written.splitlines() if line and not line.startswith("#")]
    said.remove('source_root = "src"')
    assert said == [line for line in lines.splitlines()[1:] if line]
    assert len(said) == 10
