"""Our autocast against torch's: each operation of its lists, models, contexts, threads, backward passes."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.checkpoint import checkpoint

import ranks
from shardbook.foundations.torch_private import since
from shardbook.models import gpt
from shardbook.models.gpt import GPT, Config
from shardbook.precision.autocast import (
    COMPOSED,
    COMPOSED_FP32,
    CPU,
    CUDA,
    DECOMPOSITIONS,
    FP32_FUNCTIONS,
    RULES,
    Rule,
    autocast,
    current,
    restored,
    words,
)

LOW = [torch.bfloat16, torch.float16]
GENERATOR = torch.Generator().manual_seed(0)

# The tensors are small, and threads would only wait for each other.
pytestmark = pytest.mark.usefixtures("one_thread")


def r(*shape: int) -> Tensor:
    return torch.randn(shape, generator=GENERATOR)


def p(*shape: int) -> Tensor:
    """Between 0 and 1."""
    return torch.rand(shape, generator=GENERATOR)


def spd(n: int) -> Tensor:
    """Symmetric, with eigenvalues well above zero."""
    a = r(n, n)
    return a @ a.T + n * torch.eye(n)


def whole(*shape: int, high: int = 3) -> Tensor:
    return torch.randint(0, high, shape, generator=GENERATOR)


def signs(*shape: int) -> Tensor:
    return whole(*shape, high=2) * 2 - 1


@contextmanager
def seeded(context: AbstractContextManager[Any]) -> Iterator[None]:
    torch.manual_seed(0)
    with context:
        yield


Case = tuple[Callable[..., Any], Any]
linalg, fft = torch.linalg, torch.fft
POOLED = torch.arange(8).reshape(1, 1, 2, 2, 2) * 8
# One or more calls for each operation that has a rule on a CPU, by its name in ATen.
CASES: dict[str, list[tuple[Any, ...]]] = {
    "_addmm_activation": [(torch._addmm_activation, r(3), r(2, 4), r(4, 3))],
    "_convolution": [
        (
            torch._convolution,
            *(r(1, 2, 5), r(3, 2, 3), r(3), [1], [0], [1], False, [0], 1),
            *(False, False, False),
        )
    ],
    "addbmm": [
        (torch.addbmm, r(2, 3), r(4, 2, 5), r(4, 5, 3)),
        (Tensor.addbmm, r(2, 3), r(4, 2, 5), r(4, 5, 3)),
    ],
    "addmm": [(torch.addmm, r(3), r(2, 4), r(4, 3)), (Tensor.addmm, r(2, 3), r(2, 4), r(4, 3))],
    "baddbmm": [(torch.baddbmm, r(2, 3, 5), r(2, 3, 4), r(2, 4, 5))],
    "bmm": [(torch.bmm, r(2, 3, 4), r(2, 4, 5)), (Tensor.bmm, r(2, 3, 4), r(2, 4, 5))],
    "chain_matmul": [(torch.chain_matmul, r(3, 4), r(4, 5), r(5, 2))],
    "conv1d": [(F.conv1d, r(1, 2, 9), r(3, 2, 3), r(3)), (F.conv1d, r(1, 2, 9), r(3, 2, 3), None, 1, "same")],
    "conv2d": [
        (F.conv2d, r(1, 2, 6, 6), r(3, 2, 3, 3), r(3)),
        (F.conv2d, r(1, 2, 6, 6), r(3, 2, 3, 3), None, 1, "valid"),
    ],
    "conv3d": [
        (F.conv3d, r(1, 2, 4, 4, 4), r(3, 2, 2, 2, 2)),
        (F.conv3d, r(1, 2, 4, 4, 4), r(3, 2, 3, 3, 3), None, 1, "same"),
    ],
    "conv_tbc": [(torch.conv_tbc, r(6, 2, 3), r(2, 3, 4), r(4), 1)],
    "conv_transpose1d": [(F.conv_transpose1d, r(1, 2, 5), r(2, 3, 3), r(3))],
    "conv_transpose2d": [(F.conv_transpose2d, r(1, 2, 5, 5), r(2, 3, 3, 3))],
    "conv_transpose3d": [(F.conv_transpose3d, r(1, 2, 3, 3, 3), r(2, 3, 2, 2, 2))],
    "einsum": [(torch.einsum, "bij,bjk->bik", r(2, 3, 4), r(2, 4, 5)), (torch.einsum, "i,i->", r(4), r(4))],
    "linalg_multi_dot": [(linalg.multi_dot, [r(3, 4), r(4, 5), r(5, 2)])],
    "linalg_vecdot": [(linalg.vecdot, r(3, 4), r(3, 4))],
    "linear": [(F.linear, r(2, 3), r(4, 3), r(4)), (F.linear, r(2, 3), r(4, 3))],
    "matmul": [
        (torch.matmul, r(3, 4), r(4)),
        (Tensor.__matmul__, r(2, 3, 4), r(4, 5)),
        (linalg.matmul, r(3, 4), r(4, 2)),
        (Tensor.__rmatmul__, r(4, 5), r(3, 4)),
    ],
    "mm": [(torch.mm, r(3, 4), r(4, 5)), (Tensor.mm, r(3, 4), r(4, 5))],
    "prelu": [(F.prelu, r(2, 3), r(1))],
    "scaled_dot_product_attention": [
        (F.scaled_dot_product_attention, r(1, 2, 5, 4), r(1, 2, 5, 4), r(1, 2, 5, 4))
    ],
    # --- FP32 ---
    "adaptive_avg_pool3d": [(F.adaptive_avg_pool3d, r(1, 1, 4, 4, 4), 2)],
    "adaptive_max_pool3d": [(F.adaptive_max_pool3d, r(1, 1, 4, 4, 4), 2)],
    "avg_pool3d": [(F.avg_pool3d, r(1, 1, 4, 4, 4), 2)],
    "binary_cross_entropy": [(F.binary_cross_entropy, p(4), p(4))],
    "binary_cross_entropy_with_logits": [(F.binary_cross_entropy_with_logits, r(4), p(4))],
    "cdist": [(torch.cdist, r(3, 4), r(2, 4))],
    "cholesky_inverse": [(torch.cholesky_inverse, linalg.cholesky(spd(3)))],
    "cholesky_solve": [(torch.cholesky_solve, r(3, 2), linalg.cholesky(spd(3)))],
    "cosine_embedding_loss": [(F.cosine_embedding_loss, r(3, 4), r(3, 4), signs(3))],
    "cross_entropy_loss": [(F.cross_entropy, r(3, 4), whole(3)), (F.cross_entropy, r(3, 4), whole(3), p(4))],
    "ctc_loss": [
        (
            F.ctc_loss,
            r(5, 2, 3).log_softmax(-1),
            torch.ones(2, 2, dtype=torch.long),
            *2 * [torch.tensor([4, 4])],
        ),
        (F.ctc_loss, r(5, 2, 3).log_softmax(-1), torch.ones(2, 2, dtype=torch.long), (5, 5), (2, 2)),
    ],
    "fake_quantize_per_tensor_affine": [(torch.fake_quantize_per_tensor_affine, r(4), 0.1, 0, -8, 7)],
    **{
        f"fft_{name}": [(getattr(fft, name), r(4, 4))]
        for name in (
            "fft",
            "fft2",
            "fftn",
            "ifft",
            "ifft2",
            "ifftn",
            "rfft",
            "rfft2",
            "rfftn",
            "ihfft",
            "hfft",
            "irfft",
            "irfft2",
            "irfftn",
        )
    },
    "fractional_max_pool2d": [(F.fractional_max_pool2d, r(1, 1, 6, 6), 2, (3, 3))],
    "fractional_max_pool3d": [(F.fractional_max_pool3d, r(1, 1, 6, 6, 6), 2, (3, 3, 3))],
    "geqrf": [(torch.geqrf, spd(3))],
    "grid_sampler": [(torch.grid_sampler, r(1, 1, 3, 3), p(1, 2, 2, 2), 0, 0, False)],
    "grid_sampler_2d": [(torch.grid_sampler_2d, r(1, 1, 3, 3), p(1, 2, 2, 2), 0, 0, False)],
    "_grid_sampler_2d_cpu_fallback": [
        (torch._grid_sampler_2d_cpu_fallback, r(1, 1, 3, 3), p(1, 2, 2, 2), 0, 0, False)
    ],
    "grid_sampler_3d": [(torch.grid_sampler_3d, r(1, 1, 3, 3, 3), p(1, 2, 2, 2, 3), 0, 0, False)],
    "hinge_embedding_loss": [(F.hinge_embedding_loss, r(4), signs(4))],
    "huber_loss": [(F.huber_loss, r(4), r(4))],
    "index_copy": [(torch.index_copy, r(3, 4), 0, torch.tensor([0, 2]), r(2, 4))],
    "inverse": [(torch.inverse, spd(3)), (Tensor.inverse, spd(3))],
    "kl_div": [(F.kl_div, r(4), p(4), None, None, "sum")],
    "l1_loss": [(F.l1_loss, r(4), r(4))],
    "linalg_cholesky": [(linalg.cholesky, spd(3))],
    "linalg_cholesky_ex": [(linalg.cholesky_ex, spd(3))],
    "linalg_cond": [(linalg.cond, spd(3)), (linalg.cond, spd(3), "fro")],
    "linalg_eig": [(linalg.eig, spd(3))],
    "linalg_eigh": [(linalg.eigh, spd(3))],
    "linalg_eigvals": [(linalg.eigvals, spd(3))],
    "linalg_eigvalsh": [(linalg.eigvalsh, spd(3))],
    "linalg_householder_product": [(linalg.householder_product, r(3, 2), r(2))],
    "linalg_inv": [(linalg.inv, spd(3))],
    "linalg_inv_ex": [(linalg.inv_ex, spd(3))],
    "linalg_lstsq": [(linalg.lstsq, r(4, 2), r(4, 2))],
    "linalg_matrix_rank": [(linalg.matrix_rank, spd(3))],
    "linalg_qr": [(linalg.qr, spd(3))],
    "linalg_solve": [(linalg.solve, spd(3), r(3, 2))],
    "linalg_svd": [(linalg.svd, spd(3))],
    "linalg_svdvals": [(linalg.svdvals, spd(3))],
    "linalg_tensorinv": [(linalg.tensorinv, spd(4).reshape(2, 2, 4), 2)],
    "linalg_tensorsolve": [(linalg.tensorsolve, spd(4).reshape(2, 2, 4), r(2, 2))],
    "lu_solve": [(torch.lu_solve, r(3, 2), *linalg.lu_factor(spd(3)))],
    "_lu_with_info": [(torch._lu_with_info, spd(3))],
    "margin_ranking_loss": [(F.margin_ranking_loss, r(3), r(3), signs(3))],
    "max_pool3d": [(F.max_pool3d, r(1, 1, 4, 4, 4), 2)],
    "max_unpool2d": [(F.max_unpool2d, r(1, 1, 2, 2), torch.tensor([[[[0, 2], [8, 10]]]]), 2)],
    "max_unpool3d": [(F.max_unpool3d, r(1, 1, 2, 2, 2), POOLED, 2)],
    "mse_loss": [(F.mse_loss, r(4), r(4))],
    "multi_margin_loss": [(F.multi_margin_loss, r(3, 4), whole(3))],
    "multilabel_margin_loss": [(F.multilabel_margin_loss, r(3, 4), whole(3, 4))],
    "nanquantile": [(torch.nanquantile, r(5), 0.3), (torch.nanquantile, r(5), p(2))],
    "nll_loss": [(F.nll_loss, r(3, 4), whole(3))],
    "nll_loss2d": [(F.nll_loss, r(3, 4, 2, 2), whole(3, 2, 2))],
    "orgqr": [(torch.orgqr, r(3, 2), r(2))],
    "ormqr": [(torch.ormqr, r(3, 2), r(2), r(3, 3))],
    "pinverse": [(torch.pinverse, spd(3))],
    "poisson_nll_loss": [(F.poisson_nll_loss, r(4), p(4))],
    "polar": [(torch.polar, p(4), r(4))],
    "prod": [(torch.prod, r(3, 4)), (torch.prod, r(3, 4), 1), (Tensor.prod, r(3))],
    "quantile": [(torch.quantile, r(5), 0.3), (Tensor.quantile, r(5), p(2))],
    "reflection_pad1d": [(torch._C._nn.reflection_pad1d, r(1, 2, 5), (1, 1))],
    "reflection_pad2d": [(torch._C._nn.reflection_pad2d, r(1, 4, 5), (1, 1, 1, 1))],
    "replication_pad1d": [(torch._C._nn.replication_pad1d, r(1, 2, 5), (1, 1))],
    "replication_pad2d": [(torch._C._nn.replication_pad2d, r(1, 4, 5), (1, 1, 1, 1))],
    "replication_pad3d": [(torch._C._nn.replication_pad3d, r(1, 3, 4, 5), (1, 1, 1, 1, 1, 1))],
    "smooth_l1_loss": [(F.smooth_l1_loss, r(4), r(4))],
    "soft_margin_loss": [(F.soft_margin_loss, r(4), signs(4))],
    "stft": [(torch.stft, r(1, 40), 8, None, None, torch.ones(8), True, "reflect", False, None, True)],
    "svd": [(torch.svd, spd(3))],
    "trace": [(torch.trace, r(3, 3))],
    "triangular_solve": [(torch.triangular_solve, r(3, 2), linalg.cholesky(spd(3)))],
    "triplet_margin_loss": [(F.triplet_margin_loss, r(3, 4), r(3, 4), r(3, 4))],
    "view_as_complex": [(torch.view_as_complex, r(3, 2))],
    # --- promoted ---
    "cat": [(torch.cat, [r(3), r(3).bfloat16()]), (torch.cat, [r(3).bfloat16(), r(2).bfloat16()])],
    "stack": [(torch.stack, [r(3), r(3).bfloat16()])],
}
# These have no name in Python, or none that can be called without more preparation than it is worth.
UNREACHABLE = {"mkldnn_rnn_layer", "_native_multi_head_attention", "multilabel_margin_loss_forward"}


def outcome(
    context: AbstractContextManager[Any], call: tuple[Any, ...], dtype: torch.dtype, low: torch.dtype
) -> Any:
    """What a call gives and the gradients of its inputs, or the name of the error."""
    leaves: list[Tensor] = []

    def fresh(value: Tensor) -> Tensor:
        if not value.is_floating_point():
            return value
        # BF16 in a case stands for the dtype with 16 bits.
        value = value.detach().to(dtype if value.dtype == torch.float32 else low, copy=True)
        leaves.append(value.requires_grad_())
        return value

    function, *inputs = call
    args = tree_map_only(Tensor, fresh, inputs)
    try:
        with warnings.catch_warnings():
            # Some of the older names are deprecated.
            warnings.simplefilter("ignore")
            with seeded(context):
                found = [leaf for leaf in tree_leaves(function(*args)) if isinstance(leaf, Tensor)]
    except (RuntimeError, NotImplementedError) as error:
        return type(error)
    rooted = [value for value in found if value.requires_grad]
    try:
        torch.autograd.backward(rooted, [torch.ones_like(value) for value in rooted])
    except (RuntimeError, NotImplementedError):
        # Some operations have no derivative, or none in this dtype.
        return found
    return found + [leaf.grad for leaf in leaves]


def assert_alike(ours: Any, theirs: Any, repeats: bool = True) -> None:
    """Same dtypes, same bits; or the same error."""
    if not isinstance(theirs, list):
        assert ours == theirs
        return
    assert isinstance(ours, list), ours
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert (a is None) == (b is None)
        if b is not None:
            assert a.dtype == b.dtype
            if repeats:
                assert torch.equal(a, b)
            else:
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


# --- operations ---


@pytest.mark.cases(now=228, ci=228)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("low", LOW, ids=str)
def test_an_operation_on_a_cpu_gives_what_torch_gives(name: str, low: torch.dtype) -> None:
    worked = 0
    for call in CASES[name]:
        for dtype in (torch.float32, low, torch.float64):
            theirs = outcome(torch.autocast("cpu", low), call, dtype, low)
            if isinstance(theirs, list) or name not in COMPOSED:
                # The last bits of LAPACK depend on where in memory its inputs lie.
                repeats = name not in DECOMPOSITIONS
                assert_alike(outcome(autocast("cpu", low), call, dtype, low), theirs, repeats)
            worked += isinstance(theirs, list)
    # FP16 has fewer kernels; but a case that never works compares nothing.
    assert worked or low is torch.float16


CASES |= (
    {"linalg_matrix_sqrth": [(linalg.matrix_sqrth, spd(3))]}
    if since("2.14")
    else {"cholesky": [(torch.cholesky, spd(3))], "qr": [(torch.qr, spd(3))]}
)

ON_CUDA: dict[str, list[tuple[Any, ...]]] = {
    **{
        name: [(getattr(torch, name), p(3, 3))]
        for name in words("acos asin cosh erfinv exp expm1 log log10 log1p log2 reciprocal rsqrt sinh tan")
    },
    "arccos": [(torch.arccos, p(3)), (torch.arcsin, p(3)), (torch.special.expm1, p(3))],
    "addcdiv": [(torch.addcdiv, r(3), r(3).bfloat16(), r(3)), (torch.addcmul, r(3), r(3), r(3).bfloat16())],
    "addmv": [
        (torch.addmv, r(3), r(3, 4), r(4)),
        (torch.mv, r(3, 4), r(4)),
        (torch.addr, r(3, 4), r(3), r(4)),
    ],
    "atan2": [
        (torch.atan2, r(3), r(3).bfloat16()),
        (torch.dot, r(3), r(3).bfloat16()),
        (torch.vdot, r(3), r(3)),
    ],
    "bilinear": [(F.bilinear, r(2, 3), r(2, 4).bfloat16(), r(5, 3, 4))],
    "cat": [(torch.cat, [r(3), r(3).bfloat16()])],
    "cell": [
        (torch.rnn_tanh_cell, r(2, 3), r(2, 4), r(4, 3), r(4, 4)),
    ],
    "cross": [(linalg.cross, r(3), r(3)), (torch.cross, r(2, 3), r(2, 3).bfloat16(), 1)],
    "distances": [(torch.dist, r(3), r(3)), (F.pdist, r(3, 4)), (F.cosine_similarity, r(2, 3), r(2, 3))],
    "index_put": [(torch.index_put, r(3), (torch.tensor([0]),), r(1))],
    "composed": [
        (torch.square, r(3)),
        (torch.trapezoid, r(3)),
        (torch.trapz, r(3)),
        (torch.cumulative_trapezoid, r(3)),
        (F.pairwise_distance, r(2, 3), r(2, 3)),
    ],
    "losses": [(F.soft_margin_loss, r(3), r(3)), (F.cross_entropy, r(2, 3), whole(2))],
    "norms": [
        (F.layer_norm, r(2, 3), (3,), r(3)),
        (F.group_norm, r(2, 4), 2),
        (F.rms_norm, r(2, 3), (3,)),
        (torch.norm, r(3)),
        (Tensor.norm, r(3, 3), 2, 1),
        (linalg.norm, r(3, 3)),
        (linalg.vector_norm, r(3)),
        (linalg.matrix_norm, r(3, 3)),
        (torch.renorm, r(3, 3), 2, 0, 1.0),
        (F.normalize, r(2, 3)),
    ],
    "pow": [
        (torch.pow, r(3), 2),
        (Tensor.__pow__, r(3), 2),
        (Tensor.__rpow__, r(3), 2),
        (torch.pow, r(3), r(3)),
    ],
    "scatter_add": [(torch.scatter_add, r(3), 0, torch.tensor([0]), r(1))],
    "softmax": [
        (torch.softmax, r(3), 0),
        (F.softmax, r(3), 0),
        (F.log_softmax, r(3), 0),
        (Tensor.softmax, r(3), 0),
        (torch.special.softmax, r(3), 0),
        (torch.logsumexp, r(3), 0),
        (torch.softmax, r(3), 0, torch.float64),
        (F.softplus, r(3)),
    ],
    "sums": [
        (torch.sum, r(3)),
        (Tensor.sum, r(3, 3), 1),
        (torch.cumsum, r(3), 0),
        (torch.cumprod, r(3), 0),
        (torch.prod, r(3, 3), 1),
        (torch.mean, r(3)),
        (partial(torch.sum, dtype=torch.bfloat16), r(3)),
    ],
    "tensordot": [(torch.tensordot, r(2, 3), r(3, 2).bfloat16(), 1)],
    "upsampling": [
        (partial(F.interpolate, scale_factor=2, mode=mode), r(1, 1, *(4,) * size))
        for mode, size in (
            ("nearest", 1),
            ("nearest", 2),
            ("nearest-exact", 3),
            ("bilinear", 2),
            ("bicubic", 2),
        )
    ],
    "unlisted": [
        (torch.add, r(3), r(3).bfloat16()),
        (F.gelu, r(3)),
        (torch.tanh, r(3)),
        (torch.mul, r(3), 2.0),
    ],
}
# One is refused, and the other does not run without data.
SHARED = [name for name in CASES if name in CUDA and name not in {"binary_cross_entropy", "grid_sampler"}]


@contextmanager
def torchs_autocast_for_cuda() -> Iterator[None]:
    """`torch.autocast` refuses a device that is missing. Its dispatcher does not."""
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.float16)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", False)


def dtypes(context: AbstractContextManager[Any], call: tuple[Any, ...], dtype: torch.dtype) -> Any:
    """The dtypes that a call gives on a GPU. Tensors without data are enough for that."""

    def there(value: Tensor) -> Tensor:
        found = {torch.float32: dtype, torch.bfloat16: torch.float16}.get(value.dtype, value.dtype)
        return torch.empty(value.shape, dtype=found, device="cuda")

    function, *inputs = call
    with FakeTensorMode():
        args = tree_map_only(Tensor, there, inputs)
        try:
            with context, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = function(*args)
        except (RuntimeError, NotImplementedError, TypeError) as error:
            return type(error)
    return [leaf.dtype for leaf in tree_leaves(found) if isinstance(leaf, Tensor)]


@pytest.mark.cases(now=56, ci=57)
@pytest.mark.parametrize("name", sorted({*SHARED, *ON_CUDA}))
def test_an_operation_on_a_gpu_gives_the_dtype_that_torch_gives(name: str) -> None:
    if name == "_convolution" and not (since("2.13") or torch.cuda.is_available()):
        pytest.skip("before 2.13 PyTorch asks for a driver, even where tensors have no data")
    worked = 0
    for call in [*CASES.get(name, []), *ON_CUDA.get(name, [])]:
        for dtype in (torch.float32, torch.float16, torch.float64):
            theirs = dtypes(torchs_autocast_for_cuda(), call, dtype)
            assert dtypes(autocast("cuda"), call, dtype) == theirs, call[0]
            worked += isinstance(theirs, list)
    assert worked


def registered(key: str) -> set[str]:
    """The operations for which this installation of torch has a kernel of autocast."""
    names = torch._C._dispatch_get_registrations_for_dispatch_key(key)
    return {name.removeprefix("aten::").partition(".")[0] for name in names}


def test_the_tables_have_every_operation_of_torchs_lists() -> None:
    assert registered("AutocastCPU") == set(CPU) - COMPOSED
    # Only a build for CUDA has this one. Modules reach it in C++, where PyTorch casts by itself.
    inside = {"_cudnn_rnn"} if torch.backends.cuda.is_built() else set()
    assert registered("AutocastCUDA") == set(CUDA) - COMPOSED_FP32 - {"cross_entropy_loss"} | inside


def test_every_operation_with_a_rule_on_a_cpu_is_compared() -> None:
    assert set(CASES) == set(CPU) - UNREACHABLE


def test_binary_cross_entropy_is_refused_on_a_gpu() -> None:
    for dtype in (torch.float32, torch.float16):
        call = (F.binary_cross_entropy, p(3), p(3))
        assert dtypes(torchs_autocast_for_cuda(), call, dtype) is RuntimeError
        assert dtypes(autocast("cuda"), call, dtype) is RuntimeError
    with FakeTensorMode(), autocast("cuda"):
        half = torch.empty(3, device="cuda")
        sentence = (
            r"^binary_cross_entropy is not safe in 16 bits; use binary_cross_entropy_with_logits "
            r"and leave out the sigmoid before it$"
        )
        with pytest.raises(RuntimeError, match=sentence):
            F.binary_cross_entropy(half, half)


def test_what_is_sensitive_to_rounding_is_never_cast_to_16_bits() -> None:
    for rules in RULES.values():
        assert not any(rules.table.get(name) is Rule.LOW for name in FP32_FUNCTIONS)
    assert {"layer_norm", "softmax", "log", "sum", "mse_loss"} <= FP32_FUNCTIONS
    assert {name for name in FP32_FUNCTIONS if name not in CUDA} == set()


OUT_OF_SIGHT = {
    "inner": (torch.inner, r(2, 3), r(4, 3)),
    "tensordot": (torch.tensordot, r(2, 3), r(3, 2), 1),
    "matrix_power": (linalg.matrix_power, r(3, 3), 3),
    "cov": (torch.cov, r(2, 3)),
}


@pytest.mark.parametrize("name", OUT_OF_SIGHT)
def test_products_inside_of_other_functions_of_cpp_are_cast_by_torch(name: str) -> None:
    """The mode does not see them, so it leaves torch's own casts on while such a function runs."""
    found = [
        outcome(context("cpu"), OUT_OF_SIGHT[name], torch.float32, torch.bfloat16)
        for context in (torch.autocast, autocast)
    ]
    assert found[0][0].dtype == torch.bfloat16
    assert_alike(found[1], found[0])


