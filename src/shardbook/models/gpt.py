r"""# A small GPT

> A plain language model on bytes, whose code does not mention sharding at all.

Sharding is applied to a model from outside. To show that, this chapter holds a model
without any code for ranks, shards or collectives. If you delete the rest of the book,
it still trains. It reads text as bytes, so it needs no tokenizer, and for each position
it predicts the next byte.

```python
model = GPT(Config(layers=4, width=128, heads=4, context=128))
logits_BTV = model(bytes_BT)
error = loss(logits_BTV, next_bytes_BT)
```

A tensor's name ends with its shape, one capital letter for each dimension: `x_BTC` has
a batch, a time and a channel dimension. `B` is the batch, `T` the positions, `C` the
width, `H` the heads, `D` the width of one head and `V` the vocabulary.

:notation $L$: `config.layers`, the number of blocks
:notation $d$: `config.width`, the number of values that stand for one position
:notation $T$: `config.context`, the number of positions that the model can see
:notation $V$: `config.vocabulary`, the number of different tokens
:notation $\Psi$: the number of parameters of the whole model
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = [
    "GPT",
    "Block",
    "Config",
    "Embedding",
    "Head",
    "Linear",
    "Table",
    "loss",
    "parameters",
    "parameters_by_layer",
]


@dataclass(frozen=True, slots=True)
class Config:
    """The five numbers that decide the model's shape.

    A byte has 256 values, so the vocabulary is 256 unless the program has its own
    tokens.

    :raises ValueError: if a number is smaller than 1, or the heads cannot share the
        width evenly
    """

    layers: int = 4
    width: int = 128
    heads: int = 4
    context: int = 128
    vocabulary: int = 256

    # sidelit: depth Shapes that no model can have.

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "context", "vocabulary"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"{name} is {getattr(self, name)}, but it must be at least 1"
                )
        # Each head works on its own equal part of the width.
        if self.width % self.heads:
            raise ValueError(
                f"width {self.width} is not divisible by heads {self.heads}; choose a multiple of heads"
            )


class GPT(nn.Sequential):
    r"""The model: a chain of an embedding, $L$ blocks and a head.

    Each layer's output is the next layer's only input. In such a chain the next
    parameters are always those of the next layer, which is all that a prefetch needs.
    `nn.Sequential` already is such a chain, so this class adds no forward pass of its
    own.

    :param config: the model's shape
    """

    def __init__(self, config: Config) -> None:
        layers: dict[str, nn.Module] = {"embedding": Embedding(config)}
        for index in range(config.layers):
            layers[f"block{index}"] = Block(config)
        layers["head"] = Head(config)
        super().__init__(OrderedDict(layers))
        self.config = config

    @property
    def blocks(self) -> list[Block]:
        return [layer for layer in self if isinstance(layer, Block)]


class Embedding(nn.Module):
    """A token's vector: the sum of a row for the token and a row for its position."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.token = Table(config.vocabulary, config.width)
        self.position = Table(config.context, config.width)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        length = tokens_BT.shape[1]
        # A position beyond the table would fail inside a kernel, whose message does not
        # name the reason.
        if length > self.position.num_embeddings:
            raise ValueError(
                f"{length} tokens do not fit into a context of {self.position.num_embeddings}"
            )
        positions_T = torch.arange(length, device=tokens_BT.device)
        x_BTC: Tensor = self.token(tokens_BT) + self.position(positions_T)
        return x_BTC


