"""What a model may expect inside of autocast: PyTorch's and the library's, alone and nested in each other."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from shardbook.precision.autocast import autocast, current

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
MAKERS: dict[str, Callable[..., AbstractContextManager[Any]]] = {
    "torch": torch.autocast,
    "shardbook": autocast,
}
both = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
X = torch.ones(2, 2)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = state()
    yield
    assert (state(), current()) == (before, {})
    assert (X @ X).dtype == FP32


def state() -> tuple[Any, ...]:
    """All that PyTorch says of autocast in this thread."""
    torch.autocast_increment_nesting()
    return (
        *(torch.is_autocast_enabled(device) for device in ("cpu", "cuda")),
        *(torch.get_autocast_dtype(device) for device in ("cpu", "cuda")),
        torch.is_autocast_cache_enabled(),
        torch.autocast_decrement_nesting(),
    )


# --- the state, and nesting ---


@both
def test_a_model_can_ask_whether_it_is_cast(make: Callable[..., Any]) -> None:
    assert not torch.is_autocast_enabled("cpu")
    with make("cpu", FP16):
        assert torch.is_autocast_enabled("cpu")
        assert not torch.is_autocast_enabled("cuda")
        assert torch.get_autocast_dtype("cpu") == FP16
        with make("cpu", enabled=False):
            assert not torch.is_autocast_enabled("cpu")
        assert torch.is_autocast_enabled("cpu")
        with make("cpu", FP16, cache_enabled=False):
            assert not torch.is_autocast_cache_enabled()
        assert torch.is_autocast_cache_enabled()


BLOCKS = st.tuples(
    st.sampled_from(["torch", "shardbook"]),
    st.fixed_dictionaries(
        {"dtype": st.sampled_from([BF16, FP16]), "enabled": st.booleans(), "cache_enabled": st.booleans()}
    ),
    # Whether an exception leaves the block.
    st.booleans(),
)


class Stop(Exception):
    pass


def walk(blocks: list[Any], seen: list[Any]) -> None:
    """Enter the blocks, one in the other, and note what holds inside of each and after it."""

    def note() -> None:
        weight = nn.Linear(2, 2).weight
        found = [X @ weight, F.linear(X, weight), torch.tensordot(X, weight, 1), (X @ X).exp(), X @ X + X]
        seen.append((state(), [value.dtype for value in found]))

    if not blocks:
        return
    (make, options, fails), *others = blocks
    try:
        with make("cpu", **options):
            note()
            walk(others, seen)
            note()
            if fails:
                raise Stop
    except Stop:
        pass
    note()


@pytest.mark.full
@given(st.lists(BLOCKS, min_size=1, max_size=4))
def test_nested_in_any_way_the_innermost_block_decides(blocks: list[Any]) -> None:
    mixed: list[Any] = []
    walk([(MAKERS[name], options, fails) for name, options, fails in blocks], mixed)
    pure: list[Any] = []
    walk([(torch.autocast, options, fails) for _, options, fails in blocks], pure)
    assert mixed == pure


@both
def test_a_block_for_another_device_changes_nothing_here(make: Callable[..., Any]) -> None:
    """As in a model that turns autocast off for CUDA and is run on a CPU."""
    with make("cpu", BF16), torch.autocast("cuda", enabled=False):
        assert (X @ X).dtype == BF16


@both
def test_a_part_in_fp32(make: Callable[..., Any]) -> None:
    """As rotary embeddings are computed."""
    angles = torch.tensor([[1000.0]]), torch.tensor([[1.001]])
    with make("cpu", BF16):
        rounded = angles[0] @ angles[1]
        with torch.autocast("cpu", enabled=False):
            exact = angles[0].float() @ angles[1].float()
    assert (rounded.item(), exact.item()) == (1000.0, pytest.approx(1001.0))


def test_a_thread_that_restores_the_state_is_cast() -> None:
    """As `nn.DataParallel` starts its replicas."""
    for make in MAKERS.values():
        found: list[Any] = []
        with make("cpu", BF16):
            enabled, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")

            def replica(found: list[Any], enabled: bool, dtype: torch.dtype) -> None:
                with torch.autocast("cpu", dtype, enabled=enabled):
                    found.append((X @ X).dtype)

            thread = threading.Thread(target=replica, args=(found, enabled, dtype))
            thread.start()
            thread.join()
        assert found == [BF16]


# --- functions with formulas of their own ---


class Product(torch.autograd.Function):
    """A product that wants its inputs in one dtype, in both directions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        assert not torch.is_autocast_enabled("cpu") or ctx is None
        ctx.save_for_backward(x, weight)
        return x.mm(weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        assert not torch.is_autocast_enabled("cpu")
        return grad.mm(weight.t()), x.t().mm(grad)


def custom(cast_inputs: torch.dtype | None) -> Any:
    class Custom(Product):
        if cast_inputs is None:

            @staticmethod
            @torch.amp.custom_fwd(device_type="cpu")
            def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
                ctx.save_for_backward(x, weight)
                return x.mm(weight)

            @staticmethod
            @torch.amp.custom_bwd(device_type="cpu")
            def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
                x, weight = ctx.saved_tensors
                # Whatever surrounds the backward pass, it is that of the forward pass.
                assert torch.is_autocast_enabled("cpu")
                return grad.mm(weight.t()), x.t().mm(grad)
        else:
            forward = staticmethod(
                torch.amp.custom_fwd(Product.forward, device_type="cpu", cast_inputs=cast_inputs)
            )
            backward = staticmethod(torch.amp.custom_bwd(Product.backward, device_type="cpu"))

    return Custom


@pytest.mark.parametrize("cast_inputs", [None, FP32, FP16])
@pytest.mark.parametrize("inside", [False, True])
def test_a_function_with_its_own_backward_pass(cast_inputs: torch.dtype | None, inside: bool) -> None:
    found = []
    for make in MAKERS.values():
        torch.manual_seed(0)
        x, weight = torch.randn(3, 4), nn.Parameter(torch.randn(4, 2))
        with ExitStack() as stack:
            stack.enter_context(make("cpu", BF16))
            y = custom(cast_inputs).apply(x, weight)
            if not inside:
                stack.close()
            y.float().square().sum().backward()
        found.append((y, weight.grad))
    assert found[0][0].dtype == found[1][0].dtype == (cast_inputs or BF16)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


# --- PyTorch's checkpoint ---


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(F.gelu(self.up(self.norm(x)))).softmax(-1)
        return y @ self.up.weight.t()


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("around", [True, False])
def test_torchs_checkpoint_computes_again_as_it_computed(reentrant: bool, around: bool) -> None:
    """The context is around the checkpoint, or inside of it. In FP32 the gradients would be others."""
    found = []
    for make in MAKERS.values():
        for again in (True, False):
            torch.manual_seed(0)
            model, x = Layers(), torch.randn(5, 16, requires_grad=True)
            inner = model if around else make("cpu", BF16)(model.forward)
            with make("cpu", BF16) if around else ExitStack():
                y = checkpoint(inner, x, use_reentrant=reentrant) if again else inner(x)
            y.float().square().sum().backward()
            found.append([x.grad, *(p.grad for p in model.parameters())])
    for other in found[1:]:
        # Without a checkpoint a weight that is used twice is cast once for both uses; so it is in both runs.
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_a_backward_pass_inside_computes_a_checkpoint_again_as_it_computed() -> None:
    found = []
    for inside in (True, False):
        torch.manual_seed(0)
        model, x = Layers(), torch.randn(5, 16, requires_grad=True)
        with ExitStack() as stack:
            stack.enter_context(autocast("cpu", BF16))
            loss = checkpoint(model, x, use_reentrant=True).float().square().sum()
            if not inside:
                stack.close()
            loss.backward()
        found.append([x.grad, *(p.grad for p in model.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


# --- recurrent layers ---


def packed(x: Tensor) -> Any:
    return nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 3]))


RECURRENT: dict[str, tuple[Callable[[], nn.Module], Callable[[Tensor], Any]]] = {
    "lstm": (lambda: nn.LSTM(8, 8), lambda x: x),
    "lstm, two directions": (lambda: nn.LSTM(8, 8, num_layers=2, bidirectional=True), lambda x: x),
    "lstm, batch first": (lambda: nn.LSTM(8, 8, batch_first=True), lambda x: x),
    "lstm, packed": (lambda: nn.LSTM(8, 8), packed),
    "lstm, projected": (lambda: nn.LSTM(8, 8, proj_size=4), lambda x: x),
    "gru": (lambda: nn.GRU(8, 8), lambda x: x),
    "gru, packed": (lambda: nn.GRU(8, 8), packed),
    "rnn": (lambda: nn.RNN(8, 8), lambda x: x),
    "lstm cell": (lambda: nn.LSTMCell(8, 8), lambda x: x[0]),
    "gru cell": (lambda: nn.GRUCell(8, 8), lambda x: x[0]),
}


def values_of(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    return [value for each in result if each is not None for value in values_of(each)]


@pytest.mark.parametrize("name", RECURRENT)
@pytest.mark.parametrize("training", [True, False])
def test_recurrent_layers(name: str, training: bool) -> None:
    build, prepare = RECURRENT[name]
    found: list[Any] = []
    for make in MAKERS.values():
        torch.manual_seed(0)
        layer, x = build().train(training), torch.randn(5, 2, 8)
        try:
            with torch.set_grad_enabled(training), make("cpu", BF16), warnings.catch_warnings():
                # Some of these layers warn that they take a slower way.
                warnings.simplefilter("ignore")
                values = [v for v in values_of(layer(prepare(x))) if v.is_floating_point()]
            if training:
                sum(value.float().sum() for value in values).backward()  # type: ignore[union-attr]
        except RuntimeError as error:
            found.append(type(error))
            continue
        gradients = [p.grad for p in layer.parameters() if p.grad is not None]
        found.append([(value.dtype, value.tolist()) for value in (*values, *gradients)])
    assert found[0] == found[1]
    # A processor may have no kernel for an LSTM in BF16.
    assert isinstance(found[0], list) or name.startswith("lstm")


# --- what else a program does inside ---


@both
def test_inputs_that_are_no_numbers_of_32_bits_stay(make: Callable[..., Any]) -> None:
    with make("cpu", BF16):
        assert (X.double() @ X.double()).dtype == torch.float64
        assert torch.mm(X.long(), X.long()).dtype == torch.int64
        assert F.layer_norm(X.double(), (2,)).dtype == torch.float64


@both
def test_gradients_have_the_dtype_of_their_parameters(make: Callable[..., Any]) -> None:
    for inside in (True, False):
        weight = nn.Parameter(torch.ones(2, 2))
        with ExitStack() as stack:
            stack.enter_context(make("cpu", BF16))
            (gradient,) = torch.autograd.grad((X @ weight).sum(), weight)
            loss = (X @ weight).float().sum()
            if not inside:
                stack.close()
            loss.backward()
        assert weight.grad is not None
        assert gradient.dtype == weight.grad.dtype == FP32


def test_a_penalty_on_gradients_trains_as_in_torch() -> None:
    """A second backward pass through the first, as programs that penalize gradients do."""
    found = []
    for make in MAKERS.values():
        torch.manual_seed(0)
        layer, x = nn.Linear(4, 4), torch.randn(3, 4)
        with make("cpu", BF16):
            loss = layer(x).float().square().mean()
        gradients = torch.autograd.grad(loss, list(layer.parameters()), create_graph=True)
        with make("cpu", BF16):
            penalty = sum(gradient.square().sum() for gradient in gradients)
            total = loss + penalty
        total.backward()
        found.append([p.grad for p in layer.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))  # type: ignore[arg-type]


def test_parameters_of_a_gru_are_read_anew_after_a_step() -> None:
    """PyTorch casts them, since the mode does not see inside; and its own context would keep the old cast."""
    for fused in (True, False):
        losses = []
        for entered_anew in (True, False):
            torch.manual_seed(0)
            layer, x = nn.GRU(4, 4), torch.randn(3, 2, 4)
            optimizer = torch.optim.SGD(layer.parameters(), lr=1.0, fused=fused)
            with ExitStack() if entered_anew else autocast("cpu", BF16):
                for _ in range(3):
                    with autocast("cpu", BF16):
                        loss = layer(x)[0].float().sum()
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    losses.append(loss.item())
        assert losses[:3] == losses[3:]
        assert len(set(losses)) == 3


def test_a_dtype_that_cannot_be_is_refused_where_torch_only_warns() -> None:
    with pytest.warns(UserWarning, match="not supported"), torch.autocast("cpu", FP32):
        assert (X @ X).dtype == FP32
    with pytest.raises(ValueError, match=r"^autocast cannot run in torch.float32; choose"):
        autocast("cpu", FP32)
