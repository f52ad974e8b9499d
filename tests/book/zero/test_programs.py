"""What was once wrong in the sharded layer, or not refused; each as a test that failed before."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint

import ranks
from book.live import LiveStorages
from book.toys import assert_equal, batch, chain, error, plain_gradients, reference_step, whole_gradients
from book.zero.test_hooks import assert_all_sharded, compare

WIDTH, LAYERS = 64, 8


def linears(count: int = 3, width: int = 4) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(width, width) for _ in range(count)])


def data(rank: int, width: int = 4) -> Tensor:
    return torch.full((2, width), 0.1 * (rank + 1))


class InARow(nn.Sequential):
    """Uses its first layer twice, one time right after the other."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self[1](self[0](self[0](x)))
        return y


def a_layer_used_twice_in_a_row_by_two_losses() -> None:
    """The second pass reduces the layer after its first use; its second use must not write into that."""
    from shardbook import shard

    def build() -> nn.Module:
        torch.manual_seed(0)
        return InARow(nn.Linear(4, 4), nn.Linear(4, 4))

    def loss(model: nn.Module, rank: int, step: int) -> Tensor:
        x = data(rank + step).requires_grad_()
        return model(x).square().sum()

    rank, world_size = dist.get_rank(), dist.get_world_size()
    plain, sharded = build(), shard(build())
    losses = [loss(sharded, rank, step) for step in range(2)]
    reference_step(
        plain,
        [[partial(loss, plain, other, step) for other in range(world_size)] for step in range(2)],
    )
    for each in losses:
        each.backward()
    found, expected = whole_gradients(sharded), plain_gradients(plain)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name])


@dataclass
class Result:
    hidden: Tensor
    name: str = "result"


