"""Models built on the meta device: their values, what a rank holds meanwhile, and what is refused."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

import ranks
from book.toys import assert_equal, batch, chain, error
from shardbook.models import gpt
from shardbook.models.gpt import GPT, Block, Config
from shardbook.planning.forecast import Meter
from shardbook.zero.construct import Construction, blank_mark
from shardbook.zero.model import Zero3Layer, shard
from shardbook.zero.scheduler import scheduler_of
from tiers import rows

TINY = Config(layers=3, width=16, heads=2, context=12, vocabulary=31)
UNITS = (None, Block, ())


def on_meta(build: Callable[[], nn.Module]) -> Any:
    """What `build` builds, without memory."""
    with torch.device("meta"):
        return build()


class RealBytes(Meter):
    """The bytes of all storages that have memory."""

    def see(self, tensor: Tensor) -> None:
        if not tensor.is_meta:
            super().see(tensor)


# --- the values ---


def the_gpt_both_ways() -> None:
    for stage in range(4):
        for units in UNITS:
            torch.manual_seed(3)
            plain = shard(GPT(TINY), stage=stage, units=units)
            after = torch.rand(1)
            model = on_meta(lambda: GPT(TINY))
            objects = list(model.parameters())
            torch.manual_seed(3)
            shard(model, stage=stage, units=units)
            # Both have drawn the same numbers, and no more.
            assert torch.equal(torch.rand(1), after)
            assert all(a is b for a, b in zip(objects, model.parameters(), strict=True))
            assert_equal(model.state_dict(), plain.state_dict())
            slices = zip(plain.named_parameters(), model.named_parameters(), strict=True)
            for (name, expected), (other, found) in slices:
                assert name == other
                assert torch.equal(found, expected)
            tokens = torch.randint(31, (2, 12))
            losses = []
            for each in (plain, model):
                gpt.loss(each(tokens), tokens).backward()
                losses.append(gpt.loss(each(tokens), tokens))
            assert losses[0].equal(losses[1])
            pairs = zip(plain.parameters(), model.parameters(), strict=True)
            assert all(torch.equal(a.grad, b.grad) for a, b in pairs)


@pytest.mark.nightly
@pytest.mark.parametrize("world_size", rows([2, 3], now=[2]))
def test_the_gpt_has_the_values_of_a_plain_construction_at_every_stage(world_size: int) -> None:
    ranks.run(world_size, the_gpt_both_ways, timeout=240)


def only_rank_0_counts() -> None:
    torch.manual_seed(0)
    expected = GPT(TINY).state_dict()
    torch.manual_seed(dist.get_rank())
    assert_equal(shard(on_meta(lambda: GPT(TINY))).state_dict(), expected)


@pytest.mark.full
def test_all_ranks_start_from_the_values_of_rank_0() -> None:
    ranks.run(3, only_rank_0_counts)


class Odd(nn.Module):
    """Parameters and buffers of unusual kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(()))
        self.nothing = nn.Parameter(torch.empty(0, 3))
        self.brief = nn.Parameter(torch.empty(3, dtype=torch.bfloat16))
        self.small = nn.Parameter(torch.empty(2, dtype=torch.uint8), requires_grad=False)
        self.register_buffer("order", torch.empty(4, dtype=torch.int64))
        self.register_buffer("mask", torch.empty(4, dtype=torch.bool), persistent=False)
        self.register_buffer("none", None)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        self.scale.uniform_()
        self.brief.normal_()
        self.small.fill_(7)
        self.order.copy_(torch.arange(4))
        self.mask.copy_(torch.arange(4) > 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.brief.sum() + self.order[self.mask].sum() + self.nothing.sum()


class Wide(nn.Module):
    """A tied pair that stands in two units, frozen layers, and norms with running statistics."""

    def __init__(self, tied: bool = True) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 4), Odd(), nn.BatchNorm1d(4))
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.last = nn.Sequential(nn.LSTM(4, 4, batch_first=True), nn.Linear(4, 4))
        if tied:
            self.last[1].weight = self.first[0].weight
        self.first[0].bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)[:, None]
        x = self.attention(x, x, x)[0]
        return self.last[1](self.last[0](x)[0])


def is_part(name: str, module: nn.Module) -> bool:
    return name in ("first", "attention", "last.0")


