"""The hooks of a layer in every use that earlier implementations of a sharded layer got wrong.

Every case compares gradients with a plain reference, or the values after the next step, so that a case
which merely does not crash does not pass.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import ranks
from book.reference import assert_all_sharded, compare
from book.toys import (
    VOCABULARY,
    assert_equal,
    batch,
    chain,
    error,
    features,
    linears,
    plain_gradients,
    reference_step,
    whole_gradients,
)


def used_twice() -> None:
    class Twice(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            x = self[0](self[1](self[0](x)))
            return x

    def build() -> nn.Module:
        torch.manual_seed(0)
        return Twice(nn.Linear(4, 4), nn.Linear(4, 4))

    compare(build, lambda model, rank: model(features(rank)).square().sum())


def two_forwards_before_one_backward() -> None:
    compare(chain, lambda model, rank: error(model, batch(rank, 0)) + error(model, batch(rank, 1)))


def two_losses_one_after_the_other() -> None:
    """Two graphs exist at once, and each has a backward pass of its own, reduced by itself."""
    from shardbook import shard

    rank, world_size = dist.get_rank(), dist.get_world_size()
    plain, sharded = chain(), shard(chain())
    losses = [error(sharded, batch(rank, step)) for step in range(2)]
    reference_step(
        plain,
        [[partial(error, plain, batch(other, step)) for other in range(world_size)] for step in range(2)],
    )
    for loss in losses:
        loss.backward()
    assert_equal(whole_gradients(sharded), plain_gradients(plain))


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
        x = features(rank + step).requires_grad_()
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


def evaluation_with_gradients_enabled() -> None:
    """A forward pass whose graph is thrown away leaves the layer sharded and does not disturb the next."""

    def loss(model: nn.Module, rank: int) -> Tensor:
        with torch.enable_grad():
            error(model, batch(rank, 5))
        return error(model, batch(rank, 0))

    compare(chain, loss)


def no_stale_weights() -> None:
    """Forward with gradients, then a step on other gradients: the next forward must see the new weights."""
    from shardbook import shard

    plain, sharded = chain(), shard(chain())
    for model in (plain, sharded):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        error(model, batch(0, 0))
        optimizer.step()
    assert error(sharded, batch(0, 0)).item() == error(plain, batch(0, 0)).item()


def fail(gradient: Tensor) -> None:
    raise ArithmeticError("in backward")


class Repeats(nn.Sequential):
    """Uses its last layer as often as it is told."""

    uses = 1

    def forward(self, x: Tensor) -> Tensor:
        x = self[1](self[0](x))
        for _ in range(self.uses):
            x = self[2](x)
        return x


def one_exchange_after_the_last_use() -> None:
    """The gradients of a layer leave once, as soon as the last of its backward passes has ended."""
    from shardbook import shard
    from shardbook.foundations.collectives import ledger

    def sent(loss: Tensor, retain_graph: bool = False) -> tuple[int, int]:
        """The bytes of gradients, at the first layer and at the end."""
        with ledger() as book:
            arrived.clear()
            books[:] = [book]
            loss.backward(retain_graph=retain_graph)
        return arrived.pop(), book.sent["reduce-scatter"]

    books: list[Any] = []
    arrived: list[int] = []

    def look(_: Tensor) -> None:
        arrived.append(books[0].sent.get("reduce-scatter", 0))

    def watch(*passed: Any) -> None:
        if passed[-1].requires_grad:
            passed[-1].register_hook(look)

    x, found = features(0), set()
    for stage, uses in product((2, 3), (2, 1, 3)):
        model = shard(Repeats(*linears()), stage=stage, units=nn.Linear)
        model[0].register_forward_hook(watch)
        model.uses = uses
        found.add(sent(model(x).sum()))
        # What has no backward pass is forgotten: at once, or at the end of the next one.
        with torch.no_grad():
            model(x)
        found.add(sent(model(x).sum()))
        model(x)
        model(x).sum().backward()
        loss = model(x).sum()
        found.add(sent(loss, retain_graph=True))
        found.add(sent(model(x).sum()))
        if uses == 1:
            found.add(sent(loss))
    # Each rank sends half of the 20 numbers of a layer, which are padded to 32. When the first of the three
    # layers is reached, the last one has sent its own.
    assert found == {(64, 3 * 64)}


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
            model.embed(features(0))  # type: ignore[operator]
            for parameter in model.parameters():
                parameter.mul_(0.5)
            y = model[1](model.embed(features(0)))  # type: ignore[operator]
        if model is plain:
            expected = y
    assert torch.equal(y, expected)


def no_stale_weights_in_a_layer_called_alone_after_a_failed_backward() -> None:
    from shardbook import shard

    plain, sharded = linears(), shard(linears())
    parameters = [*plain.parameters(), *sharded.parameters()]  # as an optimizer holds them
    x = features(0).requires_grad_()
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

    plain, sharded = linears(), shard(linears())
    parameters = [*plain.parameters(), *sharded.parameters()]  # as an optimizer holds them
    z = sharded[0](features(0).requires_grad_())
    z.register_hook(fail)
    with pytest.raises(ArithmeticError):
        z.sum().backward()
    with torch.no_grad():
        for parameter in parameters:
            parameter.mul_(0.5)
    assert_equal(dict(sharded.state_dict()), dict(plain.state_dict()))


class Branches(nn.Module):
    """A layer of which one branch is used only if told so."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.third = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.use_second = True

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return x + self.second(x) if self.use_second else x


