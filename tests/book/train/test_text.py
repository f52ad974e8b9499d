"""Text in files: what is read, who reads which part, and where a run is in it."""

from __future__ import annotations

import argparse
import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import warm
from book.tokenizers_here import tokenizer_file
from shardbook.command import Mistake
from shardbook.models.corpus import Reader, read
from shardbook.train.options import parse
from shardbook.train.plan import Batches, text_bytes
from shardbook.train.text import MappedText, encoded, files_of, fingerprint, halves, load, prepare, stored

# --- files as one text ---


@given(
    sizes=st.lists(st.integers(0, 7), min_size=1, max_size=6),
    start=st.integers(0, 45),
    length=st.integers(0, 45),
    wide=st.booleans(),
    data=st.data(),
)
def test_several_files_are_one_row_of_tokens(
    sizes: list[int], start: int, length: int, wide: bool, data: st.DataObject, tmp_path_factory: Any
) -> None:
    folder = tmp_path_factory.mktemp("text")
    dtype = torch.uint16 if wide else torch.uint8
    parts, files = [], []
    for index, size in enumerate(sizes):
        part = torch.randint(0, 250, (size,)).to(dtype)
        files.append(folder / f"{index}.bin")
        files[-1].write_bytes(bytes(part.view(torch.uint8).tolist()) if size else b"")
        parts.append(part.long())
    whole, text = torch.cat(parts), MappedText(files, dtype)
    assert len(text) == len(whole)
    assert torch.equal(text[start : start + length].long(), whole[start : start + length])
    cut = data.draw(st.integers(0, len(whole)))
    first, last = text.part(0, cut), text.part(cut, len(whole))
    assert torch.equal(first[: len(first)].long(), whole[:cut])
    assert torch.equal(last[start : start + length].long(), whole[cut:][start : start + length])


