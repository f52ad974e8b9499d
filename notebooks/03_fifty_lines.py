# %% [markdown]
# # Write ZeRO-3 yourself
#
# > You write stage 1, then stage 2, then stage 3, until your code equals the library on two ranks.
#
# :minutes: 60
# :lesson: fifty_lines
# :needs: training a model in PyTorch; [the fifty lines](../site/lessons/fifty_lines.md), read once
# :aim: cut the parameters of a layer into equal parts, one for each rank
# :aim: write the exchange of stage 1, and the backward pass of an all-gather
# :aim: free a layer between its uses, and gather it again for its backward pass
# :aim: compare two programs that train, parameter by parameter
#
# Each exercise is a piece of the fifty lines, and each stage trains a small GPT. After each stage the check
# trains the same model three times: with your code on two ranks, with the library on two ranks, and without
# any sharding. It compares all parameters.

# %%
import torch
import torch.distributed as dist
from torch import nn
from torch.func import functional_call

from shardbook import labs, shard
from shardbook.labs.lessons import fifty_lines_yourself as checks
from shardbook.models.corpus import Reader, read
from shardbook.models.gpt import GPT, Config, loss
from shardbook.planning.forecast import Meter

labs.begin()

# %% [markdown]
# ## The plain model
#
# The plain model reads the batches of both ranks, one after the other. Its gradient is the mean over the two
# batches, because each loss is divided by two. Your code on two ranks has to find the same losses.

# %%
config = Config(layers=2, width=64, heads=4, context=32)


def model_and_batches(rank, ranks):
    """The model with its first values, and the batches that one rank reads."""
    torch.manual_seed(0)
    batches = Reader(read(), context=32, batch=4, rank=rank, world_size=ranks, device=labs.device())
    return GPT(config).to(labs.device()), batches


plain, batches_0 = model_and_batches(0, 2)
_, batches_1 = model_and_batches(1, 2)
optimizer = torch.optim.AdamW(plain.parameters(), lr=3e-3)
for number in range(5):
    optimizer.zero_grad()
    total = 0.0
    for x, target in (batches_0[number], batches_1[number]):
        error = loss(plain(x), target) / 2
        error.backward()
        total += error.item()
    optimizer.step()
    print(f"step {number + 1}: loss {total:.4f}")

# %% [markdown]
# ## Exercise 1: one vector, cut into parts
#
# A layer has a few parameters of different shapes, and each rank must store an equal part of them. So first
# all values are laid end to end in one vector. Zeros at its end make its length a multiple of the number of
# ranks. Then the vector is cut, and each rank keeps one part.
#
# The rank will delete the vector. A part that is only a view of it would keep all of its memory, so the part
# must have memory of its own.
#
# ::: question
# The layer `nn.Linear(3, 4)` is shared by 3 ranks. How many zeros are added, and what does rank 2 store?
# ---
# The layer has 12 weights and 4 biases. 16 is not a multiple of 3, so two zeros make it 18. Rank 2 stores
# the last six: the 4 biases, and the 2 zeros.
# :::
#
# ::: hint
# `torch.cat` joins tensors, if they have one dimension. `nn.functional.pad(vector, (0, n))` adds `n` zeros at
# the end. In Python `-16 % 3` is 2. `tensor.chunk(ranks)` cuts a tensor into views, and `clone()` copies one.
# :::


# %% exercise="flatten_and_cut"
def flatten(tensors, ranks):
    """All values of some tensors in one vector, with zeros at its end if it cannot be cut evenly."""
    ### BEGIN SOLUTION
    vector = torch.cat([each.flatten() for each in tensors])
    return nn.functional.pad(vector, (0, -len(vector) % ranks))
    ### END SOLUTION


def cut(vector, rank, ranks):
    """The part of the vector that a rank stores, in memory of its own."""
    ### BEGIN SOLUTION
    return vector.chunk(ranks)[rank].clone()
    ### END SOLUTION


# %% check="flatten_and_cut"
checks.flatten_and_cut()

# %% [markdown]
# The way back is given. `views` turns a vector into parameters: each is a view in its own shape, so no value
# is copied. The last piece is the padding, and no parameter gets it.


# %%
def views(layer, vector):
    """Each parameter of a layer as a view of the vector, by name."""
    named = dict(layer.named_parameters())
    sizes = [p.numel() for p in named.values()]
    *pieces, _padding = vector.split([*sizes, len(vector) - sum(sizes)])
    return {name: piece.view_as(named[name]) for name, piece in zip(named, pieces, strict=True)}


