# %% [markdown]
# # Ask for the next unit early
#
# > You draw the timeline of a real step, find the waits that are exposed, and choose a depth that hides
# > them.
#
# :minutes: 30
# :lesson: asking_early
# :needs: what a unit is in stage 3; best after [lesson 7](../site/lessons/asking_early.md)
# :aim: read a timeline, and compute which part of an exchange is exposed
# :aim: choose the smallest depth that hides all gathers but the first
# :aim: predict the bytes that each depth costs, and check them by a count
#
# In stage 3 a rank gathers each unit before it computes with it. If the gather takes longer than the
# computation beside it, the rank waits. In this lab you measure where a rank waits, and let it ask earlier.

# %%
import time
from itertools import pairwise
from statistics import median

import torch
from torch import nn

from shardbook import labs, shard
from shardbook.foundations import hook_context
from shardbook.labs.lessons import prefetch as checks
from shardbook.planning.overlap import Wire
from shardbook.zero.scheduler import scheduler_of

labs.begin()

# %% [markdown]
# ## A clock and a wire
#
# The ranks of this lab share a machine, and exchange tensors through its memory. Between two machines that
# takes much longer. So the class below is a clock and also a slow wire: a rank may go on with a unit only
# when `seconds` have passed since its gather began. The wire carries one gather at a time, and a second one
# waits for the first. All else is a real step.
#
# The library calls an *observer* at the beginning and at the end of each action of a unit. The computation
# of a unit begins at the end of `wait for`, and it ends when the unit is freed.


# %%
class Timeline:
    """The times of gathers and computations, on a wire that needs `seconds` for a gather."""

    def __init__(self, seconds):
        self.seconds, self.zero = seconds, time.perf_counter()
        self.gathers, self.computing = [], []
        self.free_from = 0.0
        self.running = ("", 0.0)

    def now(self):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() - self.zero

    def begins(self, act, about):
        if act == "gather":
            begin = max(self.now(), self.free_from)
            self.free_from = begin + self.seconds
            self.gathers.append((about, begin, self.free_from))
        if act == "free" and about == self.running[0]:
            self.computing.append((*self.running, self.now()))

    def ends(self, act, about):
        if act == "wait for":
            arrival = [end for name, _, end in self.gathers if name == about][-1]
            time.sleep(max(0.0, arrival - self.now()))
            self.running = (about, self.now())


def timeline(depth, seconds):
    """On a rank: gathers and computations of one step, with so many units gathered ahead."""
    model = shard(nn.Sequential(*[nn.Linear(512, 512) for _ in range(3)]).to(labs.device()), prefetch=depth)
    numbers = torch.randn(1024, 512, device=labs.device())
    # The first step learns the order of the units, and nothing is gathered ahead.
    for _ in range(2):
        seen = Timeline(seconds)
        hook_context.observers[:] = [seen]
        model(numbers).square().mean().backward()
    return seen.gathers, seen.computing


# %% [markdown]
# How slow should the wire be? That depends on how fast your machine computes. So the next cell measures the
# computation of a unit in the forward pass. The wire needs 60% of that time for a gather.

# %%
_, computing = labs.ranks(2, timeline, 0, 0.0)[0]
compute = median(end - begin for _, begin, end in computing[:3])
gather = 0.6 * compute
print(f"a unit computes for {1000 * compute:.1f} ms, a gather takes {1000 * gather:.1f} ms")

# %% [markdown]
# ## The timeline
#
# The first three computations are the forward pass, and the three that follow, in reverse order, are the
# backward pass, which takes longer. Before you run the cell: where are the gaps in the row of the
# computation?


# %%
def draw(steps):
    """Two rows for each step: what the wire carries, and what rank 0 computes."""
    _, axes = labs.figure(height=0.6 + 1.1 * len(steps))
    names, heights = [], []
    for number, (name, (gathers, computing)) in enumerate(steps.items()):
        rows = (
            (labs.label("wire"), gathers, labs.COLOURS[1], "white"),
            (labs.label("computation"), computing, labs.COLOURS[2], "black"),
        )
        for row, (what, spans, colour, ink) in enumerate(rows):
            height = 2.4 * number + row
            names.append(f"{name}: {what}")
            heights.append(height)
            for unit, begin, end in spans:
                axes.barh(height, 1000 * (end - begin), left=1000 * begin, color=colour)
                axes.text(500 * (begin + end), height, unit, ha="center", va="center", color=ink, size=8)
    axes.set_yticks(heights, names)
    axes.invert_yaxis()
    axes.set_xlabel("ms")


steps = {labs.label("depth {depth}", depth=0): labs.ranks(2, timeline, 0, gather)[0]}
draw(steps)

