"""A command that is stopped, at any moment: no traceback, the last whole site stays, nothing is left over.

The moments are those at which Python asks the system for something: it tells of each, so that a command can
be stopped in the middle of it, and at the same place every time. Where several processes share the work, it
is the first one that is stopped; the others must end with it.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from press.project import edit, sidelit, tree
from sidelit.files import atomic

# Counts the moments of a command, and sends the signal at one of them. The first is the loading of the press,
# where its door has taken over.
CHILD = """
import json, os, runpy, sys
log, number, at, module, *arguments = sys.argv[1:]
seen, first = [], os.getpid()
DOORS = {"sidelit": "sidelit.cli", "mkdocs": "sidelit.site"}
WANTED = {"import", "open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree", "ctypes.dlsym"}
def hook(event, given):
    if event not in WANTED or seen is None or os.getpid() != first:
        return
    if not seen and not (event == "import" and given[0] == DOORS[module]):
        return
    writes = event == "open" and (given[2] or 0) & (os.O_WRONLY | os.O_RDWR)
    seen.append((event + "!" if writes else event, str(given[0])))
    if len(seen) == int(at):
        os.kill(os.getpid(), int(number))
sys.addaudithook(hook)
sys.argv = [module, *arguments]
try:
    runpy.run_module(module, run_name="__main__", alter_sys=True)
finally:
    told, seen = seen, None
    if log != "-":
        open(log, "w").write(json.dumps(told))
"""
COMMANDS: dict[str, list[str]] = {
    "build": ["sidelit", "build"],
    "shared": ["sidelit", "build", "--jobs", "3"],
    "print": ["sidelit", "print", "src/sample", "--out", "build/site"],
    "sync": ["sidelit", "sync"],
    "mkdocs": ["mkdocs", "build", "--strict", "-q"],
}
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}


def start(
    command: str, project: Path, number: int = 0, at: int = 0, log: str = "-"
) -> subprocess.CompletedProcess[str]:
    """Run a command, send it a signal at a moment, and wait until all its processes have ended."""
    # A shell lets what it runs in the background ignore this signal, and a child would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # A build that finds pages or compiled templates of the build before it has fewer moments.
    shutil.rmtree(project / ".cache", ignore_errors=True)
    arguments = [sys.executable, "-c", CHILD, log, str(int(number)), str(at), *COMMANDS[command]]
    # And other tests keep none for it.
    own = {"HOME": str(project), "XDG_CACHE_HOME": str(project / ".cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    environment = {**os.environ, **own}
    # Every process of the command holds the writing end of this, and nobody writes.
    told, held = os.pipe()
    done = subprocess.run(
        arguments,
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        pass_fds=(held,),
    )
    os.close(held)
    assert select.select([told], [], [], 60)[0], (
        f"{command} was stopped at {at}, and a process of it lives on"
    )
    os.close(told)
    return done


def moments(command: str, project: Path, count: int) -> list[int]:
    """Moments from all stages of a command: loading, reading, and steps with which it changes the disk."""
    log = project / "log.json"
    done = start(command, project, log=str(log))
    assert done.returncode == 0, done.stderr
    seen = json.loads(log.read_text("utf-8"))
    changes = [n for n, (event, _) in enumerate(seen, 1) if event not in ("import", "open")]
    others = [n for n, (event, _) in enumerate(seen, 1) if event in ("import", "open")]
    assert len(changes) > 5
    assert len(others) > 100
    half = count // 2
    # The last changes are those that put the new site in the place of the old one.
    some = {*others[:: len(others) // half], *changes[:: max(1, len(changes) // half)]}
    return sorted({*some, *changes[-half:]})


def whole(project: Path, command: str) -> None:
    """Make a site and catalogues, and then a change that each command would print."""
    if command == "shared":
        names = [f"more_{number}.py" for number in range(24)]
        for name in names:
            (project / "src/sample" / name).write_text(f'"""# {name}\n\n> One."""\n', encoding="utf-8")
        listed = "".join(f'"{name}", ' for name in names)
        edit(project / "site/sidelit.toml", "chapters = [", f"chapters = [{listed}")
    sidelit("sync", cwd=project)
    (project / "site/locale/ja/sample/ring.po").unlink()
    sidelit("build", cwd=project)
    edit(project / "src/sample/ring.py", "LIMIT = 8", "LIMIT = 9")
    edit(project / "site/sidelit.toml", 'title = "', 'title = "Another ')


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize(
    ("command", "count"),
    [
        ("build", 4),
        ("mkdocs", 2),
        ("shared", 4),
        pytest.param("print", 4, marks=pytest.mark.full),
        pytest.param("sync", 4, marks=pytest.mark.full),
        *(
            pytest.param(*each, marks=pytest.mark.nightly)
            for each in [("build", 60), ("shared", 60), ("print", 20), ("sync", 20), ("mkdocs", 20)]
        ),
    ],
)
def test_a_command_that_is_stopped_leaves_all_as_it_was(sample: Path, command: str, count: int) -> None:
    whole(sample, command)
    site, locale = sample / "build/site", sample / "site/locale"
    before = tree(site), tree(locale)
    stages = moments(command, sample, count)
    after = tree(site), tree(locale)
    signals = [signal.SIGINT, signal.SIGKILL, signal.SIGTERM]
    for turn, at in enumerate(stages):
        put(site, before[0])
        put(locale, before[1])
        number, left = signals[turn % 3], drafts(sample)
        done = start(command, sample, number, at)
        assert done.returncode == CODES[number], (at, done.stderr)
        assert done.stderr == ("" if number == signal.SIGKILL else "Stopped.\n"), at
        assert tree(site) in (before[0], after[0]), at
        # Each catalogue is the old one or the new one; a killed process may leave a draft beside it.
        found = {name: text for name, text in tree(locale).items() if not name.endswith(".new")}
        assert found.items() <= {*before[1].items(), *after[1].items()}, at
        assert number == signal.SIGKILL or drafts(sample) <= left, at
    put(locale, before[1])
    assert start(command, sample).returncode == 0
    assert drafts(sample) == set()
    assert (tree(site), tree(locale)) == after