@pytest.mark.nightly
def test_a_large_text_is_not_read_before_somebody_wants_it(tmp_path: Path) -> None:
    """What stays in memory of a map of 1 GB is what was read of it."""
    file = tmp_path / "large.txt"
    with file.open("wb") as large:
        large.truncate(2**30)
        large.seek(2**29)
        large.write(b"here")
    program = (
        "import resource, sys, torch\n"
        "from pathlib import Path\n"
        "from shardbook.train.text import MappedText, fingerprint\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "text = MappedText([Path(sys.argv[1])])\n"
        "assert len(text.part(2**28, 2**30)) == 3 * 2**28\n"
        "fingerprint(text)\n"
        "assert bytes(text[2**29 : 2**29 + 4].tolist()) == b'here'\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program, str(file)], capture_output=True, text=True, check=True
    )
    assert int(run.stdout) < 32 * 1024, "kilobytes"


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path: Path) -> None:
    for name in ("b/2.txt", "b/1.txt", "a.txt", ".hidden.txt", "b/.git/config", "empty.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("" if name == "empty.txt" else name, "utf-8")
    assert files_of(tmp_path / "a.txt") == [tmp_path / "a.txt"]
    text = MappedText(files_of(tmp_path))
    assert bytes(text[: len(text)].tolist()).decode() == "a.txtb/1.txtb/2.txt"


def test_no_text_is_told_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(Mistake, match="--data nowhere: there is no such file or folder"):
        files_of(Path("nowhere"))
    with pytest.raises(Mistake, match="the folder holds no file"):
        files_of(tmp_path)


def test_a_mapped_text_counts_as_no_memory_and_the_book_as_all_of_it(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_bytes(bytes(range(200)))
    options = parse(["--data", str(tmp_path / "text.txt"), "--held-out", "0.25"])
    prepare(options)
    training, unseen = halves(options, torch.device("cpu"))
    assert (len(training), len(unseen)) == (150, 50)
    assert unseen[0:3].tolist() == [150, 151, 152]
    assert stored(training, unseen) == 0
    book = parse([])
    prepare(book)
    parts = halves(book, torch.device("cpu"))
    assert stored(*parts) == sum(map(len, parts)) > 100_000


# --- where a run is ---


def alone(batch: int, world_size: int, rank: int = 0, seed: int = 0, length: int = 200) -> Batches:
    text = torch.arange(length, dtype=torch.uint8)
    return Batches(Reader(text, context=4, batch=batch, rank=rank, world_size=world_size, seed=seed))


@pytest.mark.full
@given(batch=st.integers(1, 4), world_size=st.integers(1, 4), count=st.integers(1, 60))
def test_batches_come_in_the_order_of_their_numbers(batch: int, world_size: int, count: int) -> None:
    for rank in range(world_size):
        batches = alone(batch, world_size, rank)
        for number in range(count):
            for got, expected in zip(next(batches), batches.reader[number], strict=True):
                assert torch.equal(got, expected)


@pytest.mark.full
@given(
    before=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    after=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    steps=st.integers(0, 5),
)
def test_other_ranks_go_on_where_the_first_ones_stopped(
    before: tuple[int, int], after: tuple[int, int], steps: int
) -> None:
    """Within an epoch no window is read twice, and none is left out."""
    (batch, world_size), read = before, []
    steps = min(steps, 49 // (batch * world_size))
    saved: list[dict[str, Any]] = []
    for rank in range(world_size):
        batches = alone(batch, world_size, rank)
        read += [next(batches)[0][:, 0].tolist() for _ in range(steps)]
        saved.append(json.loads(json.dumps(batches.state_dict())))
    assert all(each == saved[0] for each in saved)
    more = (49 - steps * batch * world_size) // (after[0] * after[1])
    for rank in range(after[1]):
        batches = alone(*after, rank)
        batches.load_state_dict(saved[0])
        read += [next(batches)[0][:, 0].tolist() for _ in range(more)]
    starts = [start for part in read for start in part]
    assert len(set(starts)) == len(starts) == steps * batch * world_size + more * after[0] * after[1]
    order = [4 * window for window in alone(1, 1).reader.order(0)]
    assert sorted(starts) == sorted(order[: len(starts)])


def test_a_run_that_goes_on_reads_what_it_would_have_read() -> None:
    undisturbed, first = alone(3, 1), alone(3, 1)
    for _ in range(25):
        next(first)
        next(undisturbed)
    second = alone(3, 1)
    second.load_state_dict(first.state_dict())
    assert second.state_dict()["epoch"] == 1
    for _ in range(40):
        assert torch.equal(next(second)[0], next(undisturbed)[0])


@pytest.mark.parametrize(
    ("other", "name"),
    [({"seed": 1}, "seed 0, but this run has seed 1"), ({"length": 199}, "but this run has text")],
)
def test_a_position_in_another_text_is_refused(other: dict[str, int], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        alone(1, 1, **other).load_state_dict(alone(1, 1).state_dict())


def test_a_fingerprint_sees_length_and_content() -> None:
    text = torch.arange(100_000) % 251
    changed = text.clone()
    changed[50_000] += 1
    assert len({fingerprint(each) for each in (text, text[:-1], changed)}) == 3


# --- tokens ---


@pytest.mark.parametrize(("words", "width"), [(100, 2), (70_000, 4)])
def test_text_becomes_the_tokens_of_the_tokenizer(words: int, width: int, tmp_path: Path) -> None:
    file = tokenizer_file(tmp_path, words)
    for name, text in (("a.txt", "w1 w2\nw99 "), ("b.txt", "w3\r\nnever w4")):
        (tmp_path / name).write_bytes(text.encode())
    arguments = ["--data", str(tmp_path / "a.txt"), "--tokenizer", str(file), "--cache", str(tmp_path / "c")]
    options = parse(arguments)
    assert options.config.vocabulary == words
    prepare(options)
    (made,) = options.files
    assert made.parent == tmp_path / "c"
    text = MappedText(options.files, options.token_dtype)
    assert (text[: len(text)].tolist(), made.stat().st_size) == ([1, 2, 99], 3 * width)
    both = encoded(file, [tmp_path / "a.txt", tmp_path / "b.txt"], tmp_path / "c")
    assert both != made
    text = MappedText([both], options.token_dtype)
    assert text[: len(text)].tolist() == [1, 2, 99, 3, 0, 4]


def test_the_book_in_tokens_is_a_file_too(tmp_path: Path) -> None:
    words = ["--tokenizer", str(tokenizer_file(tmp_path, 9)), "--cache", str(tmp_path / "cache")]
    options = parse(words)
    prepare(options)
    parts = halves(options, torch.device("cpu"))
    # One number for each word of the book.
    assert sum(map(len, parts)) == len(bytes(read().tolist()).split())
    assert stored(*parts) == text_bytes(options) == 0
    assert text_bytes(parse([])) == len(read())


def test_a_long_text_is_encoded_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardbook.train.text.PIECE", 64)
    words = [f"w{number % 90 + 1}" for number in range(5000)]
    lines = [" ".join(words[start : start + 7]) for start in range(0, 5000, 7)]
    (tmp_path / "long.txt").write_text("\n".join(lines), "utf-8")
    made = encoded(tokenizer_file(tmp_path, 100), [tmp_path / "long.txt"], tmp_path / "cache")
    text = MappedText([made], torch.uint16)
    assert text[: len(text)].tolist() == [int(word[1:]) for word in words]


def test_the_processes_of_a_machine_encode_a_text_once(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("w1 w2 w3\n" * 20_000, "utf-8")
    file, cache = tokenizer_file(tmp_path, 100), tmp_path / "cache"
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from shardbook.train import text\n"
        "written, write = [], text.write_tokens\n"
        "text.write_tokens = lambda *given: (written.append(given), write(*given))\n"
        "text.encoded(Path(sys.argv[1]), [Path(sys.argv[2])], Path(sys.argv[3]))\n"
        "print(len(written))\n"
    )
    words = [warm.python(), "-c", program, str(file), str(tmp_path / "text.txt"), str(cache)]
    running = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert sorted(each.communicate(timeout=120)[0] for each in running) == ["0\n", "0\n", "1\n"]
    (made,) = cache.glob("*.bin")
    assert made.stat().st_size == 3 * 20_000 * 2
    assert not list(cache.glob("*.part"))
    # A text that has changed is encoded anew.
    (tmp_path / "text.txt").write_text("w4\n", "utf-8")
    assert encoded(file, [tmp_path / "text.txt"], cache) != made


@pytest.mark.parametrize("spoil", ["cut", "flipped", "longer", "foreign", "older", "no number", "left"])
def test_a_damaged_or_older_cache_is_made_anew(spoil: str, tmp_path: Path) -> None:
    file, cache = tokenizer_file(tmp_path, 100), tmp_path / "cache"
    (tmp_path / "text.txt").write_text("w1 w2 w3\n" * 2000, "utf-8")
    made = encoded(file, [tmp_path / "text.txt"], cache)
    whole, told = made.read_bytes(), made.with_suffix(".sum")
    assert told.read_text().split()[0] == str(len(whole)) == "12000"
    before = made.stat().st_mtime_ns
    assert encoded(file, [tmp_path / "text.txt"], cache).stat().st_mtime_ns == before
    if spoil == "cut":
        made.write_bytes(whole[:6000])
    elif spoil == "flipped":
        made.write_bytes(whole[:7001] + bytes([whole[7001] ^ 1]) + whole[7002:])
    elif spoil == "longer":
        made.write_bytes(whole + whole)
    elif spoil == "foreign":
        told.write_bytes(b"\xff" * 100)
    elif spoil == "older":
        told.unlink()
        made.write_bytes(whole[:6000])
    elif spoil == "no number":
        told.write_text("many words are no sum")
    else:
        # A process was killed while it wrote the tokens of a text that is shorter now.
        made.unlink()
        made.with_suffix(".part").write_bytes(whole + whole)
    assert encoded(file, [tmp_path / "text.txt"], cache) == made
    assert made.read_bytes() == whole
    assert sorted(path.suffix for path in cache.iterdir()) == [".bin", ".lock", ".sum"]


def test_what_cannot_be_encoded_is_told_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tokenizer_file(tmp_path, 10)
    (tmp_path / "text.txt").write_bytes(b"w1 \xff")
    with pytest.raises(Mistake, match=r"text.txt is no UTF-8 text \(invalid start byte\)"):
        encoded(file, [tmp_path / "text.txt"], tmp_path / "cache")
    with pytest.raises(Mistake, match="--tokenizer nowhere: there is no such file"):
        load(Path("nowhere"))
    (tmp_path / "wrong.json").write_text("{}", "utf-8")
    with pytest.raises(Mistake, match=r"wrong.json: "):
        load(tmp_path / "wrong.json")
    (tmp_path / "cache" / "file").touch()
    with pytest.raises(Mistake, match="cannot be written: File exists; name another folder"):
        encoded(file, [tmp_path / "text.txt"], tmp_path / "cache" / "file")
    (tmp_path / "text.txt").write_bytes(b"w1")
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with (
        patch("shardbook.train.text.write_tokens", Mock(side_effect=full)),
        pytest.raises(Mistake, match="No space left on device; name another"),
    ):
        encoded(file, [tmp_path / "text.txt"], tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*.bin"))
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(Mistake, match="needs the library tokenizers: pip install tokenizers"):
        load(file)


def test_the_cache_lies_where_the_system_wants_it() -> None:
    program = (
        "import importlib, os\n"
        "from shardbook.train import text\n"
        "for os.environ['XDG_CACHE_HOME'] in ('', '/there'): print(importlib.reload(text).CACHE)\n"
    )
    run = warm.start("-c", program, HOME="/home/me")
    assert run.stdout.split() == ["/home/me/.cache/shardbook", "/there/shardbook"], run.stderr


def test_without_data_nothing_is_prepared() -> None:
    options: argparse.Namespace = parse([])
    prepare(options)
    assert (options.files, options.token_dtype) == ([], torch.uint8)