# %% [markdown]
# ::: question
# At depth 0 the computation stands still during each gather. The first gather of the backward pass is for
# unit 2, which was the last one of the forward pass. Why is it gathered again?
# ---
# It was freed at the end of its forward pass, as every unit is in stage 3.
# :::
#
# ## Exercise 1: the exposed part
#
# A gather is *exposed* as long as nothing is computed beside it. Write a function that returns how many
# seconds of a gather are exposed. `gather` is a pair of its begin and its end, and `computing` is a list of
# such pairs, in the order of time. They do not overlap each other.
#
# ::: hint
# Two spans share the time from the later of their begins to the earlier of their ends. If that is negative,
# they share nothing. Subtract what the gather shares with each computation from its own length.
# :::


# %% exercise="exposed"
def exposed(gather, computing):
    """The seconds of a gather during which nothing is computed."""
    ### BEGIN SOLUTION
    begin, end = gather
    beside = sum(max(0, min(end, until) - max(begin, since)) for since, until in computing)
    return end - begin - beside
    ### END SOLUTION


# %% check="exposed"
checks.exposed()

# %% [markdown]
# ## Depths 1 and 2
#
# At depth 1 the forward pass begins to gather the next unit when a unit is about to compute. At depth 2 the
# unit after the next is gathered as well. Your function adds up what is exposed in each step.

# %%
for depth in (1, 2):
    steps[labs.label("depth {depth}", depth=depth)] = labs.ranks(2, timeline, depth, gather)[0]
for name, (gathers, computing) in steps.items():
    spans = [(begin, end) for _, begin, end in computing]
    each = [1000 * exposed((begin, end), spans) for _, begin, end in gathers]
    print(f"{name}: {sum(each):6.1f} ms", [round(one, 1) for one in each])
draw(steps)

# %% [markdown]
# The times differ from run to run, since other programs use the same processors. But the first gather of a
# step cannot be hidden: nothing is computed before it. In the forward pass a unit computes for longer than
# a gather takes, so depth 1 should hide most of the others.
#
# In the backward pass less is hidden here. A unit asks for the next one when it has stored its first
# gradient, and a single layer does that near its end. A block of many layers asks earlier.
#
# ::: question
# The last unit of the forward pass is the first of the backward pass. Is its second gather exposed at depth
# 1? Look at the plot.
# ---
# Yes. The record of the forward pass ends with this unit, so nothing asks for it early. Its gather begins
# when the backward pass does.
# :::
#
# ## Exercise 2: which depth is enough?
#
# For a plan you need no clock. The function `waits` computes a forward pass from two lists of times. It
# follows the rules from above: one gather at a time, and when a unit is about to compute, the next `depth`
# units are asked for.


# %%
def waits(gathers, computes, depth):
    """How long each unit is waited for. Both lists have a time for each unit, in order."""
    now, arrivals, waited = 0, [], []
    for unit, compute in enumerate(computes):
        if len(arrivals) == unit:
            arrivals.append(now + gathers[unit])
        waited.append(max(0, arrivals[unit] - now))
        now += waited[-1]
        for ahead in range(len(arrivals), min(unit + depth + 1, len(gathers))):
            arrivals.append(max(now, arrivals[-1]) + gathers[ahead])
        now += compute
    return waited


for depth in range(3):
    print(depth, waits([1, 1, 3, 1], [2, 2, 2, 2], depth))

# %% [markdown]
# Here unit 2 is larger than the others, so its gather takes 3 instead of 1. At depth 1 that is more than
# the unit before computes. At depth 2 it begins early enough.
#
# Write a function that returns the smallest depth at which no unit is waited for but the first. If no depth
# is enough, it returns `None`.
#
# ::: hint
# With four units, a depth of 3 gathers all that there is, so a larger depth changes nothing. Try the depths
# from 0 on, and look at `waits(...)[1:]`.
# :::


# %% exercise="smallest_depth"
def smallest_depth(gathers, computes):
    """The smallest depth at which only the first unit is waited for; `None` if there is none."""
    ### BEGIN SOLUTION
    for depth in range(len(gathers)):
        if not any(waits(gathers, computes, depth)[1:]):
            return depth
    return None
    ### END SOLUTION


# %% check="smallest_depth"
checks.smallest_depth()

# %% [markdown]
# ## When no depth is enough
#
# Suppose that all units are alike. If a gather takes longer than a unit computes, the wire falls behind
# with each unit, and no depth helps. [When a gather hides](src:shardbook/planning/overlap.py) computes both
# times for real machines. The next cell takes units of 100 million parameters on 8 GPUs, each of which does
# 400 TFLOP/s and receives 50 GB/s. A rank has 4,096 tokens, or twice as many.
#
# The plot shows three more cases. Each has 12 units, and each unit computes for a time of 1.