class GivesAnObject(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Result:
        return Result(self.linear(x))


class ReadsAnObject(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = GivesAnObject(), GivesAnObject()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(self.first(x).hidden).hidden
        return y


def outputs_in_an_object() -> None:
    compare(ReadsAnObject, lambda model, rank: model(data(rank)).square().sum(), units=GivesAnObject)


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lstm = nn.LSTM(4, 3)
        self.second = nn.LSTM(3, 3)

    def forward(self, x: PackedSequence) -> Tensor:
        y: Tensor = pad_packed_sequence(self.second(self.lstm(x)[0])[0])[0]
        return y


def packed_sequences() -> None:
    def loss(model: nn.Module, rank: int) -> Tensor:
        x = torch.full((3, 2, 4), 0.3 * (rank + 1))
        return model(pack_padded_sequence(x, torch.tensor([3, 2]))).square().sum()  # type: ignore[no-any-return]

    compare(Packed, loss, units=nn.LSTM)


class Embeds(nn.Sequential):
    """Has a second way in, that does not pass through `forward`."""

    def embed(self, x: Tensor) -> Tensor:
        y: Tensor = self[0](x)
        return y


def no_stale_weights_after_a_method_other_than_forward() -> None:
    from shardbook import shard

    def build() -> nn.Sequential:
        torch.manual_seed(0)
        return Embeds(nn.Linear(4, 4), nn.Linear(4, 4))

    plain, sharded = build(), shard(build())
    for model in (plain, sharded):
        with torch.no_grad():
            model.embed(data(0))  # type: ignore[operator]
            for parameter in model.parameters():
                parameter.mul_(0.5)
            y = model[1](model.embed(data(0)))  # type: ignore[operator]
        if model is plain:
            expected = y
    assert torch.equal(y, expected)


def no_stale_weights_in_a_layer_called_alone_after_a_failed_backward() -> None:
    from shardbook import shard

    def fail(gradient: Tensor) -> None:
        raise ArithmeticError("in backward")

    plain, sharded = linears(), shard(linears())
    parameters = [*plain.parameters(), *sharded.parameters()]  # as an optimizer holds them
    x = data(0).requires_grad_()
    y = sharded[0](x)
    y.register_hook(fail)
    with pytest.raises(ArithmeticError):
        sharded[2](sharded[1](y)).sum().backward()
    with torch.no_grad():
        for parameter in parameters:
            parameter.mul_(0.5)
        for mine, theirs in zip(sharded, plain, strict=True):
            assert torch.equal(mine(x), theirs(x))
    assert_all_sharded(sharded)
    state = sharded.state_dict()
    assert_equal(dict(state), dict(plain.state_dict()))


def no_stale_weights_in_a_saved_model_after_a_failed_backward() -> None:
    from shardbook import shard

    def fail(gradient: Tensor) -> None:
        raise ArithmeticError("in backward")

    plain, sharded = linears(), shard(linears())
    parameters = [*plain.parameters(), *sharded.parameters()]  # as an optimizer holds them
    z = sharded[0](data(0).requires_grad_())
    z.register_hook(fail)
    with pytest.raises(ArithmeticError):
        z.sum().backward()
    with torch.no_grad():
        for parameter in parameters:
            parameter.mul_(0.5)
    assert_equal(dict(sharded.state_dict()), dict(plain.state_dict()))


class Checkpointed(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = checkpoint(layer, x, use_reentrant=False)
        return x


def recomputation_gathers_nothing_in_vain() -> None:
    """Checkpointed layer by layer, each unit is gathered twice a step, and two units are whole at most."""
    from shardbook import shard
    from shardbook.foundations.collectives import ledger

    model = shard(Checkpointed(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]))
    unit = (WIDTH * WIDTH + WIDTH) * 4
    stored: list[int] = []
    with LiveStorages() as live, ledger() as book:
        for parameter in model.parameters():
            live.note(parameter)
        x = torch.ones(1, WIDTH, requires_grad=True)
        y = model(x)
        x.register_hook(lambda _: stored.append(live.bytes()))
        y.sum().backward()
    assert sum(call.collective == "all-gather" for call in book.calls) == 2 * LAYERS
    # Shards, means, two units whole, two vectors of gradients, what an exchange receives, activations.
    assert stored[0] <= LAYERS * unit + 5 * unit


class Segments(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        half = len(self) // 2
        for part in (self[:half], self[half:]):
            x = checkpoint(nn.Sequential.forward, part, x, use_reentrant=False)
        return x


def gradients_leave_while_a_checkpointed_segment_runs_backward() -> None:
    from shardbook import shard

    def build() -> nn.Module:
        torch.manual_seed(0)
        return Segments(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])

    plain, model = build(), shard(build())
    unit = (WIDTH * WIDTH + WIDTH) * 4
    stored: list[int] = []
    rank = dist.get_rank()
    reference_step(
        plain,
        [[lambda other=other: plain(data(other, WIDTH)).square().sum() for other in range(2)]],  # type: ignore[misc]
    )
    with LiveStorages() as live:
        for parameter in model.parameters():
            live.note(parameter)
        x = data(rank, WIDTH).requires_grad_()
        y = model(x)
        x.register_hook(lambda _: stored.append(live.bytes()))
        y.square().sum().backward()
    assert stored[0] <= LAYERS * unit + 5 * unit
    assert_equal(whole_gradients(model), plain_gradients(plain))


def a_chain_of_single_layers_keeps_one_exchange_in_flight() -> None:
    from shardbook import Zero3Layer

    model = nn.Sequential(*[Zero3Layer(nn.Linear(WIDTH, WIDTH)) for _ in range(LAYERS)])
    unit = (WIDTH * WIDTH + WIDTH) * 4
    stored: list[int] = []
    with LiveStorages() as live:
        for parameter in model.parameters():
            live.note(parameter)
        x = torch.ones(1, WIDTH, requires_grad=True) * 1
        y = model(x)
        x.register_hook(lambda _: stored.append(live.bytes()))
        y.sum().backward()
    assert stored[0] <= LAYERS * unit + 4 * unit
    assert_all_sharded(model)


class Appends(nn.Module):
    """Leaves something in a list of its caller's, as a cache of keys and values does."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, cache: list[Tensor], *, more: dict[str, Any]) -> Tensor:
        y: Tensor = self.linear(x)
        cache.append(y.detach())
        more["last"] = y.detach()
        return y


def what_a_layer_leaves_in_its_arguments_reaches_the_caller() -> None:
    from shardbook import Zero3Layer

    layer = Zero3Layer(Appends())
    for x in (data(0), data(0).requires_grad_()):
        cache: list[Tensor] = [x * 2]
        more: dict[str, Any] = {}
        y = layer(x, cache, more=more)
        assert len(cache) == 2
        assert torch.equal(more["last"], y)


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.before = nn.Linear(8, 8)
        self.attention = nn.MultiheadAttention(8, 2)
        self.same: list[bool] = []
        self.attention.register_forward_pre_hook(
            lambda _, args: self.same.append(args[0] is args[1] is args[2])
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        y: Tensor = self.attention(x, x, x)[0]
        return y


def one_argument_passed_three_times_stays_one() -> None:
    """Attention computes with one product instead of three where query, key and value are one object."""
    sharded = compare(
        SelfAttention,
        lambda model, rank: model(torch.full((3, 2, 8), 0.2 * (rank + 1))).square().sum(),
        units=lambda name, module: name in ("before", "attention"),
    )
    assert sharded.same == [True]


def sparse_gradients() -> None:
    def build() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Embedding(16, 4, sparse=True), nn.Linear(4, 3))

    from shardbook import shard

    plain, sharded = build(), shard(build())
    for parameter in plain[0].parameters():  # type: ignore[index]
        assert parameter.requires_grad
    plain[0].sparse = False  # type: ignore[index]
    tokens = [torch.tensor([[1, 2, 2], [3, 1, 0]]) + rank for rank in range(2)]
    reference_step(plain, [[lambda x=x: plain(x).square().sum() for x in tokens]])  # type: ignore[misc]
    sharded(tokens[dist.get_rank()]).square().sum().backward()
    assert_equal(whole_gradients(sharded), plain_gradients(plain))


class Skips(nn.Module):
    """Uses its parameters on some ranks only."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.use = nn.Linear(4, 4), True

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x) if self.use else x * 2
        return y


def a_layer_skipped_on_one_rank_after_a_forward_without_a_backward() -> None:
    """The reduction comes late, at the end of the pass; the rank without gradients must take part, too."""

    def build() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 4), Skips(), nn.Linear(4, 4))

    def loss(model: nn.Module, rank: int) -> Tensor:
        model[1].use = True  # type: ignore[index,union-attr]
        model(data(rank))
        model[1].use = rank == 0  # type: ignore[index,union-attr]
        return model(data(rank)).square().sum()  # type: ignore[no-any-return]

    compare(build, loss)