class Block(nn.Module):
    """Attention between the positions, and then two linear layers for each position.

    Both read a normalised copy of the residual stream `x_BTC` and add their output to
    the original. The stream itself is never normalised, so the gradient has an unbroken
    path from the head to the embedding.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.before_expansion = nn.LayerNorm(config.width)
        self.expand = Linear(config.width, 4 * config.width)
        self.contract = Linear(4 * config.width, config.width, std=last_std(config))

    def forward(self, x_BTC: Tensor) -> Tensor:
        x_BTC = x_BTC + self.attention(self.before_attention(x_BTC))
        x_BTC = x_BTC + self.contract(F.gelu(self.expand(self.before_expansion(x_BTC))))
        return x_BTC


class Attention(nn.Module):
    """Each position's query is compared with its own key and the earlier ones, whose
    values are then averaged.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        # One matrix product makes the queries, the keys and the values of all heads.
        self.split = Linear(config.width, 3 * config.width)
        self.merge = Linear(config.width, config.width, std=last_std(config))

    def forward(self, x_BTC: Tensor) -> Tensor:
        q_BHTD, k_BHTD, v_BHTD = (
            part_BTC.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part_BTC in self.split(x_BTC).chunk(3, dim=-1)
        )
        # `is_causal` hides the later positions. Without it each position would see the
        # byte that it has to predict: the loss would fall towards zero, and the model
        # would have learned to copy.
        y_BHTD = F.scaled_dot_product_attention(q_BHTD, k_BHTD, v_BHTD, is_causal=True)
        y_BTC: Tensor = self.merge(y_BHTD.transpose(1, 2).flatten(-2))
        return y_BTC


class Head(nn.Module):
    """The last layer, which turns each position's vector into one score for each token.

    Its matrix has the shape of the token embedding's, and many models use one matrix
    for both. Here the two are separate. A matrix that the first and the last layer
    share would [belong to the whole chain](parameter_sites.py#sites_by_unit). Each rank
    would hold all of it from the first layer to the last.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.width)
        self.score = Linear(config.width, config.vocabulary, bias=False)

    def forward(self, x_BTC: Tensor) -> Tensor:
        logits_BTV: Tensor = self.score(self.norm(x_BTC))
        return logits_BTV


class Linear(nn.Linear):
    """A linear layer whose weights start as small random numbers, and its biases as zeros.

    The first scores are therefore nearly equal. `reset_parameters` is PyTorch's name
    for the method that sets a layer's first values. The constructor calls it, and so
    does a program that has built the layer without memory and allocates it later. A
    seed leads to the same values either way, since no other code of the model sets
    them.

    :param std: the standard deviation of the weights
    """

    def __init__(
        self, inputs: int, outputs: int, *, bias: bool = True, std: float = 0.02
    ) -> None:
        # The constructor below sets the first values, which depend on `std`.
        self.std = std
        super().__init__(inputs, outputs, bias=bias)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.std)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class Table(nn.Embedding):
    """A table of rows, which start as small as the weights of a linear layer."""

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.02)


def last_std(config: Config) -> float:
    r"""The standard deviation for the layers whose output is added to the residual stream.

    Every block adds two terms to the stream, so $2L$ terms are added up. If each term
    starts smaller by $\sqrt{2L}$, the sum at the end of the chain has the size of a
    single term, at any depth.
    """
    return 0.02 / math.sqrt(2 * config.layers)


def loss(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    r"""The mean cross-entropy, in nats for each token.

    Before any training each token gets a probability of about $1/V$. The loss is then
    $\ln V$, which is 5.55 for bytes. Training starts near that value, so a wrong start
    is easy to see.
    """
    return F.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten())


def parameters_by_layer(config: Config) -> tuple[int, ...]:
    r"""Each layer's number of parameters, computed from the shape without a model.

    The embedding has two tables, and the head has a matrix and the two vectors of its
    norm:

    $$\Psi_\text{embedding} = (V + T)\,d \qquad \Psi_\text{head} = V d + 2d$$

    A block has $3d^2 + d^2$ weights in its attention and $4d^2 + 4d^2$ in the two
    linear layers after it. The biases and the two norms add $13d$:

    $$\Psi_\text{block} = 12\,d^2 + 13\,d$$

    :returns: the counts in the order of the chain
    """
    d = config.width
    embedding = (config.vocabulary + config.context) * d
    block = 12 * d * d + 13 * d
    head = config.vocabulary * d + 2 * d
    return (embedding, *[block] * config.layers, head)


def parameters(config: Config) -> int:
    r"""$\Psi = \Psi_\text{embedding} + L\,\Psi_\text{block} + \Psi_\text{head}$."""
    return sum(parameters_by_layer(config))
