"""A recomputation that differs is refused, and the message says which tensor, how, and what to do."""

from __future__ import annotations

import importlib.util
import itertools
import re
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from shardbook.checkpointing.determinism import (
    LEVELS,
    MACHINERY,
    ODD,
    PIECE,
    CheckpointError,
    Log,
    Operation,
    Record,
    compare,
    digest,
    mix,
    part,
    place_of,
    shown,
)
from shardbook.checkpointing.reentrant import checkpoint_reentrant
from shardbook.checkpointing.saved_tensors import checkpoint_saved

ADVICE = (
    "Let the function do the same in both runs: give it as an argument whatever changes in between, such as "
    "a global, an attribute or the variable of a loop, and call backward before weights or the training mode "
    "are changed"
)
HINT = '; determinism_check="debug" finds the operation where the runs diverge.'


class Switch:
    """Something that a program changes between the forward pass and the backward pass."""

    on = True


def mismatch(function: Callable[[Tensor], Tensor], level: str = "default", early_stop: bool = True) -> str:
    """What is said about a function that reads the switch; without line numbers. Empty if nothing is."""
    Switch.on = True
    x = torch.arange(12.0).view(3, 4).requires_grad_()
    y = checkpoint_saved(function, x, determinism_check=level, early_stop=early_stop)
    Switch.on = False
    try:
        y.sum().backward()
    except CheckpointError as error:
        return re.sub(r"py:\d+", "py:N", str(error))
    finally:
        Switch.on = True
    return ""


def smaller(x: Tensor) -> Tensor:
    y = x.sin()
    z = y if Switch.on else y[:2]
    return (z.t() @ z).exp() + z.sum()


def test_the_message_names_the_tensor_and_both_its_forms_and_ends_with_what_to_do() -> None:
    assert mismatch(lambda x: smaller(x).tanh()) == "\n".join(
        [
            "the recomputation does not do what the forward pass did.",
            "Saved tensor 1 is the first that differs:",
            "  forward pass: shape (3, 4), torch.float32, cpu, version 0, "
            "saved at test_determinism.py:N `return (z.t() @ z).exp() + z.sum()`",
            "  recomputation: shape (2, 4), torch.float32, cpu, version 0, "
            "saved at test_determinism.py:N `return (z.t() @ z).exp() + z.sum()`",
            "Others that differ: 2.",
            ADVICE + HINT,
        ]
    )


def fewer(x: Tensor) -> Tensor:
    y = x.sin()
    if Switch.on:
        y = y.exp()
    return y * 2


def more(x: Tensor) -> Tensor:
    y = x.sin()
    if not Switch.on:
        y = y.exp()
    return y * 2


@pytest.mark.parametrize("level", ["default", "none"])
def test_another_number_of_tensors_is_told(level: str) -> None:
    said = mismatch(fewer, level).splitlines()
    assert said[1:3] == [
        "The forward pass saved 2 tensors, it saved 1.",
        "Saved tensor 1 is the first that differs:",
    ]
    assert said[4] == "  recomputation: none, it had saved all of its tensors"
    line = "a tensor of which nothing was recorded"
    if level == "default":
        line = "shape (3, 4), torch.float32, cpu, version 0, saved at test_determinism.py:N `y = y.exp()`"
    assert said[3] == f"  forward pass: {line}"
    # What would follow the last tensor that is wanted does not run, unless it is asked for.
    assert mismatch(more, level) == ""
    assert "The forward pass saved 1 tensors, it saved 2." in mismatch(more, level, early_stop=False)


