"""The distribution works away from its source: a wheel is built, installed outside of the clone, and used."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from importlib.metadata import PackageNotFoundError, metadata, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from shardbook.foundations.torch_private import NEWEST, OLDEST

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
PRESS = ROOT / "packaging" / "sidelit"
LITERATE = '''"""# A doubling

The claim: $2x = x + x$.
"""


def double(x):
    """Twice the number."""
    return x + x
'''


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree, built with the tools of this environment."""
    return built(ROOT, tmp_path_factory.mktemp("wheel"), "--wheel")


@pytest.fixture(scope="session")
def press(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the press alone."""
    return built(PRESS, tmp_path_factory.mktemp("press"), "--wheel")


def built(source: Path, target: Path, kind: str) -> Path:
    target.mkdir(exist_ok=True)
    run(sys.executable, "-m", "build", kind, "--no-isolation", "--outdir", target, source, cwd=target)
    (found,) = target.iterdir()
    return found


@pytest.fixture(scope="session")
def outside(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment that holds the wheel and nothing else."""
    return environment(wheel, tmp_path_factory.mktemp("outside") / "env")


def environment(wheel: Path, folder: Path) -> Path:
    venv.create(folder, with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "--quiet"]
    run(*pip, "--no-index", "--no-deps", wheel, cwd=folder)
    return folder


def run(*command: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program that must succeed, with nothing of this project on its path."""
    done = attempt(*command, cwd=cwd, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def attempt(*command: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program and see."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.full
def test_the_wheel_holds_what_it_needs(wheel: Path) -> None:
    """Both packages with their types, the templates, the text that the model learns, the licences."""
    names = zipfile.ZipFile(wheel).namelist()
    held = set(names)
    for needed in ("shardbook/py.typed", "sidelit/py.typed", "sidelit/templates/chapter.html"):
        assert needed in held
    for template in (ROOT / "templates").rglob("*"):
        if template.is_file():
            assert f"sidelit/templates/{template.relative_to(ROOT / 'templates').as_posix()}" in held
    for data in (ROOT / "src" / "shardbook" / "data").iterdir():
        assert f"shardbook/data/{data.name}" in held
    for licence in ("LICENSE", "LICENSE-TEXT"):
        assert any(name.endswith(f".dist-info/licenses/{licence}") for name in names)
    assert len(names) == len(held), "a file is in the wheel twice"


@pytest.mark.full
def test_the_book_without_torch_says_what_to_install(outside: Path, tmp_path: Path) -> None:
    done = attempt(outside / "bin" / "python", "-c", "import shardbook", cwd=tmp_path)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.split(": ")[0] in ("ImportError", "ModuleNotFoundError")
    assert "shardbook[train]" in last


@pytest.mark.full
def test_the_book_imports_with_torch(outside: Path, tmp_path: Path) -> None:
    program = "import shardbook; print(shardbook.__file__, shardbook.shard.__name__)"
    done = run(outside / "bin" / "python", "-c", program, cwd=tmp_path, PYTHONPATH=purelib())
    assert str(outside) in done.stdout
    assert done.stdout.split()[-1] == "shard"


def test_the_press_without_its_packages_says_what_to_install(outside: Path, tmp_path: Path) -> None:
    (tmp_path / "double.py").write_text(LITERATE, "utf-8")
    done = attempt(outside / "bin" / "sidelit", "print", "double.py", "--out", "pages", cwd=tmp_path)
    assert done.returncode == 1
    assert "shardbook[site]" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.full
def test_the_press_prints_pages_outside_of_the_clone(outside: Path, tmp_path: Path) -> None:
    """The command finds its templates, its scripts and its formulas in the wheel."""
    (tmp_path / "double.py").write_text(LITERATE, "utf-8")
    press = outside / "bin" / "sidelit"
    assert "print" in run(press, "--help", cwd=tmp_path, PYTHONPATH=purelib()).stdout
    run(press, "print", "double.py", "--out", "pages", cwd=tmp_path, PYTHONPATH=purelib())
    printed = (tmp_path / "pages" / "double.html").read_text("utf-8")
    assert 'id="double"' in printed
    assert "<math" in printed
    assert list((tmp_path / "pages").rglob("*.css"))


def purelib() -> str:
    """The packages of this environment; its editable install of this project is not among them."""
    return sysconfig.get_path("purelib")


FOREIGN = {
    "src/rings/__init__.py": '"""# Rings\n\n> What is full forgets its oldest value.\n"""\n',
    "src/rings/ring.py": LITERATE,
    "src/rings/google.py": 'def add(a):\n    """Add.\n\n    Args:\n        a: One number.\n    """\n',
    "src/rings/deep/numbers.py": "from rings.ring import double\n\nFOUR = double(2)\n",
    "README.md": "# Rings\n",
}


@pytest.mark.full
def test_the_press_is_a_distribution_of_its_own(press: Path, tmp_path: Path) -> None:
    """It has the version and the requirements that the repository states, and nothing of the book."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    archive = zipfile.ZipFile(press)
    (about,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    said = email.message_from_string(archive.read(about).decode())
    assert (said["Name"], said["Version"]) == ("sidelit", project["version"])
    asked = [Requirement(each) for each in said.get_all("Requires-Dist")]
    extras = project["optional-dependencies"]
    assert {each.name for each in asked} == {
        Requirement(each).name for extra in ("site", "labs", "cards", "book") for each in extras[extra]
    }
    optional = [each.name for each in asked if "extra" in str(each.marker)]
    assert sorted(optional) == ["jupytext", "mkdocs", "nbformat", "pillow", "pypdf"]
    assert {name.partition("/")[0] for name in archive.namelist()} == {"sidelit", about.partition("/")[0]}
    with zipfile.ZipFile(press) as held:
        names = {name for name in held.namelist() if ".dist-info/" not in name}
    for folder, place in ((ROOT / "src" / "sidelit", "sidelit"), (ROOT / "templates", "sidelit/templates")):
        for file in folder.rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                assert f"{place}/{file.relative_to(folder).as_posix()}" in names


@pytest.mark.full
def test_the_source_archive_of_the_press_gives_the_same_wheel(press: Path, tmp_path: Path) -> None:
    with tarfile.open(built(PRESS, tmp_path / "archive", "--sdist")) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (source,) = (tmp_path / "unpacked").iterdir()
    again = built(source, tmp_path / "wheel", "--wheel")
    assert again.name == press.name
    assert {each.filename: each.CRC for each in zipfile.ZipFile(again).infolist()} == {
        each.filename: each.CRC for each in zipfile.ZipFile(press).infolist()
    }


@pytest.mark.full
def test_a_stranger_prints_a_repository_with_it(press: Path, tmp_path: Path) -> None:
    """Installed alone, it makes a whole site in two commands, and no word of the book is on it."""
    for name, text in FOREIGN.items():
        file = tmp_path / "rings" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
    sidelit = environment(press, tmp_path / "env") / "bin" / "sidelit"
    lost = attempt(sidelit, "init", cwd=tmp_path / "rings").stderr
    assert "pip install 'sidelit'" in lost
    run(sidelit, "init", cwd=tmp_path / "rings", PYTHONPATH=purelib())
    told = run(sidelit, "build", cwd=tmp_path / "rings", PYTHONPATH=purelib())
    assert told.stderr == ""
    site = tmp_path / "rings" / "build" / "site"
    pages = {path.relative_to(site).as_posix(): path.read_text("utf-8") for path in site.rglob("*.html")}
    assert {"index.html", "rings/index.html", "rings/deep/numbers.html"} <= set(pages)
    for path in site.rglob("*"):
        assert path.is_dir() or b"shardbook" not in path.read_bytes().lower(), path
    for name, text in pages.items():
        for address in re.findall(r'(?:href|src)="([^"#:]+)', text):
            assert (site / name).parent.joinpath(address).is_file(), f"{name}: {address}"
    assert "<math" in pages["rings/ring.html"]
    assert 'href="../ring.html#double"' in pages["rings/deep/numbers.html"]


def test_torch_is_capped_to_what_the_tests_run_on() -> None:
    """The range is that of the versions that were tried; the pin and the one here are among them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (asked,) = [
        requirement.specifier
        for requirement in map(Requirement, project["optional-dependencies"]["train"])
        if requirement.name == "torch"
    ]
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    (pinned,) = [Version(line.partition("==")[2]) for line in lines if line.startswith("torch==")]
    minor = f"{pinned.major}.{pinned.minor}"
    oldest, newest = int(OLDEST.removeprefix("2.")), int(NEWEST.removeprefix("2."))
    assert asked == SpecifierSet(f">={OLDEST},<2.{newest + 1}")
    supported = (ROOT / "SUPPORT.md").read_text("utf-8")
    assert f"PyTorch {OLDEST} to {NEWEST}," in supported
    tried = re.findall(r"^\| (\d+\.\d+\.\d+) \|", supported, re.MULTILINE)
    minors = [each.rpartition(".")[0] for each in tried]
    assert minors == [f"2.{number}" for number in range(oldest, newest + 1)]
    assert {str(pinned), Version(version("torch")).base_version} <= {*tried}
    for text, said in (
        ("README.md", f"PyTorch {minor}"),
        ("README.md", f"PyTorch {OLDEST} to {NEWEST}"),
        ("site/pages/reading.md", f"PyTorch {OLDEST} to {NEWEST}"),
        ("site/pages/measured.md", f"PyTorch {pinned}"),
    ):
        assert said in (ROOT / text).read_text("utf-8"), text


def test_every_pin_fits_the_oldest_python() -> None:
    """Where a pinned version needs a newer one, its line says so. Only installed ones can be asked."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    oldest = project["requires-python"].removeprefix(">=")
    pins = [
        Requirement(line)
        for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines()
        if line and not line.startswith("#")
    ]
    asked = [pin for pin in pins if not pin.marker or pin.marker.evaluate({"python_version": oldest})]
    needs = {pin.name: needed(pin) for pin in asked}
    assert sum(each is not None for each in needs.values()) > 100
    # The last of its fixes, so that ">3.10.1" is no hindrance.
    assert [name for name, each in needs.items() if each and f"{oldest}.99" not in each] == []


def needed(pin: Requirement) -> SpecifierSet | None:
    """The Pythons that the pinned version runs on; None where another version or none is installed."""
    try:
        said = metadata(pin.name)
    except PackageNotFoundError:
        return None
    return SpecifierSet(said.get("Requires-Python", "")) if said["Version"] in pin.specifier else None
