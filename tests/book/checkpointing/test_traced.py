"""Checkpoints inside of compiled code: what is compiled, what is computed again, what is refused."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as torch_checkpoint
from torch.utils.checkpoint import create_selective_checkpoint_contexts

import ranks
from book.toys import assert_all_equal
from shardbook import checkpoint, checkpoint_module

# The compiler looks at `grad` of each tensor that enters a frame.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
SAVED = [torch.ops.aten.addmm.default]


class Block(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.up, self.down, self.drop = nn.Linear(4, 8), nn.Linear(8, 4), nn.Dropout(dropout)

    def forward(self, x: Tensor, *, scale: float = 2.0) -> Tensor:
        return x + scale * self.down(self.drop(torch.tanh(self.up(x))))


class Talking(Block):
    def forward(self, x: Tensor, *, scale: float = 2.0) -> Tensor:
        x = torch.sin(x)
        torch._dynamo.graph_break()
        return super().forward(x, scale=scale)


class Graphs:
    """A backend that counts the operations of the graphs it is given: whole, forward and backward."""

    def __init__(self) -> None:
        self.whole: list[Any] = []
        self.forward, self.backward = Counter[str](), Counter[str]()

    def __call__(self, graph: Any, inputs: Any) -> Any:
        from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
        from torch._dynamo.backends.common import aot_autograd

        def counting(counter: Counter[str]) -> Callable[..., Any]:
            def compiler(part: Any, _: Any) -> Any:
                counter.update(str(node.target) for node in part.graph.nodes if node.op == "call_function")
                return make_boxed_func(part.forward)

            return compiler

        self.whole.append(graph)
        return aot_autograd(
            fw_compiler=counting(self.forward),
            bw_compiler=counting(self.backward),
            partition_fn=min_cut_rematerialization_partition,
        )(graph, inputs)

    def again(self) -> tuple[int, ...]:
        """How many tanhs and products with a bias run forward, and how many backward."""
        names = ("aten.tanh.default", "aten.addmm.default")
        return tuple(counter[name] for counter in (self.forward, self.backward) for name in names)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def block(kind: type[Block] = Block, **options: Any) -> Block:
    torch.manual_seed(0)
    return kind(**options)


def gradients(model: nn.Module, call: Callable[[Tensor], Tensor]) -> list[Tensor]:
    x = torch.ones(3, 4, requires_grad=True)
    torch.manual_seed(5)
    y = call(x * 2)
    y.sum().backward()
    found = [y.detach(), x.grad, *[parameter.grad for parameter in model.parameters()]]
    model.zero_grad()
    assert all(tensor is not None for tensor in found)
    return found  # type: ignore[return-value]


def checkpointed_first(model: nn.Module, options: dict[str, Any], compiler: dict[str, Any]) -> None:
    checkpoint_module(model, **options).compile(**compiler)


def compiled_first(model: nn.Module, options: dict[str, Any], compiler: dict[str, Any]) -> None:
    model.compile(**compiler)
    checkpoint_module(model, **options)


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize("way", [checkpointed_first, compiled_first])
@pytest.mark.parametrize(
    ("options", "again"),
    [
        ({}, (1, 2, 1, 1)),  # the product after the last saved tensor is not repeated
        ({"use_reentrant": True}, (1, 2, 1, 1)),
        ({"policy": SAVED}, (1, 2, 1, 0)),
        ({"context_fn": partial(create_selective_checkpoint_contexts, SAVED)}, (1, 2, 1, 0)),
    ],
)
def test_a_checkpointed_module_is_compiled_in_either_order(
    way: Callable[..., None], options: dict[str, Any], again: tuple[int, ...]
) -> None:
    model, graphs = block(), Graphs()
    way(model, options, {"backend": graphs, "fullgraph": True})
    assert_all_equal(gradients(model, model), gradients(plain := block(), plain))
    assert (len(graphs.whole), graphs.again()) == (1, again)
    # The same graph serves the next step.
    assert_all_equal(gradients(model, model), gradients(plain, plain))
    assert len(graphs.whole) == 1


def compile_sharded_blocks() -> None:
    from shardbook import shard

    warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor")
    results = []
    for order in ("plain", "checkpointed first", "sharded first"):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model, graphs = nn.Sequential(Block(), Block()), Graphs()
        if order == "checkpointed first":
            checkpoint_module(model, Block)
        shard(model, stage=3, units=Block)
        if order == "sharded first":
            checkpoint_module(model, Block)
        if order != "plain":
            for one in model:
                one.compile(backend=graphs, fullgraph=True)
        for step in range(2):
            x = torch.full((3, 4), 1.0 + step, requires_grad=True)
            y = model(x)
            y.sum().backward()
        results.append([y.detach(), x.grad, *[p.grad for p in model.parameters()]])
        # One graph for both blocks, and perhaps one more where the first input is a leaf.
        number = len(graphs.whole)
        assert number in ((0,) if order == "plain" else (1, 2)), (order, number)
        assert graphs.again() == (number, 2 * number, number, number), (order, graphs.again())
        assert_all_equal(results[-1], results[0])


@pytest.mark.nightly
def test_checkpointed_units_are_compiled() -> None:
    ranks.run(2, compile_sharded_blocks)


@pytest.mark.cases(now=1, ci=1)
@pytest.mark.parametrize("policy", [None, SAVED])
def test_one_graph_holds_a_checkpoint_as_it_holds_torchs(policy: Any) -> None:
    found = []
    for run in (checkpoint, torch_checkpoint):
        model, graphs = block(), Graphs()
        options: dict[str, Any] = {"use_reentrant": False}
        if policy is not None:
            options["context_fn"] = partial(create_selective_checkpoint_contexts, policy)
            if run is checkpoint:
                options = {"policy": policy}

        def step(x: Tensor, run: Any = run, model: Any = model, options: Any = options) -> Tensor:
            return run(model, x.sin(), scale=3.0, **options).cos()

        compiled = torch.compile(step, backend=graphs, fullgraph=True)
        kept = list[int]()

        def keep(tensor: Tensor, kept: list[int] = kept) -> Tensor:
            kept.append(tensor.nbytes)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            results = gradients(model, compiled)
        found.append((results, graphs.forward, graphs.backward, sorted(kept)))
    assert_all_equal(found[0][0], found[1][0])
    assert found[0][1:] == found[1][1:]


def test_a_backend_that_cuts_no_graph_draws_the_same_mask_again() -> None:
    model = checkpoint_module(block(dropout=0.5))
    model.compile(backend="eager", fullgraph=True)
    assert_all_equal(gradients(model, model), gradients(plain := block(dropout=0.5), plain))
    for policy in (SAVED, lambda op, *_: op is torch.ops.aten.native_dropout.default):
        kept = torch.compile(partial(checkpoint, plain, policy=policy), backend="eager", fullgraph=True)
        assert_all_equal(gradients(plain, kept), gradients(plain, plain))


def test_what_cannot_be_recorded_runs_uncompiled_with_a_warning() -> None:
    model = checkpoint_module(block(Talking))
    model.compile(backend="eager")
    with pytest.warns(UserWarning, match=r"Talking.forward is checkpointed and could not be recorded"):
        found = gradients(model, model)
    assert_all_equal(found, gradients(plain := block(Talking), plain))
    silent = block(Talking)
    with pytest.warns(UserWarning, match=r"Talking is checkpointed and could not be recorded"):
        found = gradients(silent, torch.compile(lambda x: checkpoint(silent, x), backend="eager"))
    assert_all_equal(found, gradients(plain, plain))
    # A function that is compiled by itself is compiled, and nothing is to be said.
    assert_all_equal(
        gradients(silent, lambda x: checkpoint(torch.compile(silent, backend="eager"), x)), found
    )


def test_what_looks_at_each_operation_is_not_recorded() -> None:
    for options in ({"debug": True}, {"determinism_check": "debug"}):
        model = checkpoint_module(block(), **options)
        model.compile(backend="eager", fullgraph=True)
        with pytest.raises(torch._dynamo.exc.Unsupported, match="runs again in the backward pass"):
            model(torch.ones(3, 4))
        model = checkpoint_module(block(), **options)
        model.compile(backend="eager")
        with pytest.warns(UserWarning, match="nothing of it is compiled"):
            assert_all_equal(gradients(model, model), gradients(plain := block(), plain))


def test_a_model_that_is_compiled_as_a_whole_compiles_its_checkpointed_modules() -> None:
    graphs = Graphs()
    torch.manual_seed(0)
    model = nn.Sequential(Block(), nn.Tanh(), Block())
    plain = nn.Sequential(Block(), nn.Tanh(), Block())
    plain.load_state_dict(model.state_dict())
    checkpoint_module(model, Block)
    compiled = torch.compile(model, backend=graphs)
    assert_all_equal(gradients(model, compiled), gradients(plain, plain))
    assert graphs.forward["aten.addmm.default"] == graphs.backward["aten.addmm.default"] * 2 > 0
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="begins a graph of its own; compile the module"):
        torch.compile(model, backend="eager", fullgraph=True)(torch.ones(3, 4))


@pytest.mark.full
def test_many_classes_of_checkpointed_modules_are_all_compiled() -> None:
    number = torch._dynamo.config.recompile_limit + 2
    lines = "\n".join(f"def forward_{i}(self, x):\n    return (x * {i}).sin()" for i in range(number))
    made: dict[str, Any] = {}
    exec(lines, made)
    graphs = Graphs()
    for i in range(number):
        model = type(f"Own{i}", (nn.Module,), {"forward": made[f"forward_{i}"]})()
        checkpoint_module(model).compile(backend=graphs, fullgraph=True)
        x = torch.ones(3, requires_grad=True)
        model(x).sum().backward()
        assert torch.equal(x.grad, i * torch.cos(torch.ones(3) * i))  # type: ignore[arg-type]
    assert len(graphs.whole) == number
