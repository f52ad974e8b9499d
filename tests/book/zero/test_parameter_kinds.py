"""Which ranks share what: groups, meshes, tied weights, buffers, and parameters of every kind."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import ranks
from book.reference import (
    STAGES,
    all_losses,
    assert_same_gradients,
    assert_train_alike,
    compared_bytes,
    fill_gradients,
    padded_bytes,
)
from book.toys import (
    VOCABULARY,
    assert_equal,
    batch,
    chain,
    error,
    features,
    plain_gradients,
    reference_step,
    whole_gradients,
)
from book.zero.test_hooks import Odd
from tiers import rows


def train_on(mesh: Any, members: list[int], rows: int) -> None:
    """Train in every stage on a mesh of some ranks; the reference adds along the rows, then down."""
    from shardbook import shard

    # Every rank starts elsewhere: the first of the mesh must win.
    models = [shard(chain(seed=dist.get_rank()), stage=stage, mesh=mesh) for stage in STAGES[1:]]
    assert_train_alike(chain(seed=members[0]), models, members=members, rows=rows)


def two_pairs() -> None:
    pairs = [[0, 1], [2, 3]]
    groups = [dist.new_group(pair) for pair in pairs]
    mine = dist.get_rank() // 2
    train_on(groups[mine], pairs[mine], 1)


def a_mesh_of_one_dimension() -> None:
    train_on(init_device_mesh("cpu", (4,)), [0, 1, 2, 3], 1)


def a_row_of_a_mesh() -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    mine = dist.get_rank() // 2
    train_on(mesh["shard"], [[0, 1], [2, 3]][mine], 1)


def two_rows_and_two_columns() -> None:
    train_on(init_device_mesh("cpu", (2, 2)), [0, 1, 2, 3], 2)


def a_column_beside_a_row() -> None:
    """Each mesh covers a part of the world."""
    meshes = DeviceMesh("cpu", [[0], [1]]), DeviceMesh("cpu", [[2, 3]])
    mine = dist.get_rank() // 2
    train_on(meshes[mine], [[0, 1], [2, 3]][mine], [2, 1][mine])


def a_mesh_of_a_part_of_the_world() -> None:
    """The first rank of the mesh is not rank 0. The other ranks do nothing, and nobody waits for them."""
    mesh = DeviceMesh("cpu", [[1], [2], [3]])
    if dist.get_rank():
        train_on(mesh, [1, 2, 3], 3)


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize(
    "case",
    rows(
        [
            two_pairs,
            a_mesh_of_one_dimension,
            a_row_of_a_mesh,
            two_rows_and_two_columns,
            a_column_beside_a_row,
            a_mesh_of_a_part_of_the_world,
        ],
        now=[two_rows_and_two_columns, a_mesh_of_a_part_of_the_world],
    ),
    ids=lambda case: case.__name__,
)
def test_training_on(case: Callable[[], None]) -> None:
    ranks.run(4, case)


def a_mesh_out_of_order() -> str:
    from shardbook import shard

    with pytest.raises(ValueError) as caught:  # noqa: PT011
        shard(chain(), mesh=DeviceMesh("cpu", [[3, 1], [0, 2]]))
    return str(caught.value)


def test_a_mesh_whose_ranks_are_out_of_order_is_refused() -> None:
    for said in ranks.run(4, a_mesh_out_of_order):
        assert said == (
            "the ranks of the mesh [[3, 1], [0, 2]] are not in order; "
            "let them grow along each row and down each column"
        )


def stage_0_on_a_mesh() -> None:
    """Nothing is shared out, so rows and columns mean nothing: the sum runs over all ranks in order."""
    from shardbook import shard

    plain = chain()
    model = shard(chain(seed=dist.get_rank()), stage=0, mesh=init_device_mesh("cpu", (2, 2)))
    fill_gradients(plain, [all_losses(plain, [0])])
    error(model, batch(dist.get_rank(), 0)).backward()
    assert_same_gradients(model, plain)


def everything_starts_from_the_first_rank() -> None:
    from shardbook import shard

    mesh = init_device_mesh("cpu", (2, 2))
    for stage in STAGES:
        model = nn.Sequential(nn.Linear(40, 3), nn.BatchNorm1d(3))
        for tensor in model.state_dict().values():
            tensor.fill_(dist.get_rank() + 1)
        shard(model, stage=stage, mesh=mesh)
        assert all(tensor.eq(1).all() for tensor in model.state_dict().values())


def clipping_on_a_mesh() -> None:
    """The norm is that of one copy of the model, not of all copies."""
    from shardbook import clip_grad_norm_, shard

    plain = chain()
    fill_gradients(plain, [all_losses(plain, [0])], rows=2)
    expected = torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
    for stage in STAGES[1:]:
        model = shard(chain(), stage=stage, mesh=init_device_mesh("cpu", (2, 2)))
        error(model, batch(dist.get_rank(), 0)).backward()
        torch.testing.assert_close(clip_grad_norm_(model, 1.0).float(), expected, rtol=1e-5, atol=0)


def accumulation_on_a_mesh_with_a_narrow_wire() -> None:
    from shardbook import Policy, shard

    mesh, wire = init_device_mesh("cpu", (2, 2)), torch.bfloat16
    models = [
        shard(chain(), stage=stage, mesh=mesh, policy=Policy(reduce_dtype=wire)) for stage in STAGES[1:]
    ]
    assert_train_alike(chain(), models, micro=2, rows=2, dtype=wire)


@pytest.mark.cases(now=1, ci=1)
@pytest.mark.parametrize(
    "case",
    [
        stage_0_on_a_mesh,
        everything_starts_from_the_first_rank,
        clipping_on_a_mesh,
        accumulation_on_a_mesh_with_a_narrow_wire,
    ],
    ids=lambda case: case.__name__,
)
def test_on_two_rows_of_two(case: Callable[[], None]) -> None:
    ranks.run(4, case)


def order_on_a_mesh() -> list[str]:
    """What one backward pass starts and waits for on two rows of two ranks."""
    from shardbook import shard
    from shardbook.zero.scheduler import scheduler_of

    model = shard(chain(), stage=3, mesh=init_device_mesh("cpu", (2, 2)))
    order, said = scheduler_of(model).order, []
    before = order.before

    def told(action: str, unit: str, parameter: str) -> None:
        said.append(f"{action} {unit}")
        before(action, unit, parameter)

    loss = error(model, batch(dist.get_rank(), 0))
    order.before = told  # type: ignore[method-assign]
    loss.backward()
    return [what for what in said if not what.startswith("gather ") or "average" in what]


def test_an_exchange_between_copies_has_the_time_of_a_unit_and_keeps_the_common_order() -> None:
    """It is started when the next unit's gradients are there, and waited for when those after them are."""
    first, *others = ranks.run(4, order_on_a_mesh)
    units = ["4", "3", "2", "1", "0"]
    steps = {
        unit: [f"reduce {unit}", f"average the copies of {unit}", f"gather the average of {unit}"]
        for unit in units
    }
    assert all(other == first for other in others), (first, others)
    assert sorted(first) == sorted(
        [
            "end ",
            "compare the used parameters of 4, 3, 2, 1, 0",
            *(step for three in steps.values() for step in three),
        ]
    ), first
    for unit in units[:-2]:
        reduced, averaged, gathered = [first.index(step) for step in steps[unit]]
        # A unit that is reduced right after a step has computed its gradients before it.
        assert first[averaged + 1].startswith("reduce "), (unit, first)
        assert first[averaged + 1] in first[averaged:gathered], (unit, first)
        assert reduced < averaged, (unit, first)