def put(folder: Path, files: dict[str, bytes]) -> None:
    """Make a folder hold these files and no others; drafts stay."""
    for name in tree(folder).keys() - files.keys():
        if not name.endswith(".new"):
            (folder / name).unlink()
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def drafts(project: Path) -> set[Path]:
    """What commands make before it is put in its place."""
    return {*(project / "build").glob(".*"), *(project / "site").rglob("*.new")}


def test_only_what_nobody_makes_is_removed(tmp_path: Path) -> None:
    target = tmp_path / "site"
    left = Path(tempfile.mkdtemp(prefix=".site.sidelit-", dir=tmp_path))
    (left / "page.html").write_text("half", encoding="utf-8")
    strange = tmp_path / ".site.sidelit-of-mine"
    strange.mkdir()
    with atomic.fresh_folder(target) as first:
        assert not left.exists()
        # A second build of the same site, meanwhile.
        with atomic.fresh_folder(target) as second:
            assert first.is_dir()
            assert first != second
        assert first.is_dir()
    assert list(tmp_path.iterdir()) == [strange]


def test_a_site_that_was_moved_away_comes_back(tmp_path: Path) -> None:
    """Where two folders cannot be exchanged, a build may be killed between two moves."""
    target = tmp_path / "site"
    left = Path(tempfile.mkdtemp(prefix=".site.sidelit-", dir=tmp_path))
    (left / "site/assets").mkdir(parents=True)
    (left / "site" / atomic.MARK).write_text("", encoding="utf-8")
    with atomic.fresh_folder(target):
        assert (target / atomic.MARK).is_file()
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("exchanges", [True, False])
def test_the_sites_change_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchanges: bool) -> None:
    if not exchanges:
        monkeypatch.setattr(atomic, "_exchange", lambda fresh, target: False)
    target = tmp_path / "site"
    for content in (b"first", b"second"):
        atomic.write_folder({atomic.MARK: content}, target)
        assert tree(tmp_path) == {f"site/{atomic.MARK}": content}
        assert list(tmp_path.iterdir()) == [target]


def test_what_stays_as_it_was_is_not_written_again(tmp_path: Path) -> None:
    target = tmp_path / "site"
    files = {atomic.MARK: b"script", "ja/page.html": b"same", "page.html": b"first"}
    atomic.write_folder(files, target)
    before = {name: (target / name).stat().st_ino for name in files}
    atomic.write_folder({**files, "page.html": b"other"}, target)
    assert {name for name in files if (target / name).stat().st_ino != before[name]} == {"page.html"}


def test_what_somebody_changed_in_a_site_is_written_again(tmp_path: Path) -> None:
    target = tmp_path / "site"
    files = {atomic.MARK: b"script", "page.html": b"words", "link.html": b"words"}
    atomic.write_folder(files, target)
    (target / "page.html").write_bytes(b"drows")
    (target / "link.html").unlink()
    (target / "link.html").symlink_to("page.html")
    atomic.write_folder(files, target)
    assert tree(target) == files
    assert not (target / "link.html").is_symlink()


def test_nothing_is_written_into_the_old_site(tmp_path: Path) -> None:
    target = tmp_path / "site"
    files = {atomic.MARK: b"script", "page.html": b"words"}
    atomic.write_folder(files, target)
    with atomic.written(target) as fresh:
        fresh.put("page.html", b"words")
        fresh.put("page.html", b"other words")
        assert tree(target) == files
    assert (target / "page.html").read_bytes() == b"other words"


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    draft.mkdir()
    made = atomic.claim(draft)
    assert made is not None
    assert list(atomic.abandoned(tmp_path, "draft")) == []
    assert atomic.claim(draft) is None
    os.close(made)
    assert list(atomic.abandoned(tmp_path, "draft")) == [draft]
