r"""# Parameter sites

> A site is an attribute of a module that names a parameter, and a unit changes it while it computes.

A model finds its parameters by attribute, for example `self.weight`. An optimizer finds
them by object. While a module computes, the two must differ: the optimizer keeps the
object that it trains, and the attribute names the whole parameter. This book calls such
an attribute a *site*. This chapter finds all sites of a model, and decides to which
unit each one belongs. At its end it lists the parameters and models that cannot be
sharded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from weakref import WeakSet

import torch
from torch import nn

from shardbook.foundations.torch_private import own_parameters
from shardbook.zero.policy import Policy
from shardbook.zero.whole_parameter import has_gradient_hook, has_live_node

__all__ = [
    "STREAMED",
    "Site",
    "dtypes_of",
    "elements",
    "is_streamed",
    "parts_of",
    "repeated_blocks",
    "sites_by_unit",
    "sites_of",
    "unfit",
]


class Site:
    """One attribute of a module that names a parameter.

    The optimizer must see the slices, and the computation must see the whole
    parameters. So there are two tensors, both of them leaves, and
    [`Unit.show`](unit.py#Unit.show) decides which of them the attribute names. If one
    object served both, its shape would change while it holds a gradient between two
    micro-batches.

    :param name: the parameter's name in the model, as `named_parameters` gives it
    :param module: the module that has the attribute
    :param attribute: the attribute's name
    """

    def __init__(self, name: str, module: nn.Module, attribute: str) -> None:
        self.name = name
        self.module = module
        self.attribute = attribute
        self.parameter: nn.Parameter = getattr(module, attribute)


def sites_of(module: nn.Module) -> list[Site]:
    """All sites of a module, in the order of `named_parameters`."""
    return [
        Site(f"{path}.{attribute}" if path else attribute, owner, attribute)
        for path, owner in module.named_modules()
        for attribute, parameter in own_parameters(owner).items()
        if parameter is not None
    ]


def sites_by_unit(
    model: nn.Module, modules: dict[str, nn.Module]
) -> dict[str, list[Site]]:
    """The sites of a model, by unit.

    A parameter belongs to the innermost unit around it. A tied parameter has several
    sites, and belongs to the innermost unit around all of them. That may be the *root*,
    the unit of the model itself. If a parameter belonged to two units, both would
    gather and reduce it, and the two copies would be trained differently.

    :param modules: the modules that are units, by name; `""` is the model itself
    :raises ValueError: if the model, or a part of it, is [streamed](streaming.py)
    """
    if is_streamed(model):
        raise ValueError("this model is streamed; stream a model or shard it, not both")
    sites = sites_of(model)
    around: dict[int, list[str]] = {}
    for site in sites:
        here = [name for name in modules if is_inside(site.name, name)]
        known = around.setdefault(id(site.parameter), here)
        around[id(site.parameter)] = [name for name in known if name in here]
    by_unit: dict[str, list[Site]] = {name: [] for name in modules}
    for site in sites:
        by_unit[max(around[id(site.parameter)], key=len)].append(site)
    return by_unit


def is_inside(name: str, unit: str) -> bool:
    """Whether a parameter of this name is inside a module of that name.

    >>> is_inside("blocks.1.weight", "blocks.1"), is_inside("blocks.10.weight", "blocks.1")
    (True, False)
    """
    return not unit or name.startswith(f"{unit}.")


def repeated_blocks(model: nn.Module) -> dict[str, nn.Module]:
    """The blocks that a model repeats, by name: its units, if the program names none.

    They are the modules of one class in `ModuleList`s and `Sequential`s. Of several
    classes it is the one with the most parameters. Another one counts, too, if it holds
    a quarter of the model, as the decoder's blocks beside those of the encoder. Single
    layers do not count, because a model may use one of several heads. A model of
    `transformers` names the classes itself.

    >>> with torch.device("meta"):
    ...     model = nn.Transformer(8, 2, 2, 1, batch_first=True)
    >>> [*repeated_blocks(model)]
    ['encoder.layers.0', 'encoder.layers.1']
    """
    found: dict[type[nn.Module], dict[str, nn.Module]] = {}
    for path, container in model.named_modules():
        if isinstance(container, nn.ModuleList | nn.Sequential):
            for name, block in container.named_children():
                if any(block.children()):
                    blocks = found.setdefault(type(block), {})
                    blocks[f"{path}.{name}".removeprefix(".")] = block
    sizes = {k: elements(found[k].values()) for k in found if len(found[k]) > 1}
    named = getattr(model, "_no_split_modules", None) or ()
    kinds = [kind for kind in sizes if kind.__name__ in named]
    least = max(sizes.values(), default=0), elements([model]) / 4
    kinds = kinds or [kind for kind, size in sizes.items() if size >= min(least)]
    chosen = {name: block for kind in kinds for name, block in found[kind].items()}
    return {
        name: block
        for name, block in chosen.items()
        if elements([block])
        and not any(is_inside(name, other) for other in chosen if other != name)
    }


def elements(modules: Iterable[nn.Module]) -> int:
    """How many elements the parameters of some modules have, a shared one counted once."""
    parameters = {p for module in modules for p in module.parameters()}
    return sum(
        0 if nn.parameter.is_lazy(parameter) else parameter.numel()
        for parameter in parameters
    )


def dtypes_of(
    policy: Policy, sites: Sequence[Site]
) -> Callable[[nn.Parameter], torch.dtype]:
    """The function that gives the dtype in which modules compute with a parameter.

    A tied parameter is an attribute of several modules, but has one whole copy. That
    copy is in FP32 only if [the rule](policy.py#module/norms-and-losses) names all of these modules.

    :param policy: the policy of the model
    :param sites: the sites of a unit's parameters
    """
    others = {
        site.parameter
        for site in sites
        if not isinstance(site.module, policy.fp32_modules)
    }
    return lambda parameter: policy.computes_in(
        parameter.dtype, in_fp32=parameter not in others
    )


# sidelit: depth Models that cannot be sharded, parts that are called directly, and streamed chains.


def parts_of(model: nn.Module, sites: Sequence[Site]) -> list[nn.Module]:
    """The modules inside a model that contain some of the root's parameters.

    A program may call such a module directly. `generate()` of an encoder-decoder model,
    for example, calls `model.encoder(...)`. Without hooks of its own the encoder would
    compute with slices.

    :param sites: the sites of the root
    """
    paths = [site.name.split(".")[:-1] for site in sites]
    around = {".".join(path[:end]) for path in paths for end in range(1, len(path) + 1)}
    return [module for name, module in model.named_modules() if name in around]


def unfit(
    parameters: Sequence[tuple[str, nn.Parameter]], device: torch.device
) -> str | None:
    """The reason why these parameters cannot be sharded together, or `None`.

    :param parameters: names and parameters of the whole model
    :param device: the device that those on the meta device will have
    """
    first: tuple[str, torch.device] | None = None
    for name, parameter in parameters:
        if nn.parameter.is_lazy(parameter):
            return f"{name} has no shape yet; run a forward pass before sharding"
        if has_gradient_hook(parameter):
            return f"the gradient hook on {name} would never be called; remove it"
        if has_live_node(parameter):
            return (
                f"the node that accumulates the gradient of {name} is in use, and hooks "
                "on it would never be called; drop it, or the result that was computed "
                "before sharding, and step inside the backward pass by step_in_backward()"
            )
        if parameter.grad is not None:
            return f"{name} has a gradient already; call zero_grad() before sharding"
        if parameter.requires_grad and parameter.is_complex():
            return f"{name} is complex; store its real and imaginary parts instead"
        here = device if parameter.is_meta else parameter.device
        first = first or (name, here)
        if here != first[1]:
            return (
                f"{name} is on {here}, {first[0]} on {first[1]}; "
                "move the module to one device before sharding"
            )
    return None


# The chains that [are streamed](streaming.py#module/cutting-a-model-into-slices) through their device.
STREAMED: WeakSet[nn.Module] = WeakSet()


def is_streamed(model: nn.Module) -> bool:
    """Whether a model is a streamed chain, or contains one."""
    return any(module in STREAMED for module in model.modules())
