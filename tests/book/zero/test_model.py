"""The `shard` call: what it selects and refuses, what is in flight when, and what is stored when."""

from __future__ import annotations

import copy
import io
import logging
import pickle
import warnings
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import ranks
from book.live import LiveStorages
from book.toys import assert_equal, batch, chain, error, features, linears
from shardbook.foundations.hook_context import observers
from shardbook.zero.model import select
from shardbook.zero.optimizer_guard import depends_on_shapes

LAYERS, WIDTH = 4, 64
EVENTS: list[tuple[str, int]] = []


class Logs(nn.Module):
    """A layer that says when it computes."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.linear = number, nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        EVENTS.append(("forward", self.number))
        y: Tensor = LogsBackward.apply(self.linear(x), self.number)
        return y


class LogsBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, number: int) -> Tensor:
        ctx.number = number
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        EVENTS.append(("backward", ctx.number))
        return gradients[0], None


class Logged:
    """A handle that says when it is waited for."""

    def __init__(self, pending: Any, number: int) -> None:
        self.pending, self.number, self.works = pending, number, []

    def wait(self) -> None:
        EVENTS.append(("wait", self.number))
        self.pending.wait()


def log_exchanges() -> None:
    import shardbook.foundations.collectives
    import shardbook.zero.unit

    numbers: dict[int, int] = {}
    all_gather, reduce = shardbook.zero.unit.all_gather, shardbook.foundations.collectives.reduce_scatter_mean

    def logged_gather(full: Tensor, shard: Tensor, **options: Any) -> Logged:
        number = numbers.setdefault(id(full), len(numbers))
        EVENTS.append(("gather", number))
        return Logged(all_gather(full, shard, **options), number)

    def logged_reduce(full: Tensor, **options: Any) -> Any:
        EVENTS.append(("reduce", len([kind for kind, _ in EVENTS if kind == "reduce"])))
        return reduce(full, **options)

    shardbook.zero.unit.all_gather = logged_gather  # type: ignore[assignment]
    shardbook.foundations.collectives.reduce_scatter_mean = logged_reduce


def order_of_a_step(depth: int, passes: int) -> list[tuple[str, int]]:
    """What happens in a step, after some steps in which the order was recorded."""
    from shardbook import shard

    model = shard(nn.Sequential(*[Logs(number) for number in range(3)]), prefetch=depth)
    log_exchanges()
    for _ in range(passes + 1):
        EVENTS.clear()
        model(torch.ones(2, WIDTH)).sum().backward()
    return EVENTS


UNKNOWN = """
    gather 0, wait 0, forward 0
    gather 1, wait 1, forward 1
    gather 2, wait 2, forward 2
    gather 2, wait 2, backward 2, gather 1, reduce 0
    wait 1, backward 1, gather 0, reduce 1
    wait 0, backward 0, reduce 2
"""
ONE_AHEAD = """
    gather 0, wait 0, gather 1, forward 0
    wait 1, gather 2, forward 1
    wait 2, forward 2
    gather 2, wait 2, backward 2, gather 1, reduce 0
    wait 1, backward 1, gather 0, reduce 1
    wait 0, backward 0, reduce 2
"""
TWO_AHEAD = """
    gather 0, wait 0, gather 1, gather 2, forward 0
    wait 1, forward 1
    wait 2, forward 2
    gather 2, wait 2, backward 2, gather 1, gather 0, reduce 0
    wait 1, backward 1, reduce 1
    wait 0, backward 0, reduce 2
"""
WHEN_NEEDED = """
    gather 0, wait 0, forward 0
    gather 1, wait 1, forward 1
    gather 2, wait 2, forward 2
    gather 2, wait 2, backward 2, reduce 0
    gather 1, wait 1, backward 1, reduce 1
    gather 0, wait 0, backward 0, reduce 2