# %%
wire = Wire(flops=400e12, bandwidth=50e9, ranks=8)
for tokens in (4096, 8192):
    gathers = [wire.gather_seconds(100e6)] * 12
    computes = [wire.compute_seconds(100e6, tokens)] * 12
    print(f"{tokens} tokens: {1000 * gathers[0]:.2f} ms, {1000 * computes[0]:.2f} ms,", end=" ")
    print("depth", smallest_depth(gathers, computes))
print(f"enough are {wire.enough_tokens()} tokens")

figure, axes = labs.figure()
cases = {
    labs.label("each gather takes 0.8"): ([0.8] * 12, [1] * 12),
    labs.label("three gathers take 0.4, the fourth 2"): ([0.4, 0.4, 0.4, 2] * 3, [1] * 12),
    labs.label("each gather takes 1.5"): ([1.5] * 12, [1] * 12),
}
for name, (gathers, computes) in cases.items():
    axes.plot(range(5), [sum(waits(gathers, computes, depth)) for depth in range(5)], label=name)
axes.set_ylim(bottom=0)
axes.set_xticks(range(5), range(5))
axes.set_xlabel(labs.label("depth"))
axes.set_ylabel(labs.label("time that is waited for units"))
legend = axes.legend()

# %% [markdown]
# ::: question
# With 4,096 tokens no depth hides the gathers. What helps, if the machine stays as it is?
# ---
# More tokens on each rank: a larger micro-batch computes longer with each unit that is gathered. From 7,000
# tokens on depth 1 is enough.
# :::
#
# ## Exercise 3: the bytes of each depth
#
# A unit that is gathered early lies in memory while another one computes. So each depth costs memory. Write
# a function that returns how many bytes are whole at most during a step. The list `sizes` has the bytes of
# each unit, in the order in which they run.
#
# ::: question
# Six units have 1 MB each. How many bytes are whole at most at depth 0, 1 and 2?
# ---
# 1, 2 and 3 MB: the unit in use, and those that were gathered ahead.
# :::
#
# ::: hint
# While unit `i` computes, the units from `i` to `i + depth` are whole. Python cuts a slice at the end of
# the list: `sizes[i : i + depth + 1]`. In the backward pass it is the same in reverse.
# :::


# %% exercise="most_bytes"
def most_bytes(sizes, depth):
    """The largest number of bytes that are whole at the same time."""
    ### BEGIN SOLUTION
    return max(sum(sizes[unit : unit + depth + 1]) for unit in range(len(sizes)))
    ### END SOLUTION


# %% check="most_bytes"
checks.most_bytes()

# %% [markdown]
# ## Count them
#
# Two ranks train a model whose layers differ in size. After each action of a unit the observer adds up the
# memory of all vectors that hold whole units. Both rows should be the same.


# %%
class Counts:
    """The most bytes that were whole after any action."""

    def __init__(self, model):
        self.units, self.most = list(scheduler_of(model).units), 0

    def begins(self, act, about):
        pass

    def ends(self, act, about):
        whole = [flat.full.untyped_storage().nbytes() for unit in self.units for flat in unit.flats]
        self.most = max(self.most, sum(whole))


def counted(depth):
    """On a rank: the bytes of each unit, and the most that were whole."""
    widths = [64, 64, 256, 32, 128, 128, 64]
    layers = [nn.Linear(*each) for each in pairwise(widths)]
    model = shard(nn.Sequential(*layers).to(labs.device()), prefetch=depth)
    for _ in range(2):
        counts = Counts(model)
        hook_context.observers[:] = [counts]
        model(torch.ones(2, 64, device=labs.device())).sum().backward()
    return [unit.nbytes for unit in counts.units], counts.most


found = [labs.ranks(2, counted, depth)[0] for depth in labs.progress(range(4))]
print("predicted:", [most_bytes(sizes, depth) for depth, (sizes, _) in enumerate(found)])
print("counted:  ", [most for _, most in found])

# %% [markdown]
# ## What you have found
#
# - Depth 0 exposes every gather. At depth 1 a gather hides behind the unit before it, if that computes long
#   enough.
# - A larger depth helps where units differ in size. Where the wire is slower than the computation, no depth
#   does, and more tokens do.
# - Each depth costs one more unit in memory.
#
# [Prefetching the next unit](src:shardbook/zero/scheduler.py#module/prefetching-the-next-unit) is the code
# that asks early, and [labels](src:shardbook/foundations/hook_context.py#module/labels-for-a-profiler) show
# the same actions in a trace of PyTorch's profiler.
