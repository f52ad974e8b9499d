# %% [markdown]
# # Evaluate on rank 0
#
# > You evaluate a sharded model on one rank only, read the error that every rank raises, and mend the
# > evaluation in two ways.
#
# :minutes: 20
# :lesson: what_ranks_say
# :needs: all-gather and all-reduce; best after [lesson 2](../site/lessons/what_ranks_say.md)
# :aim: say why one rank cannot evaluate a model of stage 3 alone
# :aim: find the rank and the call that left the common order
# :aim: average a loss over ranks that have unequal numbers of sequences
#
# Programs for one GPU print and evaluate wherever they like. With several ranks many programs say `if rank ==
# 0:` before it, so that each result appears once. For a `print` that is right. What about a forward pass?

# %%
import textwrap

import torch
import torch.distributed as dist

from shardbook import Disagreement, labs, ledger, rank0_only, shard
from shardbook.labs.lessons import evaluate_on_rank_0 as checks
from shardbook.models import corpus
from shardbook.models.gpt import GPT, Config, loss

labs.begin()

# %% [markdown]
# ## A model that has been trained a little
#
# The model below takes two steps on random text. `held_out` returns some sequences of a book that it was not
# trained on, with the byte that follows each position.

# %%
config = Config(layers=2, width=64, heads=4, context=32)
_, unseen = corpus.split(corpus.read())


def take_step(model, optimizer):
    """One training step on random text."""
    text = torch.randint(256, (2, 33), device=labs.device())
    loss(model(text[:, :-1]), text[:, 1:]).backward()
    optimizer.step()
    optimizer.zero_grad()


def trained(stage):
    """A sharded model after two steps, and its optimizer."""
    model = shard(GPT(config).to(labs.device()), stage=stage)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        take_step(model, optimizer)
    return model, optimizer


def held_out(count):
    """Sequences of held-out text, and their targets."""
    text = unseen[: count * 32 + 1].long().to(labs.device())
    return text[:-1].view(count, 32), text[1:].view(count, 32)


# %% [markdown]
# ## Rank 0 evaluates alone
#
# In the next cell rank 0 runs the model once more than rank 1, and then both train on. It does so at stage 0
# and at stage 3.
#
# ::: question
# At which of the two stages does that work? What happens at the other one?
# ---
# At stage 0 every rank has the whole model, so its forward pass sends nothing. At stage 3 a forward pass
# gathers each unit, and a gather needs all ranks. Rank 1 is in its next training step meanwhile. Without a
# check, its gathers would meet those of the evaluation.
# :::


# %%
def alone(stage, rank, action):
    """One rank does something alone, and then all train on."""
    model, optimizer = trained(stage)
    try:
        if dist.get_rank() == rank:
            action(model)
        take_step(model, optimizer)
    except Disagreement as error:
        return str(error)
    return "no error"


@torch.no_grad()
def forward_pass(model):
    """Evaluate two sequences."""
    model(held_out(2)[0])


def show(told):
    """Print what each rank has been told."""
    for number, sentence in enumerate(told):
        print(textwrap.fill(sentence, 90, initial_indent=f"{number}: ", subsequent_indent="   "))


for stage in (0, 3):
    print("stage", stage)
    show(labs.ranks(2, alone, stage, 0, forward_pass))

# %% [markdown]
# Both ranks raise the same error, so the log of either one is enough. It says which rank left the common
# order, after how many exchanges, and what the other rank went on to do. No wrong values have been exchanged.
#
# ## Exercise 1: read the error
#
# Here a rank does something else alone. Read the error, and find out which rank it is, after how many
# exchanges it left the common order, and what it called.

# %%
sentences = labs.ranks(2, alone, 3, 1, GPT.state_dict)
show(sentences)

# %% [markdown]
# ::: hint
# The first half of the error is about the rank that has left the order. Before the word `pass` stands which
# pass it was in: `forward`, `backward`, `evaluation`, or the name of a method.
# :::


# %% exercise="reading"
def reading():
    """A dictionary: `rank`, a number; `exchanges`, a number; and `called`, a name."""
    ### BEGIN SOLUTION
    return {"rank": 1, "exchanges": 26, "called": "state_dict"}
    ### END SOLUTION


# %% check="reading"
checks.reading()

