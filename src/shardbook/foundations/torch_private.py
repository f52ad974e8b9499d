r"""# Private names and versions of PyTorch

> The private names of PyTorch that this library uses, each with its reason and a test.

A name that begins with an underscore is private to PyTorch. The next release may rename
it or change its meaning, without a word in the release notes. A library that trains
through hooks cannot do without such names. Autograd numbers its nodes, for example, but
has no public function that reads the number. A module keeps its parameters in a
dictionary. Its public iterators take three times as long, before each forward pass.

All of these names are in this chapter, and no other module of the library uses one.
Each comes with its purpose, with the reason why no public name will do, and with a
test. The test does what the library does with the name, and compares the result. So if
PyTorch changes a name, the failing test names it, and this chapter is the place to
mend.

| instead of | use |
|---|---|
| `torch.utils._pytree.tree_leaves` | `tree_leaves` |
| `torch._C._current_graph_task_id()` | `graph_task()` |
| `node._sequence_nr()` | `number_of(node)` |
| `module._parameters` | `own_parameters(module)` |

`pyproject.toml` requires the versions of PyTorch with which these tests have passed.
[A later section](#module/versions-of-pytorch) lists the differences between these
versions. [The version of a tensor](#module/tensor-versions), which counts the writes to
the tensor, is a private name with a section of its own.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Container, Iterable
from datetime import timedelta
from operator import attrgetter, methodcaller
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import Work
from torch.utils import checkpoint as torch_checkpoint

__all__ = [
    "ALL_GATHER",
    "ATTENTION_KERNELS",
    "ATTENTION_ON_CPU",
    "E4M3FN_SATURATES",
    "GLOBAL_OPTIMIZER_HOOKS",
    "INDEX_NAMES",
    "LIST_OPERATIONS",
    "MODULE_CALL",
    "NEWER_IN_FP32",
    "NEWER_LOSSES",
    "NEWEST",
    "OLDEST",
    "OPTIMIZER_HOOKS",
    "REDUCE_SCATTER",
    "REGISTRY_KEY",
    "RESET_METHODS",
    "SOFTMAX_OF_ATTENTION",
    "SOME_DECOMPOSITIONS",
    "OpOverload",
    "OpOverloadPacket",
    "StorageInfo",
    "TorchDispatchMode",
    "TreeSpec",
    "Versions",
    "apply_to_own",
    "as_plain",
    "at_end_of_backward",
    "base_of",
    "bypass_hooks",
    "check_version",
    "checkpoint_debug_block",
    "compiler_at_work",
    "compiler_is_loaded",
    "count_of_writes",
    "cuda_sanitizer",
    "current_node",
    "default_store",
    "early_stop_block",
    "forbid_compiling",
    "gradient_hooks",
    "graph_task",
    "group_in_force",
    "in_transform",
    "is_compiled",
    "is_expired",
    "is_initialised",
    "keystr",
    "lasting_buffers",
    "launch_kernel",
    "modules_inside",
    "next_number",
    "no_modes",
    "number_of",
    "optimizer_module",
    "own_buffers",
    "own_children",
    "own_parameters",
    "own_tables",
    "pop_saving",
    "pre_hooks_of",
    "profiler_runs",
    "push_saving",
    "reaches_all",
    "reads_found_inf",
    "reduction_of",
    "saving_forbidden",
    "schema_of",
    "shares_storage",
    "since",
    "skip_frame",
    "start_all_gather",
    "start_reduce_scatter",
    "storage_id",
    "storage_ids",
    "time_limit",
    "top_saving",
    "traces_graph",
    "tree_flatten",
    "tree_is_leaf",
    "tree_leaves",
    "tree_leaves_with_path",
    "tree_map_only",
    "tree_unflatten",
    "unscale_",
    "writes_to",
    "zero_all_",
]

# **Operations.** The classes of `torch.ops.aten.mm.default` and of `torch.ops.aten.mm`.
# A policy of a checkpoint gets objects of the first class, and may list objects of
# both. The objects are public, their classes are not.
from torch._ops import OpOverload, OpOverloadPacket

# In the block of a *mode* PyTorch hands each operation to a method instead of running
# it. So a checkpoint keeps single results, and a plan counts bytes and floating-point
# operations. PyTorch's public `FlopCounterMode` is built with this class, and the class
# itself is not public.
from torch.utils._python_dispatch import TorchDispatchMode

# A program may itself watch each operation, for example to plan a step with tensors
# that have no values. In this block no mode is called. There is no public way to leave
# the modes of other programs.
from torch.utils._python_dispatch import _disable_current_modes as no_modes

# **Trees.** A *pytree* is a structure of tuples, lists, dictionaries and registered
# classes, with leaves such as tensors. A checkpoint flattens its arguments and builds
# them again. This module, on which `torch.func` and `torch.export` are built, has a
# private name. A copy of it would not know the classes that programs register with
# PyTorch.
from torch.utils._pytree import (
    TreeSpec,
    keystr,
    tree_flatten,
    tree_is_leaf,
    tree_leaves,
    tree_leaves_with_path,
    tree_map_only,
    tree_unflatten,
)


def schema_of(op: OpOverload) -> Any:
    """The signature of an operation, with the arguments to which it writes.

    `torch.library.infer_schema` makes a signature from a Python function. No public
    function reads the signature of an existing operation.
    """
    return op._schema


# The kernels of `scaled_dot_product_attention`. That function is public. A mode sees
# the kernel that the function has chosen, and the kernels have private names.
aten = torch.ops.aten
ATTENTION_KERNELS = (
    aten._scaled_dot_product_flash_attention,
    aten._scaled_dot_product_flash_attention_for_cpu,
    aten._scaled_dot_product_efficient_attention,
    aten._scaled_dot_product_cudnn_attention,
    aten._scaled_dot_product_fused_attention_overrideable,
    aten._scaled_dot_product_attention_math_for_mps,
    aten._flash_attention_forward,
    aten._efficient_attention_forward,
    aten._cudnn_attention_forward,
)

# The kernel on a CPU and its derivative, for which PyTorch's counter of floating-point
# operations has no formula.
ATTENTION_ON_CPU = (
    aten._scaled_dot_product_flash_attention_for_cpu,
    aten._scaled_dot_product_flash_attention_for_cpu_backward,
)

# The softmax of an attention that no kernel fits. PyTorch uses it nowhere else. So if
# it occurs, a list of kernels will keep nothing.
SOFTMAX_OF_ATTENTION = aten._safe_softmax

# The beginnings of the names of operations on lists of tensors, such as the step of an
# optimizer. Nothing else marks these operations.
LIST_OPERATIONS = ("_foreach_", "_fused_")

# The operation that `zero_grad` calls on all gradients at once. By its name a policy
# tells a gradient that was set to zero from one that was changed.
zero_all_ = torch._foreach_zero_

# This operation reads each gradient once, multiplies it, and raises a flag if a value
# was not finite. Public operations would read each gradient twice. Autograd does not
# count the write.
unscale_ = torch._amp_foreach_non_finite_check_and_unscale_

# **Autograd.** The number of this thread's backward pass, −1 outside of all. No public
# function tells whether a backward pass is under way.
graph_task = torch._C._current_graph_task_id

# The node that a backward pass is running, or `None`. A hook gets gradients, but not
# the node to which the hook belongs.
current_node = torch._C._current_autograd_node

# The number that the next node of this thread will get. A backward pass runs the nodes
# that are ready in descending order of their numbers. The documentation of `emit_nvtx`
# describes the numbers, and no public function reads them.
next_number = torch._C._autograd._get_sequence_nr


# The number that a node got when it was created, as `next_number` counts them.
number_of: Callable[[Any], int] = methodcaller("_sequence_nr")


def reduction_of(node: Any) -> int | None:
    """The reduction of a loss: 1 for the mean, 2 for the sum, `None` for other nodes.

    A node of the graph has a public name, but its reduction is saved only as a private
    attribute for the backward pass.
    """
    return getattr(node, "_saved_reduction", None)


# The stack of pairs of hooks through which autograd saves tensors. The public
# `torch.autograd.graph.saved_tensors_hooks` sets a pair for a block. Here a module's
# hook sets a pair that another hook removes, and the pair below it must be known.
push_saving = torch._C._autograd._push_saved_tensors_default_hooks
pop_saving = torch._C._autograd._pop_saved_tensors_default_hooks
top_saving = torch._C._autograd._top_saved_tensors_default_hooks

# The reason why no such pair may be set at present, or `None`. `torch.func.grad` and
# `disable_saved_tensors_hooks` forbid it. Without this name a program learns it only
# from the error.
saving_forbidden = torch._C._autograd._saved_tensors_hooks_get_disabled_error_message

# Calls a function when the current backward pass ends, before `backward` returns.
# `DistributedDataParallel` and `FullyShardedDataParallel` use the same name; public
# hooks belong to a tensor or to a node, and none of these has to be the last.
at_end_of_backward: Callable[[Callable[[], None]], None] = (
    torch.autograd.Variable._execution_engine.queue_callback
)

# Whether the current backward pass reaches all leaves, and not only the inputs of
# `torch.autograd.grad`. Only the engine knows these inputs.
reaches_all: Callable[[], bool] = torch.autograd._is_checkpoint_valid

# The innermost transform of `torch.func` that is under way, such as `vmap`, `grad` or
# `jvp`, or `None`. The transforms are public, but the stack of those under way is not.
in_transform = torch._C._functorch.peek_interpreter_stack


# **Tensors.** In this block [the guard of slices](access.py) is not called, because the
# library itself works with the slices. PyTorch documents the name beside
# `__torch_function__`, and has no other.
as_plain = torch._C.DisableTorchFunctionSubclass


def base_of(tensor: Tensor) -> Tensor | None:
    """The tensor of which this one is a view, or `None`.

    Whether a tensor is a view has only private names.
    """
    return tensor._base


def storage_id(storage: torch.UntypedStorage) -> int:
    """A number that all tensors of one storage share, even of a freed one, which has no
    address.

    It is the address of the storage's own record. PyTorch does not document that two
    tensors of one storage give the same Python object.
    """
    number: int = _address(storage)
    return number


_address = attrgetter("_cdata")


def storage_ids(tensors: Iterable[Tensor]) -> list[int]:
    """[The number](#storage_id) of each tensor's storage."""
    return [_address(tensor.untyped_storage()) for tensor in tensors]


def shares_storage(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are views of one storage.

    Storages are compared as objects, since an empty storage has no address to compare.
    """
    return bool(_address(one.untyped_storage()) == _address(other.untyped_storage()))


def gradient_hooks(*tensors: Tensor) -> list[Callable[..., Any]]:
    """The hooks that run when the gradients of some tensors are computed.

    Public methods register and remove hooks, but none lists them.
    """
    return [
        hook
        for tensor in tensors
        for hooks in (tensor._backward_hooks, tensor._post_accumulate_grad_hooks)
        for hook in (hooks or {}).values()
    ]


# **Modules.** The code of the frame in which a module runs, hooks included. Only the
# call stack shows that an interrupt from the keyboard has ended a call.
MODULE_CALL = nn.Module._call_impl.__code__


def own_parameters(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """The parameters of a module itself, by the names of its attributes.

    The module reads its attributes from this dictionary, so a parameter that is put
    there becomes the attribute. `named_parameters` gives a copy, which leaves out
    `None` and second names of a parameter, and takes longer.
    """
    own: dict[str, nn.Parameter | None] = _parameters_of(module)
    return own


_parameters_of = attrgetter("_parameters")


def own_buffers(module: nn.Module) -> dict[str, Tensor | None]:
    """[The same dictionary](#own_parameters) for buffers."""
    own: dict[str, Tensor | None] = _buffers_of(module)
    return own


_buffers_of = attrgetter("_buffers")


def own_tables(
    modules: Iterable[nn.Module],
) -> list[tuple[dict[str, nn.Parameter | None], dict[str, Tensor | None]]]:
    """[Both dictionaries](#own_parameters) of each module, those of parameters and of buffers."""
    return [(_parameters_of(module), _buffers_of(module)) for module in modules]


def lasting_buffers(module: nn.Module) -> dict[str, Tensor]:
    """The buffers of a module itself that are in its `state_dict`."""
    fleeting = module._non_persistent_buffers_set
    held = own_buffers(module).items()
    return {name: t for name, t in held if t is not None and name not in fleeting}


# **Checkpoints.** The file of a checkpoint in which a box is, and its place there. Each
# writer of files must pass it to the public `WriteResult`, and PyTorch's readers use
# it.
from torch.distributed.checkpoint.filesystem import _StorageInfo as StorageInfo

# The names in the index of a distributed checkpoint besides public classes: how a
# tensor lies in memory, and where in a file its bytes are.
INDEX_NAMES = {
    ("torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING"),
    (StorageInfo.__module__, StorageInfo.__name__),
    ("torch.serialization", "_get_layout"),
}


def own_children(module: nn.Module) -> dict[str, nn.Module | None]:
    """[The same dictionary](#own_parameters) for modules. `children` leaves out a second name."""
    own: dict[str, nn.Module | None] = _children_of(module)
    return own


_children_of = attrgetter("_modules")


def modules_inside(module: nn.Module, without: Container[nn.Module]) -> list[nn.Module]:
    """A module and the modules in it, except some and what is in these.

    A module that has two names is there twice.
    """
    found, waiting = [], [module]
    while waiting:
        part = waiting.pop()
        found.append(part)
        children = _children_of(part).values()
        waiting += [c for c in children if c is not None and c not in without]
    return found


def pre_hooks_of(module: nn.Module) -> list[Callable[..., Any]]:
    """The hooks that run before a module's forward pass. No public function lists them."""
    return list(module._forward_pre_hooks.values())


def is_compiled(*modules: nn.Module) -> bool:
    """Whether `module.compile()` was called for any of these. No public function tells."""
    return any(module._compiled_call_impl is not None for module in modules)


def is_initialised(module: nn.Module) -> bool:
    """Whether the constructor of `nn.Module` has run.

    Before that a module has no parameters, and its public methods raise errors.
    """
    return "_parameters" in vars(module)


def apply_to_own(module: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
    """Change the parameters and buffers of a module itself, as `module.to` would.

    A recurrent layer keeps a list of its parameters, and renews the list here. The
    public methods that do the same, such as `to_empty`, choose the change themselves.
    """
    module._apply(change, recurse=False)


# The methods with which PyTorch's modules draw their first values. In `Transformer` and
# `MultiheadAttention` the method is private.
RESET_METHODS = ("reset_parameters", "_reset_parameters")

# The attribute of a module in which PyTorch's composable functions, such as
# `fully_shard`, look up the functions that were applied before. An entry there can
# refuse them. There is no public way to forbid one of them on a module.
from torch.distributed._composable.contract import REGISTRY_KEY

# **Optimizers.** The dictionaries of the hooks that all optimizers call, as attributes
# of this module. Hooks are registered by public functions and removed by their handles.
# The hooks of other programs can be left out only here.
from torch.optim import optimizer as optimizer_module

GLOBAL_OPTIMIZER_HOOKS = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")

# The ending of the names of the dictionaries with an optimizer's own hooks, which a
# copy of the optimizer must not call.
OPTIMIZER_HOOKS = "_hooks"


def reads_found_inf(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer itself skips a step, by its attribute `found_inf`.

    PyTorch's scaler reads the same attribute, and its optimizers have no other sign.
    """
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def early_stop_block() -> bool | None:
    """The value that `set_checkpoint_early_stop` has set, `None` outside such a block.

    The block is public, but its value is not.
    """
    return torch_checkpoint._enable_checkpoint_early_stop


def checkpoint_debug_block() -> bool | None:
    """[The same](#early_stop_block) for `set_checkpoint_debug_enabled`."""
    return torch_checkpoint._checkpoint_debug_enabled


def group_in_force() -> Any:
    """The `GraphExecGroup` around this backward pass, or `None`.

    The block is public, but its value is not. Older versions of PyTorch have no such
    block.
    """
    read = getattr(torch._C, "_get_graph_exec_group", None)
    return None if read is None else read()


# **The compiler.** Its switches for one code object: whether recording may begin in a
# frame of that code, and whether it may continue in the functions that the frame calls.
# The public `torch.compiler.disable` loads the compiler, which takes seconds, and wraps
# the function in another.
from torch._C._dynamo.eval_frame import (
    _FrameAction,
    _FrameExecStrategy,
    get_eval_frame_callback,
    set_code_exec_strategy,
)


def traces_graph() -> bool:
    """Whether the compiler records operations in a graph, which it then splits into a
    forward and a backward graph.

    PyTorch's checkpoint asks in the same way. `torch.compiler.is_compiling` is false
    there before PyTorch 2.13.
    """
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None


def skip_frame(function: Callable[..., Any], *, inside: bool) -> None:
    """Prevent the compiler from starting to record where a function runs.

    :param inside: whether recording may not start in the functions it calls, either
    """
    calls = _FrameAction.SKIP if inside else _FrameAction.DEFAULT
    leave = _FrameExecStrategy(_FrameAction.SKIP, calls)
    set_code_exec_strategy(function.__code__, leave)


def compiler_at_work() -> bool:
    """Whether a compiler looks at each frame, even at one that it could not record.

    `torch.compiler.is_compiling` is true only while it records.
    """
    return callable(get_eval_frame_callback())


def compiler_is_loaded() -> bool:
    """Whether the compiler has been imported. Before that, nothing compiles."""
    return "torch._dynamo" in sys.modules


def forbid_compiling(function: Callable[..., Any], reason: str) -> None:
    """Make the compiler call a function as it is, with a reason for `fullgraph=True`.

    `torch.compiler.disable` sets the same two attributes, after it has loaded the
    compiler.
    """
    vars(function).update(_torchdynamo_disable=True, _torchdynamo_disable_msg=reason)
    # With these attributes the compiler's recording ends before the call. Without the
    # next line some versions of PyTorch start another recording inside the function.
    skip_frame(function, inside=True)


# **Profilers.** Whether a profiler records this thread. Public functions begin and end
# a record, and none tells whether a profiler runs.
profiler_runs = torch._C._autograd._profiler_enabled

# **Races.** The order of two accesses on a device's streams, as PyTorch's own checker
# for CUDA finds it. The module is private. The documentation names it as the place of
# `enable_cuda_sanitizer`, which watches a real device only.
from torch.cuda import _sanitizer as cuda_sanitizer

launch_kernel = cuda_sanitizer.EventHandler._handle_kernel_launch

# Whether a storage has been freed, by the number that a weak reference to it keeps.
# Python reports the end of an object, but a storage may outlive its object.
is_expired = torch.UntypedStorage._expired

# **Ranks.** The store in which the ranks of the first group have met. A program may
# give `init_process_group` a store, but PyTorch gives none back.
from torch.distributed.distributed_c10d import _get_default_store as default_store


def time_limit(group: Any) -> timedelta | None:
    """How long the exchanges of a process group may take, if a backend of it has a limit.

    `init_process_group` and `new_group` take the limit, but no public function reads
    it.
    """
    for device in group._device_types:
        options = getattr(group._get_backend(device), "options", None)
        limit = getattr(options, "_timeout", None)
        if isinstance(limit, timedelta):
            return limit
    return None


# ## Versions of PyTorch
#
# > What differs between the versions of PyTorch on which this library runs, each with its
# > line and its reason.
#
# A cluster has the PyTorch that its administrators have installed. A library that runs on
# one version only is therefore of no use on most clusters. This library runs on the
# versions 2.11 to 2.15, and `SUPPORT.md` has a table of the tests that passed on each of
# them.
#
# PyTorch changes with each version, so some lines must depend on it. All of these lines
# are in this chapter, and no other module of the library checks the version. Where a
# version added a name, the line checks whether PyTorch has the name, so it is right for
# a build between two releases, too. Where only numbers changed, it compares versions.
#
# | since | what changed | what the library uses |
# |---|---|---|
# | 2.12 | on CUDA autocast computes `rms_norm` in FP32 | `NEWER_IN_FP32` |
# | 2.13 | `all_gather_into_tensor` warns, and is renamed `all_gather_single` | `start_all_gather` |
# | 2.13 | `reduce_scatter_tensor` warns, and is renamed `reduce_scatter_single` | `start_reduce_scatter` |
# | 2.13 | there is a loss `linear_cross_entropy` | `NEWER_LOSSES` |
# | 2.13 | what is too large for E4M3FN becomes its largest number, and not NaN | `E4M3FN_SATURATES` |
# | 2.14 | autocast has other decompositions of matrices | `SOME_DECOMPOSITIONS` |
# | 2.14 | a selective checkpoint passes what it keeps through hooks, or warns | `bypass_hooks` |


# The first and the last minor version on which all tests have passed.
OLDEST, NEWEST = "2.11", "2.15"


def check_version(version: str) -> None:
    """Refuse a PyTorch that is too old, and warn once of one that is newer than those tested.

    An older version lacks functions that the library calls. A newer version may have
    changed [a private name](torch_private.py). Usually it has not, so training may
    begin, and the tests of the private names tell which of them have changed.

    :param version: such as `torch.__version__`
    :raises ImportError: if the version is older than 2.11
    """
    if _minor(version) < _minor(OLDEST):
        raise ImportError(
            f"shardbook needs PyTorch {OLDEST} or newer, and this is {version}: "
            f"pip install 'torch>={OLDEST}'"
        )
    if _minor(version) > _minor(NEWEST):
        warnings.warn(
            f"shardbook was tested with PyTorch {OLDEST} to {NEWEST}, and this is {version}; "
            "tests/book/foundations/test_torch_private.py finds out what has changed",
            stacklevel=3,
        )


def _minor(version: str) -> tuple[int, ...]:
    """The first two numbers of a version, `(2, 11)` of `2.11.0+cu130`."""
    return tuple(map(int, version.split(".")[:2]))


def since(version: str) -> bool:
    """Whether this PyTorch is of that minor version or of a newer one."""
    return _minor(torch.__version__) >= _minor(version)


# **Exchanges of one tensor.** The names of the two collectives in `torch.distributed`.
# They are looked up at each call, because programs that watch exchanges put functions
# of their own in these places.
ALL_GATHER = (
    "all_gather_single"
    if hasattr(dist, "all_gather_single")
    else "all_gather_into_tensor"
)
REDUCE_SCATTER = (
    "reduce_scatter_single"
    if hasattr(dist, "reduce_scatter_single")
    else "reduce_scatter_tensor"
)


def start_all_gather(full: Tensor, piece: Tensor, *, group: Any) -> Work:
    """Start to collect the pieces of all ranks in one tensor, in rank order.

    :param full: receives the pieces; as many times as long as `piece` as there are ranks
    """
    work: Work = getattr(dist, ALL_GATHER)(full, piece, group=group, async_op=True)
    return work


def start_reduce_scatter(result: Tensor, full: Tensor, *, group: Any) -> Work:
    """Start to add up a tensor over the ranks, of which each rank receives a piece.

    :param result: receives this rank's piece of the sum
    """
    work: Work = getattr(dist, REDUCE_SCATTER)(result, full, group=group, async_op=True)
    return work


# **Losses that older versions lack.** `linear_cross_entropy`
# contains the product of a model's head, so this product, too, is computed [in
# FP32](policy.py#module/norms-and-losses).
NEWER_LOSSES: tuple[Callable[..., Any], ...] = tuple(
    getattr(F, name) for name in ("linear_cross_entropy",) if hasattr(F, name)
)

# **Autocast.** The operations that have a rule [in autocast's
# tables](autocast.py#module/the-rules-of-autocast) in some of the versions only.
# Version 2.12 added `rms_norm` on CUDA. Version 2.14 added `linalg_matrix_sqrth` on
# every device, and removed `cholesky` and `qr`.
NEWER_IN_FP32 = frozenset(
    (["rms_norm"] if since("2.12") else [])
    + (["linalg_matrix_sqrth"] if since("2.14") else [])
)
SOME_DECOMPOSITIONS = frozenset(
    {"linalg_matrix_sqrth"} if since("2.14") else {"cholesky", "qr"}
)

# **Eight bits.** Whether a conversion to [E4M3FN](formats.py), which has no infinity,
# gives the largest number where a value is too large. Before version 2.13 it gives NaN.
E4M3FN_SATURATES = since("2.13")


def bypass_hooks(block: Any) -> None:
    """Let PyTorch's selective checkpoint keep its results as they are.

    From version 2.14 on, the block of a selective checkpoint looks for hooks in which
    autograd saves tensors, and warns that it will pass what it keeps through them. Here
    these hooks are those of [the checkpoint around the block](saved_tensors.py), which
    would drop the result.

    :param block: the block of a forward pass; any other block stays as it is
    """
    if getattr(block, "respect_saved_tensors_hooks", False) is None:
        block.respect_saved_tensors_hooks = False


# ## Tensor versions
#
# > PyTorch counts the writes to each tensor. If the count is unchanged, the program has not written to it.
#
# A tensor is saved in the forward pass and used in the backward pass. Or a parameter is
# gathered now and used in the next micro-batch. If the program writes to it between the
# two moments, the old results belong to values that are gone. A comparison of the values
# would take a copy and a pass over both. But PyTorch counts writes: each in-place
# operation raises the *version* of the tensor to which it writes. If two versions of one
# tensor differ, the tensor was written to in between:
#
# >>> import torch
# >>> weight, bias = torch.zeros(2, 2), torch.zeros(2)
# >>> before = Versions(weight, bias)
# >>> bias += 1
# >>> [tensor is bias for tensor in before.changed(weight, bias)]
# [True]
#
# The count belongs to the memory. A view shares the count of its tensor, and so does an
# alias from `detach`. A write through any of them raises the version of all:
#
# >>> view, alias = weight[0].fill_(1), weight.detach().mul_(2)
# >>> writes_to(weight), writes_to(weight.t())
# (2, 2)
#
# The version counts writes, whatever their values: `zero_` of a tensor of zeros counts.
# Some writes are not counted at all:
#
# | write | counted |
# |---|---|
# | in place, even under `no_grad` and in inference mode | yes |
# | to a tensor on the meta device, which has no memory | yes |
# | through `.data`, an alias with a count of its own | no |
# | `tensor.data = other`, which gives the tensor other memory | no |
# | by a step of a fused optimizer, or by a batch norm to its running mean | no |
# | to a tensor that was made in inference mode | no, it has no version |
#
# A program that reads the version of a tensor of the last row gets an error. This library
# reads versions wherever tensors come from a program, so it takes such a tensor as never
# written to. [Autograd](https://docs.pytorch.org/docs/stable/notes/autograd.html) makes
# the same comparison for the tensors that it saves itself. If hooks replace a saved
# tensor, autograd leaves the comparison to the hooks.


class Versions(tuple[int, ...]):
    """The number of writes to each of some tensors, at one moment.

    It holds numbers and no tensors, so it keeps neither memory nor a graph alive.
    """

    __slots__ = ()

    def __new__(cls, *tensors: Tensor) -> Versions:
        try:
            return super().__new__(cls, map(count_of_writes, tensors))
        except RuntimeError:  # for a tensor of inference mode
            return super().__new__(cls, map(writes_to, tensors))

    def changed(self, *tensors: Tensor) -> list[Tensor]:
        """The tensors that have been written to since.

        :param tensors: the same tensors, or aliases of them, in the same order
        """
        now = Versions(*tensors)
        if now == self:
            return []
        rows = zip(tensors, now, self, strict=True)
        return [tensor for tensor, count, before in rows if count != before]


# How often a tensor was written to in place. PyTorch raises an error if it does not count
# the writes, because the tensor was made in inference mode.
count_of_writes: Callable[[Tensor], int] = attrgetter("_version")


def writes_to(tensor: Tensor) -> int:
    """The number of in-place writes to a tensor; 0 if PyTorch does not count them.

    >>> import torch
    >>> with torch.inference_mode():
    ...     uncounted = torch.ones(2).add_(1)
    >>> writes_to(uncounted)
    0
    """
    return 0 if tensor.is_inference() else count_of_writes(tensor)
