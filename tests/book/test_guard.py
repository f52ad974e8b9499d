"""What is found before a step: a pass under way, and groups or state that were made for other shapes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ranks


def linears() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


DATA = torch.arange(8.0).view(2, 4)


def a_fused_step_between_the_passes() -> None:
    from shardbook import shard

    for stage in range(4):
        model = shard(linears(), stage=stage)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        model(DATA).sum().backward()
        loss = model(DATA).sum()
        optimizer.step()
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


def a_step_before_the_first_pass() -> None:
    from shardbook import shard

    for stage in range(4):
        model = shard(linears(), stage=stage)
        before = [parameter.detach().clone() for parameter in model.parameters()]
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        torch.optim.SGD(model.parameters(), lr=0.5).step()
        for parameter, old in zip(model.parameters(), before, strict=True):
            assert torch.equal(parameter, old - 0.5), (stage, parameter, old)


def a_step_in_a_forward_hook() -> None:
    from shardbook import shard

    for stage in range(4):
        model = shard(linears(), stage=stage)
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

    model = shard(linears())
    optimizer = torch.optim.AdamW(groups_by_shape(model))
    model(DATA).sum().backward()
    with pytest.raises(ValueError, match=r"^0\.weight is in one group with vectors, .* before shard\(\)"):
        optimizer.step()


def groups_made_in_time() -> None:
    from shardbook import shard

    # Before sharding; in stage 0, where the shapes stay; or with nothing to tell apart.
    model = linears()
    made = groups_by_shape(model)
    whole = shard(linears(), stage=0)
    vectors = linears()
    for layer in vectors:
        layer.weight.requires_grad_(False)
    shard(vectors)
    trainable = [p for p in vectors.parameters() if p.requires_grad]
    for each, groups in (
        (shard(model), made),
        (whole, groups_by_shape(whole)),
        (vectors, [{"params": [], "weight_decay": 0.1}, {"params": trainable, "weight_decay": 0.0}]),
    ):
        optimizer = torch.optim.AdamW(groups)
        each(DATA).sum().backward()
        optimizer.step()


def state_of_the_whole() -> None:
    from shardbook import shard

    model = linears()
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


def test_what_a_step_finds() -> None:
    ranks.run(2, everything)


def everything() -> None:
    a_fused_step_between_the_passes()
    every_change_between_the_passes_counts()
    a_step_before_the_first_pass()
    a_step_in_a_forward_hook()
    groups_made_too_late()
    groups_made_in_time()
    state_of_the_whole()
