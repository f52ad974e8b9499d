"""Decoders of the transformers library: a checkpoint and a cache of keys do not go together."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from book.zero.test_transformers import library
from shardbook.checkpointing.checkpointing import checkpoint_module

SIZES = {"vocab_size": 50, "bos_token_id": 0, "eos_token_id": 1}
Case = tuple[str, str, dict[str, int]]
CASES: dict[str, Case] = {
    "llama": (
        "Llama",
        "LlamaDecoderLayer",
        {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
        | {"num_key_value_heads": 2},
    ),
    "gpt2": ("GPT2", "GPT2Block", {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 32}),
    "t5": (
        "T5",
        "T5Block",
        {"d_model": 32, "d_ff": 64, "num_layers": 2, "num_heads": 4, "d_kv": 8, "decoder_start_token_id": 0},
    ),
}
HEADS = {"T5": "ForConditionalGeneration", "Llama": "ForCausalLM", "GPT2": "LMHeadModel"}


def build(name: str, attention: str) -> tuple[Any, type[nn.Module]]:
    """A small decoder with random weights, and the class of its layers."""
    family, layer, sizes = CASES[name]
    hf = library()
    torch.manual_seed(0)
    config = getattr(hf, f"{family}Config")(**SIZES, **sizes, attn_implementation=attention)
    model = getattr(hf, f"{family}{HEADS[family]}")(config).train()
    return model, next(type(module) for module in model.modules() if type(module).__name__ == layer)


def gradients(model: Any, **options: Any) -> tuple[Any, dict[str, Tensor]]:
    """What the model returns, and its gradients."""
    ids = torch.arange(20).view(2, 10)
    torch.manual_seed(7)
    out = model(input_ids=ids, labels=ids, attention_mask=torch.ones_like(ids), **options)
    out.loss.backward()
    return out, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.cases(now=8, ci=8)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_a_layer_that_fills_a_cache_is_refused_and_without_a_cache_it_is_right(
    name: str, use_reentrant: bool, attention: str
) -> None:
    plain, _ = build(name, attention)
    _, expected = gradients(plain, use_cache=False)
    model, layer = build(name, attention)
    checkpoint_module(model, units=layer, use_reentrant=use_reentrant)
    with pytest.raises(RuntimeError, match=r"in an? \w*Cache among its .* use_cache=False in transformers"):
        gradients(model)
    _, found = gradients(model, use_cache=False)
    assert found.keys() == expected.keys()
    for key, gradient in found.items():
        torch.testing.assert_close(gradient, expected[key])
    # To generate text needs the cache and no gradient.
    with torch.no_grad():
        ids = torch.arange(4).view(1, 4)
        options = {"decoder_input_ids": ids} if name == "t5" else {}
        assert model(input_ids=ids, use_cache=True, **options).past_key_values.get_seq_length() == 4
