"""No training step has two accesses that nothing orders, and each wait in the book prevents some."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import init_device_mesh
from torch.utils.checkpoint import checkpoint

import ranks
import shardbook
from matrix import rows
from shardbook import (
    Policy,
    ShardedGradScaler,
    clip_grad_norm_,
    clip_grad_value_,
    no_sync,
    shard,
    whole,
)
from shardbook import checkpoint as book_checkpoint
from shardbook.check.stream_device import Stream, device, recording
from shardbook.check.stream_events import Trace, Wait
from shardbook.check.stream_recorder import Recorder
from shardbook.check.stream_replay import races
from shardbook.foundations.streams import compute_stream, give_back, streams
from shardbook.parameters.host import to_device, to_host
from shardbook.parameters.offload import move_out
from shardbook.streaming import residual
from shardbook.streaming.streaming import stream
from shardbook.training.full_precision import full_precision
from shardbook.training.optimizer_state import optimizer_state_dict
from shardbook.training.step_in_backward import step_in_backward

# All tests wait for the same recordings, whatever limit the command line sets for one test.
pytestmark = pytest.mark.timeout(600)

STEPS, WIDTH, VOCABULARY = 3, 24, 16
BOOK = Path(shardbook.__file__).parent


class Block(nn.Module):
    """A unit; its parameters are of as many kinds as there are dtypes, and so are its flat vectors."""

    def __init__(self, *dtypes: torch.dtype) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(WIDTH, WIDTH, dtype=dtype) for dtype in dtypes)

    def forward(self, x: Tensor) -> Tensor:
        for linear in self.linears:
            x = x + linear(x.to(linear.weight.dtype)).to(x.dtype)
        return x


class Model(nn.Module):
    """Four blocks, and a root around them."""

    def __init__(self, *dtypes: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(*dtypes) for _ in range(4))
        self.head = nn.Linear(WIDTH, VOCABULARY)
        # Which blocks run, whether they are checkpointed, and before which one the backward pass breaks off.
        self.route, self.checkpoints = [0, 1, 2, 3], False
        # The stream of each block, by its number; without an entry that is the compute stream.
        self.streams: dict[int, int] = {}
        self.broken: int | None = None

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for number in self.route:
            if number == self.broken:
                x.register_hook(fail)
            block = self.blocks[number]
            if number in self.streams:
                x = branch(block, x, self.streams[number])
                continue
            x = checkpoint(block, x, use_reentrant=False) if self.checkpoints else block(x)
        y: Tensor = self.head(x)
        return y


class Switch(torch.autograd.Function):
    """From here on the program computes on another stream, and in the backward pass it comes back from it.

    Whoever switches orders the streams and tells the allocator, as autograd does in the backward pass.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: int) -> Tensor:
        ctx.back = Switch.to(there, x)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        Switch.to(ctx.back, gradient)
        return gradient, None

    @staticmethod
    def to(there: int, x: Tensor) -> int:
        recorder = recording()
        recorder.wait(there, recorder.record(recorder.current), lines=())
        x.record_stream(Stream.of(there))
        recorder.current, before = there, recorder.current
        return before


def branch(block: nn.Module, x: Tensor, stream: int) -> Tensor:
    """A block on a stream of its own, while something else is computed on the stream of the model."""
    home = recording().current
    y = block(Switch.apply(x, stream))
    with device.stream(Stream.of(home)), torch.no_grad():
        other = torch.zeros_like(x)
    y = Switch.apply(y, home) + other
    return y


def fail(gradient: Tensor) -> None:
    raise ArithmeticError("the pass ends here")


class Training:
    """A model in training. It is built in one place, and sharded with the options of `shard`."""

    def __init__(self, stage: int, *dtypes: torch.dtype, place: str = "cpu", **options: Any) -> None:
        with torch.device(place):
            model = Model(*dtypes or (torch.float32,))
        self.model = shard(model, stage=stage, units=Block, **options)
        # A fused optimizer keeps its step counters on the device, too.
        fused = not options.get("policy", Policy()).offload
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, fused=fused, foreach=False)
        self.generator = torch.Generator().manual_seed(1)

    def loss(self) -> Tensor:
        tokens = torch.randint(VOCABULARY, (2, 6), generator=self.generator)
        return F.cross_entropy(self.model(tokens).flatten(0, 1), tokens.flatten())

    def step(self, micro_batches: int = 1) -> None:
        for _ in range(micro_batches):
            self.loss().backward()
        self.update()

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()


def plain(stage: int) -> None:
    training = Training(stage)
    for _ in range(STEPS):
        training.step()


