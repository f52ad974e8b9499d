# %% [markdown]
# # Write the collectives by hand
#
# > You write an all-gather and a reduce-scatter from single messages, and count the bytes that each rank
# > sends.
#
# :minutes: 30
# :lesson: what_ranks_say
# :needs: indices modulo a number; best after [lesson 2](../site/lessons/what_ranks_say.md)
# :aim: send and receive around a ring without a deadlock
# :aim: write an all-gather and a reduce-scatter of which each message carries one piece
# :aim: compute the bytes that a rank sends in an all-reduce, and check them by a count
#
# A collective is made of messages: one rank sends a tensor, and another rank receives it. In this lab you
# have nothing but such messages, and you build the collectives of ZeRO from them.

# %%
import torch
import torch.distributed as dist

from shardbook import labs
from shardbook.foundations.collectives import all_gather as library_all_gather
from shardbook.foundations.collectives import ledger, reduce_scatter_mean
from shardbook.labs.lessons import collectives_by_hand as checks

labs.begin()

# %% [markdown]
# ## One message
#
# In a message the sender names the receiver, and the receiver names the sender. The receiver also provides
# a tensor of the right size, which the message fills. The function `place` says from which memory the ranks
# can send: gloo sends from that of the CPU, and NCCL from that of a GPU.


# %%
def place():
    """Where the tensors of this rank can be sent from."""
    return labs.device() if dist.get_backend() == "nccl" else "cpu"


def one_message():
    """Rank 0 sends two numbers to rank 1."""
    if dist.get_rank() == 0:
        dist.send(torch.tensor([3.0, 4.0], device=place()), dst=1)
        return "sent"
    received = torch.empty(2, device=place())
    dist.recv(received, src=0)
    return received.tolist()


labs.ranks(2, one_message)

# %% [markdown]
# ## Exercise 1: around a ring
#
# Now each rank has something to send. The ranks form a ring: each sends its tensor to the next rank, and
# receives one from the rank before. The last rank sends to rank 0.
#
# `dist.send` and `dist.recv` return when the message is complete. `dist.isend` and `dist.irecv` only start
# it and return a handle at once. `handle.wait()` returns when that message is complete. Until then nobody
# may read the tensor that is being received, or change the one that is being sent.
#
# Write the function that all ranks call at the same time. The check runs it on three ranks. If they do not
# return within 6 seconds, it ends them and shows the lines at which they stand.
#
# ::: hint
# The number of the next rank is `(rank + 1) % ranks`, and that of the rank before is `(rank - 1) % ranks`.
# Start both messages before you wait for one of them. `torch.empty_like(tensor)` makes room for what
# arrives.
# :::


# %% exercise="pass_on"
def pass_on(tensor):
    """Send a tensor to the next rank, and return what the rank before has sent."""
    ### BEGIN SOLUTION
    rank, ranks = dist.get_rank(), dist.get_world_size()
    received = torch.empty_like(tensor)
    messages = [
        dist.P2POp(dist.isend, tensor.contiguous(), (rank + 1) % ranks),
        dist.P2POp(dist.irecv, received, (rank - 1) % ranks),
    ]
    for handle in dist.batch_isend_irecv(messages):
        handle.wait()
    return received
    ### END SOLUTION


# %% check="pass_on"
checks.pass_on()

# %% [markdown]
# ::: question
# A program calls `dist.send(tensor, next_rank)` on every rank, and after it `dist.recv(received,
# rank_before)`. The numbers of the ranks are right. Why does no rank ever return?
# ---
# Each rank waits in `send` until the next rank receives, and the next rank waits in its own `send`. This is
# a *deadlock*. It would help if a single rank received first. Starting both messages at once helps without
# such an exception.
# :::
#
# ## Exercise 2: all-gather
#
# Each rank has one piece of a vector, and at the end every rank shall have all of them, in the order of the
# ranks. In the first hop a rank passes on its own piece. In each hop that follows, it passes on the piece
# that has just arrived. Use `pass_on` for that, and nothing else of `torch.distributed` but the two
# functions for the number of this rank and the number of ranks.
#
# ::: question
# There are four ranks. How many hops are needed? And whose piece does rank 1 hold after the second hop?
# ---
# Three hops: a rank lacks three pieces, and each hop brings one. After two hops rank 1 holds the piece of
# rank 3, which has come through rank 0.
# :::
#
# ::: hint
# Make a list with a place for each rank, and put your own piece into its place. After hop number `hop`,
# counted from 1, the piece that has arrived belongs to rank `(rank - hop) % ranks`. At the end `torch.cat`
# joins the list.
# :::


