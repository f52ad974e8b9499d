"""Archives that PyTorch reads, whose elements are read part by part and compared with their sums."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from torch import Tensor

from shardbook.state.file_formats import Damaged
from shardbook.state.tensor_file import new_room
from shardbook.state.together import Archives, Pieces, take

# More than two pieces of 1 MiB, and boxes as small as the parts of a frame.
BOXES = [
    torch.arange(1100 * 2000, dtype=torch.float32).view(1100, 2000),
    torch.tensor(3.5),
    torch.arange(2, dtype=torch.uint8),
    torch.arange(4, dtype=torch.float32),
    torch.ones(0, 3),
    torch.randn(7, 5, 3, dtype=torch.bfloat16),
    torch.tensor([0x0A33], dtype=torch.int16),  # "3\n", which a frame holds, too
    torch.arange(12.0).view(3, 4).t(),
    torch.zeros(1024),
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    with (tmp_path / "boxes").open("wb") as new, Pieces() as pieces:
        archives = Archives(new, pieces)
        for box in BOXES:
            archives.add(box)
    return tmp_path / "boxes"


def written(file: Path) -> list[tuple[int, int, list[int]]]:
    """The places of the elements, as another file of the same boxes has them."""
    with (file.parent / "again").open("wb") as new, Pieces() as pieces:
        archives = Archives(new, pieces)
        for box in BOXES:
            archives.add(box)
    assert (file.parent / "again").read_bytes() == file.read_bytes()
    return list(archives.elements.values())


def test_pytorch_reads_each_archive(file: Path) -> None:
    with (file.parent / "again").open("wb") as new, Pieces() as pieces:
        archives = Archives(new, pieces)
        for box in BOXES:
            begin = archives.end
            archives.add(box)
            new.flush()
            found = torch.load(io.BytesIO((file.parent / "again").read_bytes()[begin:]), weights_only=True)
            assert found.dtype == box.dtype
            assert torch.equal(found, box)
    assert len(archives.elements) == len(BOXES)
    # A program's own archives have their sums again.
    assert torch.serialization.get_crc32_options()


@pytest.mark.parametrize(
    ("offsets", "sizes"),
    [
        ((0, 0), (1100, 2000)),
        ((1, 0), (1000, 2000)),
        ((524, 1), (3, 5)),
        ((0, 1999), (1100, 1)),
        ((1099, 1998), (1, 2)),
    ],
)
def test_any_part_is_read(file: Path, offsets: tuple[int, int], sizes: tuple[int, int]) -> None:
    where, box = written(file)[0], BOXES[0]
    expected = box[offsets[0] : offsets[0] + sizes[0], offsets[1] : offsets[1] + sizes[1]]
    for target in (torch.empty(sizes), torch.empty(sizes[::-1]).t(), torch.empty(sizes, dtype=torch.float64)):
        with file.open("rb") as opened:
            take(opened, where, (box.dtype, box.shape), offsets, target, new_room())
        assert torch.equal(target, expected.to(target.dtype))


def test_small_boxes_are_read(file: Path) -> None:
    for where, box in zip(written(file), BOXES, strict=True):
        target = torch.empty(box.shape, dtype=box.dtype)
        with file.open("rb") as opened:
            take(opened, where, (box.dtype, box.shape), (0,) * box.dim(), target, new_room())
        assert torch.equal(target, box)


def read_row(file: Path, where: tuple[int, int, list[int]], row: int) -> Tensor:
    target = torch.empty(1, 2000)
    with file.open("rb") as opened:
        take(opened, where, (torch.float32, (1100, 2000)), (row, 0), target, new_room())
    return target


def test_a_bit_that_has_changed_is_found_in_its_piece(file: Path) -> None:
    where = written(file)[0]
    data = bytearray(file.read_bytes())
    data[where[0] + 4 * 2000 * 1000] ^= 4
    file.write_bytes(data)
    # The sum of another piece is right.
    assert torch.equal(read_row(file, where, 0), BOXES[0][:1])
    with pytest.raises(Damaged, match=r"^boxes is not what was written$"):
        read_row(file, where, 999)
    file.write_bytes(data[: where[0] + 100])
    with pytest.raises(Damaged, match=r"^boxes is not what was written$"):
        read_row(file, where, 0)