def accumulated(stage: int) -> None:
    """Two means add up in the gradients, for vectors of three kinds."""
    training = Training(stage, torch.float32, torch.bfloat16, torch.float16)
    for _ in range(STEPS):
        training.step(micro_batches=2)


def kept(stage: int) -> None:
    """Gradients add up before they are averaged."""
    training = Training(stage)
    for _ in range(STEPS):
        with no_sync(training.model):
            training.loss().backward()
        training.step()


def clipped(stage: int) -> None:
    """The gradients are clipped, first by their norm and then by their values."""
    training = Training(stage)
    for _ in range(STEPS):
        training.loss().backward()
        clip_grad_norm_(training.model, 0.1)
        clip_grad_value_(training.model, 0.01)
        training.update()


def narrow(stage: int) -> None:
    """Gradients travel in 16 bits, and three units are gathered ahead."""
    training = Training(stage, policy=Policy(reduce_dtype=torch.bfloat16), prefetch=3)
    for _ in range(STEPS):
        training.step(micro_batches=2)


def low(stage: int) -> None:
    """Modules compute in 16 bits with copies of FP32 masters; in between, with the masters."""
    training = Training(stage, policy=Policy(param_dtype=torch.bfloat16, output_dtype=torch.float32))
    for _ in range(STEPS):
        training.step(micro_batches=2)
        with full_precision(training.model):
            training.loss()
    training.model.load_state_dict(training.model.state_dict())
    training.step()


def offloaded(stage: int) -> None:
    """The masters are on the host, where the optimizer trains them."""
    training = Training(stage, policy=Policy(offload=True))
    for _ in range(STEPS):
        training.step(micro_batches=2)
        training.model.load_state_dict(training.model.state_dict())


def offloaded_low(stage: int) -> None:
    """The same in 16 bits, and the optimizer steps in the backward pass."""
    policy = Policy(param_dtype=torch.bfloat16, output_dtype=torch.float32, offload=True)
    training = Training(stage, policy=policy)
    step_in_backward(training.model, partial(torch.optim.AdamW, lr=1e-2, foreach=False))
    for _ in range(STEPS):
        training.loss().backward()
        with torch.no_grad():
            training.loss()


def repeated(stage: int) -> None:
    """Both ranks hold a copy of the model, in a mesh that could also share it out."""
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    training = Training(stage, mesh=mesh)
    for _ in range(STEPS):
        training.step(micro_batches=2)


def built(stage: int) -> None:
    """The model has no values until it is sharded."""
    training = Training(stage, place="meta", device="cpu")
    for _ in range(STEPS):
        training.step()


def evaluated(stage: int) -> None:
    """Forward passes alone between the steps."""
    training = Training(stage)
    for _ in range(STEPS):
        training.step()
        with torch.no_grad():
            training.loss()


def gathered(stage: int) -> None:
    """A loss reads parameters of several units between their passes."""
    training = Training(stage)
    for _ in range(STEPS):
        loss = training.loss()
        with whole(training.model):
            loss = loss + sum(parameter.square().sum() for parameter in training.model.parameters())
        loss.backward()
        training.update()


def rerouted(stage: int) -> None:
    """A unit is gathered ahead and then does not run; another one runs twice."""
    training = Training(stage)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the units run in another order")
        for route in ([0, 1, 2, 3], [0, 1, 2], [0, 1, 2, 3], [0, 2, 2, 3]):
            training.model.route = route
            training.step()


def checkpointed(stage: int) -> None:
    """Each unit runs again in the backward pass."""
    training = Training(stage)
    training.model.checkpoints = True
    for _ in range(STEPS):
        training.step()


def stepped(stage: int) -> None:
    """Each unit's optimizer steps while the backward pass goes on."""
    training = Training(stage)
    step_in_backward(training.model, partial(torch.optim.AdamW, lr=1e-2, fused=True))
    for _ in range(STEPS):
        training.loss().backward()


def scattered(stage: int) -> None:
    """Two blocks compute on streams of their own, and the optimizer steps on a third one."""
    training = Training(stage)
    training.model.streams = {0: Stream("cpu").number, 2: Stream("cpu").number}
    third = Stream("cpu")
    for _ in range(STEPS):
        training.loss().backward()
        with device.stream(third):
            training.update()
        # What the root reads in stage 0 is the parameters themselves, as in a plain model.
        device.current_stream("cpu").wait_stream(third)


def saved(stage: int) -> None:
    """The state is saved and loaded between the steps."""
    training = Training(stage)
    for _ in range(STEPS):
        training.step()
        optimizer_state_dict(training.model, training.optimizer)
        training.model.load_state_dict(training.model.state_dict())


