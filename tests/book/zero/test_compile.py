"""`torch.compile` and sharding: in which ways the units of a model may be compiled, and what is refused.

The compiler's backends `eager` and `aot_eager` trace as any other does and compute with torch's own kernels.
So a compiled step must equal the uncompiled one to the bit.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ranks
from book.toys import VOCABULARY, assert_equal, batch, error, whole_gradients
from tiers import rows

STEPS = 3


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 13), nn.Linear(13, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.down(F.gelu(self.up(self.norm(x))))
        return x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(VOCABULARY, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(8, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x)
        return logits


def is_block(name: str, module: nn.Module) -> bool:
    """A block, also one that `torch.compile` has wrapped."""
    return name in ("blocks.0", "blocks.1", "blocks.2")


def shard(model: Net, stage: int) -> Net:
    from shardbook import shard

    return shard(model, stage=stage, units=is_block)


# Each way of compiling takes the stage and the compiler's options, and returns the model and what to call.
Way = Callable[[int, dict[str, Any]], tuple[nn.Module, Callable[[Tensor], Tensor]]]


def compile_blocks(stage: int, options: dict[str, Any]) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    model = shard(Net(), stage)
    for block in model.blocks:
        block.compile(**options)
    return model, model


def compile_blocks_first(stage: int, options: dict[str, Any]) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    model = Net()
    for block in model.blocks:
        block.compile(**options)
    return shard(model, stage), model


def replace_blocks(stage: int, options: dict[str, Any]) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    model = shard(Net(), stage)
    for index, block in enumerate(list(model.blocks)):
        model.blocks[index] = torch.compile(block, **options)
    return model, model


def replace_blocks_first(stage: int, options: dict[str, Any]) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    model = Net()
    for index, block in enumerate(list(model.blocks)):
        model.blocks[index] = torch.compile(block, **options)
    return shard(model, stage), model


def replace_forward(stage: int, options: dict[str, Any]) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    model = shard(Net(), stage)
    for block in model.blocks:
        block.forward = torch.compile(block.forward, **options)
    return model, model


def replace_forward_first(
    stage: int, options: dict[str, Any]
) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    model = Net()
    for block in model.blocks:
        block.forward = torch.compile(block.forward, **options)
    return shard(model, stage), model


def compile_model(stage: int, options: dict[str, Any]) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    model = shard(Net(), stage)
    return model, torch.compile(model, **options)


def compile_model_in_place(
    stage: int, options: dict[str, Any]
) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    model = shard(Net(), stage)
    model.compile(**options)
    return model, model


def compile_model_first(stage: int, options: dict[str, Any]) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    model = Net()
    compiled = torch.compile(model, **options)
    return shard(model, stage), compiled


BLOCKS: tuple[Way, ...] = (
    compile_blocks,
    compile_blocks_first,
    replace_blocks,
    replace_blocks_first,
    replace_forward,
    replace_forward_first,
)
MODEL: tuple[Way, ...] = (compile_model, compile_model_in_place, compile_model_first)


def let_the_compiler_look() -> None:
    """The compiler asks tensors for `.grad` and hides the warning, but cannot hide one that is an error."""
    warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor")


def record(model: nn.Module, call: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """Losses, gradients and weights of some steps, and an evaluation."""
    import torch.distributed as dist

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    found = {}
    for step in range(STEPS):
        loss = error(call, batch(dist.get_rank(), step))
        loss.backward()
        found[f"loss {step}"] = loss.detach()
        for index, gradient in enumerate(whole_gradients(model).values()):
            found[f"gradient {index} of step {step}"] = gradient
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        found["evaluation"] = call(batch(dist.get_rank(), STEPS)[0])
    return found


def trains_as_uncompiled(ways: tuple[Way, ...], stages: tuple[int, ...], options: dict[str, Any]) -> None:
    import torch._dynamo as dynamo
    from torch._dynamo.utils import counters

    let_the_compiler_look()
    for stage in stages:
        plain = shard(Net(), stage)
        expected = record(plain, plain)
        for way in ways:
            dynamo.reset()
            counters.clear()
            assert_equal(record(*way(stage, options)), expected)
            # It was compiled, and not run as it was because the compiler gave up.
            assert counters["stats"]["unique_graphs"] > 0, way


@pytest.mark.nightly
@pytest.mark.parametrize("backend", rows(["eager", "aot_eager"], now=["eager"]))
def test_compiled_units_train_as_uncompiled_ones_do(backend: str) -> None:
    # With `fullgraph` the compiler raises where it would leave a part of a unit uncompiled.
    ranks.run(2, trains_as_uncompiled, BLOCKS, (3,), {"backend": backend, "fullgraph": True}, timeout=400)


@pytest.mark.parametrize("stage", rows([0, 1, 2], now=[2]))
def test_units_are_compiled_at_every_stage(stage: int) -> None:
    options = {"backend": "aot_eager", "fullgraph": True}
    ranks.run(2, trains_as_uncompiled, (compile_blocks,), (stage,), options, timeout=400)


@pytest.mark.nightly
@pytest.mark.parametrize("backend", rows(["eager", "aot_eager"], now=["eager"]))
def test_a_model_that_is_compiled_as_a_whole_runs_its_hooks_as_they_are(backend: str) -> None:
    ranks.run(2, trains_as_uncompiled, MODEL, (3,), {"backend": backend}, timeout=400)


def what_compiled_units_keep() -> tuple[list[bool], list[int]]:
    """Whether what is kept for the backward pass of blocks, in the shape of a weight, is a unit's own memory;
    and the bytes of that memory between forward and backward.
    """
    from shardbook.zero.scheduler import scheduler_of

    let_the_compiler_look()
    model, call = compile_blocks(3, {"backend": "aot_eager"})
    units = list(scheduler_of(model).units)
    shapes = {parameter.shape for parameter in Block().parameters() if parameter.ndim == 2}
    kept: list[bool] = []

    def look(tensor: Tensor) -> Tensor:
        if tensor.shape in shapes or tensor.shape[::-1] in shapes:
            kept.append(any(unit.owns(tensor) for unit in units))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(look, lambda tensor: tensor):
        error(call, batch(0, 0))
    return kept, [flat.full.untyped_storage().nbytes() for unit in units for flat in unit.flats]


@pytest.mark.nightly
def test_a_compiled_unit_keeps_no_weights_for_its_backward_pass() -> None:
    for kept, stored in ranks.run(2, what_compiled_units_keep):
        assert kept == [True] * 6
        assert stored == [0] * 4


class Decayed(nn.Linear):
    """Reads the values of its weight past autograd."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) - self.weight.data.sum()


