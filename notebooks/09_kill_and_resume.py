# %% [markdown]
# # Kill a run, and resume it
#
# > You kill a rank in the middle of a run, resume the run bit for bit, and leave out one part of its state
# > after the other.
#
# :minutes: 30
# :lesson: all_of_it
# :needs: training with AdamW; best after [lesson 11](../site/lessons/all_of_it.md)
# :aim: write a training loop that resumes at the right step
# :aim: say what a checkpoint must hold besides the parameters
# :aim: say what stays equal to the bit on another number of ranks, and what does not
#
# A long run is interrupted: a machine fails, or the time that was booked is over. If the run resumes exactly,
# nobody can tell from its result where it was interrupted. The model here is so small that a run of 20 steps
# takes a second.

# %%
import os
import signal
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from torch import nn

from shardbook import Checkpoints, labs, rank0_only, shard
from shardbook.labs.lessons import kill_and_resume as checks
from shardbook.models import corpus
from shardbook.models.gpt import loss
from shardbook.train.plan import Batches

labs.begin()
temporary = TemporaryDirectory()
folder = Path(temporary.name)

# %% [markdown]
# ## A run and its parts
#
# The model predicts the next byte of a book from the byte before it. It has a dropout layer, so each step
# generates random numbers. `Batches` reads the text, and all ranks together read 16 windows of it in each
# step.
#
# In the function `take_step` one line has nothing to do with training. If `fatal_step` is the number of a
# step, rank 1 is killed at the beginning of that step, as by a machine that fails.

# %%
fatal_step = None


