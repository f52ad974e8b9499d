# %% [markdown]
# # Break it
#
# > You take the mean, a free and a wait out of the library, predict what happens, and write three functions
# > that find the damage.
#
# :minutes: 40
# :lesson: three_states
# :needs: [a unit and its three states](../site/lessons/three_states.md); training a model in PyTorch
# :aim: say which optimizer conceals a missing mean, and repair the gradients
# :aim: find the vector whose memory is not freed
# :aim: decide from the calls of a program whether two kernels have an order
#
# Predict the result of each cell before you run it. Each change is made inside the ranks, and every call of
# `labs.ranks` starts new ones. So no change is left behind.

# %%
import torch
from torch import nn

from shardbook import labs, shard
from shardbook.check.race_recorder import Recorder
from shardbook.check.race_replay import Launch, Record, Wait, races
from shardbook.foundations.collectives import PendingReduce
from shardbook.labs.lessons import break_it as checks
from shardbook.planning.forecast import Meter
from shardbook.zero.scheduler import scheduler_of
from shardbook.zero.unit import Unit

labs.begin()

# %% [markdown]
# ## Remove the mean
#
# A reduce-scatter forms a sum, and the library divides it by the number of ranks. The next cell multiplies
# the result again, and trains with two optimizers, with the mean and with the sum.
#
# ::: question
# Two ranks train with the sum. How long are the steps of SGD, and how long are those of AdamW?
# ---
# Those of SGD are twice as long, so it ends with another loss. Those of AdamW hardly change. AdamW divides a
# moving average of the gradient by the root of a moving average of its square, and the factor cancels.
# :::


# %%
def without_mean():
    """Let every reduce-scatter of this rank return the sum."""
    mean = PendingReduce.wait
    PendingReduce.wait = lambda pending: mean(pending) * pending.world_size


def train(optimizer, rate, broken, mend=None):
    """The loss of rank 0's data after 20 steps."""
    if broken:
        without_mean()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1)).to(labs.device())
    model = shard(model)
    steps = optimizer(model.parameters(), lr=rate)
    x = torch.randn(64, 4).to(labs.device())[labs.rank() :: 2]
    for _ in range(20):
        error = (model(x) - x.sum(1, keepdim=True)).square().mean()
        error.backward()
        if mend:
            mend(list(model.parameters()), 2)
        steps.step()
        steps.zero_grad()
    return error.item()


for optimizer in (torch.optim.SGD, torch.optim.AdamW):
    for broken in (False, True):
        found = labs.ranks(2, train, optimizer, 0.1, broken)[0]
        print(f"{optimizer.__name__:6} {'sum' if broken else 'mean':5} {found:.5f}")

# %% [markdown]
# ## Exercise 1: repair the gradients
#
# Suppose that a library gives you sums, and you cannot change it. Write a function that is called after the
# backward pass and turns the sums into means. A parameter that was not used has no gradient.
#
# ::: hint
# A gradient is `parameter.grad`, or `None`. `tensor /= 2` changes the tensor itself, and `tensor = tensor /
# 2` makes another one and leaves the first as it was.
# :::


# %% exercise="mend"
def mend(parameters, ranks):
    """Turn the gradients of the parameters from sums over the ranks into means."""
    ### BEGIN SOLUTION
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad /= ranks
    ### END SOLUTION


# %% check="mend"
checks.mend()

# %%
print(f"SGD, sum, repaired: {labs.ranks(2, train, torch.optim.SGD, 0.1, True, mend)[0]:.5f}")
print(f"SGD, sum, half the rate: {labs.ranks(2, train, torch.optim.SGD, 0.05, True)[0]:.5f}")

# %% [markdown]
# Both losses are that of the mean. So the sum is a learning rate that grows with the number of ranks, and
# only SGD shows it.
#
# ## Keep the memory
#
# At stage 3 the method `Unit.empty` gives back the memory of a unit after each use. The next cell replaces
# it by one that only forgets the values, and counts the bytes of one step.


# %%
class Curve(Meter):
    """A meter that keeps its count before and after every operation."""

    def __torch_dispatch__(self, *arguments):
        """Between two operations storages may have been freed, so count before this one, too."""
        self.curve.append(self.now() / 1e6)
        result = super().__torch_dispatch__(*arguments)
        self.curve.append(self.now() / 1e6)
        return result


def bytes_of_a_step(broken):
    """What this rank stores in the course of a forward and a backward pass, in MB."""
    if broken:
        Unit.empty = lambda unit: unit.expire()
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(8)]).to(labs.device())
    model = shard(model)
    x = torch.ones(4, 256, device=labs.device())
    with Curve() as meter:
        meter.curve = [meter.now() / 1e6]
        model(x).sum().backward()
    return meter.curve


figure, axes = labs.figure()
for broken, name in ((False, labs.label("freed")), (True, labs.label("not freed"))):
    curve = labs.ranks(2, bytes_of_a_step, broken)[0]
    axes.plot([at / (len(curve) - 1) for at in range(len(curve))], curve, label=name)
axes.set_xlabel(labs.label("part of the step"))
axes.set_ylabel("MB")
axes.set_ylim(bottom=0)
_ = axes.legend()

