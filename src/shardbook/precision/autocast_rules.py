r"""# The rules of autocast

> Matrix products run in 16 bits, operations that rounding would harm run in FP32, and
> all others run as called.

[Autocast](autocast.py) chooses a rule by the name of an operation. Matrix products gain
most from 16 bits: processors have special units for them, and these units [add up in
FP32](rounding.py). (On a GPU, PyTorch by default allows some products to add partial
sums in 16 bits; the switches are in `torch.backends.cuda.matmul`.) An exponential turns
an error of its input into a relative error of its result, and it overflows FP16 above
11.09. A sum of many elements needs more digits than each of them has. So there are five
rules, and an operation without a rule runs in the dtypes of its inputs:

| rule | its inputs are | for example |
|---|---|---|
| `LOW` | cast to 16 bits | `linear`, `conv2d`, `matmul`, attention |
| `FP32` | cast to FP32 | the losses; on a GPU `exp` and `pow`, too |
| `RESULT` | not cast; the call asks for a result in FP32 | on a GPU `softmax` and `sum` |
| `PROMOTE` | cast to the narrowest dtype that holds their dtypes and the context's | `cat` |
| `REFUSE` | refused | `binary_cross_entropy` on a GPU |
| none | not cast | `add`, `relu`, views |

The rules are data, and they differ between devices. The two tables below follow
[`torch.autocast`](https://docs.pytorch.org/docs/stable/amp.html), operation by
operation. On a GPU nearly every sensitive operation runs in FP32. On a CPU softmax and
the norms have no rule, because their kernels compute in FP32 internally, and only the
result is rounded. On a CPU the FP32 rule also covers operations without a BF16 kernel,
such as the matrix decompositions.

Our tests compare each operation of the table for CPUs with `torch.autocast`: dtypes,
results and gradients, bit by bit, but for the last bits of matrix decompositions. For
GPUs the tests compare the dtypes of the results, on tensors without data that claim to
lie on a GPU. The values were not compared on a GPU.

Some C++ functions call matrix products out of reach of [a function mode](casting.py):
`inner`, `tensordot`, `cov`, `matrix_power`, and on a CPU recurrent layers. These
functions have no rule here, and `torch.autocast` casts their products.

In an evaluation on a CPU, PyTorch runs an `nn.TransformerEncoderLayer` as one C++
function, and `torch.autocast` casts all inputs of that function. While a function mode
is on, PyTorch runs the layer's operations one by one instead. So here an evaluation
gives the same result as the forward pass in training.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

import torch

from shardbook.foundations.torch_versions import NEWER_IN_FP32, SOME_DECOMPOSITIONS

__all__ = ["FP32_FUNCTIONS", "RULES", "Rule", "Rules"]


class Rule(Enum):
    """How the inputs of an operation are cast."""

    LOW = auto()
    FP32 = auto()
    RESULT = auto()
    PROMOTE = auto()
    REFUSE = auto()


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one type of device.

    :param dtype: the dtype for `Rule.LOW`, unless the user chooses another
    :param table: the rule of each operation that has one, by its name in ATen
    """

    dtype: torch.dtype
    table: dict[str, Rule]

    def of(self, name: str) -> Rule | None:
        """The rule for a function of Python with this name.

        Most functions have the name of their operation; some names are synonyms.
        """
        return self.table.get(SYNONYMS.get(name, name))


def words(text: str) -> frozenset[str]:
    """Split a text into a set of names."""
    return frozenset(text.split())


# Operations that run in 16 bits on every device: products, convolutions, attention,
# which is two products, and `prelu`, which PyTorch lists with them.
PRODUCTS = words("""
    addbmm addmm baddbmm bmm linalg_vecdot linear matmul mm prelu
    conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d
    _convolution scaled_dot_product_attention
""")

# Functions that are steep at some inputs, where a small error of the input becomes a
# large error of the result.
FUNCTIONS = words("""
    acos asin cosh erfinv exp expm1 log log10 log1p log2 pow reciprocal rsqrt sinh
    softplus tan
""")

# Sums of squares. In FP16, the square of 256 is infinite.
NORMS = words("""
    frobenius_norm group_norm layer_norm linalg_matrix_norm linalg_vector_norm
    native_layer_norm norm nuclear_norm renorm
""")

# Sums of exponentials.
SOFTMAX = words("log_softmax logsumexp softmax")

# Losses: means over all positions, from whose results all gradients start.
LOSSES = words("""
    binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss
    cross_entropy_loss hinge_embedding_loss huber_loss kl_div l1_loss margin_ranking_loss mse_loss
    multi_margin_loss multilabel_margin_loss nll_loss nll_loss2d poisson_nll_loss
    smooth_l1_loss soft_margin_loss triplet_margin_loss
""")