"""


@pytest.mark.cases(now=1, ci=1)
@pytest.mark.parametrize(
    ("depth", "passes", "steps"),
    [(1, 0, UNKNOWN), (1, 1, ONE_AHEAD), (1, 3, ONE_AHEAD), (2, 1, TWO_AHEAD), (0, 1, WHEN_NEEDED)],
)
def test_units_are_gathered_ahead_once_their_order_is_known(depth: int, passes: int, steps: str) -> None:
    words = [event.split() for event in steps.strip().replace("\n", ",").split(",")]
    expected = [(kind, int(number)) for kind, number in words]
    for events in ranks.run(2, order_of_a_step, depth, passes):
        assert events == expected


def memory_of_a_step() -> dict[str, Any]:
    """What is stored between steps, in mid-forward and in mid-backward, in bytes."""
    from shardbook import shard

    model = shard(nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]))
    found: dict[str, Any] = {"forward": [], "backward": []}
    x = torch.ones(1, WIDTH)
    # The first pass records the order of the units.
    with torch.no_grad():
        model(x)
    model(x).sum().backward()
    model.zero_grad()
    with LiveStorages() as live:
        for tensor in (x, *model.parameters()):
            live.note(tensor)
        found["before"] = live.bytes()
        for layer in model:
            layer.register_forward_pre_hook(lambda *_: found["forward"].append(live.bytes()))
        y = model(x)
        loss = y.sum()
        found["after forward"] = live.bytes()
        loss.backward()
        del y, loss
        found["after backward"] = live.bytes()
        model.zero_grad()
        found["after"] = live.bytes()
    found["shards"] = sum(
        storage.nbytes()
        for storage in {
            p.untyped_storage().data_ptr(): p.untyped_storage() for p in model.parameters()
        }.values()
    )
    return found


def test_between_steps_only_the_shards_are_stored() -> None:
    for found in ranks.run(2, memory_of_a_step):
        data = WIDTH * 4
        assert found["shards"] == LAYERS * (WIDTH * WIDTH + WIDTH) * 4 // 2
        assert found["before"] == found["after"] == found["shards"] + data
        # The gradients are one more vector of the shards' length.
        assert found["after backward"] == 2 * found["shards"] + data


def test_in_mid_forward_two_units_are_whole() -> None:
    unit, activation = (WIDTH * WIDTH + WIDTH) * 4, WIDTH * 4
    for found in ranks.run(2, memory_of_a_step):
        # While layer i computes it is whole, and so is layer i + 1, if there is one. Each layer before has
        # left its output. The input is one activation more.
        for index, stored in enumerate(found["forward"]):
            whole = min(2, LAYERS - index)
            assert stored == found["shards"] + whole * unit + (index + 1) * activation
        assert found["after forward"] <= found["shards"] + (LAYERS + 1) * activation + 4


def mid_backward() -> tuple[int, list[int]]:
    from shardbook import shard

    model = shard(nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]))
    stored: list[int] = []
    with LiveStorages() as live:
        for tensor in model.parameters():
            live.note(tensor)
        x = torch.ones(1, WIDTH)
        for layer in model:
            x = layer(x)
            x.register_hook(lambda _: stored.append(live.bytes()))
        x.sum().backward()
    return live.bytes(), stored


def test_in_mid_backward_two_units_and_two_gradients_are_whole() -> None:
    unit, activation = (WIDTH * WIDTH + WIDTH) * 4, WIDTH * 4
    for _, stored in ranks.run(2, mid_backward):
        shards = LAYERS * unit // 2
        assert len(stored) == LAYERS
        for done, now in enumerate(stored):
            # Shards, two units whole, two vectors of gradients, the pieces that the exchange in flight has
            # received, the means of the units before, and some activations with their gradients.
            bound = shards + 2 * unit + 3 * unit + done * unit // 2 + (2 * LAYERS + 4) * activation
            assert now <= bound


def names_and_groups() -> None:
    from shardbook import shard

    told: list[tuple[str, str]] = []
    observers.append(
        SimpleNamespace(
            begins=lambda act, about: told.append(("begins", act)),
            ends=lambda act, about: told.append(("ends", act)),
        )
    )
    plain = chain()
    names = [name for name, _ in plain.named_parameters()]
    shapes = {name: value.shape for name, value in plain.state_dict().items()}
    identities = [id(parameter) for parameter in plain.parameters()]
    decayed = [parameter for parameter in plain.parameters() if parameter.ndim >= 2]
    model = shard(plain, units=(nn.Linear, nn.LayerNorm))
    assert (told[0], told[-1]) == (("begins", "shard"), ("ends", "shard"))
    assert model is plain
    assert type(model) is nn.Sequential
    assert [name for name, _ in model.named_parameters()] == names
    # The optimizer's groups, made by shape before sharding, still hold the model's own parameters.
    assert [id(parameter) for parameter in model.parameters()] == identities
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    error(model, batch(dist.get_rank(), 0)).backward()
    optimizer.step()
    after = model.state_dict()
    assert {name: value.shape for name, value in after.items()} == shapes
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    assert changed == {name for name in shapes if len(shapes[name]) >= 2}


def test_the_model_keeps_its_class_names_and_parameter_objects() -> None:
    ranks.run(2, names_and_groups)


def each_selection() -> list[list[str]]:
    from shardbook.zero.model import select

    found = []
    for units in (None, nn.Linear, (nn.LayerNorm, nn.Embedding), lambda name, module: name.endswith("0")):
        found.append(list(select(chain(), units)))
    found.append(list(select(nn.ModuleDict({"a": nn.Linear(1, 1)}), None)))
    return found


def test_units_are_chosen_by_class_classes_or_predicate() -> None:
    assert each_selection() == [
        ["", "0", "1", "2", "3", "4"],
        ["", "1.0", "1.2", "3.0", "3.2", "4"],
        ["", "0", "2"],
        ["", "0", "1.0", "3.0"],
        [""],
    ]


def groups_of_ranks() -> None:
    """Two pairs of ranks shard two models; a pair sees the data of its own members only."""
    from torch.distributed.device_mesh import init_device_mesh

    from shardbook import shard
    from shardbook.zero.scheduler import scheduler_of

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = shard(chain(), mesh=mesh["shard"])
    loss = error(model, batch(dist.get_rank(), 0))
    loss.backward()
    total = sum(parameter.numel() for parameter in model.parameters())
    numel = torch.tensor(float(total))
    dist.all_reduce(numel, group=mesh.get_group("shard"))
    assert numel.item() == sum(parameter.numel() for parameter in chain().parameters())
    # In an exchange of all copies a rank waits for its own row and column alone.
    partners = scheduler_of(shard(chain(), mesh=mesh)).order.progress.partners
    rank = dist.get_rank()
    assert partners["gather"] == [rank & 2, rank | 1]
    assert partners["average the copies of"] == [rank & 1, rank | 2]
    cube = init_device_mesh("cpu", (2, 2, 1))
    with pytest.raises(ValueError, match="a mesh of 3 dimensions is not supported"):
        shard(chain(), mesh=cube)


def test_a_one_dimensional_mesh_names_the_ranks() -> None:
    ranks.run(4, groups_of_ranks)


def refusals() -> dict[str, str]:
    from shardbook import shard

    lazy = nn.Sequential(nn.LazyLinear(3))
    attempts: dict[str, Any] = {
        "stage": lambda: shard(chain(), stage=4),
        "model": lambda: shard([chain()]),  # type: ignore[type-var]
        "policy": lambda: shard(chain(), policy="bf16"),  # type: ignore[arg-type]
        "prefetch": lambda: shard(chain(), prefetch=-1),
        "units": lambda: shard(chain(), units=nn.Conv2d),
        "twice": lambda: shard(shard(chain())),
        "lazy": lambda: shard(lazy),
    }
    said = {}
    for name, attempt in attempts.items():
        with pytest.raises((TypeError, ValueError)) as caught:
            attempt()
        said[name] = str(caught.value)
    return said


def test_what_cannot_be_sharded_is_refused_in_one_sentence_on_every_rank() -> None:
    for said in ranks.run(2, refusals):
        assert said == {
            "stage": "stage=4 is not a stage; choose 0, 1, 2 or 3",
            "model": "pass the model itself, not a list",
            "policy": "policy='bf16' is not a Policy; pass shardbook.Policy(param_dtype=...)",
            "prefetch": "the depth of a prefetch is -1, but it must be a whole number of at least 0",
            "units": "rank 0: units=<class 'torch.nn.modules.conv.Conv2d'> selects no module; "
            "name a class that the model contains",
            "twice": "rank 0: 0.weight is sharded already; shard a model only once",
            "lazy": "rank 0: 0.weight has no shape yet; run a forward pass before sharding",
        }


def refused_models() -> list[str]:
    from shardbook import shard

    hooked, used, imaginary = linears(), linears(), linears()
    hooked[1].weight.register_hook(lambda gradient: gradient)
    used(features(0)).sum().backward()
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
    # The names and shapes of a part are there on one rank alone, and the values are not.
    part, plain = model[0][1].state_dict(), chain()[1].state_dict()
    assert [(key, value.shape) for key, value in part.items()] == [
        (key, value.shape) for key, value in plain.items()
    ]
    uses = [torch.clone, copy.deepcopy, partial(torch.save, f=io.BytesIO()), torch.ones(1).copy_]
    for use in uses:
        with pytest.raises(RuntimeError) as caught:
            use(next(iter(part.values())))
        said.append(str(caught.value))
    assert len(set(said[-len(uses) :])) == 1
    said[-len(uses) :] = said[-1:]
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
            == (
                "a sharded model cannot be copied or pickled; make copies before sharding, and shard each, "
                "or load its state_dict() into a plain model"
            )
        )
        assert part.endswith(
            "inside 0 has no state_dict of its own; call state_dict() on the unit or on the model"
        )
        assert hook == "the gradient hook on 0.0.weight in unit 0 would never be called; remove it"


class Encoder(nn.Module):
    """A model that is no `Sequential`, as on the home page."""

    def __init__(self, width: int = 128, blocks: int = 6) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 2, 4 * width, batch_first=True)
        self.embed = nn.Embedding(50, width)
        self.encoder = nn.TransformerEncoder(layer, blocks)
        self.heads = nn.ModuleList([nn.Linear(width, 5), nn.Linear(width, 9)])

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.heads[1](self.encoder(self.embed(x)))
        return y


class Single(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(1024, 1024), nn.Linear(1024, 1024)


def units_that_nobody_chose(capture: io.StringIO) -> tuple[str, list[str]]:
    from shardbook import shard

    logging.getLogger("shardbook").addHandler(logging.StreamHandler(capture))
    shard(Encoder())
    # Nothing is said of a small model, of units that somebody chose, of a stage without units in use, and of
    # two halves.
    shard(Encoder(width=8))
    shard(nn.Linear(1023, 1025, bias=False))
    shard(Single(), units=())
    shard(Single(), stage=0)
    shard(nn.Sequential(*[nn.Linear(1024, 1024, bias=False) for _ in range(2)]))
    said = []
    smallest = nn.Linear(1024, 1024, bias=False)
    for large in (Single(), nn.Sequential(Single(), nn.Linear(2, 2)), smallest):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            shard(large)
        said += [str(each.message) for each in caught]
        assert all(each.filename == __file__ for each in caught)
    return capture.getvalue(), said


@pytest.mark.nightly
def test_a_model_without_units_has_those_that_it_repeats() -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    t5 = T5Config(vocab_size=32, d_model=8, d_kv=4, d_ff=16, num_layers=2, num_heads=2)
    with torch.device("meta"):
        models: list[tuple[nn.Module, list[str]]] = [
            (Encoder(), [f"encoder.layers.{n}" for n in range(6)]),
            (Single(), []),
            (
                T5ForConditionalGeneration(t5),
                [f"{side}.block.{n}" for side in ("encoder", "decoder") for n in range(2)],
            ),
            (
                nn.Transformer(8, 2, 2, 2, batch_first=True),
                [f"{s}coder.layers.{n}" for s in ("en", "de") for n in range(2)],
            ),
            (nn.ModuleDict({"a": nn.Sequential(chain(), chain())}), ["a.0", "a.1"]),
        ]
    for model, names in models:
        assert [*select(model, None)] == ["", *names]
    (chosen, said), (_, silent) = ranks.run(2, units_that_nobody_chose, io.StringIO())
    assert chosen == (
        "the units of this Encoder are 6 TransformerEncoderLayer, and the root holds 1% of the parameters; "
        "name others by shard(units=...)\n"
    )
    assert [each.partition(" and ")[0] for each in said] == [
        "the root holds 100% of the parameters of this Single",
        "0 holds 100% of the parameters of this Sequential",
        "the root holds 100% of the parameters of this Linear",
    ]
    assert not silent


class Derived(torch.optim.Adafactor):
    """As the libraries that train models wrap optimizers."""


def stepped(model: nn.Module, kind: Any) -> dict[str, Any]:
    optimizer = kind(p for p in model.parameters() if p.ndim > 1)

    def closure() -> Tensor:
        model.zero_grad()
        loss: Tensor = model(torch.linspace(-1, 1, 12).view(2, 6)).square().mean()
        loss.backward()
        return loss

    for _ in range(3):
        closure()
        optimizer.step(closure)
    return dict(model.state_dict())


def optimizers_of_whole_parameters() -> None:
    from shardbook import shard

    for kind in (torch.optim.Adafactor, torch.optim.LBFGS, torch.optim.Muon):
        torch.manual_seed(0)
        plain = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 6))
        assert_equal(stepped(shard(copy.deepcopy(plain), stage=0), kind), stepped(plain, kind))


def test_stage_0_takes_optimizers_that_need_whole_parameters() -> None:
    ranks.run(2, optimizers_of_whole_parameters)


def optimizers_that_depend_on_shapes() -> list[str]:
    from shardbook import shard

    said = []
    for kind in (torch.optim.Adafactor, torch.optim.LBFGS, Derived):
        model = shard(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)))
        optimizer = kind(model.parameters())
        model(torch.ones(2, 3)).sum().backward()
        with pytest.raises(TypeError) as caught:
            optimizer.step(lambda: torch.zeros(()))
        said.append(str(caught.value))
        # A plain model may use it as before.
        plain = nn.Linear(3, 3)
        plain(torch.ones(2, 3)).sum().backward()
        kind(plain.parameters()).step(lambda: torch.zeros(()))
    return said


def test_an_optimizer_that_depends_on_shapes_is_refused_by_name() -> None:
    for sentences in ranks.run(2, optimizers_that_depend_on_shapes):
        for name, said in zip(("Adafactor", "LBFGS", "Derived"), sentences, strict=True):
            assert said.startswith(f"{name} depends on a parameter's shape")


@pytest.mark.parametrize(
    ("refused", "names"),
    [
        (True, "Lamb8bit NVLamb FusedNovoGrad DistributedShampoo CAME Prodigy DAdaptAdam GaLoreAdamW LARC"),
        (False, "AdamW8bit LambdaSGD Lion FusedAdam AdamWScheduleFree RAdam BecameSGD SparseAdam"),
    ],
)
def test_an_optimizer_is_known_by_a_part_of_its_name(refused: bool, names: str) -> None:
    for name in names.split():
        assert depends_on_shapes(type(name, (torch.optim.Optimizer,), {})) == refused


def test_without_a_process_group_one_sentence_says_what_to_do() -> None:
    from shardbook import Zero3Layer, shard

    for attempt in (lambda: shard(chain()), lambda: Zero3Layer(chain())):
        with pytest.raises(RuntimeError, match=r"torch\.distributed is not initialised"):
            attempt()


def buffers() -> None:
    from shardbook import shard

    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Identity())
    model[1].running_mean.fill_(float(dist.get_rank()))
    model[2].register_buffer("turned", torch.full((3, 2), float(dist.get_rank())).t())
    shard(model)
    assert model[1].running_mean.eq(0).all()
    assert model[2].turned.eq(0).all()
    model(torch.full((4, 4), float(dist.get_rank() + 1)) * torch.arange(4.0)[:, None])
    means = [torch.empty(4) for _ in range(2)]
    dist.all_gather(means, model[1].running_mean)
    assert not torch.equal(*means), "each rank updates its own buffers"


def test_buffers_start_from_rank_0_and_are_then_each_ranks_own() -> None:
    ranks.run(2, buffers)