class TwoKinds(nn.Module):
    """A unit of two vectors, if the dtypes differ."""

    def __init__(self, second: torch.dtype) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4, dtype=second)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(self.first(x).to(self.second.weight.dtype))
        return y


def agreed_for_two_vectors() -> list[list[str]]:
    from shardbook import shard
    from shardbook.zero.scheduler import scheduler_of

    found = []
    for second in (torch.float32, torch.float64):
        model = shard(TwoKinds(second), units=(), mesh=init_device_mesh("cpu", (2, 2)))
        order, said = scheduler_of(model).order, list[str]()
        order.before = lambda action, *_, said=said: said.append(action)  # type: ignore[method-assign,misc]
        model(torch.ones(2, 4)).sum().backward()
        found.append(said)
    return found


def test_ranks_agree_once_on_the_exchanges_of_a_unit_of_two_vectors() -> None:
    for one_vector, two_vectors in ranks.run(4, agreed_for_two_vectors):
        assert "average the copies of" in one_vector
        assert two_vectors == one_vector


def sent_vectors_on_a_mesh() -> tuple[int, int]:
    """How many vectors were sent whose means go on to other copies, and the bytes that they still take."""
    from shardbook import shard
    from shardbook.zero.scheduler import Scheduler

    found = [0, 0]

    def look(_: Tensor) -> None:
        for unit in Scheduler.going_on:
            for flat in unit.trainable:
                if flat.sending is not None:
                    found[0] += 1
                    found[1] += flat.sending.untyped_storage().nbytes()

    model = shard(
        nn.Sequential(*[nn.Linear(4, 4) for _ in range(4)]),
        units=nn.Linear,
        mesh=init_device_mesh("cpu", (2, 2)),
    )
    for layer in model:
        layer.register_forward_hook(lambda *passed: passed[-1].register_hook(look) and None)
    model(torch.ones(2, 4)).sum().backward()
    return found[0], found[1]