layer = nn.Linear(3, 4)
for name, view in views(layer, torch.arange(18.0)).items():
    print(name, view.tolist())

# %% [markdown]
# ## Two collectives
#
# Ranks exchange vectors by two calls. In an **all-gather** each rank gives its part, and each gets the parts
# of all ranks in one vector. In a **reduce-scatter** each rank gives a whole vector. The vectors are added
# up, and each rank gets its own part of the sum.
#
# ::: question
# Below, the parts are `[1, 2]` on rank 0 and `[11, 12]` on rank 1. The whole vectors are `[0, 1, 2, 3]` on
# rank 0 and `[0, 10, 20, 30]` on rank 1. What does each rank get from the two calls?
# ---
# From the all-gather both get `[1, 2, 11, 12]`. From the reduce-scatter rank 0 gets `[0, 11]`, and rank 1
# gets `[22, 33]`.
# :::


# %%
def two_collectives():
    """Print what this rank gets from each of the two calls."""
    part = torch.tensor([1.0, 2.0], device=labs.device()) + 10 * labs.rank()
    vector = part.new_empty(4)
    dist.all_gather([*vector.chunk(2)], part)
    print("all-gather", vector.tolist())
    whole = torch.arange(4.0, device=labs.device()) * 10 ** labs.rank()
    total = whole.new_empty(2)
    dist.reduce_scatter(total, [*whole.chunk(2)])
    print("reduce-scatter", total.tolist())


labs.ranks(2, two_collectives)

# %% [markdown]
# ## Exercise 2: stage 1
#
# Stage 1 splits the optimizer's state. Each rank still has the whole model, and after the backward pass it
# has the gradients of its own batch. But its optimizer trains parts only: one part for each layer. After the
# backward pass a rank therefore does three things:
#
# 1. For each layer it gets the mean of all ranks' gradients, for its own part, and stores it as the `grad`
#    of the part.
# 2. The optimizer steps. Now the parts are new, and the layers still have the old values.
# 3. For each layer it gathers the parts of all ranks, and copies them into the layer's parameters.
#
# ::: question
# Each rank steps with the gradient of its own part only, and has the moving averages of that part only. Why
# is the result that of the plain model?
# ---
# AdamW computes each value from the gradient and the moving averages of that value alone. It never reads
# another value.
# :::
#
# ::: hint
# A reduce-scatter gives a sum. For the first thing, `flatten` the gradients of the layer, make room with
# `torch.empty_like(part)`, call `dist.reduce_scatter(room, [*vector.chunk(ranks)])`, and divide. For the
# third, make room with `part.new_empty(len(part) * ranks)` and call
# `dist.all_gather([*room.chunk(ranks)], part.detach())`. Then
# `layer.get_parameter(name).data.copy_(view)` for each of the `views`.
# :::


# %% exercise="step_of_stage_1"
def step_of_stage_1(layers, parts, optimizer):
    """Take a step with the mean gradient of all ranks. `parts` has one parameter for each layer."""
    ### BEGIN SOLUTION
    ranks = dist.get_world_size()
    for layer, part in zip(layers, parts, strict=True):
        part.grad = torch.empty_like(part)
        gradient = flatten([p.grad for p in layer.parameters()], ranks)
        dist.reduce_scatter(part.grad, [*gradient.chunk(ranks)])
        part.grad /= ranks
    optimizer.step()
    for layer, part in zip(layers, parts, strict=True):
        vector = part.new_empty(len(part) * ranks)
        dist.all_gather([*vector.chunk(ranks)], part.detach())
        for name, view in views(layer, vector).items():
            layer.get_parameter(name).data.copy_(view)
    ### END SOLUTION


# %% check="step_of_stage_1"
checks.step_of_stage_1()

# %% [markdown]
# Now train with your step. Compare the losses with those of the plain model above.


# %%
def mean_over_ranks(error):
    """The mean of a loss over all ranks, to print."""
    value = error.detach().clone()
    dist.all_reduce(value)
    return value.item() / dist.get_world_size()


