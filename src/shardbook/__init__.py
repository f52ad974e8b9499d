r"""# Shardbook

> A library for ZeRO sharding, activation checkpointing and mixed precision, whose
> modules are the chapters of a book.

Each module of this package is a chapter. The groups are the folders of the package.

**Beginning**: [ZeRO-3 in fifty lines](sketch.py), [Where the bytes go](memory.py),
[Messages of the commands](command.py).

**Foundations**: [Collectives](collectives.py), [All-to-all instead of
reduce-scatter](exchange.py), [The byte ledger](ledger.py), [One flat
vector](layout.py), [Huge pages](huge_pages.py), [Tensor versions](versions.py),
[Streams](streams.py), [The context of a hook](hook_context.py),
[Observers](observers.py), [Labels for a profiler](labels.py), [Private names of
PyTorch](torch_private.py), [Versions of PyTorch](torch_versions.py), [Nested calls of a
module](nesting.py), [The ranks compare their models](agreement.py), [The ranks keep one
order of exchanges](exchange_order.py), [Rounds through the store](store_rounds.py),
[The next exchange of a rank](steps.py), [A monitor thread for ranks that
wait](monitor.py), [The progress of a rank](progress.py), [Standstill](standstill.py),
[A rank whose process has ended](ended.py), [A rank that leaves](leaving.py), [Ranks
that share a model, and ranks that repeat it](groups.py), [Restoring the random
numbers](rng.py), [Rules in PyTorch's reentrant checkpoint](reentrant_rules.py).

**Models**: [A small GPT](gpt.py), [A loss in chunks](chunked_loss.py), [The text of the
examples](corpus.py).

**Parameters**: [The flat vector](flat.py), [What a flat vector
refuses](flat_checks.py), [The class of a whole parameter](whole_form.py), [Access to a
slice](access.py), [The gradients of a flat vector](gradients.py), [Gradients that wait
for their exchange](waiting.py), [Freezing and unfreezing](freezing.py), [Parameter
sites](parameter_sites.py), [Counting a constructor's writes](written.py), [Copies
between device and host](host.py), [The policy](policy.py), [Master
weights](masters.py), [Offload](offload.py), [Norms and losses](norms.py).

**Guards**: [Interrupted forward and backward passes](interrupted.py), [Weights that
change before the backward pass](stale_backward.py), [No second wrapper](wrappers.py),
[Transforms and methods that a sharded model refuses](unsupported.py), [Tensors in one
memory](shared_memory.py), [Checks before an optimizer's step](optimizer_guard.py),
[Parameters that belong to no unit](unowned.py), [Copying an
optimizer](optimizer_copy.py), [The trial of an optimizer](optimizer_trial.py).

**ZeRO**: [A unit](unit.py), [Stage 0: every rank keeps everything](replicate.py),
[Stage 1: the optimizer's state is split](zero1.py), [Stage 2: the gradients are
split](zero2.py), [Stage 3: the parameters are split](zero3.py), [The hooks of a
layer](hooks.py), [Gathering on demand](demand.py), [Views that outlive a
unit](views.py), [The order of the exchanges](conductor.py), [Clearing up before the
next forward or backward pass](fresh_start.py), [Unused parameters](unused.py),
[Prefetching the next unit](prefetch.py), [Sharding a model](model.py), [Building a
model unit by unit](construct.py), [Saving and loading a sharded model](state_dict.py),
[Casts at the model's boundary](model_casts.py).

**Training**: [Gradient accumulation over micro-batches](accumulate.py), [Unequal
numbers of batches on the ranks](uneven.py), [Gradient clipping](clip.py), [Whole
parameters outside the forward pass](whole.py), [Stepping inside the backward
pass](step_in_backward.py), [Saving and loading optimizer state](optimizer_state.py),
[Evaluating in full precision](full_precision.py).

**Mixed precision**: [Floating-point formats](formats.py), [What rounding does to
training](rounding.py), [Autocast](autocast.py), [The rules of
autocast](autocast_rules.py), [Casting inputs in a function mode](casting.py), [Loss
scaling](loss_scaling.py), [Dividing and checking the gradients](unscaling.py), [Loss
scaling over ranks](sharded_scaler.py).

**Activation checkpointing**: [Activation checkpointing](checkpointing.py), [What a
layer costs](costs.py), [Counting FLOPs](flops.py), [Restoring
autocast](autocast_state.py), [Reentrant checkpointing](reentrant.py), [A segment of a
reentrant checkpoint](segment.py), [Non-reentrant checkpointing](saved_tensors.py),
[Saving the arguments of a checkpoint](arguments.py), [The
recomputation](recomputation.py), [Checking that both runs agree](determinism.py),
[Finding the operation where two runs diverge](operations.py), [Tensors that cross
streams](handover.py), [The blocks of PyTorch that change
checkpoints](torch_settings.py), [Checkpointing a chain in segments](sequential.py),
[The memory and the cost of a plan](plans.py), [The cheapest plan for a
budget](budget.py), [Selective checkpointing](selective.py), [Reusing kept results in
the recomputation](saved_results.py), [Checkpoints inside compiled code](traced.py).

**Streaming**: [Activation checkpoints in pieces, or on the host](residual.py),
[Streaming a model through one device](streaming.py), [Cutting a model into
slices](chain_cuts.py).

**Planning**: [The memory planner](planner.py), [When a gather hides](overlap.py), [The
bytes of a policy](policy_bytes.py), [The report of a run](report.py), [Counting the
stored bytes](measure.py), [Forecasting a training step](forecast.py), [The peak of a
construction](construction.py).

**Saving and loading**: [Cutting a slice into boxes](boxes.py), [What a rank stores in a
checkpoint](stored.py), [Sharded checkpoints](sharded.py), [The files of a sharded
checkpoint](sharded_files.py), [Checksums of a checkpoint's
elements](checked_elements.py), [Reading a checkpoint's index without running a
pickle](checkpoint_index.py), [Buffers and random states of each rank](rank_state.py),
[Optimizer state in a checkpoint](optimizer_entries.py), [Object states as
JSON](plain_data.py), [The state of a run](run_state.py), [The list of a checkpoint's
files](file_list.py), [What the files of a checkpoint may say](schema.py), [Asynchronous
checkpoints](background.py), [Sharing results and errors between ranks](together.py), [A
folder of checkpoints](checkpoints.py), [Saving a model as
safetensors](model_folder.py), [Tensor names in a model folder](folder_names.py), [Names
in the files of the transformers library](hub_names.py), [Loading checkpoints of other
programs](torch_checkpoint.py), [The index of another program's
checkpoint](foreign_index.py), [The safetensors format](tensor_file.py).

**Other ways to split a model**: [Tensor parallelism](tensor_parallel.py), [ZeRO-R:
activations, buffers and fragmentation](zero_r.py), [Pipeline
parallelism](pipeline_parallel.py), [Three dimensions of
parallelism](three_dimensions.py), [The programs of this part](programs.py).

**The training program**: [Parsing and checking the options](options.py), [The option
groups of the training program](option_groups.py), [Options in a configuration
file](option_file.py), [Starting the ranks](ranks.py), [The same options on all ranks
and in a resumed run](same_options.py), [The training text](text.py),
[Memory-mapped text](mapped_text.py), [Encoding text with a tokenizer](tokens.py), [The
position of a run in its text](position.py), [The learning-rate schedule](schedule.py),
[Losses and gradients that are not finite](not_finite.py), [Planning the memory of a
run](plan.py), [The parts of a run](assemble.py), [Training on several
machines](machines.py), [Resuming a run](saving.py), [Training a sharded
model](loop.py), [The loss on unseen text](evaluation.py), [Tracking the figures of each
step](tracking.py), [A trace of one step](trace.py), [A snapshot of the memory at its
peak](memory_snapshot.py).

**Fine-tuning**: [Fine-tuning a GPT-NeoX](finetune.py), [The options of
fine-tuning](finetune_options.py), [Opening a pretrained model](pretrained.py),
[Training a subset of the parameters](trained_parameters.py), [LoRA through
peft](adapters.py), [Choosing the units of a transformers model](model_units.py),
[Loading a model into shards](sharded_loading.py), [Writing the fine-tuned
model](tuned_folder.py), [The report of fine-tuning](finetune_report.py), [Planning the
memory of fine-tuning](finetune_plan.py).

**Checking a script**: [Checking a script](check_command.py), [Running a script under
watch](checked_run.py), [Findings](findings.py), [The line of the program](place.py),
[The watches of a checked run](watches.py), [Comparing notes between
ranks](between_ranks.py), [Checking the steps, and ending the script](watch_steps.py),
[Checking the gradients](watch_gradients.py), [Checking the
parameters](watch_parameters.py), [Checking batches, modes and random
numbers](watch_data.py), [Checking code that uses slices](watch_slices.py), [Checking
the sent bytes](watch_bytes.py), [Checking the stored bytes](watch_memory.py), [The page
of findings](diagnosis.py), [Checking for races between streams](watch_races.py), [A
recording of streams](stream_events.py), [Finding races in a
recording](stream_replay.py), [Recording a run as if on a GPU](stream_recorder.py),
[Memory and the host in a recording](stream_memory.py), [A modelled device with
streams](stream_device.py).
"""

# The press and its site live in the same distribution and need no torch. So torch is
# not required at installation, and a reader who imports the library without it learns
# what to install.
try:
    import torch as _torch
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "shardbook needs PyTorch, which is not installed: "
        "pip install 'shardbook[train]'",
        name="torch",
    ) from error
else:
    from shardbook.foundations.torch_versions import check_version as _check_version

    _check_version(_torch.__version__)

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
from shardbook.zero.state_dict import load_from_rank0, rank0_only

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
    "load_from_rank0",
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
