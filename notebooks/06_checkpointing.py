# %% [markdown]
# # Choose what to checkpoint
#
# > You cut a chain of layers into segments, find the plan that no other one beats, and repeat the random
# > numbers of a dropout.
#
# :minutes: 30
# :lesson: pay_with_time
# :needs: how PyTorch computes gradients; best after [lesson 8](../site/lessons/pay_with_time.md)
# :aim: measure the curve that has its lowest point at the root of the number of layers
# :aim: compute the peak of a plan by hand, and find the cheapest one within a budget
# :aim: repeat a function with the random numbers of its first run
#
# A checkpoint keeps the input of a function and drops the activations inside. The backward pass runs the
# function once more to get them back. In this lab you decide where the checkpoints are.

# %%
import torch
from torch import nn

from shardbook import checkpoint, labs
from shardbook.checkpointing.budget import FlopCounter, SavedBytes, cheapest, evaluate, least, measure
from shardbook.checkpointing.checkpointing import Span, cut
from shardbook.labs.lessons import checkpointing_lab as checks

labs.begin()

# %% [markdown]
# ## A chain of equal layers
#
# Each layer of the chain is a matrix product and a tanh. Such a layer saves one tensor, its output, because
# that is what both the tanh and the next product need. All tensors have the same size, so the cell counts
# tensors instead of bytes.


# %%
def chain_of(layers):
    """A chain of equal layers."""
    each = [nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(layers)]
    return nn.Sequential(*each).to(labs.device())


def saved_tensors(chain, run):
    """How many tensors are saved after `run(x)`, each as large as `x`."""
    x = torch.ones(32, 64, device=labs.device())
    with SavedBytes(chain.parameters()) as saved:
        y = run(x)
        count = saved.bytes // x.nbytes
    del y
    return count


chain = chain_of(16)
print("without checkpoints", saved_tensors(chain, chain))
print("with one checkpoint", saved_tensors(chain, lambda x: checkpoint(chain, x)))

# %% [markdown]
# Without checkpoints there are 16 outputs and the input. One checkpoint around everything keeps the input
# alone. But the backward pass begins by running the whole chain again, and then all 17 tensors are there.
# So the second number is no saving at all.
#
# ## Exercise 1: a chain in segments
#
# Cut the chain into segments of equal length and checkpoint each of them, except the last one. The backward
# pass begins with the last segment, so its activations would be computed again at once. If the length does
# not divide evenly, the last segment gets the rest.
#
# ::: hint
# A slice of an `nn.Sequential`, such as `chain[4:8]`, is an `nn.Sequential`, so `checkpoint(chain[4:8], x)`
# runs four layers. Each segment begins with what the one before it returned.
# :::


# %% exercise="in_segments"
def in_segments(chain, segments, x):
    """Run a chain whose segments are checkpointed, all but the last."""
    ### BEGIN SOLUTION
    length = len(chain) // segments
    last = length * (segments - 1)
    for start in range(0, last, length):
        x = checkpoint(chain[start : start + length], x)
    return chain[last:](x)
    ### END SOLUTION


# %% check="in_segments"
checks.in_segments()

# %% [markdown]
# ## The curve of the root
#
# With $k$ segments of a chain of $n$ layers there are $k$ inputs and the $n/k$ tensors of the last segment.
# While an earlier segment runs again it has as many tensors, and the later ones are free by then. So the
# peak is $k + n/k$. Your function measures it for a chain of 64 layers.
#
# ::: question
# Which number of segments is best for 64 layers, and how many tensors are there then?
# ---
# 8 segments, which is the root of 64. There are 8 inputs and 8 tensors of one segment, together 16.
# :::

# %%
chain = chain_of(64)
numbers = [1, 2, 4, 8, 16, 32, 64]
found = [saved_tensors(chain, lambda x, k=k: in_segments(chain, k, x)) for k in numbers]
print(dict(zip(numbers, found, strict=True)))

figure, axes = labs.figure()
finely = [2 ** (each / 8) for each in range(49)]
axes.plot(finely, [k + 64 / k for k in finely], label="$k + 64/k$")
axes.plot(numbers, found, "o", label=labs.label("measured"))
axes.set_xscale("log", base=2)
axes.set_xticks(numbers, [str(each) for each in numbers])
axes.set_ylim(bottom=0)
axes.set_xlabel(labs.label("number of segments"))
axes.set_ylabel(labs.label("saved tensors"))
_ = axes.legend()

