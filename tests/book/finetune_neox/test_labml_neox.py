"""The GPT-NeoX of labml-nn, the layers of the older annotated book, trains sharded as it trains plain.

The library asks for older builds of torch, so it is installed without them (`tools/environment.py`).
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import ranks
from book.toys import plain_gradients, whole_gradients
from shardbook import shard

VOCABULARY, WIDTH, HEADS = 40, 32, 4
STEPS = 4


def preload() -> None:
    """Import the layers."""
    library()


def library() -> Any:
    """The layers. They call a name of torch that is deprecated, and this says so each time."""
    warnings.filterwarnings("ignore", message=".*torch.cuda.amp.autocast.*", category=FutureWarning)
    from labml_nn.neox import model

    return model


def build(biases_only: bool) -> nn.Sequential:
    """An embedding, two blocks, the last norm and the readout; the same weights on every call."""
    neox = library()
    torch.manual_seed(3)
    model = nn.Sequential(
        neox.Embedding(VOCABULARY, WIDTH),
        neox.TransformerLayer(WIDTH, HEADS),
        neox.TransformerLayer(WIDTH, HEADS),
        neox.FinalNorm(WIDTH),
        neox.ReadoutLayer(WIDTH, VOCABULARY),
    )
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not biases_only or name.endswith("bias"))
    return model


def train(model: nn.Module, gradients: Any) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """Some steps of AdamW, each rank with its own text: losses and gradients."""
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2, foreach=False)
    losses, seen = [], []
    for _ in range(STEPS):
        generator = torch.Generator().manual_seed(dist.get_rank())
        tokens = torch.randint(VOCABULARY, (3, 9), generator=generator)
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        losses.append(loss.detach())
        seen.append(gradients())
        optimizer.step()
        optimizer.zero_grad()
    return losses, seen


def both_ways(biases_only: bool, stage: int) -> dict[str, Any]:
    plain = build(biases_only)
    expected = train(nn.parallel.DistributedDataParallel(plain), lambda: plain_gradients(plain))
    model = shard(build(biases_only), stage=stage)
    found = train(model, lambda: whole_gradients(model))
    names = {name for name, each in plain.named_parameters() if each.requires_grad}
    state = model.state_dict()
    return {
        "losses": all(map(torch.equal, found[0], expected[0])),
        "gradients": [
            name
            for own, other in zip(found[1], expected[1], strict=True)
            for name in names
            if not torch.equal(own[name], other[name])
        ],
        "weights": [
            name for name, value in plain.state_dict().items() if not torch.equal(value, state[name])
        ],
        "falls": bool(expected[0][-1] < expected[0][0]),
        "count": len(names),
    }


CASES = [(biases_only, stage) for biases_only in (True, False) for stage in (1, 2, 3)]


@pytest.mark.cases(ci=1)
@pytest.mark.full
@pytest.mark.parametrize(("biases_only", "stage"), CASES)
def test_the_layers_of_labml_train_sharded_as_they_train_plain(biases_only: bool, stage: int) -> None:
    for found in ranks.run(2, both_ways, biases_only, stage):
        assert found["losses"]
        assert found["gradients"] == []
        assert found["weights"] == []
        assert found["falls"]
        assert found["count"] == (13 if biases_only else 28)