def failed(stage: int, **options: Any) -> None:
    """A backward pass raises while a reduction is under way, and training goes on.

    In the middle the next unit is under way, too. At the beginning of the model nothing else is.
    """
    training = Training(stage, **options)
    for place in (2, 0):
        training.step()
        training.model.broken = place
        with pytest.raises(ArithmeticError):
            training.loss().backward()
        training.model.broken = None
        training.optimizer.zero_grad()
    training.step()


def failed_on_a_mesh() -> None:
    """The same where means of three units are on their way to another copy of the model."""
    failed(3, mesh=init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard")))


def scaled(stage: int) -> None:
    """Losses are scaled for FP16 gradients, and the ranks agree on the steps that are skipped."""
    policy = Policy(param_dtype=torch.float16, output_dtype=torch.float32)
    training, scaler = Training(stage, policy=policy), ShardedGradScaler(growth_interval=2)
    for _ in range(STEPS):
        for _ in range(2):
            scaler.scale(training.loss()).backward()
        scaler.unscale_(training.optimizer)
        clip_grad_norm_(training.model, 0.1)
        scaler.step(training.optimizer)
        scaler.update()
        training.optimizer.zero_grad()


def rested(around: residual.Residual) -> None:
    """Train a model whose checkpoints wait somewhere else; each variant of checkpoints in turn."""
    model = Model(torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    tokens = torch.arange(12).view(2, 6)
    for reentrant in (False, True, False):
        x = model.embedding(tokens)
        with around:
            for block in model.blocks:
                x = book_checkpoint(block, x, use_reentrant=reentrant)
        F.cross_entropy(model.head(x).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()


def resting() -> None:
    """Checkpoints wait on the host."""
    rested(residual.offload(least=0))


def overwritten() -> None:
    """A tensor is written to while it is copied to the host. That races, and the pass is refused."""
    x = torch.ones(8, requires_grad=True) * 1
    with residual.offload(least=0):
        y = x.sin()
    x.add_(1)
    with pytest.raises(RuntimeError, match="was changed in place after autograd had saved it"):
        y.sum().backward()


def parted() -> None:
    """Each rank keeps a piece of each checkpoint."""
    rested(residual.partition(least=0))


def parted_and_resting() -> None:
    """The pieces wait on the host."""
    rested(residual.partition(offload=True, least=0))


def on_the_host(norm: Callable[[], nn.Module]) -> nn.Sequential:
    """A chain whose second layer is frozen, and whose last one has the first one's matrix.

    It is older than the recording.
    """
    torch.manual_seed(0)
    with recording().paused():
        frozen = Block(torch.float32).requires_grad_(False)
        ends = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        ends[1].weight = ends[0].weight
        model = nn.Sequential(ends[0], frozen, norm(), Block(torch.float32), ends[1])
    recording().keep_on_host([*model.parameters(), *model.buffers()])
    return model


def streamed() -> None:
    """Parameters and buffers come from the host slice by slice, and gradients and buffers go there."""
    train_streamed(partial(nn.BatchNorm1d, 6), offload_activations=True)


def streamed_low() -> None:
    """Parameters and gradients travel in 16 bits; the inputs of the slices stay on the device."""
    train_streamed(partial(nn.LayerNorm, WIDTH), param_dtype=torch.bfloat16)


def train_streamed(norm: Callable[[], nn.Module], **options: Any) -> None:
    """First a forward pass breaks off while a slice is on its way. After each step there is one alone.

    Then a backward pass ends early, so that a slice comes in vain.
    """
    model = stream(on_the_host(norm), device="cpu", **options)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2, foreach=False)
    tokens = torch.arange(12).view(2, 6)
    broken = model[1].register_forward_pre_hook(lambda *_: fail(tokens))
    with pytest.raises(ArithmeticError):
        model(tokens)
    torch.ones(WIDTH)  # it may get the memory of that slice
    broken.remove()
    for _ in range(STEPS):
        for _ in range(2):
            F.cross_entropy(model(tokens).float().flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            model(tokens)
        torch.autograd.grad(model(tokens).float().sum(), model[-1].bias)
        torch.ones(WIDTH)


Mode = Callable[[int], None]
MODES: list[Mode] = [
    plain,
    accumulated,
    kept,
    clipped,
    narrow,
    low,
    offloaded,
    offloaded_low,
    repeated,
    built,
    stepped,
    evaluated,
    gathered,
    checkpointed,
    rerouted,
    scattered,
    saved,
    failed,
    scaled,
]
STAGES = [0, 1, 2, 3]
# These have no stages.
ALONE: list[Callable[[], None]] = [
    failed_on_a_mesh,
    resting,
    parted,
    parted_and_resting,
    streamed,
    streamed_low,
]
RUNS: dict[str, Callable[[], None]] = {
    **{f"{stage}-{mode.__name__}": partial(mode, stage) for stage, mode in product(STAGES, MODES)},
    **{mode.__name__: mode for mode in ALONE},
}


# What `make test` runs.
NOW = [name for name in RUNS if name.startswith("3-")]


def record(names: list[str]) -> dict[str, Trace]:
    """What this rank asks of its device in some of the runs."""
    traces = {}
    for name in names:
        with Recorder() as recorder:
            RUNS[name]()
        traces[name] = recorder.trace
    return traces


@pytest.fixture(scope="module")
def recordings(request: pytest.FixtureRequest) -> dict[str, Trace]:
    """What rank 0 of 2 asked of its device, in the runs that are asked for."""
    wanted = {item.callspec.params["run"] for item in request.session.items if is_run(item)}
    everything = any(item.name == test_each_wait_prevents_a_race.__name__ for item in request.session.items)
    names = [name for name in RUNS if everything or name in wanted]
    traces: dict[str, Trace] = ranks.run(2, record, names, timeout=240)[0]
    return traces


def is_run(item: Any) -> bool:
    """Whether a test that was collected is about one of the runs."""
    return "run" in getattr(getattr(item, "callspec", None), "params", ()) and item.path == Path(__file__)


@pytest.mark.parametrize("run", rows(RUNS, now=NOW))
def test_nothing_races(recordings: dict[str, Trace], run: str) -> None:
    assert not [str(race) for race in races(recordings[run])]


@pytest.mark.full
def test_each_wait_prevents_a_race(recordings: dict[str, Trace]) -> None:
    """A wait whose absence nobody notices is either superfluous or has no test."""
    idle = [
        wait
        for wait, lines in waits_in_the_book().items()
        if not any(
            races(trace, without=lines)
            for trace in sorted(recordings.values(), key=len)
            if any(isinstance(event, Wait) and lines & {*event.lines} for event in trace)
        )
    ]
    assert not idle


WAITS = ("wait", "wait_stream", "wait_event", "synchronize", "arrive")


FOR_CHECKPOINTS = {"self.wait()", "self.background.wait()", "self.checkpoints.wait()"}


FOR_CHECKPOINTS = {"self.wait()", "self.background.wait()", "self.checkpoints.wait()"}


def waits_in_the_book() -> dict[str, set[str]]:
    """Every call in the sources that makes a stream or the host wait, and the lines it stands on."""
    found = {}
    for file in sorted(BOOK.rglob("*.py")):
        # What checks a program makes none of its streams wait.
        if file.parent.name == "check":
            continue
        for function in ast.walk(ast.parse(file.read_text())):
            # The first makes the host wait, for backends that have no streams. The second keeps gradients
            # from piling up on a device, and test_streaming.py counts them. The third keeps NCCL's kernels
            # from blocking each other, and test_collectives.py looks for it. test_handover.py looks for the
            # fourth, which needs a recomputation on several streams. The last two wait for other processes
            # and for the end of a thread.
            unseen = ("arrived", "let_leave", "take_turn", "hand_over", "wait_for", "monitor")
            if not isinstance(function, ast.FunctionDef) or function.name in unseen:
                continue
            for node in ast.walk(function):
                match node:
                    # What a class passes on to its parent is another thing of the same name.
                    case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id="super")))):
                        pass
                    # So is the end of a checkpoint in the background.
                    case ast.Call() if ast.unparse(node) in FOR_CHECKPOINTS:
                        pass
                    # So is the end of a checkpoint in the background.
                    case ast.Call() if ast.unparse(node) in FOR_CHECKPOINTS:
                        pass
                    case ast.Call(func=ast.Attribute(attr=name)) if name in WAITS:
                        name = f"{file.name}:{node.lineno} {ast.unparse(node)}"
                        lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
                        found[name] = {f"{file.name}:{line}" for line in lines}
    return found


