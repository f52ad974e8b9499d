r"""# Access to a slice

> A parameter that is read where a rank has only a slice of it is refused, on every rank.

In stages 1 to 3 a rank holds only its own slice of a parameter, except while the unit
is in use. A model usually reads its parameters in the forward pass of [their
unit](unit.py), where they are whole. But not every program does. The loss of CLIP, for
example, reads `model.logit_scale.exp()`. That parameter has one element, so rank 0 has
all of it, and the other ranks have nothing:

| | `logit_scale` | `logit_scale.exp() * similarity` |
|---|---|---|
| rank 0 | 1 element | right |
| rank 1 | 0 elements | an error about shapes, or an empty result |

A slice therefore has a class of its own. PyTorch passes each operation on such a tensor
to the class's `__torch_function__` before the operation runs. Three rules decide there:

1. An operation that only inspects the slice runs: its shape, its gradient, `detach`,
   `.data`.
2. An operation that autograd would record is refused. The gradient would belong to the
   slice, and no exchange would average it.
3. Without gradients, an elementwise operation runs, such as the `lerp_` of an average
   of weights. Its other operands must have the slice's shape, or be single numbers, and
   its result must have the slice's shape, too. Any other operation mixes the slice with
   other values, and is refused.

The result of the third rule keeps a record of the parameter that it was computed from.
Without this record, `logit_scale.exp()` would run on all ranks under `no_grad`, and the
product with the similarities would fail on rank 1 alone. A full reduction, such as a
norm, has a result without dimensions. That result is a plain number, computed from this
rank's slice.

If you mean the slice itself, write `parameter.detach()`, which computes like a plain
tensor.

A moving average of weights, such as a teacher's, needs no whole parameter. Each rank
can average its slices if both models are cut alike: they have the same stage and units,
and are frozen only after sharding.

```python
model = shard(model, units=(Encoder, Block))   # model.teacher and model.student: Encoders
model.teacher.requires_grad_(False)
...
with torch.no_grad():                          # between steps, or in model.forward
    for average, new in zip(model.teacher.parameters(), model.student.parameters()):
        average.lerp_(new, 0.1)
```
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from shardbook.foundations.hook_context import calls_of
from shardbook.foundations.torch_private import (
    LIST_OPERATIONS,
    as_plain,
    tree_leaves,
    tree_map_only,
)
from shardbook.zero.flat import Flat, flat_of, is_whole_form, owner_of
from shardbook.zero.whole_parameter import VIEWS

__all__ = ["Slice", "guard_again", "guard_slices"]


class Place(NamedTuple):
    """The elements of a parameter that a slice holds.

    :param name: the parameter's name in the model
    :param unit: the name of its unit
    :param shape: the shape of the whole parameter
    :param offset: the parameter's first place in the unit's flat vector
    :param length: the number of elements of that vector that each rank keeps
    :param uncut: whether one rank has the whole parameter, and the others nothing
    """

    name: str
    unit: str
    shape: torch.Size
    offset: int
    length: int
    uncut: bool

    def refusal(self, operation: str) -> RuntimeError:
        """An error that names the parameter that was read, and says what to do instead."""
        return RuntimeError(
            f"{self.name} of unit {self.unit} was read outside of that unit's forward "
            f"pass, where a rank has only a slice of it ({operation}); call the unit "
            'itself, or read it inside of "with whole(model):"'
        )

    def mixture(self, operation: str) -> RuntimeError:
        """An error for an operation that mixes a slice with a tensor that is cut otherwise."""
        return RuntimeError(
            f"{self.name} of unit {self.unit} is only a slice here, and {operation} would "
            "mix it with a tensor that is not cut alike; to average weights, shard both "
            "models with the same stage and units, and freeze the average after that; make "
            "what copies weights, such as a look-ahead optimizer, after shard()"
        )

    def cut_alike(self, other: Place) -> bool:
        """Whether two parameters have the same shape and are cut at the same places.

        That is so for two equal models, of which one holds averaged weights of the
        other. All ranks compute the same answer, although on some of them other slices
        may have fitting shapes by chance.
        """
        return self[2:] == other[2:]


class Guarded:
    """The rules for a slice, and for tensors that were computed from one."""

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Apply the three rules to an operation. PyTorch calls this in place of the operation."""
        name, kwargs = operation(func), kwargs or {}
        looks = name in _LOOKS or name.startswith("new_")
        if func.__name__ == "__get__":
            # Most properties only inspect the slice. But `parameter.T` is an operation.
            looks = name not in _VIEWS
        with as_plain():
            if not looks:
                return compute(func, name, args, kwargs)
            found = func(*args, **kwargs)
            return elements(args[0], found) if name in _ELEMENTS else found

    # sidelit: depth A slice that `torch.save` would store under the name of the whole parameter.

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse to be pickled.

        `torch.save` of `named_parameters` would store a slice under the name of the
        whole parameter.

        :raises TypeError: always
        """
        place = place_of(self)
        raise TypeError(
            f"{place.name} of unit {place.unit} is only a slice of the parameter here, "
            "and would be saved under the whole one's name; save model.state_dict(), "
            "or parameter.detach() in a file of each rank's own"
        )


class Slice(Guarded, nn.Parameter):
    """One of the model's own parameters, while it is only this rank's slice."""

    of_class = nn.Parameter

    # sidelit: depth Copies of a slice, such as those that a copy of an optimizer makes.

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        """A plain parameter with the slice's values, as a copy of an optimizer needs
        it.

        The copy belongs to no unit.
        """
        if id(self) not in memo:
            memo[id(self)] = nn.Parameter(self.detach().clone(), self.requires_grad)
        copied: nn.Parameter = memo[id(self)]
        return copied


class Part(Guarded, Tensor):
    """A tensor that was computed from a slice, element by element."""


class Elements(Tensor):
    """The elements of a slice, as `detach` and `.data` give them: a plain tensor.

    Only the text of an error is another. Suppose a wrapper that averages weights was made
    before the model was sharded. PyTorch's own error would name the sizes of two vectors
    that no user has seen.
    """

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run the operation on plain tensors."""
        with as_plain():
            name = operation(func)
            given = [v for v in tree_leaves((args, kwargs)) if isinstance(v, Tensor)]
            first = next(value for value in given if isinstance(value, Elements))
            try:
                result = func(*args, **(kwargs or {}))
            except (RuntimeError, IndexError) as error:
                if all(value.shape == first.shape for value in given):
                    raise
                raise place_of(first).mixture(name) from error
            return elements(first, result) if name in _ELEMENTS else result

    # sidelit: depth Copies and pickles, which are plain.

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        """A plain tensor."""
        copied: Tensor = memo.setdefault(id(self), self.clone())
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickled as a plain tensor."""
        with as_plain():
            return self.as_subclass(Tensor).__reduce_ex__(protocol)


def elements(piece: Any, values: Tensor) -> Tensor:
    """Record the slice whose elements these are, or from which they were computed."""
    noted = values.as_subclass(Elements)
    setattr(noted, _PLACE, place_of(piece))
    return noted


def guard_slices(flat: Flat, unit: str) -> None:
    """Give the model's own parameters in a flat vector the class that applies the
    rules.

    They remain the same objects and change only their class. Where every rank keeps
    the whole parameter, every operation is right, so its class stays.

    :param flat: the flat vector
    :param unit: the name of its unit
    """
    watch_optimizers()
    if not flat.sliced:
        for parameter in flat.parameters:
            pickle_plain = partial(without_owner, weakref.ref(parameter))
            vars(parameter).update(__reduce_ex__=pickle_plain)
        return
    length, uncut = flat.layout.shard_numel, flat.layout.uncut
    for slot, parameter in zip(flat.layout.slots, flat.parameters, strict=True):
        place = Place(slot.names[0], unit, slot.shape, slot.offset, length, uncut)
        setattr(parameter, _PLACE, place)
        set_class(parameter, Slice)


_PLACE = "_shardbook_place"


def place_of(value: Any) -> Place:
    """The elements that a slice holds, or that a result was computed from."""
    place: Place = getattr(value, _PLACE)
    return place


def operation(func: Callable[..., Any]) -> str:
    """The name of an operation, or of the property that is read."""
    name = getattr(func, "__name__", "")
    if name == "__get__":
        name = func.__self__.__name__  # type: ignore[attr-defined]
    return name


def compute(
    func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run an operation on slices if it is elementwise and records no gradient.

    The operation is judged by its operands and its results, because a list of
    operations would never be complete. If it raises an error itself, the cause is most
    likely the shape of the slice, which differs from rank to rank. So that error is
    replaced by the one that the other ranks raise.

    :raises RuntimeError: if the operation is of another kind
    """
    given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
    first = next(value for value in given if isinstance(value, Guarded))
    place = place_of(first)
    # These operations pair the elements of lists of tensors, as an optimizer's step
    # does.
    pairs = name.startswith(LIST_OPERATIONS)
    if func is torch.autograd.grad:
        raise RuntimeError(
            f"torch.autograd.grad cannot reach {place.name} of unit {place.unit}, "
            "because autograd knows only the whole parameter; call loss.backward()"
        )
    if name in _RANDOM and first is given[0]:
        raise RuntimeError(
            f"{name} would give a slice of {place.name} of unit {place.unit} other "
            "values than the whole parameter; fill it before sharding, or through init="
        )
    if pairs and not all(
        map(are_cut_alike, zip(*lists_in(args, kwargs), strict=False))
    ):
        raise place.mixture(name)
    if not pairs and not is_elementwise(name, args, given, first):
        writes = name.endswith("_") and not name.endswith("__") and len(given) > 1
        raise place.mixture(name) if writes else place.refusal(name)
    try:
        result = func(*args, **kwargs)
    except (RuntimeError, ValueError, IndexError) as error:
        # PyTorch itself refuses to change a parameter in place while autograd records.
        if first is given[0] and name.endswith("_") and torch.is_grad_enabled():
            raise
        raise place.mixture(name) if pairs else place.refusal(name) from error
    for value in tree_leaves(result):
        if isinstance(value, Tensor) and not isinstance(value, Guarded):
            recorded = torch.is_grad_enabled() and value.requires_grad
            if recorded or (value.ndim and value.shape != first.shape and not pairs):
                raise place.refusal(name)
    if pairs:
        return result
    changed = {id(value) for value in given}
    return tree_map_only(Tensor, partial(mark, changed, first), result)