def reads_values() -> None:
    import shardbook

    let_the_compiler_look()
    x = torch.ones(2, 4)
    for stage in range(4):
        plain = nn.Sequential(Decayed(4, 4), Decayed(4, 4))
        expected = plain(x).detach()
        model = shardbook.shard(plain, stage=stage, units=Decayed)
        for unit in model:
            unit.compile(backend="eager", fullgraph=True)
        assert torch.equal(model(x), expected), stage


@pytest.mark.full
def test_a_compiled_unit_reads_the_values_of_its_weights() -> None:
    ranks.run(1, reads_values)


def refused(way: Way) -> str:
    """The compiler's words, and the proof that the model is none the worse."""
    let_the_compiler_look()
    plain = shard(Net(), 3)
    expected = record(plain, plain)
    model, call = way(3, {"backend": "eager", "fullgraph": True})
    with pytest.raises(torch._dynamo.exc.Unsupported) as raised:
        call(batch(0, 0)[0])
    assert_equal(record(model, model.forward if call is model else model), expected)
    return str(raised.value)


@pytest.mark.nightly
def test_one_graph_of_a_whole_model_is_refused_with_what_to_do_instead() -> None:
    for said in ranks.run(2, refused, compile_model):
        assert "a sharded unit gathers its parameters here; compile its units by themselves" in said


def names_of_compiled_units() -> list[list[str]]:
    names = []
    for way in (compile_blocks, replace_forward, compile_model_in_place):
        model, _ = way(3, {"backend": "eager"})
        names.append([name for name, _ in model.named_parameters()])
    return names


@pytest.mark.nightly
def test_units_compiled_in_place_keep_their_parameters_names() -> None:
    expected = [name for name, _ in Net().named_parameters()]
    for names in ranks.run(2, names_of_compiled_units):
        assert names == [expected] * 3