def test_a_vector_is_given_back_while_its_mean_goes_on_to_other_copies() -> None:
    for vectors, nbytes in ranks.run(4, sent_vectors_on_a_mesh):
        assert vectors > 0
        assert nbytes == 0


def sent_on_a_mesh(rows: int, columns: int) -> list[dict[str, Any]]:
    from shardbook import shard
    from shardbook.foundations.collectives import ledger

    found = []
    for stage in STAGES:
        model = shard(chain(), stage=stage, mesh=init_device_mesh("cpu", (rows, columns)))
        with ledger() as book:
            error(model, batch(dist.get_rank(), 0)).backward()
        found.append({"sent": book.sent, "padded": padded_bytes(model), "compared": compared_bytes(model)})
    return found


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize(("rows", "columns"), [(2, 2), (3, 1), (1, 3)])
def test_only_a_ranks_own_part_travels_down_a_column(rows: int, columns: int) -> None:
    for found in ranks.run(rows * columns, sent_on_a_mesh, rows, columns):
        for stage, step in zip(STAGES, found, strict=True):
            row = step["padded"] * (columns - 1) // columns
            down = step["padded"] // columns * (rows - 1) // rows
            if stage == 0:
                row, down = step["padded"] * (rows * columns - 1) // (rows * columns), 0
            gathers = 2 if stage == 3 else 1
            expected = {"reduce-scatter": row + down, "all-gather": gathers * row + down}
            assert step["sent"] == {**expected, "all-reduce": step["compared"]}