class Branching(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(Branches(), Branches(), nn.Linear(4, 2))


def unused_parameters(only_on_rank: int | None) -> None:
    def loss(model: nn.Module, rank: int) -> Tensor:
        model[1].use_second = only_on_rank is not None and rank != only_on_rank  # type: ignore[index,union-attr]
        return model(torch.full((3, 4), 0.2 * (rank + 1))).square().mean()

    compare(Branching, loss)


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
        model(features(rank))
        model[1].use = rank == 0  # type: ignore[index,union-attr]
        return model(features(rank)).square().sum()  # type: ignore[no-any-return]

    compare(build, loss)


class PassesOn(Skips):
    """Returns its input as it came on the ranks that do not use the layer."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x) if self.use else x
        return y


def a_layer_that_returns_its_input_on_one_rank() -> None:
    def build() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 4), PassesOn(), nn.Linear(4, 4))

    def loss(model: nn.Module, rank: int) -> Tensor:
        model[1].use = rank == 0  # type: ignore[index,union-attr]
        return model(features(rank)).square().sum()  # type: ignore[no-any-return]

    compare(build, loss)


class Adds(nn.Module):
    """Computes with its input at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(features(0)).tanh()
        return y + x


def an_input_whose_node_is_younger_than_the_layer() -> None:
    """Another thread has numbered it. Its gradient is complete before the layer has ended."""
    from shardbook import shard
    from shardbook.foundations.collectives import ledger
    from shardbook.foundations.torch_private import next_number, number_of

    def made(more_than: int) -> Tensor:
        x = features(0).requires_grad_() * 1
        while number_of(x.grad_fn) < more_than:
            x = x * 1
        return x

    for stage in (2, 3):
        model = shard(nn.Sequential(Adds()), stage=stage, units=Adds)
        with ThreadPoolExecutor(1) as pool:
            x = pool.submit(made, next_number() + 1000).result()
        with ledger() as book:
            model(x).sum().backward()
        assert number_of(x.grad_fn) > next_number()
        assert book.sent["reduce-scatter"] == 64, "exchanged once"


def checkpoint_around(reentrant: bool) -> None:
    class Checkpointed(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            x = self[0](x)
            for layer in self[1:]:  # type: ignore[attr-defined]
                x = checkpoint(layer, x, use_reentrant=reentrant)
            return x

    compare(lambda: Checkpointed(*chain()), lambda model, rank: error(model, batch(rank, 0)))


def checkpoint_inside(reentrant: bool) -> None:
    class Inside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))

        def forward(self, x: Tensor) -> Tensor:
            return x + checkpoint(self.inner, x, use_reentrant=reentrant)

    def build() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Embedding(VOCABULARY, 8), Inside(), Inside(), nn.Linear(8, VOCABULARY))

    compare(build, lambda model, rank: error(model, batch(rank, 0)))


