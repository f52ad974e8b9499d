# %% [markdown]
# # Measure the memory of a step
#
# > You measure what a training step stores, find 16 bytes for each parameter, and predict what ZeRO leaves
# > of them on each rank.
#
# :minutes: 25
# :lesson: where_memory_goes
# :needs: training a model in PyTorch; best after [lesson 1](../site/lessons/where_memory_goes.md)
# :aim: measure what each part of a training step stores
# :aim: predict the bytes on each rank at every stage of ZeRO
# :aim: count the activations that autograd saves
#
# The model here is a small GPT, so a step takes less than a second on a laptop. Its bytes follow the same
# rules as those of a large one. First run the next cell. It says what your machine has.

# %%
from functools import partial

import torch
import torch.nn.functional as F

from shardbook import labs, shard
from shardbook.labs.lessons import where_memory_goes as checks
from shardbook.models.gpt import GPT, Block, Config
from shardbook.planning.forecast import Meter

labs.begin()

# %% [markdown]
# ## A model and its file
#
# The model has 867,072 parameters in FP32, which is 4 bytes a number. A file with these numbers has 3.5 MB.
# How much memory does it take to train the model? Write down a guess before you go on.

# %%
config = Config(layers=4, width=128, heads=4, context=64, vocabulary=256)
model = GPT(config).to(labs.device())
parameters = sum(each.numel() for each in model.parameters())
print(f"{parameters:,} · 4 B = {4 * parameters / 1e6:.2f} MB")

# %% [markdown]
# ## Measure one step
#
# A step has three parts: the forward pass, the backward pass, and the optimizer's step. After them three
# kinds of tensors remain. The function `size` adds up the bytes of some tensors. The cell prints the size
# of each kind, and how many bytes that is for each parameter.


# %%
def size(tensors):
    """The bytes of some tensors."""
    return sum(each.numel() * each.element_size() for each in tensors)


def loss_of(model, batch):
    """The loss on some random text: `batch` sequences of 64 tokens."""
    text = torch.randint(config.vocabulary, (batch, config.context + 1), device=labs.device())
    return F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())


optimizer = torch.optim.AdamW(model.parameters())
loss_of(model, batch=4).backward()
optimizer.step()

kept = {
    "parameters": size(model.parameters()),
    "gradients": size(each.grad for each in model.parameters()),
    "exp_avg": size(state["exp_avg"] for state in optimizer.state.values()),
    "exp_avg_sq": size(state["exp_avg_sq"] for state in optimizer.state.values()),
}
for name, stored in kept.items():
    print(f"{name:12} {stored / 1e6:5.2f} MB {stored / parameters:5.1f} B")
print(f"{'':12} {sum(kept.values()) / 1e6:5.2f} MB {sum(kept.values()) / parameters:5.1f} B")

# %% [markdown]
# The rows `exp_avg` and `exp_avg_sq` belong to AdamW. It keeps two moving averages for each parameter:
# `exp_avg` of the gradients, and `exp_avg_sq` of their squares.
#
# ## Exercise 1: any number of parameters
#
# Write a function that returns the bytes of such a training run. Everything is stored in FP32, as above.
# How much is that for 7.5 billion parameters?
#
# ::: hint
# The table above has four named rows. Each of them has as many numbers as the model has parameters, and a
# number in FP32 takes 4 bytes.
# :::


# %% exercise="bytes_of_adamw"
def bytes_of_adamw(parameters):
    """The bytes of parameters, gradients and AdamW's state, all of them in FP32."""
    ### BEGIN SOLUTION
    return (4 + 4 + 4 + 4) * parameters
    ### END SOLUTION


# %% check="bytes_of_adamw"
checks.bytes_of_adamw()

# %% [markdown]
# ## Exercise 2: the same on each of many ranks
#
# Large models are trained in mixed precision. The parameters and the gradients have 2 bytes each, and the
# optimizer keeps a copy of the parameters in FP32 besides its two moving averages. These are $2 + 2 + 12$
# bytes, so the sum is 16 again.
#
# ZeRO splits them over the ranks. Stage 0 splits nothing, stage 1 the 12 bytes of the optimizer, stage 2
# the gradients as well, and stage 3 also the parameters. Write a function for the bytes on one rank.
#
# ::: question
# You have 7.5 billion parameters and GPUs of 80 GB. At stage 2, are 4 ranks enough?
# ---
# Yes. A rank stores $2 \cdot 7.5 = 15$ GB of parameters and a quarter of the other 105 GB, together 41.3
# GB. Activations come on top.
# :::
#
# ::: hint
# Begin with three numbers: the bytes of the parameters, of the gradients and of the optimizer. From stage 1
# on, divide the last one by the number of ranks. From stage 2 on, divide one more. A stage splits all that
# the stages before it have split.
# :::