def layers_without_parameters() -> None:
    from shardbook import Zero3Layer, shard

    x = data(0).requires_grad_()
    for model in (Zero3Layer(nn.ReLU()), shard(nn.Sequential(nn.ReLU(), nn.Identity()))):
        assert torch.equal(model(x), x)
        assert not model.state_dict()


def buffers_of_every_kind() -> None:
    from shardbook import Zero3Layer, shard

    def build(rank: int) -> nn.Module:
        model = nn.Linear(2, 2)
        model.register_buffer("whole", torch.tensor([rank, 1]))
        model.register_buffer("flag", torch.tensor(rank == 0), persistent=False)
        model.register_buffer("turns", torch.tensor([1j * rank, 1.0]))
        model.register_buffer("spread", torch.tensor([[float(rank)]]).expand(3, 2))
        return model

    for wrap in (shard, Zero3Layer):
        model = wrap(build(dist.get_rank()))
        found = {name.removeprefix("module."): value for name, value in model.named_buffers()}
        assert_equal(found, dict(build(0).named_buffers()))


class LeavesALeaf(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.outside = [torch.ones(4, requires_grad=True)]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.linear(x), self.outside[0]


def hooks_do_not_pile_up_on_a_tensor_that_is_returned_each_time() -> None:
    from shardbook import shard

    model = shard(nn.ModuleDict({"leaves": LeavesALeaf()}), units=LeavesALeaf)["leaves"]
    for _ in range(3):
        y, leaf = model(data(0))
        (y.sum() + leaf.sum()).backward()
    assert not leaf._backward_hooks


def a_sparse_output() -> None:
    class GivesSparse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.linear(x)
            return y.to_sparse()

    def build() -> nn.Module:
        return nn.ModuleDict({"gives": GivesSparse()})

    compare(
        build, lambda model, rank: model["gives"](data(rank)).to_dense().square().sum(), units=GivesSparse
    )  # type: ignore[index]


class Clamped(nn.Module):
    """Writes to its own parameter, if it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((4, 4), 5.0))
        self.writes = True

    def forward(self, x: Tensor) -> Tensor:
        if self.writes:
            with torch.no_grad():
                self.weight.clamp_(-1, 1)
        return x @ self.weight


def a_forward_pass_that_writes_to_its_parameters() -> None:
    """A write to what was gathered or cast is lost. A write to the stored parameters lasts."""
    from shardbook import Policy, shard

    policies = (None, Policy(param_dtype=torch.bfloat16), Policy(offload=True))
    for stage, policy, grad in product(range(4), policies, (True, False)):
        for build in (Clamped, partial(nn.Embedding, 8, 4, max_norm=0.1)):
            plain, model = nn.Sequential(build()), shard(nn.Sequential(build()), stage=stage, policy=policy)
            x = torch.ones(1, 4) if build is Clamped else torch.arange(4)
            with torch.set_grad_enabled(grad):
                if stage == 0 and policy is None:
                    plain.load_state_dict(model.state_dict())
                    assert torch.equal(model(x), plain(x))
                    assert torch.equal(model.state_dict()["0.weight"], plain.state_dict()["0.weight"])
                    continue
                with pytest.raises(RuntimeError, match="has written to its own parameters"):
                    model(x)
            if build is Clamped:
                # The unit is free, and the next pass is like any other.
                model[0].writes = False
                model(x).sum().backward()


CASES: list[Callable[..., None]] = [
    a_forward_pass_that_writes_to_its_parameters,
    a_layer_used_twice_in_a_row_by_two_losses,
    outputs_in_an_object,
    packed_sequences,
    no_stale_weights_after_a_method_other_than_forward,
    no_stale_weights_in_a_layer_called_alone_after_a_failed_backward,
    no_stale_weights_in_a_saved_model_after_a_failed_backward,
    recomputation_gathers_nothing_in_vain,
    gradients_leave_while_a_checkpointed_segment_runs_backward,
    a_chain_of_single_layers_keeps_one_exchange_in_flight,
    what_a_layer_leaves_in_its_arguments_reaches_the_caller,
    one_argument_passed_three_times_stays_one,
    sparse_gradients,
    a_layer_skipped_on_one_rank_after_a_forward_without_a_backward,
    layers_without_parameters,
    buffers_of_every_kind,
    hooks_do_not_pile_up_on_a_tensor_that_is_returned_each_time,
    a_sparse_output,
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_found(case: Callable[..., None]) -> None:
    ranks.run(2, case)


def refused_models() -> list[str]:
    from shardbook import shard

    hooked, used, imaginary = linears(), linears(), linears()
    hooked[1].weight.register_hook(lambda gradient: gradient)
    used(data(0)).sum().backward()
    imaginary[2].weight = nn.Parameter(torch.ones(4, 4, dtype=torch.complex64))
    said = []
    for model in (hooked, used, imaginary):
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            shard(model)
        said.append(str(caught.value))
    return said


def test_a_model_whose_gradients_would_go_astray_is_refused() -> None:
    for said in ranks.run(2, refused_models):
        assert said == [
            "rank 0: the gradient hook on 1.weight would never be called; remove it",
            "rank 0: 0.weight has a gradient already; call zero_grad() before sharding",
            "rank 0: 2.weight is complex; store its real and imaginary parts instead",
        ]


def refused_uses() -> list[str]:
    from shardbook import shard

    said = []
    model = shard(nn.Sequential(chain(), nn.Identity()))
    for use in (copy.deepcopy, pickle.dumps):
        for module in (model, model[0], model[0][1][0]):
            with pytest.raises(TypeError) as refused:
                use(module)
        said.append(str(refused.value))
    with pytest.raises(RuntimeError) as caught:
        model[0][1].state_dict()
    said.append(str(caught.value))
    assert model[0].state_dict().keys() == chain().state_dict().keys()
    next(model.parameters()).register_post_accumulate_grad_hook(lambda parameter: None)
    with pytest.raises(RuntimeError) as caught:
        error(model, batch(0, 0))
    said.append(str(caught.value))
    return said


def test_what_would_silently_train_or_save_something_else_is_refused() -> None:
    for copied, pickled, part, hook in ranks.run(2, refused_uses):
        assert (
            copied
            == pickled
            == ("a sharded model cannot be copied or pickled; load its state_dict() into a plain model")
        )
        assert part.endswith(
            "inside 0 has no state_dict of its own; call state_dict() on the unit or on the model"
        )
        assert hook == "the gradient hook on 0.0.weight in unit 0 would never be called; remove it"


def another_buffer(model: nn.Sequential) -> None:
    model[2].register_buffer("mask", torch.ones(3))


def tied(model: nn.Sequential) -> None:
    model[1].weight = model[0].weight


def no_such_unit(model: nn.Sequential) -> None:
    for name in ("0", "1", "2"):
        setattr(model, name, nn.Identity())


def one_rank_differs(change: Callable[[nn.Sequential], None], units: Any) -> str:
    from shardbook import shard

    model = linears()
    model[2].register_buffer("mask", torch.ones(2))
    if dist.get_rank() == 1:
        change(model)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        shard(nn.Sequential(model), units=units)
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "units", "sentence"),
    [
        (another_buffer, None, "0.2.mask in the root has shape (3,) instead of (2,)"),
        (tied, None, "0.1.weight in 0 is tied to 0.0.weight, on rank 0 to nothing"),
        (no_such_unit, nn.Linear, "selects no module; name a class that the model contains"),
    ],
)
def test_ranks_that_differ_elsewhere_than_in_a_shape_do_not_hang(
    change: Callable[[nn.Sequential], None], units: Any, sentence: str
) -> None:
    for said in ranks.run(2, one_rank_differs, change, units, timeout=30):
        assert sentence in said