def checkpoint_around_the_model(reentrant: bool) -> None:
    def loss(model: nn.Module, rank: int) -> Tensor:
        total = torch.zeros(())
        for step in range(2):
            x = torch.full((3, 4), 0.1 * (rank + step + 1), requires_grad=True)
            total = total + checkpoint(model, x, use_reentrant=reentrant).square().mean()
        return total

    # Two recomputations happen inside one backward pass. The second must not lose what the first collected.
    sharded = compare_close(Branching, loss)
    assert_all_sharded(sharded)


def compare_close(build: Callable[[], nn.Module], loss: Callable[[nn.Module, int], Tensor]) -> nn.Module:
    """As `compare`, where the order of summation differs from the plain one."""
    from shardbook import shard

    plain, sharded = build(), shard(build())
    reference_step(plain, [[partial(loss, plain, rank) for rank in range(dist.get_world_size())]])
    loss(sharded, dist.get_rank()).backward()
    found, expected = whole_gradients(sharded), plain_gradients(plain)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-6, atol=1e-7)
    return sharded


def a_second_backward_over_the_same_graph() -> None:
    from shardbook import shard

    rank, world_size = dist.get_rank(), dist.get_world_size()
    plain, sharded = chain(), shard(chain())
    round_ = [partial(error, plain, batch(other, 0)) for other in range(world_size)]
    reference_step(plain, [round_, round_])
    loss = error(sharded, batch(rank, 0))
    loss.backward(retain_graph=True)
    loss.backward()
    assert_equal(whole_gradients(sharded), plain_gradients(plain))


class Fails(nn.Module):
    """Raises in forward or in backward when told so."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.fail = ""

    def forward(self, x: Tensor) -> Tensor:
        if self.fail == "forward":
            raise ArithmeticError("in forward")
        y = self.linear(x)
        if self.fail == "backward":
            y.register_hook(fail)
        return y


def the_step_after_an_exception(where: str) -> None:
    from shardbook import shard

    def build() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Embedding(VOCABULARY, 8), nn.Linear(8, 8), Fails(), nn.Linear(8, 8), nn.Linear(8, VOCABULARY)
        )

    rank, world_size = dist.get_rank(), dist.get_world_size()
    plain, sharded = build(), shard(build())
    trained = [*plain.parameters(), *sharded.parameters()]
    failing = sharded[2]
    assert isinstance(failing, Fails)
    failing.fail = where
    with pytest.raises(ArithmeticError):
        error(sharded, batch(rank, 7)).backward()
    failing.fail = ""
    # The weights change in between, so that anything left over from the failed step would show.
    with torch.no_grad():
        for parameter in trained:
            parameter.mul_(0.5)
    sharded.zero_grad()
    reference_step(plain, [[partial(error, plain, batch(other, 0)) for other in range(world_size)]])
    error(sharded, batch(rank, 0)).backward()
    assert_equal(whole_gradients(sharded), plain_gradients(plain))
    assert_all_sharded(sharded)


class Odd(nn.Module):
    """Parameters of no dimension, of no element, not contiguous, in two dtypes, and one that is shared."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.empty = nn.Parameter(torch.empty(0, 3))
        self.turned = nn.Parameter(torch.randn(4, 6).t())
        self.precise = nn.Parameter(torch.randn(6, dtype=torch.float64))
        self.one, self.other = nn.Linear(6, 6), nn.Linear(6, 6)
        self.other.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        y = self.other(self.one(x @ self.turned.t())) * self.scale
        return y + (self.precise.sum() + self.empty.sum()).float()


