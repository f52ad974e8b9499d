r"""# Sharding a model

> One call shards a whole model and leaves its training loop as it was.

[Hooks](layer.py#Hooks) drive one unit, and [a chain](schedule.py#Chain) puts units into
an order. This chapter applies both, from outside, to a model that knows nothing of
them. It chooses the units, checks that all ranks chose the same, and attaches the
hooks.

```python
model = shard(GPT(config), units=Block)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for batch in batches:
    loss = model(batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
```

Nothing else changes in the training loop. The model has the same class, the same
`forward`, and the same parameter names. While it computes, a rank holds at most three
units whole: the one in use, the one that is being gathered, and the root.

Three habits of an unsharded program need care. Parameter groups that depend on a
parameter's shape, such as weight decay for matrices only, are made before sharding,
because afterwards every parameter is 1-D. Conversions such as `model.half()` come
before it, too. And an optimizer must treat each element by itself, as SGD and Adam do.

Whoever looks at the gradients sees only this rank's part of them. The norm that
`torch.nn.utils.clip_grad_norm_` takes is the norm of that part, and `GradScaler` looks
for an overflow only there. Then each rank would scale its part by another factor, or
one would step and another would not, and no error is raised. So use neither
`clip_grad_norm_` nor `GradScaler` on a sharded model. `torch.autograd.grad` and
`backward(inputs=...)` cannot be asked for the slices, since autograd knows only the
whole parameters.

Under `autocast` the results are right, but autograd keeps the 16-bit copies of the
weights until the backward pass, and these copies are whole.
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from shardbook.check import agree, unfit
from shardbook.flat import is_sharded
from shardbook.layer import Hooks, broadcast_buffers, sites_of
from shardbook.schedule import Chain
from shardbook.state import keep_state_dict_whole
from shardbook.unit import Site, Unit

__all__ = ["Zero3Sequential", "shard"]

M = TypeVar("M", bound=nn.Module)
Classes = type[nn.Module] | tuple[type[nn.Module], ...]
Predicate = Callable[[str, nn.Module], bool]
Select = Classes | Predicate
# sidelit: show


def shard(
    model: M,
    *,
    stage: int = 3,
    units: Select | None = None,
    mesh: Any = None,
    policy: Any = None,
) -> M:
    """Shard a model over the ranks and return it.

    The model starts from the values of rank 0. Afterwards each parameter is this rank's
    1-D slice of its unit's shard, often an empty one. `model.state_dict()` is
    collective: all ranks call it, and each gets the whole parameters in their old
    shapes.

    :param model: any module whose units run one after the other, in the order in which
        it names them; in another order the results are the same, but units are gathered
        ahead in vain
    :param stage: 3 shards parameters, gradients and optimizer state
    :param units: which modules are gathered as one: a class, several classes, or a
        function of a module's name and the module. Parameters outside of them form one
        more unit, the root. `None` makes each child of an `nn.Sequential` a unit, and
        any other model a single unit.
    :param mesh: a one-dimensional `DeviceMesh` or a process group; `None` means all
        ranks
    :param policy: has to be `None`
    :returns: the same object
    :raises ValueError: if ranks disagree about the model or it cannot be sharded (then
        on every rank), and for a stage, a mesh or a policy other than the above
    :raises RuntimeError: if there is no process group yet

    Source: [ZeRO](bib:rajbhandari2020zero), stage 3.
    """
    if stage != 3:
        raise ValueError(
            f"stage={stage!r} is not supported; this version shards at stage 3"
        )
    if policy is not None:
        raise ValueError("policy is not supported; each parameter keeps its own dtype")
    group = group_of(mesh)
    modules = select(model, units)
    sites = {
        name: unit_sites(name, module, modules) for name, module in modules.items()
    }
    parameters = [
        (called(name), site.name, site.parameter)
        for name in sites
        for site in sites[name]
    ]
    buffers = [(called(""), *pair) for pair in model.named_buffers()]
    agree([*parameters, *buffers], group, objection=objections(sites, units))
    # One unit after the other is copied, cut, and freed. So the peak of construction is
    # the model and one unit.
    chain = Chain(model)
    for name, module in modules.items():
        if sites[name]:
            unit = Unit(called(name), sites[name], group=group)
            Hooks(unit, module, chain)
            keep_state_dict_whole(unit, module)
    chain.attach()
    broadcast_buffers(model, group)
    return model


class Zero3Sequential(nn.Sequential):
    """A chain of layers, each of them a unit, built and sharded in one go.

    :param layers: modules to run one after the other
    :param group: the process group whose ranks share the layers; `None` means all ranks

    Errors are those of [`shard`](#shard).
    """

    def __init__(self, *layers: nn.Module, group: Any = None) -> None:
        super().__init__(*layers)
        shard(self, mesh=group)


def select(model: nn.Module, units: Select | None) -> dict[str, nn.Module]:
    """The modules that become units, by name, in the order of the model. The first,
    `""`, is the root.
    """
    if units is None:
        children = (
            dict(model.named_children()) if isinstance(model, nn.Sequential) else {}
        )
        return {"": model, **children}
    chosen = is_instance_of(units) if isinstance(units, type | tuple) else units
    found = {
        name: module
        for name, module in model.named_modules()
        if name and chosen(name, module)
    }
    return {"": model, **found}


def is_instance_of(classes: Classes) -> Predicate:
    """The function that selects the instances of some classes."""
    return lambda name, module: isinstance(module, classes)


def unit_sites(
    name: str, module: nn.Module, modules: dict[str, nn.Module]
) -> list[Site]:
    """The sites of one unit. A parameter belongs to the innermost unit around it."""
    return sites_of(
        module,
        prefix=name,
        without=[other for other in modules.values() if other is not module],
    )


def called(name: str) -> str:
    """How messages name a unit.

    >>> called("blocks.0"), called("")
    ('blocks.0', 'the root')
    """
    return name or "the root"


def objections(sites: dict[str, list[Site]], units: Select | None) -> str | None:
    """Why this rank cannot shard its model, or `None`.

    A parameter that stands in two units would be gathered and reduced by both, and the
    two copies would drift apart. So tied weights have to stand in one unit.
    """
    if units is not None and len(sites) == 1:
        return (
            f"units={units!r} selects no module; name a class that the model contains"
        )
    owner: dict[int, tuple[str, str]] = {}
    for unit, here in sites.items():
        for site in here:
            if is_sharded(site.parameter):
                return f"{site.name} is sharded already; shard a model only once"
            first, other = owner.setdefault(id(site.parameter), (unit, site.name))
            if first != unit:
                return (
                    f"{other} in {called(first)} and {site.name} in {called(unit)} are "
                    "one tied parameter; choose units that do not part them"
                )
    return unfit(
        [(site.name, site.parameter) for here in sites.values() for site in here]
    )


def group_of(mesh: Any) -> Any:
    """The process group of a one-dimensional mesh; a group or `None` is passed through."""
    if not isinstance(mesh, DeviceMesh):
        return mesh
    if mesh.ndim != 1:
        raise ValueError(
            f"a mesh of {mesh.ndim} dimensions is not supported; "
            "pass one dimension of it, as in mesh['shard']"
        )
    return mesh.get_group()
