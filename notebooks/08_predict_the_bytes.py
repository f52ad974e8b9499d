# %% [markdown]
# # Predict the bytes
#
# > You predict what each rank stores and sends, count both on 2 and 4 ranks, and fit a model of 6.7
# > billion parameters into 80 GB and into 24 GB.
#
# :minutes: 30
# :lesson: all_of_it
# :needs: the stages of ZeRO; best after [lesson 11](../site/lessons/all_of_it.md)
# :aim: predict the bytes that a rank stores between steps and sends in a step
# :aim: name the bytes that a formula leaves out
# :aim: plan a large model, and choose the settings with which it fits
#
# A large model is planned before it runs, because each failed start costs time on many GPUs. A plan is
# worth as much as its formulas. So you write two of them here, and compare them with counts.

# %%
import torch

from shardbook import Policy, labs, ledger, shard
from shardbook.labs.lessons import predict_the_bytes as checks
from shardbook.models.gpt import GPT, Config, loss, parameters
from shardbook.planning.forecast import Meter
from shardbook.planning.planner import activations, layouts_of, own_bytes

labs.begin()

# %% [markdown]
# ## Exercise 1: what a rank stores between steps
#
# Between two steps there are no gradients, because `optimizer.zero_grad()` has freed them. What remains are
# the parameters and the two moving averages of AdamW. All are FP32, so they take $4 + 8$ bytes for each
# parameter. Stage 1 splits the moving averages over the ranks, stage 2 the gradients as well, and stage 3
# also the parameters. In this library stages 1 and 2 gather the new parameters before the next forward pass,
# and then every rank has all of them.
#
# ::: question
# In which stages does a rank store the same number of bytes between steps?
# ---
# In stages 1 and 2. They differ by the gradients only, and between steps there are none.
# :::
#
# ::: hint
# Two terms are enough. The first has 4 bytes for each parameter and is divided in stage 3. The second has 8
# bytes and is divided from stage 1 on.
# :::


# %% exercise="stored"
def stored(parameters, ranks, stage):
    """The bytes that one rank stores between steps, in FP32 with AdamW."""
    ### BEGIN SOLUTION
    weights, averages = 4 * parameters, 8 * parameters
    if stage >= 1:
        averages /= ranks
    if stage >= 3:
        weights /= ranks
    return weights + averages
    ### END SOLUTION


# %% check="stored"
checks.stored()

# %% [markdown]
# ## Exercise 2: what a rank sends in a step
#
# An all-gather of $B$ bytes sends $B\,(N_d-1)/N_d$ from each of $N_d$ ranks, and so does a reduce-scatter.
# Stage 0 sends the gradients in an all-reduce, which is one of each. Stages 1 and 2 send the gradients in a
# reduce-scatter, and gather the parameters once. Stage 3 gathers the parameters twice: for the forward pass,
# and again for the backward pass.
#
# ::: hint
# Count the exchanges of a step first: how many times does a vector of $4\,\Psi$ bytes cross the network?
# Then multiply by the part that a rank sends.
# :::


# %% exercise="sent"
def sent(parameters, ranks, stage):
    """The bytes that one rank sends in a step, in FP32."""
    ### BEGIN SOLUTION
    exchanges = 3 if stage == 3 else 2
    return exchanges * 4 * parameters * (ranks - 1) / ranks
    ### END SOLUTION


# %% check="sent"
checks.sent()

# %% [markdown]
# ## Count them
#
# The small GPT below trains for one step. The `Meter` adds up all tensors that are left after it, and the
# ledger the bytes that the rank has sent. Your predictions are printed beside them. Which of the sums do
# you expect to agree exactly?

# %%
small = Config(layers=2, width=128, heads=4, context=32)
count = parameters(small)