# %% [markdown]
# ::: question
# Does the broken library find wrong losses or gradients? Which test would find the fault?
# ---
# All results are right, because each unit is gathered again before each use. Only a test that counts bytes
# finds the fault.
# :::
#
# ## Exercise 2: find the leak
#
# Now one unit keeps its memory and the others give it back. After the forward pass you have the vectors of
# all units by name. Return the names of those that still have memory.
#
# A vector without memory is still a tensor with its shape. Only its storage has shrunk.
#
# ::: hint
# `numel()` and `nbytes` of a tensor are computed from its shape. `tensor.untyped_storage().nbytes()` is what
# the storage has.
# :::


# %% exercise="leaks"
def leaks(vectors):
    """The names of the vectors that have memory, in a list."""
    ### BEGIN SOLUTION
    return [name for name, vector in vectors.items() if vector.untyped_storage().nbytes() > 0]
    ### END SOLUTION


# %% check="leaks"
checks.leaks()


# %%
def one_unit_leaks():
    """The leaks of a model whose third layer is not freed."""
    model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)]).to(labs.device())
    model = shard(model)
    units = list(scheduler_of(model).units)
    units[2].empty = units[2].expire
    model(torch.ones(4, 256, device=labs.device()))
    return leaks({unit.name: unit.flats[0].full for unit in units})


print(labs.ranks(2, one_unit_leaks)[0])

# %% [markdown]
# ## Remove a wait
#
# A GPU carries out the kernels of one *stream* in their order, and those of two streams in any order. A wait
# connects two streams. Without it most runs are still right, by luck. On a CPU there is only one stream, so
# nothing changes at all, whichever wait you remove.
#
# The calls of a program show what its results cannot. A recording has three kinds of events here. `Launch`
# is a kernel on a stream. `Record(event, stream)` marks the end of what the stream has to do so far.
# `Wait(event, stream, lines)` lets the stream wait for such a mark.


# %%
def launch(stream, name):
    """A kernel that touches block 7."""
    return Launch(stream, frozenset({7}), frozenset({7}), name)


trace = [
    launch(1, "gather"),
    Record(1, 1),
    Wait(1, 0, ()),
    launch(0, "compute"),
]
for number, event in enumerate(trace):
    print(number, type(event).__name__, "stream", event.stream)

# %% [markdown]
# ## Exercise 3: is there an order?
#
# Write a function that decides whether kernel `first` has surely ended before kernel `second` begins. Both
# are places in the trace. In the trace above kernel 0 ends before kernel 3 begins, because stream 0 waits for
# the mark that stream 1 has set after kernel 0.
#
# ::: question
# Stream 1 launches a kernel and sets mark 1. Stream 2 waits for mark 1 and sets mark 2. Stream 0 waits for
# mark 2 and launches another kernel. Have the two kernels an order?
# ---
# Yes. Stream 2 reaches its mark only after mark 1, so stream 0 waits for both.
# :::
#
# ::: hint
# Go through the events between the two places, and keep two sets. In one are the streams on which everything
# that follows comes after `first`: in the beginning only that of `first`. In the other are the marks that
# such a stream has set. A wait for such a mark adds a stream.
# :::


# %% exercise="ordered"
def ordered(trace, first, second):
    """Whether kernel `first` of the trace has surely ended before kernel `second` begins."""
    ### BEGIN SOLUTION
    streams, marks = {trace[first].stream}, set()
    for event in trace[first + 1 : second]:
        if isinstance(event, Record) and event.stream in streams:
            marks.add(event.event)
        if isinstance(event, Wait) and event.event in marks:
            streams.add(event.stream)
    return trace[second].stream in streams
    ### END SOLUTION


# %% check="ordered"
checks.ordered()

# %% [markdown]
# The library's own checker works like your function, and knows memory as well. The next cell records two
# training steps on the CPU, as if on a GPU. Then it replays the recording once for each line that makes a
# stream wait, without this line.


# %%
def recorded():
    """The calls of two steps at stage 3."""
    with Recorder() as recorder:
        model = shard(nn.Sequential(*[nn.Linear(8, 8) for _ in range(3)]))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return recorder.trace


trace = labs.ranks(2, recorded)[0]
print("races with all waits:", len(races(trace)))
for line in sorted({event.lines[0] for event in trace if isinstance(event, Wait) and event.lines}):
    found = races(trace, without=[line])
    print(f"\nwithout {line}: {len(found)}")
    if found:
        print("  ", found[0].later.split(",")[0], "is not ordered after")
        print("  ", found[0].earlier.split(",")[0])

# %% [markdown]
# ::: question
# A line of this list may have no race, although a stream waits there. Is that wait superfluous?
# ---
# Not for every program. The recording has one model and two steps, so another program may need the wait. The
# tests of the book record many programs, and for each wait one of them has a race without it.
# :::
#
# ## What you have found
#
# - A missing mean is a learning rate that is too large by the number of ranks. SGD shows it, and AdamW hides
#   it.
# - A storage that is not freed changes no result, so only a count of bytes finds it.
# - A missing wait changes the results of some runs on a GPU, and of none on a CPU. The order of calls shows
#   it in every run.
#
# [Finding races in a recording](src:shardbook/check/race_replay.py) has the checker of the library, which
# you can run on your own program with `--races`.
