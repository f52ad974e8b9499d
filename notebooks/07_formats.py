# %% [markdown]
# # Compute in sixteen bits
#
# > You read the bits of a number, watch a weight stand still and gradients become zero, and write the rule
# > of a loss scale.
#
# :minutes: 30
# :lesson: sixteen_bits
# :needs: powers of two, and training in PyTorch; best after [lesson 9](../site/lessons/sixteen_bits.md)
# :aim: decode a pattern of 16 bits by hand
# :aim: compute the step between two neighbouring numbers, and predict which change of a weight is lost
# :aim: bring back gradients that FP16 has lost
# :aim: write the rule by which a loss scale rises and falls
#
# BF16 and FP16 both have 16 bits, and they divide them differently. In this lab you see what each of them
# loses, and how training gets it back.

# %%
import math

import torch
from torch import nn

from shardbook import labs
from shardbook.labs.lessons import formats_lab as checks
from shardbook.models.gpt import GPT, Config, loss
from shardbook.precision.formats import BF16, FP16
from shardbook.precision.loss_scaling import GradScaler
from shardbook.precision.rounding import census

labs.begin()

# %% [markdown]
# ## Look at the bits
#
# A number has a sign, an exponent and a mantissa. FP16 has 5 bits for the exponent and 10 for the mantissa,
# BF16 has 8 and 7. The cell prints these three fields for some numbers. What changes from 1 to 2, and what
# from 1 to 1.5?


# %%
def bits(value, form):
    """The three fields of a number, as bits."""
    sign, exponent, mantissa = form.fields(form.encode(value))
    return f"{sign} {exponent:0{form.exponent_bits}b} {mantissa:0{form.mantissa_bits}b}"


for value in (1.0, 1.5, 2.0, -0.75, 0.1):
    print(f"{value:5}  FP16 {bits(value, FP16)}   BF16 {bits(value, BF16)}")

# %% [markdown]
# From 1 to 2 the exponent grows by one. From 1 to 1.5 the first bit of the mantissa is set, which is one
# half.
#
# ## Exercise 1: decode a pattern
#
# A *pattern* is all 16 bits, read as one whole number. With $E$ bits for the exponent $e$ and $M$ bits for
# the mantissa $m$ it means
#
# $$x = (-1)^s \cdot \Bigl(1 + \frac{m}{2^M}\Bigr) \cdot 2^{e - b}, \qquad b = 2^{E-1} - 1$$
#
# If $e = 0$, the number is *subnormal*: the 1 in the brackets is missing, and the power is $2^{1-b}$. Write
# a function that returns $x$. It need not know infinity and NaN.
#
# ::: hint
# `divmod(pattern, 2**mantissa_bits)` splits off the mantissa. Split the rest in the same way into the sign
# and the exponent.
# :::


# %% exercise="value_of"
def value_of(pattern, exponent_bits, mantissa_bits):
    """The number that a pattern stands for."""
    ### BEGIN SOLUTION
    rest, mantissa = divmod(pattern, 2**mantissa_bits)
    sign, exponent = divmod(rest, 2**exponent_bits)
    bias = 2 ** (exponent_bits - 1) - 1
    if exponent == 0:
        size = mantissa / 2**mantissa_bits * 2.0 ** (1 - bias)
    else:
        size = (1 + mantissa / 2**mantissa_bits) * 2.0 ** (exponent - bias)
    return -size if sign else size
    ### END SOLUTION


# %% check="value_of"
checks.value_of()

# %% [markdown]
# ## A weight that stands still
#
# A weight of 1 loses 0.001 in each of 1,000 steps, as if an optimizer with a constant gradient trained it. It
# should end at 0.
#
# ::: question
# Where does the weight end if it is stored in FP32, in FP16 and in BF16?
# ---
# Near 0 in FP32, and at 0.02 in FP16, which rounds more in each step. In BF16 it stays at 1: just below 1 the
# numbers are 0.0039 apart, and 0.001 is less than half of that. Each step is rounded back to 1.
# :::