# %% exercise="bytes_on_a_rank"
def bytes_on_a_rank(parameters, ranks, stage):
    """The bytes that one rank stores in mixed precision, at a stage from 0 to 3."""
    ### BEGIN SOLUTION
    weights = 2 * parameters
    gradients = 2 * parameters
    state = 12 * parameters
    if stage >= 1:
        state /= ranks
    if stage >= 2:
        gradients /= ranks
    if stage >= 3:
        weights /= ranks
    return weights + gradients + state
    ### END SOLUTION


# %% check="bytes_on_a_rank"
checks.bytes_on_a_rank()

# %% [markdown]
# ## Measure it on two ranks
#
# Now the real thing: two ranks train the model from above, and each counts its bytes before the optimizer's
# second step. At that moment parameters, gradients and moving averages exist, and no activations. Predict
# the three results first. The model trains in FP32, so the bytes of a parameter are $4 + 4 + 8$.


# %%
def bytes_before_a_step(stage):
    """What a rank stores when its gradients are complete."""
    sharded = shard(GPT(config).to(labs.device()), stage=stage, units=Block)
    optimizer = torch.optim.AdamW(sharded.parameters())
    with Meter() as meter:
        loss_of(sharded, batch=4).backward()
        optimizer.step()
        optimizer.zero_grad()
        loss_of(sharded, batch=4).backward()
        return meter.now()


for stage in (0, 2, 3):
    found = labs.ranks(2, bytes_before_a_step, stage)
    print(stage, [f"{each / parameters:.2f} B" for each in found])

# %% [markdown]
# ::: question
# Two ranks at stage 3 store half of stage 0, but at stage 2 they store more than that. Which of the three
# kinds is still whole?
# ---
# The parameters: 4 bytes. The other 12 are divided by two, and $4 + 6 = 10$.
# :::
#
# ## Activations
#
# The `Meter` found no activations, because the backward pass had used them up. In the forward pass autograd
# saves the tensors that the backward pass will read. PyTorch calls a function for each tensor that it
# saves, if you ask for it:
#
# ```python
# with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
#     result = forward()
# ```
#
# For each saved tensor it calls `pack(tensor)` and keeps what that returns. In the backward pass `unpack`
# gets this object, and returns the tensor.
#
# ## Exercise 3: count what autograd saves
#
# Three things make the count difficult. The parameters are saved, too, but their bytes are counted already.
# A tensor may be saved twice, as in `h * h`, but it is stored once. And two tensors may be views of one
# storage: `weight.t()` is another tensor than `weight`, with the same bytes.
#
# ::: hint
# `tensor.untyped_storage()` is the block of memory under a tensor. It has `data_ptr()`, which tells two
# blocks apart, and `nbytes()`. Collect the sizes in a dictionary whose keys are the pointers.
# :::


# %% exercise="saved_bytes"
def saved_bytes(forward, parameters):
    """The bytes that autograd saves while `forward()` runs, without those of the parameters."""
    ### BEGIN SOLUTION
    own = {each.untyped_storage().data_ptr() for each in parameters}
    found = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = forward()
    del result
    return sum(found.values())
    ### END SOLUTION


# %% check="saved_bytes"
checks.saved_bytes()

# %% [markdown]
# ## What grows with the batch
#
# Your function draws the last plot. The three kinds from the beginning do not depend on the batch, and the
# activations do. From which batch on are they more than half of everything?

# %%
batches = [1, 2, 4, 8]
saved = []
for batch in batches:
    saved.append(saved_bytes(partial(loss_of, model, batch), model.parameters()))

figure, axes = labs.figure()
rows = {
    labs.label("parameters"): [4 * parameters] * len(batches),
    labs.label("gradients"): [4 * parameters] * len(batches),
    labs.label("moving averages"): [8 * parameters] * len(batches),
    labs.label("activations"): saved,
}
below = [0] * len(batches)
for (name, row), colour in zip(rows.items(), labs.COLOURS, strict=True):
    axes.bar(
        [str(each) for each in batches],
        [each / 1e6 for each in row],
        bottom=[each / 1e6 for each in below],
        color=colour,
        label=name,
    )
    below = [under + each for under, each in zip(below, row, strict=True)]
axes.set_xlabel(labs.label("sequences in a batch"))
axes.set_ylabel("MB")
_ = axes.legend(loc="upper left")

# %% [markdown]
# ## What you have found
#
# - Training with AdamW stores 16 bytes for each parameter, in FP32 as in mixed precision.
# - ZeRO splits these bytes over the ranks: 12 of them from stage 1 on, 14 from stage 2 on, all 16 at stage
#   3.
# - Activations depend on the batch, and ZeRO does not split them. [Lesson
#   8](../site/lessons/pay_with_time.md) trades them for time.
#
# [The planner](src:shardbook/planning/planner.py) computes all of this without a model, for shapes that
# fit nowhere.
