r"""# Shardbook

> ZeRO sharded training, written to be read.

Each module of this package is a chapter.

**Foundations**: [ZeRO-3 in fifty lines](sketch.py), [where the bytes go](memory.py), [a
plan of them](planner.py), [what ranks send each other](collectives.py), [how it is
counted](ledger.py), [how parameters become one vector](layout.py).

**ZeRO**: [what a unit does](unit.py), [how its vector is split](flat.py), [what a slice
may be used for](access.py), [how its gradients are collected](gradients.py), [which of
them nobody used](unused.py), [what may be frozen later](freezing.py); the stages
[0](replicate.py), [1](zero1.py), [2](zero2.py) and [3](zero3.py); [when a unit
acts](hooks.py), also [for what a program keeps of its forward pass](demand.py), except
[views of weights](views.py), [where its parameters stand](parameter_sites.py), [how
units take turns](conductor.py), [what comes next](prefetch.py); how the ranks make sure
that they hold the [same model](agreement.py) and keep the [same
order](exchange_order.py), and [where they ask each other](store_rounds.py) and [who
looks while a device computes](monitor.py); [what they are about to do](steps.py), [how
far they have got](progress.py), [who waits for whom](standstill.py), [who has
died](ended.py) and [who has left](leaving.py); [how units form
a model](model.py), [no second wrapper](wrappers.py), [how it gets its first
values](construct.py) and [whether they are the constructor's](written.py), [which ranks
share it](groups.py), [micro-batches](accumulate.py), [unequal numbers of
batches](uneven.py), [clipping](clip.py), [whole parameters in a block](whole.py), [what
an optimizer may do](optimizer_guard.py), [which parameters no unit owns](unowned.py),
[which rules train slices](optimizer_trial.py), tried on [a copy](optimizer_copy.py),
[steps inside the backward pass](step_in_backward.py), [what is not
supported](unsupported.py), [how the result is saved](state_dict.py), [and the
optimizer's state](optimizer_state.py), [what waits on the host](offload.py), [what
a trace shows](labels.py), [which private names of PyTorch all of this stands
on](torch_private.py).

**Activation checkpointing**: [one door](checkpointing.py) to [two](reentrant.py)
[variants](saved_tensors.py), [the same random numbers](rng.py) and [the same
dtypes](autocast_state.py) in the second run, [whether it was the same](determinism.py),
[chains in segments](sequential.py), [what is kept all the same](selective.py), [the
cheapest plan for a budget](budget.py), [where checkpoints wait](residual.py), [a model
that is streamed through its device](streaming.py).

**Mixed precision**: [floating-point formats](formats.py) and [what rounding does to
training](rounding.py), [autocast](autocast.py), [loss scaling](loss_scaling.py), also
[over ranks](sharded_scaler.py), [the policy](policy.py) of a sharded model, [its master
weights](masters.py), [its norms and losses](norms.py).

**Running it**: [a model](gpt.py), [a loss in chunks](chunked_loss.py), [a
text](corpus.py), [the options](options.py), [what they are](option_groups.py), also [in
a file](option_file.py), [the ranks](ranks.py), [whether a run fits](plan.py), [what it
reads](text.py), from [files](mapped_text.py) and in [tokens](tokens.py), and [where it
is in them](position.py), [the learning rate](schedule.py), [what a run is made
of](assemble.py), [the training](loop.py), [its evaluations](evaluation.py), [its
figures](tracking.py), [a trace](trace.py), [its peak](memory_snapshot.py), [its
report](report.py), [what is stored](measure.py), [what a step will cost](forecast.py),
[checkpoints of a run](checkpoints.py): [what a rank stores](stored.py), [slices as
boxes](boxes.py), [files that any ranks read](sharded.py), [their archives](sharded_files.py) with
[checksums](checked_elements.py), [an index without a
program](checkpoint_index.py), [the state of a run](run_state.py) with [what is each
rank's own](rank_state.py), [the optimizer's](optimizer_entries.py), and [plain
data](plain_data.py); [one act for all ranks](together.py). **For others**: [a model in a
folder](model_folder.py), [which tensor is in which file](folder_names.py), [under which
name](hub_names.py), [a file of tensors](tensor_file.py); [checkpoints of other programs](torch_checkpoint.py)
and [their index](foreign_index.py).

**Fine-tuning**: [one command](finetune.py), [its options](finetune_options.py), [what it
begins with](pretrained.py), [what is trained](trained_parameters.py), also [beside the
layers](adapters.py), [the units](model_units.py), [weights that go into
shards](sharded_loading.py), [what a construction takes](construction.py) and [what a run
takes](finetune_plan.py), [its table](finetune_report.py), [the result](tuned_folder.py).

**Checking it**: [a command](check_command.py) that runs a few steps of a script [under
watch](checked_run.py), by [observers](observers.py) and [watches](watches.py), whose
[findings](findings.py) name [a line](place.py): of [the steps](watch_steps.py), [the
gradients](watch_gradients.py), [the parameters](watch_parameters.py), [the
data](watch_data.py), [code that sees slices](watch_slices.py), [the
bytes](watch_bytes.py), [what is stored](watch_memory.py) and [races](watch_races.py);
what the ranks [tell each other](between_ranks.py), [the page](diagnosis.py); and for
races [a recording](stream_events.py) that [a recorder](stream_recorder.py) makes with [a model of
memory](stream_memory.py) on [a device that is not there](stream_device.py), and [a
judge](stream_replay.py).
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

from shardbook.checkpointing.budget import cheapest
from shardbook.checkpointing.checkpointing import checkpoint, checkpoint_module
from shardbook.checkpointing.determinism import CheckpointError
from shardbook.checkpointing.selective import ATTENTION, Keep
from shardbook.checkpointing.sequential import checkpoint_sequential
from shardbook.foundations.agreement import Disagreement
from shardbook.foundations.labels import profiler_labels
from shardbook.foundations.ledger import ledger
from shardbook.foundations.standstill import standstill_after
from shardbook.models.chunked_loss import ChunkedGPT
from shardbook.parameters.policy import Policy
from shardbook.precision.autocast import autocast
from shardbook.precision.loss_scaling import GradScaler
from shardbook.precision.sharded_scaler import ShardedGradScaler
from shardbook.state.checkpoints import Checkpoints
from shardbook.state.model_folder import load_safetensors, save_safetensors
from shardbook.state.torch_checkpoint import load_torch_checkpoint
from shardbook.streaming.residual import offload, partition
from shardbook.streaming.streaming import stream
from shardbook.training.accumulate import no_sync
from shardbook.training.clip import clip_grad_norm_, clip_grad_value_
from shardbook.training.full_precision import full_precision
from shardbook.training.optimizer_state import (
    load_optimizer_state_dict,
    optimizer_state_dict,
)
from shardbook.training.step_in_backward import step_in_backward
from shardbook.training.uneven import join
from shardbook.training.whole import whole
from shardbook.zero.model import Zero3Layer, Zero3Sequential, shard
from shardbook.zero.prefetch import Prefetch
from shardbook.zero.state_dict import rank0_only

__all__ = [
    "ATTENTION",
    "CheckpointError",
    "Checkpoints",
    "ChunkedGPT",
    "Disagreement",
    "GradScaler",
    "Keep",
    "Policy",
    "Prefetch",
    "ShardedGradScaler",
    "Zero3Layer",
    "Zero3Sequential",
    "__version__",
    "autocast",
    "cheapest",
    "checkpoint",
    "checkpoint_module",
    "checkpoint_sequential",
    "clip_grad_norm_",
    "clip_grad_value_",
    "full_precision",
    "join",
    "ledger",
    "load_optimizer_state_dict",
    "load_safetensors",
    "load_torch_checkpoint",
    "no_sync",
    "offload",
    "optimizer_state_dict",
    "partition",
    "profiler_labels",
    "rank0_only",
    "save_safetensors",
    "shard",
    "standstill_after",
    "step_in_backward",
    "stream",
    "whole",
]
__version__ = "0.1.0"


def __dir__() -> list[str]:
    """The public names, without the packages that they come from."""
    return __all__
