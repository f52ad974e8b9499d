"""Programs that train a small model in many ways: in each stage, accumulated, offloaded, interrupted.

`test_races.py` records what they ask of a device, and `device/` lets them run on one. Each takes a stage and
trains what it makes, `Training.last`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import init_device_mesh
from torch.utils.checkpoint import checkpoint

from shardbook import (
    Policy,
    Prefetch,
    ShardedGradScaler,
    clip_grad_norm_,
    clip_grad_value_,
    no_sync,
    shard,
    whole,
)
from shardbook import checkpoint as book_checkpoint
from shardbook.foundations.collectives import all_reduce
from shardbook.streaming import residual
from shardbook.streaming.streaming import stream
from shardbook.training.accumulate import step_in_backward
from shardbook.training.optimizer_state import optimizer_state_dict
from shardbook.training.whole import full_precision
from shardbook.zero import scheduler

STEPS, WIDTH, VOCABULARY = 3, 24, 16


class Block(nn.Module):
    """A unit; its parameters are of as many kinds as there are dtypes, and so are its flat vectors."""

    def __init__(self, *dtypes: torch.dtype) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(WIDTH, WIDTH, dtype=dtype) for dtype in dtypes)
        self.used = len(dtypes)

    def forward(self, x: Tensor) -> Tensor:
        for linear in self.linears[: self.used]:
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
        self.streams: dict[int, Any] = {}
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
    def forward(ctx: Any, x: Tensor, there: Any) -> Tensor:
        ctx.back = Switch.to(there, x)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        Switch.to(ctx.back, gradient)
        return gradient, None

    @staticmethod
    def to(there: Any, x: Tensor) -> Any:
        if x.is_cpu:
            return there
        module = torch.get_device_module(x.device)
        before = module.current_stream(x.device)
        there.wait_stream(before)
        x.record_stream(there)
        module.set_stream(there)
        return before


def branch(block: nn.Module, x: Tensor, stream: Any) -> Tensor:
    """A block on a stream of its own, while something else is computed on the stream of the model."""
    module = torch.get_device_module(x.device)
    home = module.current_stream(x.device)
    y = block(Switch.apply(x, stream))
    with module.stream(home), torch.no_grad():
        other = torch.zeros_like(x)
    y = Switch.apply(y, home) + other
    return y


def fail(gradient: Tensor) -> None:
    raise ArithmeticError("the pass ends here")


@contextmanager
def broken_off() -> Iterator[None]:
    """A block that `fail` ends. The programs run where there is no pytest, too."""
    try:
        yield
    except ArithmeticError:
        return
    raise AssertionError("the pass went on to its end")


class Training:
    """A model in training. It is built in one place, and sharded with the options of `shard`."""

    device = torch.device("cpu")
    last: Any  # what the latest program trains, with its losses

    def __init__(self, stage: int, *dtypes: torch.dtype, place: str = "", **options: Any) -> None:
        model = Model(*dtypes or (torch.float32,)).to(place or self.device)
        self.model = shard(model, stage=stage, units=Block, **options)
        # A fused optimizer keeps its step counters on the device, too.
        fused = not options.get("policy", Policy()).offload
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, fused=fused, foreach=False)
        # No two ranks read the same.
        self.generator = torch.Generator().manual_seed(1 + dist.get_rank())
        self.losses: list[Tensor] = []
        Training.last = self

    def loss(self) -> Tensor:
        tokens = torch.randint(VOCABULARY, (2, 6), generator=self.generator).to(self.device)
        loss = F.cross_entropy(self.model(tokens).flatten(0, 1), tokens.flatten())
        self.losses.append(loss.detach())
        return loss

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


@contextmanager
def exchanged_together(nbytes: int) -> Iterator[None]:
    """In this block so many bytes of small units are exchanged together."""
    before, scheduler.BUNDLE = scheduler.BUNDLE, nbytes
    try:
        yield
    finally:
        scheduler.BUNDLE = before


def separate(stage: int) -> None:
    """No units are exchanged together, however small they are."""
    with exchanged_together(0):
        accumulated(stage)


def paired(stage: int) -> None:
    """Two units or so are exchanged together: the embedding takes 1.5 KiB, the head a little more."""
    training = Training(stage)
    with exchanged_together(3_500):
        for _ in range(STEPS):
            training.step(micro_batches=2)


def together(stage: int) -> None:
    """Two blocks are gathered in one exchange; in between, with the masters."""
    policy = Policy(param_dtype=torch.bfloat16, output_dtype=torch.float32)
    prefetch = Prefetch(1, together=3_500)
    training = Training(stage, policy=policy, prefetch=prefetch)
    for _ in range(STEPS):
        training.step(micro_batches=2)
        with full_precision(training.model):
            training.loss()


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


def uncut(stage: int) -> None:
    """Each matrix of the blocks belongs whole to one rank, computed with in 16 bits."""
    policy = Policy(param_dtype=torch.bfloat16, output_dtype=torch.float32)
    matrices = partial(is_matrix, "blocks.")
    training = Training(stage, torch.float32, torch.float32, policy=policy, uncut=matrices)
    for _ in range(STEPS):
        training.step(micro_batches=2)
        with full_precision(training.model):
            training.loss()
        training.model.load_state_dict(training.model.state_dict())


def is_matrix(place: str, name: str, parameter: Tensor) -> bool:
    return name.startswith(place) and parameter.dim() > 1


def repeated(stage: int) -> None:
    """Both ranks hold a copy of the model, in a mesh that could also share it out."""
    mesh = init_device_mesh(Training.device.type, (2, 1), mesh_dim_names=("replicate", "shard"))
    training = Training(stage, mesh=mesh)
    for _ in range(STEPS):
        training.step(micro_batches=2)


def crossed(stage: int) -> None:
    """Two ranks share the model and two more share a copy of it; losses are scaled and gradients clipped."""
    mesh = init_device_mesh(Training.device.type, (2, 2), mesh_dim_names=("replicate", "shard"))
    policy = Policy(param_dtype=torch.float16, output_dtype=torch.float32)
    training = Training(stage, mesh=mesh, policy=policy)
    scaler = ShardedGradScaler(training.device.type, growth_interval=2)
    for _ in range(STEPS):
        for _ in range(2):
            scaler.scale(training.loss()).backward()
        scaler.unscale_(training.optimizer)
        clip_grad_norm_(training.model, 0.1)
        scaler.step(training.optimizer)
        scaler.update()
        training.optimizer.zero_grad()
        with torch.no_grad():
            training.loss()
        training.model.load_state_dict(training.model.state_dict())


def built(stage: int) -> None:
    """The model has no values until it is sharded."""
    training = Training(stage, place="meta", device=Training.device)
    for _ in range(STEPS):
        training.step()


def evaluated(stage: int) -> None:
    """Forward passes alone between the steps, and the mean of their losses over the ranks."""
    training = Training(stage)
    for _ in range(STEPS):
        training.step()
        with torch.no_grad():
            loss = training.loss().clone()
            all_reduce(loss)
            training.losses.append(loss / dist.get_world_size())


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


def unequal(stage: int) -> None:
    """A rank leaves out layers that another rank uses."""
    training = Training(stage, torch.float32, torch.float32)
    for step in range(STEPS):
        for number, block in enumerate(training.model.blocks):
            block.used = 1 + (step + number + dist.get_rank()) % 2
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
    device = training.device
    module = torch.get_device_module(device)
    branches = {0: module.Stream(device), 2: module.Stream(device)}
    third = module.Stream(device)
    for step in range(STEPS):
        # In the first step the optimizer's stream is the only other one.
        training.model.streams = branches if step else {}
        for _ in range(2):
            training.loss().backward()
        with module.stream(third):
            training.update()
        # What the root reads in stage 0 is the parameters themselves, as in a plain model.
        if stage == 0:
            module.current_stream(device).wait_stream(third)


def alternated(stage: int, **options: Any) -> None:
    """The second micro-batch computes on another stream than the first, and uses what that one has gathered.

    So does an evaluation in full precision, whose memory is used again afterwards.
    """
    training = Training(stage, **options)
    device = training.device
    module = torch.get_device_module(device)
    home, side = module.current_stream(device), module.Stream(device)
    for _ in range(STEPS):
        side.wait_stream(home)
        with no_sync(training.model):
            training.loss().backward()
        with module.stream(side):
            training.loss().backward()
        home.wait_stream(side)
        training.update()
        with full_precision(training.model):
            side.wait_stream(home)
            with module.stream(side), torch.no_grad():
                training.loss()
        torch.ones(WIDTH, device=device)
        home.wait_stream(side)


def alternated_low(stage: int) -> None:
    """The same in 16 bits."""
    alternated(stage, policy=Policy(param_dtype=torch.bfloat16))


def saved(stage: int) -> None:
    """The state is saved and loaded between the steps."""
    training = Training(stage)
    for _ in range(STEPS):
        training.step()
        state = optimizer_state_dict(training.model, training.optimizer)["state"]
        averages = [each["exp_avg"].sum() for each in state.values()]
        training.losses.append(torch.stack(averages).sum().to(training.device))
        training.model.load_state_dict(training.model.state_dict())


def failed(stage: int, **options: Any) -> None:
    """A backward pass raises while a reduction is under way, and training goes on.

    In the middle the next unit is under way, too. At the beginning of the model nothing else is.
    """
    training = Training(stage, **options)
    for place in (2, 0):
        training.step()
        training.model.broken = place
        with broken_off():
            training.loss().backward()
        training.model.broken = None
        training.optimizer.zero_grad()
    training.step()


def failed_on_a_mesh() -> None:
    """The same where means of three units are on their way to another copy of the model."""
    failed(3, mesh=init_device_mesh(Training.device.type, (2, 1), mesh_dim_names=("replicate", "shard")))


def scaled(stage: int) -> None:
    """Losses are scaled for FP16 gradients, and the ranks agree on the steps that are skipped."""
    policy = Policy(param_dtype=torch.float16, output_dtype=torch.float32)
    training, scaler = Training(stage, policy=policy), ShardedGradScaler(growth_interval=2)
    for step in range(STEPS):
        for _ in range(2):
            scaler.scale(training.loss()).backward()
        # A gradient overflows in the part of one rank only.
        if step == dist.get_rank() == 1:
            gradients = (p.grad for p in training.model.parameters() if p.grad is not None)
            next(gradient for gradient in gradients if gradient.numel()).view(-1)[0] = float("inf")
        scaler.unscale_(training.optimizer)
        if step != 1:
            clip_grad_norm_(training.model, 0.1)
        scaler.step(training.optimizer)
        scaler.update()
        training.optimizer.zero_grad()


# Programs without stages.


def rested(around: residual.Residual) -> None:
    """Train a model whose checkpoints wait somewhere else; each variant of checkpoints in turn."""
    device = Training.device
    model = Model(torch.float32).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    tokens = torch.arange(12).view(2, 6).to(device)
    Training.last = made = Plain(model)
    for reentrant in (False, True, False):
        x = model.embedding(tokens)
        with around:
            for block in model.blocks:
                x = book_checkpoint(block, x, use_reentrant=reentrant)
        made.learn(F.cross_entropy(model.head(x).flatten(0, 1), tokens.flatten()))
        optimizer.step()
        optimizer.zero_grad()


class Plain:
    """A model in training by a loop of its own."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.losses: list[Tensor] = []

    def learn(self, loss: Tensor) -> None:
        self.losses.append(loss.detach())
        loss.backward()