# The model itself: what it must find, and what it must not.


def side_stream(*, wait: bool = True, back: bool = True, tell: bool = False) -> list[Any]:
    """Memory that is taken and filled on a side stream, read on the compute stream, and taken again."""
    with Recorder() as recorder:
        side = Stream("cpu")
        compute = device.current_stream("cpu")
        with device.stream(side):
            x = torch.ones(8)
        if wait:
            compute.wait_stream(side)
        x.sum()
        if tell:
            x.record_stream(compute)
        del x
        if back:
            side.wait_stream(compute)
        with device.stream(side):
            torch.ones(16)
    return races(recorder.trace)


def test_the_model_finds_a_read_that_comes_too_early() -> None:
    (race,) = side_stream(wait=False)
    assert str(race) == (
        "read on the compute stream by sum, the training loop\n"
        "    is not ordered after\n"
        f"    write on stream {Stream.made} by ones, the training loop"
    )


def test_the_model_finds_memory_that_is_taken_too_early() -> None:
    assert side_stream() == []
    assert len(side_stream(back=False)) == 1
    assert side_stream(back=False, tell=True) == []


@pytest.mark.parametrize("end", ["resize", "del"])
def test_the_model_takes_a_shrunk_storage_for_a_free_one(end: str) -> None:
    with Recorder() as recorder:
        x, side = torch.ones(8), Stream("cpu")
        side.wait_stream(device.current_stream("cpu"))
        with device.stream(side):
            x.add_(1)
        if end == "resize":
            x.untyped_storage().resize_(0)
        else:
            del x
        torch.ones(2)
    assert len(races(recorder.trace)) == 1