def odd_both_ways() -> None:
    # A tied weight is set by each module that has it, so a function has to say that this is meant.
    for stage, init in ((0, reset), (1, None), (2, reset), (3, reset), (3, None)):
        build = partial(Wide, tied=init is not None)
        torch.manual_seed(1)
        plain = build()
        if init is not None:
            torch.manual_seed(1)
            plain.apply(init)
        model = on_meta(build)
        model.first[1].brief.mine = "kept"
        torch.manual_seed(1)
        shard(model, stage=stage, units=is_part, init=init)
        found, expected = model.state_dict(), plain.state_dict()
        assert "first.1.mask" not in found
        assert_equal(found, expected)
        buffers = dict(plain.named_buffers())
        assert list(buffers) == [name for name, _ in model.named_buffers()]
        for name, buffer in model.named_buffers():
            assert torch.equal(buffer, buffers[name])
            assert buffer.dtype == buffers[name].dtype
        assert (model.first[0].weight is model.last[1].weight) == (init is not None)
        assert model.first[1].brief.mine == "kept"
        wanted = {name: parameter.requires_grad for name, parameter in plain.named_parameters()}
        assert wanted == {name: parameter.requires_grad for name, parameter in model.named_parameters()}
        model.train()
        for _ in range(2):
            model(torch.randn(3, 4)).sum().backward()
        assert model.first[2].num_batches_tracked.item() == 2


def reset(module: nn.Module) -> None:
    """What is called without `init`."""
    own = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
    if own is not None:
        own()


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize("world_size", [2, 3])
def test_tied_frozen_odd_and_buffers_are_as_in_a_plain_model(world_size: int) -> None:
    ranks.run(world_size, odd_both_ways, timeout=240)


def attention_and_encoder() -> None:
    """PyTorch's own layers, whose constructors set some values twice."""

    def layer() -> nn.Module:
        return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    torch.manual_seed(2)
    plain = nn.Sequential(layer(), layer())
    torch.manual_seed(2)
    model = shard(on_meta(lambda: nn.Sequential(layer(), layer())))
    assert_equal(model.state_dict(), plain.state_dict())
    assert plain[0].self_attn.out_proj.bias.eq(0).all()


def test_layers_of_pytorch_get_the_values_of_their_constructors() -> None:
    ranks.run(2, attention_and_encoder)


def in_part() -> None:
    torch.manual_seed(4)
    real = chain()
    mixed = on_meta(chain)
    # A user has loaded the first two layers, and the others are new.
    mixed[0], mixed[1] = real[0], real[1]
    values = {name: value.clone() for name, value in real.state_dict().items()}
    torch.manual_seed(9)
    expected = [nn.LayerNorm(8), nn.Linear(8, 5, bias=False), nn.Linear(5, 8), nn.Linear(8, 16)]
    torch.manual_seed(9)
    shard(mixed)
    state = mixed.state_dict()
    for name, value in values.items():
        if name.startswith(("0.", "1.")):
            assert torch.equal(state[name], value)
    assert torch.equal(state["3.0.weight"], expected[1].weight)
    assert torch.equal(state["3.2.weight"], expected[2].weight)
    assert torch.equal(state["4.weight"], expected[3].weight)
    assert torch.equal(state["4.bias"], expected[3].bias)
    error(mixed, batch(dist.get_rank(), 0)).backward()


def test_what_is_real_stays_as_it_is() -> None:
    ranks.run(2, in_part)


def other_doors() -> None:
    torch.manual_seed(0)
    expected = GPT(TINY).state_dict()
    mesh = init_device_mesh("cpu", (2, 1))
    for options in ({"mesh": mesh}, {"mesh": mesh.get_group(0), "device": "cpu", "synchronize": False}):
        torch.manual_seed(0)
        assert_equal(shard(on_meta(lambda: GPT(TINY)), **options).state_dict(), expected)
    torch.manual_seed(0)
    assert_equal(Zero3Layer(on_meta(lambda: GPT(TINY))).module.state_dict(), expected)


def test_a_mesh_a_group_and_a_single_layer_take_models_without_memory() -> None:
    ranks.run(2, other_doors)