def odd_parameters() -> None:
    def loss(model: nn.Module, rank: int) -> Tensor:
        return model(features(rank)).square().sum()

    # The transposed parameter is stored row by row now, so the matrix product takes another path.
    sharded = compare_close(lambda: nn.Sequential(Odd(), nn.Identity(), nn.Linear(6, 2)), loss)
    assert sharded[0].one.weight is sharded[0].other.weight  # type: ignore[index,union-attr]


def recurrent_layers() -> None:
    """A recurrent layer keeps a list of its own weights, and must not go on using the old ones."""

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(4, 5)

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.lstm(x)[0]
            return output

    def build() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(Recurrent(), nn.Linear(5, 2))

    compare(build, lambda model, rank: model(torch.full((3, 2, 4), 0.3 * (rank + 1))).square().sum())


class GivesItsWeight(nn.Module):
    """Returns a view of its own parameter, beside other nested outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.arange(12.0).view(4, 3))

    def forward(self, x: Tensor, *, factor: float) -> dict[str, Any]:
        return {"rows": self.table[:2], "more": [x * factor, None]}


def an_output_that_is_a_view_of_a_parameter() -> None:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gives, self.linear = GivesItsWeight(), nn.Linear(3, 3)
            nn.init.ones_(self.linear.weight)
            nn.init.ones_(self.linear.bias)

        def forward(self, x: Tensor) -> Tensor:
            output = self.gives(x, factor=2.0)
            return self.linear(output["more"][0]) * output["rows"]

    compare(
        Reads,
        lambda model, rank: model(torch.full((2, 3), float(rank + 1))).square().sum(),
        units=(GivesItsWeight, nn.Linear),
    )


def in_place_on_the_input() -> None:
    def build() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(4, 4),
            nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 4)),
            nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 2)),
        )

    compare(build, lambda model, rank: model(torch.full((2, 4), 0.7 * (rank + 1))).square().sum())


def nan_in_uninitialised_memory_does_not_reach_the_padding() -> None:
    from shardbook import shard

    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    assert torch.empty(3).isnan().all(), "the trap must be set"
    model = shard(chain())
    error(model, batch(dist.get_rank(), 0)).backward()
    # The whole vector of which a gradient is a part.
    storages = [parameter.grad.untyped_storage() for parameter in model.parameters()]  # type: ignore[union-attr]
    padding = 0
    for storage in storages:
        vector = torch.tensor([]).set_(storage)
        assert vector.isfinite().all(), vector
        padding += vector.numel()
    assert padding > sum(parameter.numel() for parameter in model.parameters())


def zero_grad_between_forward_and_backward() -> None:
    from shardbook import shard

    rank, world_size = dist.get_rank(), dist.get_world_size()
    plain, sharded = chain(), shard(chain())
    error(sharded, batch(rank, 3)).backward()
    loss = error(sharded, batch(rank, 0))
    sharded.zero_grad()
    loss.backward()
    reference_step(plain, [[partial(error, plain, batch(other, 0)) for other in range(world_size)]])
    assert_equal(whole_gradients(sharded), plain_gradients(plain))


def hooks_say_that_they_are_at_work() -> None:
    """Every exchange of a step happens in a hook that says so, and no call of a module does."""
    from shardbook import Policy, shard
    from shardbook.foundations.hook_context import machinery_at_work

    seen: list[bool] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shardbook.foundations.collectives.record", lambda *_: seen.append(machinery_at_work()))
        for stage, policy in product((0, 1, 2, 3), (None, Policy(param_dtype=torch.bfloat16))):
            model = shard(chain(), stage=stage, policy=policy)
            for module in model.modules():
                module.register_forward_pre_hook(lambda *_: seen.append(not machinery_at_work()))
            seen.clear()
            error(model, batch(0, 0)).backward()
            assert len(seen) > len(list(model.modules()))
            assert all(seen)
            assert not machinery_at_work()


CASES: list[tuple[Callable[..., None], tuple[Any, ...]]] = [
    (used_twice, ()),
    (two_forwards_before_one_backward, ()),
    (two_losses_one_after_the_other, ()),
    (a_layer_used_twice_in_a_row_by_two_losses, ()),
    (one_exchange_after_the_last_use, ()),
    (evaluation_with_gradients_enabled, ()),
    (no_stale_weights, ()),
    (no_stale_weights_after_a_method_other_than_forward, ()),
    (no_stale_weights_in_a_layer_called_alone_after_a_failed_backward, ()),
    (no_stale_weights_in_a_saved_model_after_a_failed_backward, ()),
    (unused_parameters, (None,)),
    (unused_parameters, (1,)),
    (a_layer_skipped_on_one_rank_after_a_forward_without_a_backward, ()),
    (a_layer_that_returns_its_input_on_one_rank, ()),
    (an_input_whose_node_is_younger_than_the_layer, ()),
    (checkpoint_around, (True,)),
    (checkpoint_around, (False,)),
    (checkpoint_inside, (True,)),
    (checkpoint_inside, (False,)),
    (checkpoint_around_the_model, (True,)),
    (checkpoint_around_the_model, (False,)),
    (a_second_backward_over_the_same_graph, ()),
    (the_step_after_an_exception, ("forward",)),
    (the_step_after_an_exception, ("backward",)),
    (odd_parameters, ()),
    (recurrent_layers, ()),
    (an_output_that_is_a_view_of_a_parameter, ()),
    (in_place_on_the_input, ()),
    (nan_in_uninitialised_memory_does_not_reach_the_padding, ()),
    (zero_grad_between_forward_and_backward, ()),
    (hooks_say_that_they_are_at_work, ()),
]


@pytest.mark.cases(now=1, ci=11)
@pytest.mark.parametrize(
    ("case", "arguments"), CASES, ids=[f"{case.__name__}{arguments or ''}" for case, arguments in CASES]
)
def test_trap(case: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    ranks.run(2, case, *arguments)


def double_backward() -> str:
    from shardbook import shard

    model = shard(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1)))
    loss = model(torch.ones(2, 3)).sum()
    with pytest.raises(RuntimeError) as caught:
        loss.backward(create_graph=True)
    return str(caught.value)


class Critic(nn.Module):
    """Its loss has a penalty on the gradient of its result."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        y = self.net(x)
        (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return y.square().mean() + (gradient.norm(dim=1) - 1).square().mean()


def penalised(model: nn.Module) -> dict[str, Any]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.linspace(0, 1, 6).view(2, 3)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return dict(model.state_dict())


def second_derivatives_in_one_unit() -> None:
    from shardbook import shard

    expected = penalised(nn.Sequential(Critic()))
    for stage in range(4):
        assert_equal(penalised(shard(nn.Sequential(Critic()), stage=stage, units=Critic)), expected)


@pytest.mark.full
def test_a_second_derivative_is_taken_in_one_unit_or_refused_in_one_sentence() -> None:
    ranks.run(2, second_derivatives_in_one_unit)
    for message in ranks.run(2, double_backward):
        assert "create_graph=True" in message
        assert "inside the forward pass of one unit around it, by torch.autograd.grad" in message


def changes_after_sharding() -> list[str]:
    from shardbook import shard

    def rotate(model: Any) -> None:
        model[4].rotation.requires_grad_()

    said = []
    for change in (nn.Module.double, rotate):
        plain = chain()
        rotation = nn.Parameter(torch.ones(3, dtype=torch.complex64), requires_grad=False)
        plain[4].register_parameter("rotation", rotation)
        model = shard(plain)
        change(model)
        with pytest.raises(RuntimeError) as caught:
            error(model, batch(0, 0))
        said.append(str(caught.value))
    return said


def test_a_change_behind_the_shards_back_is_refused_with_the_parameters_name() -> None:
    for converted, complex_ in ranks.run(1, changes_after_sharding):
        assert "0.weight in unit 0 has left its shard" in converted
        assert "convert or move the model before sharding" in converted
        assert "4.rotation in unit 4 is complex and cannot be trained" in complex_
        assert "store its real and imaginary parts instead" in complex_