# Sums and products over many elements.
SUMS = words("cumprod cumsum prod sum")

# Distances and angles between vectors: sums of products, or of squared differences.
DISTANCES = words("cdist cosine_similarity dist pdist")

# All operations that are sensitive to rounding. The table for CUDA casts their inputs;
# a CPU's kernels mostly need no cast.
FP32_FUNCTIONS = FUNCTIONS | NORMS | NEWER_IN_FP32 | SOFTMAX | LOSSES | SUMS | DISTANCES


# sidelit: depth Operations that a language model rarely calls, and synonyms.

# These functions are in no list of PyTorch, which casts the operations inside them one
# by one, in C++. Here the inputs of the whole function are cast.
COMPOSED = words("chain_matmul einsum linalg_multi_dot")
COMPOSED_FP32 = words("""
    cumulative_trapezoid pairwise_distance square trapezoid trapz
""")

# Operations on images, spectra and matrices as a whole.
UPSAMPLING = words("""
    upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d
    upsample_nearest2d upsample_nearest3d upsample_trilinear3d
    _upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_nearest_exact1d
    _upsample_nearest_exact2d _upsample_nearest_exact3d
""")

DECOMPOSITIONS = words("""
    cholesky_inverse cholesky_solve geqrf inverse linalg_cholesky
    linalg_cholesky_ex linalg_cond linalg_eig linalg_eigh linalg_eigvals linalg_eigvalsh
    linalg_householder_product linalg_inv linalg_inv_ex linalg_lstsq linalg_matrix_rank
    linalg_qr linalg_solve linalg_svd linalg_svdvals linalg_tensorinv linalg_tensorsolve
    lu_solve _lu_with_info orgqr ormqr pinverse svd triangular_solve
""").union(SOME_DECOMPOSITIONS)

TRANSFORMS = words("""
    fft_fft fft_fft2 fft_fftn fft_hfft fft_ifft fft_ifft2 fft_ifftn fft_ihfft fft_irfft
    fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftn polar stft view_as_complex
""")

POOLING = words("""
    adaptive_avg_pool3d adaptive_max_pool3d avg_pool3d fractional_max_pool2d
    fractional_max_pool3d max_pool3d max_unpool2d max_unpool3d reflection_pad1d
    reflection_pad2d replication_pad1d replication_pad2d replication_pad3d
""")

# Other names of the same operations, as other libraries call them.
SYNONYMS = {
    "arccos": "acos",
    "arcsin": "asin",
    "linalg_matmul": "matmul",
    "linalg_norm": "linalg_vector_norm",
    "special_erfinv": "erfinv",
    "special_expm1": "expm1",
    "special_log1p": "log1p",
    "special_log_softmax": "log_softmax",
    "special_logsumexp": "logsumexp",
    "special_softmax": "softmax",
}


# sidelit: core


def table(**names: Iterable[str]) -> dict[str, Rule]:
    """Turn lists of operations, one for each rule, into a table from operation to rule."""
    return {name: Rule[rule] for rule, listed in names.items() for name in listed}


CPU = table(
    LOW=PRODUCTS
    | COMPOSED
    | words("_addmm_activation mkldnn_rnn_layer _native_multi_head_attention"),
    FP32=LOSSES
    | DECOMPOSITIONS
    | TRANSFORMS
    | POOLING
    | words("""
        cdist ctc_loss fake_quantize_per_tensor_affine grid_sampler
        grid_sampler_2d _grid_sampler_2d_cpu_fallback grid_sampler_3d
        multilabel_margin_loss_forward nanquantile prod quantile trace
    """),
    PROMOTE=words("cat index_copy stack"),
)

ASKED = SUMS | words("log_softmax softmax linalg_matrix_norm linalg_vector_norm norm")

CUDA = table(
    LOW=PRODUCTS
    | words("""
        addmv addr chain_matmul convolution cudnn_convolution
        cudnn_convolution_transpose einsum gru_cell linalg_multi_dot lstm_cell mv
        rnn_relu_cell rnn_tanh_cell _scaled_dot_product_flash_attention
        _thnn_fused_gru_cell _thnn_fused_lstm_cell
    """),
    FP32=(FP32_FUNCTIONS | UPSAMPLING | COMPOSED_FP32)
    - ASKED
    - {"binary_cross_entropy"},
    RESULT=ASKED,
    PROMOTE=words("""
        addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put scatter_add
        tensordot vdot
    """),
    # The gradient of this loss is the inverse of a probability, up to $10^{12}$ where
    # 16 bits have rounded the probability to 0. FP16 cannot hold such a number. PyTorch
    # limits the loss, but not its gradient.
    REFUSE=words("binary_cross_entropy"),
)

RULES = {"cpu": Rules(torch.bfloat16, CPU), "cuda": Rules(torch.float16, CUDA)}