def test_a_transformer_layer_is_evaluated_as_it_is_trained() -> None:
    """The chapter says so, and that it is otherwise in torch."""
    layer, x = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), r(2, 3, 8)
    with autocast("cpu"):
        in_training = layer(x)
        with torch.no_grad():
            assert torch.equal(layer(x), in_training)
    with torch.autocast("cpu"):
        assert torch.equal(layer(x), in_training)
        with torch.no_grad():
            assert layer(x).dtype == torch.bfloat16
    assert in_training.dtype == torch.float32


def test_softmax_and_the_norms_compute_in_fp32_inside_on_a_cpu() -> None:
    x = (3 * r(64, 512)).bfloat16()
    for function in (partial(torch.softmax, dim=-1), partial(F.layer_norm, normalized_shape=(512,))):
        # Off by half a step of BF16, as after a single rounding.
        torch.testing.assert_close(function(x).float(), function(x.float()), rtol=1.1 * 2**-8, atol=1e-5)


def test_matrix_decompositions_have_no_kernel_for_bf16() -> None:
    for function in (linalg.cholesky, linalg.inv, linalg.svd, linalg.qr):
        with pytest.raises(RuntimeError, match=r"BFloat16|[Ll]ow precision"):
            function(spd(3).bfloat16())


# --- models ---