# %% [markdown]
# ## Exercise 2: all ranks evaluate
#
# The usual way is that every rank evaluates its part of the sequences, and then all average. The numbers of
# sequences may be unequal: of three sequences one rank gets two and the other one. Return the mean loss over
# all positions of all sequences, the same on each rank. Each rank calls the model once.
#
# ::: hint
# A mean of means counts a sequence of a small part more than one of a large part. So multiply each rank's
# mean by its number of positions. Then add the products and the numbers over the ranks with
# `dist.all_reduce`.
# :::


# %% exercise="evaluate"
def evaluate(model, inputs, targets):
    """The mean loss over all sequences, of which each rank evaluates a part."""
    ### BEGIN SOLUTION
    mine = slice(labs.rank(), None, dist.get_world_size())
    count = targets[mine].numel()
    with torch.no_grad():
        mean = loss(model(inputs[mine]), targets[mine])
    both = torch.stack([mean * count, torch.full_like(mean, count)])
    dist.all_reduce(both)
    return (both[0] / both[1]).item()
    ### END SOLUTION


# %% check="evaluate"
checks.evaluate()

# %% [markdown]
# ## Exercise 3: a plain model on rank 0
#
# Some evaluations cannot be divided, for example a library that wants a plain model. Then rank 0 takes the
# whole parameters into one. All ranks call `state_dict`, because each unit is gathered for it. In the block
# `with rank0_only(model):` only rank 0 keeps them, and the others need no memory for the whole model.


# %%
def tensors_kept():
    """How many whole tensors this rank gets."""
    model, _ = trained(3)
    with rank0_only(model):
        return len(model.state_dict())


print("tensors on each rank:", labs.ranks(2, tensors_kept))

# %% [markdown]
# ::: hint
# The call of `model.state_dict()` stands before the question which rank this is. `GPT(config)` makes a plain
# model, and `load_state_dict` fills it.
# :::


# %% exercise="plain_on_rank_0"
def plain_on_rank_0(model):
    """A plain GPT with the parameters of a sharded one: on rank 0, and `None` on the others."""
    ### BEGIN SOLUTION
    with rank0_only(model):
        state = model.state_dict()
    if labs.rank() > 0:
        return None
    plain = GPT(config)
    plain.load_state_dict(state)
    return plain
    ### END SOLUTION


# %% check="plain_on_rank_0"
checks.plain_on_rank_0()

# %% [markdown]
# ## What both ways send
#
# Now both of your functions evaluate the same three sequences, and the ledger counts the bytes.


# %%
def both_ways():
    """The losses and the sent bytes of both ways."""
    model, optimizer = trained(3)
    inputs, targets = held_out(3)
    with ledger() as divided:
        of_all = evaluate(model, inputs, targets)
    with ledger() as gathered:
        plain = plain_on_rank_0(model)
    alone = None
    if plain is not None:
        with torch.no_grad():
            alone = loss(plain.to(labs.device())(inputs), targets).item()
    take_step(model, optimizer)
    return of_all, divided.total, alone, gathered.total


for number, (of_all, divided, alone_loss, gathered) in enumerate(labs.ranks(2, both_ways)):
    print(f"rank {number}: all ranks {of_all:.4f}, {divided:,} B sent", end="; ")
    print(f"plain model {alone_loss and round(alone_loss, 4)}, {gathered:,} B sent")

# %% [markdown]
# ::: question
# Both ways send the same bytes here. Which one is cheaper for a hundred batches?
# ---
# The plain model is gathered once, whatever follows. A sharded model gathers its units in each forward pass,
# a hundred times. But rank 0 needs memory for the whole model, and the other ranks do nothing meanwhile. A
# model that fits on no rank leaves only the first way.
# :::
#
# ## What you have found
#
# - At stage 3 a forward pass needs all ranks, and so does `state_dict`. At stage 0 a rank may do both alone.
# - A rank that leaves the common order is named on every rank, with what it was about to do.
# - All ranks evaluate a part each and weigh it by its size, or rank 0 gets a plain model.
#
# [The order of exchanges](src:shardbook/foundations/exchange_order.py) says how the ranks find out, [a rank
# that leaves](src:shardbook/foundations/watchdog.py#module/a-rank-that-leaves) what happens if one of them
# ends, and [the loss on held-out text](src:shardbook/train/loop.py#module/the-loss-on-unseen-text) is the
# evaluation of the training program.