class Tied(nn.Module):
    """Two pairs of tied weights: one within `inner`, one across the whole model."""

    def __init__(self, tie: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(VOCABULARY, 8)
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
        self.head = nn.Linear(8, VOCABULARY)
        if tie:
            self.inner[2].weight = self.inner[0].weight
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        y: Tensor = self.head(self.inner(self.embedding(tokens)))
        return y


UNITS: list[Any] = [(), (nn.Linear, nn.Embedding), (nn.Linear, nn.Embedding, nn.Sequential)]


def tied_weights() -> None:
    """In one unit, or across units that lie in another unit, or across units that lie in the root only."""
    from shardbook import shard

    for stage in STAGES:
        for units in UNITS:
            model = shard(Tied(), stage=stage, units=units)
            # Both keys are in the state, with one value.
            assert_train_alike(Tied(), [model])
            assert model.head.weight is model.embedding.weight
            assert model.inner[2].weight is model.inner[0].weight


@pytest.mark.nightly
def test_tied_weights_stay_tied_and_train_like_the_reference_in_every_stage() -> None:
    ranks.run(2, tied_weights)


def units_of_tied_weights() -> list[dict[str, list[str]]]:
    from shardbook import shard
    from shardbook.zero.scheduler import scheduler_of

    return [
        {
            unit.name: [site.name for site in unit.sites]
            for unit in scheduler_of(shard(Tied(), units=units)).units
        }
        for units in UNITS[1:]
    ]


def test_tied_weights_belong_to_the_innermost_unit_around_all_places() -> None:
    [[flat, nested]] = ranks.run(1, units_of_tied_weights)
    assert flat == {
        "the root": ["embedding.weight", "inner.0.weight", "inner.2.weight", "head.weight"],
        "inner.0": ["inner.0.bias"],
        "inner.2": ["inner.2.bias"],
        "head": ["head.bias"],
    }
    assert nested == {
        "the root": ["embedding.weight", "head.weight"],
        "inner": ["inner.0.weight", "inner.2.weight"],
        "inner.0": ["inner.0.bias"],
        "inner.2": ["inner.2.bias"],
        "head": ["head.bias"],
    }


def tied_on_one_rank_only() -> list[str]:
    from shardbook import shard

    said = []
    for units in UNITS:
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            shard(Tied(tie=dist.get_rank() == 0), units=units)
        said.append(str(caught.value))
    return said


def test_weights_that_are_tied_on_one_rank_only_are_refused_by_name() -> None:
    for said in ranks.run(2, tied_on_one_rank_only):
        for sentence in said:
            assert "is tied to nothing, on rank 0 to inner.0.weight" in sentence


class Odder(Odd):
    """Narrow ones, frozen ones and integers, too."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow = nn.Parameter(torch.randn(6).bfloat16())
        self.frozen = nn.Parameter(torch.randn(3), requires_grad=False)
        self.counts = nn.Parameter(torch.arange(5), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.narrow.float() * (self.frozen.sum() + self.counts.sum())


def odd_loss(model: nn.Module, rank: int, number: int) -> Tensor:
    y: Tensor = model(features(rank + number))
    return y.square().mean()


def odd_parameters() -> None:
    from shardbook import shard

    def build() -> nn.Module:
        # A module without parameters stands between two that have some.
        return nn.Sequential(Odder(), nn.Identity(), nn.Linear(6, 4))

    plain = build()
    # A flat vector stores every parameter row by row, and a matrix product may depend on that.
    plain[0].turned.data = plain[0].turned.data.contiguous()  # type: ignore[index,union-attr,operator]
    models = [shard(build(), stage=stage) for stage in STAGES]
    assert_train_alike(plain, models, loss=odd_loss)


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize("world_size", rows([2, 3], now=[3]))
def test_parameters_of_every_kind_train_like_the_reference_in_every_stage(world_size: int) -> None:
    ranks.run(world_size, odd_parameters)


def models_without_anything_to_train() -> None:
    from shardbook import shard

    for stage in STAGES:
        for build in (nn.Identity, lambda: nn.Linear(2, 2).requires_grad_(False)):
            model = shard(build(), stage=stage)
            expected = build()
            expected.load_state_dict(model.state_dict())
            x = torch.ones(1, 2, requires_grad=True)
            model(x).sum().backward()
            assert torch.equal(model(x), expected(x))
            assert x.grad is not None


def test_a_model_without_trainable_parameters_computes_as_before() -> None:
    ranks.run(2, models_without_anything_to_train)


def layers_without_parameters() -> None:
    from shardbook import Zero3Layer, shard

    x = features(0).requires_grad_()
    for model in (Zero3Layer(nn.ReLU()), shard(nn.Sequential(nn.ReLU(), nn.Identity()))):
        assert torch.equal(model(x), x)
        assert not model.state_dict()


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


CASES = [layers_without_parameters, sparse_gradients, buffers_of_every_kind]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_equals_the_plain_model(case: Callable[[], None]) -> None:
    ranks.run(2, case)


class Random(nn.Module):
    """A block with any parameters and any blocks below it, of which a step may leave out some parameters."""

    def __init__(self, choose: random.Random, known: list[nn.Parameter], depth: int) -> None:
        super().__init__()
        for index in range(choose.randint(0, 3)):
            shape = choose.choice([(), (1,), (0, 2), (3,), (5, 7), (2, 3, 4), (33,), (64,)])
            dtype = choose.choice([torch.float32, torch.float32, torch.float64, torch.bfloat16])
            parameter = nn.Parameter(torch.randn(shape, dtype=dtype), requires_grad=choose.random() < 0.8)
            if known and choose.random() < 0.2:
                parameter = choose.choice(known)
            known.append(parameter)
            self.register_parameter(f"p{index}", parameter)
        below = choose.randint(0, 2) if depth else 0
        self.below = nn.ModuleList([Random(choose, known, depth - 1) for _ in range(below)])
        self.salt = choose.randint(0, 10**6)

    def forward(self, x: Tensor, rank: int, number: int) -> Tensor:
        choose = random.Random(self.salt + 31 * rank + 97 * number)
        x = x * 1.0
        for parameter in self.parameters(recurse=False):
            if choose.random() < 0.8:
                x = torch.tanh(x + 0.3 * parameter.float().square().sum() / max(1, parameter.numel()))
        for block in self.below:
            x = x + block(x, rank, number)
        return x


def random_loss(model: nn.Module, rank: int, number: int) -> Tensor:
    x = torch.linspace(-1, rank + number * 0.3, 6, requires_grad=True)
    y: Tensor = model(x, rank, number)
    return y.sum()


def random_models(seed: int, examples: int) -> None:
    """Random blocks, dtypes, frozen and tied parameters, units, stages, wires, and micro-batches."""
    from shardbook import Policy, shard

    for example in range(seed, seed + examples):
        choose = random.Random(example)
        plain, other = (built(example) for _ in range(2))
        names = [name for name, module in plain.named_modules() if name and isinstance(module, Random)]
        units = set(choose.sample(names, choose.randint(0, len(names))))
        wire = choose.choice([None, None, torch.bfloat16, torch.float64])
        settings: dict[str, Any] = {
            "stage": choose.choice(STAGES),
            "units": (lambda name, module, units=units: name in units) if units else (),
            "policy": Policy(reduce_dtype=wire),
            "prefetch": choose.randint(0, 3),
        }
        once = choose.random() < 0.5
        try:
            model = shard(other, **settings)
            training: dict[str, Any] = {"loss": random_loss, "micro": 2, "once": once, "dtype": wire}
            assert_train_alike(plain, [model], optimizer="sgd", **training)
        except Exception as error:
            raise AssertionError(f"example {example}: units {units}, {settings}, once {once}") from error


def built(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = Random(random.Random(seed), [], 3)
    model.register_parameter("last", nn.Parameter(torch.randn(3)))
    return model


def test_random_models_in_random_settings_train_like_the_reference() -> None:
    ranks.run(2, random_models, 0, 25)
