r"""# Shardbook

> ZeRO sharded training, written to be read.

Each module of this package is a chapter.

**Foundations**: [where the bytes go](memory.py), [a plan of them](planner.py), [what
ranks send each other](collectives.py), [how it is counted](ledger.py), [how parameters
become one vector](partition.py).

**ZeRO**: [what a unit does](unit.py), [how its vector is split](flat.py), [how its
gradients are collected](gradients.py); the stages [0](replicate.py), [1](zero1.py),
[2](zero2.py) and [3](zero3.py); [when a unit acts](layer.py), [where its parameters
stand](sites.py), [how units take turns](schedule.py), [what comes next](prefetch.py);
how the ranks make sure that they hold the [same model](check.py) and keep the [same
order](order.py), and [where they ask each other](meeting.py); [how units form a
model](model.py), [how it gets its first values](construct.py), [which ranks share
it](groups.py), [in which format gradients travel](policy.py), [micro-batches](accumulate.py),
[clipping](clip.py), [what an optimizer may do](guard.py), [steps inside the backward
pass](lean.py), [how the result is saved](state.py).

**Running it**: [a model](gpt.py), [a loss in chunks](chunked.py), [a text](corpus.py),
[the options](launch.py), [the training](train.py), [its report](report.py), [what is
stored](measure.py), [what a step will cost](forecast.py).
"""

# The press and its site live in the same distribution and need no torch. So torch is
# not required at installation, and a reader who imports the library without it learns
# what to install.
try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "shardbook needs PyTorch, which is not installed: "
        "pip install 'shardbook[train]'",
        name="torch",
    ) from error

from shardbook.accumulate import no_sync
from shardbook.check import Disagreement
from shardbook.clip import clip_grad_norm_, clip_grad_value_
from shardbook.lean import step_in_backward
from shardbook.model import Zero3Layer, Zero3Sequential, shard
from shardbook.policy import Policy
from shardbook.prefetch import Prefetch

__all__ = [
    "Disagreement",
    "Policy",
    "Prefetch",
    "Zero3Layer",
    "Zero3Sequential",
    "__version__",
    "clip_grad_norm_",
    "clip_grad_value_",
    "no_sync",
    "shard",
    "step_in_backward",
]
__version__ = "0.1.0"
