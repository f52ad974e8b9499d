r"""# The class of a whole parameter

> A whole parameter has the attributes and the class of the model's own, and is not read while it is freed.

While a unit computes, its modules hold [whole parameters](flat.py) in place of the
model's own. A program must not notice the difference:

```python
layer.weight.scale = 0.5              # before sharding

def forward(self, x):                 # of the layer
    self.weight.data.mul_(0.99)       # a write that PyTorch does not count
    return x @ self.weight * self.weight.scale
```

So both objects have one dictionary of attributes. If the model's own parameter has a
class of its own, such as that of 8-bit weights, the whole one has it, too. Otherwise it
has one of the two classes of this chapter, or in a compiled unit the plain class:

| the memory of the unit is | class | what it adds |
|---|---|---|
| there | `Whole` | [writes through `.data`](flat_checks.py#WritesInUse) are found |
| given back | `Freed` | an operation on the parameter gathers the unit, or is refused |

A program can keep the object itself: on the context of an `autograd.Function`, in a
closure, or in a list. In [stage 3](zero3.py) its memory is given back after the forward
pass. PyTorch would read memory that belongs to other tensors by then. `Freed` is told
of each operation on the parameter before it runs. In a backward pass it [gathers the
unit](hooks.py#Hooks.reach_again), and the operation reads the same values as in a plain
program. At another moment no rank could rely on the others to gather, so the operation
is refused.

The class changes when the unit is gathered or freed, and while a unit computes no
operation passes through Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from shardbook.foundations.torch_private import as_plain, tree_leaves

if TYPE_CHECKING:
    from shardbook.parameters.flat import Flat

__all__ = ["OWNER", "VIEWS", "Freed", "Whole", "match", "set_class"]

OWNER = "_shardbook_flat"

VIEWS = frozenset(("T", "mT", "H", "mH", "real", "imag"))


class Whole(nn.Parameter):
    """A whole parameter whose memory is there."""

    # By this name [`is_freed`](hook_context.py#is_freed) knows the class.
    may_be_freed = True

    @property
    def data(self) -> Tensor:
        """The values without a history. PyTorch counts no write to them."""
        with as_plain():
            values: Tensor = _DATA.__get__(self)
        flat = getattr(self, OWNER, lambda: None)()
        if flat is not None:
            flat.writes.lend(values)
        return values

    @data.setter
    def data(self, values: Tensor) -> None:
        with as_plain():
            _DATA.__set__(self, values)

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        """A plain parameter with the same values, which belongs to no unit."""
        if id(self) not in memo:
            memo[id(self)] = nn.Parameter(self.detach().clone(), self.requires_grad)
        copied: nn.Parameter = memo[id(self)]
        return copied


_DATA: Any = Tensor.data


class Freed(Whole):
    """A whole parameter whose memory is given back."""

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Gather the unit before the operation. PyTorch calls this in place of the operation.

        :raises RuntimeError: outside of a backward pass
        """
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if name == "__get__":
            name = func.__self__.__name__  # type: ignore[attr-defined]
            reads = name in VIEWS
        else:
            reads = name not in _LOOKS
        if reads:
            for value in tree_leaves((args, kwargs)):
                if type(value) is Freed:
                    demand(value, name)
        with as_plain():
            return func(*args, **kwargs)

    @property
    def data(self) -> Tensor:
        """The values, after the unit has been gathered."""
        demand(self, "data")
        return self.data

    @data.setter
    def data(self, values: Tensor) -> None:
        with as_plain():
            _DATA.__set__(self, values)

    def __repr__(self) -> str:  # type: ignore[override]
        """The parameter without its values, which are not there."""
        return f"Parameter of shape {tuple(self.shape)}, freed"


# Operations that do not read the values.
_LOOKS = frozenset(
    (
        *("__set__", "__delete__", "__hash__", "__len__", "size", "dim"),
        *("ndimension", "numel", "nelement", "stride", "storage_offset"),
        *("element_size", "is_floating_point", "is_complex", "is_contiguous"),
        *("get_device", "untyped_storage", "requires_grad_", "register_hook"),
        *("register_post_accumulate_grad_hook", "zeros_like", "ones_like"),
        *("empty_like", "full_like", "new_empty", "new_zeros", "new_ones", "new_full"),
    )
)


def demand(parameter: Freed, operation: str) -> None:
    """Make the unit of a freed parameter whole.

    :raises RuntimeError: naming the parameter, if this is no backward pass
    """
    flat: Flat | None = getattr(parameter, OWNER)()
    driver = None if flat is None else flat.driver()
    if flat is None or driver is None:
        raise RuntimeError("a parameter was read after its model was dropped")
    if driver.reach_again():
        return
    index = next(i for i, one in enumerate(flat.whole) if one is parameter)
    raise RuntimeError(
        f"{flat.layout.slots[index].names[0]} of unit {driver.unit.name} was kept in "
        f"its forward pass and read after it, when its memory is freed ({operation}); "
        "keep a clone of it"
    )


def match(whole: Sequence[nn.Parameter], parameters: Sequence[nn.Parameter]) -> None:
    """Give whole parameters the attributes and the classes of the model's own."""
    for one, parameter in zip(whole, parameters, strict=True):
        # Fake tensors, which have no values, are of another class, and keep what they
        # are.
        if type(one) is nn.Parameter:
            one.__dict__ = parameter.__dict__
            # A slice of a plain parameter has [a class of its own](access.py#Slice).
            kind = getattr(type(parameter), "of_class", type(parameter))
            one.__class__ = Whole if kind is nn.Parameter else kind


def set_class(
    parameters: Iterable[nn.Parameter], kind: type[nn.Parameter] = Whole
) -> None:
    """Change the class of whole parameters when their memory is given back, or is there again.

    A parameter with a class of the program keeps it.

    :param kind: `Freed`, `Whole`, or `nn.Parameter` where the unit is compiled, because
        the compiler reads no property of a derived class
    """
    for parameter in parameters:
        if type(parameter) in (Freed, Whole, nn.Parameter):
            parameter.__class__ = kind
