r"""# Private names of PyTorch

> Everything that this library uses of PyTorch and that PyTorch has not promised to keep.

A name that begins with an underscore is PyTorch's own business. The next release may
rename it, or let it mean something else, and no release note has to say so. A library
that trains through hooks cannot do without such names. Autograd numbers its nodes and
publishes no function that reads the number. A module keeps its parameters in a
dictionary, and to walk through its public iterators before each forward pass would take
three times as long.

All of these names stand in this chapter, and no other module of the library uses one.
Each has three things: what the library needs it for, why no public name does the same,
and a test. The test does what the library does with the name and compares the answer.
So when PyTorch changes one of them, the test that fails has its name, and the chapter
to read is this one.

| instead of | use |
|---|---|
| `torch.utils._pytree.tree_leaves` | `tree_leaves` |
| `torch._C._current_graph_task_id()` | `graph_task()` |
| `node._sequence_nr()` | `number_of(node)` |
| `module._parameters` | `own_parameters(module)` |

The only private name that is missing here is the counter of the changes of a tensor,
`_version`.

`pyproject.toml` asks for the versions of PyTorch in which these tests have passed, and
pip refuses to install another one beside this library.
"""

# sidelit: hide
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
    "current_node",
    "default_store",
    "early_stop_block",
    "forbid_compiling",
    "gradient_hooks",
    "graph_task",
    "group_in_force",
    "in_transform",
    "is_initialised",
    "keystr",
    "lasting_buffers",
    "next_number",
    "no_modes",
    "number_of",
    "optimizer_module",
    "own_buffers",
    "own_children",
    "own_parameters",
    "pop_saving",
    "profiler_runs",
    "push_saving",
    "reaches_all",
    "reads_found_inf",
    "saving_forbidden",
    "schema_of",
    "skip_frame",
    "storage_id",
    "time_limit",
    "top_saving",
    "tree_flatten",
    "tree_is_leaf",
    "tree_leaves",
    "tree_leaves_with_path",
    "tree_map_only",
    "tree_unflatten",
    "unscale_",
    "zero_all_",
]
# sidelit: show

# **Operations.** The classes of `torch.ops.aten.mm.default` and of `torch.ops.aten.mm`. A
# policy of a checkpoint is asked about objects of the first, and may list both. The
# objects are public, their classes are not.
from torch._ops import OpOverload, OpOverloadPacket

# In the block of a *mode* PyTorch hands each operation to a method instead of running
# it. So a checkpoint keeps single results, and a plan counts bytes and floating-point
# operations. PyTorch's public `FlopCounterMode` is built with this class, and the class
# itself is not public.
from torch.utils._python_dispatch import TorchDispatchMode

# A program may itself watch each operation, for instance to plan a step with tensors
# that have no values. In this block no mode is asked. There is no public way to leave
# the modes of others.
from torch.utils._python_dispatch import _disable_current_modes as no_modes

# **Trees.** A *pytree* is a structure of tuples, lists, dictionaries and registered
# classes, with leaves such as tensors. A checkpoint flattens its arguments and builds
# them again. PyTorch's public tools for structures are in `torch.utils`, and this one,
# on which `torch.func` and `torch.export` stand, has an underscore. A copy of it would
# not know the classes that programs register with PyTorch.
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
    """The signature of an operation: which arguments it writes to, and what it gives.

    `torch.library.infer_schema` makes a signature from a Python function. None of the
    public functions reads that of an operation that exists.
    """
    return op._schema


# The kernels of `scaled_dot_product_attention`. That function is public. A mode sees
# what the function has chosen, and the choices have private names.
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

# The softmax of an attention that no kernel fits. PyTorch uses it nowhere else, so it
# tells that a list of kernels will keep nothing.
SOFTMAX_OF_ATTENTION = aten._safe_softmax

# How the names of operations begin that pair the elements of lists of tensors, as the
# step of an optimizer does. Nothing else marks them.
LIST_OPERATIONS = ("_foreach_", "_fused_")

# What `zero_grad` calls on all gradients at once. Its name tells a gradient that was
# set to zero from one that was changed.
zero_all_ = torch._foreach_zero_

# Reads each gradient once, multiplies it, and raises a flag if it was not finite.
# Public operations would read each gradient twice. Autograd does not count the write.
unscale_ = torch._amp_foreach_non_finite_check_and_unscale_

# **Autograd.** The number of the backward pass in which this thread is, −1 outside of
# all. Nothing public says whether a backward pass is under way.
graph_task = torch._C._current_graph_task_id

