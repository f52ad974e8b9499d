r"""# Private names of PyTorch

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

One private name is missing here, because it is read everywhere: `_version`, the counter
of writes to a tensor.

`pyproject.toml` requires the versions of PyTorch with which these tests have passed.
[The next chapter](torch_versions.py) has what differs between them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import checkpoint as torch_checkpoint

__all__ = [
    "ATTENTION_KERNELS",
    "ATTENTION_ON_CPU",
    "GLOBAL_OPTIMIZER_HOOKS",
    "INDEX_NAMES",
    "LIST_OPERATIONS",
    "MODULE_CALL",
    "OPTIMIZER_HOOKS",
    "REGISTRY_KEY",
    "RESET_METHODS",
    "SOFTMAX_OF_ATTENTION",
    "OpOverload",
    "OpOverloadPacket",
    "StorageInfo",
    "TorchDispatchMode",
    "TreeSpec",
    "apply_to_own",
    "as_plain",
    "at_end_of_backward",
    "base_of",
    "checkpoint_debug_block",
    "compiler_at_work",
    "compiler_is_loaded",
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
    "next_number",
    "no_modes",
    "number_of",
    "optimizer_module",
    "own_buffers",
    "own_children",
    "own_parameters",
    "pop_saving",
    "pre_hooks_of",
    "profiler_runs",
    "push_saving",
    "reaches_all",
    "reads_found_inf",
    "reduction_of",
    "saving_forbidden",
    "schema_of",
    "skip_frame",
    "storage_id",
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


def number_of(node: Any) -> int:
    """The number that a node got when it was created, as `next_number` counts them."""
    number: int = node._sequence_nr()
    return number


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


def in_transform() -> bool:
    """Whether a transform of `torch.func` is under way, such as `vmap`, `grad` or `jvp`.

    The transforms are public, but the stack of those under way is not.
    """
    return torch._C._functorch.peek_interpreter_stack() is not None


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
    number: int = storage._cdata
    return number


def gradient_hooks(tensor: Tensor) -> list[Callable[..., Any]]:
    """The hooks that run when the gradient of a tensor is computed.

    Public methods register and remove hooks, but none lists them.
    """
    each = tensor._backward_hooks, tensor._post_accumulate_grad_hooks
    return [hook for hooks in each for hook in (hooks or {}).values()]


# **Modules.** The code of the frame in which a module runs, hooks included. Only the
# call stack shows that an interrupt from the keyboard has ended a call.
MODULE_CALL = nn.Module._call_impl.__code__


def own_parameters(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """The parameters of a module itself, by the names of its attributes.

    The module reads its attributes from this dictionary, so a parameter that is put
    there becomes the attribute. `named_parameters` gives a copy, which leaves out
    `None` and second names of a parameter, and takes longer.
    """
    return module._parameters


def own_buffers(module: nn.Module) -> dict[str, Tensor | None]:
    """[The same dictionary](#own_parameters) for buffers."""
    return module._buffers


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
    return module._modules


def pre_hooks_of(module: nn.Module) -> list[Callable[..., Any]]:
    """The hooks that run before a module's forward pass. No public function lists them."""
    return list(module._forward_pre_hooks.values())


def is_compiled(module: nn.Module) -> bool:
    """Whether `module.compile()` was called. No public function tells."""
    return module._compiled_call_impl is not None


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
