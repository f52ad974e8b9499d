r"""# What autocast casts

> Matrix products run in 16 bits, operations that rounding would harm in FP32, and all others as called.

[Autocast](autocast.py) decides by the name of an operation. A matrix product is what 16
bits are for: processors have units for it, and they [add up in FP32](rounding.py). (On
a GPU, PyTorch by default lets some products add partial sums in 16 bits; the switches
are in `torch.backends.cuda.matmul`.) An exponential turns an error of its input into a
relative error of its result, and it overflows FP16 above 11.09. A sum of many elements
needs more digits than each of them has. So there are five rules, and an operation
without a rule runs as it is called:

| rule | its inputs are | for example |
|---|---|---|
| `LOW` | cast to 16 bits | `linear`, `conv2d`, `matmul`, attention |
| `FP32` | cast to FP32 | the losses; on a GPU `exp` and `pow`, too |
| `RESULT` | left alone; the result is asked for in FP32 | on a GPU `softmax` and `sum` |
| `PROMOTE` | cast to the narrowest dtype that holds theirs and that of the context | `cat` |
| `REFUSE` | refused | `binary_cross_entropy` on a GPU |
| none | left alone | `add`, `relu`, views |

The rules are data, and they differ between devices. The two tables below are those of
[`torch.autocast`](https://docs.pytorch.org/docs/stable/amp.html), whose judgement this
is. On a GPU nearly everything sensitive runs in FP32. On a CPU softmax and the norms
have no rule: their kernels compute in FP32 inside, and only the result is rounded.
There the rule for FP32 is also for operations that have no kernel for BF16, such as the
matrix decompositions.

Our tests compare each operation of the table for CPUs with `torch.autocast`: dtypes,
results and gradients, bit by bit, but for the last bits of matrix decompositions. For
GPUs they compare the dtypes of the results, on tensors that claim to lie on a GPU and
have no data. The values were never compared there.

Some functions in C++ call products where [a function mode](casting.py) does not see
them: `inner`, `tensordot`, `cov`, `matrix_power`, and on a CPU recurrent layers. They
have no rule here, and `torch.autocast` casts these products.

In an evaluation on a CPU an `nn.TransformerEncoderLayer` is one function of C++, and
`torch.autocast` casts everything that it gets. While a function mode is on, PyTorch
takes the layer's ordinary way. So here an evaluation gives the result of a forward pass
in training.
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

import torch

__all__ = ["FP32_FUNCTIONS", "RULES", "Rule", "Rules"]
# sidelit: show


class Rule(Enum):
    """What happens to the inputs of an operation."""

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

        Most functions are called as their operation is, and some are another name of
        one.
        """
        return self.table.get(SYNONYMS.get(name, name))


def words(text: str) -> frozenset[str]:
    """A set of names, written as prose."""
    return frozenset(text.split())


# In 16 bits on every device: products, convolutions, attention, which is two products,
# and with them PyTorch's choice of `prelu`.
PRODUCTS = words("""
    addbmm addmm baddbmm bmm linalg_vecdot linear matmul mm prelu
    conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d
    _convolution scaled_dot_product_attention
""")

# These are steep at some inputs, where a small error of the input becomes a large error
# of the result.
FUNCTIONS = words("""
    acos asin cosh erfinv exp expm1 log log10 log1p log2 pow reciprocal rsqrt sinh
    softplus tan
""")

# Sums of squares. In FP16, the square of 256 is infinite.
NORMS = words("""
    frobenius_norm group_norm layer_norm linalg_matrix_norm linalg_vector_norm
    native_layer_norm norm nuclear_norm renorm rms_norm
""")

# Sums of exponentials.
SOFTMAX = words("log_softmax logsumexp softmax")

# Means over everything; all gradients start from their result.
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

# All that is sensitive to rounding. The table for CUDA casts it; a CPU's kernels mostly
# need no cast.
FP32_FUNCTIONS = FUNCTIONS | NORMS | SOFTMAX | LOSSES | SUMS | DISTANCES


# sidelit: depth Operations that a language model hardly calls, and other names of the same operations.

# What follows is in no list of PyTorch. There the operations that it is made of are
# cast one by one, inside of C++. Here it is cast as a whole.
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
    cholesky cholesky_inverse cholesky_solve geqrf inverse linalg_cholesky
    linalg_cholesky_ex linalg_cond linalg_eig linalg_eigh linalg_eigvals linalg_eigvalsh
    linalg_householder_product linalg_inv linalg_inv_ex linalg_lstsq linalg_matrix_rank
    linalg_qr linalg_solve linalg_svd linalg_svdvals linalg_tensorinv linalg_tensorsolve
    lu_solve _lu_with_info orgqr ormqr pinverse qr svd triangular_solve
""")

TRANSFORMS = words("""
    fft_fft fft_fft2 fft_fftn fft_hfft fft_ifft fft_ifft2 fft_ifftn fft_ihfft fft_irfft
    fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftn polar stft view_as_complex
""")

POOLING = words("""
    adaptive_avg_pool3d adaptive_max_pool3d avg_pool3d fractional_max_pool2d
    fractional_max_pool3d max_pool3d max_unpool2d max_unpool3d reflection_pad1d
    reflection_pad2d replication_pad1d replication_pad2d replication_pad3d
""")

# Names of the same operations, as other libraries know them.
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
    """Rules by operation, from operations by rule."""
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
    # Its gradient is the inverse of a probability, up to $10^{12}$ where 16 bits have
    # rounded that to 0. FP16 cannot hold it. PyTorch limits the loss, but not this.
    REFUSE=words("binary_cross_entropy"),
)

RULES = {"cpu": Rules(torch.bfloat16, CPU), "cuda": Rules(torch.float16, CUDA)}