# %%
figure, axes = labs.figure()
for name, dtype in {"FP32": torch.float32, "FP16": torch.float16, "BF16": torch.bfloat16}.items():
    weight = torch.ones((), dtype=dtype, device=labs.device())
    path = [weight.item()]
    for step in range(1000):
        weight -= 0.001
        if step % 20 == 19:
            path.append(weight.item())
    print(f"{name} {weight.item():9.6f}")
    axes.plot(range(0, 1001, 20), path, label=name)
axes.set_xlabel(labs.label("step"))
axes.set_ylabel(labs.label("weight"))
_ = axes.legend()

# %% [markdown]
# The usual remedy is a copy of the weight in FP32, the *master weight*. The optimizer changes the master, and
# the model computes with a copy of it in BF16:

# %%
master = torch.ones((), device=labs.device())
for _ in range(1000):
    master -= 0.001
    weight = master.bfloat16()
print(f"master {master.item():.6f}, its copy in BF16 {weight.item():.6f}")

# %% [markdown]
# ## Exercise 2: the step between two numbers
#
# Which changes of a weight are lost depends on the distance to the next number, the *unit in the last place*.
# Between $2^k$ and $2^{k+1}$ the mantissa makes $2^M$ equal steps. Write a function that returns the distance
# from a positive number of the format to the next larger one. Below the smallest normal number, $2^{1-b}$,
# the distance does not shrink any further.
#
# ::: hint
# `math.frexp(x)` returns a fraction between 0.5 and 1, and an exponent that is one larger than $k$. So the
# power of two at or below $x$ is `2.0 ** (math.frexp(x)[1] - 1)`.
# :::


# %% exercise="step_at"
def step_at(x, exponent_bits, mantissa_bits):
    """The distance from `x` to the next larger number of the format."""
    ### BEGIN SOLUTION
    smallest = 2 - 2 ** (exponent_bits - 1)
    power = max(math.frexp(x)[1] - 1, smallest)
    return 2.0 ** (power - mantissa_bits)
    ### END SOLUTION


# %% check="step_at"
checks.step_at()

# %% [markdown]
# A change that is smaller than half the distance to the next number of the format is lost. So a weight of 1
# in BF16 grows only by updates larger than 0.0039. A learning rate of 0.001 with AdamW changes a weight by
# about 0.001 in a step.
#
# ## Gradients that become zero
#
# FP16 has a small range. Its smallest positive number is $2^{-24}$, and a number that is smaller than half
# of that becomes zero. The cell computes the gradients of a small GPT in FP32, those of the outputs of its
# layers, and counts them by their power of two.

# %%
model = GPT(Config(layers=2, width=64, heads=4, context=64)).to(labs.device())
outputs = []


def keep(module, inputs, output):
    """Keep an output, and let autograd keep its gradient."""
    output.retain_grad()
    outputs.append(output)


for module in model.modules():
    if not list(module.children()):
        module.register_forward_hook(keep)
text = torch.randint(256, (8, 65), device=labs.device())
loss(model(text[:, :-1]), text[:, 1:]).backward()
gradients = [each.grad for each in outputs]
sizes = torch.cat([each.flatten() for each in gradients]).abs()
powers = sizes[sizes > 0].log2().cpu()

figure, axes = labs.figure()
for scale, colour in zip((1, 65536), labs.COLOURS[:2], strict=True):
    moved = powers + math.log2(scale)
    name = labs.label("loss times {scale:,}", scale=scale)
    axes.hist(moved, bins=range(-44, 10, 2), color=colour, alpha=0.75, histtype="stepfilled", label=name)
