"""Files may have any name: their pages have addresses that a browser can follow, or the name is refused."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from press.project import edit, page, sidelit


def dead(folder: Path) -> set[tuple[str, str]]:
    """The relative addresses of a site that lead to no file, or are none that HTML allows."""
    found = set()
    for path in folder.rglob("*.html"):
        for address in page(path.parent, path.name).addresses:
            parts = urlsplit(address)
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not parts.scheme and (" " in address or not target.is_file()):
                found.add((path.name, address))
    return found


@pytest.fixture
def odd_folder(tmp_path: Path) -> Path:
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text(f'"""# {name}"""\n', encoding="utf-8")
    return tmp_path


NAMES = ("my page", "50% off", "who?", "a#b", "読み方", "a&b;c")


@pytest.mark.full
def test_pages_may_have_any_name(sample: Path) -> None:
    config = sample / "site/sidelit.toml"
    front = "".join(f'[[front]]\nsource = "{name}.md"\n\n' for name in NAMES)
    edit(config, "[[parts]]", f"{front}[[parts]]")
    for name in NAMES:
        (sample / f"site/pages/{name}.md").write_text(f"# {name}\n\nText.\n", encoding="utf-8")
    (sample / "site/pages/a picture.svg").write_bytes(b"<svg xmlns='http://www.w3.org/2000/svg'/>")
    text = "\n\n![A picture](<a picture.svg>), [a page](<my page.md>), [another](who%3F.md).\n"
    with (sample / "site/pages/index.md").open("a", encoding="utf-8") as file:
        file.write(text)
    (sample / "src/sample/tools/window.py").rename(sample / "src/sample/tools/big window #1.py")
    edit(config, "tools/window.py", "tools/big window #1.py")
    edit(sample / "src/sample/ring.py", "(tools/window.py#Window)", "(<tools/big window %231.py#Window>)")
    sidelit("build", cwd=sample)
    assert (sample / "build/site/ja/my page.html").is_file()
    assert dead(sample / "build/site") == set()


def test_printed_files_may_have_any_name(tmp_path: Path) -> None:
    for name in ("my script", "a#b", "größe"):
        (tmp_path / f"{name}.py").write_text(f'"""# {name}"""\n', encoding="utf-8")
    sidelit("print", tmp_path, "--out", "out", cwd=tmp_path)
    assert (tmp_path / "out/my script.html").is_file()
    assert dead(tmp_path / "out") == set()


def test_a_file_named_twice_is_printed_once(odd_folder: Path) -> None:
    done = sidelit("print", odd_folder, odd_folder / "one.py", "--out", "out", cwd=odd_folder)
    assert done.stdout == "2 pages in out\n"
    html = (odd_folder / "out/index.html").read_text(encoding="utf-8")
    assert html.partition('<ul class="files">')[2].partition("</ul>")[0].count("<li>") == 2


def test_two_files_that_would_share_a_page_are_refused(odd_folder: Path) -> None:
    (odd_folder / "one.pyw").write_text("x = 1\n", encoding="utf-8")
    told = sidelit("print", "one.py", "one.pyw", "--out", "out", cwd=odd_folder, code=1).stderr
    assert told.startswith("one.pyw: ")
    assert "one.html" in told
    assert told.count("\n") == 1


def test_what_an_editor_keeps_beside_a_file_is_no_source(odd_folder: Path) -> None:
    # Emacs marks a file that it is changing with a link to nowhere.
    (odd_folder / ".#one.py").symlink_to("somebody@somewhere.1")
    assert sidelit("print", odd_folder, "--out", "out", cwd=odd_folder).stdout == "2 pages in out\n"


def test_a_link_out_of_a_folder_is_left_out_and_told(
    odd_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    secret = tmp_path_factory.mktemp("elsewhere") / "secret.py"
    secret.write_text("SECRET = 1\n", encoding="utf-8")
    (odd_folder / "link.py").symlink_to(secret)
    done = sidelit("print", ".", "--out", "out", cwd=odd_folder)
    assert done.stdout == "2 pages in out, and 1 file skipped\n"
    assert "skipped: link.py: this leads out of the folder that is printed by a symbolic link" in done.stderr
    # Who names it wants it.
    assert (
        sidelit("print", "link.py", "--out", "named", cwd=odd_folder).stdout == "1 page: named/secret.html\n"
    )
    alone = odd_folder / "alone"
    alone.mkdir()
    (alone / "link.py").symlink_to(secret)
    assert (
        "leads out of the folder" in sidelit("print", alone, "--out", "none", cwd=odd_folder, code=1).stderr
    )


def test_what_an_editor_keeps_beside_a_catalogue_is_no_catalogue(sample: Path) -> None:
    sidelit("sync", cwd=sample)
    (sample / "site/locale/ja/sample/.#ring.po").symlink_to("somebody@somewhere.1")
    sidelit("build", cwd=sample)
    sidelit("sync", cwd=sample)


def test_a_name_that_is_no_text_is_told(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"odd\xff.py")).write_text("x = 1\n", encoding="utf-8")
    told = sidelit("print", ".", "--out", "out", cwd=tmp_path, code=1).stderr
    assert told.startswith("odd\\udcff.py: ")
    assert told.count("\n") == 1
