"""Parameters that were not there when the model was sharded: found at the step or in the forward pass."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrizations, weight_norm

import ranks
from book.toys import linears, said_by


def data() -> Tensor:
    return torch.full((2, 4), 0.5 + dist.get_rank())


def only_blocks() -> str:
    from shardbook import shard

    model = linears()
    for block in list(model)[:2]:
        shard(block)
    optimizer = torch.optim.AdamW(model.parameters())
    model(data()).sum().backward()
    return said_by(optimizer.step)


def a_new_head() -> str:
    from shardbook import shard

    model = shard(linears())
    model[2] = nn.Linear(4, 2)
    return said_by(lambda: model(data()))


def one_more_block() -> str:
    from shardbook import shard

    model = shard(linears())
    optimizer = torch.optim.AdamW(model.parameters())
    model(data()).sum().backward()
    optimizer.step()
    model.append(nn.Linear(4, 4))
    with torch.no_grad():
        model(data())
    return said_by(lambda: model(data()))


class Adapter(nn.Module):
    """As LoRA puts one around a layer: the layer is frozen, and something small is trained beside it."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer
        self.down, self.up = nn.Linear(4, 2, bias=False), nn.Linear(2, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x) + self.up(self.down(x))
        return y


def an_adapter() -> str:
    from shardbook import shard

    model = shard(linears())
    model[1] = Adapter(model[1])
    return said_by(lambda: model(data()))


def another_object() -> str:
    from shardbook import shard

    model = shard(linears())
    model[0].bias = nn.Parameter(torch.zeros(4))
    with torch.no_grad():
        return said_by(lambda: model(data()))


def normed() -> str:
    from shardbook import shard

    model = shard(linears(), stage=0)
    with pytest.warns(FutureWarning, match="weight_norm"):
        weight_norm(model[1])
    with torch.no_grad():
        return said_by(lambda: model(data()))


def parametrized() -> str:
    from shardbook import shard

    model = shard(linears(), stage=1)
    torch.nn.utils.parametrize.register_parametrization(model[1], "bias", nn.Identity())
    return said_by(lambda: model(data()))


def called_with_others() -> str:
    from shardbook import shard

    model = shard(linears())
    others = {name: value.detach() for name, value in linears().named_parameters()}
    return said_by(lambda: functional_call(model, others, (data(),)))


ALONE = " belongs to no unit, so each rank would train it alone; "
REPLACED = " was replaced or removed after sharding; "


def all_refused() -> None:
    assert only_blocks().startswith("2.weight" + ALONE)
    assert a_new_head().startswith("2.weight" + ALONE)
    assert one_more_block().startswith("3.weight" + ALONE)
    assert an_adapter().startswith("1.down.weight" + ALONE)
    assert another_object().startswith("0.bias in unit 0" + REPLACED)
    assert normed().startswith("1.weight in unit 1" + REPLACED)
    assert parametrized().startswith("1.bias in unit 1" + REPLACED)
    assert called_with_others().startswith("0.weight in unit 0" + REPLACED)


@pytest.mark.full
def test_a_parameter_that_came_later_is_named_on_every_rank() -> None:
    ranks.run(2, all_refused)


def a_second_model() -> None:
    """A plain model with an optimizer of its own is somebody else's business."""
    from shardbook import shard

    model, plain = shard(linears()), linears()
    optimizers = [torch.optim.AdamW(each.parameters()) for each in (model, plain)]
    model(plain(data())).sum().backward()
    for optimizer in optimizers:
        optimizer.step()


def one_optimizer_with_ddp() -> None:
    from shardbook import shard

    model, wrapped = shard(linears()), DistributedDataParallel(linears(1))
    optimizer = torch.optim.AdamW([*model.parameters(), *wrapped.parameters()])
    model(wrapped(data())).sum().backward()
    optimizer.step()
    values = [torch.empty(4, 4) for _ in range(2)]
    dist.all_gather(values, wrapped.module[0].weight.detach())
    assert torch.equal(*values), values


def without_a_gradient() -> None:
    from shardbook import shard

    model, unused = shard(linears()), nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.AdamW([*model.parameters(), unused])
    model.register_parameter("frozen", nn.Parameter(torch.zeros(3), requires_grad=False))
    model(data()).sum().backward()
    optimizer.step()
    functional_call(model, dict(model.named_parameters()), (data(),))


def allowed() -> None:
    a_second_model()
    one_optimizer_with_ddp()
    without_a_gradient()


def test_what_is_not_trained_alone_is_let_pass() -> None:
    ranks.run(2, allowed)


def one_process() -> None:
    from shardbook import shard

    model = shard(linears())
    model.append(nn.Linear(4, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(data()).sum().backward()
    optimizer.step()


def test_one_process_may_train_what_no_unit_owns() -> None:
    ranks.run(1, one_process)


def of_no_module() -> str:
    from shardbook import shard

    model, alone = shard(linears()), nn.Parameter(torch.zeros(3, 2))
    optimizer = torch.optim.AdamW([*model.parameters(), alone])
    (model(data()).sum() + alone.sum()).backward()
    return said_by(optimizer.step)


def test_a_parameter_of_no_module_is_named_by_its_shape() -> None:
    for said in ranks.run(2, of_no_module):
        assert said.startswith("a parameter of shape (3, 2)" + ALONE)


def test_a_parametrization_before_sharding_is_trained() -> None:
    ranks.run(2, parametrized_before)


def parametrized_before() -> None:
    from shardbook import shard

    model = linears()
    parametrizations.weight_norm(model[1])
    shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    model(data()).sum().backward()
    optimizer.step()