def test_where_the_runs_part_is_shown_even_if_the_kinds_agree() -> None:
    def function(x: Tensor) -> Tensor:
        y = x.sin()
        y = y.exp() if Switch.on else y.cos().cos()
        return y.tanh()

    said = mismatch(function, early_stop=False).splitlines()
    assert said[1] == "The forward pass saved 3 tensors, it saved 4."
    # The exponential and the first cosine stand in one line and save tensors of one kind.
    assert said[2] == "Saved tensor 1 is the first that differs:"
    assert said[3].endswith("`y = y.exp() if Switch.on else y.cos().cos()`")

    def elsewhere(x: Tensor) -> Tensor:
        y = x.sin()
        if Switch.on:
            return y.exp()
        y = y.cos()
        return y.cos()

    said = mismatch(elsewhere, early_stop=False).splitlines()
    assert said[2] == "Saved tensor 1 is the first that differs:"
    assert said[3].endswith("`return y.exp()`")
    assert said[4].endswith("`y = y.cos()`")


def test_a_weight_that_changed_is_found_where_torch_finds_nothing() -> None:
    net, x = nn.Linear(4, 4), torch.ones(2, 4, requires_grad=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def loss(run: Callable[..., Tensor]) -> Tensor:
        net.zero_grad()
        net.weight.grad = torch.ones(4, 4)
        y = run(lambda x: net(net(x)).sin(), x)
        optimizer.step()
        return y.sum()

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss(lambda function, x: function(x)).backward()
    said = (
        r"tensor 1 is the first that was changed in place, between the runs or by the function:\n"
        r".*version 2,.*\n.*version 3,"
    )
    with pytest.raises(CheckpointError, match=said):
        loss(checkpoint_saved).backward()
    loss(lambda f, x: checkpoint_saved(f, x, determinism_check="none")).backward()
    loss(lambda f, x: torch.utils.checkpoint.checkpoint(f, x, use_reentrant=False)).backward()


ANOTHER = r"Saved tensor \d is the first that was saved of another parameter:"


def layers() -> list[nn.Linear]:
    torch.manual_seed(0)
    return [nn.Linear(4, 4, bias=False) for _ in range(3)]


def test_the_variable_of_a_loop_that_names_another_layer_in_the_second_run_is_found() -> None:
    def late(run: Callable[..., Tensor]) -> Tensor:
        h = torch.ones(2, 4, requires_grad=True)
        for layer in layers():
            h = run(lambda h: layer(h).tanh(), h)  # noqa: B023
        return h.sum()

    late(lambda function, x: function(x)).backward()
    with pytest.raises(CheckpointError, match=ANOTHER):
        late(checkpoint_saved).backward()
    late(lambda f, x: torch.utils.checkpoint.checkpoint(f, x, use_reentrant=False)).backward()

    def bound(h: Tensor) -> Tensor:
        for layer in layers():
            h = checkpoint_saved(lambda h, layer=layer: layer(h).tanh(), h)
        return h.sum()

    bound(torch.ones(2, 4, requires_grad=True)).backward()


def test_parameters_that_were_swapped_or_replaced_are_found() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layers()[0]

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = checkpoint_saved(lambda x: self.layer(x).sin(), x)
            return y

    model, x = Model(), torch.ones(2, 4, requires_grad=True)
    fast = {"layer.weight": model.layer.weight * 2}
    y = torch.func.functional_call(model, fast, x)
    with pytest.raises(CheckpointError, match=ANOTHER):
        y.sum().backward()
    y = model(x)
    model.layer.weight = nn.Parameter(model.layer.weight.detach() * 2)
    with pytest.raises(CheckpointError, match=ANOTHER):
        y.sum().backward()


def test_a_parameter_that_is_an_argument_may_come_back_as_a_tensor() -> None:
    weight = nn.Parameter(torch.ones(3, 3))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t):
        y = checkpoint_saved(lambda x, w: (x @ w).sin(), torch.ones(2, 3), weight)
    y.sum().backward()
    assert weight.grad is not None


def grown(change: Tensor, run: Callable[[], Tensor]) -> Callable[[], None]:
    """The backward pass of a function one of whose parameters grows after the forward pass."""
    y = run()
    with torch.no_grad():
        change.add_(1)
    return y.sum().backward


