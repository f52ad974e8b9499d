r"""# A loss in chunks

> The loss is computed for a few positions at a time, so the logits of all positions never exist at once.

[The head](gpt.py#Head) gives each position one score for each token. With $n$ positions
and $V$ tokens these *logits* are $nV$ numbers. The plain loss holds three tensors of
that size at once: the logarithms of the probabilities, their gradient, and the gradient
of the logits. For 512 positions and 8192 tokens that is 50 MB, as much as three whole
heads of width 512. Its result is a single number.

The logits of one position do not depend on those of another. So this chapter divides
the positions into $c$ chunks. For each chunk it computes the logits, a part of the loss
and a part of the gradients, and frees the logits before the next chunk. At most two
tensors of the size $nV/c$ exist at a time.

```python
model = shard(ChunkedGPT(config, chunks=8))
loss = model(bytes_BT, next_bytes_BT)
loss.backward()
```

The gradients are computed *in the forward pass*, because only then do the logits exist.
In the backward pass they would have to be computed again, with one more product of the
head's matrix for each chunk. Two gradients are kept until the backward pass: that of
the matrix, and that of the other factor of the product, the output of the head's norm.

The class below is made for the book's GPT. [The function](#chunked_loss) works in the
`forward` of any module that holds such a matrix, because there the matrix is unsharded.

The loss is now a sum of the chunks' sums, so its last bits differ from those of the
plain loss. A sharded model with a chunked loss still equals the unsharded model with
the same chunked loss, bit for bit.

**A matrix in 16 bits.** The logits then have 16 bits, like those of a linear layer. All
that follows is computed in FP32: the logarithms, each position's share $1/n$, the sum,
and both gradients until the backward pass. In 16 bits the sum could overflow: 9,216
losses of 9 nats add up to 83,000, and the largest finite FP16 value is 65,504. The
gradients wait in FP32 for [the loss scale](loss_scaling.py), which arrives in the
backward pass as the gradient of the loss. The scale multiplies them before they are
rounded to 16 bits. In the other order the smallest gradients would be lost before the
scale could save them. The price is that the two products of the gradients run in FP32,
with an FP32 copy of the matrix, and that both gradients take four bytes a number until
the backward pass.

:notation $n$: the number of positions in a batch
:notation $c$: `chunks`, the number of chunks
:notation $V$: `config.vocabulary`, the number of different tokens
:notation $z_k$: the logit of token $k$
:notation $t$: the target, one of the tokens
:notation $z_t$: the logit of the target
:notation $e$: the base of the natural logarithm
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from shardbook.models.gpt import GPT, Config, Head

__all__ = ["ChunkedGPT", "ChunkedHead", "chunked_loss"]

# sidelit: hide
IGNORED = -100
# sidelit: show


class ChunkedGPT(GPT):
    """[The GPT](gpt.py#GPT) with a last layer that takes the targets and returns the loss.

    The parameters have the same names and start from the same values, so a saved
    `state_dict` fits both.

    :param config: the model's shape
    :param chunks: the number of chunks into which the positions of a batch are divided
    :raises ValueError: if `chunks` is smaller than 1
    """

    def __init__(self, config: Config, chunks: int = 8) -> None:
        super().__init__(config)
        plain = self[-1]
        assert isinstance(plain, Head)
        self[-1] = ChunkedHead(plain, chunks)

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor | None = None) -> Tensor:
        """The mean loss, or without targets the logits, with which a program writes text.

        `nn.Sequential` passes one value from layer to layer. The head needs two, so
        this class runs the chain itself. Each layer is called as a module, because
        [hooks](hooks.py#Hooks) on that call gather the layer.
        """
        *layers, head = self
        x_BTC = tokens_BT
        for layer in layers:
            x_BTC = layer(x_BTC)
        result: Tensor = head(x_BTC, targets_BT)
        return result


class ChunkedHead(nn.Module):
    """The head and the loss in one layer, whose output is one number.

    It takes over the layers of a plain head, and with them the names of the parameters.
    """

    def __init__(self, head: Head, chunks: int) -> None:
        super().__init__()
        if chunks < 1:
            raise ValueError(f"chunks is {chunks}, but it must be at least 1")
        self.norm = head.norm
        self.score = head.score
        self.chunks = chunks

    def forward(self, x_BTC: Tensor, targets_BT: Tensor | None = None) -> Tensor:
        x_BTC = self.norm(x_BTC)
        if targets_BT is None:
            logits_BTV: Tensor = self.score(x_BTC)
            return logits_BTV
        return chunked_loss(x_BTC, self.score.weight, targets_BT, self.chunks)


def chunked_loss(
    x_BTC: Tensor, weight_VC: Tensor, targets_BT: Tensor, chunks: int
) -> Tensor:
    """The mean cross-entropy of `x_BTC @ weight_VC.T`, without ever holding that product.

    As in `F.cross_entropy`, a target of -100 is ignored.

    :param x_BTC: the input of the last linear layer
    :param weight_VC: that layer's matrix; it has no bias
    :param chunks: the number of chunks into which the positions are divided
    :returns: 0-dim, in the dtype of the matrix, or in FP32 if that has 16 bits
    """
    # Autocast would compute the products in 16 bits, and then round the sum of the
    # gradients after each chunk. So the dtype of the matrix decides.
    with torch.autocast(x_BTC.device.type, enabled=False):
        x_NC = x_BTC.flatten(0, -2).to(weight_VC.dtype)
        # Without gradients, only the loss is computed.
        wanted = torch.is_grad_enabled()
        loss: Tensor = _Chunked.apply(
            x_NC, weight_VC, targets_BT.flatten(), chunks, wanted
        )
    return loss


class _Chunked(torch.autograd.Function):
    """One node for all chunks, so that autograd saves no tensor of any chunk."""

    @staticmethod
    def forward(
        ctx: Any,
        x_NC: Tensor,
        weight_VC: Tensor,
        targets_N: Tensor,
        chunks: int,
        wanted: bool,
    ) -> Tensor:
        # FP32 at least. A matrix that has this dtype already is not copied.
        wide = torch.promote_types(weight_VC.dtype, torch.float32)
        valid_N = (targets_N != IGNORED).to(wide)
        # Each position's share of the mean.
        share_N1 = (valid_N / valid_N.sum()).unsqueeze(1)
        needs_x, needs_weight = (wanted and need for need in ctx.needs_input_grad[:2])
        grad_x_NC = torch.empty_like(x_NC, dtype=wide) if needs_x else None
        grad_weight_VC = (
            torch.zeros_like(weight_VC, dtype=wide) if needs_weight else None
        )
        wide_VC = weight_VC.to(wide) if needs_x else weight_VC
        total, start = x_NC.new_zeros((), dtype=wide), 0
        for x, targets, share in zip(
            x_NC.chunk(chunks),
            targets_N.chunk(chunks),
            share_N1.chunk(chunks),
            strict=True,
        ):
            stop = start + len(x)
            grad = _logits_gradient(x, weight_VC, targets, share, total)
            if grad_x_NC is not None:
                torch.mm(grad, wide_VC, out=grad_x_NC[start:stop])
            if grad_weight_VC is not None:
                grad_weight_VC.addmm_(grad.t(), x.to(wide))
            # Without this line the gradient would stay in memory while the next chunk's
            # logits are computed.
            del grad
            start = stop
        ctx.gradients = (grad_x_NC, grad_weight_VC)
        ctx.dtype = weight_VC.dtype
        return total / valid_N.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the forward pass, times the gradient of the loss.

        Under [loss scaling](loss_scaling.py) this factor is the scale. So the product
        is formed before it is rounded to the dtype of the matrix. The product is
        written over the gradient, which is as large as the matrix. So a second backward
        pass is refused.
        """
        if ctx.gradients is None:
            raise RuntimeError(
                "a chunked loss keeps its gradients for one backward pass; "
                "compute the loss again before the second one"
            )
        (grad_x_NC, grad_weight_VC), ctx.gradients = ctx.gradients, None
        for gradient in (grad_x_NC, grad_weight_VC):
            if gradient is not None:
                gradient.mul_(grad)
        narrow = [
            g if g is None else g.to(ctx.dtype) for g in (grad_x_NC, grad_weight_VC)
        ]
        return *narrow, None, None, None


def _logits_gradient(
    x: Tensor, weight_VC: Tensor, targets: Tensor, share: Tensor, total: Tensor
) -> Tensor:
    r"""Add a chunk's losses to `total`, and return their gradient with respect to
    the chunk's logits.

    The loss of a position with the logits $z_k$ and the target $t$ is
    $\ln \sum_j e^{z_j} - z_t$. Its derivative with respect to $z_k$ is the
    probability of token $k$, less 1 if $k$ is the target.
    """
    log_p = F.log_softmax(x @ weight_VC.t(), dim=-1, dtype=total.dtype)
    total += F.nll_loss(log_p, targets, reduction="sum", ignore_index=IGNORED)
    # The logits are freed by now, and the gradient is written over `log_p`.
    grad = log_p.exp_().mul_(share)
    return grad.scatter_add_(1, targets.clamp(min=0).unsqueeze(1), -share)