# %% exercise="all_gather"
def all_gather(piece):
    """The pieces of all ranks in one vector, in the order of the ranks."""
    ### BEGIN SOLUTION
    rank, ranks = dist.get_rank(), dist.get_world_size()
    pieces = [piece] * ranks
    for hop in range(1, ranks):
        piece = pass_on(piece)
        pieces[(rank - hop) % ranks] = piece
    return torch.cat(pieces)
    ### END SOLUTION


# %% check="all_gather"
checks.all_gather()

# %% [markdown]
# ## Exercise 3: reduce-scatter
#
# Now each rank has a whole vector, such as its gradient. At the end rank 0 shall have the first piece of
# the sum of all vectors, rank 1 the second piece, and so on. Again a single piece travels in each hop. But
# this time each rank adds its own numbers to the piece that arrives, before it passes the piece on.
#
# ::: question
# A piece ends on the rank that it belongs to, since that rank adds its numbers last. There are four ranks.
# On which rank does the piece of rank 0 begin?
# ---
# On rank 1. From there it goes to the ranks 2, 3 and 0. In general each rank begins with the piece of the
# rank before it.
# :::
#
# ::: hint
# `vector.chunk(ranks)` cuts the vector into pieces. Begin with the piece of rank `(rank - 1) % ranks`. The
# piece that arrives in the first hop belongs to rank `(rank - 2) % ranks`: add your own numbers of that
# piece to it.
# :::


# %% exercise="reduce_scatter"
def reduce_scatter(vector):
    """This rank's piece of the sum of all vectors."""
    ### BEGIN SOLUTION
    rank, ranks = dist.get_rank(), dist.get_world_size()
    pieces = vector.chunk(ranks)
    passed = pieces[(rank - 1) % ranks]
    for hop in range(2, ranks + 1):
        passed = pass_on(passed) + pieces[(rank - hop) % ranks]
    return passed
    ### END SOLUTION


# %% check="reduce_scatter"
checks.reduce_scatter()

# %% [markdown]
# ## Both together, beside the library
#
# Lesson 2 has an example with eight numbers on four ranks: 1 to 8 on rank 0, 9 to 16 on rank 1, and so on.
# Here your functions compute it, and the library does the same. Its reduce-scatter divides the sum by the
# number of ranks. `checks.Sent` counts the bytes that a rank sends in messages, and the library's ledger
# counts those of its collectives. Write down what you expect of rank 1.


# %%
def by_hand_and_by_library():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    vector = torch.arange(1.0, 9.0, device=place()) + 8 * rank

    with checks.Sent() as sent:
        piece = reduce_scatter(vector) / ranks
        whole = all_gather(piece)

    with ledger() as book:
        same_piece = reduce_scatter_mean(vector).wait()
        same_whole = torch.empty_like(vector)
        library_all_gather(same_whole, same_piece).wait()

    assert torch.equal(piece, same_piece)
    assert torch.equal(whole, same_whole)
    return piece.tolist(), whole.tolist(), sent.nbytes, book.sent


for number, (piece, whole, nbytes, sent) in enumerate(labs.ranks(4, by_hand_and_by_library)):
    print(f"rank {number}: {piece} {whole}\n        {nbytes} B by hand, {sent} by the library")

# %% [markdown]
# The two functions in a row are an all-reduce, and that is what plain data parallel training does with its
# gradients. The vector has 32 bytes. A rank sends 24 in each half, so it sends 48.
#
# ## Exercise 4: the bytes of an all-reduce
#
# How many bytes does each rank send in such an all-reduce? Write the formula for any number of ranks, and
# for vectors that can be cut into equal pieces.
#
# ::: hint
# Count the hops of both halves, and multiply them by the bytes of one piece.
# :::


