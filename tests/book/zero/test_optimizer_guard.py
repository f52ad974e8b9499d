"""What is found before a step: a pass under way, and groups or state that were made for other shapes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import ranks
from book.toys import linears

pytestmark = pytest.mark.full

DATA = torch.arange(8.0).view(2, 4)


def a_fused_step_between_the_passes() -> None:
    from shardbook import shard

    for stage in range(4):
        model = shard(linears(2), stage=stage)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        model(DATA).sum().backward()
        loss = model(DATA).sum()
        optimizer.step()
        with pytest.raises(RuntimeError, match="parameters were changed between this unit's forward"):
            loss.backward()


def a_load_between_the_passes() -> None:
    from shardbook import shard

    for stage in range(4):
        model = shard(linears(2), stage=stage)
        loss = model(DATA).sum()
        model.load_state_dict(model.state_dict())
        with pytest.raises(RuntimeError, match="parameters were changed between this unit's forward"):
            loss.backward()


def every_change_between_the_passes_counts() -> None:
    """Steps and writes are added up, and no change of one kind hides in the count of the other."""
    from shardbook import shard

    for stage in range(4):
        for fused in (False, True):
            model = shard(nn.Linear(4, 4, bias=False), stage=stage)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
            for count in range(8):
                loss = model(DATA).sum()
                loss.backward()
                loss = model(DATA).sum()
                optimizer.step()
                with pytest.raises(RuntimeError, match="parameters were changed between this unit's forward"):
                    loss.backward()
                if count % 3 == 0:
                    with torch.no_grad():
                        model.weight.mul_(1)
                optimizer.zero_grad()
    # After many changes, too, two equal numbers are no difference.
    with torch.no_grad():
        for _ in range(300):
            model.weight.mul_(1)
    model(DATA).sum().backward()


def a_step_before_the_first_pass() -> None:
    from shardbook import shard

    for stage in range(4):
        model = shard(linears(2), stage=stage)
        before = [parameter.detach().clone() for parameter in model.parameters()]
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        torch.optim.SGD(model.parameters(), lr=0.5).step()
        for parameter, old in zip(model.parameters(), before, strict=True):
            assert torch.equal(parameter, old - 0.5), (stage, parameter, old)


def a_step_in_a_forward_hook() -> None:
    from shardbook import shard

    for stage in range(4):
        model = shard(linears(2), stage=stage)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(DATA).sum().backward()
        handle = model[1].register_forward_pre_hook(lambda *_, step=optimizer.step: step())
        with pytest.raises(RuntimeError, match=r"1\.weight is in the middle of a forward or backward pass"):
            model(DATA)
        handle.remove()
        # The step may be taken once the model has been called again.
        model(DATA).sum().backward()
        optimizer.step()


def groups_by_shape(model: nn.Module) -> list[dict[str, object]]:
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]


def groups_made_too_late() -> None:
    from shardbook import shard

    model = shard(linears(2))
    optimizer = torch.optim.AdamW(groups_by_shape(model))
    model(DATA).sum().backward()
    with pytest.raises(ValueError, match=r"^0\.weight is in one group with vectors, .* before shard\(\)"):
        optimizer.step()
    # The group that was to decay holds what is not cut.
    model = shard(linears(2), uncut=lambda name, parameter: name == "0.weight")
    optimizer = torch.optim.AdamW(groups_by_shape(model))
    model(DATA).sum().backward()
    with pytest.raises(ValueError, match=r"^1\.weight is in one group with vectors"):
        optimizer.step()


class Numbers(nn.Module):
    """A parameter without dimensions beside a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift


def chosen(model: nn.Module, one: nn.Parameter) -> list[dict[str, object]]:
    """One parameter that does not decay, and all others."""
    rest = [parameter for parameter in model.parameters() if parameter is not one]
    return [{"params": [one], "weight_decay": 0.0}, {"params": rest, "weight_decay": 0.1}]