def is_elementwise(
    name: str, args: tuple[Any, ...], given: Sequence[Tensor], piece: Tensor
) -> bool:
    """Whether an operation is elementwise, judging by its name and its operands."""
    if name in _MIXES or (name in _LARGEST and len(given) == 1):
        return False
    if name in _INDEXES and not takes_all(args[1]):
        return False
    return all(fits(value, piece) for value in given)


def fits(value: Tensor, piece: Tensor) -> bool:
    """Whether an operand has a value for each element of a slice."""
    if isinstance(value, Guarded) and not place_of(value).cut_alike(place_of(piece)):
        return False
    return value.ndim == 0 or (value.shape == piece.shape and is_cut(value))


def lists_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Sequence[Any]]:
    """The lists whose elements an operation pairs."""
    given = (*args, *kwargs.values())
    return [each for each in given if isinstance(each, list | tuple)]


def are_cut_alike(values: Iterable[Any]) -> bool:
    """Whether an operation may pair these: slices, or whole tensors, but not both."""
    tensors = [value for value in values if isinstance(value, Tensor)]
    sliced = any(isinstance(value, Guarded) for value in tensors)
    return not sliced or all(is_cut(value) or not value.ndim for value in tensors)


def is_cut(value: Tensor) -> bool:
    """Whether a tensor may be a slice, and is not a parameter that each rank has whole.

    A frozen parameter is such a one in stages 1 and 2. On some ranks a slice has its
    shape by chance.
    """
    flat = flat_of(value)
    return flat is None or flat.sliced


