"""Every private name of torch does what the library relies on, and stands in one chapter.

A test has the name that it is about, so a release of torch that changes one fails here by name.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import pickle
import re
import subprocess
import sys
import warnings
from collections import OrderedDict, namedtuple
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import checkpoint as torch_checkpoint

import ranks
from shardbook.foundations import torch_private as private

BOOK = Path(__file__).parents[3] / "src" / "shardbook"
# The counter of a tensor's changes is the subject of another chapter.
ELSEWHERE = {"_version"}
# Private names of Python, and strings that look like a private name and are none of torch's.
OF_PYTHON = {"_actions", "_current_frames", "_exit", "_getframe", "_make", "_replace"}
NOT_OF_TORCH = {"_", "_folder", "_forecast", "_growth_tracker"}
# Those of the library transformers, whose release is pinned and whose models `finetune_neox` trains in its
# tests.
OF_TRANSFORMERS = {"_init_weights", "_model_mapping", "_no_split_modules"}
# IPython asks errors for the first, as it documents. Only the second hands a notebook over in Colab, and
# without it a lab goes on in English.
OF_NOTEBOOKS = {"_render_traceback_", "_message"}
OF_OTHERS = {"finetune_neox": OF_TRANSFORMERS, "labs": OF_NOTEBOOKS, "zero": OF_TRANSFORMERS}


# What holds all of this together.


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and not name.startswith("_shardbook")


def private_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The private names that a module asks others for: their attributes, imports, and names in strings."""
    for node in ast.walk(tree):
        found: list[str] = []
        if isinstance(node, ast.Attribute):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            found = [] if own else [node.attr]
        elif isinstance(node, ast.Import):
            found = [part for name in node.names for part in name.name.split(".")]
        elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
            found = [*(node.module or "").split("."), *(name.name for name in node.names)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = [part for part in node.value.split(".") if part.isidentifier()]
            found = found if len(found) == len(node.value.split(".")) else []
            found = [part for part in found if part not in NOT_OF_TORCH]
        yield from ((node.lineno, name) for name in found if is_private(name))  # type: ignore[attr-defined]


OTHERS = [path for path in sorted(BOOK.rglob("*.py")) if path.name != "torch_private.py"]


@pytest.mark.cases(now=238, ci=238)
@pytest.mark.parametrize("path", OTHERS, ids=lambda path: path.relative_to(BOOK).as_posix())
def test_no_other_module_uses_a_private_name_of_torch(path: Path) -> None:
    found = [(line, name) for line, name in private_names(ast.parse(path.read_text("utf-8")))]
    allowed = ELSEWHERE | OF_PYTHON | OF_OTHERS.get(path.parent.name, set())
    assert [each for each in found if each[1] not in allowed] == []


def test_the_search_finds_a_private_name_in_each_place() -> None:
    source = (
        "import torch._dynamo\nfrom torch._ops import OpOverload\nfrom torch.x import _y\n"
        "torch._C.z()\ngetattr(x, '_base')\nsys.modules['torch._inductor']\n"
        "self._own, x.__dict__, '_shardbook_flat', 'a _word in a sentence'\n"
    )
    found = [name for _, name in sorted(private_names(ast.parse(source)))]
    assert found == ["_dynamo", "_ops", "_y", "_C", "_base", "_inductor"]


def test_each_name_has_a_test_of_its_own() -> None:
    # Below are what differs between versions, and the count of writes, which have files of their own.
    below = Path(private.__file__).read_text("utf-8").partition("\n# ## ")[2]
    defined = "\n".join(re.findall(r"^[A-Za-z].*", below, re.MULTILINE))
    ours = [name for name in private.__all__ if not re.search(rf"\b{name}\b", defined)]
    assert [name for name in ours if f"test_{name}" not in globals()] == []


def test_each_private_name_stands_once() -> None:
    """Two uses of one name would be two places to change."""
    tree = ast.parse((BOOK / "foundations" / "torch_private.py").read_text("utf-8"))
    # Some modules hold several names.
    modules = {"_C", "_autograd", "_dynamo", "_python_dispatch"}
    names = [name for _, name in private_names(tree) if name not in modules]
    # The kernel of attention on a CPU is one of all kernels, and one with a derivative. A module's
    # dictionary of parameters is read, and looked for.
    twice = {name for name in names if names.count(name) > 1} - ELSEWHERE
    assert twice == {"_scaled_dot_product_flash_attention_for_cpu", "_parameters"}


# Operations.


class Seen(private.TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.ops: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops.append(func)
        return func(*args, **(kwargs or {}))


def packets_in(call: Any) -> set[Any]:
    with Seen() as seen:
        call()
    return {op.overloadpacket for op in seen.ops}


def test_OpOverload() -> None:
    with Seen() as seen:
        torch.ones(2).mul_(2)
    assert seen.ops == [torch.ops.aten.ones.default, torch.ops.aten.mul_.Tensor]
    assert all(type(op) is private.OpOverload for op in seen.ops)
    assert seen.ops[1].overloadpacket is torch.ops.aten.mul_
    assert seen.ops[1].is_view is False
    assert torch.ops.aten.t.default.is_view is True


def test_OpOverloadPacket() -> None:
    assert type(torch.ops.aten.mm) is private.OpOverloadPacket
    assert not isinstance(torch.ops.aten.mm.default, private.OpOverloadPacket)


def test_TorchDispatchMode() -> None:
    """The method gets each operation, also those of a backward pass, and what it gives is the result."""

    class Doubled(private.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {})) * 2

    one = torch.ones(())
    with Doubled():
        two = one + 1
    assert two.item() == 4
    x = torch.ones(2, requires_grad=True)
    y = x.sin().sum()
    assert torch.ops.aten.cos in packets_in(y.backward)


def test_no_modes() -> None:
    with Seen() as seen:
        with private.no_modes():
            torch.ones(2)
        torch.zeros(2)
    assert seen.ops == [torch.ops.aten.zeros.default]


def test_schema_of() -> None:
    returns = private.schema_of(torch.ops.aten.mm.default).returns
    assert [str(value.type) for value in returns] == ["Tensor"]
    assert not private.schema_of(torch.ops.aten.mm.default).is_mutable
    schema = private.schema_of(torch.ops.aten.mm.out)
    assert schema.is_mutable
    written = [one.name for one in schema.arguments if one.alias_info is not None and one.alias_info.is_write]
    assert written == ["out"]
    assert [value.alias_info is None for value in schema.returns] == [False]


def attend(**options: Any) -> Tensor:
    q = torch.ones(1, 1, 4, 8, requires_grad=True)
    return F.scaled_dot_product_attention(q, q, q, **options)


def test_ATTENTION_KERNELS() -> None:
    """On a CPU one of them runs, and none more than one. All of them return the attention first."""
    assert len(set(private.ATTENTION_KERNELS)) == 9
    assert len(packets_in(attend) & {*private.ATTENTION_KERNELS}) == 1
    for packet in private.ATTENTION_KERNELS:
        names = [one.name for one in private.schema_of(packet.default).arguments]
        assert names[:3] == ["query", "key", "value"], packet


def test_ATTENTION_ON_CPU() -> None:
    forward, backward = private.ATTENTION_ON_CPU
    assert forward in packets_in(attend)
    assert backward in packets_in(attend().sum().backward)


def test_SOFTMAX_OF_ATTENTION() -> None:
    assert private.SOFTMAX_OF_ATTENTION in packets_in(lambda: attend(dropout_p=0.5))
    assert private.SOFTMAX_OF_ATTENTION not in packets_in(attend)
    assert private.SOFTMAX_OF_ATTENTION not in packets_in(lambda: torch.ones(2).softmax(0))


class Called(torch.overrides.TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(getattr(func, "__name__", ""))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("how", ["foreach", "fused"])
def test_LIST_OPERATIONS(how: str) -> None:
    """A step of an optimizer that pairs tensors calls only such operations on lists of them."""
    p = nn.Parameter(torch.ones(2))
    p.grad = torch.ones(2)
    optimizer = torch.optim.AdamW([p], **{how: True})  # type: ignore[arg-type]
    with Called() as called:
        optimizer.step()
    prefix = private.LIST_OPERATIONS[how == "fused"]
    assert prefix == f"_{how}_"
    assert any(name.startswith(prefix) for name in called.names)


def test_zero_all_() -> None:
    p = nn.Parameter(torch.ones(2))
    p.grad = torch.ones(2)
    before = p.grad._version
    with Called() as called:
        torch.optim.SGD([p], foreach=True).zero_grad(set_to_none=False)
    assert private.zero_all_.__name__ in called.names
    assert p.grad.tolist() == [0, 0]
    assert p.grad._version > before


def test_unscale_() -> None:
    """It multiplies, raises a flag for what is not finite, and counts no change."""
    x, flag, half = torch.tensor([2.0, 4.0]), torch.zeros(()), torch.full((), 0.5)
    before = x._version
    with Called() as called:
        private.unscale_([x], flag, half)
    assert called.names == [private.unscale_.__name__]
    assert (x.tolist(), flag.item(), x._version) == ([1.0, 2.0], 0, before)
    private.unscale_([torch.tensor([float("inf")])], flag, torch.ones(()))
    assert flag.item() == 1


# Trees.

Pair = namedtuple("Pair", "one other")


def test_tree_flatten() -> None:
    leaves, _ = private.tree_flatten(([1, (2, None)], {"b": 3}, OrderedDict(c=Pair(4, 5))))
    assert leaves == [1, 2, None, 3, 4, 5]
    # Only the outermost container is opened where a function says that the rest are leaves.
    once = iter([False])
    assert private.tree_flatten(([1, 2], 3), is_leaf=lambda _: next(once, True))[0] == [[1, 2], 3]


def test_tree_unflatten() -> None:
    given = ([1, (2, None)], {"b": 3}, Pair(4, 5))
    leaves, spec = private.tree_flatten(given)
    assert private.tree_unflatten(leaves, spec) == given
    assert type(private.tree_unflatten(leaves, spec)[2]) is Pair


def test_TreeSpec() -> None:
    one, other, third = (private.tree_flatten(x)[1] for x in ((1, [2]), (3, [4]), (3, 4)))
    assert isinstance(one, private.TreeSpec)
    assert one == other != third
    assert private.tree_flatten("x")[1].is_leaf()
    assert not one.is_leaf()


def test_tree_leaves() -> None:
    assert private.tree_leaves({"a": [1, 2], "b": (None,)}) == [1, 2, None]


def test_tree_is_leaf() -> None:
    assert private.tree_is_leaf(torch.ones(1))
    assert private.tree_is_leaf(object())
    assert not private.tree_is_leaf([1])


def test_tree_map_only() -> None:
    assert private.tree_map_only(int, lambda x: x + 1, ([1, "a"], {"b": 2})) == ([2, "a"], {"b": 3})


def test_tree_leaves_with_path() -> None:
    found = private.tree_leaves_with_path(([1], {"a": 2}))
    assert [leaf for _, leaf in found] == [1, 2]


def test_keystr() -> None:
    found = private.tree_leaves_with_path(([1], {"a": 2}))
    assert [private.keystr(path) for path, _ in found] == ["[0][0]", "[1]['a']"]


# Autograd.


def test_reduction_of() -> None:
    x, y = torch.randn(2, 3, requires_grad=True), torch.tensor([0, 2])
    for loss, target in (
        (F.cross_entropy, y),
        (F.mse_loss, torch.ones(2, 3)),
        (F.huber_loss, torch.ones(2, 3)),
    ):
        nodes = [loss(x, target, reduction=how).grad_fn for how in ("none", "mean", "sum")]
        assert [private.reduction_of(node) for node in nodes] == [0, 1, 2]
    assert private.reduction_of((F.cross_entropy(x, y) / 2).grad_fn) is None


def in_backward(act: Any) -> Any:
    """What a function gives that runs in the middle of a backward pass."""
    x, found = torch.ones(2, requires_grad=True), []
    y = x * 2
    y.register_hook(lambda _: found.append(act()))
    y.sum().backward()
    return found[0]


def test_graph_task() -> None:
    assert private.graph_task() == -1
    first, second = in_backward(private.graph_task), in_backward(private.graph_task)
    assert -1 not in (first, second)
    assert first != second
    # A backward pass inside of another is one of its own, and the outer one goes on.
    inner, outer = in_backward(
        torch.enable_grad()(lambda: (in_backward(private.graph_task), private.graph_task()))
    )
    assert -1 not in (inner, outer)
    assert inner != outer


def test_current_node() -> None:
    assert private.current_node() is None
    seen = []

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            seen.append(private.current_node())
            return gradient

    y = Function.apply(torch.ones(1, requires_grad=True))
    y.backward()
    assert seen == [y.grad_fn]


def test_next_number() -> None:
    x = torch.ones(1, requires_grad=True)
    number = private.next_number()
    nodes = [(x * 2).grad_fn, (x * 3).grad_fn]
    assert [node._sequence_nr() for node in nodes if node is not None] == [number, number + 1]
    with torch.no_grad():
        x * 4
    assert private.next_number() == number + 2


def test_number_of() -> None:
    """Of the nodes that are ready, a backward pass runs the one with the highest number first."""
    x, ran = torch.ones(1, requires_grad=True), []
    branches = [x * 2, x.sin(), x.exp()]
    for branch in branches:
        number = private.number_of(branch.grad_fn)
        assert branch.grad_fn is not None
        branch.grad_fn.register_prehook(lambda _, number=number: ran.append(number))
    sum(reversed(branches)).backward()  # type: ignore[union-attr]
    assert ran == sorted(ran, reverse=True)
    assert len(set(ran)) == 3


def pair(name: str, log: list[str]) -> tuple[Any, Any]:
    return lambda x: log.append(f"pack {name}") or x, lambda x: log.append(f"unpack {name}") or x


def test_push_saving() -> None:
    log: list[str] = []
    private.push_saving(*pair("a", log))
    try:
        y = torch.ones(1, requires_grad=True).sin()
    finally:
        private.pop_saving()
    y.backward()
    assert log == ["pack a", "unpack a"]


def test_pop_saving() -> None:
    log: list[str] = []
    # A block that ends takes away the pair on top, whoever has set it.
    with torch.autograd.graph.saved_tensors_hooks(*pair("block", log)):
        private.push_saving(*pair("a", log))
        private.pop_saving()
        torch.ones(1, requires_grad=True).sin()
    torch.ones(1, requires_grad=True).sin()
    assert log == ["pack block"]


def test_top_saving() -> None:
    assert private.top_saving(True) is None
    first, second = pair("a", []), pair("b", [])
    with torch.autograd.graph.saved_tensors_hooks(*first):
        assert private.top_saving(True) == first
        private.push_saving(*second)
        assert private.top_saving(True) == second
        private.pop_saving()
        assert private.top_saving(True) == first
    assert private.top_saving(True) is None


def test_saving_forbidden() -> None:
    assert private.saving_forbidden() is None
    with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
        assert private.saving_forbidden() == "not here"
    seen = []
    torch.func.grad(lambda x: seen.append(private.saving_forbidden()) or x.sum())(torch.ones(2))
    assert seen[0] is not None


def test_at_end_of_backward() -> None:
    """It is called once, after all gradients are there, and before `backward` returns."""
    x, found = torch.ones(2, requires_grad=True), []
    y = x * 2
    y.register_hook(
        lambda _: private.at_end_of_backward(lambda: found.append((x.grad, private.graph_task())))
    )
    y.sum().backward()
    ((gradient, task),) = found
    assert gradient is x.grad
    assert task != -1
    with pytest.raises(RuntimeError):
        private.at_end_of_backward(lambda: None)


def test_reaches_all() -> None:
    x, found = torch.ones(2, requires_grad=True), []
    y = x * 2
    y.register_hook(lambda _: found.append(private.reaches_all()))
    y.sum().backward(retain_graph=True)
    torch.autograd.grad(y.sum(), x, retain_graph=True)
    y.sum().backward(inputs=[x])
    assert found == [True, False, False]


def test_in_transform() -> None:
    found = [private.in_transform() is not None]

    def note(x: Tensor) -> Tensor:
        found.append(private.in_transform() is not None)
        return x.sum()

    x = torch.ones(2, 2)
    torch.func.grad(note)(x)
    torch.func.vmap(note)(x)
    with of_its_own():
        torch.func.jvp(note, (x,), (x,))
    assert [*found, private.in_transform() is not None] == [False, True, True, True, False]


# Tensors.


def test_as_plain() -> None:
    class Guarded(Tensor):
        @classmethod
        def __torch_function__(cls, *_: Any) -> Any:
            raise AssertionError

    x = torch.ones(2).as_subclass(Guarded)
    with pytest.raises(AssertionError):
        x.sum()
    with private.as_plain():
        assert x.sum().item() == 2


def test_base_of() -> None:
    x = torch.ones(2, 2)
    assert private.base_of(x) is None
    assert private.base_of(x.t()) is x
    assert private.base_of(x.t()[0]) is x
    weight = nn.Parameter(torch.ones(2, 2))
    assert private.base_of(weight.t()) is weight
    with torch.no_grad():
        assert private.base_of(weight.t()) is weight
    # What shares memory with a tensor only, and is none of its views for autograd.
    assert private.base_of(x.detach()) is None


def test_storage_id() -> None:
    x = torch.ones(4)
    number = private.storage_id(x.untyped_storage())
    assert private.storage_id(x[1:].detach().untyped_storage()) == number
    others = [torch.ones(4), torch.empty(0), torch.empty(0)]
    found = {private.storage_id(other.untyped_storage()) for other in others}
    assert len(found | {number}) == 4
    x.untyped_storage().resize_(0)
    assert private.storage_id(x.untyped_storage()) == number


def test_storage_ids() -> None:
    x, other = torch.ones(4), torch.empty(0)
    numbers = private.storage_ids((x, other, x[1:]))
    assert numbers == [private.storage_id(each.untyped_storage()) for each in (x, other, x)]


def test_shares_storage() -> None:
    x = torch.ones(4)
    assert private.shares_storage(x, x[1:].detach())
    assert not private.shares_storage(torch.empty(0), torch.empty(0))


def test_gradient_hooks() -> None:
    x = torch.ones(2, requires_grad=True)
    assert private.gradient_hooks(x) == []
    hooks = [print, repr]
    handles = [x.register_hook(hooks[0]), x.register_post_accumulate_grad_hook(hooks[1])]
    assert private.gradient_hooks(x) == private.gradient_hooks(torch.ones(1), x) == hooks
    for handle in handles:
        handle.remove()
    assert private.gradient_hooks(x) == []


# Modules.


def test_MODULE_CALL() -> None:
    """The frame of a call holds the module as `self`, in hooks and in `forward`."""
    found = []

    def callers() -> list[nn.Module]:
        frames = inspect.stack()
        return [one.frame.f_locals["self"] for one in frames if one.frame.f_code is private.MODULE_CALL]

    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            found.append(callers())
            return x

    inner = Net()
    outer = nn.Sequential(inner)
    inner.register_forward_pre_hook(lambda *_: found.append(callers()))
    inner.register_forward_hook(lambda *_: found.append(callers()))
    outer(torch.ones(1))
    assert found == [[inner, outer]] * 3
    found.clear()
    inner.forward(torch.ones(1))
    assert found == [[]]


def test_modules_inside() -> None:
    inner = nn.Sequential(nn.ReLU())
    net = nn.Sequential(inner, nn.Tanh())
    net.nothing = None
    net.register_module("empty", None)
    assert {*private.modules_inside(net, without=())} == {*net.modules()}
    assert private.modules_inside(net, without={inner}) == [net, net[1]]
    assert private.modules_inside(inner, without={inner}) == [*inner.modules()]


def test_own_tables() -> None:
    net = nn.Sequential(nn.Linear(2, 2, bias=False))
    net.register_buffer("mean", torch.ones(1))
    assert private.own_tables(net.modules()) == [
        ({}, {"mean": net.mean}),
        (private.own_parameters(net[0]), {}),
    ]


def test_own_parameters() -> None:
    net = nn.Sequential(nn.Linear(2, 2, bias=False))
    assert private.own_parameters(net) == {}
    layer: Any = net[0]
    assert private.own_parameters(layer) == {"weight": layer.weight, "bias": None}
    layer.twin = layer.weight
    assert list(private.own_parameters(layer)) == ["weight", "bias", "twin"]
    # What is put there is the attribute, and what `forward` computes with.
    private.own_parameters(layer)["weight"] = nn.Parameter(torch.zeros(2, 2))
    assert layer.weight.sum().item() == net(torch.ones(2)).sum().item() == 0


def test_own_buffers() -> None:
    norm = nn.BatchNorm1d(2)
    assert list(private.own_buffers(norm)) == ["running_mean", "running_var", "num_batches_tracked"]
    assert private.own_buffers(norm)["running_mean"] is norm.running_mean


def test_lasting_buffers() -> None:
    norm = nn.BatchNorm1d(2)
    norm.register_buffer("fleeting", torch.ones(1), persistent=False)
    norm.register_buffer("nothing", None)
    assert list(private.lasting_buffers(norm)) == ["running_mean", "running_var", "num_batches_tracked"]
    assert private.lasting_buffers(norm).keys() == norm.state_dict().keys() - {"weight", "bias"}


def test_INDEX_NAMES(tmp_path: Path) -> None:
    """An index names no other private classes, and each of these."""
    import torch.distributed.checkpoint as dcp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it saves in one process
        dcp.save({"a": torch.ones(2, 3), "b": [1]}, checkpoint_id=tmp_path)
    found = []

    class Names(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            found.append((module, name))
            return super().find_class(module, name)

    with (tmp_path / ".metadata").open("rb") as file:
        Names(file).load()
    assert {each for each in found if each[1].startswith("_")} == private.INDEX_NAMES


def test_StorageInfo(tmp_path: Path) -> None:
    """An index holds one for each box, and its three first fields say where the box is."""
    import torch.distributed.checkpoint as dcp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it saves in one process
        dcp.save({"a": torch.ones(2, 3)}, checkpoint_id=tmp_path)
    (place,) = dcp.FileSystemReader(tmp_path).read_metadata().storage_data.values()
    again = private.StorageInfo(place.relative_path, place.offset, place.length)
    assert again == place
    assert torch.load(tmp_path / place.relative_path).equal(torch.ones(2, 3))


def test_pre_hooks_of() -> None:
    module, seen = nn.Linear(2, 2), list[Any]()
    module.register_forward_pre_hook(lambda *given: seen.append(given))
    (hook,) = private.pre_hooks_of(module)
    hook(module, ())
    assert seen == [(module, ())]
    normed = torch.nn.utils.spectral_norm(nn.Linear(2, 2))
    assert [getattr(hook, "name", None) for hook in private.pre_hooks_of(normed)] == ["weight"]


def test_is_compiled() -> None:
    module = nn.Linear(2, 2)
    assert not private.is_compiled(module)
    module.compile(backend="eager")
    assert private.is_compiled(module)


def test_own_children() -> None:
    net = nn.Sequential(nn.Linear(1, 1))
    net.again, net.none = net[0], None  # type: ignore[assignment]
    net.register_module("empty", None)
    assert private.own_children(net) == {"0": net[0], "again": net[0], "empty": None}


def test_is_initialised() -> None:
    net = nn.Linear.__new__(nn.Linear)
    assert not private.is_initialised(net)
    net.__init__(1, 1)  # type: ignore[misc]
    assert private.is_initialised(net)


def test_apply_to_own() -> None:
    """Parameters and buffers of the module itself change, and a recurrent layer renews its list."""
    net = nn.Sequential(nn.BatchNorm1d(2, device="meta"))
    make = lambda t: torch.empty_like(t, device="cpu")  # noqa: E731
    private.apply_to_own(net, make)
    assert all(value.is_meta for value in [*net.parameters(), *net.buffers()])
    private.apply_to_own(net[0], make)
    assert not any(value.is_meta for value in [*net.parameters(), *net.buffers()])
    lstm = nn.LSTM(2, 2, device="meta")
    private.apply_to_own(lstm, make)
    assert [id(p) for p in lstm.all_weights[0]] == [id(p) for p in lstm.parameters()]
    assert lstm(torch.ones(1, 2))[0].shape == (1, 2)


def test_RESET_METHODS() -> None:
    offered = [
        [name for name in private.RESET_METHODS if callable(getattr(module, name, None))]
        for module in (
            nn.Linear(2, 2),
            nn.MultiheadAttention(2, 1),
            nn.Transformer(4, 2, 1, 1, 4, batch_first=True),
        )
    ]
    assert offered == [["reset_parameters"], ["_reset_parameters"], ["_reset_parameters"]]


def fully_shard_asks() -> None:
    from torch.distributed.fsdp import fully_shard

    class Asked(dict[str, Any]):
        def __contains__(self, name: object) -> bool:
            raise KeyError(name)

    net = nn.Linear(2, 2)
    net.__dict__.setdefault(private.REGISTRY_KEY, Asked())
    with pytest.raises(KeyError, match="fully_shard"):
        fully_shard(net)


def test_REGISTRY_KEY() -> None:
    ranks.run(1, fully_shard_asks)


# Optimizers.


def sgd(**options: Any) -> torch.optim.SGD:
    p = nn.Parameter(torch.ones(2))
    p.grad = torch.ones(2)
    return torch.optim.SGD([p], **options)


def test_optimizer_module() -> None:
    assert private.optimizer_module.Optimizer is torch.optim.Optimizer


def test_GLOBAL_OPTIMIZER_HOOKS() -> None:
    calls: list[str] = []
    module: Any = private.optimizer_module
    before = [len(getattr(module, name)) for name in private.GLOBAL_OPTIMIZER_HOOKS]
    handles = [
        module.register_optimizer_step_pre_hook(lambda *_: calls.append("pre")),
        module.register_optimizer_step_post_hook(lambda *_: calls.append("post")),
    ]
    kept = {name: getattr(module, name) for name in private.GLOBAL_OPTIMIZER_HOOKS}
    try:
        sgd().step()
        for name in kept:
            setattr(module, name, OrderedDict())
        sgd().step()
    finally:
        for name, hooks in kept.items():
            setattr(module, name, hooks)
        for handle in handles:
            handle.remove()
    assert calls == ["pre", "post"]
    assert [len(hooks) for hooks in kept.values()] == before


def test_OPTIMIZER_HOOKS() -> None:
    """All dictionaries of an optimizer's own hooks, and nothing else, end so."""
    optimizer = sgd()
    register = [name for name in dir(optimizer) if name.startswith("register_") and name.endswith("_hook")]
    ours = [name for name in vars(optimizer) if name.endswith(private.OPTIMIZER_HOOKS)]
    assert len(register) == len(ours) == 6
    for number, name in enumerate(register, 1):
        getattr(optimizer, name)(lambda *_: None)
        assert sum(len(vars(optimizer)[one]) for one in ours) == number, name


def test_reads_found_inf() -> None:
    for fused in (False, True):
        optimizer: Any = sgd(fused=fused)
        assert private.reads_found_inf(optimizer) is fused
    optimizer.grad_scale, optimizer.found_inf = None, torch.ones(())
    optimizer.step()
    assert optimizer.param_groups[0]["params"][0].tolist() == [1, 1]


# Checkpoints.


def test_early_stop_block() -> None:
    assert private.early_stop_block() is None
    for block in (False, True):
        with torch_checkpoint.set_checkpoint_early_stop(block):
            assert private.early_stop_block() is block
    assert private.early_stop_block() is None


def test_checkpoint_debug_block() -> None:
    assert private.checkpoint_debug_block() is None
    for block in (False, True):
        with torch_checkpoint.set_checkpoint_debug_enabled(block):
            assert private.checkpoint_debug_block() is block
    assert private.checkpoint_debug_block() is None


def test_group_in_force() -> None:
    assert private.group_in_force() is None
    with torch_checkpoint.GraphExecGroup() as group:
        assert private.group_in_force() is group
    assert private.group_in_force() is None


# The compiler.


def recorded(function: Any, *args: Any) -> list[Any]:
    """The graphs that the compiler makes of a function, without compiling them."""
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    try:
        torch.compile(function, backend=backend)(*args)
    finally:
        torch._dynamo.reset()
    return graphs


@contextlib.contextmanager
def of_its_own() -> Iterator[None]:
    """In this block PyTorch itself may use what it has given up."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def test_skip_frame() -> None:
    def inner(x: Tensor) -> Tensor:
        return x.sin()

    def plain(x: Tensor) -> Tensor:
        return inner(x)

    def fork(x: Tensor) -> Tensor:
        return inner(x)

    def alone(x: Tensor) -> Tensor:
        return inner(x)

    private.skip_frame(fork, inside=False)
    private.skip_frame(alone, inside=True)
    x = torch.ones(2)
    with of_its_own():
        found = [len(recorded(one, x)) for one in (plain, fork, alone)]
        # Where recorded code calls a fork, the recording goes on in it.
        found.append(len(recorded(lambda x: fork(x) + 1, x)))
    # What `fork` calls is recorded, what `alone` calls is not.
    assert found == [1, 1, 0, 1]


def test_traces_graph() -> None:
    """It is so where PyTorch's checkpoint asks for its blocks under a compiler, and not without one."""
    found = []

    def blocks() -> Any:
        found.append(private.traces_graph())
        recompute = torch_checkpoint.CheckpointPolicy.PREFER_RECOMPUTE
        return torch_checkpoint.create_selective_checkpoint_contexts(lambda *_, **__: recompute)

    def run(x: Tensor) -> Any:
        return torch_checkpoint.checkpoint(torch.sin, x, use_reentrant=False, context_fn=blocks)

    with of_its_own():
        torch.compile(run, backend="aot_eager", fullgraph=True)(torch.ones(2, requires_grad=True))
        # The compiler records once before that, which is no inspection.
        assert found[-1]
        found.clear()
        run(torch.ones(2, requires_grad=True))
    assert found == [False]
    torch._dynamo.reset()


def test_compiler_at_work() -> None:
    found = []

    @torch.compiler.disable
    def note() -> None:
        found.append((private.compiler_at_work(), torch.compiler.is_compiling()))

    def function(x: Tensor) -> Tensor:
        print("", end="")
        return x.sin()

    def skipped(x: Tensor) -> Tensor:
        found.append((private.compiler_at_work(), torch.compiler.is_compiling()))
        return function(x)

    private.skip_frame(skipped, inside=False)
    with of_its_own():
        recorded(skipped, torch.ones(2))
    assert found == [(True, False)]
    assert not private.compiler_at_work()


@pytest.mark.nightly
def test_compiler_is_loaded() -> None:
    """Once it is used; the chapter does not load it."""
    code = (
        "import sys, torch, shardbook.foundations.torch_private as private\n"
        "def loaded(): return 'torch._dynamo' in sys.modules, private.compiler_is_loaded()\n"
        "before = loaded()\n"
        "torch.compiler.disable(print)\n"
        "print(*before, *loaded())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False True True\n"


def test_forbid_compiling() -> None:
    def apart(x: Tensor) -> Tensor:
        assert not torch.compiler.is_compiling()
        return x.sin()

    private.forbid_compiling(apart, "because of this")
    with of_its_own():
        assert len(recorded(lambda x: apart(x + 1) + 1, torch.ones(2))) == 2
        torch._dynamo.reset()
        with pytest.raises(torch._dynamo.exc.Unsupported, match="because of this"):
            torch.compile(lambda x: apart(x), backend="eager", fullgraph=True)(torch.ones(2))
    torch._dynamo.reset()


# Profilers.


def test_profiler_runs() -> None:
    """It is so in a profile, also where a backward pass runs a hook, and nowhere else."""
    assert not private.profiler_runs()
    with torch.profiler.profile():
        assert private.profiler_runs()
        assert in_backward(private.profiler_runs)
    assert not private.profiler_runs()
    with torch.autograd.profiler.profile():
        assert private.profiler_runs()
    assert not private.profiler_runs()


# Races.


def launch(checker: Any, stream: int, *, reads: set[int], writes: set[int]) -> list[Any]:
    errors: list[Any] = private.launch_kernel(
        checker, stream, reads, writes, set(), "", {block: [] for block in reads | writes}
    )
    return errors


def test_launch_kernel() -> None:
    """A read on another stream than the write is an error, and names both."""
    checker = private.cuda_sanitizer.EventHandler()
    assert launch(checker, 0, reads=set(), writes={7}) == []
    assert launch(checker, 0, reads={7}, writes=set()) == []
    (error,) = launch(checker, 1, reads={7}, writes=set())
    assert (error.current_access.stream, error.previous_access.stream) == (1, 0)
    kinds = private.cuda_sanitizer.AccessType
    assert (error.current_access.type, error.previous_access.type) == (kinds.READ, kinds.WRITE)


def test_cuda_sanitizer() -> None:
    """An event orders two streams, and memory that is taken anew has no past."""
    checker = private.cuda_sanitizer.EventHandler()
    launch(checker, 0, reads=set(), writes={7})
    first = checker.tensors_accessed.get_write(7)
    checker.syncs.create_event(1)
    checker.syncs.record_state(1, 0)
    assert not checker.syncs.is_ordered_after(1, first.seq_num, first.stream)
    checker.syncs.stream_wait_for_event(1, 1)
    assert checker.syncs.is_ordered_after(1, first.seq_num, first.stream)
    assert launch(checker, 1, reads={7}, writes=set()) == []
    (last,) = checker.tensors_accessed.get_reads(7)
    checker.tensors_accessed.delete_tensor(7)
    checker.tensors_accessed.create_tensor(7, None)
    assert launch(checker, 2, reads=set(), writes={7}) == []
    checker.tensors_accessed.delete_tensor(7)
    checker.tensors_accessed.ensure_tensor_does_not_exist(7)
    checker.tensors_accessed.ensure_tensor_exists(7)
    checker.tensors_accessed.add_read(7, last)
    assert len(launch(checker, 2, reads=set(), writes={7})) == 1
    op = torch.ops.aten.mul_.Tensor
    pairs = private.cuda_sanitizer.zip_arguments(private.schema_of(op), ("x", "y"), {})
    assert [(argument.name, value) for argument, value in pairs] == [("self", "x"), ("other", "y")]


def test_is_expired() -> None:
    one = torch.ones(2)
    weak = StorageWeakRef(one.untyped_storage())
    view = one[:1]
    del one
    assert not private.is_expired(weak.cdata)
    del view
    assert private.is_expired(weak.cdata)


# Ranks.


def the_store_of_the_first_group() -> None:
    store: Any = private.default_store()
    store.set(f"from {dist.get_rank()}", "here")
    dist.barrier()
    assert store.get(f"from {1 - dist.get_rank()}") == b"here"


def test_default_store() -> None:
    ranks.run(2, the_store_of_the_first_group)


def limits() -> list[timedelta | None]:
    own = dist.new_group(timeout=timedelta(seconds=77))
    silent = SimpleNamespace(_device_types=["cpu"], _get_backend=lambda _: object())
    return [private.time_limit(own), private.time_limit(silent)]


def test_time_limit() -> None:
    assert ranks.run(2, limits) == [[timedelta(seconds=77), None]] * 2
