"""The table of all ways to checkpoint one GPT: each number of it measured, and as the chapter prints it."""

from __future__ import annotations

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from book.ways import CONFIG, TOKENS, Alive, chain, flops_of_backward, gpt, plain_flops, ways
from shardbook.checkpointing import checkpointing

# Threads that share a busy core wait for each other at each product.
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize("number", range(11))
def test_a_row_of_the_table_is_measured(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    name, (run, plan) = list(ways().items())[number]
    model = gpt()
    alive = Alive(model, monkeypatch)
    # The second run of a reentrant checkpoint saves its tensors in the backward pass.
    with saved_tensors_hooks(alive.note, lambda tensor: tensor):
        y = run(model)
        between = alive.peak = alive.bytes
        y.backward(torch.ones_like(y))
    peak = alive.peak
    added = flops_of_backward(run) - plain_flops()
    if plan is not None:
        assert (plan.saved, plan.peak, plan.cost) == (between, peak, added)
    forward = sum(layer.cost for layer in chain().layers)
    row = f"| {name} | {between / 1e6:.2f} MB | {peak / 1e6:.2f} MB | {added / forward:.2f} |"
    assert row in str(checkpointing.__doc__).splitlines()


def test_the_model_of_the_table_is_the_one_that_the_chapter_names() -> None:
    size = sum(parameter.nbytes for parameter in gpt().parameters())
    words = " ".join(str(checkpointing.__doc__).split())
    assert f"GPT of {CONFIG.layers} blocks, {CONFIG.width} wide with {CONFIG.heads} heads" in words
    assert f"a sequence of {TOKENS.numel()} tokens" in words
    assert f"{size / 1e6:.1f} MB of parameters" in words
    assert len(ways()) == str(checkpointing.__doc__).count(" MB |") // 2 == 11