@pytest.mark.parametrize("name", ["0.bias", "0.weight", "1.weight", "2.bias"])
@pytest.mark.parametrize("level", ["default", "debug"])
def test_a_changed_parameter_of_a_module_is_named_though_autograd_has_not_saved_it(
    name: str, level: str
) -> None:
    net, x = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4)), torch.ones(2, 4)
    named = rf"^parameter {name} of a checkpointed module changed in place between the forward pass"
    for function in (net, net.forward, partial(net), partial(apply, [net])):
        run = partial(checkpoint_saved, function, x, determinism_check=level)
        with pytest.raises(CheckpointError, match=named):
            grown(net.get_parameter(name), run)()
    grown(net[2].bias, lambda: checkpoint_saved(net, x, determinism_check="none"))()


def test_pytorch_does_not_count_the_writes_of_a_fused_optimizer() -> None:
    net, x = nn.Linear(4, 4), torch.ones(2, 4)
    y = checkpoint_saved(net, x)
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.AdamW(net.parameters(), fused=True).step()
    y.sum().backward()


def apply(modules: list[nn.Module], x: Tensor) -> Tensor:
    for module in modules:
        x = module(x)
    return x


def test_what_a_method_does_not_use_may_change() -> None:
    """An optimizer may step within the backward pass, as soon as the gradient of one part is there."""

    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = layers()[:2]

        def first(self, x: Tensor) -> Tensor:
            return self.one(x).sin()

        def second(self, x: Tensor) -> Tensor:
            return self.two(x).sin()

    net = Halves()
    y = checkpoint_saved(net.second, checkpoint_saved(net.first, torch.ones(2, 4)))
    with torch.no_grad():
        net.two.weight.register_post_accumulate_grad_hook(lambda weight: weight.sub_(1))
    y.sum().backward()
    assert net.one.weight.grad is not None