# %% [markdown]
# The curve is flat around its lowest point: 4 and 16 segments have 20 tensors, only 4 more. And 64 segments
# are as bad as none, since each of them keeps its input.
#
# ::: question
# With 8 segments, how much more does a step compute?
# ---
# All segments but the last run twice, which is $7/8$ of a forward pass. A training step takes about three
# forward passes, because the backward pass computes twice as much as the forward pass. So the step gets 29%
# longer.
# :::
#
# ## Layers that differ
#
# For layers that differ there is no formula. The next model reads pictures, as convolutional networks do: the
# front layers have large outputs, the back ones small outputs. The cell measures what each layer costs.


# %%
def layer(inputs, outputs, stride):
    """A convolution and a tanh; with stride 2 the picture gets half as wide and high."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, padding=1), nn.Tanh())


channels = [(4, 16, 1), (16, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1)]
channels += [(64, 128, 2), (128, 128, 1)]
pictures = torch.ones(8, 4, 32, 32, device=labs.device())
network = nn.Sequential(*[layer(*each) for each in channels]).to(labs.device())
costs = measure(network, pictures)
print(f"input   {costs.input // 1024:4} KiB")
for number, each in enumerate(costs.layers):
    print(f"layer {number} {each.output // 1024:4} KiB {each.cost / 1e6:6.1f} MFLOP")

# %% [markdown]
# The column in the middle is the size of a layer's output. Each layer saves its input and its output. The
# output of one layer is the input of the next one, so it is a single tensor, and counts once.
#
# ## Exercise 2: beat the best plan
#
# A *plan* says which layers run again. `[(1, 3), (4, 7)]` has a checkpoint around layers 1 and 2, and another
# one around layers 4 to 6. All other layers keep their activations. The next cell computes two numbers for
# a plan: its *peak*, which is the most bytes that are saved at one moment, and the FLOPs that are computed
# again.


# %%
def judged(plan):
    """The peak in KiB and the MFLOP of a plan."""
    found = evaluate(costs, [Span(*each, recompute=True) for each in plan])
    return found.peak // 1024, found.cost / 1e6


budget = 1300 * 1024
for tried in ([], [(0, 8)], [(0, 2)], [(0, 2), (2, 4), (4, 6), (6, 8)]):
    peak, more = judged(tried)
    print(f"{peak:5} KiB {more:6.1f} MFLOP", tried)

# %% [markdown]
# Your budget is 1,300 KiB. The last plan is within it, but it runs everything twice. The library finds the
# cheapest plan that is possible within a budget. Can you find a cheaper one? The check compares both.
#
# ::: question
# The plan `[(0, 2)]` drops the output of layer 0, which has 512 KiB. How does its peak of 1,536 KiB come
# about?
# ---
# After the forward pass there are the input with 128 KiB and the outputs of layers 1 to 7, together
# $128 + 512 + 256 + 256 + 128 + 128 + 64 + 64 = 1{,}536$. The output of layer 1 counts because layer 2 has
# saved its input. When layers 0 and 1 run again, all later layers are free, so no later moment is higher.
# :::
#
# ::: hint
# A checkpoint frees the outputs *inside* of it, so one around a single layer frees nothing. Layers 0 and 1
# are cheap to repeat and free most. Which output is the largest that is left? A second checkpoint around two
# layers can free it.
# :::

# %% exercise="plan"
plan = ...
### BEGIN SOLUTION
plan = [(0, 2), (3, 5)]
### END SOLUTION

# %% check="plan"
checks.plan()

# %% [markdown]
# ## All budgets at once
#
# The line shows the cheapest plan for each budget, and no plan lies below it. The points are equal segments:
# some of them are on the line, and others cost much more than necessary.

# %%
forward = sum(each.cost for each in costs.layers)
peaks = range(least(costs), evaluate(costs, []).peak + 1, 64 * 1024)
figure, axes = labs.figure()
axes.step(
    [each / 1024 for each in peaks],
    [cheapest(costs, each).cost / forward for each in peaks],
    where="post",
    label=labs.label("the cheapest plan"),
)
equal = [evaluate(costs, cut(8, k, balanced=True)) for k in range(1, 9)]
axes.plot(
    [each.peak / 1024 for each in equal],
    [each.cost / forward for each in equal],
    "o",
    label=labs.label("1 to 8 equal segments"),
)
peak, more = judged(plan)
axes.plot([peak], [more * 1e6 / forward], "*", markersize=14, label=labs.label("your plan"))
axes.set_xlabel(labs.label("peak of the saved bytes in KiB"))
axes.set_ylabel(labs.label("forward passes added"))
_ = axes.legend()

# %% [markdown]
# These numbers are no estimates. The cheapest plan for your budget runs here, and two counters find what was
# saved and what was computed again:

# %%
best = cheapest(costs, budget)
with SavedBytes(network.parameters()) as saved, FlopCounter() as flops:
    y = best.apply(network, pictures)
    between = saved.bytes
    y.sum().backward()
# The backward pass has two products for each one of the forward pass. The pictures need no gradient, so
# layer 0 has one less.
usual = 3 * forward - costs.layers[0].cost
print(f"saved: {between // 1024} KiB, as predicted: {between == best.saved}")
print(f"computed again: {(flops.get_total_flops() - usual) / 1e6:.1f} MFLOP")

# %% [markdown]
# ## The same random numbers
#
# The second run has to compute the same function as the first. A dropout draws a mask of random numbers, so
# it is another function in each run. A checkpoint therefore stores the state of the random number generator
# before the first run, and the second run begins with the same state. You can switch that off.
#
# The cell computes the gradients of the first weight in three ways: without a checkpoint, with one, and with
# one that does not restore the generator. It stays on the CPU, because each device has a generator of its
# own.


# %%
block = nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Dropout(0.5), nn.Linear(4, 8))
rows = torch.randn(16, 8)


def gradient(run):
    """The gradient of the block's first weight, if the seed is 0 before the step."""
    block.zero_grad()
    torch.manual_seed(0)
    run(rows).square().sum().backward()
    return block[0].weight.grad.clone()