def train_at_stage_1():
    """Five steps, in which each rank's optimizer sees its own parts only."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model, batches = model_and_batches(rank, ranks)
    parts = []
    for layer in model:
        vector = flatten([p.detach() for p in layer.parameters()], ranks)
        parts.append(nn.Parameter(cut(vector, rank, ranks)))
    optimizer = torch.optim.AdamW(parts, lr=3e-3)
    for number in range(5):
        model.zero_grad()
        x, target = batches[number]
        error = loss(model(x), target)
        error.backward()
        step_of_stage_1(model, parts, optimizer)
        found = mean_over_ranks(error)
        if rank == 0:
            print(f"step {number + 1}: loss {found:.4f}")


labs.ranks(2, train_at_stage_1)

# %% [markdown]
# ## Stage 2: let autograd do the exchange
#
# At stage 1 all gradients of the model exist until the step. Stage 2 exchanges the gradient of a layer as
# soon as it is complete, and keeps its own part of the mean. When is a layer's gradient complete? If the
# gather is an operation of autograd, its backward pass is called at exactly this moment.
#
# So the part becomes the layer's only parameter, and the forward pass begins with the gather. Two functions
# give a vector its memory and take it away. A tensor looks at a *storage*, which owns the memory, and
# `resize_` changes the size of the storage while the tensor stays.


# %%
def gather(part, full):
    """Give the vector its memory, and fill it with the parts of all ranks."""
    full.untyped_storage().resize_(full.nbytes)
    dist.all_gather([*full.chunk(dist.get_world_size())], part.detach())


def free(full):
    """Take the memory of the vector away."""
    full.untyped_storage().resize_(0)


class Stage2(nn.Module):
    """A layer that is gathered in the forward pass. This rank trains one part of it."""

    def __init__(self, layer):
        super().__init__()
        ranks = dist.get_world_size()
        vector = flatten([p.detach() for p in layer.parameters()], ranks)
        self.part = nn.Parameter(cut(vector, dist.get_rank(), ranks))
        # The device `meta` keeps shapes and no values. In a tuple, PyTorch does not see the layer as a
        # part of this module.
        self.layer = (layer.to("meta"),)

    def forward(self, x):
        """Gather the layer, and compute with views of the vector in the place of its parameters."""
        full = self.part.new_empty(len(self.part) * dist.get_world_size())
        whole = Gather.apply(self.part, full)
        return functional_call(self.layer[0], views(self.layer[0], whole), (x,))


# %% [markdown]
# ## Exercise 3: the backward pass of a gather
#
# `Gather` is missing. For autograd it is an operation whose input is `part` and whose output is the whole
# vector. Its forward pass is given. It returns `full.data`, a second tensor on the same memory, because
# `gather` will write to `full` once more, and autograd refuses saved tensors that were written to.
#
# Autograd calls `backward` with the gradient of the whole vector, at the moment when it is complete. Return
# the gradient of each input: of `part` what you need, and of `full` nothing, `None`. By then the layer has
# been used for the last time in this step, so free it.
#
# ::: question
# In the forward pass one value of rank 0 goes to both ranks, and both compute with it. What is its gradient,
# and which of the two collectives computes that?
# ---
# A value that is used in two places has the sum of the two gradients. Here the places are on two ranks, so a
# reduce-scatter forms the sum, and gives it to the rank that stores the value. The loss of the whole batch
# is the mean over the ranks, so the sum is divided.
# :::
#
# ::: hint
# It is the first of the three things of stage 1, for one layer. The gradient that `backward` gets is a
# vector already, with its padding. The two results are returned together: `return mine, None`.
# :::


# %% exercise="gather_backward"
class Gather(torch.autograd.Function):
    """An all-gather that autograd records."""

    @staticmethod
    def forward(context, part, full):
        context.full = full
        gather(part, full)
        return full.data

    @staticmethod
    def backward(context, gradient):
        ### BEGIN SOLUTION
        free(context.full)
        total = gradient.new_empty(len(gradient) // dist.get_world_size())
        dist.reduce_scatter(total, [*gradient.chunk(dist.get_world_size())])
        return total / dist.get_world_size(), None
        ### END SOLUTION


# %% check="gather_backward"
checks.gather_backward()

# %% [markdown]
# The training loop is an ordinary one now: `backward` exchanges the gradients, and the optimizer sees
# parameters that happen to be parts.


# %%
def train(kind):
    """Five steps of a model whose layers are of some kind."""
    plain, batches = model_and_batches(dist.get_rank(), dist.get_world_size())
    model = nn.Sequential(*[kind(layer) for layer in plain])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for number in range(5):
        optimizer.zero_grad()
        x, target = batches[number]
        error = loss(model(x), target)
        error.backward()
        optimizer.step()
        found = mean_over_ranks(error)
        if dist.get_rank() == 0:
            print(f"step {number + 1}: loss {found:.4f}")


labs.ranks(2, train, Stage2)

# %% [markdown]
# ## Exercise 4: stage 3
#
# Between two steps a rank stores only its parts now. But at the end of the forward pass every layer is
# whole, since autograd has saved the views for the backward pass. So the largest amount is still that of a
# whole model. Stage 3 frees each layer after its forward pass, and gathers it again for its backward pass.
#
# Write the forward pass of stage 3. Begin with that of `Stage2`, and add two things. After the layer has
# computed, free the vector. And have it gathered again at the right moment: a layer's backward pass begins
# when the gradient of its output is known. PyTorch then calls the hooks of the output.
#
# ::: question
# Why is it not enough to write `del full`, and to gather into a new vector later?
# ---
# Autograd has saved views of the vector, and each of them keeps its memory alive. So nothing would be freed.
# And a new vector would be at another place, where autograd does not look.
# :::
#
# ::: hint
# `y.register_hook(function)` calls `function(gradient)` when the gradient of `y` is known. Whatever the
# function returns would replace the gradient, so it must return `None`. Under `torch.no_grad()` an output
# has no gradient and takes no hook: `y.requires_grad` is false.
# :::


# %% exercise="stage_3"
class Stage3(Stage2):
    """A layer that is whole only while it computes."""

    def forward(self, x):
        """Gather, compute, free, and gather again when the gradient of the output is known."""
        ### BEGIN SOLUTION
        full = self.part.new_empty(len(self.part) * dist.get_world_size())
        whole = Gather.apply(self.part, full)
        y = functional_call(self.layer[0], views(self.layer[0], whole), (x,))
        free(full)
        if y.requires_grad:
            y.register_hook(lambda gradient: gather(self.part, full))
        return y
        ### END SOLUTION


# %% check="stage_3"
checks.stage_3()

# %%
labs.ranks(2, train, Stage3)

# %% [markdown]
# ## Watch the bytes of a step
#
# The losses cannot show what a stage saves. The next cell counts the bytes of all tensors before and after
# every operation of one step, for your two classes and for the library. The model has eight blocks and reads
# 8 tokens, so most of these bytes are parameters and gradients.
#
# Predict the three curves first: where does each of them rise, and where does it fall?


# %%
class Curve(Meter):
    """A meter that keeps its count before and after every operation."""

    def __torch_dispatch__(self, *arguments):
        """Between two operations storages may have been freed, so count before this one, too."""
        self.curve.append(self.now() / 1e6)
        result = super().__torch_dispatch__(*arguments)
        self.curve.append(self.now() / 1e6)
        return result


def bytes_of_a_step(kind):
    """What this rank stores in the course of a forward and a backward pass, in MB."""
    torch.manual_seed(0)
    model = GPT(Config(layers=8, width=128, heads=4, context=32)).to(labs.device())
    model = shard(model, stage=3) if kind is shard else nn.Sequential(*[kind(layer) for layer in model])
    text = torch.zeros(1, 8, dtype=torch.long, device=labs.device())
    with Curve() as meter:
        meter.curve = [meter.now() / 1e6]
        loss(model(text), text).backward()
    return meter.curve


figure, axes = labs.figure()
names = [
    labs.label("your stage 2"),
    labs.label("your stage 3"),
    labs.label("the library, stage 3"),
]
for kind, name in zip((Stage2, Stage3, shard), names, strict=True):
    curve = labs.ranks(2, bytes_of_a_step, kind)[0]
    print(f"{name}: {max(curve):.2f} MB")
    # The library does a few operations more, so each curve has a step of the same width.
    axes.plot([at / (len(curve) - 1) for at in range(len(curve))], curve, label=name)
axes.set_xlabel(labs.label("part of the step"))
axes.set_ylabel("MB")
axes.set_ylim(bottom=0)
_ = axes.legend()

# %% [markdown]
# ::: question
# All three curves end at the same height. What is stored there? And why is the library's curve above yours
# in the backward pass?
# ---
# At the end a rank stores its parts and their gradients. In the backward pass the library gathers the next
# layer while the present one computes, which hides the exchange on a GPU. And it has a whole vector for the
# gradients of a layer from the beginning, so each gradient is written to its place at once.
# :::
#
# ## What you have found
#
# - The stages differ in when a vector exists. They find the same numbers as the plain model.
# - The backward pass of an all-gather is a reduce-scatter, and its sum must become a mean.
# - Memory is freed by shrinking a storage that others still refer to, and it comes back at the same place.
#
# You have written [ZeRO-3 in fifty lines](src:shardbook/sketch.py). [The
# lesson](../site/lessons/fifty_lines.md#what-it-gets-wrong) lists the programs that they get wrong, and for
# each of them the section of the library that gets it right.