class Projecting(nn.Module):
    """Clips its weight in each run. The second run finds it clipped."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((3, 3), 2.0))
        self.bias = nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight.clamp_(-1, 1)
            self.bias.clamp_(-1, 1)
        return (x @ self.weight + self.bias).sin()


def test_a_weight_that_the_function_itself_projects_differs_in_its_version_alone() -> None:
    x = torch.ones(2, 3, requires_grad=True)
    said = "tensor 0 is the first that was changed in place, between the runs or by the function:"
    with pytest.raises(CheckpointError, match=said):
        checkpoint_saved(Projecting(), x).sum().backward()
    expected = torch.autograd.grad(Projecting()(x).sum(), x)[0]
    for level in ("none", "debug"):
        # Each run is compared with the one before it.
        y = checkpoint_saved(Projecting(), x, determinism_check=level).sum()
        for _ in range(3):
            assert torch.equal(torch.autograd.grad(y, x, retain_graph=True)[0], expected)


def test_a_tensor_that_was_brought_back_is_no_change() -> None:
    x = torch.ones(3, requires_grad=True) * 1
    x.mul_(2)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t):
        y = checkpoint_saved(lambda x: x.sin(), x)
    y.sum().backward()


def other_value(x: Tensor) -> Tensor:
    factor = 1.0 if Switch.on else 2.0
    return ((x * factor).sin() + 1).exp()


def test_another_value_of_the_same_kind_needs_the_debug_level() -> None:
    assert mismatch(other_value) == ""
    said = re.sub(r"\b[0-9a-f]{8}\b", "DIGEST", mismatch(other_value, "debug"))
    text = "`return ((x * factor).sin() + 1).exp()`"
    kind = "shape (3, 4), torch.float32, cpu, version 0, digest DIGEST, saved by"
    assert said == "\n".join(
        [
            "the recomputation does not do what the forward pass did.",
            "Saved tensor 0 is the first that differs:",
            f"  forward pass: {kind} torch.Tensor.sin at test_determinism.py:N {text}",
            f"  recomputation: {kind} torch.Tensor.sin at test_determinism.py:N {text}",
            "Others that differ: 1.",
            "The runs diverge here:",
            f"  0 in the forward pass: torch.Tensor.mul gave (3, 4) DIGEST at test_determinism.py:N {text}",
            f"  0 in the recomputation: torch.Tensor.mul gave (3, 4) DIGEST at test_determinism.py:N {text}",
            f"{ADVICE}.",
        ]
    )


def test_the_logs_are_lined_up_where_they_part() -> None:
    def function(x: Tensor) -> Tensor:
        y = F.gelu(x).sin()
        y = y * torch.empty(3, 4).fill_(2)
        return (y.exp() if Switch.on else y.cos()).tanh()

    said = mismatch(function, "debug")
    lines = [line for line in said.splitlines() if re.match(r"  \d", line)]
    names = [re.sub(r" gave.*", "", line).strip() for line in lines]
    assert names == [
        "3 in both runs: torch.Tensor.fill_",
        "4 in both runs: torch.Tensor.mul",
        "5 in the forward pass: torch.Tensor.exp",
        "5 in the recomputation: torch.Tensor.cos",
    ]


def test_an_error_of_the_second_run_is_explained_by_what_it_has_saved_before() -> None:
    def other(x: Tensor) -> Tensor:
        y = (x if Switch.on else x[:2]).sin()
        # Tensors of these shapes cannot be added.
        return (y + x).exp()

    assert mismatch(other).splitlines()[1] == "Saved tensor 0 is the first that differs:"

    def fails(x: Tensor) -> Tensor:
        y = x.sin()
        if not Switch.on:
            raise ArithmeticError("of its own")
        return y.exp()

    with pytest.raises(ArithmeticError, match="of its own"):
        mismatch(fails)


def test_random_numbers_that_are_not_drawn_again_are_found_at_the_dropout() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Tanh())
    x = torch.ones(8, 4, requires_grad=True)
    torch.manual_seed(0)
    y = checkpoint_saved(net, x, preserve_rng_state=False, determinism_check="debug")
    with pytest.raises(CheckpointError, match=r"1 in the forward pass: torch\.nn\.functional\.dropout gave"):
        y.sum().backward()
    checkpoint_saved(net, x, determinism_check="debug").sum().backward()


@pytest.mark.parametrize("early_stop", [True, False])
def test_a_faithful_function_passes_every_level(early_stop: bool) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Embedding(9, 8), nn.LayerNorm(8), nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2), nn.GELU()
    )
    tokens = torch.arange(9).view(3, 3)
    found = []
    for level in LEVELS:
        net.zero_grad()
        torch.manual_seed(1)
        y = checkpoint_saved(net, tokens, determinism_check=level, early_stop=early_stop)
        y.square().sum().backward()
        found.append([parameter.grad for parameter in net.parameters()])
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


def test_running_statistics_do_differ_without_harm() -> None:
    net, x = nn.BatchNorm1d(3), torch.randn(4, 3, requires_grad=True)
    for level in ("default", "none"):
        checkpoint_saved(net, x, determinism_check=level).sum().backward()
    # Without a line of the user's, the line of PyTorch is shown.
    said = r"shape \(3,\).*saved by torch\.nn\.functional\.batch_norm at functional\.py"
    with pytest.raises(CheckpointError, match=said):
        checkpoint_saved(net, x, determinism_check="debug").sum().backward()


def test_the_slopes_of_rrelu_are_drawn_before_the_second_run_ends() -> None:
    """Autograd saves their memory before they are drawn, and it is the last tensor that a gradient needs."""
    plain, x = nn.Sequential(nn.Linear(3, 4), nn.RReLU()), torch.randn(5, 3, requires_grad=True)
    kinds: list[Callable[[Tensor], Tensor]] = [plain, lambda x: torch.rrelu(plain[0](x), training=True)]
    for function in kinds:
        for level in ("none", "default", "debug"):
            found = []
            again = partial(checkpoint_saved, function, determinism_check=level)
            for run in (function, again):
                torch.manual_seed(0)
                (gradient,) = torch.autograd.grad(run(x).square().sum(), x)
                found.append(gradient)
            assert torch.equal(*found), level


def test_an_lstm_saves_scratch_memory() -> None:
    kinds = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kinds.append(t.dtype) or t.detach(), lambda t: t):
        nn.LSTM(3, 3)(torch.ones(2, 3))
    assert torch.uint8 in kinds


def test_a_level_that_does_not_exist_is_refused() -> None:
    said = "determinism_check='all' is not a level; choose one of 'default', 'none', 'debug'"
    with pytest.raises(ValueError, match=said):
        checkpoint_saved(torch.sin, torch.ones(1), determinism_check="all")


class OfMine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x if Switch.on else x[:1])
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


@pytest.mark.parametrize("module", sorted(MACHINERY))
def test_what_counts_as_the_checkpoint_s_own_is_a_module_of_the_book(module: str) -> None:
    assert importlib.util.find_spec(f"shardbook.{module}") is not None


def test_a_place_is_the_users_line_wherever_the_tensor_is_saved() -> None:
    def mine(x: Tensor) -> Tensor:
        y: Tensor = OfMine.apply(x)
        return y.tanh()

    assert "saved at test_determinism.py:N `y: Tensor = OfMine.apply(x)`" in mismatch(mine)

    def inside(x: Tensor) -> Tensor:
        y = x if Switch.on else x[:1]
        return checkpoint_saved(torch.sin, y * 1).tanh()

    assert "saved at test_determinism.py:N `return checkpoint_saved(torch.sin, y * 1).tanh()`" in mismatch(
        inside
    )

    def reentrant(x: Tensor) -> Tensor:
        y = x if Switch.on else x[:1]
        return checkpoint_reentrant(torch.sin, y * 1).tanh()

    assert "saved at test_determinism.py:N `return checkpoint_reentrant(torch.sin, y * 1).tanh()`" in (
        mismatch(reentrant)
    )

    class Layer(nn.Linear):
        def __call__(self, x: Tensor) -> Tensor:
            return super().__call__(x if Switch.on else x[:1])

    # Nothing of a checkpointed module of PyTorch is the user's.
    layer = nn.Sequential(nn.Flatten(0, -1), nn.Tanh())
    x = torch.ones(3, requires_grad=True) * 1
    y = checkpoint_saved(layer, x)
    layer.append(nn.Tanh())
    layer[0] = nn.Unflatten(0, (3, 1))
    with pytest.raises(CheckpointError, match=r"saved at activation\.py:\d+ `return torch\.tanh\(input\)`"):
        y.sum().backward()


values = st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=9)


@given(values=values, others=values)
@example(values=[1.0], others=[1.0, 0.0])
@example(values=[0.0, 0.0], others=[0.0])
def test_digests_tell_any_two_tensors_apart_by_their_bits(values: list[float], others: list[float]) -> None:
    one, other = torch.tensor(values), torch.tensor(others)
    same = one.view(torch.uint8).tolist() == other.view(torch.uint8).tolist()
    assert (digest(one) == digest(other)) is same
    assert digest(one) == digest(one.clone())


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(True),
        torch.empty(0),
        torch.ones(2, 3, dtype=torch.bfloat16).t(),
        torch.ones(2, dtype=torch.complex64).conj(),
        torch.eye(3).to_sparse(),
        torch.ones(2, 3, dtype=torch.float64).expand(4, 2, 3),
        torch.ones(7, dtype=torch.uint8)[1:],
        torch.ones(3, 4)[:, 1:2][:1],
    ],
    ids=str,
)
def test_every_kind_of_tensor_has_a_digest(tensor: Tensor) -> None:
    assert digest(tensor) == digest(tensor.clone())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_changes_of_the_sign_do_not_cancel_each_other(dtype: torch.dtype) -> None:
    found = set()
    for signs in itertools.product([1.0, -1.0], repeat=8):
        found.add(digest(torch.arange(1.0, 9.0, dtype=dtype) * torch.tensor(signs, dtype=dtype)))
    assert len(found) == 2**8


@given(value=st.integers(-(2**63), 2**63 - 1))
def test_the_mixing_can_be_undone(value: int) -> None:
    mixed = int(mix(torch.tensor([value]))) % 2**64
    for shift in (29, 32):
        # Neither shift is by less than a third of the bits, so two rounds bring back all of them.
        mixed ^= (mixed >> shift) ^ (mixed >> 2 * shift)
        mixed = mixed * pow(ODD, -1, 2**64) % 2**64
    assert mixed == value % 2**64


def test_a_value_that_moves_to_the_next_place_changes_the_digest() -> None:
    assert digest(torch.tensor([5, 5])) != digest(torch.tensor([6, 4]))


def test_the_place_of_a_value_counts_in_every_piece_that_is_read() -> None:
    one = torch.zeros(PIECE // 4 + 100)
    found = set()
    for index in (0, 1, PIECE // 4 - 1, PIECE // 4, PIECE // 4 + 1, -1):
        other = one.clone()
        other[index] = 1
        found.add(digest(other))
    assert len(found | {digest(one)}) == 7


def test_a_digest_takes_little_memory_however_large_the_tensor_is() -> None:
    made: list[weakref.ref[Any]] = []
    peak = 0

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal peak
            result = func(*args, **(kwargs or {}))
            if isinstance(result, Tensor) and result.untyped_storage().data_ptr() != tensor.data_ptr():
                made.append(weakref.ref(result.untyped_storage()))
            alive = {storage._cdata: storage for ref in made if (storage := ref()) is not None}
            peak = max(peak, sum(storage.nbytes() for storage in alive.values()))
            return result

    tensor = torch.randn(4 * PIECE)
    with Count():
        digest(tensor)
    assert PIECE < peak < 8 * PIECE < tensor.nbytes


def test_a_record_counts_what_it_does_not_look_at() -> None:
    forward, again = Record("default"), Record("default")
    for record, tensors in ((forward, [torch.ones(2), torch.ones(2)]), (again, [None, torch.ones(2)])):
        for tensor in tensors:
            record.note(tensor)
    compare(forward, again, needed=2, exact=True)
    with pytest.raises(CheckpointError):
        compare(forward, again, needed=3, exact=False)


def test_one_log_may_be_longer() -> None:
    x = torch.ones(2)

    def log(*names: str) -> list[Operation]:
        with Log() as found:
            for name in names:
                getattr(x, name)()
        return found.operations

    assert list(part(log("sin", "cos"), log("sin"))) == []
    longer = list(part(log("sin"), log("sin", "cos")))
    assert longer[-2].endswith("in the forward pass: nothing, it had ended")
    assert "torch.Tensor.cos" in longer[-1]


def test_a_place_without_a_text_is_shown_by_its_number() -> None:
    code = compile("import sys\nframe = sys._getframe()", "made up", "exec")
    names: dict[str, Any] = {"__name__": "made_up"}
    exec(code, names)
    assert shown(place_of(names["frame"])) == "made up:2"


def test_a_part_that_nobody_wants_may_differ() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        unused = (x if Switch.on else x[:1]).sin()
        return x.exp(), unused.cos()

    Switch.on = True
    x = torch.ones(3, requires_grad=True)
    y, unused = checkpoint_saved(function, x, early_stop=False)
    del unused
    Switch.on = False
    try:
        y.sum().backward()
    finally:
        Switch.on = True
    assert torch.equal(x.grad, y)