axes.axvspan(-44, -25, color=labs.COLOURS[3], zorder=0, label=labs.label("zero in FP16"))
axes.axvspan(-25, -14, color=labs.COLOURS[2], alpha=0.4, zorder=0, label=labs.label("fewer digits in FP16"))
axes.set_xlabel(labs.label("power of two of a gradient"))
axes.set_ylabel(labs.label("number of gradients"))
axes.legend()
for scale in (1, 65536):
    found = census(gradients, FP16, scale)
    print(f"loss times {scale:5}: {found.vanished / found.count:6.2%} become zero, ", end="")
    print(f"{found.subnormal / found.count:6.2%} have fewer digits")

# %% [markdown]
# If the loss is multiplied by $S$, every gradient is multiplied by $S$: the whole histogram moves to the
# right by 16 powers of two. Before the optimizer's step the gradients, which are FP32 by then, are divided
# by $S$.
#
# ## Exercise 3: the rule of the scale
#
# A good $S$ is as large as possible without an overflow. A scaler finds it by trying: after an overflow the
# step is skipped and $S$ is halved. After `interval` steps in a row without an overflow, $S$ is doubled and
# the count begins anew. Write this rule. `calm` is the number of steps without overflow so far.
#
# ::: hint
# There are three cases: an overflow, a calm step that completes the interval, and any other calm step. In
# which of them does `calm` become 0?
# :::


# %% exercise="next_scale"
def next_scale(scale, calm, overflow, interval):
    """The scale and the count of calm steps after a step."""
    ### BEGIN SOLUTION
    if overflow:
        return scale / 2, 0
    if calm + 1 == interval:
        return scale * 2, 0
    return scale, calm + 1
    ### END SOLUTION


# %% check="next_scale"
checks.next_scale()

# %% [markdown]
# ## The staircase
#
# A model of one layer trains with the scaler of this book. Its forward pass multiplies in FP16, and the scale
# begins far too high. Your rule runs beside the scaler and predicts the next scale from the overflow alone.
#
# ::: question
# An interval of 15 steps is short, so that you see something: usually it is 2,000. Which share of the steps
# is skipped once the scale has settled?
# ---
# One of 16. After 15 calm steps the scale is doubled and is too large, so the next step is skipped, and the
# scale is halved again. With an interval of 2,000 it is one of 2,001.
# :::

# %%
torch.manual_seed(0)
layer = nn.Linear(64, 64).to(labs.device())
optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
scaler = GradScaler(init_scale=2.0**24, growth_interval=15)
scales, skipped, scale, calm, agreed = [], [], 2.0**24, 0, True
for step in range(80):
    x = torch.randn(32, 64, device=labs.device()).half()
    y = x @ layer.weight.half().t()
    error = (y.float() - 1).square().mean()
    optimizer.zero_grad()
    scaler.scale(error).backward()
    before = layer.weight.detach().clone()
    scaler.step(optimizer)
    overflow = torch.equal(before, layer.weight)
    scales.append(scale)
    skipped += [step] * overflow
    scaler.update()
    scale, calm = next_scale(scale, calm, overflow, 15)
    agreed = agreed and scale == scaler.get_scale()
print(f"{len(skipped)} of 80 steps were skipped; your rule agrees: {agreed}")

figure, axes = labs.figure()
axes.step(range(80), scales, where="mid", label="$S$")
axes.plot(skipped, [scales[each] for each in skipped], "x", label=labs.label("skipped step"))
axes.set_yscale("log", base=2)
axes.set_xlabel(labs.label("step"))
axes.set_ylabel(labs.label("loss scale"))
_ = axes.legend()

# %% [markdown]
# ## What you have found
#
# - The exponent bits decide the range, and the mantissa bits decide the step between two numbers.
# - A change of less than half the distance to the next number is lost, so the optimizer trains a master
#   weight in FP32. [Lesson 10](../site/lessons/master_weights.md) splits the masters over the ranks.
# - FP16 loses small gradients, and a factor before the loss brings them back. The factor is found by trying,
#   and costs a skipped step now and then.
#
# [Floating-point formats](src:shardbook/precision/formats.py) has both directions for seven formats, and
# [loss scaling](src:shardbook/precision/loss_scaling.py) has the scaler for your own program.