# %% exercise="ring_bytes"
def ring_bytes(ranks, nbytes):
    """The bytes that each rank sends in an all-reduce around a ring.

    `nbytes` is the size of the whole vector.
    """
    ### BEGIN SOLUTION
    hops = 2 * (ranks - 1)
    return hops * nbytes / ranks
    ### END SOLUTION


# %% check="ring_bytes"
checks.ring_bytes()

# %% [markdown]
# ## The ring against the obvious way
#
# Most people would write an all-reduce in another way: all ranks send their vectors to rank 0, which adds
# them and sends the sum back. Its code is shorter, and the sum is the same. The next cell counts the bytes
# of both on 2, 3 and 4 ranks. What does rank 0 send, and what do the others?


# %%
def through_rank_0(vector):
    """The sum of all vectors, computed by rank 0 alone."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if rank > 0:
        dist.send(vector, dst=0)
        total = torch.empty_like(vector)
        dist.recv(total, src=0)
        return total
    total, received = vector.clone(), torch.empty_like(vector)
    for other in range(1, ranks):
        dist.recv(received, src=other)
        total += received
    for other in range(1, ranks):
        dist.send(total, dst=other)
    return total


def bytes_of_both():
    """The bytes that this rank sends through rank 0, and around the ring."""
    vector = torch.ones(12_000, device=place())
    with checks.Sent() as through:
        through_rank_0(vector)
    with checks.Sent() as around:
        all_gather(reduce_scatter(vector))
    return through.nbytes, around.nbytes


counts = [2, 3, 4]
counted = [labs.ranks(ranks, bytes_of_both) for ranks in labs.progress(counts)]
for ranks, found in zip(counts, counted, strict=True):
    print(ranks, "through rank 0:", [through for through, _ in found])
    print(ranks, "around a ring: ", [around for _, around in found])

# %% [markdown]
# The vector has 48,000 bytes. Rank 0 sends a copy to each other rank, and they all wait until it is done.
# In the ring every rank sends the same, and no rank waits for a busier one. The last plot continues both by
# their formulas. The marks are the counts of the rank that sends most.

# %%
figure, axes = labs.figure()
nbytes = 4 * 12_000
many = list(range(2, 17))
axes.plot(many, [ranks - 1 for ranks in many], label=labs.label("through rank 0"))
axes.plot(many, [ring_bytes(ranks, nbytes) / nbytes for ranks in many], label=labs.label("around a ring"))
axes.set_ylim(bottom=0)
axes.set_xlabel(labs.label("ranks"))
axes.set_ylabel(labs.label("vectors that the busiest rank sends"))
_ = axes.legend(loc="upper left")
for way, mark in ((0, "o"), (1, "s")):
    busiest = [max(each[way] for each in found) / nbytes for found in counted]
    axes.plot(counts, busiest, mark, color=f"C{way}", linestyle="")

# %% [markdown]
# ::: question
# The vector has 28 MB, and 64 ranks share the work. What does the busiest rank send in each of the two
# ways?
# ---
# Through rank 0 it sends 63 copies, 1,764 MB. In the ring each rank sends $2 \cdot 63 / 64$ of the vector,
# 55.1 MB. However many ranks there are, it is never more than two vectors.
# :::
#
# ## What you have found
#
# - A rank that waits for one message before it starts the other can stop the whole ring.
# - In an all-gather and in a reduce-scatter each rank sends $(N - 1)/N$ of the vector, on $N$ ranks.
# - An all-reduce is a reduce-scatter and then an all-gather. ZeRO stops between the two, and updates the
#   parameters there.
#
# [Collectives](src:shardbook/foundations/collectives.py) is the library's own version, and [the byte
# ledger](src:shardbook/foundations/collectives.py#module/the-byte-ledger) says how its counts are checked
# against those of the operating system.