# The node that a backward pass is running, or `None`. A hook gets gradients, and not
# the node that it is called for.
current_node = torch._C._current_autograd_node

# The number that the next node of this thread will get. Of the nodes that are ready, a
# backward pass runs the one with the highest number first. The documentation of
# `emit_nvtx` describes the numbers, and no public function reads them.
next_number = torch._C._autograd._get_sequence_nr


def number_of(node: Any) -> int:
    """The number that a node got when it was made, as `next_number` counts them."""
    number: int = node._sequence_nr()
    return number


# The stack of pairs of hooks through which autograd saves tensors. The public
# `torch.autograd.graph.saved_tensors_hooks` sets a pair for a block. Here a pair is set
# in one hook of a module and taken away in another, and the pair below has to be known.
push_saving = torch._C._autograd._push_saved_tensors_default_hooks
pop_saving = torch._C._autograd._pop_saved_tensors_default_hooks
top_saving = torch._C._autograd._top_saved_tensors_default_hooks

# Why no such pair may be set at present, or `None`. `torch.func.grad` and
# `disable_saved_tensors_hooks` forbid it. A program that tries learns it only from the
# error.
saving_forbidden = torch._C._autograd._saved_tensors_hooks_get_disabled_error_message

# Calls a function when the current backward pass ends, before `backward` returns.
# `DistributedDataParallel` and `FullyShardedDataParallel` use the same name; public
# hooks belong to a tensor or to a node, and none of these has to be the last.
at_end_of_backward: Callable[[Callable[[], None]], None] = (
    torch.autograd.Variable._execution_engine.queue_callback
)

# Whether the current backward pass reaches all leaves, and not only some that were
# asked for. Only the engine knows what `torch.autograd.grad` was asked for.
reaches_all: Callable[[], bool] = torch.autograd._is_checkpoint_valid


def in_transform() -> bool:
    """Whether a transform of `torch.func` is under way, such as `vmap`, `grad` or `jvp`.

    The transforms are public, the stack of those under way is not.
    """
    return torch._C._functorch.peek_interpreter_stack() is not None


# **Tensors.** In such a block [the guard of slices](access.py) is not asked: what is
# done with them is the library's own work. PyTorch documents the name beside
# `__torch_function__`, and gives no other.
as_plain = torch._C.DisableTorchFunctionSubclass


def base_of(tensor: Tensor) -> Tensor | None:
    """The tensor that this one is a view of, or `None`. Whether a tensor is a view has
    only private names.
    """
    return tensor._base


def storage_id(storage: torch.UntypedStorage) -> int:
    """A number that all tensors of one storage share, also a freed one, which has no
    address.

    It is the address of the storage's own record. That two tensors of one storage give
    the same Python object is not documented.
    """
    number: int = storage._cdata
    return number


def gradient_hooks(tensor: Tensor) -> list[Callable[..., Any]]:
    """The hooks that wait for the gradient of a tensor. Public methods register and
    remove hooks, and none lists them.
    """
    each = tensor._backward_hooks, tensor._post_accumulate_grad_hooks
    return [hook for hooks in each for hook in (hooks or {}).values()]


# **Modules.** The code of the frame in which a module runs, hooks included. The stack
# of calls is the only witness of a call that an interrupt from the keyboard has ended.
MODULE_CALL = nn.Module._call_impl.__code__