def test_the_model_lets_views_and_empty_memory_alone() -> None:
    with Recorder() as recorder:
        x, side = torch.empty(8), Stream("cpu")
        with device.stream(side):
            y = x.view(2, 4)[1].detach()
            torch.empty_like(y)
            y.fill_(1)
    assert races(recorder.trace) == []


@pytest.mark.parametrize("wait", [False, True])
def test_the_model_lets_the_thread_and_then_the_device_read_what_the_thread_waited_for(wait: bool) -> None:
    found = []
    for away in (False, True):
        with Recorder() as recorder:
            there = to_host(torch.ones(8), "x")
            crossing = there.back(torch.device("cpu"), "x") if away else there
            assert there.copy.is_cpu
            assert crossing.copy.is_cpu is not away
            if wait:
                crossing.arrive()
            crossing.copy.sum()
        found.append([str(race).split(",")[0] for race in races(recorder.trace)])
    expected = ["read on the host by sum"], ["read on the compute stream by sum"]
    assert found == ([[], []] if wait else [*expected])


def test_the_model_finds_a_copy_to_the_device_that_does_not_wait_for_the_one_to_the_host() -> None:
    with Recorder() as recorder:
        there = to_host(torch.ones(8), "x")
        to_device(there.copy, torch.device("cpu"), "x").wait()
    (race,) = races(recorder.trace)
    assert str(race).startswith(f"read on stream {Stream.made} by copy_")


def test_the_model_takes_a_stream_without_a_device_for_one_of_another_device() -> None:
    for named in (None, "cpu"):
        with Recorder() as recorder:
            x, side = torch.ones(8), Stream("cpu")
            side.wait_stream(device.current_stream(named))
            with device.stream(side):
                x.sum()
        assert len(races(recorder.trace)) == (named is None), named
        with Recorder() as recorder:
            x = torch.ones(8)
            # A block with a stream of another device does not change where `x` is computed.
            with device.stream(Stream(named)):
                x.add_(1)
        assert len(races(recorder.trace)) == (named is not None), named


def test_every_copy_and_wait_names_the_device_of_its_tensor() -> None:
    cpu = torch.device("cpu")
    with Recorder() as recorder:
        assert all(stream.at_home for stream in streams(cpu))
        there = to_host(torch.ones(8), "x")
        there.arrive().sum()
        to_device(there.copy, cpu, "x").wait().sum()
        there.back(cpu, "x").wait().sum()
        move_out(torch.ones(8)).sum()
    assert not [str(race) for race in races(recorder.trace)]


def test_who_computes_on_another_stream_comes_after_the_one_before() -> None:
    cpu = torch.device("cpu")
    found = []
    for ordered in (True, False):
        with Recorder() as recorder:
            compute_stream(cpu)
            x, other = torch.ones(8), Stream("cpu")
            with device.stream(other):
                if ordered:
                    compute_stream(cpu)
                x.add_(1)
                x.untyped_storage().resize_(0)
                if ordered:
                    give_back(cpu)
            torch.ones(8)
        found.append(len(races(recorder.trace)))
    assert found == [0, 2]


def test_a_write_that_may_overtake_a_copy_to_the_host_is_found_and_refused() -> None:
    with Recorder() as recorder:
        overwritten()
    (race,) = races(recorder.trace)
    assert str(race).startswith("write on the compute stream by add_")
