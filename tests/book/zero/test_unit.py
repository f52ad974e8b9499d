"""A unit by itself: what its stages have to say, what it refuses, and under which name its exchanges go."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise, product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn
from torch.distributed import init_device_mesh
from torch.utils.checkpoint import checkpoint

import ranks
from shardbook.foundations.collectives import BETWEEN_COPIES, Groups, PendingGather, PendingReduce
from shardbook.zero.flat import Flat, version_of
from shardbook.zero.scheduler import scheduler_of
from shardbook.zero.unit import BUNDLE, STAGES, State, bundles, gathered_alike, reduced_alike

DATA = torch.arange(8.0).view(2, 4)


class Model(nn.Module):
    """Two layers, a weight of the model's own, and one that stands in two places."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.scale = nn.Parameter(torch.ones(4))
        self.first, self.second = (nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)) for _ in range(2))
        self.second[1].weight = self.second[0].weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x * self.scale)).tanh()


FIRST = {"the root": "scale", "first": "first.0.weight", "second": "second.0.weight"}


def names_of_the_exchanges(stage: int, copies: int) -> Counter[tuple[str, ...]]:
    """How often each goes over the wire in two steps and a clipping: the kind, the unit, and its first
    parameter.
    """
    from shardbook import clip_grad_norm_, shard
    from shardbook.zero.scheduler import scheduler_of

    world = torch.distributed.get_world_size()
    mesh = init_device_mesh("cpu", (copies, world // copies)) if copies > 1 else None
    model = shard(Model(), units=nn.Sequential, stage=stage, mesh=mesh)
    order, said = scheduler_of(model).order, Counter[tuple[str, ...]]()

    def before(*arguments: str, real: Any = order.before) -> None:
        if arguments[1]:
            said[arguments] += 1
        real(*arguments)

    order.before = before  # type: ignore[method-assign]
    if stage:
        only_what_is_watched_is_waited_for(order)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(DATA).sum().backward()
        clip_grad_norm_(model, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    # What the next model exchanges while it is sharded is not watched.
    for kind, real_wait in REAL.items():
        kind.wait = real_wait
    return said


def only_what_is_watched_is_waited_for(order: Any) -> None:
    """A wait that nobody watches lasts for ever if another rank has left. None is for what has arrived."""
    watched: dict[int, Any] = {}

    def watch(works: Any, real: Any = order.watch) -> None:
        assert works
        watched.update({id(work): work for work in works})
        real(works)

    def watched_first(kind: Any, real: Any) -> Any:
        def wait(self: Any) -> Any:
            assert watched.keys() >= set(map(id, self.works)), f"{kind.__name__} was not watched"
            return real(self)

        return wait

    order.watch = watch
    for kind in PENDING:
        real = REAL.setdefault(kind, kind.wait)
        kind.wait = watched_first(kind, real)


PENDING: list[Any] = [PendingGather, PendingReduce]
REAL: dict[Any, Any] = {}


def in_all_ways() -> list[Counter[tuple[str, ...]]]:
    return [names_of_the_exchanges(*way) for way in WAYS]


WAYS = [(0, 1), (1, 1), (2, 1), (3, 1), (1, 2), (3, 2)]


@pytest.mark.full
def test_every_exchange_is_agreed_under_the_name_of_its_units_first_parameter() -> None:
    # The unit whose backward pass runs first comes first.
    units = "second, first, the root"
    rest = Counter({("compare", f"the used parameters of {units}", FIRST["second"]): 2})
    rest["gather", "the norm of the gradients", FIRST["the root"]] = 2
    for found in ranks.run(4, in_all_ways):
        for (stage, copies), said in zip(WAYS, found, strict=True):
            expected = Counter({("reduce", "the gradients", FIRST["the root"]): 2})
            if stage:
                # For the backward pass only stage 3 gathers again.
                often = {"gather": 4 if stage == 3 else 2, "reduce": 2}
                each = {(kind, *unit): often[kind] for kind, unit in product(often, FIRST.items())}
                expected = rest + Counter(each)
            if copies > 1:
                # What was reduced together is averaged under the name of its first unit.
                leads = {name: FIRST[name] for name in (["second"] if stage == 1 else FIRST)}
                expected.update({(kind, *unit): 2 for kind, unit in product(BETWEEN_COPIES, leads.items())})
            assert said == expected, ((stage, copies), said - expected, expected - said)


def what_is_refused() -> None:
    from shardbook import shard
    from shardbook.zero.scheduler import scheduler_of

    model = shard(Model(), units=nn.Sequential, stage=0)
    for unit in scheduler_of(model).units:
        with pytest.raises(RuntimeError, match=f"^{unit.name} is not whole; wait for it first$"):
            unit.show()
        for flat in unit.trainable:
            flat.pending = True
        unit.reduce()
        with pytest.raises(RuntimeError, match=f"^{unit.name} is being reduced; finish that first$"):
            unit.reduce()
        while unit.advance():
            pass


def test_a_unit_is_not_shown_before_it_is_whole_nor_reduced_twice_at_once() -> None:
    ranks.run(2, what_is_refused)


def what_is_sent_is_not_copied() -> None:
    from shardbook import shard

    model = shard(nn.Linear(4, 4))
    (flat,) = (flat for unit in scheduler_of(model).units for flat in unit.flats)
    assert flat.piece() is flat.shard


def test_a_part_that_is_sent_in_its_own_dtype_is_not_copied() -> None:
    ranks.run(2, what_is_sent_is_not_copied)


def what_was_sent_is_freed() -> None:
    from shardbook import shard

    sent: list[torch.Tensor | None] = []
    exchanged: list[torch.Tensor] = []

    def some(tensors: list[torch.Tensor | None] | list[torch.Tensor]) -> int:
        return sum(each.untyped_storage().nbytes() for each in tensors if each is not None)

    def send(flat: Flat, real: Any = Flat.send) -> None:
        real(flat)
        sent.append(flat.sending)

    def mean(groups: Groups, full: torch.Tensor, real: Any = Groups.mean) -> Any:
        """Beside the vector that is exchanged stands no other, not even those that were copied into it."""
        assert not some([each for each in sent if each is not full])
        exchanged.append(full)
        return real(groups, full)

    def receive(flat: Flat, mean: torch.Tensor, real: Any = Flat.receive) -> None:
        """In stage 1 the means of small units do not stand beside the vector in which they were exchanged."""
        assert stage != 1 or not some(exchanged)
        real(flat, mean)

    Flat.send, Flat.receive, Groups.mean = send, receive, mean  # type: ignore[method-assign]
    for stage in range(4):
        shard(Model(), units=nn.Sequential, stage=stage)(DATA).sum().backward()
        assert not some(exchanged)
    assert len(sent) == 12
    assert not some(sent)


def what_was_used_is_forgotten() -> None:
    from shardbook import shard
    from shardbook.zero.scheduler import scheduler_of

    for stage in range(4):
        model = shard(Model(), units=nn.Sequential, stage=stage)
        model(DATA).sum().backward()
        assert not [unit.name for unit in scheduler_of(model).units if unit.usage]


def test_after_a_step_no_unit_knows_what_was_used() -> None:
    """It would hold the parts of a mean, and the next step would read what this one has used."""
    ranks.run(2, what_was_used_is_forgotten)


def names_of_bundles() -> list[list[str]]:
    from shardbook import shard

    model, found = shard(Model(), units=nn.Sequential, stage=1), []
    for frozen in ("", "scale", "first"):
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(parameter.requires_grad and name.split(".")[0] != frozen)
        model(DATA.clone().requires_grad_()).sum().backward()
        found.append([unit.exchanged_as for unit in scheduler_of(model).units])
    return found


def test_units_that_are_exchanged_together_are_known_by_the_first_until_they_go_alone() -> None:
    for found in ranks.run(2, names_of_bundles):
        assert found == [
            ["second and 2 more", "second and 2 more", "second and 2 more"],
            ["second and 2 more", "second and 1 more", "second and 1 more"],
            ["second and 2 more", "second and 1 more", "second"],
        ]


class Aside(Model):
    """The result of the first layer has no part in the loss."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.first(x * self.scale)
        y: torch.Tensor = self.second(x * self.scale)
        return y


def gathered_in_vain() -> None:
    from shardbook import shard
    from shardbook.zero.scheduler import scheduler_of

    model = shard(Aside(), units=nn.Sequential)
    for _ in range(2):
        model(DATA).sum().backward()
        assert {unit.state for unit in scheduler_of(model).units} == {State.SHARDED}


def test_what_a_backward_pass_has_gathered_in_vain_is_freed_at_its_end() -> None:
    ranks.run(2, gathered_in_vain)


class Again(nn.Module):
    """One layer that is used twice, and recomputed once."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Sequential(nn.Linear(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layer(checkpoint(self.layer, x, use_reentrant=True))
        return y


class AgainTogether(nn.Module):
    """Two layers run again before the mean of two small ones has gone on to the other copies."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.large = nn.Sequential(nn.Linear(4, 128), nn.Linear(128, 4))
        self.small, self.last = (nn.Sequential(nn.Linear(4, 4)) for _ in range(2))

    def run(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.small(self.large(x))
        return y

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.last(self.run(checkpoint(self.run, x, use_reentrant=True)))
        return y


def twice_in_a_row(stage: int, kind: type[nn.Module]) -> list[torch.Tensor]:
    from shardbook import Prefetch, shard, whole

    learnt = []
    for mesh in (None, init_device_mesh("cpu", (2, 2))):
        prefetch = Prefetch(together=2**10)
        model = shard(kind(), units=nn.Sequential, stage=stage, mesh=mesh, prefetch=prefetch)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(DATA.clone().requires_grad_()).square().sum().backward()
        optimizer.step()
        with whole(model):
            learnt.append(torch.cat([p.flatten() for p in model.parameters()]))
    return learnt


@pytest.mark.parametrize("stage", [2, 3])
def test_a_unit_is_exchanged_again_while_its_mean_goes_on_to_the_other_copies(stage: int) -> None:
    for kind in (Again, AgainTogether):
        for one, other in ranks.run(4, twice_in_a_row, stage, kind):
            torch.testing.assert_close(one, other)


def test_of_a_vector_that_was_sent_no_memory_stays_even_if_somebody_refers_to_it() -> None:
    ranks.run(2, what_was_sent_is_freed)


def unit_of(size: int, dtypes: tuple[torch.dtype, ...], cut: bool = True) -> Any:
    """A unit with a vector of each dtype. Without a dtype it has one on which a function acts, and which is
    there already.

    :param cut: whether each rank keeps its part of the vectors
    """
    flats = [
        SimpleNamespace(
            layout=SimpleNamespace(padded=size),
            sends_in=dtype,
            full=SimpleNamespace(dtype=dtype),
            sliced=cut,
        )
        for dtype in dtypes or (torch.float32,)
    ]
    return SimpleNamespace(
        kind=dtypes if len(dtypes) == 1 and cut else None,
        splits=STAGES[3],
        after_reduce=[] if dtypes else [print],
        fresh=not dtypes,
        home="here",
        pending=flats,
        filled=flats,
        nbytes=sum(size * flat.sends_in.itemsize for flat in flats),
    )


F16, F32 = torch.float16, torch.float32
Kinds = list[tuple[int, tuple[torch.dtype, ...], bool]]


@pytest.mark.parametrize("alike", [reduced_alike, gathered_alike])
@given(
    kinds=st.lists(
        st.tuples(
            st.integers(0, 6),
            st.sampled_from([(), (F32,), (F16,), (F32, F16)]),
            st.sampled_from([True, True, False]),
        )
    ),
    most=st.integers(20, 21),
)
@example(kinds=[(5, (F16,), True), (5, (F16,), True)], most=20)
@example(kinds=[(5, (F16,), True), (6, (F16,), True)], most=21)
@example(kinds=[(1, (F16,), False), (1, (F16,), False)], most=20)
def test_neighbours_of_one_kind_are_exchanged_together_as_far_as_there_is_room(
    alike: Any, kinds: Kinds, most: int
) -> None:
    """By themselves go those of two dtypes, those that every rank has whole, and those on which functions act
    or that are there already.
    """
    units = [unit_of(*each) for each in kinds]
    groups = [*bundles(units, most, alike)]
    assert [each for group in groups for each in group] == units
    nbytes = [sum(each.nbytes for each in group) for group in groups]
    for group, size in zip(groups, nbytes, strict=True):
        assert len(group) == 1 or (size <= most and {each.kind for each in group} == {group[0].kind} - {None})
    for (one, after), size in zip(pairwise(groups), nbytes, strict=False):
        assert one[0].kind is None or one[0].kind != after[0].kind or size + after[0].nbytes > most


def test_together_units_exchange_up_to_4_mib_of_gradients() -> None:
    for numel, groups in ((2**19, 1), (2**19 + 1, 2)):
        units = [unit_of(numel, (F32,)) for _ in range(2)]
        assert len([*bundles(units, BUNDLE, reduced_alike)]) == groups


def test_a_write_to_a_parameter_and_a_step_make_it_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch counts the writes to the whole parameter, and the vector those to the model's own."""
    found = []
    for writes, version in ((0, 0), (0, 1), (1, 1), (2, 1), (2, 2), (3, 2), (3, 3), (4, 3)):
        monkeypatch.setattr("shardbook.zero.flat.writes_to", lambda value, writes=writes: writes)
        vector = SimpleNamespace(version=version)
        monkeypatch.setattr("shardbook.zero.flat.flat_of", lambda value, vector=vector: vector)
        monkeypatch.setattr("shardbook.zero.flat.is_whole_form", lambda value: value is not DATA)
        found.append(version_of(torch.ones(1)))
        assert version_of(DATA) == writes
    assert found == sorted(set(found))