def counted(stage):
    """What this rank stores after a step, and what it has sent."""
    model = shard(GPT(small).to(labs.device()), stage=stage)
    optimizer = torch.optim.AdamW(model.parameters())
    text = torch.randint(256, (1, 33), device=labs.device())
    with Meter() as meter, ledger() as book:
        loss(model(text[:, :-1]), text[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()
        return meter.now(), book.total


def all_counts():
    """The counts of three stages, on one rank."""
    return [counted(stage) for stage in (0, 2, 3)]


print(f"{count:,} parameters")
for ranks in (2, 4):
    on_rank_0, *_ = labs.ranks(ranks, all_counts)
    for stage, (kept, left) in zip((0, 2, 3), on_rank_0, strict=True):
        print(f"{ranks} ranks, stage {stage}")
        print(f"  stored {kept:10,}  predicted {stored(count, ranks, stage):12,.0f}")
        print(f"  sent   {left:10,}  predicted {sent(count, ranks, stage):12,.0f}")

# %% [markdown]
# ::: question
# The model has 29 parameter tensors. Each rank stores 380 bytes more than predicted, in every stage and with
# both numbers of ranks. What are these bytes?
# ---
# AdamW counts the steps of each tensor, in 4 bytes: $4 \cdot 29 = 116$ bytes. The other 264 are the text, 33
# numbers of 8 bytes.
# :::
#
# ::: question
# A rank sends 128 bytes more than predicted on 2 ranks, and 192 on 4. For what?
# ---
# The ranks compare which parameters were used, in an all-reduce of 4 bytes for each tensor. Filled up to a
# multiple of twice the ranks, these are 32 numbers. An all-reduce of 128 bytes sends $2 \cdot 128 / 2$ on 2
# ranks, and $2 \cdot 128 \cdot 3/4$ on 4.
# :::
#
# ## Plan 6.7 billion parameters
#
# The formulas of the library include these bytes, the padding, the units in flight and the activations. They
# need only shapes, so you can plan any model on any machine. The next one has 32 blocks of width 4,096, and
# reads 2,048 tokens at a time. It is to be trained on 8 ranks with 80 GB each.

# %%
config = Config(layers=32, width=4096, heads=32, context=2048, vocabulary=32_000)


def plan(stage, batch, checkpointing, offload=False):
    """The bytes of one of 8 ranks, by kind. `batch` is the sequences in a micro-batch."""
    policy = Policy(offload=offload)
    extra = activations(config, batch, checkpointing)
    return own_bytes(layouts_of(config, 8, policy), stage, "adamw", extra, policy)


plans = [plan(stage, batch=4, checkpointing=False) for stage in range(4)]
rows = {
    labs.label("parameters"): [each.parameters for each in plans],
    labs.label("gradients"): [each.gradients for each in plans],
    labs.label("moving averages"): [each.state for each in plans],
    labs.label("activations"): [each.activations for each in plans],
    labs.label("in flight"): [each.in_flight for each in plans],
}
figure, axes = labs.figure()
below = [0.0] * 4
for (name, row), colour in zip(rows.items(), [*labs.COLOURS, "white"], strict=True):
    tall = [each / 1e9 for each in row]
    axes.bar(["0", "1", "2", "3"], tall, bottom=below, color=colour, label=name)
    below = [under + each for under, each in zip(below, tall, strict=True)]
axes.axhline(80, linestyle="--")
axes.set_xlabel(labs.label("stage"))
axes.set_ylabel("GB")
_ = axes.legend(loc="upper right")
print(f"{parameters(config):,} parameters")
print("together:", [f"{each.step / 1e9:.1f} GB" for each in plans])

# %% [markdown]
# The dashed line is at 80 GB. The parts of a bar do not all reach their largest size at the same moment, so a
# bar is a bound. On a GPU the activations are an estimate, because attention saves other tensors there.
#
# ::: question
# With micro-batches of 4 sequences not even stage 3 fits. Which part is to blame, and what removes it?
# ---
# The activations, 72 GB at each stage: ZeRO does not split them. Checkpointing keeps only the input of each
# block, and leaves 7.7 GB. Smaller micro-batches help as well, but the GPU computes less at a time.
# :::
#
# ## Exercise 3: fit it into 80 GB
#
# Choose the settings for micro-batches of at least 8 sequences. The plan leaves out the temporaries inside an
# operation and what an allocator rounds up, so let it take at most 72 GB. Of all settings that fit, take one
# that sends the fewest bytes, and do without offload. You may call `plan` as often as you like.
#
# ::: hint
# Turn checkpointing on, and begin with stage 0. Look at `plan(...).step`, and go on to the next stage until
# it fits. Compare `plan(...).sent`, too.
# :::


# %% exercise="for_80_gb"
def for_80_gb():
    """The settings: a dictionary with `stage`, `batch`, `checkpointing` and `offload`."""
    ### BEGIN SOLUTION
    return {"stage": 2, "batch": 8, "checkpointing": True, "offload": False}
    ### END SOLUTION


# %% check="for_80_gb"
checks.for_80_gb()

# %% [markdown]
# ## Exercise 4: fit it into 24 GB
#
# Now there are 8 smaller GPUs, and a plan may take 22 GB. The micro-batches are again to have at least 8
# sequences. This time offload is allowed: it keeps parameters, gradients and moving averages in the memory of
# the host.
#
# ::: question
# What is the largest micro-batch that fits into 22 GB without offload?
# ---
# It has 2 sequences, at stage 3 with checkpointing: 21.3 GB. With 4 sequences the sum is 25.2 GB.
# :::
#
# ::: hint
# Offload moves what a rank stores, and not what it uses at the moment. Which stage keeps whole parameters on
# the device for a single unit only?
# :::


# %% exercise="for_24_gb"
def for_24_gb():
    """The settings: a dictionary with `stage`, `batch`, `checkpointing` and `offload`."""
    ### BEGIN SOLUTION
    return {"stage": 3, "batch": 8, "checkpointing": True, "offload": True}
    ### END SOLUTION


# %% check="for_24_gb"
checks.for_24_gb()

# %% [markdown]
# ## What you have found
#
# - Between steps a rank stores 12 bytes for each parameter in FP32, and the stages divide 8 or 12 of them.
# - A step sends two vectors, or three at stage 3. What a formula leaves out are some hundred bytes.
# - ZeRO does not split activations. Checkpointing, smaller micro-batches and offload are for what it leaves.
#
# [The planner](src:shardbook/planning/planner.py) has the table behind `plan`, [the
# forecast](src:shardbook/planning/forecast.py) computes the peak to the byte, and [planning a
# run](src:shardbook/train/plan.py) does all of this on the command line.