def parts(stage):
    """A model, its optimizer, and the text: the parts of a run before its first step."""
    ranks, rank = dist.get_world_size(), labs.rank()
    layers = nn.Embedding(256, 64), nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.1)
    model = shard(nn.Sequential(*layers, nn.Linear(256, 256)).to(labs.device()), stage=stage)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    how = {"context": 32, "batch": 16 // ranks, "rank": rank, "world_size": ranks}
    batches = Batches(corpus.Reader(corpus.read(), **how, device=labs.device()))
    # Each rank drops other values.
    torch.manual_seed(rank)
    return model, optimizer, batches


def take_step(number, model, optimizer, batches):
    """Take step `number`, and return its loss."""
    if number == fatal_step and labs.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    inputs, targets = next(batches)
    found = loss(model(inputs), targets)
    found.backward()
    optimizer.step()
    optimizer.zero_grad()
    return found.item()


# %% [markdown]
# ## Exercise 1: a loop that resumes
#
# The same function is to start a new run and to resume an old one. It takes all steps up to step `last`, and
# saves after steps 5, 10, 15 and so on. `Checkpoints` has two methods for that, and both are called on all
# ranks:
#
# ```python
# checkpoints.save(step, model, optimizer, batches=batches)
# step = checkpoints.load(model, optimizer, batches=batches)
# ```
#
# `load` reads the newest checkpoint of the folder and returns its step, or `None` if there is none. The
# losses go into a dictionary, whose keys are the numbers of the steps.
#
# ::: question
# A run has saved after step 10 and is killed in step 13. Which step does it take first when it is resumed?
# ---
# Step 11. Steps 11 and 12 were taken, but what they changed is lost. The run takes them again.
# :::
#
# ::: hint
# Begin with `parts(stage)` and `Checkpoints(folder)`. Let `step` be the number of steps that were taken: what
# `load` returns, or 0. While it is less than `last`, add 1, take the step with this number, and save if the
# number can be divided by 5.
# :::


# %% exercise="train"
def train(folder, last, stage=3):
    """Train up to step `last`, from the newest checkpoint on, and return the losses by step."""
    ### BEGIN SOLUTION
    model, optimizer, batches = parts(stage)
    checkpoints = Checkpoints(folder)
    losses = {}
    step = checkpoints.load(model, optimizer, batches=batches) or 0
    while step < last:
        step += 1
        losses[step] = take_step(step, model, optimizer, batches)
        if step % 5 == 0:
            checkpoints.save(step, model, optimizer, batches=batches)
    return losses
    ### END SOLUTION


# %% check="train"
checks.train()

# %% [markdown]
# ## Kill a rank
#
# First two ranks train for 20 steps undisturbed. Then the same run begins in another folder, and rank 1 is
# killed in step 13. What does rank 0 do then? It waits for rank 1 in the next exchange. The library finds out
# that the process has ended, and `labs.ranks` reports both ranks.

# %%
undisturbed = labs.ranks(2, train, folder / "undisturbed", 20)[0]
fatal_step = 13
try:
    labs.ranks(2, train, folder / "killed", 20)
except labs.RanksFailed as failed:
    for outcome in failed.outcomes:
        print(f"rank {outcome.rank}: {type(outcome.failure).__name__}")
fatal_step = None
print([each.name for each in Checkpoints(folder / "killed").all()])

# %% [markdown]
# Rank 1 has `Ended` without raising an error itself, and rank 0 has `Raised` one. Both checkpoints are
# complete. A checkpoint gets its name only when all ranks have written their files. So a rank that dies while
# it saves leaves no half of one under such a name.
#
# ## Exercise 2: equal to the bit
#
# Does the resumed run repeat the undisturbed one exactly? Two losses that agree to four digits prove nothing.
# Write a function that compares the steps that both runs have taken. It returns the number of the first step
# whose losses differ in any bit, or `None`.
#
# ::: hint
# The keys of the dictionaries are the numbers of the steps, and the resumed run has no entry for the first
# ones. Compare with `!=`, because `math.isclose` allows small differences.
# :::


# %% exercise="first_difference"
def first_difference(one, other):
    """The first step, of those that both have taken, whose losses differ; `None` if there is none."""
    ### BEGIN SOLUTION
    for step in sorted(one):
        if step in other and one[step] != other[step]:
            return step
    return None
    ### END SOLUTION


# %% check="first_difference"
checks.first_difference()

# %%
resumed = labs.ranks(2, train, folder / "killed", 20)[0]
print(f"resumed at step {min(resumed)}, last loss {resumed[20]}")
print(f"undisturbed:       last loss {undisturbed[20]}")
print("first difference:", first_difference(undisturbed, resumed))

# %% [markdown]
# ## What must be saved besides the parameters
#
# The next function resumes after step 20, but it throws one part of the state away. Without its `moments`
# AdamW begins with empty averages. Without the `position` the text is read from its beginning, and without
# the `generators` the random numbers begin anew. For each part, predict the first step whose loss differs.


# %%
def resume_without(part, folder, last):
    """Resume without a part of the state, and return the losses by step."""
    model, optimizer, batches = parts(stage=3)
    step = Checkpoints(folder).load(model, optimizer, batches=batches)
    if part == "moments":
        optimizer.state.clear()
    if part == "position":
        batches.window = 0
    if part == "generators":
        torch.manual_seed(labs.rank())
    return {number: take_step(number, model, optimizer, batches) for number in range(step + 1, last + 1)}


names = {
    "moments": labs.label("without the moments"),
    "position": labs.label("without the position"),
    "generators": labs.label("without the generators"),
}
complete = labs.ranks(2, resume_without, "nothing", folder / "undisturbed", 40)[0]
figure, axes = labs.figure()
for part, name in names.items():
    found = labs.ranks(2, resume_without, part, folder / "undisturbed", 40)[0]
    print(f"{part:10} first difference in step {first_difference(complete, found)}")
    axes.plot(list(found), [found[step] - complete[step] for step in found], label=name)
axes.set_xlabel(labs.label("step"))
axes.set_ylabel(labs.label("loss, compared with the complete state"))
axes.legend(loc="upper right")
axes.set_xticks(range(20, 41, 5))
print("The runs have taken steps 21 to 40.")

# %% [markdown]
# ::: question
# Without the moments the loss of step 21 is right, and that of step 22 is not. Why?
# ---
# The forward pass of step 21 reads the parameters, the text and the random numbers, which are all restored.
# The moments count only when the optimizer steps, so they change the parameters of step 22.
# :::
#
# ::: question
# Which of the three mistakes would you find by a look at the loss curve?
# ---
# Hardly any of them. The loss of a step varies more from batch to batch than these curves differ from zero.
# With empty moments it jumps for some steps. The others train on, but without the position some text is read
# twice and some never.
# :::
#
# ## Exercise 3: the position on another number of ranks
#
# A run of 2 ranks has read 8 windows on each in every step, and it is resumed on 4 ranks with 4 windows each.
# The position counts the windows that all ranks have read together, so it does not depend on the number of
# ranks. In each step rank 0 reads the first windows from there on, rank 1 the next ones, and so on.
#
# ::: hint
# Rank 0 begins at the position itself. Each rank with a lower number reads `batch` windows.
# :::


# %% exercise="next_windows"
def next_windows(position, rank, batch):
    """The numbers of the windows that a rank reads in the next step, as a list."""
    ### BEGIN SOLUTION
    first = position + rank * batch
    return list(range(first, first + batch))
    ### END SOLUTION


# %% check="next_windows"
checks.next_windows()

# %% [markdown]
# ## Load it elsewhere
#
# The checkpoint of two ranks at stage 3 is now loaded at stage 0, on 4 ranks, and on a single rank. Each run
# compares three things with a run on the same two ranks: the parameters after loading, the position, and the
# parameters after one more step. For this step dropout is off, because other ranks would drop other values.
# Which of the comparisons do you expect to be exact?


# %%
def load_elsewhere(folder, stage):
    """The loaded parameters, the position, and the parameters after one more step."""
    model, optimizer, batches = parts(stage)
    Checkpoints(folder).load(model, optimizer, batches=batches)
    position = batches.window
    model.eval()
    with rank0_only(model):
        loaded = model.state_dict()
    take_step(21, model, optimizer, batches)
    with rank0_only(model):
        after = model.state_dict()
    return loaded, position, after


def furthest(one, other):
    """The largest difference of two models."""
    return max((one[name] - other[name]).abs().max().item() for name in one)


loaded, position, after = labs.ranks(2, load_elsewhere, folder / "undisturbed", 3)[0]
for ranks, stage in ((2, 0), (4, 3), (1, 3)):
    there = labs.ranks(ranks, load_elsewhere, folder / "undisturbed", stage)[0]
    print(f"{ranks} ranks, stage {stage}: loaded {furthest(loaded, there[0])},", end=" ")
    print(f"position {there[1] - position}, a step later {furthest(after, there[2]):.1e}")

# %% [markdown]
# All values are loaded to the bit, whatever ranks and stage. The next step is equal to the bit at another
# stage, because the same numbers are added in the same order. Other numbers of ranks cut the batch in other
# pieces and add their gradients in another order, so the last bits may differ.
#
# ::: question
# With dropout, a run that goes on with 4 ranks would differ much more. Which state is to blame?
# ---
# That of the random number generators. Each rank has one of its own, and four ranks cannot go on with the
# states of two. So on another number of ranks, each rank keeps the generator that it has.
# :::
#
# At the end the lab removes its folder.

# %%
temporary.cleanup()

# %% [markdown]
# ## What you have found
#
# - A run that resumes needs the parameters, the optimizer's state, the position in the data and the random
#   states. Then its losses are equal to the bit.
# - A missing part raises no error, and the loss curve hardly shows it.
# - A checkpoint can be loaded at every stage and on any number of ranks. Its values are the same, and the
#   steps after it may differ in the last bits.
#
# [The state of a run](src:shardbook/state/run_state.py) lists all of it, [a folder of
# checkpoints](src:shardbook/state/checkpoints.py) says what happens if a rank dies while it saves, and
# [resuming a run](src:shardbook/train/saving.py) is the loop of the training program.