TOKENS = torch.randint(0, 256, (2, 16), generator=GENERATOR)


def convolutions() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 8, 3, padding="same"), nn.GroupNorm(2, 8), nn.SiLU(), nn.Dropout(0.1)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)),
    )


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.lstm(x)[0])
        return scores


Model = tuple[Callable[[], nn.Module], Tensor, Tensor, Callable[[Tensor, Tensor], Tensor]]
MODELS: dict[str, Model] = {
    "gpt": (lambda: GPT(Config(layers=2, width=32, heads=2, context=16)), TOKENS, TOKENS.flip(0), gpt.loss),
    "convolutions": (convolutions, r(4, 3, 12, 12), torch.tensor([0, 1, 2, 3]), F.cross_entropy),
    "attention": (
        lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True),
        *(r(2, 5, 16), r(2, 5, 16), F.mse_loss),
    ),
    "recurrent": (Recurrent, r(5, 2, 8), r(5, 2, 4), F.mse_loss),
}


def trained(context: AbstractContextManager[Any], name: str, steps: int = 2) -> list[Tensor]:
    """Outputs, losses and gradients of a few steps."""
    build, x, y, loss = MODELS[name]
    torch.manual_seed(0)
    model, found = build(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(steps):
        # The same object is entered anew in each step.
        with context:
            output = model(x)
            error = loss(output, y)
        error.backward()
        found += [output, error, *(p.grad for p in model.parameters() if p.grad is not None)]
        optimizer.step()
        optimizer.zero_grad()
    return found


@pytest.mark.cases(now=15, ci=15)
@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("low", LOW, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_gives_the_same_bits(name: str, low: torch.dtype, cache: bool) -> None:
    if name == "recurrent":
        # A processor may have no such kernel, and none has it for FP16.
        try:
            trained(torch.autocast("cpu", low), name)
        except RuntimeError:
            with pytest.raises(RuntimeError, match="primitive"):
                trained(autocast("cpu", low), name)
            return
    theirs = trained(torch.autocast("cpu", low, cache_enabled=cache), name)
    ours = trained(autocast("cpu", low, cache_enabled=cache), name)
    assert len(ours) > 10
    assert_alike(ours, theirs)
    plain = trained(autocast("cpu", low, enabled=False), name)
    assert_alike(plain, trained(torch.autocast("cpu", enabled=False), name))
    assert any(not torch.equal(a, b.to(a.dtype)) for a, b in zip(plain, ours, strict=True))


# --- gradients ---


def test_gradients_return_to_fp32_and_have_the_digits_of_16_bits() -> None:
    weight, x = nn.Parameter(r(4, 4)), r(3, 4)
    seen = []
    with autocast("cpu"):
        y = x @ weight
        y.register_hook(lambda gradient: seen.append(gradient.dtype))
        error = F.mse_loss(y, torch.zeros(3, 4))
    error.backward()
    assert (y.dtype, error.dtype, seen) == (torch.bfloat16, torch.float32, [torch.bfloat16])
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32
    assert torch.equal(weight.grad, weight.grad.bfloat16().float())


def inner_region_in_fp32(context: Any, backward_inside: bool) -> Tensor:
    """The gradient of a parameter that was used where autocast was off."""
    torch.manual_seed(0)
    weight, x = nn.Parameter(torch.randn(4, 4)), torch.randn(3, 4)
    with context("cpu"):
        with context("cpu", enabled=False):
            y = x @ weight
        error = (y**2).sum()
        if backward_inside:
            error.backward()
    if not backward_inside:
        error.backward()
    assert weight.grad is not None
    return weight.grad


def test_the_backward_pass_runs_in_the_dtype_of_the_forward_pass() -> None:
    exact = inner_region_in_fp32(torch.autocast, False)
    assert not torch.equal(exact, exact.bfloat16().float())
    assert torch.equal(inner_region_in_fp32(autocast, False), exact)
    assert torch.equal(inner_region_in_fp32(autocast, True), exact)
    # Torch's context casts what the backward pass computes.
    rounded = inner_region_in_fp32(torch.autocast, True)
    assert torch.equal(rounded, rounded.bfloat16().float())


# --- contexts ---


def products(context: Any, **options: Any) -> list[torch.dtype]:
    """The dtype of a product in nested contexts, from outside in and out again."""
    x = torch.ones(2, 2)
    found = [(x @ x).dtype]
    with context("cpu", torch.bfloat16):
        found.append((x @ x).dtype)
        with context("cpu", enabled=False):
            found.append((x @ x).dtype)
            with context("cpu", torch.float16):
                found.append((x @ x).dtype)
            found.append((x @ x).dtype)
        found.append((x @ x).dtype)
    return [*found, (x @ x).dtype]


def test_the_innermost_context_decides() -> None:
    full, bf16, fp16 = torch.float32, torch.bfloat16, torch.float16
    assert products(autocast) == products(torch.autocast) == [full, bf16, full, fp16, full, bf16, full]


def test_an_error_leaves_no_context_behind() -> None:
    x = torch.ones(2, 2)
    with pytest.raises(ValueError, match="stop"), autocast("cpu"), autocast("cpu", torch.float16):
        raise ValueError("stop")
    # An error inside of a function that is looked into.
    with pytest.raises(ValueError, match="unpack"), autocast("cpu"):
        F.multi_head_attention_forward(x, x, x, 2, 2, x, x, x, x, False, 0.0, x, x)
    assert (x @ x).dtype == torch.float32
    assert current() == {}
    assert products(autocast)[1] == torch.bfloat16


def test_one_object_is_a_context_many_times_and_a_decorator() -> None:
    context, x = autocast("cpu"), torch.ones(2, 2)
    with context, context:
        assert (x @ x).dtype == torch.bfloat16

    @context
    def power(depth: int) -> Tensor:
        return x @ power(depth - 1) if depth else x

    assert power(3).dtype == torch.bfloat16
    assert (x @ x).dtype == torch.float32


def test_devices_have_settings_of_their_own() -> None:
    with FakeTensorMode():
        x, there = torch.ones(2, 2), torch.empty(2, 2, device="cuda")
        with autocast("cuda"):
            assert ((there @ there).dtype, (x @ x).dtype) == (torch.float16, torch.float32)
            with autocast("cpu"):
                assert (there @ there).dtype == torch.float16
            with autocast("cuda", torch.bfloat16):
                assert (there @ there).dtype == torch.bfloat16
    assert [(name, rules.dtype) for name, rules in RULES.items()] == [
        (name, torch.get_autocast_dtype(name)) for name in ("cpu", "cuda")
    ]


def test_a_result_that_is_written_where_the_caller_says_keeps_its_dtype() -> None:
    x, out = torch.ones(2, 2), torch.empty(2, 2)
    for context in (torch.autocast("cpu"), autocast("cpu")):
        with context:
            assert torch.mm(x, x, out=out) is out
            assert x.addmm_(x, x).dtype == torch.float32


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("tpu",), r"^there are no rules for device type 'tpu'; choose one of cpu, cuda$"),
        (
            ("cpu", torch.float32),
            r"^autocast cannot run in torch.float32; choose torch.bfloat16 or torch.float16, "
            r"or enabled=False$",
        ),
    ],
)
def test_what_cannot_be_is_refused(options: tuple[Any, ...], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        autocast(*options)


def test_a_context_that_is_not_enabled_needs_no_dtype_of_16_bits() -> None:
    x = torch.ones(2, 2)
    with autocast("cpu"), autocast("cpu", torch.float32, enabled=False):
        assert (x @ x).dtype == torch.float32


def test_settings_can_be_taken_along_into_a_recomputation() -> None:
    """Checkpointing computes again in the backward pass, where no context is entered."""
    layer, x = nn.Linear(4, 4), r(2, 4).requires_grad_()
    with autocast("cpu"):
        settings, expected = current(), layer(x)
    assert layer(x).dtype == torch.float32
    with restored(settings):
        assert torch.equal(layer(x), expected)
    with autocast("cpu", torch.float16), restored({}):
        assert layer(x).dtype == torch.float32
    assert current() == {}
    with autocast("cpu"):
        inside = current()
        again = checkpoint(
            lambda x: restored_run(inside, layer, x), x, use_reentrant=False, preserve_rng_state=False
        )
    again.float().sum().backward()


def restored_run(settings: Any, layer: nn.Module, x: Tensor) -> Tensor:
    with restored(settings):
        result: Tensor = layer(x)
    return result


# --- threads ---


def in_a_thread(function: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("context", [torch.autocast, autocast])
def test_a_thread_that_is_started_inside_starts_outside(context: Any) -> None:
    x = torch.ones(2, 2)

    def forward() -> torch.dtype:
        return (x @ x).dtype

    with context("cpu"):
        assert in_a_thread(forward) == torch.float32
        # The fix: the function itself enters the context.
        assert in_a_thread(context("cpu")(forward)) == torch.bfloat16
        assert forward() == torch.bfloat16
    assert in_a_thread(context("cpu")(forward)) == torch.bfloat16


def test_a_thread_that_ends_takes_no_casts_of_another() -> None:
    weight, x = nn.Parameter(r(2, 2)), r(2, 2)
    with autocast("cpu"):
        before = (x @ weight).grad_fn.next_functions[1][0]
        in_a_thread(autocast("cpu")(lambda: x @ weight))
        assert (x @ weight).grad_fn.next_functions[1][0] is before


# --- the casts of parameters ---


def casts(context: Any, use: Callable[[Tensor], Any], **options: Any) -> int:
    """How many times a product of `use` finds a cast of its own."""
    weight = nn.Parameter(torch.ones(2, 2))
    with context("cpu", torch.bfloat16, **options):
        nodes = [value.grad_fn.next_functions[1][0] for value in use(weight)]
    return len({id(node) for node in nodes})


ONES = torch.ones(2, 2)


def test_a_parameter_is_cast_once_in_the_outermost_context() -> None:
    def nested(weight: Tensor, context: Any) -> list[Tensor]:
        found = [ONES @ weight]
        with context("cpu", enabled=False), context("cpu", torch.bfloat16):
            found.append(ONES @ weight)
        return [*found, ONES @ weight]

    def views(weight: Tensor) -> list[Tensor]:
        return [ONES @ weight.t(), ONES @ weight.t()]

    for context in (torch.autocast, autocast):
        assert casts(context, lambda weight: [ONES @ weight, ONES @ weight]) == 1
        assert casts(context, lambda weight: [ONES @ weight, ONES @ weight], cache_enabled=False) == 2
        assert casts(context, partial(nested, context=context)) == 1
        assert casts(context, views) == 2


def test_the_casts_go_with_the_outermost_context() -> None:
    weight = nn.Parameter(r(2, 2))
    nodes = []
    for _ in range(2):
        with autocast("cpu"):
            nodes.append((ONES @ weight).grad_fn.next_functions[1][0])
    assert nodes[0] is not nodes[1]
    with autocast("cpu"):
        mode = torch.overrides._get_current_function_mode()
        assert ONES @ weight is not None
        assert len(mode.kept) == 1
    assert mode.kept == {}


def test_gradients_of_two_uses_meet_in_16_bits_if_the_cast_is_kept() -> None:
    gradients = []
    for cache in (True, False):
        weight = nn.Parameter(torch.ones(1, 1))
        with autocast("cpu", cache_enabled=cache):
            # In BF16 the step at 256 is 2.
            error = (torch.full((1, 1), 256.0) @ weight + torch.ones(1, 1) @ weight).sum()
        error.backward()
        assert weight.grad is not None
        gradients.append(weight.grad.item())
    assert gradients == [256.0, 257.0]


def test_a_cast_without_gradients_does_not_cut_off_the_next_use() -> None:
    weight = nn.Parameter(r(2, 2))
    with autocast("cpu"):
        with torch.no_grad():
            assert not (ONES @ weight).requires_grad
        (ONES @ weight).sum().backward()
    assert weight.grad is not None


def test_a_parameter_that_has_changed_is_cast_again() -> None:
    weight = nn.Parameter(torch.ones(2, 2))
    for context, seen in ((torch.autocast, 2.0), (autocast, 4.0)):
        with torch.no_grad():
            weight.fill_(1.0)
        with context("cpu"):
            assert (ONES @ weight)[0, 0] == 2.0
            with torch.no_grad():
                weight.fill_(2.0)
            assert (ONES @ weight)[0, 0] == seen


def losses_of_steps(model: nn.Module, **options: Any) -> list[float]:
    """Of three steps in one context, of a change by hand, and of a load."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, **options)
    found = []

    def evaluate(backward: bool = True) -> None:
        loss = model(torch.ones(1, 4)).float().sum()
        found.append(loss.item())
        if backward:
            loss.backward()

    with autocast("cpu"):
        for _ in range(3):
            evaluate()
            optimizer.step()
            optimizer.zero_grad()
        # What is kept is kept from here on.
        evaluate(backward=False)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.5)
        evaluate(backward=False)
        model.load_state_dict({name: value + 1.0 for name, value in model.state_dict().items()})
        evaluate()
    return found


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(4, 1)


def sharded_models_step_in_a_context() -> None:
    from shardbook import shard

    expected = losses_of_steps(linear())
    assert len(set(expected)) == 6
    for fused in (False, True):
        assert losses_of_steps(linear(), fused=fused) == expected
        for stage in range(4):
            assert losses_of_steps(shard(linear(), stage=stage), fused=fused) == expected


@pytest.mark.full
def test_a_context_around_several_steps_casts_what_each_step_has_left() -> None:
    ranks.run(2, sharded_models_step_in_a_context)


def test_another_dtype_inside_has_casts_of_its_own() -> None:
    weight = nn.Parameter(r(2, 2))
    with torch.autocast("cpu", torch.bfloat16):
        assert (ONES @ weight).dtype == torch.bfloat16
        # Torch finds the cast by the parameter alone.
        with torch.autocast("cpu", torch.float16), pytest.raises(RuntimeError, match="same dtype"):
            ONES @ weight
    with autocast("cpu", torch.bfloat16):
        outside = ONES @ weight
        with autocast("cpu", torch.float16):
            assert torch.equal(ONES @ weight, ONES.half() @ weight.half())
        assert torch.equal(ONES @ weight, outside)
