r"""# Shardbook

> A library for ZeRO sharding, activation checkpointing and mixed precision, whose
> modules are the chapters of a book.

Each module of this package is a chapter. The groups are the folders of the package.

**Beginning**: [ZeRO-3 in fifty lines](sketch.py), [Where the bytes go](memory.py),
[Messages of the commands](command.py).

**Foundations**: [Collectives](collectives.py), [All-to-all instead of
reduce-scatter](collectives.py#module/all-to-all-instead-of), [The byte
ledger](collectives.py#module/the-byte-ledger), [The layout of a flat
vector](layout.py), [Huge pages](streams.py#module/huge-pages), [Tensor
versions](torch_private.py#module/tensor-versions), [Streams and huge
pages](streams.py), [The context of a hook](hook_context.py),
[Observers](hook_context.py#module/observers-a-program-that-watches), [Labels for a
profiler](hook_context.py#module/labels-for-a-profiler), [Private names and versions of
PyTorch](torch_private.py), [Versions of
PyTorch](torch_private.py#module/versions-of-pytorch), [Nested calls of a
module](hook_context.py#module/nested-calls-of-a-module), [Agreement between the
ranks](agreement.py), [The ranks keep one order of exchanges](exchange_order.py),
[Rounds through the store](agreement.py#module/rounds-through-the-store), [The next
exchange of a rank](agreement.py#module/the-next-exchange-of-a), [A monitor thread for
ranks that wait](watchdog.py#module/a-monitor-thread-for-ranks), [The progress of a
rank](watchdog.py#module/the-progress-of-a-rank), [Standstill](watchdog.py), [A rank
whose process has ended](agreement.py#module/a-rank-whose-process-has), [A rank that
leaves](watchdog.py#module/a-rank-that-leaves), [Ranks that share a model, and ranks
that repeat it](collectives.py#module/ranks-that-share-a-model), [Restoring the random
numbers](rng.py), [Rules in PyTorch's reentrant
checkpoint](hook_context.py#module/rules-in-pytorchs-reentrant-checkpoint), [Starting
ranks on this machine](foundations/ranks.py), [The fork server](forkserver.py).

**Models**: [A small GPT](gpt.py), [A loss in chunks](chunked_loss.py), [The text of the
examples](corpus.py).

**Parameters**: [The flat vector](flat.py), [What a flat vector
refuses](whole_parameter.py#module/what-a-flat-vector-refuses), [The whole parameters of
a unit](whole_parameter.py), [Access to a slice](access.py), [The gradients of a flat
vector](flat.py#Flat/the-gradients-of-a-flat), [Gradients that wait for their
exchange](waiting.py), [Freezing and
unfreezing](whole_parameter.py#module/freezing-and-unfreezing), [Parameter
sites](parameter_sites.py), [Counting a constructor's
writes](construct.py#module/counting-a-constructors-writes), [Copies
between device and host](offload.py#module/copies-between-device-and-host), [The
policy](policy.py), [Master weights](flat.py#Flat/master-weights),
[Offload](offload.py), [Norms and losses](policy.py#module/norms-and-losses).

**Guards**: [Interrupted forward and backward
passes](optimizer_guard.py#module/interrupted-forward-and-backward-passes), [Weights
that change before the backward
pass](optimizer_guard.py#module/weights-that-change-before-the), [Unsupported uses of a
sharded model](refusals.py), [Transforms and methods that a sharded model
refuses](refusals.py#module/transforms-and-methods-that-a), [Tensors in one
memory](refusals.py#module/tensors-in-one-memory), [Checks before an optimizer's
step](optimizer_guard.py), [Parameters that belong to no
unit](refusals.py#module/parameters-that-belong-to-no), [Copying an
optimizer](optimizer_trial.py#module/copying-an-optimizer), [The trial of an
optimizer](optimizer_trial.py).

**ZeRO**: [A unit](unit.py), [Stage 0: every rank keeps
everything](unit.py#module/stage-0), [Stage 1: the optimizer's state is
split](unit.py#module/stage-1), [Stage 2: the gradients are
split](unit.py#module/stage-2), [Stage 3: the parameters are
split](unit.py#module/stage-3), [The hooks of a layer](hooks.py), [Gathering on
demand](demand.py), [Views that outlive a
unit](demand.py#module/views-that-outlive-a-unit), [The order of the
exchanges](scheduler.py), [Clearing up before the next forward or backward
pass](scheduler.py#module/clearing-up-before-the-next), [Unused parameters](unused.py),
[Prefetching the next unit](scheduler.py#module/prefetching-the-next-unit), [Sharding a
model](model.py), [Building a model unit by unit](construct.py), [Saving and loading a
sharded model](state_dict.py), [Casts at the model's
boundary](model.py#module/casts-at-the-models-boundary).

**Training**: [Gradient accumulation and other training loops](accumulate.py), [Unequal
numbers of batches on the ranks](accumulate.py#module/unequal-numbers-of-batches-on),
[Gradient clipping](clip.py), [Whole parameters and full precision](whole.py), [Stepping
inside the backward pass](accumulate.py#module/stepping-inside-the-backward-pass),
[Saving and loading optimizer state](optimizer_state.py), [Evaluating in full
precision](whole.py#module/evaluating-in-full-precision).

**Mixed precision**: [Floating-point formats](formats.py), [What rounding does to
training](rounding.py), [Autocast](autocast.py), [The rules of
autocast](autocast.py#module/the-rules-of-autocast), [Casting inputs in a function
mode](autocast.py#module/casting-inputs-in-a-function), [Loss scaling](loss_scaling.py),
[Dividing and checking the
gradients](loss_scaling.py#module/dividing-and-checking-the-gradients), [Loss scaling
over ranks](loss_scaling.py#module/loss-scaling-over-ranks).

**Activation checkpointing**: [Activation checkpointing](checkpointing.py), [What a
layer costs](budget.py#module/what-a-layer-costs), [Counting
FLOPs](budget.py#module/counting-flops), [Restoring
autocast](segment.py#module/restoring-autocast), [Reentrant
checkpointing](reentrant.py), [The second run of a checkpoint](segment.py),
[Non-reentrant checkpointing](saved_tensors.py), [Saving the arguments of a
checkpoint](arguments.py), [The recomputation](segment.py#module/the-recomputation),
[Checking that both runs agree](determinism.py), [Finding the operation where two runs
diverge](determinism.py#module/finding-the-operation-where-two), [Tensors that cross
streams](arguments.py#module/tensors-that-cross-streams), [The blocks of PyTorch that
change checkpoints](determinism.py#module/the-blocks-of-pytorch-that), [Checkpointing a
chain in segments](checkpointing.py#module/checkpointing-a-chain-in-segments), [The
memory and the cost of a plan](budget.py#module/the-memory-and-the-cost), [The cheapest
plan for a budget](budget.py), [Selective checkpointing](selective.py), [Reusing kept
results in the recomputation](saved_tensors.py#module/reusing-kept-results-in-the),
[Checkpoints inside compiled code](traced.py).

**Streaming**: [Activation checkpoints in pieces, or on the host](residual.py),
[Streaming a model through one device](streaming.py), [Cutting a model into
slices](streaming.py#module/cutting-a-model-into-slices).

**Planning**: [The memory planner](planner.py), [When a gather hides](overlap.py), [The
bytes of a policy](forecast.py#module/the-bytes-of-a-policy), [The report of a
run](report.py), [Counting the stored
bytes](forecast.py#module/counting-the-stored-bytes), [Forecasting a training
step](forecast.py), [The peak of a
construction](planner.py#module/the-peak-of-a-construction).

**Saving and loading**: [Cutting a slice into
boxes](file_formats.py#module/cutting-a-slice-into-boxes), [What a rank stores in a
checkpoint](optimizer_entries.py#module/what-a-rank-stores-in), [Sharded
checkpoints](sharded.py), [The files of a sharded
checkpoint](sharded.py#module/the-files-of-a-sharded), [Checksums of a checkpoint's
elements](together.py#module/checksums-of-a-checkpoints-elements), [Reading a
checkpoint's index without running a
pickle](file_formats.py#module/reading-a-checkpoints-index-without), [Buffers and random
states of each rank](run_state.py#module/buffers-and-random-states-of), [Parameters and
optimizer state in checkpoints](optimizer_entries.py), [Object states as
JSON](file_formats.py#module/object-states-as-json), [The state of a run](run_state.py),
[The list of a checkpoint's files](together.py#module/the-list-of-a-checkpoints), [The
file formats of a checkpoint](file_formats.py), [What the files of a checkpoint may
say](schema.py), [Asynchronous
checkpoints](folder_names.py#module/asynchronous-checkpoints), [Failed ranks and damaged
files](together.py), [A folder of checkpoints](checkpoints.py), [Saving a model as
safetensors](model_folder.py), [Model folders and asynchronous
checkpoints](folder_names.py), [Names in the files of the transformers
library](model_folder.py#module/names-in-the-files-of), [Loading checkpoints of other
programs](torch_checkpoint.py), [The index of another program's
checkpoint](model_folder.py#module/the-index-of-another-programs), [The safetensors
format](tensor_file.py).

**Other ways to split a model**: [Tensor parallelism and ZeRO](tensor_parallel.py),
[ZeRO-R: activations, buffers and fragmentation](tensor_parallel.py#module/zero-r),
[Pipeline parallelism](pipeline_parallel.py), [Three dimensions of
parallelism](tensor_parallel.py#module/three-dimensions-of-parallelism), [The programs
of this part](programs.py).

**The training program**: [Parsing and checking the options](options.py), [The option
groups of the training program](options.py#module/the-option-groups-of-the), [Options in
a configuration file](options.py#module/options-in-a-configuration-file), [Starting the
ranks](train/ranks.py), [The same options on all ranks and in a resumed
run](train/ranks.py#module/the-same-options-on-all), [The training text](text.py),
[Memory-mapped text](text.py#module/memory-mapped-text), [Encoding text with a
tokenizer](text.py#module/encoding-text-with-a-tokenizer), [The position of a run in its
text](plan.py#module/the-position-of-a-run), [The learning-rate
schedule](plan.py#module/the-learning-rate-schedule), [Losses and gradients that are not
finite](not_finite.py), [Planning and assembling a run](plan.py), [The parts of a
run](plan.py#module/the-parts-of-a-run), [Training on several
machines](train/ranks.py#module/training-on-several-machines), [Resuming a
run](saving.py), [Training a sharded model](loop.py), [The loss on held-out
text](loop.py#module/the-loss-on-unseen-text), [Tracking, traces and memory
snapshots](tracking.py), [A trace of one step](tracking.py#module/a-trace-of-one-step),
[A snapshot of the memory at its peak](tracking.py#module/a-snapshot-of-the-memory).

**Fine-tuning**: [Fine-tuning a GPT-NeoX](finetune.py), [The options of
fine-tuning](finetune_options.py), [Opening a pretrained model](pretrained.py),
[Training a subset of the parameters](tuned_folder.py#module/training-a-subset-of-the),
[LoRA through peft](tuned_folder.py#module/lora-through-peft), [Choosing the units of a
transformers model](pretrained.py#module/choosing-the-units-of-a), [Loading a model into
shards](tuned_folder.py#module/loading-a-model-into-shards), [The parameters of a
fine-tuned model](tuned_folder.py), [The report of
fine-tuning](finetune.py#module/the-report-of-fine-tuning), [Planning the memory of
fine-tuning](finetune.py#module/planning-the-memory-of-fine).

**Checking a script**: [Checking a script](check_command.py), [Running a script under
watch](checked_run.py), [Findings](watches.py#module/findings-a-finding-has-a), [The
line of the program](watches.py#module/the-line-of-the-program), [The watches of a
checked run](watches.py), [Comparing notes between
ranks](watches.py#module/comparing-notes-between-ranks), [Checking the steps, and ending
the script](watch_data.py#module/checking-the-steps-and-ending), [Checking gradients and
parameters](watch_gradients.py), [Checking the
parameters](watch_gradients.py#module/checking-the-parameters), [Checking batches, modes
and steps](watch_data.py), [Checking code that uses slices](watch_slices.py), [Checking
the sent bytes](watch_memory.py#module/checking-the-sent-bytes), [Checking the stored
and sent bytes](watch_memory.py), [The page of
findings](checked_run.py#module/the-page-of-findings), [Checking for races between
streams](checked_run.py#module/checking-for-races-between-streams), [A recording of
streams](race_replay.py#module/a-recording-of-streams), [Finding races in a
recording](race_replay.py), [Recording a run as if on a GPU](race_recorder.py), [Memory
and the host in a recording](race_recorder.py#module/memory-and-the-host-in), [A
modelled device with streams](race_recorder.py#module/a-modelled-device-with-streams).
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
    from shardbook.foundations.torch_private import check_version as _check_version

    _check_version(_torch.__version__)

from shardbook.checkpointing.budget import cheapest
from shardbook.checkpointing.checkpointing import (
    checkpoint,
    checkpoint_module,
    checkpoint_sequential,
)
from shardbook.checkpointing.determinism import CheckpointError
from shardbook.checkpointing.selective import ATTENTION, Keep
from shardbook.foundations.agreement import Disagreement
from shardbook.foundations.collectives import ledger
from shardbook.foundations.hook_context import profiler_labels
from shardbook.foundations.watchdog import standstill_after
from shardbook.models.chunked_loss import ChunkedGPT
from shardbook.precision.autocast import autocast
from shardbook.precision.loss_scaling import GradScaler, ShardedGradScaler
from shardbook.state.checkpoints import Checkpoints
from shardbook.state.model_folder import load_safetensors, save_safetensors
from shardbook.state.torch_checkpoint import load_torch_checkpoint
from shardbook.streaming.residual import offload, partition
from shardbook.streaming.streaming import stream
from shardbook.training.accumulate import join, no_sync, step_in_backward
from shardbook.training.clip import clip_grad_norm_, clip_grad_value_
from shardbook.training.optimizer_state import (
    load_optimizer_state_dict,
    optimizer_state_dict,
)
from shardbook.training.whole import full_precision, whole
from shardbook.zero.model import Zero3Layer, Zero3Sequential, shard
from shardbook.zero.policy import Policy
from shardbook.zero.scheduler import Prefetch
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