def groups_and_context() -> None:
    with torch.device("meta"):
        model = GPT(TINY)
        # Shapes are there already, and the objects stay. So groups by shape can be made.
        matrices = [p for p in model.parameters() if p.ndim > 1]
        torch.manual_seed(0)
        # Who forgets to leave the block gets a real model all the same.
        shard(model)
    assert all(p.ndim == 1 for p in matrices)
    optimizer = torch.optim.AdamW(matrices, lr=1.0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    tokens = torch.randint(31, (2, 12))
    gpt.loss(model(tokens), tokens).backward()
    optimizer.step()
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {name for name, value in before.items() if value.ndim > 1}


def test_groups_by_shape_can_be_made_before() -> None:
    ranks.run(2, groups_and_context)


# --- a function that gives the values ---


def own_function() -> None:
    model = on_meta(chain)
    asked: list[nn.Module] = []

    def init(module: nn.Module) -> None:
        assert not torch.is_grad_enabled()
        asked.append(module)
        for parameter in module.parameters(recurse=False):
            assert parameter.device.type == "cpu"
            parameter.fill_(len(asked))

    shard(model, init=init)
    # The parts come before the whole, and what holds nothing is asked for the sake of its parts.
    names = {module: name for name, module in model.named_modules()}
    assert [names[module] for module in asked] == ["0", "1.0", "1.2", "1", "2", "3.0", "3.2", "3", "4"]
    assert model.state_dict()["4.bias"].eq(9).all()
    # A real model needs no values, and gets none.
    asked.clear()
    shard(chain(), init=init)
    assert not asked


def test_init_is_called_for_one_module_after_the_other() -> None:
    ranks.run(2, own_function)


def build(kind: str) -> tuple[Any, type[nn.Module]]:
    """A small model of the transformers library, and the class of its blocks."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers as hf
    from transformers.models.gpt2.modeling_gpt2 import GPT2Block
    from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXLayer
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer
    from transformers.models.t5.modeling_t5 import T5Block

    hf.logging.set_verbosity_error()
    sizes = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 40}
    match kind:
        case "gpt2":
            config = hf.GPT2Config(n_embd=24, n_layer=3, n_head=4, vocab_size=40, n_positions=32)
            return hf.GPT2LMHeadModel(config), GPT2Block
        case "gpt_neox":
            return hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**sizes, intermediate_size=40)), GPTNeoXLayer
        case "llama":
            config = hf.LlamaConfig(**sizes, intermediate_size=40, tie_word_embeddings=True)
            return hf.LlamaForCausalLM(config), LlamaDecoderLayer
        case "t5":
            shape = {"d_model": 24, "d_kv": 6, "d_ff": 40, "num_layers": 2, "num_heads": 4}
            config = hf.T5Config(vocab_size=40, decoder_start_token_id=0, **shape)
            return hf.T5ForConditionalGeneration(config), T5Block
    raise ValueError(kind)


def of_the_library() -> None:
    for kind in ("gpt2", "gpt_neox", "llama", "t5"):
        plain, block = build(kind)
        torch.manual_seed(5)
        with torch.no_grad():
            plain.apply(plain._init_weights)
        after = torch.rand(1)
        model = on_meta(lambda kind=kind: build(kind)[0])
        torch.manual_seed(5)
        shard(model, units=block, init=model._init_weights)
        assert torch.equal(torch.rand(1), after), kind
        assert_equal(model.state_dict(), plain.state_dict())
        # Tables of angles are in no state_dict.
        for (name, found), (other, expected) in zip(
            model.named_buffers(), plain.named_buffers(), strict=True
        ):
            assert name == other
            assert torch.equal(found, expected), name
        tokens = torch.randint(40, (2, 6))
        model.eval()
        plain.eval()
        more = {"labels": tokens} if kind == "t5" else {}
        assert torch.equal(model(tokens, **more).logits, plain(tokens, **more).logits)


@pytest.mark.nightly
def test_models_of_the_transformers_library_get_their_values_buffers_included() -> None:
    ranks.run(2, of_the_library, timeout=240)


class Changed(nn.Module):
    """A constructor that goes on after its parts have got their values."""

    def __init__(self, change: Callable[[nn.Linear], Any]) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
        with torch.no_grad():
            change(self.b)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.b(self.a(x))
        return y


def zero_bias(layer: nn.Linear) -> None:
    nn.init.zeros_(layer.bias)


def smaller(layer: nn.Linear) -> None:
    layer.weight.mul_(0.1)


def nothing(layer: nn.Linear) -> None:
    """The constructor of the parts is all."""


def tied() -> nn.Module:
    model = nn.Sequential(nn.Embedding(4, 3), nn.Linear(3, 4, bias=False))
    model[1].weight = model[0].weight
    return model


class Filled(nn.Module):
    """Values that the constructor does not write in place, and `reset_parameters` does."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def reset_parameters(self) -> None:
        nn.init.ones_(self.scale)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def constructors() -> list[str]:
    said = []
    for units in (None, nn.Linear):
        for change in (zero_bias, smaller):
            with pytest.raises(ValueError, match="constructor") as caught:
                shard(on_meta(partial(Changed, change)), units=units)
            said.append(str(caught.value))
        with pytest.raises(ValueError, match="constructor") as caught:
            shard(on_meta(tied), units=units)
        said.append(str(caught.value))

        # A function that sets the values is asked for, and then trusted.
        def init(module: nn.Module) -> None:
            if isinstance(module, nn.Linear):
                nn.init.ones_(module.weight)
                nn.init.zeros_(module.bias)

        model = shard(on_meta(partial(Changed, zero_bias)), units=units, init=init)
        state = model.state_dict()
        assert state["b.weight"].eq(1).all(), state
        assert state["b.bias"].eq(0).all(), state
    # What a constructor does not repeat is built as before.
    torch.manual_seed(2)
    expected = Changed(nothing).state_dict()
    torch.manual_seed(2)
    assert_equal(dict(shard(on_meta(partial(Changed, nothing))).state_dict()), dict(expected))
    assert shard(on_meta(Filled)).state_dict()["scale"].eq(1).all()
    return said


def test_a_constructor_that_cannot_be_repeated_is_refused_by_name() -> None:
    after = (
        ", so its values would be others than the constructor's; pass init to shard, a function that sets "
    )
    after += "one module"
    beyond = " was written to by a constructor after its module's reset_parameters" + after
    kept = " was set by several modules, of which the constructor kept one" + after
    for said in ranks.run(2, constructors):
        assert said == ["b.bias" + beyond, "b.weight" + beyond, "0.weight" + kept] * 2


def inside_the_block() -> None:
    seen = []

    def init(module: nn.Module) -> None:
        for parameter in module.parameters(recurse=False):
            # A table of a function's own, as that of sines in many models.
            table = torch.linspace(0, 1, parameter.numel())
            seen.append(table.device.type)
            parameter.copy_(table.view_as(parameter))

    with torch.device("meta"):
        model = nn.Linear(2, 3)
        shard(model, init=init)
    assert seen == ["cpu", "cpu"]
    assert torch.equal(model.state_dict()["bias"], torch.linspace(0, 1, 3))


def test_init_makes_real_tensors_inside_of_a_block_for_the_meta_device() -> None:
    ranks.run(2, inside_the_block)


# --- memory ---


def peaks(stage: int, units: Any) -> tuple[int, int, int]:
    """What a construction takes at most, what the formula says, and the bytes of the whole model."""
    config = Config(layers=5, width=32, heads=2, context=16, vocabulary=50)
    torch.manual_seed(0)
    model = on_meta(lambda: GPT(config))
    # The operations of a first construction fill caches of torch.
    shard(on_meta(lambda: GPT(TINY)))
    with RealBytes() as meter:
        start = meter.now()
        shard(model, stage=stage, units=units)
        kept = meter.settled() - start
    made = {unit.name: unit for unit in scheduler_of(model).units}
    # The parts come before the whole: the root, where there is one, is cut last.
    order = [name for name in made if name != "the root"] + [name for name in made if name == "the root"]
    before, moments = 0, []
    for name in order:
        (layout,) = [flat.layout for flat in made[name].flats]
        part = layout.shard_numel if stage == 3 else layout.padded
        # In stage 3 what is kept is a vector of its own.
        own = layout.numel + layout.padded + (part if stage == 3 else 0)
        moments.append(before + own + (root_so_far(model, name) if "the root" in made else 0))
        before += part
    assert kept == 4 * before
    return meter.peak - start, 4 * max(moments), 4 * gpt.parameters(config)


def root_so_far(model: nn.Sequential, name: str) -> int:
    """With blocks as units, the embedding is real while they are made, and belongs to the root."""
    if name == "the root":
        return 0
    return 50 * 32 + 16 * 32


@pytest.mark.nightly
@pytest.mark.parametrize("world_size", rows([2, 3], now=[2]))
def test_no_more_than_the_formula_is_ever_held(world_size: int) -> None:
    for stage in (3, 2, 0):
        for units in (None, Block):
            for peak, formula, whole in ranks.run(world_size, peaks, stage, units, timeout=120):
                assert peak == formula
                assert stage < 3 or peak < whole


def plain_peak() -> tuple[int, int]:
    config = Config(layers=5, width=32, heads=2, context=16, vocabulary=50)
    with RealBytes() as meter:
        start = meter.now()
        shard(GPT(config))
    return meter.peak - start, 4 * gpt.parameters(config)


def test_the_plain_way_holds_the_whole_model() -> None:
    for peak, whole in ranks.run(3, plain_peak):
        assert peak > whole


# --- refusals ---


class Own(nn.Module):
    """Holds a parameter and says nothing of its values."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))


class Careless(Own):
    def reset_parameters(self) -> None:
        """Forgets the parameter."""


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(2, dtype=torch.int64))

    def reset_parameters(self) -> None:
        """Forgets the buffer."""


class Spans(nn.Sequential):
    def reset_parameters(self) -> None:
        """Reaches into all layers."""


class Cached(nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 3)
        self.cache = torch.zeros(3)


@contextmanager
def refused(said: dict[str, str], name: str) -> Iterator[None]:
    with pytest.raises((ValueError, TypeError)) as caught:
        yield
    said[name] = str(caught.value)


def refusals() -> dict[str, str]:
    said: dict[str, str] = {}
    rank = dist.get_rank()

    def set_all(module: nn.Module) -> None:
        for parameter in module.parameters():
            parameter.fill_(1.0)

    before: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
        "no values": (lambda: nn.Sequential(nn.Linear(3, 3), Own()), {}),
        "spans": (lambda: Spans(nn.Linear(3, 3), nn.Linear(3, 3)), {}),
        "cached": (lambda: nn.Sequential(nn.Linear(3, 3), Cached()), {}),
        "no device": (chain, {"device": "nowhere"}),
        "meta": (chain, {"device": "meta"}),
        "no function": (chain, {"init": "zeros"}),
    }
    for name, (built, options) in before.items():
        model = on_meta(built)
        with refused(said, name):
            shard(model, **options)
        assert all(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
    with refused(said, "forgotten"):
        shard(on_meta(lambda: nn.Sequential(nn.Linear(3, 3), Careless())))
    with refused(said, "forgotten buffer"):
        shard(on_meta(lambda: nn.Sequential(nn.Linear(3, 3), Counts())))
    with refused(said, "again"):
        shard(on_meta(lambda: Spans(nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3)), Own())), init=set_all,
              units=lambda name, module: name in ("0", "1"))  # fmt: skip
    observed = on_meta(chain)
    observer = weakref.ref(observed[0].weight)
    with refused(said, "observed"):
        shard(observed)
    assert observer() is observed[0].weight
    with refused(said, "one rank"):
        shard(on_meta(chain) if rank == 1 else chain())
    with refused(said, "one rank cannot"):
        shard(on_meta(lambda: nn.Sequential(Own() if rank == 1 else Careless())))
    # The ranks are still together.
    error(shard(on_meta(chain)), batch(rank, 0)).backward()
    return said


def test_what_cannot_be_built_is_refused_in_one_sentence_on_every_rank() -> None:
    for said in ranks.run(2, refusals):
        assert said == {
            "no values": "rank 0: 1, a Own, has no reset_parameters to give scale its values; "
            "pass init to shard, a function that does",
            "spans": "rank 0: the model, a Spans, has a reset_parameters for several units, which are never "
            "whole together; pass init to shard, a function that sets one module",
            "cached": "rank 0: cache of 1, a Cached, is on the meta device; make it a buffer",
            "no device": "device=nowhere is not there; choose another",
            "meta": "device=meta has no memory; choose a device that has",
            "no function": "init='zeros' cannot be called; pass a function",
            "forgotten": "1.scale was given no values; let init or its module's reset_parameters set it in "
            "place",
            "forgotten buffer": "1.steps was given no values; let init or its module's reset_parameters set "
            "it in place",
            "again": "0.weight had its values already when the model was given its own; "
            "let init set what one module holds itself",
            "observed": "0.weight cannot be given memory: "
            "Cannot swap t1 because it has weakref associated with it",
            "one rank": "rank 1 differs from rank 0: 0.weight in 0 has device meta instead of cpu; "
            "build the same module on every rank",
            "one rank cannot": "rank 1: 0, a Own, has no reset_parameters to give scale its values; "
            "pass init to shard, a function that does",
        }


def test_a_real_part_elsewhere_than_asked_is_refused() -> None:
    (said,) = ranks.run(1, elsewhere)
    assert said == (
        "weight is on cpu, and device=cuda:0 was asked for; move the model before sharding",
        "cpu",
    )


def elsewhere() -> tuple[str | None, str]:
    construction = Construction(nn.Linear(2, 2), {})
    construction.asked = torch.device("cuda:0")
    return construction.objection(), Construction(on_meta(chain), {}).device.type


@pytest.mark.parametrize(
    ("dtype", "marked"),
    [
        (torch.float32, True),
        (torch.float16, True),
        (torch.complex64, True),
        (torch.int32, True),
        (torch.uint8, False),
        (torch.uint16, False),
        (torch.bool, False),
    ],
)
def test_memory_without_values_is_marked_where_a_value_can_be_spared(
    dtype: torch.dtype, marked: bool
) -> None:
    assert (blank_mark(torch.empty(1, dtype=dtype)) is not None) == marked
