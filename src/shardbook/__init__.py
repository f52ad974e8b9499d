r"""# Shardbook

> ZeRO sharded training, written to be read.

Each module of this package is a chapter.

**Foundations**: [where the bytes go](memory.py), [a plan of them](planner.py), [what
ranks send each other](collectives.py), [how it is counted](ledger.py), [how parameters
become one vector](partition.py).

**ZeRO**: [what a unit does](unit.py), [how its vector is split](flat.py), [what a slice
may be used for](access.py), [how its gradients are collected](gradients.py), [which of
them nobody used](unused.py), [what may be frozen later](freezing.py); the stages
[0](replicate.py), [1](zero1.py), [2](zero2.py) and [3](zero3.py); [when a unit
acts](layer.py), also [for what a program keeps of its forward pass](demand.py), except
[views of weights](views.py), [where its parameters stand](sites.py), [how units take
turns](schedule.py), [what comes next](prefetch.py); how the ranks make sure that they
hold the [same model](check.py) and keep the [same order](order.py), and [where they ask
each other](meeting.py) and [who looks while a device computes](monitor.py); [who has
left](leaving.py); [how units form a model](model.py), [no second wrapper](wrappers.py),
[how it gets its first values](construct.py) and [whether they are the
constructor's](written.py), [which ranks share it](groups.py),
[micro-batches](accumulate.py), [unequal numbers of batches](uneven.py),
[clipping](clip.py), [whole parameters in a block](whole.py), [what an optimizer may
do](guard.py), [which parameters no unit owns](unowned.py), [which rules train
slices](optimizer_trial.py), tried on [a copy](optimizer_copy.py), [steps inside the
backward pass](lean.py), [what is not supported](unsupported.py), [how the result is
saved](state.py), [and the optimizer's state](optimizer_state.py), [what waits on the
host](offload.py).

**Activation checkpointing**: [one door](checkpointing.py) to [two](reentrant.py)
[variants](saved_tensors.py), [the same random numbers](rng.py) and [the same
dtypes](ambient.py) in the second run, [whether it was the same](determinism.py), [chains
in segments](sequential.py), [what is kept all the same](selective.py), [the cheapest plan
for a budget](budget.py), [where checkpoints wait](residual.py), [a model that is streamed
through its device](streaming.py).

**Mixed precision**: [floating-point formats](formats.py) and [what rounding does to
training](rounding.py), [autocast](autocast.py), [loss scaling](loss_scaling.py), also
[over ranks](sharded_scaler.py), [the policy](policy.py) of a sharded model, [its master
weights](masters.py), [its norms and losses](norms.py).

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
from shardbook.checkpointing import checkpoint, checkpoint_module
from shardbook.clip import clip_grad_norm_, clip_grad_value_
from shardbook.determinism import CheckpointError
from shardbook.lean import step_in_backward
from shardbook.loss_scaling import GradScaler
from shardbook.model import Zero3Layer, Zero3Sequential, shard
from shardbook.optimizer_state import load_optimizer_state_dict, optimizer_state_dict
from shardbook.policy import Policy
from shardbook.precise import full_precision
from shardbook.prefetch import Prefetch
from shardbook.sequential import checkpoint_sequential
from shardbook.sharded_scaler import ShardedGradScaler
from shardbook.state import rank0_only
from shardbook.streaming import stream
from shardbook.uneven import join
from shardbook.whole import whole

__all__ = [
    "CheckpointError",
    "Disagreement",
    "GradScaler",
    "Policy",
    "Prefetch",
    "ShardedGradScaler",
    "Zero3Layer",
    "Zero3Sequential",
    "__version__",
    "checkpoint",
    "checkpoint_module",
    "checkpoint_sequential",
    "clip_grad_norm_",
    "clip_grad_value_",
    "full_precision",
    "join",
    "load_optimizer_state_dict",
    "no_sync",
    "optimizer_state_dict",
    "rank0_only",
    "shard",
    "step_in_backward",
    "stream",
    "whole",
]
__version__ = "0.1.0"