def resting() -> None:
    """Checkpoints wait on the host."""
    rested(residual.offload(least=0))


def parted() -> None:
    """Each rank keeps a piece of each checkpoint."""
    rested(residual.partition(least=0))


def parted_and_resting() -> None:
    """The pieces wait on the host."""
    rested(residual.partition(offload=True, least=0))


Make = Callable[[Callable[[], nn.Module]], Any]


def on_the_host(norm: Callable[[], nn.Module]) -> nn.Sequential:
    """A chain whose second layer is frozen, and whose last one has the first one's matrix."""
    torch.manual_seed(0)
    frozen = Block(torch.float32).requires_grad_(False)
    ends = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
    ends[1].weight = ends[0].weight
    return nn.Sequential(ends[0], frozen, norm(), Block(torch.float32), ends[1])


def streamed(make: Make = lambda call: call()) -> None:
    """Parameters and buffers come from the host slice by slice, and gradients and buffers go there."""
    model = make(partial(on_the_host, partial(nn.BatchNorm1d, 6)))
    train_streamed(model, offload_activations=True)


def streamed_low(make: Make = lambda call: call()) -> None:
    """Parameters and gradients travel in 16 bits; the inputs of the slices stay on the device."""
    model = make(partial(on_the_host, partial(nn.LayerNorm, WIDTH)))
    train_streamed(model, param_dtype=torch.bfloat16)


def train_streamed(model: nn.Sequential, **options: Any) -> None:
    """First a forward pass breaks off while a slice is on its way. After each step there is one alone.

    Then a backward pass ends early, so that a slice comes in vain.
    """
    device = Training.device
    model = stream(model, device=device, **options)
    Training.last = made = Plain(model)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2, foreach=False)
    tokens = torch.arange(12).view(2, 6).to(device)
    broken = model[1].register_forward_pre_hook(lambda *_: fail(tokens))
    with broken_off():
        model(tokens)
    torch.ones(WIDTH, device=device)  # it may get the memory of that slice
    broken.remove()
    for _ in range(STEPS):
        for _ in range(2):
            made.learn(F.cross_entropy(model(tokens).float().flatten(0, 1), tokens.flatten()))
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            made.losses.append(model(tokens).float().sum())
        torch.autograd.grad(model(tokens).float().sum(), model[-1].bias)
        torch.ones(WIDTH, device=device)


Mode = Callable[[int], None]
MODES: list[Mode] = [
    plain,
    accumulated,
    kept,
    clipped,
    narrow,
    separate,
    paired,
    together,
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
    unequal,
    scattered,
    alternated,
    alternated_low,
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
