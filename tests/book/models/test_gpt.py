"""The model of the examples: a plain chain whose size is known before it is built."""

import ast
import hashlib
import math
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from shardbook.models import gpt
from shardbook.models.gpt import GPT, Block, Config, Embedding, Head

TINY = Config(layers=2, width=16, heads=2, context=12, vocabulary=31)


def tokens(rows: int = 2, length: int = 12) -> torch.Tensor:
    return torch.randint(TINY.vocabulary, (rows, length), generator=torch.Generator().manual_seed(5))


@settings(max_examples=20, deadline=None)
@given(
    layers=st.integers(1, 4),
    heads=st.integers(1, 4),
    per_head=st.integers(1, 9),
    context=st.integers(1, 40),
    vocabulary=st.integers(1, 300),
)
def test_formula_counts_the_parameters_of_each_layer(layers, heads, per_head, context, vocabulary):
    config = Config(
        layers=layers, width=heads * per_head, heads=heads, context=context, vocabulary=vocabulary
    )
    with torch.device("meta"):
        model = GPT(config)
    real = tuple(sum(parameter.numel() for parameter in layer.parameters()) for layer in model)
    assert gpt.parameters_by_layer(config) == real
    assert gpt.parameters(config) == sum(parameter.numel() for parameter in model.parameters())


def test_the_model_is_a_chain_and_nothing_more():
    model = GPT(TINY)
    assert [type(layer) for layer in model] == [Embedding, Block, Block, Head]
    x = tokens()
    for layer in model:
        x = layer(x)
    assert torch.equal(x, model(tokens()))
    assert x.shape == (2, 12, 31)


def test_no_position_sees_a_later_one():
    model, changed = GPT(TINY), tokens()
    changed[:, 7] = (changed[:, 7] + 1) % TINY.vocabulary
    before, after = model(tokens()), model(changed)
    assert torch.equal(before[:, :7], after[:, :7])
    assert not torch.equal(before[:, 7], after[:, 7])


def test_each_position_sees_all_earlier_ones():
    model, changed = GPT(TINY), tokens()
    changed[:, 0] = (changed[:, 0] + 1) % TINY.vocabulary
    differs = (model(tokens()) != model(changed)).any(dim=2)
    assert differs.all()


def test_training_starts_at_the_loss_of_not_knowing():
    torch.manual_seed(0)
    config = Config()
    text = torch.randint(256, (2, config.context))
    assert gpt.loss(GPT(config)(text), text.roll(-1, 1)).item() == pytest.approx(math.log(256), abs=0.1)


@pytest.mark.parametrize("layers", [1, 4, 16])
def test_the_residual_stream_starts_as_large_at_any_depth(layers):
    torch.manual_seed(0)
    model = GPT(Config(layers=layers, width=64, heads=4, context=16))
    deviations = [
        block.attention.merge.weight.std().item() * math.sqrt(2 * layers) for block in model.blocks
    ] + [block.contract.weight.std().item() * math.sqrt(2 * layers) for block in model.blocks]
    assert deviations == pytest.approx([0.02] * (2 * layers), rel=0.1)


def test_the_loss_is_the_mean_over_every_token():
    logits, targets = torch.randn(2, 3, 5), torch.randint(5, (2, 3))
    each = [-logits[b, t].log_softmax(-1)[targets[b, t]].item() for b in range(2) for t in range(3)]
    assert gpt.loss(logits, targets).item() == pytest.approx(sum(each) / 6)


@pytest.mark.parametrize("name", ["layers", "width", "heads", "context", "vocabulary"])
def test_a_shape_below_one_is_named(name):
    with pytest.raises(ValueError, match=rf"^{name} is 0, but it must be at least 1$"):
        Config(**{name: 0})


def test_a_width_that_heads_cannot_share_is_refused():
    with pytest.raises(ValueError, match="width 100 is not divisible by heads 3"):
        Config(width=100, heads=3)


def test_more_tokens_than_the_context_are_refused_and_fewer_are_not():
    model = GPT(TINY)
    assert model(tokens(length=3)).shape == (2, 3, 31)
    with pytest.raises(ValueError, match="13 tokens do not fit into a context of 12"):
        model(tokens(length=13))


def test_the_model_knows_nothing_of_us():
    tree = ast.parse(Path(gpt.__file__).read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not [name for name in names if name.startswith(("shardbook", "sidelit")) or name == ""]
    assert issubclass(GPT, nn.Module)


def test_the_text_is_the_one_its_note_speaks_of():
    data = files("shardbook") / "data"
    text, note = (data / "alice.txt").read_bytes(), (data / "README.md").read_text(encoding="utf-8")
    assert hashlib.sha256(text).hexdigest() in note
    assert f"{len(text):,} bytes" in note
    assert text.isascii()