def groups_made_in_time() -> None:
    from shardbook import shard

    # Before sharding; in stage 0, where the shapes stay; or with nothing to tell apart.
    model = linears(2)
    made = groups_by_shape(model)
    whole = shard(linears(2), stage=0)
    vectors = linears(2)
    for layer in vectors:
        layer.weight.requires_grad_(False)
    shard(vectors)
    trainable = [p for p in vectors.parameters() if p.requires_grad]
    matrices = shard(nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)))
    # A convolution has no vectors, and a number is no matrix.
    filters = shard(nn.Sequential(nn.Conv1d(2, 4, 1, bias=False), nn.Linear(4, 4, bias=False)))
    numbers = shard(Numbers())
    # A vector or a number that is not cut is chosen by its name.
    biased = shard(linears(2), uncut=lambda name, parameter: name == "0.bias")
    numbered = shard(
        nn.Sequential(Numbers(), nn.Linear(4, 4)), uncut=lambda name, parameter: name == "0.scale"
    )
    for each, groups in (
        (biased, chosen(biased, biased[0].bias)),
        (numbered, chosen(numbered, numbered[0].scale)),
        (filters, groups_by_shape(filters)),
        (numbers, groups_by_shape(numbers)),
        (matrices, groups_by_shape(matrices)),
        (shard(model), made),
        (whole, groups_by_shape(whole)),
        (vectors, [{"params": [], "weight_decay": 0.1}, {"params": trainable, "weight_decay": 0.0}]),
    ):
        optimizer = torch.optim.AdamW(groups)
        each(DATA).sum().backward()
        optimizer.step()


def state_of_the_whole() -> None:
    from shardbook import shard

    model = linears(2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(DATA).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    state = optimizer.state_dict()
    shard(model)
    wrong = r"^exp_avg of 0\.weight in this AdamW has shape \(4, 4\), .* load_optimizer_state_dict\(\)"
    model(DATA).sum().backward()
    with pytest.raises(ValueError, match=wrong):
        optimizer.step()
    later = torch.optim.AdamW(model.parameters())
    later.step()
    later.load_state_dict(state)
    with pytest.raises(ValueError, match=wrong):
        later.step()


def state_of_what_is_not_cut() -> None:
    """The rank that has a matrix may have state of any shape, and the others may have none."""
    from shardbook import shard

    for right in (True, False):
        model = shard(linears(2), uncut=lambda name, parameter: name == "0.weight")
        weight = model[0].weight
        optimizer = torch.optim.SGD([weight])
        model(DATA).sum().backward()
        has = weight.numel() > 0
        optimizer.state[weight] = {"sides": torch.zeros(9 if has or not right else 0)}
        with (
            nullcontext()
            if has or right
            else pytest.raises(ValueError, match=r"^sides of 0\.weight in this SGD")
        ):
            optimizer.step()
    # What is cut has state of its own shape, and not none.
    model = shard(nn.Linear(16, 16, bias=False))
    optimizer = torch.optim.SGD([model.weight])
    optimizer.state[model.weight] = {"sides": torch.zeros(0)}
    with pytest.raises(ValueError, match=r"^sides of weight in this SGD has shape \(0,\)"):
        optimizer.step()


def state_of_the_whole_beside_another_parameter() -> None:
    """The search for a wrong entry goes on behind a parameter that is no slice, and behind a number."""
    from shardbook import shard

    model, temperature = linears(2), nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([temperature, *model.parameters()])
    (model(DATA).sum() * temperature.sum()).backward()
    optimizer.step()
    optimizer.zero_grad()
    shard(model)
    (model(DATA).sum() * temperature.sum()).backward()
    with pytest.raises(ValueError, match=r"^exp_avg of 0\.weight in this AdamW has shape"):
        optimizer.step()


def tied(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4, dtype=dtype), nn.Linear(4, 4, dtype=dtype))
    model[1].weight = model[0].weight
    return model


def waits(model: nn.Sequential) -> None:
    from shardbook import no_sync

    with no_sync(model):
        model(DATA).sum().backward()
    torch.optim.SGD(model.parameters()).step()


def steps_within(model: nn.Sequential) -> None:
    optimizer = torch.optim.SGD(model.parameters())
    model[1].register_forward_pre_hook(lambda *_: optimizer.step())
    model(DATA)


def reads(model: nn.Sequential) -> None:
    (model(DATA).sum() + model[1].weight.sum()).backward()


def hooks(model: nn.Sequential) -> None:
    model[1].weight.register_post_accumulate_grad_hook(print)
    model(DATA)


def moves(model: nn.Sequential) -> None:
    model[1].weight.data = model[1].weight.data.clone()
    model(DATA)


def unfreezes(model: nn.Sequential) -> None:
    model.requires_grad_()
    model(DATA.to(torch.complex64))


def keeps(model: nn.Sequential) -> None:
    kept: list[Tensor] = []
    model[1].register_forward_hook(lambda layer, *_: kept.append(layer.weight))
    model(DATA)
    kept[0].sum()


def splits_late(model: nn.Sequential) -> None:
    optimizer = torch.optim.AdamW(groups_by_shape(model))
    model(DATA).sum().backward()
    optimizer.step()