plain = gradient(block)
restored = gradient(lambda x: checkpoint(block, x))
other = gradient(lambda x: checkpoint(block, x, preserve_rng_state=False))
print("equal bit for bit, restored:    ", torch.equal(plain, restored))
print("equal bit for bit, not restored:", torch.equal(plain, other))

figure, axes = labs.figure(width=4.4, height=4)
axes.plot(plain.flatten(), other.flatten(), ".", markersize=6, label=labs.label("not restored"))
axes.plot(plain.flatten(), restored.flatten(), ".", markersize=6, label=labs.label("restored"))
axes.set_xlabel(labs.label("gradient without a checkpoint"))
axes.set_ylabel(labs.label("gradient with a checkpoint"))
_ = axes.legend()

# %% [markdown]
# Each point is one of 32 gradients. Without the state they form a cloud instead of a line. No error is
# raised, because tensors of the same shapes are saved in both runs. The model trains on wrong gradients.
#
# ## Exercise 3: repeat the random numbers
#
# Write a function `repeatable(function)`. It returns a function that can be called twice. The first call
# works like `function` itself. In the second call `function` runs again and draws the random numbers of the
# first one. After the second call the generator must continue as if that call had drawn nothing. Otherwise
# a training run with checkpoints would draw other numbers than one without.
#
# ::: hint
# `torch.get_rng_state()` returns the state of the generator of the CPU, and `torch.set_rng_state(state)` sets
# it. The inner function needs a place for the state that lasts from one call to the next, such as a list.
# :::


# %% exercise="repeatable"
def repeatable(function):
    """A function whose second call draws the random numbers of the first."""
    ### BEGIN SOLUTION
    first = []

    def run(*arguments):
        before = torch.get_rng_state()
        if not first:
            first.append(before)
            return function(*arguments)
        torch.set_rng_state(first[0])
        try:
            return function(*arguments)
        finally:
            torch.set_rng_state(before)

    return run
    ### END SOLUTION


# %% check="repeatable"
checks.repeatable()

# %% [markdown]
# Now the checkpoint may leave the generator alone, because your function restores it:

# %%
own = gradient(lambda x: checkpoint(repeatable(block), x, preserve_rng_state=False))
print("equal bit for bit, with your function:", torch.equal(plain, own))

# %% [markdown]
# ## What you have found
#
# - A chain of $n$ equal layers in $\sqrt n$ segments holds $2\sqrt n$ tensors instead of $n + 1$, for less
#   than one more forward pass.
# - For layers that differ, [the cheapest plan](src:shardbook/checkpointing/budget.py) within a budget can be
#   computed, and equal segments may cost more.
# - A checkpoint that does not restore the generator changes the gradients of a dropout, and no error is
#   raised.
#
# [Restoring the random numbers](src:shardbook/foundations/rng.py) says which generators a checkpoint
# restores. [Selective checkpointing](src:shardbook/checkpointing/selective.py) keeps a part of a layer, which
# no plan of this lab can do.