def takes_all(index: Any) -> bool:
    """Whether an index takes every element, or is a mask over them.

    >>> [takes_all(index) for index in (..., slice(None), 0, slice(0, 1))]
    [True, True, False, False]
    """
    if isinstance(index, Tensor):
        return index.dtype is torch.bool
    return index is ... or (isinstance(index, slice) and index == slice(None))


def mark(changed: set[int], piece: Tensor, result: Tensor) -> Tensor:
    """Record the slice that a result was computed from.

    A tensor that the operation wrote to keeps its class. A full reduction stays a plain
    number.
    """
    if id(result) in changed or result.ndim == 0:
        return result
    part = result.as_subclass(Part)
    setattr(part, _PLACE, place_of(piece))
    return part


def names(text: str) -> frozenset[str]:
    """The words of a text, as names of operations."""
    return frozenset(text.split())


# Operations that only inspect a slice, or a tensor that belongs to it.
_LOOKS = names(
    "__set__ __delete__ __repr__ __format__ __hash__ __len__ __array__ detach detach_ "
    "tolist numpy size dim ndimension numel nelement stride storage_offset data_ptr "
    "untyped_storage storage is_contiguous element_size is_floating_point is_complex "
    "is_inference get_device requires_grad_ register_hook retain_grad "
    "register_post_accumulate_grad_hook zeros_like ones_like empty_like full_like "
    "rand_like randn_like randint_like"
)
# The results of these operations are the elements, or the terms of an average.
_ELEMENTS = names(
    "data detach mul __mul__ __rmul__ add __add__ __radd__ sub __sub__ __rsub__ div "
    "__truediv__"
)
# Properties that are operations.
_VIEWS = VIEWS
# Operations whose result has the shape of the slice or no dimensions, but whose
# elements are computed from other elements, or from the first one alone.
_MIXES = names(
    "__bool__ __float__ __int__ __index__ __complex__ __contains__ item softmax "
    "log_softmax cumsum cumprod logcumsumexp sort argsort flip roll normalize select "
    "narrow unbind split chunk gather take scatter_ index_select index_fill_ "
    "index_copy_ index_add_ linear matmul __matmul__ __rmatmul__ mv layer_norm "
    "rms_norm group_norm batch_norm"
)
# Operations that have no result on a rank whose slice is empty.
_LARGEST = names("max min amax amin aminmax argmax argmin median quantile")
_INDEXES = frozenset(("__getitem__", "__setitem__"))
_RANDOM = names(
    "normal_ uniform_ random_ bernoulli_ exponential_ geometric_ cauchy_ log_normal_ "
    "kaiming_uniform_ kaiming_normal_ trunc_normal_"
)


