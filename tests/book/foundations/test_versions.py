"""What PyTorch counts as a write, and who reads the count."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from shardbook.foundations.torch_private import Versions, writes_to

BOOK = Path(__file__).parents[3] / "src" / "shardbook"


def in_place(tensor: Tensor) -> None:
    tensor.add_(1)


def without_gradients(tensor: Tensor) -> None:
    with torch.no_grad():
        tensor.mul_(2)


def in_inference_mode(tensor: Tensor) -> None:
    with torch.inference_mode():
        tensor.mul_(2)


def to_a_view(tensor: Tensor) -> None:
    tensor[0].fill_(3)


def to_an_alias(tensor: Tensor) -> None:
    tensor.detach().fill_(3)


def zeros_to_zeros(tensor: Tensor) -> None:
    tensor.zero_()


def through_data(tensor: Tensor) -> None:
    tensor.data.fill_(3)


def other_memory(tensor: Tensor) -> None:
    tensor.data = torch.ones(3)


def nothing(tensor: Tensor) -> None:
    tensor.add(1)


COUNTED = [in_place, without_gradients, in_inference_mode, to_a_view, to_an_alias, zeros_to_zeros]
UNCOUNTED = [through_data, other_memory, nothing]


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("write", COUNTED)
def test_a_write_is_counted_once_at_the_tensor_its_views_and_its_aliases(
    write: Callable[[Tensor], None], device: str
) -> None:
    tensor = torch.zeros(3, device=device)
    forms = tensor, tensor[1:], tensor.detach()
    before = Versions(*forms)
    write(tensor)
    assert [writes_to(form) for form in forms] == [count + 1 for count in before]
    assert [*map(id, before.changed(*forms))] == [*map(id, forms)]


@pytest.mark.parametrize("write", UNCOUNTED)
def test_what_the_count_does_not_see(write: Callable[[Tensor], None]) -> None:
    tensor = torch.zeros(3)
    before = Versions(tensor)
    write(tensor)
    assert before.changed(tensor) == []


def test_a_fused_optimizer_and_a_batch_norm_are_not_counted() -> None:
    parameter, norm = nn.Parameter(torch.ones(3)), nn.BatchNorm1d(2)
    parameter.grad = torch.ones(3)
    written = parameter, norm.running_mean
    assert norm.running_mean is not None
    values, before = [tensor.detach().clone() for tensor in written], Versions(*written)
    torch.optim.SGD([parameter], lr=0.5, fused=True).step()
    norm(torch.randn(4, 2))
    assert not any(map(torch.equal, written, values))
    assert before.changed(*written) == []


@pytest.mark.parametrize("foreach", [False, True])
def test_other_optimizers_are_counted(foreach: bool) -> None:
    parameter = nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    before = Versions(parameter)
    torch.optim.SGD([parameter], lr=0.5, foreach=foreach).step()
    assert before.changed(parameter)


def test_what_was_made_in_inference_mode_has_no_version() -> None:
    with torch.inference_mode():
        tensor = torch.ones(3)
        before = Versions(tensor)
        tensor.add_(1)
    with pytest.raises(RuntimeError, match="do not track version counter"):
        getattr(tensor, "_version")  # noqa: B009
    assert (before, before.changed(tensor)) == ((0,), [])


def test_two_moments_are_equal_if_nothing_was_written_in_between() -> None:
    tensors = [torch.zeros(2), torch.zeros(2)]
    before = Versions(*tensors)
    assert before == Versions(*tensors)
    tensors[1].add_(1)
    assert before != Versions(*tensors)
    assert Versions() == ()


def test_other_tensors_than_before_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        Versions(torch.zeros(2)).changed()


def test_it_keeps_no_tensor() -> None:
    freed: list[str] = []

    class Noticed(Tensor):
        def __del__(self) -> None:
            freed.append("freed")

    tensor = torch.zeros(2).as_subclass(Noticed)
    before = Versions(tensor)
    del tensor
    assert (freed, len(before)) == (["freed"], 1)


@pytest.mark.full
def test_only_this_chapter_reads_the_count() -> None:
    """Who reads `_version` by hand fails on a tensor that was made in inference mode."""
    found = {
        file.relative_to(BOOK).as_posix()
        for file in BOOK.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if (isinstance(node, ast.Attribute) and node.attr == "_version")
        or (isinstance(node, ast.Constant) and node.value == "_version")
    }
    assert found == {"foundations/torch_private.py"}