def keeps_state(model: nn.Sequential) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    model(DATA).sum().backward()
    for parameter in model.parameters():
        optimizer.state[parameter] = {"exp_avg": torch.zeros(9, 9)}
    optimizer.step()


def made_within(model: nn.Sequential) -> None:
    """The parameters that it finds there are gone after the block."""
    from shardbook import whole

    with whole(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(DATA).sum().backward()
    optimizer.step()


def trains_by_shape(model: nn.Sequential) -> None:
    optimizer = torch.optim.Adafactor(model.parameters())
    model(DATA).sum().backward()
    optimizer.step()


# What a program does, the stage, and what it is told.
TOLD: list[tuple[Callable[[nn.Sequential], None], int, str]] = [
    (waits, 3, r"^the gradient of 0\.weight has not been averaged"),
    (steps_within, 3, r"^0\.weight is in the middle of a forward or backward pass"),
    (reads, 0, r"^0\.weight was used outside of its unit's forward pass"),
    (keeps, 3, r"^0\.weight of unit the root was kept in its forward pass"),
    (hooks, 3, r"^the gradient hook on 0\.weight in unit the root would never be called"),
    (moves, 3, r"^0\.weight in unit the root has left its shard"),
    (unfreezes, 3, r"^0\.weight in unit the root is complex and cannot be trained"),
    *((made_within, stage, r"^SGD was made in whole\(model\) or in a forward pass") for stage in (0, 3)),
    (splits_late, 3, r"^0\.weight is in one group with vectors"),
    (trains_by_shape, 3, r"^Adafactor depends on a parameter's shape, and 0\.weight is cut"),
    (keeps_state, 3, r"^exp_avg of 0\.weight in this AdamW has shape \(9, 9\)"),
]


def one_name() -> None:
    from shardbook import Disagreement, no_sync, shard

    for act, stage, sentence in TOLD:
        model = tied(torch.complex64).requires_grad_(False) if act is unfreezes else tied()
        with pytest.raises((RuntimeError, TypeError, ValueError), match=sentence):
            act(shard(model, units=(), stage=stage))
    # Between ranks: which of them has stepped, which of them has frozen.
    for culprit in range(2):
        model, mine = shard(tied(), units=(), stage=0), dist.get_rank() == culprit
        optimizer = torch.optim.SGD(model.parameters())
        model(DATA).sum().backward()
        if mine:
            optimizer.step()
        steps = [int(rank == culprit) for rank in range(2)]
        with pytest.raises(
            Disagreement, match=rf"^rank 1 has changed 0\.weight in {steps[1]} .* rank 0 in {steps[0]}, so"
        ):
            model(DATA).sum().backward()
        model = shard(tied(), units=())
        model[1].weight.requires_grad_(not mine)
        with pytest.raises(Disagreement, match=r"\(requires_grad of 0\.weight changed"), no_sync(model):
            model(DATA).sum().backward()


class WantsClosure(torch.optim.SGD):
    """Like those that look at the loss twice, but an elementwise rule."""

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        if closure is None:
            raise ValueError("this optimizer computes the loss itself; call step(closure)")
        return super().step(closure)


def steps_with_a_closure() -> None:
    """The rule is tried as the program calls it."""
    from shardbook import shard

    for by_name in (False, True):
        plain, model = linears(2), shard(linears(2))
        for each in (plain, model):
            optimizer = WantsClosure(each.parameters(), lr=0.1)

            def closure(each: nn.Module = each, optimizer: torch.optim.Optimizer = optimizer) -> Tensor:
                optimizer.zero_grad()
                loss: Tensor = each(DATA).sum()
                loss.backward()
                return loss

            optimizer.step(closure=closure) if by_name else optimizer.step(closure)
        state = model.state_dict()
        assert all(torch.equal(state[name], value) for name, value in plain.state_dict().items())


def test_of_a_tied_parameter_the_first_name_is_told() -> None:
    ranks.run(2, one_name)


def test_what_a_step_finds() -> None:
    ranks.run(2, everything)
    # One process alone may train parameters that belong to no unit.
    ranks.run(1, state_of_the_whole_beside_another_parameter)


def everything() -> None:
    a_fused_step_between_the_passes()
    a_load_between_the_passes()
    every_change_between_the_passes_counts()
    a_step_before_the_first_pass()
    a_step_in_a_forward_hook()
    groups_made_too_late()
    groups_made_in_time()
    steps_with_a_closure()
    state_of_the_whole()
    state_of_what_is_not_cut()