def set_class(parameter: nn.Parameter, kind: type[nn.Parameter]) -> None:
    """Change the class of a parameter, which remains the same object.

    A parameter of any other class keeps that class, because its data may need it.
    PyTorch's fake tensors, which have no values, are an example.
    """
    if type(parameter) in (nn.Parameter, Slice):
        parameter.__class__ = kind


# sidelit: depth Pickles of whole parameters, and steps of optimizers, which run on plain ones.


def without_owner(parameter: Callable[[], Any], protocol: Any) -> Any:
    """Pickle a whole parameter as a plain one, which belongs to no unit."""
    whole = parameter()
    return nn.Parameter(whole.detach(), whole.requires_grad).__reduce_ex__(protocol)


# During an optimizer's step its parameters have the plain class. PyTorch chooses the
# kernels of a step by that class, and an operation on a slice takes longer. The two
# hooks serve all models of the process.
@cache
def watch_optimizers() -> None:
    """Make every optimizer step on plain parameters."""
    register_optimizer_step_pre_hook(torch.compiler.disable(unguard))
    register_optimizer_step_post_hook(torch.compiler.disable(guard_stepped))


def unguard(optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
    """Give an optimizer's slices the plain class for the time of the step.

    :returns: the arguments of the step, if they have to change

    :raises RuntimeError: if it was given whole parameters, which exist only for a while
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if is_whole_form(parameter):
                raise RuntimeError(
                    f"{type(optimizer).__name__} was made in whole(model) or in a forward "
                    "pass, and has parameters that do not last; make it outside"
                )
            if type(parameter) is Slice:
                set_class(parameter, nn.Parameter)
                owner = owner_of(parameter)
                if owner is not None:
                    owner.plain = True
    if not hide_absent(optimizer):
        return None

    # The backward pass in a closure brings the gradients again.
    def hiding(closure: Any) -> Any:
        def call() -> Any:
            result = closure()
            hide_absent(optimizer)
            return result

        return call if callable(closure) else closure

    first, *others = args
    changed = {key: hiding(value) for key, value in kwargs.items()}
    return (first, *map(hiding, others)), changed


def guard_stepped(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """Give the parameters their own class again after a step.

    The step of one optimizer may call that of another. Then the outer step is still
    under way, and nothing changes.
    """
    if steps_under_way() > 1:
        return
    owners: dict[Flat, None] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if hasattr(parameter, _PLACE):
                set_class(parameter, Slice)
                show(parameter)
                if (owner := owner_of(parameter)) is not None:
                    owners[owner] = None
    for owner in owners:
        # Another optimizer may train other parameters of the vector, and its step may
        # have failed.
        owner.plain = any(type(each) is nn.Parameter for each in owner.parameters)


def hide_absent(optimizer: Optimizer) -> bool:
    """Hide the gradients of parameters that are whole on another rank from a step.

    The optimizer then skips these parameters. Not every rule can compute with a matrix
    without rows.

    :returns: whether there are any
    """
    found = False
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            place = getattr(parameter, _PLACE, None)
            if place and place.uncut and place.shape.numel() > parameter.numel():
                found = True
                if parameter.grad is not None:
                    vars(parameter)[_HIDDEN], parameter.grad = parameter.grad, None
    return found


def show(parameter: nn.Parameter) -> None:
    """Give a parameter the gradient again that was hidden."""
    if _HIDDEN in vars(parameter):
        hidden = vars(parameter).pop(_HIDDEN)
        parameter.grad = hidden if parameter.grad is None else parameter.grad


_HIDDEN = "_shardbook_hidden"


def guard_again(flat: Flat) -> None:
    """Guard the slices of a vector after a step that raised an error, which runs no
    hook.

    While a step calls the model, as a step with a closure does, the slices stay plain.
    """
    if not steps_under_way():
        flat.plain = False
        for parameter in flat.parameters:
            set_class(parameter, Slice)
            show(parameter)


def steps_under_way() -> int:
    """The number of optimizer steps under way, counted in the stack of calls."""
    return sum(1 for _ in calls_of(_STEP))


# The function that PyTorch wraps around each optimizer's `step`, and that runs the
# hooks.
_STEP = Optimizer.profile_hook_step(lambda: None).__code__