def own_parameters(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """The parameters of a module itself, by the names of its attributes.

    This is the dictionary that the module looks into, so a parameter put there is the
    attribute. `named_parameters` gives a copy that leaves out `None` and a second name
    of a parameter, and takes longer.
    """
    return module._parameters


def own_buffers(module: nn.Module) -> dict[str, Tensor | None]:
    """[The same](#own_parameters) for buffers."""
    return module._buffers


def lasting_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Those of a module's own buffers that a `state_dict` holds."""
    fleeting = module._non_persistent_buffers_set
    held = own_buffers(module).items()
    return {name: t for name, t in held if t is not None and name not in fleeting}


# **Checkpoints.** What the index of a distributed checkpoint names beside public
# classes: how a tensor lies in memory, and where in a file its bytes are.
INDEX_NAMES = {
    ("torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
}

# Says in which file of a checkpoint a box is, and where. Each writer of files has to
# give it to the public `WriteResult`, and PyTorch's readers look into it.
from torch.distributed.checkpoint.filesystem import _StorageInfo as StorageInfo


def own_children(module: nn.Module) -> dict[str, nn.Module | None]:
    """[The same](#own_parameters) for modules. `children` leaves out a second name."""
    return module._modules


def is_initialised(module: nn.Module) -> bool:
    """Whether the constructor of `nn.Module` has run. Until then a module has no
    parameters, and its public methods raise.
    """
    return "_parameters" in vars(module)


def apply_to_own(module: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
    """Change the parameters and buffers of a module itself, as `module.to` would.

    A recurrent layer keeps a list of its parameters, and renews it here. The public
    methods that go this way, such as `to_empty`, decide the change themselves.
    """
    module._apply(change, recurse=False)


# The methods by which modules of PyTorch draw their first values. `Transformer` and
# `MultiheadAttention` hide theirs behind an underscore.
RESET_METHODS = ("reset_parameters", "_reset_parameters")

# The attribute of a module in which PyTorch's composable functions, such as
# `fully_shard`, look up what has been applied before. What stands there can refuse
# them. They offer nothing public to forbid one on a module.
from torch.distributed._composable.contract import REGISTRY_KEY

# **Optimizers.** The dictionaries of the hooks that all optimizers call, as attributes
# of this module. Hooks are registered in public and removed by their handles; those of
# others can be left out only here.
from torch.optim import optimizer as optimizer_module

GLOBAL_OPTIMIZER_HOOKS = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")

# How the names of the dictionaries end that hold an optimizer's own hooks. A copy of an
# optimizer must not call them.
OPTIMIZER_HOOKS = "_hooks"


def reads_found_inf(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer itself leaves a step out, by its attribute `found_inf`.

    PyTorch's scaler asks the same attribute, and its optimizers have no other sign.
    """
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def early_stop_block() -> bool | None:
    """What PyTorch's `set_checkpoint_early_stop` has set, `None` outside of such a block.

    The block is public, and can only be entered.
    """
    return torch_checkpoint._enable_checkpoint_early_stop


def checkpoint_debug_block() -> bool | None:
    """[The same](#early_stop_block) for `set_checkpoint_debug_enabled`."""
    return torch_checkpoint._checkpoint_debug_enabled


def group_in_force() -> Any:
    """The `GraphExecGroup` around this backward pass, or `None`. The block is public,
    and what it has set is not. Older versions of PyTorch have no such block.
    """
    read = getattr(torch._C, "_get_graph_exec_group", None)
    return None if read is None else read()


# **The compiler.** Its switches for one code object: whether recording may begin in a
# frame of that code, and whether it may go on in what the frame calls. The public
# `torch.compiler.disable` loads the compiler, which takes seconds, and wraps the
# function in another.
from torch._C._dynamo.eval_frame import (
    _FrameAction,
    _FrameExecStrategy,
    get_eval_frame_callback,
    set_code_exec_strategy,
)


def skip_frame(function: Callable[..., Any], *, inside: bool) -> None:
    """Let no recording begin where a function runs.

    :param inside: whether none may begin in what the function calls, either
    """
    calls = _FrameAction.SKIP if inside else _FrameAction.DEFAULT
    leave = _FrameExecStrategy(_FrameAction.SKIP, calls)
    set_code_exec_strategy(function.__code__, leave)


def compiler_at_work() -> bool:
    """Whether a compiler looks at each frame, also one that it could not record.

    `torch.compiler.is_compiling` is true only while it records.
    """
    return callable(get_eval_frame_callback())


def compiler_is_loaded() -> bool:
    """Whether the compiler has been imported. Nothing compiles before."""
    return "torch._dynamo" in sys.modules


def forbid_compiling(function: Callable[..., Any], reason: str) -> None:
    """Let the compiler call a function as it is, and say why under `fullgraph=True`.

    `torch.compiler.disable` leaves the same two attributes, after it has loaded the
    compiler.
    """
    vars(function).update(_torchdynamo_disable=True, _torchdynamo_disable_msg=reason)


# **Profilers.** Whether one records what this thread does. Public names begin and end a
# record, and none tells whether somebody wants it.
profiler_runs = torch._C._autograd._profiler_enabled

# **Ranks.** The store in which the ranks of the first group have met. A program may
# give `init_process_group` a store, but PyTorch gives none back.
from torch.distributed.distributed_c10d import _get_default_store as default_store


def time_limit(group: Any) -> timedelta | None:
    """How long the exchanges of a process group may take, if one of its backends says so.

    `init_process_group` and `new_group` take the limit, and nothing public reads it.
    """
    for device in group._device_types:
        options = getattr(group._get_backend(device), "options", None)
        limit = getattr(options, "_timeout", None)
        if isinstance(limit, timedelta):
            return limit
    return None
